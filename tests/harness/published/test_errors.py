"""Errors by kind of machine and system, and which scores have moved."""

import pytest

from moebench.harness.published import errors
from moebench.harness.published.rows import Row
from tests.harness.published.made import CELLS, predicted


def rows(count: int, cpus: tuple[str, ...] = ("Ryzen 9 5950X", "Ryzen 7 5800X")) -> list[Row]:
    return [Row(**CELLS | {"id": f"r{n}", "cpu": cpus[n % len(cpus)]}) for n in range(count)]


def test_a_kind_is_known_from_enough_figures_of_several_machines() -> None:
    many, few, one = rows(8), rows(7), rows(9, ("Ryzen 9 5950X",))
    found = errors.document(many, predicted(many), predicted(many, 1.5))["kinds"]
    (name,) = found
    assert name == "llamacpp, ggml, desktop"
    assert found[name]["decode"]["median_error"] == pytest.approx(0.5)
    assert found[name]["decode"]["within_80"] == pytest.approx(1.5)
    assert (found[name]["decode"]["figures"], found[name]["decode"]["machines"]) == (8, 2)
    for too_few in (few, one):
        assert errors.document(too_few, predicted(too_few), predicted(too_few))["kinds"] == {}


def scores(**changed: float) -> dict[str, dict[str, float | None]]:
    plain = dict.fromkeys((*errors.LOWER, *errors.HIGHER), 0.5)
    return {"left_out": {**plain, **changed}, "in_sample": dict(plain)}


def test_what_moved_is_better_or_worse() -> None:
    assert errors.moved(scores(), scores()) == []
    assert errors.moved(scores(), scores(median_error=0.5001)) == []
    (worse,) = errors.moved(scores(), scores(median_error=0.51))
    assert worse == ("left_out.median_error", 0.5, 0.51, True)
    (better,) = errors.moved(scores(), scores(pairs_in_order=0.6))
    assert not better.worse
    (less,) = errors.moved(scores(), scores(kendall_tau=0.4))
    assert less.worse

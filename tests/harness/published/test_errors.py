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


def pair(group: str, first: float, second: float, system: str = "ik_llama.cpp") -> list[Row]:
    """Return two rows of one group: llama.cpp and another system, with measured rates."""
    ids = f"{group}-1", f"{group}-2"
    of = {"group": group, "prefill_tok_s": ""}
    other = {"id": ids[1], "decode_tok_s": str(second), "system": system}
    return [Row(**CELLS | of | {"id": ids[0], "decode_tok_s": str(first)}),
            Row(**CELLS | of | other)]  # fmt: skip


def test_the_error_of_ratios_is_of_two_engines_and_groups_count_equally() -> None:
    """All are predicted at 10: the ratios are 1, measured 2, 1.5 and, five times, 1.1."""
    of = [*pair("a", 20, 10), *pair("b", 15, 10), *pair("c", 11, 10)]
    of += [one.model_copy(update={"id": f"{one.id}{n}"}) for n in range(4) for one in of[5:6]]
    at_ten = [one._replace(predicted=10.0) for one in predicted(of)]
    found = errors.document(of, at_ten, at_ten)["ratios"]["decode"]
    assert (found["pairs"], found["groups"], found["machines"]) == (7, 3, 1)
    assert found["median_error"] == pytest.approx(0.5), "a third of the weight is below 1.5"
    assert found["within_80"] == pytest.approx(2.0)
    alike = pair("a", 20, 10, "ollama")
    assert errors.document(alike, predicted(alike), predicted(alike))["ratios"] == {}

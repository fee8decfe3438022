"""Errors by kind of machine and system, and which scores have moved."""

import pytest

from moebench.harness.published import errors
from moebench.harness.published.rows import Row
from moebench.substrate.errors import InputError
from moebench.substrate.machines import compose
from moebench.substrate.machines.profile import HardwareProfile
from tests.harness.published.made import CELLS, predicted


def profile(parts: str, software: str = "ggml") -> HardwareProfile:
    return HardwareProfile.from_mapping(compose.composed(parts), parts, software)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ("rtx-3090+ryzen-5950x", "desktop"), ("rtx-3090+epyc-9354", "server"),
        ("cpu-only+ryzen-5950x", "no card"), ("ryzen-ai-max-395", "one pool"),
    ],
)  # fmt: skip
def test_kinds_of_machines(parts: str, kind: str) -> None:
    assert errors.machine_kind(profile(parts)) == kind


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


def test_a_run_is_checked_by_rows_of_its_kind_alone() -> None:
    kinds = errors.shipped_errors()["kinds"]
    known = errors.checked("llamacpp", profile("rtx-3090+ryzen-5950x"))
    assert known == kinds["llamacpp, ggml, desktop"]
    assert known["decode"]["within_80"] > 1
    assert errors.checked("smoe", profile("rtx-3090+ryzen-5950x")) is None
    assert errors.checked("llamacpp", profile("rtx-3090+ryzen-5950x", "hf-eager")) is None


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


def test_damaged_errors_are_refused(tmp_path) -> None:
    for text in ("", "{}", "[1]", '{"kinds": 1}'):
        file = tmp_path / f"{len(text)}.json"
        file.write_text(text)
        with pytest.raises(InputError, match="make fit"):
            errors.shipped_errors(file)

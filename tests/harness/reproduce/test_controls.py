"""Positive controls of accuracy claims, on hand-made answers."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce import controls
from moebench.harness.reproduce.controls import Change, blind, compared, hidden
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.results.store import Store

EXPERIMENT = controls.controls("controls", ["S1"], ["equations", "facts"])


def answered(items: str, workload: str = "equations", chance: float | None = None, **spec: Any):
    """Return the document of a run whose questions were answered right (1) or wrong (0)."""
    values = [float(one) for one in items]
    score = 100 * sum(values) / len(values)
    share = score / 100
    return {
        "run_id": items + workload,
        "spec": {
            "setting": "S1", "workload": workload, "seed": 0, "prompts": len(items),
            "variant": "published", "overrides": {}, "expert_dtype": None, **spec,
        },
        "accuracy": {
            "score": score, "n": len(values), "chance": chance, "metric": "exact_text",
            "stderr": 100 * (share * (1 - share) / len(values)) ** 0.5,
            "items": {"value": values},
        },
    }  # fmt: skip


UNCHANGED = {"system": "gpu-only"}
ALPHA = {"system": "smoe", "overrides": {"alpha": "1"}}
RANDOM = {"system": "gpu-only", "overrides": {"route": "random"}}
INT4 = {"system": "gpu-only", "expert_dtype": "int4"}


class _Given:
    """Evidence with hand-made runs."""

    def __init__(self, *runs: Any) -> None:
        self._runs = Runs(runs)

    def runs(self, experiment: Any) -> Runs:
        return self._runs


def of(whole: str, alpha: str, random: str, int4: str, **more: Any) -> Any:
    """Return evidence with the unchanged model and three controls on one workload."""
    pairs = ((whole, UNCHANGED), (alpha, ALPHA), (random, RANDOM), (int4, INT4))
    return _Given(*(answered(items, **more, **spec) for items, spec in pairs))


def test_no_control_is_missing_a_loss() -> None:
    lost = "0" * 10 + "1" * 10
    assert blind(of("1" * 19 + "0", lost, lost, lost), EXPERIMENT, "S1") == ""


def test_a_control_without_a_loss_is_named_with_its_figures() -> None:
    lost, whole = "0" * 20, "1" * 19 + "0"
    why = blind(of(whole, whole, lost, lost), EXPERIMENT, "S1")
    assert why.startswith("1 of 3 controls show no loss beyond noise on equations either: α = 1 ")
    assert "95.0 → 95.0 % (0 lost, 0 won)" in why
    assert "random" not in why


@pytest.mark.parametrize(
    ("whole", "chance", "reason"),
    [("1" * 20, None, "equations 100 % (above 97 %)"),
     ("1" * 6 + "0" * 14, 25.0, "equations 30 % (no better than a guess)")],
)  # fmt: skip
def test_ceilings_and_floors_leave_no_room_for_a_loss(whole, chance, reason) -> None:
    why = blind(of(whole, "0" * 20, "0" * 20, "0" * 20, chance=chance), EXPERIMENT, "S1")
    assert why.endswith(reason)


def test_only_workloads_with_room_are_compared() -> None:
    lost, part = "0" * 20, "1" * 19 + "0"
    room = of(part, lost, lost, lost, workload="facts")
    full = of("1" * 20, "1" * 20, "1" * 20, "1" * 20)
    both = _Given(*room._runs, *full._runs)
    assert blind(both, EXPERIMENT, "S1") == ""  # type: ignore[arg-type]
    assert "100 % (above 97 %)" in blind(both, EXPERIMENT, "S1", ["equations"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lost", "won", "shown"),
    [(0, 0, False), (4, 0, False), (5, 0, True), (6, 1, False), (7, 1, True), (1, 7, False)],
)
def test_a_loss_is_beyond_noise_by_an_exact_sign_test(lost, won, shown) -> None:
    assert Change(90, 50, lost, won).shows_loss is shown


def test_other_questions_are_not_compared() -> None:
    one, other = answered("1100", **UNCHANGED), answered("11", **ALPHA)
    with pytest.raises(MissingEvidenceError, match="other questions"):
        compared([one], [other])
    assert compared([one], [answered("1010", **ALPHA)]) == (50, 50, 1, 1)


def test_the_ceiling_itself_has_room() -> None:
    assert hidden(97, False) == ""
    assert hidden(97.1, False) == "above 97 %"
    assert hidden(50, True) == "no better than a guess"


@pytest.mark.parametrize(("scoring", "cells"), [("generation", 4), ("prefill", 3)])
def test_controls_expand_to_cells(scoring: str, cells: int, tmp_path: Path) -> None:
    experiment = controls.controls("controls", ["S1"], ["facts"], scoring)
    if scoring == "prefill":
        experiment = controls.controls("controls", ["D1"], ["facts"], scoring)
    found = Evidence(Store(tmp_path), None, tmp_path, quick=False).specs(experiment)
    assert len(found) == cells
    assert {spec.prompts for spec in found} == {24}
    assert len({spec.model_dump_json() for spec in found}) == cells

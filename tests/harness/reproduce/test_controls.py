"""Positive controls of accuracy claims, on hand-made answers."""

import itertools
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


def test_the_chance_of_lost_questions_by_counting_all_outcomes() -> None:
    for lost, won in ((0, 0), (1, 0), (3, 1), (2, 5)):
        outcomes = list(itertools.product((True, False), repeat=lost + won))
        as_many = [one for one in outcomes if sum(one) >= lost]
        assert Change(90, 50, lost, won).chance == pytest.approx(len(as_many) / len(outcomes))


def test_cells_of_controls_by_the_way_of_scoring() -> None:
    generation, prefill, likelihood = (
        controls.controls("c", ["S1"], ["facts"], way, prompts=5, seed=3, few_shot=2,
                          quick_prompts=4)
        for way in ("generation", "prefill", "likelihood")
    )  # fmt: skip
    assert prefill.cells["product"] == likelihood.cells["product"] != generation.cells["product"]
    whole = {"system": "gpu-only", "allow_overcommit": True}
    assert generation.cells == {
        "common": {"scoring": "generation", "prompts": 5, "seed": 3, "few_shot": 2},
        "product": {"setting": ["S1"], "workload": ["facts"], "system": [
            whole, {"system": "smoe", "alpha": 1.0}, {**whole, "set": {"route": "random"}},
            {**whole, "expert_dtype": "int4"},
        ]},
    }  # fmt: skip
    assert generation.quick == {"common": {"prompts": 4}}
    assert prefill.cells["product"]["system"] == [
        whole, {**whole, "set": {"route": "random", "route.prefill": "true"}},
        {**whole, "expert_dtype": "int4"},
    ]  # fmt: skip
    usual = controls.controls("c", [], []).cells["common"]
    assert usual == {"scoring": "generation", "prompts": 24, "seed": 0, "few_shot": 0}
    pairs = controls.of_places("c", [("S1", "facts"), ("S2", "sst2")], prompts=5)
    assert pairs.cells["zip"] == {"setting": ["S1", "S2"], "workload": ["facts", "sst2"]}
    assert pairs.cells["product"] == {"system": generation.cells["product"]["system"]}
    assert pairs.cells["common"]["prompts"] == 5
    assert pairs.name == "c"


def test_controls_of_other_settings_or_that_did_not_run_are_missing() -> None:
    lost, whole = "0" * 20, "1" * 19 + "0"
    given = of(whole, lost, lost, lost)
    with pytest.raises(MissingEvidenceError, match="controls: no control answered equations"):
        blind(_Given(answered(whole, **UNCHANGED)), EXPERIMENT, "S1")  # type: ignore[arg-type]
    none = "the unchanged model's scores leave no room for a loss: no questions"
    assert blind(given, EXPERIMENT, "S2") == none
    assert blind(given, EXPERIMENT, "S1", ["facts"]) == none
    empty = answered(whole, **UNCHANGED)
    empty["accuracy"]["items"] = {"value": [None]}
    with pytest.raises(MissingEvidenceError, match="equations: a run scored no question"):
        compared([empty], [answered(lost, **ALPHA)])
    with pytest.raises(MissingEvidenceError, match="answered other questions"):
        compared([], [])
    some = answered(whole, **UNCHANGED)
    some["accuracy"]["items"]["value"][0] = None
    with pytest.raises(ValueError, match="zip"):
        compared([some], [answered(lost, **ALPHA)])


def test_controls_in_prefill_set_an_option_of_their_own() -> None:
    """Random substitution in prefill is one of the controls; all that failed are named."""
    lost, whole = "0" * 20, "1" * 19 + "0"
    in_prefill = {"system": "gpu-only", "overrides": {"route": "random", "route.prefill": "true"}}
    runs = [answered(whole, **UNCHANGED), answered(whole, **in_prefill), answered(lost, **INT4)]
    why = blind(_Given(*runs), EXPERIMENT, "S1")  # type: ignore[arg-type]
    assert why == (
        "1 of 2 controls show no loss beyond noise on equations either: random substitution 95.0 → "
        "95.0 % (0 lost, 0 won)"
    )
    both = [*runs[:2], answered("1" * 18 + "01", **INT4)]
    why = blind(_Given(*both), EXPERIMENT, "S1")  # type: ignore[arg-type]
    assert why.startswith("2 of 2 controls show no loss beyond noise on equations either: ")
    assert "all experts in int4 95.0 → 95.0 % (1 lost, 1 won)" in why
    assert "; " in why

"""The claims of this module are those of the results that ship; figures of data made by hand."""

from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.reproduce.smoe import components, importance, thresholds
from moebench.harness.reproduce.smoe.analysis import CLAIMS, DATASETS
from moebench.harness.reproduce.smoe.components import EIGHT_CORES, MACHINE
from moebench.harness.reproduce.smoe.experiments import ABLATION, CONTROLS, STEPS, THRESHOLDS
from moebench.harness.reproduce.smoe.instrumented import Importance, Watched
from moebench.results.claims import Measured
from moebench.results.paper_tables import workload_of
from moebench.substrate.machines.protocol import Lane
from tests.harness.reproduce.given import by_experiment
from tests.harness.reproduce.shipped import check
from tests.harness.reproduce.test_smoe import document
from tests.results.tables import row

KNOWN = {claim.id: claim for claim in CLAIMS}


def test_claims_are_those_that_ship() -> None:
    check("smoe", CLAIMS)


def measured(name: str, evidence: Evidence) -> Measured:
    measure = KNOWN[name].measure
    assert measure is not None
    return measure(evidence)


#: Scores by α: those of facts on each setting, and of GSM8K on S1.
SCORES = {
    ("S1", "facts"): (60, 59, 58, 57, 50), ("S2", "facts"): (60, 59.5, 58.5, 56, 55),
    ("S3", "facts"): (60, 55, 54, 53, 40), ("S1", "gsm8k"): (40, 39, 38, 37.5, 30),
}  # fmt: skip


def test_accuracy_is_of_one_model_at_its_own_alpha(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.35, 0.3 and 0.25 are the models' own; 0.4 alone is above 0.35."""
    table = [
        row(setting=setting, workload=name, generated=name == "facts", alpha=alpha, score=score,
            stderr=2.0, n=50)
        for (setting, name), scores in SCORES.items()
        for alpha, score in zip((0.0, 0.25, 0.3, 0.35, 0.4), scores, strict=True)
    ]  # fmt: skip
    monkeypatch.setattr(thresholds, "read_table", lambda file: table)
    monkeypatch.setattr(
        thresholds, "blind", lambda evidence, experiment, setting: f"{experiment.name} {setting}"
    )
    figures = {
        "S1": (-3, -10 + (0 + 1 + 2 + 3) / 4, 3), "S2": (-1.5, -5 + (0 + 0.5 + 1.5 + 4) / 4, 4),
        "S3": (-5, -20 + (0 + 5 + 6 + 7) / 4, 7),
    }  # fmt: skip
    for setting, values in figures.items():
        for more, value in zip(("", " above", " largest"), values, strict=True):
            name = f"S-11 {setting}{more}"
            assert measured(name, evidence).samples == pytest.approx((value,)), name
            assert KNOWN[name].needs == (CONTROLS,)
            control = KNOWN[name].control
            assert control is not None
            assert control(evidence) == f"{CONTROLS.name} {setting}"
        for dataset in DATASETS:
            workload = workload_of("smoe", dataset)
            if (setting, workload) == ("S1", "gsm8k"):
                assert measured(f"S-11 S1 {dataset}", evidence).samples == (2.5,)
                continue
            with pytest.raises(MissingEvidenceError, match=f"has no row of {setting} {workload};"):
                measured(f"S-11 {setting} {dataset}", evidence)


def test_curves_are_of_one_setting(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """A straight line, a parabola of 10 (1 - α)², and a time that stays."""
    alphas = (0.0, 0.2, 0.4, 0.6)
    curves = {
        "S1": [10 - 10 * a for a in alphas], "S2": [10 * (1 - a) ** 2 for a in alphas],
        "S3": [10.0] * 4,
    }  # fmt: skip
    runs = [document(setting=setting, alpha=alpha, tpot=tpot)
            for setting, times in curves.items()
            for alpha, tpot in zip(alphas, times, strict=True)]  # fmt: skip
    by_experiment(monkeypatch, {THRESHOLDS.name: runs})
    # Times of 10, 6.4, 3.6 and 1.6 lie 0.4 above, below, below and above the line of 2.8 a step.
    figures = {
        "S1": (1, -60), "S2": (1 - 4 * 0.4**2 / (4.6**2 + 1 + 1.8**2 + 3.8**2), -84), "S3": (0, 0),
    }  # fmt: skip
    for setting, (linear, fall) in figures.items():
        assert measured(f"S-12 {setting} linear", evidence).value == pytest.approx(
            linear, rel=1e-5, abs=1e-6
        )
        assert measured(f"S-12 {setting} fall", evidence).value == pytest.approx(
            fall, rel=1e-5, abs=1e-6
        )
    for setting in ("S1", "S2"):
        expected = thresholds.pick_error(np.array(alphas), np.array(curves[setting]))
        found = measured(f"S-12 {setting} pick", evidence)
        assert found.value == pytest.approx(expected, abs=1e-6)
        assert found.value < 0.01


#: Mean scores and reuse by rank; two experts are active.
RANKS = {
    "S1": ([1.0, 0.6, 0.4, 0.1], [0.9, 0.5, 0.6, 0]),
    "S2": ([1.0, 0.3, 0.25, 0.1], [0.4, 0.3, 0.2, 0.1]),
    "S3": ([1.0, 0.9, 0.8, 0.7], [0.1, 0.2, 0.3, 0.4]),
}  # fmt: skip


def test_gate_scores_are_of_one_setting(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [Watched("", setting, {}, 0, 2, Importance(), scores, reuse)
            for setting, (scores, reuse) in RANKS.items()]  # fmt: skip

    def watch(evidence: Evidence, experiment: Any, **options: str) -> list[Watched]:
        assert (experiment, options) == (ABLATION, STEPS["+CE"])
        return seen

    monkeypatch.setattr(importance, "watch", watch)
    by_experiment(monkeypatch, {ABLATION.name: [document(setting=name) for name in RANKS]})
    figures = {
        "S-13 S1 all": 0.8, "S-13 S1 inactive": 1, "S-13 S2 all": 1, "S-13 S2 inactive": 1,
        "S-13 S3 all": -1, "S-13 S3 inactive": -1, "S-15 S1 first": 2.5, "S-15 S1 last": 1.5,
        "S-15 S2 first": 4, "S-15 S2 last": 1.2, "S-15 S3 first": 1.25, "S-15 S3 last": 1.125,
    }  # fmt: skip
    assert {name for name in KNOWN if name[:4] in ("S-13", "S-15")} == figures.keys()
    for name, figure in figures.items():
        assert measured(name, evidence).samples == pytest.approx((figure,), rel=1e-5), name


def test_the_routers_effect_is_of_the_step_that_replaces_experts(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Low-score experts off the device fall by 20, 50 and 80 % at shares of 1/5, 1/3 and 1/2."""
    lows = {"S1": (10, 10, 8), "S2": (20, 10, 5), "S3": (40, 10, 2)}

    def watch(evidence: Evidence, experiment: Any, **options: str) -> list[Watched]:
        (step,) = (name for name, one in STEPS.items() if one == options)
        at = {"+CE": 1, "+CR": 2}[step]
        return [Watched("", setting, {}, 0, 2, Importance(top=40, low=low[0], low_absent=low[at]))
                for setting, low in lows.items()]  # fmt: skip

    monkeypatch.setattr(importance, "watch", watch)
    by_experiment(monkeypatch, {ABLATION.name: [document()]})
    assert measured("S-6 router by low share", evidence).samples == pytest.approx((1,))


def test_times_of_an_expert_are_of_a_lane_rows_and_machine(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With six cores more rows take longer; a load takes five times the GPU's time for one."""
    host = {1: 20, 3: 30, 8: 100, 32: 300, 64: 600}
    six = {**host, 3: 40, 8: 160}

    def expert(lane: Lane, rows: int, machine: str = MACHINE, model: str = "") -> int:
        if lane is Lane.DEVICE:
            return {1: 10, 3: 11, 8: 14}[rows]
        return {EIGHT_CORES: host, MACHINE: six}[machine][rows]

    monkeypatch.setattr(components, "expert_ns", expert)
    monkeypatch.setattr(components, "load_ns", lambda machine="", model="": 50)
    figures = {
        "GPU b3": 1.1, "GPU b8": 1.4, "host b3": 1.5, "host b8": 5, "host prefill": 2,
        "PCIe over GPU, v2": 5, "PCIe over GPU, v1": 5, "CPU over GPU, v2": 2,
        "CPU over GPU, v1": 2, "CPU over PCIe": 0.4,
    }  # fmt: skip
    assert {f"S-14 {name}" for name in (*figures, "host prefill limit")} == {
        name for name in KNOWN if name.startswith("S-14 ")
    }
    for name, figure in figures.items():
        assert measured(f"S-14 {name}", evidence).value == pytest.approx(figure, rel=1e-5), name
    for name, figure in (("host b3", 2), ("host b8", 8)):
        (counter,) = KNOWN[f"S-14 {name}"].counters
        assert counter.measure is not None
        assert counter.measure(evidence).value == pytest.approx(figure, rel=1e-5)
    assert KNOWN["S-14 host prefill limit"].measure is components.longest_limit

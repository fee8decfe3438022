"""DuoServe-MoE's heat maps, timelines and distributions, from what is given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.duoserve import exhibits
from moebench.harness.reproduce.duoserve import measures_of_predictor as mp
from moebench.harness.reproduce.duoserve.experiments import BOTH, SMALL
from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.reports.sections.throughput import Point
from moebench.results.spec import RunSpec
from tests.harness.reproduce.duoserve.test_claims_of_predictor import HITS, predicting
from tests.harness.reproduce.duoserve.test_claims_of_times import runs as timed
from tests.harness.reproduce.given import with_runs
from tests.harness.reproduce.shipped import check_words
from tests.harness.reproduce.test_duoserve import cell, run


def test_figure_2_shows_what_the_first_predictor_counted(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    popularity = np.array([[0.25, 0.75], [1.0, 0.0]])
    affinity = np.array([[[0.1, 0.9], [0.2, 0.8]], [[1.0, 0.0], [1.0, 0.0]]])
    others = {"popularity": 1 - popularity, "affinity": 1 - affinity}
    monkeypatch.setattr(mp, "trained_matrices", lambda evidence: [
        {"popularity": popularity, "affinity": affinity}, others,
    ])  # fmt: skip
    popular, affine = exhibits._fig_2a(evidence), exhibits._fig_2b(evidence)
    assert popular.rows == (
        {"layer": 0, "expert": 0, "share": 25}, {"layer": 0, "expert": 1, "share": 75},
        {"layer": 1, "expert": 0, "share": 100}, {"layer": 1, "expert": 1, "share": 0},
    )  # fmt: skip
    assert affine.rows == (
        {"before": 0, "after": 0, "share": 10}, {"before": 0, "after": 1, "share": 90},
        {"before": 1, "after": 0, "share": 20}, {"before": 1, "after": 1, "share": 80},
    )  # fmt: skip
    for one in (popular, affine):
        assert one.badge == "counted"
        check_words(one)


def test_figure_4_shows_a_prompt_and_a_token_of_one_cell(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(
        monkeypatch, run("U1", "duoserve", 1), run("U2", "acc", 1), run("U2", "duoserve", 1)
    )
    seen: list[Any] = []

    def records(at: float) -> list[dict[str, Any]]:
        span = {"lane": "device", "kind": "expert"}
        return [{**span, "layer": layer, "start_us": at + layer, "end_us": at + layer + 0.5}
                for layer in (14, 15, 17, 18)]  # fmt: skip

    def prefill(evidence: Evidence, spec: RunSpec) -> Any:
        seen.append((spec.setting, spec.system, spec.workload))
        return records(100)

    def decoded(evidence: Evidence, runs: Runs) -> Any:
        seen.append(runs.ids)
        return records(900)

    monkeypatch.setattr(exhibits, "prefill", prefill)
    monkeypatch.setattr(exhibits, "decoded", decoded)
    found = exhibits._fig_4(evidence)
    assert asked == [SMALL]
    assert seen == [("U2", "duoserve", "passages"), ("U2-duoserve-equations",)]
    assert [(row["panel"], row["layer"], row["start"]) for row in found.rows] == [
        ("prefill", 15, 0), ("prefill", 17, 2), ("decode", 15, 0), ("decode", 17, 2),
    ]  # fmt: skip
    check_words(found)


def test_figure_5_has_both_times_of_each_system_in_seconds(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(
        monkeypatch, *cell("U1", 100, 150, 400), *cell("U4", 2000.06, 1, 3, "passages")
    )
    found = exhibits._fig_5(evidence)
    assert asked == [*BOTH]
    first, large = "Mixtral 8x7B, A5000, Orca-Math", "Mixtral 8x22B, A6000, SQuAD"
    times = {(row["cell"], row["system"], row["time"]): row["s"] for row in found.rows}
    assert times == {
        (first, "duoserve", "TTFT"): 0.05, (first, "duoserve", "end-to-end"): 0.1,
        (first, "acc", "TTFT"): 0.075, (first, "acc", "end-to-end"): 0.15,
        (first, "moesys", "TTFT"): 0.2, (first, "moesys", "end-to-end"): 0.4,
        (large, "duoserve", "TTFT"): 1.0, (large, "duoserve", "end-to-end"): 2.0001,
        (large, "acc", "TTFT"): 0.0005, (large, "acc", "end-to-end"): 0.001,
        (large, "moesys", "TTFT"): 0.0015, (large, "moesys", "end-to-end"): 0.003,
    }  # fmt: skip
    assert found.note is not None
    assert found.note.startswith("4 new tokens; ")


def test_figure_6_shows_the_first_seeds_runs_that_have_samples(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run("U3", "duoserve", 1, "passages"), run("U1", "acc", 1), run("U1", "moesys", 1)]
    later = run("U2", "acc", 1)
    later["spec"]["seed"] = 1
    asked = with_runs(monkeypatch, *runs, later)
    curve = [Point(2.00004, 0.5), Point(3.0, 1.0)]
    seen: list[Any] = []

    def load(directory: Path, given: Runs) -> Any:
        seen.append((directory, given.ids))
        return {runs[0]["run_id"]: curve, runs[2]["run_id"]: curve[:1], later["run_id"]: curve}

    monkeypatch.setattr(exhibits, "load", load)
    found = exhibits._fig_6(evidence)
    assert asked == [*BOTH]
    assert seen == [(evidence.scratch, tuple(one["run_id"] for one in (*runs, later)))]
    large = {"cell": "Mixtral 8x22B, A5000, SQuAD", "system": "duoserve"}
    assert found.rows == (
        {**large, "tokens_per_s": 2.0, "share": 0.5}, {**large, "tokens_per_s": 3.0, "share": 1.0},
        {"cell": "Mixtral 8x7B, A5000, Orca-Math", "system": "moesys", "tokens_per_s": 2.0,
         "share": 0.5},
    )  # fmt: skip
    check_words(found)


def test_table_1_counts_active_parameters(evidence: Evidence) -> None:
    """Published: 12.9 of 46.7 and 39 of 141 billion, to a tenth and to 2 %."""
    small, large = exhibits._table_1(evidence).rows
    assert (small["model"], small["layers"], small["active"], small["total"]) == (
        "8x7B", 32, 12.9, 46.7,
    )  # fmt: skip
    assert (large["layers"], large["active"], large["total"]) == (
        56, pytest.approx(39, rel=0.02), pytest.approx(141, rel=0.02),
    )  # fmt: skip


def test_table_2_has_the_peaks_of_systems_and_the_whole_model(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(monkeypatch, *timed())
    found = exhibits._table_2(evidence)
    assert asked == [*BOTH]
    small, large = found.rows
    assert small.pop("gpu-only") == pytest.approx(25.14, rel=0.15)
    assert large.pop("gpu-only") == pytest.approx(75, rel=0.15)
    assert small == {"model": "8x7B", "moesys": 4.1, "acc": 3.1, "duoserve": 3.6}
    assert large == {"model": "8x22B", "moesys": 9.1, "acc": 8.2, "duoserve": 8.5}
    check_words(found)


def test_table_3_has_the_hits_of_each_model_and_data_set(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(
        monkeypatch,
        *(predicting(setting, workload) for setting in HITS
          for workload in ("equations", "passages")),
    )  # fmt: skip
    found = exhibits._table_3(evidence)
    assert asked == [*BOTH]
    assert found.rows == (
        {"model": "8x7B", "dataset": "Orca-Math", "both": 60, "one": 90},
        {"model": "8x7B", "dataset": "SQuAD", "both": 50, "one": 80},
        {"model": "8x22B", "dataset": "Orca-Math", "both": 55, "one": 85},
        {"model": "8x22B", "dataset": "SQuAD", "both": 50, "one": 75},
    )
    check_words(found)

"""Figures that are read from runs, and from charged components, by hand."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce import read
from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.results.store import Store
from tests.harness.reproduce.given import with_runs

EXPERIMENT = Experiment("some", {})


def run(tokens: int, tpot: float, stall: float, **spec: Any) -> dict[str, Any]:
    return {
        "run_id": f"{tokens} {tpot}", "badge": "calibrated",
        "spec": {"seed": 0, "system": "smoe", "variant": "published", "overrides": {}, **spec},
        "metrics": {"decoded_tokens": tokens, "tpot_ms": {"mean": tpot},
                    "decode": {"stall_ms": {"load": stall}}},
    }  # fmt: skip


def test_a_share_of_decode_is_that_of_all_runs_together() -> None:
    """10 tokens of 3 ms and 20 of 6 are 150 ms; 15 and 30 of them are stalls."""
    runs = Runs([run(10, 3, 15), run(20, 6, 30)])
    assert read.share_of_decode(runs, read.STALL) == pytest.approx(30)
    assert read.share_of_decode(runs, read.DECODED) == pytest.approx(20)


def test_a_ratio_is_a_change_in_percent_and_figures_are_subtracted() -> None:
    assert [read.percent(ratio) for ratio in (1.25, 1, 0.5)] == [25, 0, -50]
    figure = read.difference(lambda runs: 10.0 * len(runs), lambda runs: 3.0)
    assert figure(Runs([run(1, 1, 1)])) == 7


def test_a_function_without_its_first_argument_waits_for_it() -> None:
    @read.curried
    def made(first: str, second: int, third: int = 0) -> str:
        """What it does."""
        return f"{first} {second} {third}"

    assert made(2, third=3)("one") == "one 2 3"
    assert made(2)("one") == "one 2 0"
    assert (made.__name__, made.__doc__) == ("made", "What it does.")


def test_a_measure_has_a_sample_for_each_seed_of_the_chosen_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [run(1, 4, 0), run(1, 6, 0), run(1, 9, 0, seed=1), run(1, 99, 0, system="daop")]
    asked = with_runs(monkeypatch, *given)
    evidence = Evidence(Store(tmp_path), None, tmp_path, True)

    def tpot(runs: Runs) -> float:
        return runs.mean(read.TPOT)

    found = read.measured(tpot, EXPERIMENT, said="why", system="smoe")(evidence)
    assert (found.samples, found.badge, found.conditions) == ((5, 9), "calibrated", "why")
    assert asked == [EXPERIMENT]
    other = read.measured(tpot, EXPERIMENT, EXPERIMENT, said="b",
                          conditions=lambda runs, said: f"{len(runs)} runs, {said}")  # fmt: skip
    assert other(evidence).conditions == "4 runs, b"
    assert asked[1:] == [EXPERIMENT, EXPERIMENT]
    assert read.measured(tpot, EXPERIMENT)(evidence).conditions == ""


def test_components_are_the_rows_of_all_given_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"what": "a", "machine": "m", "charged": 1}, {"what": "a", "machine": "n"},
            {"what": "b", "machine": "m"}]  # fmt: skip
    monkeypatch.setattr(read, "documents", lambda: rows)
    assert read.components("a") == rows[:2]
    assert read.components("a", machine="m") == rows[:1]
    assert read.components("b", machine="n") == []


def test_paths_are_those_of_a_runs_document() -> None:
    assert (read.TPOT, read.TTFT) == ("metrics.tpot_ms.mean", "metrics.ttft_ms.mean")
    assert (read.E2E, read.LOAD) == ("metrics.e2e_ms", "metrics.load_ms")
    assert read.STALL == "metrics.decode.stall_ms.load"
    assert (read.LINK, read.HOST) == ("metrics.decode.lanes.h2d", "metrics.decode.lanes.host")
    assert (read.DECODED, read.SCORE) == ("metrics.decoded_tokens", "accuracy.score")

"""DuoServe-MoE's fetches against computation, and the time to collect its predictor's data."""

from typing import Any

import pytest

from moebench.harness.reproduce.duoserve import measures as m
from moebench.harness.reproduce.evidence import Runs


def run(system: str, workload: str = "passages") -> dict[str, Any]:
    spec = {"system": system, "variant": "published", "setting": "U1", "workload": workload}
    metrics = {
        "lanes": {"h2d": 90.0, "device": 30.0}, "e2e_ms": 3600.0,
        "decode": {"lanes": {"h2d": 50.0, "device": 20.0}},
        "ttft_ms": {"mean": 1000.0}, "tpot_ms": {"mean": 100.0},
    }  # fmt: skip
    return {"spec": spec, "metrics": metrics}


def test_fetching_over_computing_by_phase() -> None:
    runs = Runs([run("duoserve"), run("duoserve"), run("acc")])
    assert m.fetching_over_computing(runs, "decode") == 2.5
    assert m.fetching_over_computing(runs, "prefill") == 4


def test_hours_of_collection() -> None:
    """A text takes 3.6 s: 2,190 texts 2.19 h, 5,001 texts 5.001 h; 11 tokens take 2 s."""
    runs = Runs([run("acc"), run("acc", "equations"), run("duoserve")])
    assert m.collection_hours()(runs) == pytest.approx((2.19 + 5.001) / 2)
    assert m.collection_hours(11)(runs) == pytest.approx((2.19 + 5.001) / 2 / 1.8)

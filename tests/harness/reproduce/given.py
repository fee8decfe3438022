"""Runs that a test gives to all experiments."""

from collections.abc import Mapping
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs


def with_runs(monkeypatch: pytest.MonkeyPatch, *runs: Any) -> list[Experiment]:
    """Give all experiments the same runs, and return a list of those that will be asked for."""
    asked: list[Experiment] = []

    def given(self: Evidence, *experiments: Experiment) -> Runs:
        asked.extend(experiments)
        return Runs(runs)

    monkeypatch.setattr(Evidence, "runs", given)
    return asked


def by_experiment(monkeypatch: pytest.MonkeyPatch, runs: Mapping[str, list[Any]]) -> None:
    """Give each experiment its own runs, by its name."""

    def given(self: Evidence, *experiments: Experiment) -> Runs:
        return Runs(run for experiment in experiments for run in runs[experiment.name])

    monkeypatch.setattr(Evidence, "runs", given)

"""Tables of `moebench models verify`: shown statistics, judgements, counts and comparisons."""

from typing import Any

import numpy as np
import pytest

from moebench.harness.scale import tables, verify
from moebench.harness.scale.tables import STATISTICS, counts
from moebench.harness.scale.verify import WINDOW, differences, judged
from moebench.substrate.analysis.statistics import summary
from moebench.substrate.analysis.targets import Target, targets, value_at
from moebench.substrate.models.catalogue import scale_names
from moebench.substrate.terms import RoutedSequence


def document(**statistics: Any) -> dict[str, Any]:
    return {"accuracy": {}, "statistics": {"exercises": statistics}}


def test_every_statistic_that_is_shown_is_measured() -> None:
    # A window as verify reads it: half of it decoded, with every kind of prediction.
    ids_TLK = np.arange(WINDOW)[:, None, None] % 4 + np.arange(2)[None, :, None]
    scores_TLE = np.ones((WINDOW, 2, 5))
    predicted = dict.fromkeys(("gate", "normed", "layer"), scores_TLE)
    found = summary([RoutedSequence(ids_TLK, WINDOW // 2, scores_TLE, predicted)] * 2, 5)
    for key in STATISTICS:
        assert value_at(found, key) is not None, key


def test_every_target_is_shown() -> None:
    for model in scale_names():
        assert set(targets(model)) <= set(STATISTICS)


def test_statistics_are_judged_where_they_have_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "used.32": Target(0.4, 0.6, "a trace"),
        "used.64": Target(0.4, 0.6, "a trace"),
        "lag_overlap.1": Target(0.4, 0.6, "a trace"),
    }
    monkeypatch.setattr(verify, "targets", lambda model: known if model == "known" else {})
    statistics = {"used": {"32": 0.5, "64": None}, "lag_overlap": {"1": 0.9}, "gini": 0.1}
    found = judged("known", statistics)
    assert found == {
        "used.32": {"value": 0.5, "low": 0.4, "high": 0.6, "judgement": "in range"},
        "lag_overlap.1": {"value": 0.9, "low": 0.4, "high": 0.6, "judgement": "off"},
    }
    assert counts(found) == "1 in range, 0 near, 1 off of 2 with a target"
    assert judged("unknown", statistics) == {}


def test_the_docs_say_of_each_value_how_it_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"used.32": Target(0.4, 0.6, "a trace")}
    monkeypatch.setattr(verify, "targets", lambda _: known)
    measured = document(used={"32": 0.65}, least_used_expert=0.3)
    entry = {"measured": measured, "bytes": 1_000_000, "training": {}}
    monkeypatch.setattr(tables, "read_manifest", lambda: {"some-model": entry})
    lines = tables.tables().splitlines()
    assert "| experts used in the first 32 tokens | 0.65 (0.40-0.60) near |" in lines
    assert "| **all** | 0 in range, 1 near, 0 off of 1 with a target |" in lines
    assert "| least used expert over the mean, worst layer | 0.30 |" in lines
    assert lines.index("Statistics without a target:") > lines.index(
        "Routing on held-out exercises, beside the range of real models:"
    )


def test_a_figure_newer_than_the_manifest_is_no_difference() -> None:
    older = document(entropy=0.9, lag_overlap={"1": 0.2})
    newer = document(entropy=0.9, lag_overlap={"1": 0.2, "16": 0.1}, window_similarity=0.8)
    assert differences(newer, older) == []
    # The other way round, something got lost.
    assert differences(older, newer) == [
        "exercises: lag_overlap.16 is None, the manifest says 0.1",
        "exercises: window_similarity is None, the manifest says 0.8",
    ]

"""Tables of `moebench models verify`: shown statistics, judgements, counts and comparisons."""

from pathlib import Path
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


# ------------------------------------------------------------------------------ words

FAMILY = {"score": 0.504, "stderr": 0.05, "n": 100, "chance": 0.2, "margin": 1.234, "unsure": 0.123}


def test_a_models_quality_and_routing_are_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = {"value": 0.5, "low": 0.4, "high": 0.6, "judgement": "in range"}
    shown = {
        "training": {"held_out_loss": 2.5, "least_used_expert": 0.1},
        "measured": {
            "accuracy": {"facts": FAMILY, "old": {**FAMILY, "margin": None, "unsure": None}},
            "statistics": {"exercises": {"used": {"32": 0.5}}, "prose": {"random_overlap": 0.25}},
        },
        "targets": {"exercises": {"used.32": target}, "prose": {}},
        "differences": ["a difference"], "compared": False,
    }  # fmt: skip
    tables.show(tmp_path / "name", shown)
    out, err = capsys.readouterr()
    lines = [line.split("\t") for line in out.splitlines()]
    assert lines[:3] == [
        ["family", "accuracy", "standard error", "n", "chance", "margin (nats)", "unsure"],
        ["facts", "50 %", "5 %", "100", "20 %", "1.23", "12.3 %"],
        ["old", "50 %", "5 %", "100", "20 %", "-", "-"],
    ]
    assert lines[3:9] == [
        ["figure", "value"], ["held out loss", "2.5"], ["unigram loss", "-"],
        ["least used expert", "0.1"], ["experts below a tenth", "-"],
        ["statistic", "exercises", "target", "prose", "target"],
    ]  # fmt: skip
    rows = {line[0]: line[1:] for line in lines[9:]}
    assert rows["experts used in the first 32 tokens"] == [
        "0.50", "(0.40-0.60) in range", "-", "-"
    ]  # fmt: skip
    assert rows["overlap of random choices (k/E)"] == ["-", "-", "0.25", "-"]
    assert out.splitlines()[-1] == ("name, exercises: 1 in range, 0 near, 0 off of 1 with a target")
    first, hint = err.splitlines()
    assert first == "name: a difference"
    assert hint.startswith("name: the manifest holds no measurement; record it with: moebench ")
    assert hint.endswith(" --write")
    tables.show(tmp_path / "name", {**shown, "compared": True, "differences": []})
    assert capsys.readouterr().err == ""


def test_values_of_layers_are_the_first_the_middle_and_the_last() -> None:
    def cell(value: Any, key: str = "lag_overlap_by_layer") -> str:
        return tables._cell({key: value}, key)

    assert cell([0.1, None, 0.2, 0.3, 0.4]) == "first/middle/last 0.10/0.30/0.40"
    assert cell([0.1]) == "first/middle/last 0.10/0.10/0.10"
    assert cell([None, None]) == "-"
    assert cell([0.1, None], "low_score_experts") == "0.10 -"
    assert (cell(0.5, "x"), cell(None, "x")) == ("0.50", "-")


def test_the_docs_have_a_row_for_each_measured_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "targets", lambda model: {})
    monkeypatch.setattr(tables, "read_manifest", lambda: {"none": {"measured": None}})
    assert tables.tables() == "Nothing was measured yet."
    measured = document(least_used_expert=0.3) | {"accuracy": {"facts": FAMILY}}
    entry = {"measured": measured, "bytes": 12_345_678,
             "training": {"held_out_loss": 2.5}}  # fmt: skip
    known = {"b": {**entry, "training": {}}, "none": {"measured": None}, "a": entry}
    monkeypatch.setattr(tables, "read_manifest", lambda: known)
    lines = tables.tables().splitlines()
    at = lines.index("| model | MB | facts | held-out loss | least used expert |")
    assert lines[at + 1 : at + 5] == [
        "| --- | --- | --- | --- | --- |", "| `a` | 12.3 | 50 % (20 %) | 2.5 | - |",
        "| `b` | 12.3 | 50 % (20 %) | - | - |", "",
    ]  # fmt: skip
    assert "| `a` | 1.23 / 12.3 % |" in lines
    assert "| least used expert over the mean, worst layer | 0.30 | 0.30 |" in lines
    assert "| statistic | `a` | `b` |" in lines
    assert tables._said({}, "x") == "-"


def test_the_docs_are_left_alone_without_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "tables", lambda: "the tables")
    docs = tmp_path / "models.md"
    tables.write_docs(None)
    tables.write_docs(docs)
    assert not docs.exists()
    for text in ("no markers", "<!-- verify --> alone", "<!-- /verify --> alone"):
        docs.write_text(text)
        tables.write_docs(docs)
        assert docs.read_text() == text
    docs.write_text("é<!-- verify -->old<!-- /verify -->after")
    tables.write_docs(docs)
    assert docs.read_text() == "é<!-- verify -->\nthe tables\n<!-- /verify -->after"

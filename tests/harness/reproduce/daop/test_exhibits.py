"""DAOP's tables and figures of texts and of scores, from figures that are given."""

from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.daop import exhibits
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures_of_routing as mr
from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.read import curried
from moebench.results.claims import Measured
from tests.harness.reproduce.given import with_runs
from tests.harness.reproduce.shipped import check_words
from tests.harness.reproduce.test_daop import answered, text


def test_table_2_has_a_row_for_each_data_set(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"c4": 90.123, "math": 80.456, "gsm8k": 70.0}

    @curried
    def similarity(evidence: Evidence, *datasets: str) -> Measured:
        return Measured.of([shares[one] for one in datasets], "counted", "")

    monkeypatch.setattr(mr, "similarity", similarity)
    found = exhibits._table_2(evidence)
    assert found.rows == (
        {"dataset": "c4", "share": 90.12}, {"dataset": "math", "share": 80.46},
        {"dataset": "gsm8k", "share": 70.0},
    )  # fmt: skip
    assert found.badge == "counted"
    check_words(found)


def test_table_5_has_the_scores_of_each_model_and_method(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three questions; the paper's data sets that nothing ran on have no score."""
    asked = with_runs(
        monkeypatch,
        answered("arc_easy", "moe-ondemand", [1, 1, 0]), answered("arc_easy", "daop", [1, 0, 0]),
        answered("piqa", "moe-ondemand", [1, 1, 1]), answered("piqa", "daop", [0, 0, 0]),
        answered("arc_easy", "moe-ondemand", [0, 0, 1], setting="D2"),
        answered("arc_easy", "daop", [0, 0, 0], setting="D2"),
        answered("piqa", "moe-ondemand", [0, 1, 1], setting="D2"),
        answered("piqa", "daop", [1, 1, 1], setting="D2"),
    )  # fmt: skip
    found = exhibits._table_5(evidence)
    assert asked == [e.FIRST_TOKEN]
    mixtral, phi = {"model": "Mixtral 8x7B"}, {"model": "Phi-3.5-MoE"}
    assert found.rows == (
        {**mixtral, "method": "official", "Arc-e": 66.67, "PIQA": 100},
        {**mixtral, "method": "ours", "Arc-e": 33.33, "PIQA": 0},
        {**phi, "method": "official", "Arc-e": 33.33, "PIQA": 66.67},
        {**phi, "method": "ours", "Arc-e": 0, "PIQA": 100},
    )
    # Table V: the change of Mixtral on Arc-e is 84.39 - 83.10.
    scores = {(row["model"], row["method"]): row["Arc-e"] for row in found.paper_rows}
    change = scores["Mixtral 8x7B", "official"] - scores["Mixtral 8x7B", "ours"]
    assert abs(change) == pytest.approx(1.29)
    assert found.note is not None
    assert ", 3 questions each" in found.note
    assert found.badge == "counted"
    check_words(
        found.model_copy(update={"note": found.note.replace("3 questions", "10 questions")})
    )


def test_figure_4_shows_all_texts_and_two_single_ones(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first text uses experts 0 and 1, the second 2 and 3, the third 0 and 3."""
    texts = [text([[0, 1]] * 4), text([[2, 3]] * 4), text([[0, 3]] * 4)]
    asked: list[Any] = []

    def routed(evidence: Evidence, *of: str) -> Any:
        asked.append(of)
        return texts

    monkeypatch.setattr(exhibits, "routed", routed)
    found = exhibits._fig_4(evidence)
    assert asked == [("mixtral-8x7b", "c4")]
    shares: dict[str, dict[int, float]] = {}
    for row in found.rows:
        assert row["layer"] == 0
        shares.setdefault(row["panel"], {})[row["expert"]] = row["share"]
    none = dict.fromkeys(range(4, 8), 0.0)
    assert shares == {
        "all texts of C4": {0: 33.33, 1: 16.67, 2: 16.67, 3: 33.33, **none},
        "one text": {0: 50, 1: 50, 2: 0, 3: 0, **none},
        "another text": {0: 0, 1: 0, 2: 50, 3: 50, **none},
    }
    check_words(found)


def test_figure_5_leaves_out_layers_that_nothing_predicts(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [np.array([np.nan, n / 10, n / 8 + 0.00001]) for n in (1, 2, 3)]
    monkeypatch.setattr(mr, "recall_by_layer", lambda evidence: layers)
    found = exhibits._fig_5(evidence)
    assert [tuple(row.values()) for row in found.rows] == [
        ("alpaca", 1, 10), ("alpaca", 2, 12.5), ("math", 1, 20), ("math", 2, 25), ("c4", 1, 30),
        ("c4", 2, 37.5),
    ]  # fmt: skip
    assert [*found.rows[0]] == ["dataset", "layer", "share"]
    check_words(found)


def test_figure_8_shows_a_token_of_each_system(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = ["moe-ondemand", "pregated-moe", "fiddler", "daop"]
    asked = with_runs(monkeypatch, *(answered("passages", name, [1]) for name in systems))

    def decoded(evidence: Evidence, runs: Runs) -> Any:
        at = systems.index(runs[0]["spec"]["system"])
        span = {"lane": "device", "kind": "moe", "start_us": 10.0 * at, "end_us": 10.0 * at + 3}
        return [{**span, "layer": layer} for layer in (14 + at, 15 + at)]

    monkeypatch.setattr(exhibits, "decoded", decoded)
    found = exhibits._fig_8(evidence)
    assert asked == [e.TIMELINES]
    # Of layers 14 to 18, those from 15 to 17 are shown.
    assert [(row["panel"], row["layer"], row["start"], row["end"]) for row in found.rows] == [
        ("MoE-OnDemand", 15, 0, 3), ("Pre-gated MoE", 15, 0, 3), ("Pre-gated MoE", 16, 0, 3),
        ("Fiddler", 16, 0, 3), ("Fiddler", 17, 0, 3), ("DAOP", 17, 0, 3),
    ]  # fmt: skip
    check_words(found)

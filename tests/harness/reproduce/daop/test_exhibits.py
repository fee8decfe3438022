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
from tests.harness.reproduce.daop.test_claims_of_times import RATIOS, SPEEDS
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


# ----------------------------------------------------------------------------- by hand


def test_table_1_has_the_charged_and_the_printed_times(evidence: Evidence) -> None:
    """Four rows of the cost model, beside those of Table I."""
    found = exhibits._table_1(evidence)
    parts = ("block on the CPU", "block on the GPU", "expert migration", "expert input or output")
    assert [row["part"] for row in found.rows] == [*parts]
    assert found.paper_rows == tuple(
        {"part": part, "ms": ms} for part, ms in zip(parts, (8.02, 1.24, 39.87, 0.02), strict=True)
    )
    # 3 matrices of 4096 by 14,336 in two bytes: 352 MB, at some 9 GB/s.
    times = {row["part"]: row["ms"] for row in found.rows}
    assert times["expert migration"] == pytest.approx(39.87, rel=0.25)
    assert times["block on the GPU"] < times["block on the CPU"] < times["expert migration"]
    assert found.badge == "estimate"
    check_words(found)


def test_table_3_counts_the_parameters_of_both_models(evidence: Evidence) -> None:
    """Printed: 45.1 of 46.6 and 40.3 of 41.7 billion, to a hundredth."""
    found = exhibits._table_3(evidence)
    for row, printed in zip(found.rows, found.paper_rows, strict=True):
        assert row.keys() == printed.keys()
        for field in ("model", "blocks", "experts", "top_k"):
            assert row[field] == printed[field]
        for field in ("expert_b", "total_b"):
            assert row[field] == pytest.approx(printed[field], rel=0.01)
    assert [tuple(row.values()) for row in found.paper_rows] == [
        ("Mixtral 8x7B", 32, 8, 2, 45.1, 46.6), ("Phi-3.5-MoE", 32, 16, 2, 40.3, 41.7),
    ]  # fmt: skip
    check_words(found)


def test_table_4_has_the_efficiency_of_each_system_that_the_paper_has(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(monkeypatch, *SPEEDS)
    found = exhibits._table_4(evidence)
    assert asked == [e.SPEED]
    mixtral = {"moe-ondemand": 8, "deepspeed-mii": 2.5, "mixtral-offloading": 6.25, "fiddler": 40,
               "daop": 50}  # fmt: skip
    phi = {"moe-ondemand": 20, "fiddler": 62.5, "daop": 53.33}
    assert found.rows == tuple(
        {"model": model, "system": system, "tokens_per_kj": value}
        for model, of in (("Mixtral 8x7B", mixtral), ("Phi-3.5-MoE", phi))
        for system, value in of.items()
    )
    assert found.badge == "estimate"
    check_words(found)


def test_table_6_has_a_row_for_each_model_and_share_of_experts(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the unchanged model writes stands for all experts cached."""
    asked = with_runs(
        monkeypatch, answered("facts", "moe-ondemand", [1, 1, 0], 0.25),
        answered("facts", "daop", [1, 0, 0], 0.375), answered("passages", "daop", [1, 1, 1], 0.375),
        answered("passages", "moe-ondemand", [1, 1, 0], 0.25),
    )  # fmt: skip
    found = exhibits._table_6(evidence)
    assert asked == [e.WHOLE_ANSWERS]
    assert found.rows == (
        {"model": "Mixtral 8x7B", "cached": 100.0, "facts": 66.7, "passages": 66.7},
        {"model": "Mixtral 8x7B", "cached": 37.5, "facts": 33.3, "passages": 100.0},
    )
    fields = [axis.field for axis in found.columns]
    assert fields[:4] == ["model", "cached", "facts", "passages"]
    assert {"GSM8K", "TruthfulQA R1", "TruthfulQA R2"} <= {*fields}
    shares = [(row["model"], row["cached"]) for row in found.paper_rows]
    assert ("Mixtral 8x7B", 100) in shares
    assert ("Phi-3.5-MoE", 25) in shares
    assert found.note == "ours: generated families, scale models, 3 questions each"


def test_figures_9_and_10_have_the_speed_of_each_system(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Phi DAOP's first token takes as long as 129 others: 8 n / (128 + n) tokens/s."""
    asked = with_runs(monkeypatch, *SPEEDS)
    found = exhibits._fig_9(evidence)
    assert asked == [e.SPEED]
    speeds = {(row["model"], row["length"], row["system"]): row["tokens_per_s"]
              for row in found.rows}  # fmt: skip
    assert len(speeds) == len(found.rows) == 3 * (5 + 3)
    for tokens, phi in ((128, 4), (256, 5.333), (512, 6.4)):
        assert speeds["Phi-3.5-MoE", f"[256, {tokens}]", "daop"] == phi
        assert speeds["Mixtral 8x7B", f"[256, {tokens}]", "daop"] == 5
    assert found.note == "from TTFT and TPOT of runs of 96 new tokens, routing drawn"
    check_words(found)
    asked = with_runs(monkeypatch, *reversed(RATIOS))
    by_ratio = exhibits._fig_10(evidence)
    assert asked == [e.BY_RATIO]
    assert [tuple(row.values()) for row in by_ratio.rows] == [
        ("Phi-3.5-MoE", 25.0, "fiddler", 2.5), ("Phi-3.5-MoE", 25.0, "daop", 4),
        ("Phi-3.5-MoE", 50.0, "fiddler", 6.25), ("Phi-3.5-MoE", 50.0, "daop", 8),
        ("Mixtral 8x7B", 25.0, "fiddler", 2), ("Mixtral 8x7B", 25.0, "daop", 2.5),
        ("Mixtral 8x7B", 50.0, "fiddler", 4), ("Mixtral 8x7B", 50.0, "daop", 5),
    ]  # fmt: skip
    check_words(by_ratio)

"""Charts of accuracy against α: their rows by hand, intervals of scores alone, and ranking."""

from typing import Any

import pytest

from moebench.reports.figures.accuracy import curves
from moebench.reports.figures.style import PALETTE, SHAPES
from moebench.reports.sections.accuracy import Series
from tests.reports.figures.specs import fields, filters, layers, shown
from tests.results.tables import row


def series(workload: str, *rows: Any, scoring: str = "generation") -> Series:
    return Series("S1", "smoe", False, workload, scoring, rows)


GSM8K = series(
    "gsm8k",
    row(alpha=0.0, score=45.0, stderr=3.5, agreement=1.0, kl=0.0, n=200),
    row(alpha=0.5, score=40.0, stderr=2.0, agreement=None, kl=0.25, n=100),
)


def drawn(measure: str, *of: Series) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = curves(of or (GSM8K,), measure)
    assert found is not None
    return found


def test_rows_of_a_score_have_its_standard_error() -> None:
    assert drawn("score")[1] == [
        {"workload": "gsm8k", "alpha": 0.0, "value": 45.0, "value_low": 41.5, "value_high": 48.5,
         "n": 200},
        {"workload": "gsm8k", "alpha": 0.5, "value": 40.0, "value_low": 38.0, "value_high": 42.0,
         "n": 100},
    ]  # fmt: skip


def test_rows_of_other_measures_have_none_and_missing_values_are_left_out() -> None:
    assert drawn("agreement")[1] == [
        {"workload": "gsm8k", "alpha": 0.0, "value": 1.0, "value_low": None, "value_high": None,
         "n": 200},
    ]  # fmt: skip
    assert [one["value"] for one in drawn("kl")[1]] == [0.0, 0.25]
    assert curves([series("gsm8k", row(kl=None))], "kl") is None
    assert curves([], "score") is None


def test_a_workload_with_two_scorings_has_two_curves_named_after_them() -> None:
    both = (series("boolq", row()), series("boolq", row(), scoring="likelihood"), GSM8K)
    names = [one["workload"] for one in drawn("score", *both)[1]]
    assert names == ["boolq · generation", "boolq · likelihood", "gsm8k", "gsm8k"]


@pytest.mark.parametrize("measure", ["score", "agreement", "kl"])
def test_only_scores_are_drawn_with_intervals(measure: str) -> None:
    spec, _ = drawn(measure)
    rules = layers(spec, "rule")
    assert len(rules) == (measure == "score")
    for rule in rules:
        assert filters(rule) == ["datum.leads && isValid(datum.value_low)"]
        assert rule["encoding"]["y"]["field"] == "value_low"
        assert rule["encoding"]["y2"]["field"] == "value_high"
    assert ("standard error" in spec["encoding"]["y"]["axis"]["title"]) is (measure == "score")
    assert spec["encoding"]["y"]["scale"] == {"zero": measure == "kl"}
    assert fields(spec) <= {"workload", "alpha", "value", "value_low", "value_high", "n"}


@pytest.mark.parametrize(
    ("measure", "title", "form"),
    [("score", "score (%)", ".1f"), ("agreement", "agreement (%)", ".1%"),
     ("kl", "KL (nats/token)", ".3g")],
)  # fmt: skip
def test_axis_and_tooltip_name_the_measure(measure: str, title: str, form: str) -> None:
    spec, _ = drawn(measure)
    assert spec["encoding"]["y"]["axis"]["title"].startswith(title)
    assert spec["encoding"]["y"]["axis"]["format"] == form[:-1] + "~" + form[-1]
    assert spec["encoding"]["x"]["axis"]["title"] == "α"
    assert [spec["encoding"][at]["axis"]["grid"] for at in "xy"] == [False, True]
    assert shown(spec) == [
        ("workload", "workload", None), ("alpha", "α", "~g"), ("value", title, form),
        ("n", "n", "d"),
    ]  # fmt: skip


def test_curves_are_ranked_at_the_highest_alpha() -> None:
    for measure, better in (("score", "more"), ("agreement", "more"), ("kl", "less")):
        assert drawn(measure)[0]["usermeta"]["leaders"] == {
            "field": "workload", "value": "value", "better": better, "over": "alpha", "first": "",
            "extent": ["value", "value_low", "value_high"],
        }  # fmt: skip


def test_every_workload_has_its_colour_and_shape_in_the_order_of_the_table() -> None:
    names = [f"w{at}" for at in range(9)]
    colours = drawn("kl", *(series(name, row()) for name in names))[0]["usermeta"]["colours"]
    assert colours["field"] == "workload"
    assert colours["known"] == dict(zip(names, (*PALETTE, PALETTE[0]), strict=True))
    assert colours["shapes"] == dict(zip(names, (*SHAPES, *SHAPES[:2]), strict=True))

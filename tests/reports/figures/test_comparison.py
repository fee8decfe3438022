"""Charts that compare systems: their axes, scales, tooltips and how their rows are ranked."""

from collections.abc import Iterator
from typing import Any

import pytest

from moebench.reports.figures import comparison
from moebench.reports.figures.comparison import (
    OVER,
    PARTS,
    TRADES,
    ablation,
    bound,
    lines,
    trade,
    where_time_goes,
)
from moebench.reports.figures.style import REST
from tests.reports.figures.specs import channels, fields, filters, layers, shown

WHO = [("system", "system", None), ("table", "in", None), ("badge", "badge", None)]
TPOT = ("tpot_ms", "TPOT (ms)", ".2f")


# ------------------------------------------------------------------- TPOT over accuracy


@pytest.mark.parametrize("measure", TRADES)
def test_tpot_is_drawn_against_each_figure_of_accuracy(measure: str) -> None:
    spec = trade(measure, {"smoe": "#123456"})
    title, form = {
        "kl": ("KL (nats/token)", ".3g"), "agreement": ("agreement (%)", ".1%"),
        "score": ("score (%)", ".1f"),
    }[measure]  # fmt: skip
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert (x["field"], x["type"], x["scale"]["zero"]) == ("tpot_ms", "quantitative", False)
    assert x["axis"]["title"] == "TPOT (ms); left is faster"
    assert (y["field"], y["type"], y["axis"]["title"]) == (measure, "quantitative", title)
    assert y["axis"]["format"] == form[:-1] + "~" + form[-1]
    assert shown(spec) == [*WHO, TPOT, (measure, title, form)]
    assert spec["transform"] == [{"filter": f"isValid(datum.tpot_ms) && isValid(datum.{measure})"}]
    assert fields(spec) == {
        "base", "line", "alpha", "system", "table", "badge", "tpot_ms", measure
    }  # fmt: skip
    meta = spec["usermeta"]
    assert meta["colours"]["field"] == "base"
    assert meta["colours"]["known"] == {"smoe": "#123456"}
    assert meta["leaders"] == {
        "field": "base", "value": "tpot_ms", "better": "less", "over": None, "first": "front",
        "extent": ["tpot_ms"],
    }  # fmt: skip
    assert meta["log"] == {"x": ["tpot_ms"]}


def test_only_kl_has_a_scale_that_shows_zero_beside_small_values() -> None:
    y = trade("kl", {})["encoding"]["y"]
    assert (y["scale"]["type"], y["scale"]["domainMin"]) == ("symlog", 0)
    # Between 0 and the constant it is linear: the least KL of interest is larger.
    assert 0 < y["scale"]["constant"] < 1e-3
    assert trade("kl", {})["usermeta"]["room"] == {"y": "kl"}
    for measure in ("agreement", "score"):
        spec = trade(measure, {})
        assert spec["encoding"]["y"]["scale"]["zero"] is False
        assert "type" not in spec["encoding"]["y"]["scale"]
        assert spec["usermeta"]["room"] == {}


def test_the_pareto_front_is_a_dashed_line_of_steps_without_a_tooltip() -> None:
    (front,) = [one for one in trade("kl", {})["layer"] if filters(one) == ["datum.front"]]
    assert (front["mark"]["type"], front["mark"]["interpolate"]) == ("line", "step-after")
    assert len(front["mark"]["strokeDash"]) == 2
    assert front["encoding"]["order"] == {"field": "tpot_ms"}
    assert front["encoding"]["tooltip"] == {"value": None}
    assert front["encoding"]["color"] == {"value": "var(--muted)"}


def test_points_of_one_system_are_joined_in_the_order_of_alpha() -> None:
    spec = trade("kl", {})
    joined = [one for one in layers(spec, "line") if filters(one) != ["datum.front"]]
    assert len(joined) == 3
    for layer in joined:
        assert layer["encoding"]["detail"] == {"field": "line"}
        assert layer["encoding"]["order"] == {"field": "alpha"}
    rest, leading = joined[:2]
    assert (rest["name"], filters(rest)) == ("rest", ["!datum.leads"])
    assert rest["encoding"]["color"] == {"value": f"var({REST})"}
    assert filters(leading) == ["datum.leads"]


def test_points_that_lead_are_larger_and_have_their_systems_shape() -> None:
    rest, leading = layers(trade("kl", {}), "point")[:2]
    assert filters(rest) == ["!datum.leads"]
    assert rest["encoding"]["color"] == {"value": f"var({REST})"}
    assert filters(leading) == ["datum.leads"]
    assert leading["encoding"]["shape"]["field"] == "base"
    assert rest["mark"]["size"] < leading["mark"]["size"]
    assert rest["mark"]["opacity"] == leading["mark"]["opacity"] == 1
    assert rest["mark"]["filled"] is leading["mark"]["filled"] is True


def test_only_points_of_the_front_are_labelled_with_their_alpha() -> None:
    (text,) = [one for one in layers(trade("kl", {}), "text") if "name" not in one]
    assert text["transform"] == [{"calculate": "'α ' + datum.alpha", "as": "with"}]
    assert text["encoding"]["text"] == {
        "condition": {"test": "datum.front && datum.alpha !== null", "field": "with"}, "value": "",
    }  # fmt: skip


# ------------------------------------------------------------------------ lines


@pytest.mark.parametrize(
    ("over", "title", "short", "form"),
    [
        ("batch", "batch (sequences decoded together)", "batch", "d"),
        ("alpha", "α (substitution threshold)", "α", "~g"),
        ("ratio", "capacity (share of experts)", "capacity", "~%"),
    ],
)
def test_a_line_per_system_over_each_quantity(over: str, title: str, short: str, form: str) -> None:
    spec = lines(over, {"smoe": "#123456"})
    x = spec["encoding"]["x"]
    assert (x["field"], x["axis"]["title"]) == (over, title)
    # Batches are names, with equal steps between them; other quantities keep their distances.
    assert x["type"] == ("ordinal" if over == "batch" else "quantitative")
    if over == "batch":
        assert x["axis"]["labelAngle"] == 0
        assert "scale" not in x
    else:
        assert (x["scale"]["zero"], x["scale"]["nice"]) == (False, False)
        assert x["axis"]["format"] == form
    assert shown(spec) == [*WHO, (over, short, form), TPOT]
    assert spec["usermeta"]["colours"]["field"] == "line"
    assert spec["usermeta"]["colours"]["known"] == {"smoe": "#123456"}
    assert spec["usermeta"]["leaders"] == {
        "field": "line", "value": "tpot_ms", "better": "less", "over": over, "first": "",
        "extent": ["tpot_ms", "tpot_ms_low", "tpot_ms_high"],
    }  # fmt: skip
    assert {*OVER} == {"batch", "alpha", "ratio"}


def test_only_times_may_be_drawn_on_a_logarithmic_axis() -> None:
    assert lines("batch", {})["usermeta"]["log"] == {"y": ["tpot_ms"]}
    hits = lines("ratio", {}, "hit_ratio")
    assert "log" not in hits["usermeta"]
    assert hits["usermeta"]["leaders"]["better"] == "more"
    assert hits["encoding"]["y"]["field"] == "hit_ratio"
    assert hits["encoding"]["y"]["axis"]["format"] == ".1~%"
    assert hits["encoding"]["y"]["axis"]["title"] == "hit ratio, complete (%)"
    assert "format" not in lines("batch", {})["encoding"]["y"]["axis"]
    assert shown(hits)[-1] == ("hit_ratio", "hit ratio, complete (%)", ".1%")


def test_lines_have_the_intervals_of_their_own_figure() -> None:
    for measure in ("tpot_ms", "hit_ratio"):
        (rule,) = layers(lines("ratio", {}, measure), "rule")
        assert rule["encoding"]["y"]["field"] == f"{measure}_low"
        assert rule["encoding"]["y2"]["field"] == f"{measure}_high"


# ------------------------------------------------------------------------ parts of a token


@pytest.mark.parametrize("share", [False, True])
def test_where_time_goes_in_milliseconds_or_as_shares(share: bool) -> None:
    spec = where_time_goes(share)
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert spec["mark"]["type"] == "bar"
    assert (x["field"], x["stack"]) == ("share" if share else "ms", "zero")
    assert x["axis"]["title"] == ("share of TPOT (%)" if share else "time of a token (ms)")
    assert x["scale"] == ({"domain": [0, 1]} if share else {})
    assert x["axis"].get("format") == ("~%" if share else None)
    assert (y["field"], spec["encoding"]["color"]["field"]) == ("system", "part")
    assert spec["encoding"]["order"] == {"field": "order"}
    assert shown(spec) == [
        ("system", "system", None), ("part", "what", None), ("ms", "ms", ".4~g"),
        ("share", "share of TPOT", ".1%"), ("badge", "badge", None),
    ]  # fmt: skip
    assert spec["usermeta"]["sort"] == {"y": "system"}
    assert spec["usermeta"]["colours"]["field"] == "part"
    assert spec["usermeta"]["colours"]["known"] == PARTS
    assert len(set(PARTS.values())) == len(PARTS) == 5


def test_an_ablation_has_a_bar_and_its_change_for_each_step() -> None:
    spec = ablation()
    bar, text = spec["layer"]
    assert (bar["mark"]["type"], text["mark"]["type"]) == ("bar", "text")
    colour = bar["encoding"]["color"]
    assert colour["field"] == "kind"
    kinds = dict(zip(colour["scale"]["domain"], colour["scale"]["range"], strict=True))
    assert [*kinds] == ["base", "faster", "slower"]
    assert kinds["faster"] == PARTS["device busy"]
    assert len(set(kinds.values())) == 3
    assert text["encoding"] == {"text": {"field": "text"}}
    assert (text["mark"]["align"], text["mark"]["dx"] > 0) == ("left", True)
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert (x["field"], x["scale"], x["axis"]["title"]) == ("tpot", {"zero": True}, "TPOT (ms)")
    assert (y["field"], y["axis"]["labelExpr"]) == ("step", "split(datum.label, '|')")
    assert shown(spec) == [
        ("step", "step", None), ("system", "system", None), ("tpot", "TPOT (ms)", ".2f"),
        ("text", "change", None), ("badge", "badge", None),
    ]  # fmt: skip
    assert spec["usermeta"] == {"sort": {"y": "step"}, "room": {"x": "tpot"}}


def test_a_bound_is_joined_to_what_was_achieved() -> None:
    spec = bound()
    (rule,) = layers(spec, "rule")
    assert (rule["encoding"]["x"]["field"], rule["encoding"]["x2"]["field"]) == ("least", "tpot_ms")
    x = spec["encoding"]["x"]
    assert (x["field"], x["scale"]) == ("tpot_ms", {"zero": False})
    assert x["axis"]["title"] == "TPOT (ms): bound to achieved"
    assert spec["encoding"]["y"]["field"] == "system"
    assert shown(spec) == [
        ("system", "system", None), TPOT, ("least", "TPOT bound (ms)", ".2f"),
        ("bound_ratio", "× bound", ".2f"), ("clairvoyant_ms", "clairvoyant bound (ms)", ".2f"),
        ("information_ms", "information bound (ms)", ".2f"), ("badge", "badge", None),
    ]  # fmt: skip
    (text,) = layers(spec, "text")
    assert text["encoding"]["text"]["field"] == "bound_ratio"
    assert text["encoding"]["text"]["format"] == ".2f"
    assert text["mark"]["align"] == "left"
    assert len(layers(spec, "point")) == 1
    assert spec["usermeta"] == {
        "log": {"x": ["tpot_ms", "least"]}, "sort": {"y": "system"}, "room": {"x": "tpot_ms"},
    }  # fmt: skip


def test_a_row_without_a_programs_bound_has_an_invisible_mark_at_its_least() -> None:
    least, *others = layers(bound(), "tick")
    assert least["encoding"]["x"]["field"] == "least"
    assert "opacity" not in least["encoding"]
    assert len({one["mark"]["color"] for one in (least, *others)}) == 3
    for layer, key in zip(others, ("clairvoyant_ms", "information_ms"), strict=True):
        (calculated,) = layer["transform"]
        assert calculated["calculate"] == f"isValid(datum.{key}) ? datum.{key} : datum.least"
        assert layer["encoding"]["x"]["field"] == calculated["as"]
        opacity = layer["encoding"]["opacity"]
        assert opacity["value"] == 0
        assert opacity["condition"] == {"test": f"isValid(datum.{key})", "value": 1}


def test_legends_are_above_the_chart_and_without_a_title() -> None:
    for spec in (trade("kl", {}), lines("alpha", {}), where_time_goes(True), ablation()):
        for name, one in channels(spec):
            if name in ("color", "shape") and one.get("legend"):
                assert (one["legend"]["title"], one["legend"]["orient"]) == (None, "top")


def _axes(part: Any) -> Iterator[tuple[str, bool]]:
    """Yield the kind of values of each axis in a chart, and whether it has lines."""
    if isinstance(part, dict):
        if "type" in part and isinstance(part.get("axis"), dict):
            yield part["type"], part["axis"]["grid"]
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        yield from _axes(inner)


def test_axes_of_numbers_have_lines_and_axes_of_names_do_not() -> None:
    specs = [comparison.trade(name, {}) for name in comparison.TRADES]
    specs += [comparison.lines(name, {}) for name in comparison.OVER]
    specs += [comparison.where_time_goes(share=share) for share in (False, True)]
    specs += [comparison.ablation(), comparison.bound()]
    found = [axis for spec in specs for axis in _axes(spec)]
    assert len(found) >= 2 * len(specs)
    assert {kind for kind, grid in found if grid} == {"quantitative"}
    assert {kind for kind, grid in found if not grid} == {"nominal", "ordinal"}

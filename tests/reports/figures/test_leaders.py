"""Charts of many lines: who leads, where labels go, and what the others look like."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.reports.figures.comparison import lines, trade
from moebench.reports.figures.leaders import (
    MOST,
    by,
    led,
    lines_of,
    pointed,
    ranked,
    spread,
    told_apart,
)
from moebench.reports.figures.style import PALETTE, REST
from moebench.results.metrics import metric_of
from tests.reports.figures import specs


def point(line: str, batch: int, ms: float, **more: Any) -> dict[str, Any]:
    return {"line": line, "batch": batch, "tpot_ms": ms} | more


META = by("line", "tpot_ms", "less", "batch")["leaders"]
NAMES = [f"s{n}" for n in range(9)]
#: s0 is the fastest at batch 4, though the slowest at batch 1.
ROWS = [
    point(name, batch, (10.0 + n) * batch if batch == 4 else 100.0 - n)
    for n, name in enumerate(NAMES)
    for batch in (1, 4)
]


def test_lines_are_ranked_at_the_end_of_the_axis() -> None:
    assert ranked(ROWS, META) == NAMES
    assert ranked(ROWS, META | {"better": "more"}) == NAMES[::-1]
    # A line that ends early has no value there, however small its own last one is.
    assert ranked([*ROWS, point("early", 2, 1.0)], META)[-1] == "early"
    # One line that goes on a little longer than all others is ranked as they are.
    assert ranked([*ROWS, point("longer", 5, 999.0)], META)[-1] == "longer"
    assert ranked([*ROWS, point("longer", 5, 46.0)], META)[2] == "longer"


def test_lines_without_such_an_axis_are_ranked_by_their_mean() -> None:
    # Means 57.5, ..., by the formula above: s0 is (100 + 40) / 2, s8 is (92 + 72) / 2.
    assert ranked(ROWS, META | {"over": None})[0] == "s0"
    assert ranked(ROWS, META | {"over": None, "better": "more"})[0] == "s8"
    front = [row | {"front": row["line"] == "s5"} for row in ROWS]
    assert ranked(front, META | {"first": "front"})[:2] == ["s5", "s0"]


@given(st.lists(st.integers(0, len(PALETTE) - 1), min_size=1, max_size=MOST))
def test_leaders_have_distinct_colours_and_keep_their_own_where_they_can(own: list[int]) -> None:
    names = [f"s{n}" for n in range(len(own))]
    given_ = {name: PALETTE[n] for name, n in zip(names, own, strict=True)}
    found = told_apart(names, given_)
    assert [*found] == names
    assert len({*found.values()}) == len(names)
    assert {*found.values()} <= {*PALETTE[:-1]}, "grey is the colour of the others"
    for name, n in zip(names, own, strict=True):
        first = n < len(PALETTE) - 1 and own.index(n) == names.index(name)
        assert not first or found[name] == given_[name]


def drawn(rows: list[dict[str, Any]], width: float = 560) -> tuple[dict[str, Any], Any]:
    spec = lines("batch", {})
    return spec, led(spec, spec["usermeta"]["leaders"], rows, width)


def layers(spec: dict[str, Any]) -> list[str]:
    return [layer.get("name", "") for layer in spec["layer"]]


def test_the_first_six_lead_and_the_others_are_grey() -> None:
    spec, rows = drawn(ROWS)
    assert {row["line"] for row in rows if row["leads"]} == {*NAMES[:MOST]}
    assert {(row["line"], row["batch"]) for row in rows if row["last"]} == {
        (name, 4) for name in NAMES
    }
    assert spec["title"]["text"] == "grey: 3 others"
    assert spec["encoding"]["color"]["legend"] is None
    (text,) = [layer for layer in spec["layer"] if layer.get("name") == "ends text"]
    assert [one["line"] for one in text["data"]["values"]] == NAMES[:MOST]


def test_six_lines_have_no_grey_ones() -> None:
    spec, rows = drawn([row for row in ROWS if row["line"] in NAMES[:MOST]])
    assert all(row["leads"] for row in rows)
    assert "title" not in spec
    assert "rest" not in layers(spec)
    assert "ends text" in layers(spec)


@pytest.mark.parametrize(("width", "labelled"), [(560, True), (100, False)])
def test_labels_that_do_not_fit_are_a_legend_of_the_leaders(width: float, labelled: bool) -> None:
    spec, _ = drawn(ROWS, width)
    legend = spec["encoding"]["color"]["legend"]
    assert ("ends text" in layers(spec)) is labelled
    assert (legend is None) is labelled
    assert labelled or legend["values"] == NAMES[:MOST]


def test_points_have_a_legend_and_no_ends() -> None:
    spec = trade("kl", {})
    rows = [{"base": one["line"], "kl": 0.1} | one for one in ROWS]
    led(spec, spec["usermeta"]["leaders"], rows, 560)
    assert "ends text" not in layers(spec)
    assert spec["encoding"]["color"]["legend"]["values"] == NAMES[:MOST]


def test_a_row_without_the_value_is_no_point() -> None:
    _, rows = drawn([*ROWS, {"line": "none", "batch": 1}, point("null", 1, None)])  # type: ignore[arg-type]
    assert len(rows) == len(ROWS)


def test_labels_of_one_value_are_apart_and_inside_the_scale() -> None:
    spec, _ = drawn([point(name, batch, 50.0) for name in NAMES for batch in (1, 4)])
    (text,) = [layer for layer in spec["layer"] if layer.get("name") == "ends text"]
    low, high = spec["encoding"]["y"]["scale"]["domain"]
    places = [one["place"] for one in text["data"]["values"]]
    assert all((b - a) / (high - low) * spec["height"] >= 14.9 for a, b in pairwise(places))
    assert low <= places[0]
    assert places[-1] <= high


@pytest.mark.parametrize("logarithmic", [False, True])
def test_labels_with_room_stand_where_their_lines_end(logarithmic: bool) -> None:
    spec = lines("batch", {}, "tpot_ms")
    spec["encoding"]["y"]["scale"] = {"type": "log"} if logarithmic else {"zero": False}
    values = {"a": 20.0, "b": 45.0, "c": 90.0}
    rows = [point(name, batch, ms) for name, ms in values.items() for batch in (1, 4)]
    led(spec, spec["usermeta"]["leaders"], rows, 560)
    (text,) = [layer for layer in spec["layer"] if layer.get("name") == "ends text"]
    places = {one["line"]: one["place"] for one in text["data"]["values"]}
    assert places == pytest.approx(values)


def test_shares_do_not_exceed_their_scale_when_all_are_equal() -> None:
    spec = lines("ratio", {}, "hit_ratio")
    spec["encoding"]["y"]["scale"] = {"zero": False}
    rows = [{"line": "a", "ratio": x, "hit_ratio": 1.0} for x in (0.1, 0.2)]
    led(spec, spec["usermeta"]["leaders"], rows, 560)
    assert spec["encoding"]["y"]["scale"]["domain"] == [pytest.approx(0.96), 1.0]
    assert metric_of("hit_ratio").better == spec["usermeta"]["leaders"]["better"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.001, 0.5))
def test_spread_keeps_order_and_gap(places: list[float], gap: float) -> None:
    places.sort()
    found = spread(places, gap)
    kept = min(gap, 1 / max(len(places) - 1, 1))
    assert all(b - a >= kept - 1e-9 for a, b in pairwise(found))
    assert min(found) >= -1e-9
    assert max(found) <= 1 + 1e-9
    if all(b - a >= gap for a, b in pairwise(places)):
        assert found == pytest.approx(places, abs=1e-9)


# ----------------------------------------------------------------------------- layers


LEGEND = {"title": None}
ENCODING = {"color": {"field": "line", "legend": LEGEND}}


@pytest.mark.parametrize("interval", ["", "tpot_ms"])
def test_the_leaders_are_over_the_others_and_intervals_between_line_and_points(
    interval: str,
) -> None:
    found = lines_of(ENCODING, interval)
    own = [layer for layer in found if not layer.get("name", "").startswith("pointed")]
    kinds = [(layer["mark"]["type"], specs.filters(layer)) for layer in own]
    rule = [("rule", ["datum.leads && isValid(datum.tpot_ms_low)"])] if interval else []
    assert kinds == [
        ("line", ["!datum.leads"]), ("point", ["!datum.leads"]), ("line", ["datum.leads"]), *rule,
        ("point", ["datum.leads"]),
    ]  # fmt: skip
    assert found[len(own) :] == pointed("line", ENCODING)
    for layer in own[:2]:
        assert layer["name"] == "rest"
        assert layer["encoding"] == {
            "color": {"value": f"var({REST})"}, "detail": {"field": "line"}
        }  # fmt: skip
    others, line, points = own[1], own[2], own[-1]
    assert own[0]["mark"]["strokeWidth"] == 1 < line["mark"]["strokeWidth"]
    assert others["mark"]["size"] < points["mark"]["size"] / 2
    assert (points["mark"]["filled"], points["mark"]["opacity"]) == (True, 1)
    assert points["encoding"] == {"shape": {"field": "line", "type": "nominal", "legend": LEGEND}}
    if interval:
        ends = own[3]["encoding"]
        assert (ends["y"]["field"], ends["y2"]["field"]) == ("tpot_ms_low", "tpot_ms_high")
        assert 0 < own[3]["mark"]["opacity"] < 1


def test_only_the_line_under_the_pointer_is_shown_and_only_a_grey_one_is_named() -> None:
    line, points, name, nearest = pointed("line", ENCODING, {"detail": {"field": "run"}}, clip=True)
    chosen = {"param": "pointed", "empty": False}
    for layer in (line, points):
        opacity = layer["encoding"]["opacity"]
        assert opacity == {"condition": chosen | {"value": 1}, "value": 0}
    assert line["mark"]["clip"] is True
    assert line["mark"]["strokeWidth"] == 3
    assert line["encoding"]["detail"] == {"field": "run"}
    assert "detail" not in points["encoding"]
    assert points["encoding"]["shape"]["field"] == "line"
    assert name["encoding"]["text"] == {"field": "line"}
    assert name["encoding"]["opacity"] == {
        "condition": {"test": {"and": [chosen, "!datum.leads"]}, "value": 1}, "value": 0
    }  # fmt: skip
    assert specs.filters(name) == ["datum.last"]
    # The name ends to the left of its point and above it.
    assert (name["mark"]["align"], name["mark"]["dx"] < 0, name["mark"]["dy"] < 0) == (
        "right", True, True,
    )  # fmt: skip
    (param,) = nearest["params"]
    assert param["name"] == chosen["param"]
    assert param["select"] == {
        "type": "point", "fields": ["line"], "on": "pointerover", "clear": "pointerout",
        "nearest": True,
    }  # fmt: skip
    assert nearest["mark"]["opacity"] == 0
    assert nearest["encoding"]["detail"] == {"field": "line"}
    assert pointed("line", ENCODING)[0]["encoding"].keys() == {"opacity"}


# ----------------------------------------------------------------------------- labels


def test_a_chart_says_how_many_lines_are_grey() -> None:
    spec, _ = drawn(ROWS)
    assert spec["title"]["text"] == "grey: 3 others"
    assert (spec["title"]["anchor"], spec["title"]["color"]) == ("start", "var(--muted)")


@pytest.mark.parametrize(("width", "labelled"), [(114, False), (115, True)])
def test_labels_take_at_most_36_percent_of_the_width(width: float, labelled: bool) -> None:
    """Two letters of 6.6 pixels and a symbol of 28 are 41.2 pixels: 36 % of 114.4."""
    spec, _ = drawn(ROWS, width)
    assert ("ends text" in layers(spec)) is labelled


def test_only_the_leaders_names_need_room() -> None:
    """The seventh line's name does not fit into 36 % of 560 pixels, and is not written."""
    rows = [point(name, batch, 10.0) for name in "abcdef" for batch in (1, 4)]
    rows += [point("x" * 40, batch, 99.0) for batch in (1, 4)]
    assert "ends text" in layers(drawn(rows)[0])


def ends_of(values: dict[str, list[float]], scale: dict[str, Any]) -> tuple[Any, Any]:
    """The vertical scale with these values at the last batch, and the ends of lines."""
    spec = lines("batch", {}, "tpot_ms")
    spec["encoding"]["y"]["scale"] = scale
    rows = [point(name, 4, ms) for name, of in values.items() for ms in of]
    led(spec, spec["usermeta"]["leaders"], rows, 560)
    (text,) = [layer for layer in spec["layer"] if layer.get("name") == "ends text"]
    return spec["encoding"]["y"]["scale"], text["data"]["values"]


def test_the_scale_of_labels_leaves_four_percent_at_each_end() -> None:
    values = {"a": [100.0], "b": [200.0]}
    scale, _ = ends_of(values, {"zero": False, "padding": 9})
    assert scale["domain"] == [pytest.approx(96), pytest.approx(204.16)]  # 4 % of 104
    assert (scale["nice"], scale.keys()) == (False, {"domain", "nice"})
    # From zero on, there is room above alone.
    assert ends_of(values, {})[0]["domain"] == [0.0, pytest.approx(208)]
    assert ends_of({"a": [-50.0], "b": [50.0]}, {})[0]["domain"] == [-50.0, pytest.approx(54)]
    # On a logarithmic scale, 4 % of a decade.
    log, _ = ends_of({"a": [1.0], "b": [10.0]}, {"type": "log"})
    assert log["domain"] == [pytest.approx(10**-0.04), pytest.approx(10**1.0416)]
    assert log["type"] == "log"


def test_a_single_value_has_a_scale_around_it() -> None:
    assert ends_of({"a": [50.0]}, {"zero": False})[0]["domain"] == [pytest.approx(48), 50.0]
    assert ends_of({"a": [0.0]}, {"zero": False})[0]["domain"] == [-1.0, 0.0]
    assert ends_of({"a": [50.0]}, {})[0]["domain"] == [0.0, pytest.approx(52)]


def test_a_label_is_at_the_mean_of_its_lines_last_points_from_the_lowest_on() -> None:
    _, ends = ends_of({"a": [90.0, 70.0], "b": [20.0]}, {})
    assert [(one["line"], one["batch"], one["tpot_ms"]) for one in ends] == [
        ("b", 4, 20.0), ("a", 4, 80.0)
    ]  # fmt: skip
    assert [one["place"] for one in ends] == pytest.approx([20, 80])


def test_a_rule_joins_a_lines_end_to_its_label_at_the_edge() -> None:
    spec, _ = drawn(ROWS)
    rule, dot, text = (layer for layer in spec["layer"] if layer.get("name", "")[:4] == "ends")
    assert [one["mark"]["type"] for one in (rule, dot, text)] == ["rule", "point", "text"]
    edge = {"value": "width"}
    assert rule["encoding"]["x"] == {"field": "batch", "type": "ordinal"}
    assert rule["encoding"]["y"] == {"field": "tpot_ms", "type": "quantitative"}
    assert (rule["encoding"]["x2"], rule["encoding"]["y2"]) == (edge, {"field": "place"})
    for layer in (dot, text):
        assert layer["encoding"]["x"] == edge
        assert layer["encoding"]["y"] == {"field": "place", "type": "quantitative"}
    for layer in (rule, dot, text):
        assert layer["encoding"]["tooltip"] == {"value": None}
    assert dot["encoding"]["shape"]["field"] == text["encoding"]["text"]["field"] == "line"
    assert dot["encoding"]["shape"]["legend"] is None
    # The symbol is in the margin, and the text to the right of it.
    assert text["mark"]["align"] == "left"
    assert 0 < dot["mark"]["xOffset"] < text["mark"]["dx"]


def test_spread_moves_equal_places_apart_around_their_middle() -> None:
    assert spread([0.5, 0.5], 0.2) == pytest.approx([0.4, 0.6])
    assert spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert spread([0.0, 0.0], 0.2) == pytest.approx([0.0, 0.2])
    assert spread([1.0, 1.0], 0.2) == pytest.approx([0.8, 1.0])
    assert spread([0.9, 0.95, 1.0], 0.4) == pytest.approx([0.2, 0.6, 1.0])
    assert spread([0.3, 0.3, 0.3], 0.9) == pytest.approx([0.0, 0.5, 1.0])
    assert spread([], 0.1) == []

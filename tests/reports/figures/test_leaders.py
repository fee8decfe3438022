"""Charts of many lines: who leads, where labels go, and what the others look like."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.reports.figures.comparison import lines, trade
from moebench.reports.figures.leaders import MOST, by, led, ranked, spread, told_apart
from moebench.reports.figures.style import PALETTE
from moebench.results.metrics import metric_of


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

"""Exhibits as figures, rows of text and files."""

import re
from pathlib import Path
from typing import Any

import altair as alt
import pytest

from moebench.reports.figures import exhibits
from moebench.reports.figures.style import PALETTE
from moebench.results.claims import Axis, Exhibit, PaperResult

SYSTEM = Axis(field="system", title="system")
TPOT = Axis(field="tpot", title="TPOT", unit="ms")
LOG = Axis(field="tpot", title="TPOT", unit="ms", log=True)
ROWS = (
    {"system": "smoe", "batch": 1, "setting": "S1", "tpot": 60.0},
    {"system": "smoe", "batch": 3, "setting": "S1", "tpot": 80.0},
    {"system": "deepspeed", "batch": 1, "setting": "S3", "tpot": 12345.678},
    {"system": "deepspeed", "batch": 3, "setting": "S3", "tpot": 900.0},
)
STATED = ({"system": "smoe", "batch": 1, "setting": "S1", "tpot": 45.0},)


def exhibit(form: Any, **of: Any) -> Exhibit:
    given = {
        "id": f"smoe-{form}", "place": "Fig. 11", "title": "TPOT", "form": form, "x": SYSTEM,
        "y": TPOT, "series": "batch", "facet": "setting", "rows": ROWS, "paper_rows": STATED,
        "badge": "estimate",
    }  # fmt: skip
    return Exhibit(**(given | of))


HEAT = exhibit(
    "heat", x=Axis(field="token", title="token"), y=Axis(field="expert", title="expert"),
    colour=Axis(field="age", title="age", unit="tokens"), series="evicted", facet=None,
    rows=({"token": 0, "expert": 3, "age": 0, "evicted": ""},
          {"token": 1, "expert": 3, "age": 1, "evicted": "lru"}),
    paper_rows=({"token": 0, "expert": 3, "age": 2, "evicted": ""},),
)  # fmt: skip
TIMELINE = exhibit(
    "timeline", x=Axis(field="start", title="time", unit="µs"), y=Axis(field="lane", title=""),
    series="kind", facet=None, paper_rows=(),
    rows=({"lane": "disk", "kind": "read", "start": 0.5, "end": 9.25},
          {"lane": "device", "kind": "expert", "start": 9.25, "end": 10.0}),
)  # fmt: skip
TABLE = exhibit(
    "table", columns=(SYSTEM, TPOT, Axis(field="stated", title="paper", unit="ms")), x=None, y=None,
    series=None, facet=None, paper_rows=(),
    rows=({"system": "smoe", "tpot": 60.25, "stated": 45}, {"system": "daop", "tpot": 100}),
)  # fmt: skip
DRAWN = [
    *(exhibit(form) for form in ("bars", "stacked", "lines", "points")),
    *(exhibit(form, id=f"{form}-one", facet=None) for form in ("bars", "stacked", "lines")),
    exhibit("bars", id="no-series", series=None, facet=None, paper_rows=()),
    exhibit("bars", id="log", y=LOG),
    exhibit("lines", id="log-log", x=Axis(field="batch", title="batch", log=True), y=LOG),
    HEAT,
    TIMELINE,
]


def ids(one: Exhibit) -> str:
    return one.id


def drawn(one: Exhibit) -> Any:
    found = exhibits.spec(one)
    assert found is not None
    return found


def layers(one: Exhibit) -> list[Any]:
    found = drawn(one)
    return found.get("layer") or found["spec"]["layer"]


def svg_of(one: Exhibit, folder: Path) -> str:
    result = PaperResult(
        paper="smoe", title="SMoE", quick=True, provenance={}, claims=(), exhibits=(one,)
    )
    svg, pdf = exhibits.write([result], folder)
    assert pdf.read_bytes().startswith(b"%PDF-")
    return svg.read_text(encoding="utf-8")


# ----------------------------------------------------------------------------- figures


@pytest.mark.parametrize("one", DRAWN, ids=ids)
def test_a_figure_keeps_to_vega_lites_schema_and_names_no_address(one: Exhibit) -> None:
    alt.Chart.from_dict(drawn(one), validate=True)
    assert "http" not in str(drawn(one))


@pytest.mark.parametrize("one", DRAWN, ids=ids)
def test_a_figure_is_drawn_with_its_titles_and_its_badge(one: Exhibit, tmp_path: Path) -> None:
    words = re.findall(r"<text[^>]*>([^<]*)</text>", svg_of(one, tmp_path))
    value = {"heat": one.colour, "timeline": one.x}.get(one.form, one.y)
    assert value is not None
    assert f"{value.title} ({value.unit}, estimate)" in words
    assert (f"{'numbers' if one is HEAT else '◇'}: what the paper states" in words) is bool(
        one.paper_rows
    )


def test_a_table_is_no_figure(tmp_path: Path) -> None:
    assert exhibits.spec(TABLE) is None
    result = PaperResult(
        paper="smoe", title="SMoE", quick=True, provenance={}, claims=(), exhibits=(TABLE,)
    )
    assert exhibits.write([result], tmp_path / "none") == []


def test_a_panel_for_each_facet_and_one_without() -> None:
    assert drawn(exhibit("lines"))["facet"]["sort"] == ["S1", "S3"]
    assert "facet" not in drawn(exhibit("lines", facet=None))
    assert drawn(exhibit("lines", facet=None))["width"] == "container"
    same = tuple(row | {"setting": "S1"} for row in ROWS)
    assert "facet" not in drawn(exhibit("lines", rows=same))


def test_a_logarithmic_axis_has_points_for_bars_which_would_need_a_zero() -> None:
    (plain, _), (log, _) = layers(exhibit("bars")), layers(exhibit("bars", y=LOG))
    assert (plain["mark"]["type"], log["mark"]["type"]) == ("bar", "point")
    assert log["encoding"]["y"]["scale"]["type"] == "log"
    assert "scale" not in plain["encoding"]["y"]


def test_grouped_bars_stand_beside_each_other(tmp_path: Path) -> None:
    """Numbers that name a group are names: else all bars stand in one place."""
    rows = tuple(row | {"setting": "S1"} for row in ROWS[:2])
    svg = svg_of(exhibit("bars", rows=rows, paper_rows=(), facet=None), tmp_path)
    bars = re.findall(r'aria-roledescription="bar" d="M([\d.]+),', svg)
    assert len(bars) == 2
    assert float(bars[1]) - float(bars[0]) > 20


def test_the_papers_values_are_marks_of_their_own() -> None:
    *_, stated = layers(exhibit("lines", facet=None))
    assert stated["data"]["values"] == [*STATED]
    assert stated["mark"]["shape"] == "diamond"


def test_panels_show_the_papers_values_in_their_own_layer_alone() -> None:
    found = drawn(exhibit("lines"))
    assert [row["_paper"] for row in found["data"]["values"]] == [False] * 4 + [True]
    *ours, stated = found["spec"]["layer"]
    assert all(one["transform"][0]["filter"] == "!datum._paper" for one in ours)
    assert stated["transform"][0]["filter"] == "datum._paper"


def test_what_only_the_paper_names_is_grey() -> None:
    one = exhibit("lines", paper_rows=({"system": "smoe", "batch": 8, "setting": "S1", "tpot": 1},))
    scale = layers(one)[0]["encoding"]["color"]["scale"]
    assert scale["domain"] == [1, 3, 8]
    assert scale["range"][2] == exhibits.PAPER_COLOUR
    assert len(set(scale["range"])) == 3


def test_the_papers_parts_stand_where_they_end_in_the_stack() -> None:
    parts = [("compute", 5.0), ("load", 20.0)]  # not in the order of the stack
    rows = [{"system": "a", "part": part, "tpot": 1.0} for part in ("load", "host", "compute")]
    one = exhibit(
        "stacked", series="part", facet=None, rows=tuple(rows),
        paper_rows=tuple({"system": "a", "part": part, "tpot": value} for part, value in parts),
    )  # fmt: skip
    *_, stated = layers(one)
    assert [(row["part"], row["tpot"]) for row in stated["data"]["values"]] == [
        ("load", 20), ("compute", 25),
    ]  # fmt: skip


def test_more_series_than_colours_are_drawn() -> None:
    rows = tuple({"system": f"s{i}", "batch": b, "tpot": 1.0} for i in range(23) for b in (1, 2))
    one = exhibit("lines", x=Axis(field="batch", title="batch"), series="system", facet=None,
                  rows=rows, paper_rows=())  # fmt: skip
    scale = layers(one)[0]["encoding"]["color"]["scale"]
    assert len(scale["domain"]) == len(scale["range"]) == 23


def named(*systems: object, form: str = "lines") -> Any:
    """The horizontal axis of an exhibit with these systems."""
    rows = tuple({"system": one, "batch": 1, "tpot": 1.0} for one in systems)
    one = exhibit(form, rows=rows, paper_rows=(), facet=None)
    return layers(one)[0]["encoding"]["x"]


def test_long_names_are_turned_and_short_ones_and_numbers_are_not() -> None:
    assert named("smoe", "accelerate")["axis"]["labelAngle"] < 0
    assert named("sevenlt")["axis"]["labelAngle"] < 0
    assert named("sixlet", "fate")["axis"]["labelAngle"] == 0
    assert named(1234567, 1, form="bars")["axis"]["labelAngle"] == 0


def test_names_keep_their_order_and_numbers_are_sorted() -> None:
    names = named("smoe", "daop", "smoe")
    assert (names["type"], names["sort"]) == ("nominal", ["smoe", "daop"])
    numbers = named(8, 1, 3, form="bars")
    assert (numbers["type"], numbers["sort"]) == ("ordinal", [1, 3, 8])
    # Numbers grow upwards, and names are read downwards.
    y = layers(HEAT)[0]["encoding"]["y"]
    assert (y["sort"], "labelAngle" in y["axis"]) == ([3], False)
    rows = tuple({"token": 0, "expert": e, "age": 1, "evicted": ""} for e in (1, 5, 3))
    many = exhibit("heat", x=HEAT.x, y=HEAT.y, colour=HEAT.colour, series=None, facet=None,
                   rows=rows, paper_rows=())  # fmt: skip
    assert layers(many)[0]["encoding"]["y"]["sort"] == [5, 3, 1]
    assert len(layers(many)) == 1, "without a series nothing is marked"


def test_an_axis_of_names_that_only_some_rows_have_is_categorical() -> None:
    batch = Axis(field="batch", title="batch")
    encoding = layers(exhibit("lines", x=batch, facet=None))[0]["encoding"]
    assert encoding["x"]["type"] == "quantitative"
    assert encoding["x"]["scale"] == {"zero": False}
    mixed = (*ROWS, {"system": "smoe", "batch": "all", "setting": "S1", "tpot": 1.0})
    x = layers(exhibit("lines", x=batch, rows=mixed, facet=None))[0]["encoding"]["x"]
    assert x["type"] == "nominal"
    # The paper's rows count too: here one of them has a name.
    stated = ({"system": "smoe", "batch": "all", "setting": "S1", "tpot": 45.0},)
    x = layers(exhibit("lines", x=batch, paper_rows=stated, facet=None))[0]["encoding"]["x"]
    assert x["type"] == "nominal"


def test_the_values_axis_has_the_badge_and_a_logarithm_if_asked() -> None:
    y = layers(exhibit("points", facet=None))[0]["encoding"]["y"]
    assert y["axis"]["title"] == "TPOT (ms, estimate)"
    assert "scale" not in y
    assert layers(exhibit("points", y=LOG, facet=None))[0]["encoding"]["y"]["scale"] == {
        "type": "log"
    }
    plain = Axis(field="tpot", title="speedup", unit="1")
    y = layers(exhibit("points", y=plain, badge="", facet=None))[0]["encoding"]["y"]
    assert y["axis"]["title"] == "speedup"


def test_a_tooltip_formats_columns_whose_values_are_all_numbers() -> None:
    tooltip = layers(exhibit("bars", facet=None))[0]["encoding"]["tooltip"]
    assert [(one["field"], one["title"], one.get("format")) for one in tooltip] == [
        ("batch", "batch", ".4~g"), ("system", "system", None), ("tpot", "TPOT (ms)", ".4~g")
    ]  # fmt: skip
    rows = (*ROWS, {"system": "x", "batch": 1, "tpot": None})
    tooltip = layers(exhibit("bars", rows=rows, facet=None))[0]["encoding"]["tooltip"]
    assert "format" not in tooltip[-1]


def test_series_have_shapes_in_turn_and_share_the_colours_legend() -> None:
    rows = tuple({"system": f"s{i}", "batch": 1, "tpot": 1.0} for i in range(9))
    one = exhibit("points", x=Axis(field="batch", title="batch"), series="system", facet=None,
                  rows=rows, paper_rows=())  # fmt: skip
    encoding = layers(one)[0]["encoding"]
    shape, colour = encoding["shape"], encoding["color"]
    names = [f"s{i}" for i in range(9)]
    assert shape["scale"]["domain"] == colour["scale"]["domain"] == names
    assert shape["sort"] == colour["sort"] == names
    shapes = shape["scale"]["range"]
    assert len(set(shapes[:7])) == 7
    assert shapes[7:] == shapes[:2]
    assert shape["legend"] == colour["legend"]


def test_marks_of_a_heat_map_are_the_rows_with_a_name_in_their_series() -> None:
    rect, marks, stated = layers(HEAT)
    assert [one["mark"]["type"] for one in (rect, marks, stated)] == ["rect", "point", "text"]
    assert marks["transform"] == [{"filter": "datum['evicted']"}]
    assert marks["encoding"]["shape"]["scale"] == {"domain": ["lru"], "range": ["cross"]}
    colour = rect["encoding"]["color"]
    assert (colour["field"], colour["scale"]) == ("age", {"scheme": "blues"})
    assert colour["legend"]["title"] == "age (tokens, estimate)"
    assert stated["data"]["values"] == [*HEAT.paper_rows]
    assert stated["encoding"]["text"]["field"] == "age"
    assert stated["encoding"]["x"]["field"] == "token"
    log = Axis(field="age", title="age", log=True)
    scale = layers(HEAT.model_copy(update={"colour": log}))[0]["encoding"]["color"]["scale"]
    assert scale["type"] == "log"


def test_a_bar_of_a_timeline_goes_from_its_start_to_its_end() -> None:
    (bars,) = layers(TIMELINE)
    encoding = bars["encoding"]
    assert (encoding["x"]["field"], encoding["x2"]["field"]) == ("start", "end")
    assert encoding["x"]["title"] == "time (µs, estimate)"
    assert encoding["x"]["scale"] == {"nice": False}
    assert encoding["y"]["field"] == "lane"
    assert encoding["y"]["axis"]["title"] is None
    assert encoding["color"]["field"] == "kind"
    # Operations have the colours that they have in every chart, and the paper's rows are not drawn.
    assert encoding["color"]["scale"]["range"] == ["#b5452c", "#2a9d74"]
    assert "title" not in drawn(TIMELINE.model_copy(update={"paper_rows": TIMELINE.rows}))


def test_only_bars_beside_each_other_move_the_papers_values_beside_them() -> None:
    def stated(form: str, **of: Any) -> Any:
        return layers(exhibit(form, facet=None, **of))[-1]["encoding"]

    assert stated("bars")["xOffset"]["field"] == "batch"
    assert stated("bars")["xOffset"]["scale"]["domain"] == [1, 3]
    assert "xOffset" not in stated("bars", series=None)
    assert "xOffset" not in stated("lines")
    assert stated("lines")["color"]["field"] == "batch"
    assert "color" not in stated("stacked")
    assert stated("lines")["color"]["legend"] == {"title": None, "orient": "top", "columns": 4}
    assert "color" not in stated("lines", series=None)


def test_parts_are_stacked_from_zero_in_the_order_of_the_rows() -> None:
    (bars, _) = layers(exhibit("stacked", facet=None))
    assert bars["encoding"]["y"]["stack"] == "zero"
    assert bars["encoding"]["order"] == {"field": "_order", "type": "quantitative"}
    values = drawn(exhibit("stacked", facet=None))["data"]["values"]
    assert [row["_order"] for row in values] == [0, 1, 0, 1]
    assert "_order" not in drawn(exhibit("bars", facet=None))["data"]["values"][0]


def test_panels_share_the_axes_that_make_them_comparable() -> None:
    for form, own in (("bars", {"y"}), ("stacked", {"y"}), ("lines", {"x", "y"}),
                      ("points", {"x", "y"})):  # fmt: skip
        found = drawn(exhibit(form))
        assert found["resolve"]["scale"] == dict.fromkeys(own, "independent")
        assert found["columns"] == 2
        assert "autosize" not in found["config"]
        assert (found["spec"]["width"], found["spec"]["height"]) == (260, 190)
        assert found["facet"]["title"] is None
    two = tuple(row | {"panel": at} for at, row in enumerate(TIMELINE.rows))
    lanes = TIMELINE.model_copy(update={"rows": two, "facet": "panel"})
    assert drawn(lanes)["resolve"]["scale"] == {}


def test_two_names_of_a_facet_are_two_panels() -> None:
    assert "facet" in drawn(exhibit("lines", rows=ROWS, paper_rows=()))
    # A panel that only the paper's rows have counts.
    same = tuple(row | {"setting": "S3"} for row in ROWS)
    assert drawn(exhibit("lines", rows=same))["facet"]["sort"] == ["S3", "S1"]


# ----------------------------------------------------------------------------- rows of text


def test_rows_of_text_have_the_papers_values_beside_ours() -> None:
    one = exhibit("bars", paper_rows=(*STATED, STATED[0] | {"setting": "S2", "tpot": 50}))
    assert exhibits.headers(one) == ["setting", "batch", "system", "TPOT (ms)", "paper"]
    assert exhibits.lines(one) == [
        ["S1", "1", "smoe", "60", "45"],
        ["S1", "3", "smoe", "80", "–"],
        ["S3", "1", "deepspeed", "12,346", "–"],
        ["S3", "3", "deepspeed", "900", "–"],
        ["S2", "1", "smoe", "–", "50"],
    ]


def test_rows_of_other_forms() -> None:
    assert exhibits.headers(TABLE) == ["system", "TPOT (ms)", "paper (ms)"]
    assert exhibits.lines(TABLE) == [["smoe", "60.25", "45"], ["daop", "100", "–"]]
    assert exhibits.headers(TIMELINE) == ["kind", "time (µs)", "lane", "end (µs)"]
    assert exhibits.lines(TIMELINE)[0] == ["read", "0.5", "disk", "9.25"]
    assert exhibits.headers(HEAT) == ["evicted", "token", "expert", "age (tokens)", "paper"]
    assert exhibits.lines(HEAT)[1] == ["lru", "1", "3", "1", "–"]


@pytest.mark.parametrize("one", [*DRAWN, TABLE], ids=ids)
def test_every_row_has_a_cell_for_each_header(one: Exhibit) -> None:
    assert {len(line) for line in exhibits.lines(one)} == {len(exhibits.headers(one))}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (3, "3"), (123456, "123456"), ("smoe", "smoe"), (0.12345, "0.1235"),
        (9999.4, "9999"), (10000.0, "10,000"), (-12345.6, "-12,346"), (1e9, "1e+09"),
        (999_999_999.0, "999,999,999"),
    ],
)  # fmt: skip
def test_numbers_of_cells_are_written_with_four_digits_or_with_all_before_the_point(
    value: object, text: str
) -> None:
    one = TABLE.model_copy(update={"rows": ({"system": "a", "tpot": value, "stated": 1},)})
    assert exhibits.lines(one)[0][1] == text


def test_bars_without_a_series_have_one_colour() -> None:
    (bars,) = layers(exhibit("bars", series=None, facet=None, paper_rows=()))
    assert bars["encoding"]["color"] == {"value": PALETTE[0]}
    assert "xOffset" not in bars["encoding"]
    (bars,) = layers(exhibit("bars", facet=None, paper_rows=()))
    assert bars["encoding"]["color"]["field"] == bars["encoding"]["xOffset"]["field"] == "batch"


def test_a_line_has_points_of_its_own_colour() -> None:
    line, points, _ = layers(exhibit("lines", facet=None))
    assert (line["mark"]["type"], points["mark"]["type"]) == ("line", "point")
    assert line["encoding"]["color"] == points["encoding"]["color"]
    assert 0 < line["mark"]["opacity"] <= 1
    assert points["mark"]["filled"] is True
    plain, dots, _ = layers(exhibit("lines", series=None, facet=None))
    for layer in (plain, dots):
        assert "color" not in layer["encoding"]
        assert "shape" not in layer["encoding"]

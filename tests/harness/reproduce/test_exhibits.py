"""Tables, figures and timelines as data."""

from typing import Any

from moebench.harness.reproduce import exhibits
from moebench.harness.reproduce.exhibits import axis, figure, heat_rows, table, timeline
from moebench.results.claims import Axis, Exhibit

ROWS: list[dict[str, Any]] = [{"model": "a", "ms": 1.0}, {"model": "b", "ms": 2.0}]


def test_an_axis_is_named_after_its_field_unless_it_has_a_title() -> None:
    assert axis("model") == exhibits.MODEL == Axis(field="model", title="model", unit="", log=False)
    assert axis("ms", "time", "ms", log=True) == Axis(field="ms", title="time", unit="ms", log=True)
    assert (exhibits.SYSTEM.field, exhibits.SETTING.field) == ("system", "setting")


def test_a_table_has_columns_and_the_papers_rows() -> None:
    found = table("t-1", "Table I", "a title", iter([axis("model")]), iter(ROWS), iter(ROWS[:1]),
                  "estimate", "a note")  # fmt: skip
    assert found == Exhibit(
        id="t-1", place="Table I", title="a title", form="table", columns=(axis("model"),),
        rows=tuple(ROWS), paper_rows=(ROWS[0],), badge="estimate", note="a note",
    )  # fmt: skip
    plain = table("t-1", "Table I", "a title", [], [])
    assert (plain.badge, plain.note, plain.paper_rows, plain.columns) == ("counted", "", (), ())


def test_a_figure_has_two_axes() -> None:
    axes = axis("model"), axis("ms", "time", "ms")
    found = figure("f-1", "Fig. 1", "a title", "bars", axes, iter(ROWS), "estimate",
                   paper=iter(ROWS[1:]), series="model", facet="of", note="n")  # fmt: skip
    assert found == Exhibit(
        id="f-1", place="Fig. 1", title="a title", form="bars", x=axes[0], y=axes[1],
        rows=tuple(ROWS), paper_rows=(ROWS[1],), badge="estimate", series="model", facet="of",
        note="n",
    )  # fmt: skip
    plain = figure("f-1", "Fig. 1", "a title", "lines", axes, ROWS)
    assert (plain.badge, plain.paper_rows, plain.form) == ("counted", (), "lines")


def test_a_timeline_has_lanes_over_time() -> None:
    found = timeline("t-2", "Fig. 2", "a title", ROWS, "estimate", "a note")
    assert (found.form, found.series, found.facet) == ("timeline", "kind", "panel")
    assert found.x == Axis(field="start", title="time", unit="µs")
    assert found.y == Axis(field="lane", title="")
    assert (found.rows, found.badge, found.note) == (tuple(ROWS), "estimate", "a note")
    assert timeline("t-2", "", "", ROWS, "estimate", "", facet=None).facet is None


def test_a_heat_map_has_a_row_for_each_cell_in_percent() -> None:
    assert heat_rows([[0.5, 0.12347], [0, 1]], "layer", "expert") == [
        {"layer": 0, "expert": 0, "share": 50.0}, {"layer": 0, "expert": 1, "share": 12.35},
        {"layer": 1, "expert": 0, "share": 0.0}, {"layer": 1, "expert": 1, "share": 100.0},
    ]  # fmt: skip

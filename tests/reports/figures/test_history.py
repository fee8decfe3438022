"""The chart of a figure over commits: its rows by hand, and the marks of its kinds."""

from moebench.reports.compare.history import Change, Commit, History, Row
from moebench.reports.figures.history import KINDS, history_chart
from moebench.results.intervals import Interval
from moebench.results.metrics import metric_of
from tests.reports.compare.test_history import made, only
from tests.reports.figures.specs import fields, layers, shown


def of_shares(*rows: Row) -> History:
    """A history of the hit ratio, whose stored values are from 0 to 1."""
    tpot = only(made(0), made(1, 60.0))
    commits = [Commit("ab" * 20, 0, "First"), Commit("cd" * 20, 1, "Second")]
    return tpot._replace(metric=metric_of("hit_ratio"), commits=commits, rows=rows)


def row(at: int, value: float, interval: Interval | None, change: Change | None = None) -> Row:
    return Row(at, True, {}, {}, {}, value, interval, change)


def test_rows_have_displayed_values_and_the_ends_of_their_interval() -> None:
    step = Change(0, 0.25, None, True, {}, True)
    found = of_shares(row(0, 0.5, Interval(0.25, 0.75)), row(1, 0.75, None, step))
    first, second = history_chart(found)[1]
    assert (first["value"], first["low"], first["high"]) == (50.0, 25.0, 75.0)
    assert second["value"] == 75.0
    assert "low" not in second
    assert "high" not in second
    assert [first["rank"], second["rank"]] == [0, 1]
    assert [first["version"], second["version"]] == ["abababab" + "ab", "cdcdcdcd" + "cd"]
    assert [first["subject"], second["subject"]] == ["First", "Second"]
    assert first["verdict"] == "first"
    assert second["verdict"] == "step: better"


def test_a_row_is_a_step_or_under_other_conditions_or_neither() -> None:
    changes = [
        None,
        Change(0, 1.0, None, False, {}, None),
        Change(0, 2.0, None, True, {}, False),
        Change(0, 2.0, None, True, {"seed": ("0", "1")}, False),
        Change(0, 1.0, None, False, {"seed": ("0", "1")}, None),
    ]
    _, rows = history_chart(of_shares(*(row(1, 0.5, None, change) for change in changes)))
    assert [one["kind"] for one in rows] == [
        "no step", "no step", "step", "other conditions", "other conditions"
    ]  # fmt: skip
    short = "cd" * 5
    assert [one["version"] for one in rows] == [
        short, f"{short} (2)", f"{short} (3)", f"{short} (4)", f"{short} (5)"
    ]  # fmt: skip


def test_axes_and_tooltip_name_the_figure() -> None:
    spec, _ = history_chart(of_shares(row(0, 0.5, None)))
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert (x["field"], x["type"], x["axis"]["title"]) == ("version", "nominal", "commit")
    assert x["axis"]["grid"] is False
    assert (y["field"], y["axis"]["title"]) == ("value", "hit ratio, complete (%)")
    assert y["scale"] == {"zero": False}
    assert shown(spec) == [
        ("version", "commit", None), ("subject", "subject", None),
        # The value is in percent already: 50.0, not 5000 %.
        ("value", "hit ratio, complete (%)", ".1~f"),
        ("verdict", "verdict", None), ("badge", "badge", None),
    ]  # fmt: skip
    assert spec["usermeta"] == {"sort": {"x": "version"}}
    assert fields(spec) == {
        "version", "value", "subject", "verdict", "badge", "low", "high", "kind"
    }  # fmt: skip


def test_kinds_differ_in_colour_and_shape() -> None:
    spec, _ = history_chart(of_shares(row(0, 0.5, None)))
    (points,) = layers(spec, "point")
    colour, shape = points["encoding"]["color"], points["encoding"]["shape"]
    assert colour["field"] == shape["field"] == "kind"
    assert dict(zip(colour["scale"]["domain"], colour["scale"]["range"], strict=True)) == KINDS
    assert shape["scale"]["domain"] == [*KINDS]
    assert len(set(shape["scale"]["range"])) == len(set(KINDS.values())) == len(KINDS) == 3
    # Legends with equal domains and titles are one.
    assert colour["legend"] == shape["legend"] == {"title": None, "orient": "top"}
    (rule,) = layers(spec, "rule")
    assert (rule["encoding"]["y"]["field"], rule["encoding"]["y2"]["field"]) == ("low", "high")
    assert [one["mark"]["type"] for one in spec["layer"]] == ["line", "rule", "point"]

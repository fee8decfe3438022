"""The chart of one token's operations: bars from start to end, and a colour for each kind."""

from moebench.reports.figures.timeline import KIND_COLOURS, LANES, timeline
from moebench.substrate.machines.protocol import Lane, OpKind
from tests.reports.figures.specs import shown


def test_a_bar_goes_from_its_start_to_its_end_in_the_row_of_its_lane() -> None:
    spec = timeline()
    encoding = spec["encoding"]
    assert (encoding["x"]["field"], encoding["x2"]["field"]) == ("start", "end")
    assert (encoding["x"]["type"], encoding["x"]["scale"]) == ("quantitative", {"nice": False})
    assert (encoding["y"]["field"], encoding["color"]["field"]) == ("row", "kind")
    assert encoding["y"]["axis"]["title"] is None
    assert spec["mark"]["type"] == "bar"
    assert spec["mark"]["clip"] is True, "bars end at the chart's edge when it is moved"
    assert 0.5 < spec["mark"]["height"]["band"] < 1


def test_microseconds_are_shown_as_milliseconds() -> None:
    axis = timeline()["encoding"]["x"]["axis"]
    assert (axis["grid"], timeline()["encoding"]["y"]["axis"]["grid"]) == (False, False)
    assert axis["title"] == "time since the token began (ms)"
    assert axis["labelExpr"] == "format(datum.value / 1000, '~g')"
    assert shown(timeline()) == [
        ("kind", "kind", None), ("layer", "layer", None), ("experts", "experts", None),
        ("us", "duration (µs)", ",.1f"), ("start", "start (µs)", ",.1f"),
    ]  # fmt: skip


def test_it_moves_along_time_and_zooms_only_with_the_control_key() -> None:
    (pan,) = timeline()["params"]
    assert pan["bind"] == "scales"
    assert pan["select"]["encodings"] == ["x"]
    assert pan["select"]["zoom"] == "wheel![event.ctrlKey]"


def test_every_kind_of_operation_and_every_lane_is_known() -> None:
    assert set(KIND_COLOURS) == {kind.value for kind in OpKind}
    assert len(set(KIND_COLOURS.values())) == len(KIND_COLOURS)
    assert sorted(LANES) == sorted(lane.value for lane in Lane)
    meta = timeline()["usermeta"]
    assert meta["colours"]["field"] == "kind"
    assert meta["colours"]["known"] == KIND_COLOURS
    assert meta["sort"] == {"y": "row"}

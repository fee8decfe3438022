"""The chart of the distribution of throughput: steps from zero, named fields, and grey lines."""

from moebench.reports.figures.style import REST
from moebench.reports.figures.throughput import DASHES, throughput
from tests.reports.figures.specs import channels, fields, filters, layers, shown

ROW = {"system", "line", "run", "workload", "badge", "speed", "portion"}


def test_every_line_is_a_step_after_its_point() -> None:
    """A share of tokens holds from its speed on until the next one."""
    lines = layers(throughput({}), "line")
    assert len(lines) == 3  # the others', the leaders' and the one under the pointer
    assert {layer["mark"]["interpolate"] for layer in lines} == {"step-after"}


def test_axes_begin_at_zero_and_shares_end_at_all_tokens() -> None:
    encoding = throughput({})["encoding"]
    assert (encoding["x"]["field"], encoding["x"]["scale"]) == ("speed", {"zero": True})
    assert (encoding["y"]["field"], encoding["y"]["scale"]) == ("portion", {"domain": [0, 1]})
    assert encoding["y"]["axis"]["format"] == "~%"
    assert "%" in encoding["y"]["axis"]["title"]
    assert encoding["x"]["axis"]["title"] == "decode throughput (tokens/s)"
    assert encoding["order"] == {"field": "portion"}
    assert encoding["detail"] == {"field": "run"}


def test_it_names_fields_of_its_rows_alone() -> None:
    spec = throughput({})
    assert fields(spec) == ROW
    assert shown(spec) == [
        ("system", "system", None), ("run", "run", None), ("badge", "badge", None),
        ("speed", "tokens/s, at most", ".4"), ("portion", "share of tokens", ".0%"),
    ]  # fmt: skip


def test_lines_have_the_workloads_dashes_whether_they_lead_or_not() -> None:
    assert DASHES[0][1] == 0, "the first is drawn through"
    assert len({tuple(one) for one in DASHES}) == len(DASHES) == 4
    for layer in layers(throughput({}), "line"):
        dash = layer["encoding"]["strokeDash"]
        assert (dash["field"], dash["scale"]["range"], dash["legend"]) == ("workload", DASHES, None)


def test_lines_that_do_not_lead_are_grey_and_thinner() -> None:
    spec = throughput({"smoe": "#123456"})
    rest, leading = layers(spec, "line")[:2]
    assert (rest["name"], filters(rest)) == ("rest", ["!datum.leads"])
    assert filters(leading) == ["datum.leads"]
    assert rest["encoding"]["color"] == {"value": f"var({REST})"}
    assert "color" not in leading["encoding"]
    assert rest["mark"]["strokeWidth"] < leading["mark"]["strokeWidth"]


def test_leaders_are_the_lines_with_the_highest_mean_speed() -> None:
    meta = throughput({"smoe": "#123456"})["usermeta"]
    assert meta["colours"]["field"] == "line"
    assert meta["colours"]["known"] == {"smoe": "#123456"}
    leaders = meta["leaders"]
    assert (leaders["field"], leaders["value"], leaders["better"]) == ("line", "speed", "more")
    assert leaders["over"] is None
    assert meta["log"] == {"x": ["speed"]}


def test_the_legend_is_above_the_chart_and_without_a_title() -> None:
    legends = [one["legend"] for name, one in channels(throughput({})) if name == "color"
               and "legend" in one]  # fmt: skip
    assert legends
    assert all((one["title"], one["orient"]) == (None, "top") for one in legends)

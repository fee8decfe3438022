"""Throughput over the batch: exponents, crossings and the caption by hand, and the chart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.reports.figures.batches import over_batches
from moebench.reports.page import sections
from moebench.reports.sections import batches

TIMES = {
    "m, x": {"static": {1: 10.0, 8: 40.0, 64: 320.0}, "stream": {1: 100.0, 8: 100.0, 64: 160.0}},
    "n, x": {"static": {1: 10.0, 8: 20.0}, "stream": {1: 30.0}},
}


def test_speed_is_the_batch_over_a_tokens_time():
    assert batches.speeds({1: 10.0, 8: 40.0}) == {1: 100.0, 8: 200.0}


def test_exponents_are_slopes_between_neighbouring_batches():
    # 10 to 40 ms over 8 times the batch: log 4 / log 8; 40 to 320 ms: 1.
    found = batches.exponents(TIMES["m, x"]["static"])
    assert found == {(1, 8): pytest.approx(2 / 3), (8, 64): pytest.approx(1)}
    assert batches.exponents({4: 10.0}) == {}


@given(st.floats(0.1, 10), st.floats(-0.5, 1.5))
def test_a_power_law_has_its_exponent(scale, exponent):
    times = {n: scale * n**exponent for n in (1, 8, 36, 1024)}
    assert list(batches.exponents(times).values()) == pytest.approx([exponent] * 3)


def test_the_order_changes_where_another_system_passes():
    # At 8: 200 against 80 tokens/s; at 64: 200 against 400.
    made = {name: batches.speeds(of) for name, of in TIMES["m, x"].items()}
    assert batches.crossings(made) == [(64, "stream", "static")]
    assert batches.crossings(dict(reversed(made.items()))) == [(64, "stream", "static")]
    assert batches.order(TIMES["m, x"]) == "Order: at 64 stream passes static."
    three = {**TIMES["m, x"], "third": {8: 90.0, 64: 200.0}}
    assert batches.order(three) == (
        "Order: at 64 stream and third pass static; at 64 stream passes third."
    )
    assert batches.order(TIMES["n, x"]) == "Order: it never changes."


def test_the_table_has_every_batch():
    assert batches.headers(TIMES["m, x"]) == ["system", "1", "8", "64", "largest exponent of TPOT"]
    assert batches.lines(TIMES["m, x"]) == [
        ["static", "100", "200", "200", "1.00"],
        ["stream", "10", "80", "400", "0.23"],
    ]
    assert batches.lines(TIMES["n, x"])[1] == ["stream", "33.3", "", ""]


def test_a_chart_needs_two_systems_and_three_batches():
    assert batches.drawn(TIMES).keys() == {"m, x"}
    assert not batches.drawn({"m, x": {"static": TIMES["m, x"]["static"]}})


def run(system, batch, tpot, machine="m"):
    spec = {"system": system, "machine": machine, "model": "x", "batch": batch}
    return {"spec": spec, "metrics": {"tpot_ms": {"mean": tpot}}}


def test_runs_are_ordered_by_machine_system_and_batch():
    runs = [run("a", 8, 2.0), run("a", 1, 1.0), run("b", 1, 3.0, "n"), run("c", 1, None)]
    assert batches.times_of(runs) == {"m, x": {"a": {1: 1.0, 8: 2.0}}, "n, x": {"b": {1: 3.0}}}


def test_the_page_has_a_chart_and_a_table_for_each_machine():
    runs = [run(name, n, ms) for name, of in TIMES["m, x"].items() for n, ms in of.items()]
    (one,) = sections.batches([*runs, run("static", 1, 10.0, "n")])
    assert (one["id"], one["title"]) == ("batches-1", "m, x")
    assert {"system": "stream", "batch": 64, "speed": 400.0} in one["rows"]
    assert len(one["rows"]) == 6
    assert one["spec"]["encoding"]["x"]["scale"]["type"] == "log"
    assert one["part"].rows == batches.lines(TIMES["m, x"])


def test_the_chart_shows_its_systems(tmp_path):
    from moebench.reports.formats.svg import write_svg
    from moebench.reports.page.static_figures import StaticFigure

    file = tmp_path / "batches.svg"
    spec = over_batches({"static": "#0072b2", "stream": "#d55e00"})
    write_svg(StaticFigure("m, x", spec, batches.rows(TIMES["m, x"]), {}), file)
    drawn = file.read_text("utf-8")
    for word in ("decoded tokens/s", "batch (sequences decoded together)", "stream", "static"):
        assert word in drawn


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        # Differences before and at the second batch, in tokens/s.
        ((10.0, 10.5), (10.5, 10.0), [(8, "one", "other")]),
        ((10.5, 10.0), (10.0, 10.5), [(8, "other", "one")]),
        ((10.0, 10.5), (10.0, 10.0), [(8, "one", "other")]),
        ((10.0, 10.0), (10.0, 10.5), [(8, "other", "one")]),
        ((10.0, 10.0), (10.5, 10.0), []),
        ((10.5, 10.0), (10.0, 10.0), []),
        ((10.0, 10.0), (10.0, 10.0), []),
        ((11.0, 10.5), (10.0, 10.0), []),
    ],
)
def test_equal_speeds_are_passed_when_they_differ(one, other, found):
    speeds = {name: dict(zip((1, 8), of, strict=True)) for name, of in
              (("one", one), ("other", other))}  # fmt: skip
    assert batches.crossings(speeds) == found


def test_only_batches_that_both_systems_have_count():
    speeds = {"a": {1: 10.0, 4: 30.0, 8: 10.0}, "b": {1: 20.0, 2: 1.0, 8: 20.0}}
    assert batches.crossings(speeds) == []

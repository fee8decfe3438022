"""Throughput over the batch: exponents, crossings and the caption by hand, and the chart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.reports import batches

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
    assert batches.caption(TIMES) == (
        "Decoded tokens/s; both axes are logarithmic. m, x: at 64 stream passes static. "
        "n, x: the order never changes."
    )


def test_the_table_has_every_batch():
    first, second = batches.table(TIMES).split("### n, x")
    assert "| static | 100 | 200 | 200 | 1.00 |" in first
    assert "| stream | 10 | 80 | 400 | 0.23 |" in first
    assert "| stream | 33.3 |  |  |" in second


def run(system, batch, tpot, machine="m"):
    spec = {"system": system, "machine": machine, "model": "x", "batch": batch}
    return {"spec": spec, "metrics": {"tpot_ms": {"mean": tpot}}}


def test_runs_are_ordered_by_machine_system_and_batch():
    runs = [run("a", 8, 2.0), run("a", 1, 1.0), run("b", 1, 3.0, "n"), run("c", 1, None)]
    assert batches.times_of(runs) == {"m, x": {"a": {1: 1.0, 8: 2.0}}, "n, x": {"b": {1: 3.0}}}


def test_the_chart_has_a_panel_for_each_machine(tmp_path):
    from moebench.reports.formats.svg import write_svg

    file = tmp_path / "batches.svg"
    write_svg(batches.figure(TIMES), file)
    drawn = file.read_text("utf-8")
    for word in ("m, x", "n, x", "decoded tokens/s", "stream", "static"):
        assert word in drawn


def test_the_command_says_in_one_line_what_is_missing(tmp_path, capsys):
    for arguments, why in (
        ([], "expected two arguments"),
        ([str(tmp_path), str(tmp_path / "x.svg")], "moebench sweep throughput --store"),
    ):
        assert batches.main(arguments) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert why in said.err

"""The chart of the roofline model: lines with their corners, and labelled points."""

import pytest

from moebench.reports.figures.roofline import COLOURS, DEVICE, HOST, roofline, roofline_rows
from tests.reports.figures.specs import filters, layers


def test_lines_have_their_corner_and_points_their_label() -> None:
    rows = roofline_rows({DEVICE: (1e12, 1e14), HOST: (1e11, 1e12)}, [(HOST, "P1", 5.0, 5e11)])
    lines = [row for row in rows if "label" not in row]
    corner = {row["series"]: row["intensity"] for row in lines if row["intensity"] in (10, 100)}
    assert corner.keys() == {DEVICE, HOST}
    for row in lines:
        bandwidth, peak = (1, 100) if row["series"] == DEVICE else (0.1, 1)
        assert row["tflops"] == pytest.approx(min(peak, bandwidth * row["intensity"]))
    for series in (DEVICE, HOST):
        steps = [row["intensity"] for row in lines if row["series"] == series]
        assert steps == sorted(steps)
        assert (steps[0], steps[-1]) == (0.1, 10_000)
    assert rows[-1] == {"series": HOST, "label": "P1", "intensity": 5.0, "tflops": 0.5}


def test_a_point_that_a_logarithmic_axis_lacks_is_left_out() -> None:
    assert roofline_rows({}, [(HOST, "P1", 0.0, 0.0)]) == []


def test_every_roof_has_its_colour() -> None:
    spec = roofline()
    assert spec["usermeta"]["colours"]["known"] == COLOURS
    assert len(set(COLOURS.values())) == len(COLOURS) == 3


def test_a_roof_has_eight_points_in_each_of_five_decades_and_its_corner() -> None:
    (rows, outside) = (roofline_rows({HOST: (1e11, peak)}, []) for peak in (1.3e12, 1e9))
    assert len(rows) == 5 * 8 + 1 + 1
    assert len(outside) == 5 * 8 + 1  # a corner at 0.01 FLOP/B is not drawn
    for at_end in (1e11 * 10_000, 1e11 * 0.1):  # a corner at an end is a point already
        steps = [row["intensity"] for row in roofline_rows({HOST: (1e11, at_end)}, [])]
        assert len(steps) == 5 * 8 + 1
    assert [row["intensity"] for row in outside][8::8] == pytest.approx([1, 10, 100, 1e3, 1e4])


def test_both_axes_are_logarithmic_and_named() -> None:
    spec = roofline()
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    assert (x["field"], y["field"]) == ("intensity", "tflops")
    assert x["axis"]["title"] == "operational intensity (FLOP/B), logarithmic"
    assert y["axis"]["title"] == "performance (TFLOP/s), logarithmic"
    assert x["scale"] == y["scale"] == {"type": "log", "nice": False}
    assert x["axis"]["format"] == y["axis"]["format"] == "~g"
    assert spec["encoding"]["color"]["field"] == spec["usermeta"]["colours"]["field"] == "series"


def test_roofs_are_lines_and_operations_points_with_labels_on_either_side() -> None:
    (line,), (dots,), texts = (layers(roofline(), mark) for mark in ("line", "point", "text"))
    assert filters(line) == ["!isValid(datum.label)"]
    assert filters(dots) == ["isValid(datum.label)"]
    below, above = texts
    turning = "test(/^P[12]$/, datum.label)"
    assert filters(below) == [f"datum.label && !{turning}"]
    assert filters(above) == [turning]
    assert (below["mark"]["align"], above["mark"]["align"]) == ("left", "right")
    # Vega's dy grows downwards.
    assert below["mark"]["dx"] > 0 < below["mark"]["dy"]
    assert above["mark"]["dx"] < 0 > above["mark"]["dy"]
    for text in texts:
        assert text["encoding"]["text"]["field"] == "label"

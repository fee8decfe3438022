"""The chart of the roofline model: lines with their corners, and labelled points."""

import pytest

from moebench.reports.figures.roofline import COLOURS, DEVICE, HOST, roofline, roofline_rows


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

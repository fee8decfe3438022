"""Chart of the hierarchical roofline model: performance over operational intensity."""

from collections.abc import Mapping, Sequence
from typing import Any

from moebench.reports.figures.style import PALETTE, Spec, axis, coloured, finished

#: Roofs, and their colours.
DEVICE, LINK, HOST = "device, data in its memory", "device, data over the link", "host"
COLOURS = {DEVICE: PALETTE[2], LINK: PALETTE[3], HOST: PALETTE[0]}

#: Ends of the axis of intensities, in FLOP/B, and points per decade of a line.
ENDS, POINTS = (-1, 4), 8

#: Condition of points whose label is above the line: operations have theirs below it.
TURNING = "test(/^P[12]$/, datum.label)"


def roofline() -> Spec:
    """Return the chart of roofs as lines and of operations as points.

    Rows: ``series``, ``intensity`` (FLOP/B), ``tflops``; points also have a ``label``.
    """
    log: Mapping[str, Any] = {"type": "log", "nice": False}
    encoding = {
        "x": {"field": "intensity", "type": "quantitative", "scale": log,
              "axis": axis("operational intensity (FLOP/B), logarithmic", "~g")},
        "y": {"field": "tflops", "type": "quantitative", "scale": log,
              "axis": axis("performance (TFLOP/s), logarithmic", "~g")},
        "color": {"field": "series", "type": "nominal",
                  "legend": {"title": None, "orient": "top"}},
    }  # fmt: skip
    labelled = [{"filter": "isValid(datum.label)"}]
    text = {"type": "text", "fontSize": 11}
    words = {"text": {"field": "label", "type": "nominal"}, "color": {"value": "var(--ink)"}}
    spec = {
        "encoding": encoding,
        "layer": [
            {"transform": [{"filter": "!isValid(datum.label)"}],
             "mark": {"type": "line", "strokeWidth": 1.5}},
            {"transform": labelled, "mark": {"type": "point", "filled": True, "size": 60}},
            {"transform": [{"filter": f"datum.label && !{TURNING}"}], "encoding": words,
             "mark": text | {"align": "left", "dx": 7, "dy": 8}},
            {"transform": [{"filter": TURNING}], "encoding": words,
             "mark": text | {"align": "right", "dx": -7, "dy": -8}},
        ],
    }  # fmt: skip
    return finished(spec, 320, coloured("series", COLOURS))


def roofline_rows(
    roofs: Mapping[str, tuple[float, float]], points: Sequence[tuple[str, str, float, float]]
) -> list[dict[str, Any]]:
    """Return the rows of the chart.

    Args:
        roofs: by series, bandwidth in B/s and peak in FLOP/s.
        points: series, label, intensity in FLOP/B and performance in FLOP/s.
    """
    low, high = ENDS
    steps = range((high - low) * POINTS + 1)
    rows: list[dict[str, Any]] = []
    for series, (bandwidth, peak) in roofs.items():
        ridge = peak / bandwidth  # the corner is a point of the line
        drawn = [10 ** (low + step / POINTS) for step in steps]
        if drawn[0] < ridge < drawn[-1]:
            drawn = sorted([*drawn, ridge])
        rows += [
            {"series": series, "intensity": x, "tflops": min(peak, bandwidth * x) / 1e12}
            for x in drawn
        ]
    rows += [
        {"series": series, "label": label, "intensity": x, "tflops": y / 1e12}
        for series, label, x, y in points
        if x > 0
    ]
    return rows

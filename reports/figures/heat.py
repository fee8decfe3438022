"""The heat map: tables by systems, coloured by the ratio of TPOT to each table's best."""

from typing import Any

from moebench.reports.compare.tables import Matrix
from moebench.reports.figures.style import Spec, axis, finished

#: Light to dark, so that high ratios stand out; one hue, for colour-blind readers.
RAMP = ["#fffdf2", "#fff0b8", "#fedc84", "#feb54a", "#f98e25", "#e0640c", "#b54304", "#7d2c05"]

#: A ratio above this share of the scale is written in white.
_DARK = 0.6


def heat(beside: Matrix) -> tuple[Spec, list[dict[str, Any]]]:
    """Return the spec and its rows: ``table``, ``system``, ``ratio``, ``worst`` (scale's end)."""
    found = [ratio for ratios in beside.ratios for ratio in ratios if ratio is not None]
    worst = max(4.0, *found)
    rows = [
        {"table": title, "system": system, "ratio": ratio, "worst": worst}
        for title, ratios in zip(beside.titles, beside.ratios, strict=True)
        for system, ratio in zip(beside.systems, ratios, strict=True)
        if ratio is not None
    ]
    dark = f"log(datum.ratio) / log(datum.worst) > {_DARK}"
    spec = {
        "encoding": {
            "x": {"field": "system", "type": "nominal", "sort": list(beside.systems),
                  "axis": axis("TPOT relative to the fastest system", grid=False)
                  | {"orient": "top", "labelAngle": -45}},
            "y": {"field": "table", "type": "nominal", "sort": list(beside.titles),
                  "axis": axis(None, grid=False) | {"labelLimit": 320}},
        },
        "layer": [
            {"mark": {"type": "rect"},
             "encoding": {"color": {
                 "field": "ratio", "type": "quantitative",
                 "scale": {"type": "log", "domain": [1, worst], "range": RAMP, "clamp": True},
                 "legend": None}}},
            {"mark": {"type": "text", "fontSize": 11},
             "encoding": {"text": {"field": "ratio", "type": "quantitative", "format": ".3~r"},
                          "color": {"condition": {"test": dark, "value": "#ffffff"},
                                    "value": "#14181d"}}},
        ],
    }  # fmt: skip
    return finished(spec, {"step": 26}), rows

"""Cumulative distributions of decode throughput, a curve a run (DuoServe-MoE, Fig. 6)."""

from collections.abc import Mapping

from moebench.reports.figures.style import Spec, axis, coloured, finished, tooltip

#: One for each workload, in turn.
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]


def throughput(colours: Mapping[str, str]) -> Spec:
    """A curve a run.

    Rows: ``system``, ``line``, ``run``, ``workload``, ``badge``, ``speed`` (tokens/s), ``portion``
    (of tokens, 0 to 1).
    """
    legend = {"title": None, "orient": "top", "columns": 3, "symbolType": "stroke"}
    return finished(
        {
            # Invisible points carry the tooltip: a line has only one.
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5,
                     "point": "transparent"},
            "encoding": {
                # From zero: how many times faster one system is than another can be read off.
                "x": {"field": "speed", "type": "quantitative", "scale": {"zero": True},
                      "axis": axis("decode throughput (tokens/s)")},
                "y": {"field": "portion", "type": "quantitative", "scale": {"domain": [0, 1]},
                      "axis": axis("share of decoded tokens (%)", "~%")},
                # Points may have one speed; only the share gives them an order.
                "order": {"field": "portion"},
                "color": {"field": "line", "type": "nominal", "legend": legend},
                "strokeDash": {"field": "workload", "type": "nominal", "legend": None,
                               "scale": {"range": DASHES}},
                "detail": {"field": "run"},
                "tooltip": tooltip(("system", "system"), ("run", "run"), ("badge", "badge"),
                                   ("speed", "tokens/s, at most", ".4"),
                                   ("portion", "share of tokens", ".0%")),
            },
        },
        260,
        coloured("line", colours) | {"log": {"x": ["speed"]}},
    )  # fmt: skip

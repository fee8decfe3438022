"""Chart of the cumulative distribution of decode throughput over tokens (DuoServe-MoE, Fig. 6)."""

from collections.abc import Mapping

from moebench.reports.figures.style import Spec, axis, coloured, finished, tooltip

#: Dash patterns of the workloads, in turn.
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]


def throughput(colours: Mapping[str, str]) -> Spec:
    """Return the chart of decode throughput over tokens, a curve per run.

    Rows: ``system``, ``line``, ``run``, ``workload``, ``badge``, ``speed`` (tokens/s), ``portion``
    (of tokens, 0 to 1).
    """
    legend = {"title": None, "orient": "top", "columns": 3, "symbolType": "stroke"}
    return finished(
        {
            # Invisible points have the tooltips: a line has only one.
            "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5,
                     "point": "transparent"},
            "encoding": {
                # The axis starts at zero so that ratios of speeds can be read off.
                "x": {"field": "speed", "type": "quantitative", "scale": {"zero": True},
                      "axis": axis("decode throughput (tokens/s)")},
                "y": {"field": "portion", "type": "quantitative", "scale": {"domain": [0, 1]},
                      "axis": axis("share of decoded tokens (%)", "~%")},
                # Points may have equal speeds: order them by share.
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

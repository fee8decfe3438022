"""Chart of the cumulative distribution of decode throughput over tokens (DuoServe-MoE, Fig. 6)."""

from collections.abc import Mapping

from moebench.reports.figures import leaders
from moebench.reports.figures.style import REST, Spec, axis, coloured, finished, tooltip

#: Dash patterns of the workloads, in turn.
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]


def throughput(colours: Mapping[str, str]) -> Spec:
    """Return the chart of decode throughput over tokens, a curve per run.

    Rows: ``system``, ``line``, ``run``, ``workload``, ``badge``, ``speed`` (tokens/s), ``portion``
    (of tokens, 0 to 1).
    """
    legend = {"title": None, "orient": "top", "columns": 3, "symbolType": "stroke"}
    steps = {"type": "line", "interpolate": "step-after"}
    encoding = {
        # The axis starts at zero so that ratios of speeds can be read off.
        "x": {"field": "speed", "type": "quantitative", "scale": {"zero": True},
              "axis": axis("decode throughput (tokens/s)")},
        "y": {"field": "portion", "type": "quantitative", "scale": {"domain": [0, 1]},
              "axis": axis("share of decoded tokens (%)", "~%")},
        # Points may have equal speeds: order them by share.
        "order": {"field": "portion"},
        "color": {"field": "line", "type": "nominal", "legend": legend},
        "detail": {"field": "run"},
        "tooltip": tooltip(("system", "system"), ("run", "run"), ("badge", "badge"),
                           ("speed", "tokens/s, at most", ".4"),
                           ("portion", "share of tokens", ".0%")),
    }  # fmt: skip
    dashes = {"strokeDash": {"field": "workload", "type": "nominal", "legend": None,
                             "scale": {"range": DASHES}}}  # fmt: skip
    grey = {"color": {"value": f"var({REST})"}}
    return finished(
        {
            "encoding": encoding,
            "layer": [
                {"name": "rest", "transform": [{"filter": "!datum.leads"}],
                 "mark": steps | {"strokeWidth": 1},
                 "encoding": grey | dashes},
                {"transform": [{"filter": "datum.leads"}], "mark": steps | {"strokeWidth": 1.5},
                 "encoding": dashes},
                *leaders.pointed("line", encoding, dashes, interpolate="step-after"),
            ],
        },
        260,
        coloured("line", colours)
        | leaders.by("line", "speed", "more")
        | {"log": {"x": ["speed"]}},
    )  # fmt: skip

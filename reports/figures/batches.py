"""Chart of decoded tokens/s over the batch, on logarithmic axes."""

from collections.abc import Mapping

from moebench.reports.figures.style import Spec, axis, coloured, finished, tooltip


def over_batches(colours: Mapping[str, str]) -> Spec:
    """Return the chart of a machine.  Rows: ``system``, ``batch``, ``speed`` (tokens/s)."""
    log = {"type": "log", "nice": False}
    spec = {
        "mark": {"type": "line", "point": True, "strokeWidth": 1.5},
        "encoding": {
            "x": {"field": "batch", "type": "quantitative", "scale": log,
                  "axis": axis("batch (sequences decoded together)", "d")},
            "y": {"field": "speed", "type": "quantitative", "scale": log,
                  "axis": axis("decoded tokens/s", "~g")},
            "color": {"field": "system", "type": "nominal",
                      "legend": {"title": None, "orient": "top", "columns": 3}},
            "tooltip": tooltip(("system", "system"), ("batch", "batch", "d"),
                               ("speed", "tokens/s", ".4")),
        },
    }  # fmt: skip
    return finished(spec, 220, coloured("system", colours))

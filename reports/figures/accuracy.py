"""Charts of score, agreement and KL against α, from the accuracy table."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from moebench.reports.figures.style import PALETTE, SHAPES, Spec, axis, finished, tooltip, trimmed
from moebench.reports.sections.accuracy import Series
from moebench.results.metrics import metric_of

#: Figures that are drawn against α.
MEASURES = ("score", "agreement", "kl")


def curves(series: Iterable[Series], measure: str) -> tuple[Spec, list[dict[str, Any]]] | None:
    """Return the chart of one measure against α, a curve per workload; scores have standard errors.

    Args:
        series: workloads of one setting.
        measure: one of `MEASURES`.

    Returns:
        The spec and its rows; None where no cell has the measure.
    """
    values = [
        {
            "workload": name,
            "alpha": row.alpha,
            "value": getattr(row, measure),
            "low": row.score - row.stderr if measure == "score" else None,
            "high": row.score + row.stderr if measure == "score" else None,
            "n": row.n,
        }
        for name, one in _named(series)
        for row in one.rows
        if getattr(row, measure) is not None
    ]
    if not values:
        return None
    names = list(dict.fromkeys(value["workload"] for value in values))
    metric = metric_of(measure)
    title = metric.header + (", ± standard error" if measure == "score" else "")
    legend = {"title": None, "orient": "top", "columns": 3}
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(names))]
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(names))]
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.75}},
        {"mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
         "encoding": {"shape": {"field": "workload", "type": "nominal", "legend": legend,
                                "scale": {"domain": names, "range": shapes}}}},
    ]  # fmt: skip
    if measure == "score":
        layers.append({
            "mark": {"type": "rule", "opacity": 0.45},
            "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
        })  # fmt: skip
    spec = {
        "encoding": {
            "x": {"field": "alpha", "type": "quantitative", "axis": axis("α", "~g", grid=False)},
            "y": {"field": "value", "type": "quantitative",
                  "axis": axis(title, trimmed(metric.form)), "scale": {"zero": measure == "kl"}},
            "color": {"field": "workload", "type": "nominal", "legend": legend,
                      "scale": {"domain": names, "range": colours}},
            "tooltip": tooltip(("workload", "workload"), ("alpha", "α", "~g"),
                               ("value", metric.header, metric.form), ("n", "n", "d")),
        },
        "layer": layers,
    }  # fmt: skip
    return finished(spec, 220), values


def _named(series: Iterable[Series]) -> list[tuple[str, Series]]:
    """Return each curve with its workload's name, and its scoring if the workload has several."""
    ones = list(series)
    counts = Counter(one.workload for one in ones)
    return [
        (one.workload if counts[one.workload] == 1 else f"{one.workload} · {one.scoring}", one)
        for one in ones
    ]

"""Charts of score, agreement and KL against α, from the accuracy table."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from moebench.reports.figures import leaders
from moebench.reports.figures.style import (
    PALETTE,
    SHAPES,
    Spec,
    axis,
    coloured,
    finished,
    tooltip,
    trimmed,
)
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
            "value_low": row.score - row.stderr if measure == "score" else None,
            "value_high": row.score + row.stderr if measure == "score" else None,
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
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
    shapes = {name: SHAPES[i % len(SHAPES)] for i, name in enumerate(names)}
    interval = measure == "score"
    encoding = {
        "x": {"field": "alpha", "type": "quantitative", "axis": axis("α", "~g", grid=False)},
        "y": {"field": "value", "type": "quantitative", "axis": axis(title, trimmed(metric.form)),
              "scale": {"zero": measure == "kl"}},
        "color": {"field": "workload", "type": "nominal", "legend": legend},
        "tooltip": tooltip(("workload", "workload"), ("alpha", "α", "~g"),
                           ("value", metric.header, metric.form), ("n", "n", "d")),
    }  # fmt: skip
    spec = {
        "encoding": encoding,
        "layer": leaders.lines_of(encoding, interval="value" if interval else ""),
    }
    ranks = leaders.by(
        "workload", "value", metric.better or "more", "alpha", also=("value_low", "value_high")
    )
    return finished(spec, 220, coloured("workload", colours, shapes=shapes) | ranks), values


def _named(series: Iterable[Series]) -> list[tuple[str, Series]]:
    """Return each curve with its workload's name, and its scoring if the workload has several."""
    ones = list(series)
    counts = Counter(one.workload for one in ones)
    return [
        (one.workload if counts[one.workload] == 1 else f"{one.workload} · {one.scoring}", one)
        for one in ones
    ]

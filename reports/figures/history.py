"""The chart of a figure over commits, with intervals and steps."""

from moebench.reports.compare.history import History
from moebench.reports.figures.style import Spec, axis, finished, tooltip, trimmed
from moebench.reports.sections.history import verdict, version_of

#: Kinds of a row and their colours.
KINDS = {"step": "#d55e00", "other conditions": "#e69f00", "no step": "#0072b2"}


def history_chart(history: History) -> tuple[Spec, list[dict[str, object]]]:
    """Return the chart of a history and its rows, in the order of the commits."""
    metric, rows = history.metric, []
    names = [version_of(history, row) for row in history.rows]
    for at, row in enumerate(history.rows):
        change, kind = row.change, "no step"
        if change is not None and (change.step or change.conditions):
            kind = "step" if change.step else "other conditions"
        # Rows of one version under other conditions need separate places on the axis.
        again = names[:at].count(names[at])
        shown: dict[str, object] = {
            "version": names[at] + (f" ({again + 1})" if again else ""), "rank": at,
            "subject": history.commits[row.at].subject, "badge": row.badge,
            "value": row.value * metric.factor, "verdict": verdict(history, row),
            "kind": kind,
        }  # fmt: skip
        if row.interval is not None:
            shown |= {"low": row.interval.low * metric.factor,
                      "high": row.interval.high * metric.factor}  # fmt: skip
        rows.append(shown)
    value = {"field": "value", "type": "quantitative", "scale": {"zero": False},
             "axis": axis(metric.header)}  # fmt: skip
    spec = {
        "encoding": {
            "x": {"field": "version", "type": "nominal",
                  "axis": axis("commit", grid=False) | {"labelAngle": -40}},
            "y": value,
            "tooltip": tooltip(("version", "commit"), ("subject", "subject"),
                               ("value", metric.header, trimmed(metric.form).replace("%", "f")),
                               ("verdict", "verdict"), ("badge", "badge")),
        },
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.5, "color": "var(--muted)"}},
            {"mark": {"type": "rule", "opacity": 0.5},
             "encoding": {"y": {"field": "low", "type": "quantitative"},
                          "y2": {"field": "high"}}},
            {"mark": {"type": "point", "filled": True, "size": 75, "opacity": 1},
             "encoding": {
                 "color": {"field": "kind", "type": "nominal",
                           "scale": {"domain": [*KINDS], "range": [*KINDS.values()]},
                           "legend": {"title": None, "orient": "top"}},
                 "shape": {"field": "kind", "type": "nominal",
                           "scale": {"domain": [*KINDS],
                                     "range": ["diamond", "triangle-up", "circle"]},
                           "legend": {"title": None, "orient": "top"}}}},
        ],
    }  # fmt: skip
    return finished(spec, 240, {"sort": {"x": "version"}}), rows

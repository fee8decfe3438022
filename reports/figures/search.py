"""Charts of a search: its trials in their order, and its candidates by two figures."""

from moebench.reports.figures.style import Spec, axis, finished, tooltip

#: Kinds of trials and candidates, and their colours.
KINDS = {"published": "#0072b2", "composition": "#d55e00", "stopped early": "#adb5bd"}


def trials() -> Spec:
    """Return the chart of trials.

    Rows: ``trial``, ``ratio`` (of TPOT to the best published one), ``drawn`` (the same, up to a
    limit), ``kind``, ``best`` (so far), ``name``.
    """
    value = {"field": "drawn", "type": "quantitative", "scale": {"zero": False},
             "axis": axis("TPOT over the best published TPOT", "~g")}  # fmt: skip
    spec = {
        "encoding": {
            "x": {"field": "trial", "type": "quantitative", "axis": axis("trial", "d"),
                  "scale": {"nice": False}},
        },
        "layer": [
            {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5,
                      "color": "#d55e00"},
             "encoding": {"y": value | {"field": "best"}}},
            {"mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.9},
             "encoding": {"y": value, "color": _kinds(), "tooltip": tooltip(
                 ("name", "candidate"), ("ratio", "× best published", ".3f"), ("kind", "kind"))}},
        ],
    }  # fmt: skip
    return finished(spec, 240, {})


def candidates(across: str) -> Spec:
    """Return the chart of validated candidates: TPOT over KL, or over device memory.

    Rows: ``name``, ``tpot`` (ms), ``kl`` (nats a token), ``memory`` (GB), ``kind``.

    Args:
        across: ``kl`` or ``memory``.
    """
    title = {"kl": "KL (nats/token)", "memory": "peak device memory (GB)"}[across]
    spec = {
        "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
        "encoding": {
            "x": {"field": across, "type": "quantitative", "axis": axis(title, "~g"),
                  "scale": {"zero": False}},
            "y": {"field": "tpot", "type": "quantitative", "axis": axis("TPOT (ms)", "~g"),
                  "scale": {"zero": False}},
            "color": _kinds(),
            "tooltip": tooltip(("name", "candidate"), ("tpot", "TPOT (ms)", ".2f"),
                               (across, title, ".3g")),
        },
    }  # fmt: skip
    return finished(spec, 220, {})


def _kinds() -> dict[str, object]:
    return {
        "field": "kind", "type": "nominal",
        "scale": {"domain": [*KINDS], "range": [*KINDS.values()]},
        "legend": {"title": None, "orient": "top"},
    }  # fmt: skip

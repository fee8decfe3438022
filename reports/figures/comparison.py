"""Charts that compare systems; `reports.page.views` makes their rows."""

from collections.abc import Mapping

from moebench.reports.figures import leaders
from moebench.reports.figures.style import REST, Spec, axis, coloured, finished, tooltip, trimmed
from moebench.results.metrics import metric_of

#: Parts of a token's time and their colours: the device computes, or waits.
PARTS = {
    "device busy": "#0072b2",
    "waits for load": "#e69f00",
    "waits for host": "#009e73",
    "waits for disk": "#cc79a7",
    "waits for control": "#868e96",
}

_TPOT = "tpot_ms"
_WHO = [("system", "system"), ("table", "in"), ("badge", "badge")]

_TITLE = metric_of(_TPOT).header

#: Figures of accuracy that TPOT is drawn against.
TRADES = ("kl", "agreement", "score")


def _q(field: str, title: str | None, form: str | None = None, **scale: object) -> Spec:
    shown = axis(title, form) | {"labelOverlap": True}
    return {"field": field, "type": "quantitative", "axis": shown, "scale": scale}


def _legend(columns: int = 4) -> Spec:
    return {"title": None, "orient": "top", "columns": columns}


def trade(measure: str, colours: Mapping[str, str]) -> Spec:
    """Return the chart of TPOT against accuracy, a point per row; ``front`` marks the Pareto front.

    Args:
        measure: one of `TRADES`.
        colours: colour of each system.
    """
    metric, field = metric_of(measure), measure
    y = _q(field, metric.header, trimmed(metric.form), zero=False, padding=10)
    if measure == "kl":  # lossless systems have KL 0, which a logarithmic axis cannot show
        y["scale"] = {"type": "symlog", "constant": 1e-4, "domainMin": 0}
    front = [{"filter": "datum.front"}]
    leads, others = [{"filter": "datum.leads"}], [{"filter": "!datum.leads"}]
    grey = {"color": {"value": f"var({REST})"}, "detail": {"field": "line"}}
    shape = {"shape": {"field": "base", "type": "nominal", "legend": _legend()}}
    encoding = {
        "x": _q(_TPOT, f"{_TITLE}; left is faster", zero=False, padding=14),
        "y": y,
        "color": {"field": "base", "type": "nominal", "legend": _legend()},
        "tooltip": tooltip(
            *_WHO, (_TPOT, _TITLE, metric_of(_TPOT).form), (field, metric.header, metric.form)
        ),
    }
    joined = {"detail": {"field": "line"}, "order": {"field": "alpha"}}
    return finished(
        {
            "transform": [{"filter": f"isValid(datum.{_TPOT}) && isValid(datum.{measure})"}],
            "encoding": encoding,
            "layer": [
                {
                    "name": "rest", "transform": others,
                    "mark": {"type": "line", "strokeWidth": 1},
                    "encoding": grey | joined,
                },
                {
                    "name": "rest", "transform": others,
                    "mark": {"type": "point", "filled": True, "size": 40, "opacity": 1},
                    "encoding": grey,
                },
                {
                    "transform": front,
                    "mark": {"type": "line", "interpolate": "step-after",
                             "color": "var(--muted)", "strokeDash": [4, 3]},
                    "encoding": {"color": {"value": "var(--muted)"}, "tooltip": {"value": None},
                                 "order": {"field": _TPOT}},
                },
                {
                    "transform": leads,
                    "mark": {"type": "line", "strokeWidth": 1.2, "opacity": 0.6},
                    "encoding": joined,
                },
                {
                    "transform": leads,
                    "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                    "encoding": shape,
                },
                {
                    "transform": [{"calculate": "'α ' + datum.alpha", "as": "with"}],
                    "mark": {"type": "text", "align": "left", "dx": 8, "dy": -7,
                             "fontSize": 10},
                    "encoding": {
                        "text": {"condition": {"test": "datum.front && datum.alpha !== null",
                                               "field": "with"}, "value": ""},
                        "color": {"value": "var(--ink)"},
                    },
                },
                *leaders.pointed("base", encoding, joined),
            ],
        },
        300,
        coloured("base", colours)
        | leaders.by("base", _TPOT, "less", first="front")
        | {"log": {"x": [_TPOT]}, "room": {"y": field} if measure == "kl" else {}},
    )  # fmt: skip


#: Horizontal axes of `lines`: title and number format.
OVER = {
    "batch": ("batch (sequences decoded together)", "d"),
    "alpha": ("α (substitution threshold)", "~g"),
    "ratio": ("capacity (share of experts)", "~%"),
}


def lines(over: str, colours: Mapping[str, str], measure: str = _TPOT) -> Spec:
    """Return the chart of TPOT or cache hits over one of `OVER`, a line per system."""
    field = measure
    metric = metric_of(measure)
    x_title, x_form = OVER[over]
    x = _q(over, x_title, x_form, zero=False, nice=False, padding=14)
    if over == "batch":
        x = {
            "field": over,
            "type": "ordinal",
            "axis": axis(x_title, grid=False) | {"labelAngle": 0},
        }
    encoding = {
        "x": x,
        "y": _q(field, metric.header, trimmed(metric.form) if measure != _TPOT else None),
        "color": {"field": "line", "type": "nominal", "legend": _legend(3)},
        "tooltip": tooltip(*_WHO, (over, x_title.partition(" (")[0], x_form),
                           (field, metric.header, metric.form)),
    }  # fmt: skip
    ends = (f"{field}_low", f"{field}_high")
    return finished(
        {"encoding": encoding, "layer": leaders.lines_of(encoding, interval=field)},
        240,
        coloured("line", colours)
        | leaders.by("line", field, metric.better or "less", over, also=ends)
        | ({"log": {"y": [field]}} if measure == _TPOT else {}),
    )


def where_time_goes(share: bool) -> Spec:
    """Return the chart of a token's time by part, a bar per system: in ms, or as a share of TPOT.

    Rows: ``system``, ``part`` (of `PARTS`), ``ms``, ``share``, ``order``, ``rank``.
    """
    field, title = ("share", "share of TPOT (%)") if share else ("ms", "time of a token (ms)")
    return finished(
        {
            "mark": {"type": "bar", "height": {"band": 0.72}},
            "encoding": {
                "y": {"field": "system", "type": "nominal",
                      "axis": axis(None, grid=False) | {"labelLimit": 200}},
                "x": {"field": field, "type": "quantitative", "stack": "zero",
                      "scale": {"domain": [0, 1]} if share else {},
                      "axis": axis(title, "~%" if share else None)},
                "color": {"field": "part", "type": "nominal", "legend": _legend()},
                "order": {"field": "order"},
                "tooltip": tooltip(("system", "system"), ("part", "what"), ("ms", "ms", ".4~g"),
                                   ("share", "share of TPOT", ".1%"), ("badge", "badge")),
            },
        },
        {"step": 24},
        coloured("part", PARTS) | {"sort": {"y": "system"}},
    )  # fmt: skip


def ablation() -> Spec:
    """Return the ablation chart: TPOT of each step from the reduced to the whole system.

    Rows: ``step`` (what is restored), ``rank``, ``tpot`` (ms), ``text``, ``kind``.
    """
    return finished(
        {
            "encoding": {
                "y": {"field": "step", "type": "nominal", "axis": axis(None, grid=False)
                      | {"labelLimit": 240, "labelExpr": "split(datum.label, '|')"}},
                "x": {"field": "tpot", "type": "quantitative", "axis": axis(_TITLE),
                      "scale": {"zero": True}},
                "tooltip": tooltip(("step", "step"), ("system", "system"), ("tpot", _TITLE,
                                   metric_of(_TPOT).form), ("text", "change"), ("badge", "badge")),
            },
            "layer": [
                {"mark": {"type": "bar", "height": {"band": 0.7}},
                 "encoding": {"color": {"field": "kind", "type": "nominal",
                     "scale": {"domain": ["base", "faster", "slower"],
                               "range": ["#868e96", "#0072b2", "#d55e00"]},
                     "legend": _legend()}}},
                {"mark": {"type": "text", "align": "left", "dx": 5, "color": "var(--ink)"},
                 "encoding": {"text": {"field": "text"}}},
            ],
        },
        {"step": 36},
        {"sort": {"y": "step"}, "room": {"x": "tpot"}},
    )  # fmt: skip


def bound() -> Spec:
    """Return the chart of TPOT and its lower bounds (``least`` and others), a row per system."""
    ratio = metric_of("bound_ratio")
    marks = {"clairvoyant_ms": "#d55e00", "information_ms": "#009e73"}
    programs = [(key, metric_of(key).header, metric_of(key).form) for key in marks]
    return finished(
        {
            "encoding": {
                "y": {"field": "system", "type": "nominal",
                      "axis": axis(None, grid=False) | {"labelLimit": 200}},
                "tooltip": tooltip(("system", "system"), (_TPOT, _TITLE, metric_of(_TPOT).form),
                                   ("least", metric_of("bound_tpot_ms").header,
                                    metric_of("bound_tpot_ms").form),
                                   ("bound_ratio", ratio.header, ratio.form), *programs,
                                   ("badge", "badge")),
                "x": {"field": _TPOT, "type": "quantitative", "scale": {"zero": False},
                      "axis": axis(f"{_TITLE}: bound to achieved")},
            },
            "layer": [
                {"mark": {"type": "rule", "strokeWidth": 1.5, "color": "var(--muted)"},
                 "encoding": {"x": {"field": "least", "type": "quantitative"},
                              "x2": {"field": _TPOT}}},
                {"mark": {"type": "tick", "thickness": 3, "height": {"band": 0.6},
                          "color": "var(--ink)"},
                 "encoding": {"x": {"field": "least", "type": "quantitative"}}},
                # Where no row has this bound, an invisible mark keeps the layer's extent finite.
                *({"transform": [{"calculate": f"isValid(datum.{key}) ? datum.{key} : datum.least",
                                  "as": f"{key}_at"}],
                   "mark": {"type": "tick", "thickness": 2, "height": {"band": 0.6},
                            "color": color},
                   "encoding": {"x": {"field": f"{key}_at", "type": "quantitative"},
                                "opacity": {"value": 0, "condition": {
                                    "test": f"isValid(datum.{key})", "value": 1}}}}
                  for key, color in marks.items()),
                {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1,
                          "color": "#0072b2"}},
                {"mark": {"type": "text", "align": "left", "dx": 9, "color": "var(--ink)"},
                 "encoding": {"text": {"field": "bound_ratio", "type": "quantitative",
                                       "format": ratio.form}}},
            ],
        },
        {"step": 24},
        {"log": {"x": [_TPOT, "least"]}, "sort": {"y": "system"}, "room": {"x": _TPOT}},
    )  # fmt: skip

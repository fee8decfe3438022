"""Vega-Lite specs of the report's figures, as plain dictionaries without any URL.

Every function is pure: documents and span records in, a spec out; drawing happens in the browser.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import altair as alt

from moebench.reports.accuracy import Series
from moebench.reports.tables import Document, badge_of, dig, routing_of, software_of, system_of
from moebench.reports.throughput import Curve

Spec = dict[str, Any]
Record = dict[str, Any]

LANES = ["device", "h2d", "d2h", "host", "disk", "predict"]

#: One colour for each kind of operation, the same in every figure: blues and greens compute on the
#: device, warm colours move weights, greys are small.  They differ in lightness too.
KIND_COLOURS = {
    "attend": "#1b4f8f",
    "dense": "#5b8fd0",
    "shared": "#8fb8e8",
    "expert": "#2a9d74",
    "head": "#12355f",
    "gate": "#7a5cb8",
    "predict": "#b79be0",
    "combine": "#8a94a3",
    "load": "#e07b2a",
    "read": "#b5452c",
    "stream": "#c96a8a",
    "write_back": "#8c3b5e",
    "return": "#d9b23c",
}

#: The parts of a lane's time: busy, then what the device waited for.
SHARE_COLOURS = {
    "busy": "#2f6db5",
    "waits for load": "#e07b2a",
    "waits for host": "#2a9d74",
    "waits for control": "#9aa4b2",
}
_OTHER_COLOURS = ["#b5452c", "#7a5cb8", "#d9b23c", "#5f6b7a"]

BADGE_COLOURS = {
    "measured": "#1a7f4b",
    "calibrated": "#1f5fa8",
    "datasheet": "#a35a00",
    "estimate": "#a8324a",
}

_INK, _MUTED, _RULE = "#1f2933", "#52606d", "#e4e7eb"

#: Above this many bars a canvas is smoother than as many SVG nodes.
SVG_LIMIT = 3000


def timeline(records: list[Record], simulated: bool) -> Spec:
    """The picture of a window of a run: a row a lane, a bar a span.

    Args:
        records: spans; `start_us` and `end_us` count from the window's start (microseconds).
        simulated: whether the times come from the simulated machine, for the axis.
    """
    values = [
        {
            "lane": record["lane"],
            "kind": record["kind"],
            "layer": record["layer"],
            "experts": ", ".join(map(str, record["experts"])) or "none",
            "start": record["start_us"],
            "end": record["end_us"],
            "us": round(record["end_us"] - record["start_us"], 3),
        }
        for record in records
    ]
    kinds = _order((value["kind"] for value in values), KIND_COLOURS)
    lanes = [lane for lane in LANES if any(value["lane"] == lane for value in values)]
    end = max((value["end"] for value in values), default=0.0)
    # Plain wheel keeps scrolling the page; only with Ctrl does it zoom.
    pan = alt.selection_interval(
        name="pan", bind="scales", encodings=["x"], zoom="wheel![event.ctrlKey]"
    )
    base = alt.Chart(alt.InlineData(values=values)).add_params(pan)
    chart = base.mark_bar(clip=True, height={"band": 0.8}).encode(
        x=alt.X("start:Q", scale=alt.Scale(domain=[0, end], nice=False),
                axis=alt.Axis(title=_axis("time since the window opened", simulated),
                              labelExpr="format(datum.value / 1000, '~g')", tickCount=10)),
        x2=alt.X2("end:Q"),
        y=alt.Y("lane:N", sort=lanes, scale=alt.Scale(domain=lanes), axis=alt.Axis(title=None)),
        color=_colour("kind", kinds, KIND_COLOURS),
        tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("layer:Q"), alt.Tooltip("experts:N"),
                 alt.Tooltip("us:Q", title="duration (µs)", format=",.1f"),
                 alt.Tooltip("start:Q", title="start (µs)", format=",.1f")],
    )  # fmt: skip
    return _finish(chart, height=34 * max(len(lanes), 1))


def shares(run: Document) -> Spec | None:
    """The parts of a run's time: each lane's busy time, and the device's stalls by cause (ms).

    None where the run counted no lane.
    """
    lanes = dig(run, "metrics.lanes") or {}
    stalls = dig(run, "metrics.stall_ms") or {}
    values = [{"lane": lane, "part": "busy", "ms": ms} for lane, ms in lanes.items() if ms]
    values += [
        {"lane": "device", "part": f"waits for {cause}", "ms": ms}
        for cause, ms in stalls.items()
        if ms
    ]
    if not values:
        return None
    parts = _order((value["part"] for value in values), SHARE_COLOURS)
    shown = {value["lane"] for value in values}
    values = [value | {"order": parts.index(value["part"])} for value in values]
    chart = alt.Chart(alt.InlineData(values=values)).mark_bar(height={"band": 0.75}).encode(
        x=alt.X("ms:Q", stack="zero", axis=alt.Axis(title=_axis("time", run["simulated"]))),
        y=alt.Y("lane:N", sort=LANES, axis=alt.Axis(title=None)),
        color=_colour("part", parts, SHARE_COLOURS),
        order=alt.Order("order:Q"),
        tooltip=[alt.Tooltip("lane:N"), alt.Tooltip("part:N", title="what"),
                 alt.Tooltip("ms:Q", title="time (ms)", format=",.3f")],
    )  # fmt: skip
    return _finish(chart, height=30 * len(shown))


def latencies(runs: list[Document]) -> Spec | None:
    """TPOT of every run, coloured by its badge, beside its lower bound (ms); None without any."""
    values = [
        {
            "run": _label(run),
            "badge": badge_of(run).split(", ")[0],
            "tpot": dig(run, "metrics.tpot_ms.mean"),
            "bound": dig(run, "bound.tpot_ms"),
        }
        for run in runs
        if dig(run, "metrics.tpot_ms.mean") is not None
    ]
    if not values:
        return None
    badges = _order((value["badge"] for value in values), BADGE_COLOURS)
    base = alt.Chart(alt.InlineData(values=values)).encode(
        y=alt.Y("run:N", sort=None, axis=alt.Axis(title=None, labelLimit=320)),
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("badge:N"),
                 alt.Tooltip("tpot:Q", title="TPOT mean (ms)", format=",.2f"),
                 alt.Tooltip("bound:Q", title="lower bound (ms)", format=",.2f")],
    )  # fmt: skip
    bars = base.mark_bar(height={"band": 0.62}).encode(
        x=alt.X("tpot:Q", axis=alt.Axis(title="TPOT mean (ms)")),
        color=_colour("badge", badges, BADGE_COLOURS),
    )
    ticks = base.transform_filter("datum.bound !== null").mark_tick(
        color=_INK, thickness=2.5, height={"band": 0.9}
    ).encode(x=alt.X("bound:Q"))  # fmt: skip
    return _finish(bars + ticks, height=28 * len(values))


#: One colour and one shape a workload (one colour a run), in the order in which they occur.
_CURVE_COLOURS = ["#1b4f8f", "#e07b2a", "#2a9d74", "#b5452c", "#7a5cb8", "#8a7a1c", "#5f6b7a"]
_CURVE_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke"]

#: More runs than colours: the next seven are dashed, and so on.
_CURVE_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]

#: What is drawn against α: its title, and how an axis writes it.
MEASURES = {
    "score": ("score (%), ± standard error", "~f"),
    "agreement": ("agreement (%)", "~%"),
    "kl": ("KL (nats per token)", "~f"),
}


def curves(series: Iterable[Series], measure: str) -> Spec | None:
    """A measure against α, a mark a workload; the score with its standard errors.

    Args:
        series: workloads of one setting.
        measure: one of `MEASURES`.

    Returns:
        None where no cell has the measure.
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
    title, form = MEASURES[measure]
    legend = alt.Legend(title=None, orient="top", columns=3)
    colours = [_CURVE_COLOURS[i % len(_CURVE_COLOURS)] for i in range(len(names))]
    shapes = [_CURVE_SHAPES[i % len(_CURVE_SHAPES)] for i in range(len(names))]
    base = alt.Chart(alt.InlineData(values=values)).encode(
        x=alt.X("alpha:Q", axis=alt.Axis(title="α", format="~g")),
        color=alt.Color("workload:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
    )
    y = alt.Y("value:Q", scale=alt.Scale(zero=measure == "kl"),
              axis=alt.Axis(title=title, format=form, grid=True))  # fmt: skip
    points = base.mark_point(filled=True, size=45, opacity=1).encode(
        y=y,
        shape=alt.Shape("workload:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
        tooltip=[alt.Tooltip("workload:N"), alt.Tooltip("alpha:Q", title="α"),
                 alt.Tooltip("value:Q", title=measure, format=".4"), alt.Tooltip("n:Q")],
    )  # fmt: skip
    chart = base.mark_line(strokeWidth=1.5, opacity=0.75).encode(y=y) + points
    if measure == "score":
        chart += base.mark_rule(opacity=0.45).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    return _finish(chart, height=220)


def _named(series: Iterable[Series]) -> list[tuple[str, Series]]:
    """Each curve with its workload's name, and its scoring where one workload has several."""
    ones = list(series)
    counts = Counter(one.workload for one in ones)
    return [
        (one.workload if counts[one.workload] == 1 else f"{one.workload} · {one.scoring}", one)
        for one in ones
    ]


def throughput(runs: list[Document], curves: Mapping[str, Curve]) -> Spec:
    """Cumulative distributions of decode throughput, a curve a run (DuoServe-MoE, Fig. 6).

    Args:
        runs: comparable runs, at least one, either all simulated or none.
        curves: a curve for each of them, by run id.
    """
    values = [
        {
            "run": _label(run),
            # Four digits are finer than a screen, and half the page's bytes.
            "tokens_per_s": float(f"{point.tokens_per_s:.4g}"),
            "share": round(point.share, 4),
        }
        for run in runs
        for point in curves[run["run_id"]]
    ]
    names = list(dict.fromkeys(map(_label, runs)))
    legend = alt.Legend(
        title=None, orient="top", columns=3, labelLimit=320,
        symbolType="stroke", symbolLimit=len(names),
    )  # fmt: skip
    colours = [_CURVE_COLOURS[i % len(_CURVE_COLOURS)] for i in range(len(names))]
    dashes = [
        _CURVE_DASHES[i // len(_CURVE_COLOURS) % len(_CURVE_DASHES)] for i in range(len(names))
    ]
    # Invisible points carry the tooltip: a line has only one.
    chart = alt.Chart(alt.InlineData(values=values)).mark_line(
        interpolate="step-after", strokeWidth=1.5, point="transparent"
    ).encode(
        # From zero: how many times faster one system is than another can be read off.
        x=alt.X("tokens_per_s:Q", scale=alt.Scale(zero=True),
                axis=alt.Axis(title=_axis("decode throughput", runs[0]["simulated"], "tokens/s"))),
        y=alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(title="share of decoded tokens", format="~%", grid=True)),
        # Points may have one speed; only the share gives them an order.
        order=alt.Order("share:Q"),
        color=alt.Color("run:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        strokeDash=alt.StrokeDash("run:N", scale=alt.Scale(domain=names, range=dashes),
                                  legend=legend),
        tooltip=[alt.Tooltip("run:N"),
                 alt.Tooltip("tokens_per_s:Q", title="tokens/s, at most", format=".4"),
                 alt.Tooltip("share:Q", title="share of tokens", format=".0%")],
    )  # fmt: skip
    return _finish(chart, height=260)


# ---------------------------------------------------------------------- shared styles


def _name(run: Document) -> str:
    spec, routing = run["spec"], routing_of(run["spec"])
    names = [system_of(spec), *filter(None, [spec.get("setting")]), software_of(spec)]
    return " · ".join(names if routing == "model" else [*names, routing])


def _label(run: Document) -> str:
    return f"{_name(run)} · {run['run_id'][:6]}"


def _axis(what: str, simulated: bool, unit: str = "ms") -> str:
    return f"{what} ({unit}, {'simulated' if simulated else 'measured'})"


def _order(found: Iterable[str], known: dict[str, str]) -> list[str]:
    """The names that occur: the known ones in their order, then any other by name."""
    names = set(found)
    return [name for name in known if name in names] + sorted(names - known.keys())


def _colour(field: str, names: list[str], known: dict[str, str]) -> alt.Color:
    others = [name for name in names if name not in known]
    spare = {name: _OTHER_COLOURS[i % len(_OTHER_COLOURS)] for i, name in enumerate(others)}
    scale = alt.Scale(domain=names, range=[(known | spare)[name] for name in names])
    return alt.Color(f"{field}:N", scale=scale, legend=alt.Legend(title=None, orient="top"))


def _finish(chart: alt.Chart | alt.LayerChart, height: int) -> Spec:
    spec: Spec = (
        chart.properties(width="container", height=height)
        # First: it replaces the whole configuration that the others add to.
        .configure(font="system-ui, sans-serif", autosize={"type": "fit-x", "contains": "padding"})
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=_INK, titleColor=_MUTED, titleFontWeight="normal", gridColor=_RULE,
            domainColor=_RULE, tickColor=_RULE, labelFontSize=12, titleFontSize=12,
        )
        .configure_axisY(grid=False, ticks=False, domain=False, labelPadding=8)
        .configure_legend(labelColor=_INK, labelFontSize=12, symbolType="square", columns=6)
        .to_dict()
    )  # fmt: skip
    del spec["$schema"]  # the only URL; the page tells vega-embed the mode itself
    return spec


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script that defines `vegaEmbed` (about 900 kB)."""
    # Unpacking the libraries takes seconds: only where a page is made.
    import vl_convert

    version = alt.SCHEMA_VERSION.lstrip("v").rpartition(".")[0]
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    return script

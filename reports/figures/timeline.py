"""Chart of one decoded token's operations: a row per lane, a bar per operation."""

from moebench.reports.figures.style import Spec, axis, coloured, finished, tooltip

LANES = ["device", "h2d", "d2h", "host", "disk", "predict"]

#: Colour of each kind of operation in every chart: blue and green for computation on the device,
#: warm colours for transfers of weights, grey for short operations.  They differ in lightness too.
KIND_COLOURS = {
    "attend": "#2463b0",
    "dense": "#5b8fd0",
    "shared": "#8fb8e8",
    "expert": "#2a9d74",
    "head": "#4b5c9e",
    "gate": "#7a5cb8",
    "predict": "#b79be0",
    "combine": "#8a94a3",
    "load": "#e07b2a",
    "read": "#b5452c",
    "stream": "#c96a8a",
    "write_back": "#a04a70",
    "return": "#d9b23c",
    "project": "#3a7bc8",
    "core": "#1d4f8f",
    "output": "#74a3dc",
    "qkv": "#bfa02e",
    "page": "#e89a58",
}


_SPARE = ["#b5452c", "#7a5cb8", "#d9b23c", "#5f6b7a"]

#: Number of bars above which a canvas is faster than SVG nodes.
SVG_LIMIT = 3000


def timeline() -> Spec:
    """Return the chart of one token, of one system or of two.

    Rows: ``row`` (lane, with its system if there are two), ``rank`` (its position), ``kind``,
    ``layer``, ``experts`` (text), ``start``, ``end``, ``us`` (all in microseconds).
    """
    # The plain wheel scrolls the page; it zooms only with Ctrl.
    pan = {
        "name": "pan",
        "bind": "scales",
        "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey]"},
    }
    return finished(
        {
            "params": [pan],
            "mark": {"type": "bar", "clip": True, "height": {"band": 0.8}},
            "encoding": {
                "x": {"field": "start", "type": "quantitative", "scale": {"nice": False},
                      "axis": axis("time since the token began (ms)", grid=False)
                      | {"labelExpr": "format(datum.value / 1000, '~g')", "tickCount": 8}},
                "x2": {"field": "end"},
                "y": {"field": "row", "type": "nominal", 
                      "axis": axis(None, grid=False)},
                "color": {"field": "kind", "type": "nominal",
                          "legend": {"title": None, "orient": "top", "columns": 7}},
                "tooltip": tooltip(("kind", "kind"), ("layer", "layer"), ("experts", "experts"),
                                   ("us", "duration (µs)", ",.1f"),
                                   ("start", "start (µs)", ",.1f")),
            },
        },
        {"step": 30},
        coloured("kind", KIND_COLOURS, _SPARE) | {"sort": {"y": "row"}},
    )  # fmt: skip

"""The papers' tables and figures as Vega-Lite specs with data, as rows of text, and as files.

The value axis bears the badge in its title.  What a paper's text states stands as marks of its own
beside ours: hollow diamonds, whatever the form.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from moebench.reports.figures.style import PALETTE, SHAPES, Spec, finished
from moebench.reports.figures.timeline import KIND_COLOURS
from moebench.reports.text import MISSING
from moebench.results.claims import Axis, Exhibit, PaperResult
from moebench.substrate.files import write_bytes

Row = dict[str, Any]

#: Colour of the papers' values: readable on both backgrounds, and no system's colour.
PAPER_COLOUR = "#868e96"

#: Size of one panel in pixels.
WIDTH, HEIGHT = 260, 190

#: Axes that each panel has for itself; shared axes make panels comparable.
_OWN_AXES = {"lines": "xy", "points": "xy", "heat": "xy", "timeline": ""}

#: Colours of a series: two more than systems have, as an exhibit may compare ten policies.
_COLOURS = (*PALETTE, "#5c4a1f", "#1f5c57")

_LEGEND = {"title": None, "orient": "top", "columns": 4}


def spec(exhibit: Exhibit) -> Spec | None:
    """Return a figure's Vega-Lite spec with its data, or None for a table.

    One panel is as wide as its container (``width: container``), several have `WIDTH`.
    """
    draw = _FORMS.get(exhibit.form)
    if draw is None or exhibit.x is None or exhibit.y is None:
        return None
    layers = draw(exhibit, exhibit.x, exhibit.y)
    if exhibit.paper_rows and exhibit.form != "timeline":
        layers.append(_paper(exhibit, exhibit.x, exhibit.y))
    drawn = _panels(exhibit, layers)
    if exhibit.paper_rows and exhibit.form != "timeline":
        mark = "numbers" if exhibit.form == "heat" else "◇"
        drawn["title"] = {"text": f"{mark}: what the paper states", "anchor": "start",
                          "fontSize": 11, "fontWeight": "normal"}  # fmt: skip
    return drawn


def headers(exhibit: Exhibit) -> list[str]:
    """Return the headers of `lines`: titles with units, and a column for the paper's values."""
    named = [_title(axis) or axis.field for axis in _columns(exhibit)]
    return [*named, *(["paper"] if exhibit.paper_rows and _value(exhibit) else [])]


def lines(exhibit: Exhibit) -> list[list[str]]:
    """Return the measured rows with the paper's values, then rows that only the paper has."""
    columns, value = _columns(exhibit), _value(exhibit)
    keys = [axis.field for axis in columns if axis != value]
    stated = {tuple(row.get(key) for key in keys): row for row in exhibit.paper_rows}
    beside = bool(exhibit.paper_rows) and value is not None
    found = []
    for row in exhibit.rows:
        cells = [_cell(row.get(axis.field)) for axis in columns]
        other = stated.pop(tuple(row.get(key) for key in keys), {})
        if beside and value:
            cells.append(_cell(other.get(value.field)))
        found.append(cells)
    for other in stated.values() if beside and value else ():
        cells = [MISSING if axis == value else _cell(other.get(axis.field)) for axis in columns]
        found.append([*cells, _cell(other.get(value.field))])  # type: ignore[union-attr]
    return found


def write(results: Iterable[PaperResult], folder: Path) -> list[Path]:
    """Write every figure as ``ID.svg`` and ``ID.pdf``, without tables.

    Raises InputError: a file cannot be written.
    """
    import vl_convert  # its JavaScript takes a while to start

    written: list[Path] = []
    for exhibit in (one for result in results for one in result.exhibits):
        drawn = spec(exhibit)
        if drawn is None:
            continue
        drawn["background"] = "white"
        if drawn.get("width") == "container":
            drawn["width"] = 2 * WIDTH
        files = {
            folder / f"{exhibit.id}.svg": vl_convert.vegalite_to_svg(drawn).encode(),
            folder / f"{exhibit.id}.pdf": vl_convert.vegalite_to_pdf(drawn),
        }
        for file, content in files.items():
            write_bytes(file, content)
        written += files
    return written


# ----------------------------------------------------------------------------- rows of text


def _columns(exhibit: Exhibit) -> list[Axis]:
    if exhibit.columns:
        return list(exhibit.columns)
    named = [Axis(field=one, title=one) for one in (exhibit.facet, exhibit.series) if one]
    axes = [axis for axis in (exhibit.x, exhibit.y, exhibit.colour) if axis is not None]
    if exhibit.form == "timeline":
        axes.append(Axis(field="end", title="end", unit=axes[0].unit))
    return [*named, *axes]


def _value(exhibit: Exhibit) -> Axis | None:
    """Return the axis of the measured value; None for a table or timeline, which have several."""
    if exhibit.form in ("table", "timeline"):
        return None
    return exhibit.colour if exhibit.form == "heat" else exhibit.y


def _title(axis: Axis, badge: str = "") -> str:
    said = [part for part in (axis.unit if axis.unit != "1" else "", badge) if part]
    return f"{axis.title} ({', '.join(said)})" if said else axis.title


def _cell(value: object) -> str:
    if value is None:
        return MISSING
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


# ----------------------------------------------------------------------------- figures


def _bars(exhibit: Exhibit, x: Axis, y: Axis) -> list[Spec]:
    """Return bars from zero, or points on a logarithmic axis, which has no zero."""
    encoding = {"x": _category(exhibit, x), "y": _scaled(exhibit, y), "tooltip": _tooltip(exhibit)}
    encoding["color"] = _colour(exhibit) if exhibit.series else {"value": PALETTE[0]}
    if exhibit.series:
        encoding["xOffset"] = _beside(exhibit)
    mark: Spec = {"type": "point", "filled": True, "size": 60, "opacity": 1}
    return [{"mark": mark if y.log else {"type": "bar"}, "encoding": encoding}]


def _stacked(exhibit: Exhibit, x: Axis, y: Axis) -> list[Spec]:
    return [
        {
            "mark": {"type": "bar"},
            "encoding": {
                "x": _category(exhibit, x),
                "y": _scaled(exhibit, y) | {"stack": "zero"},
                "color": _colour(exhibit),
                "order": {"field": "_order", "type": "quantitative"},
                "tooltip": _tooltip(exhibit),
            },
        }
    ]


def _points(exhibit: Exhibit, x: Axis, y: Axis) -> list[Spec]:
    encoding = {"x": _along(exhibit, x), "y": _scaled(exhibit, y), "tooltip": _tooltip(exhibit)}
    if exhibit.series:
        encoding |= {"color": _colour(exhibit), "shape": _shape(exhibit)}
    return [{"mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
             "encoding": encoding}]  # fmt: skip


def _lines(exhibit: Exhibit, x: Axis, y: Axis) -> list[Spec]:
    encoding = {"x": _along(exhibit, x), "y": _scaled(exhibit, y)}
    if exhibit.series:
        encoding["color"] = _colour(exhibit)
    line = {"mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.75}, "encoding": encoding}
    return [line, *_points(exhibit, x, y)]


def _heat(exhibit: Exhibit, x: Axis, y: Axis) -> list[Spec]:
    if exhibit.colour is None:
        return []
    colour = {
        "field": exhibit.colour.field, "type": "quantitative",
        "scale": {"scheme": "blues"} | ({"type": "log"} if exhibit.colour.log else {}),
        "legend": {"title": _title(exhibit.colour, exhibit.badge), "orient": "top",
                   "titleLimit": 2 * WIDTH},
    }  # fmt: skip
    place = {"x": _category(exhibit, x), "y": _category(exhibit, y)}
    rect = {"mark": {"type": "rect"},
            "encoding": place | {"color": colour, "tooltip": _tooltip(exhibit)}}  # fmt: skip
    if not exhibit.series:
        return [rect]
    marks = {
        "transform": [{"filter": f"datum[{exhibit.series!r}]"}],
        "mark": {"type": "point", "strokeWidth": 1.5, "size": 30, "color": PALETTE[3]},
        "encoding": place
        | {"shape": _shape(exhibit, ["cross", "circle", "square", "triangle-up"])},
    }
    return [rect, marks]


def _timeline(exhibit: Exhibit, x: Axis, y: Axis) -> list[Spec]:
    place = {"field": x.field, "type": "quantitative", "title": _title(x, exhibit.badge),
             "scale": {"nice": False}}  # fmt: skip
    encoding = {"x": place, "x2": {"field": "end"}, "y": _category(exhibit, y),
                "tooltip": _tooltip(exhibit)}  # fmt: skip
    if exhibit.series:
        encoding["color"] = _colour(exhibit)
    return [{"mark": {"type": "bar", "height": {"band": 0.8}}, "encoding": encoding}]


_FORMS: dict[str, Callable[[Exhibit, Axis, Axis], list[Spec]]] = {
    "bars": _bars, "stacked": _stacked, "lines": _lines, "points": _points, "heat": _heat,
    "timeline": _timeline,
}  # fmt: skip


def _paper(exhibit: Exhibit, x: Axis, y: Axis) -> Spec:
    """Return the layer of the paper's values."""
    rows = [dict(row) for row in exhibit.paper_rows]
    if exhibit.form == "heat" and exhibit.colour is not None:
        place = {"x": _category(exhibit, x), "y": _category(exhibit, y)}
        said = {"field": exhibit.colour.field, "type": "quantitative", "format": ".3~g"}
        return {"data": {"values": rows}, "mark": {"type": "text", "color": PALETTE[3]},
                "encoding": place | {"text": said}}  # fmt: skip
    of_ours = _names(exhibit.rows, exhibit.series)
    rows = _cumulated(exhibit, x, y) if exhibit.form == "stacked" else rows
    bars = exhibit.form in ("bars", "stacked")
    encoding: Spec = {
        "x": _category(exhibit, x) if bars else _along(exhibit, x),
        "y": _scaled(exhibit, y),
        "tooltip": _tooltip(exhibit),
    }  # fmt: skip
    if exhibit.series and exhibit.form == "bars":
        encoding["xOffset"] = _beside(exhibit)
    elif exhibit.series and not bars and of_ours:
        encoding["color"] = _colour(exhibit)
    mark = {"type": "point", "shape": "diamond", "size": 70, "strokeWidth": 2, "opacity": 1,
            "color": PAPER_COLOUR}  # fmt: skip
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def _cumulated(exhibit: Exhibit, x: Axis, y: Axis) -> list[Row]:
    """Return the paper's stacked parts with cumulated values."""
    rank = {name: i for i, name in enumerate(_names(exhibit.rows, exhibit.series))}
    ordered = sorted(
        exhibit.paper_rows, key=lambda row: rank.get(row.get(exhibit.series or ""), 99)
    )
    heights: dict[tuple[Any, Any], float] = {}
    found = []
    for row in ordered:
        at = (row.get(exhibit.facet) if exhibit.facet else None, row[x.field])
        heights[at] = heights.get(at, 0.0) + row[y.field]
        found.append({**row, y.field: heights[at]})
    return found


# ----------------------------------------------------------------------------- channels


def _names(rows: Iterable[Row], field: str | None) -> list[Any]:
    """Return the distinct values of a field in row order, without empty ones."""
    return [name for name in dict.fromkeys(row.get(field) for row in rows if field) if name != ""]


def _numbers(exhibit: Exhibit, axis: Axis) -> list[float]:
    values = (row.get(axis.field) for row in (*exhibit.rows, *exhibit.paper_rows))
    return [value for value in values if isinstance(value, int | float)]


def _category(exhibit: Exhibit, axis: Axis) -> Spec:
    """Return a categorical channel: names in row order, numbers sorted."""
    names = _names((*exhibit.rows, *exhibit.paper_rows), axis.field)
    numeric = all(isinstance(name, int | float) for name in names)
    upright = axis is exhibit.y
    shown: Spec = {"title": _title(axis) or None, "labelOverlap": True}
    if not upright:
        turned = not numeric and any(len(str(name)) > 6 for name in names)
        shown["labelAngle"] = -35 if turned else 0
    return {
        "field": axis.field,
        "type": "ordinal" if numeric else "nominal",
        "sort": sorted(names, reverse=upright) if numeric else names,
        "axis": shown,
    }


def _along(exhibit: Exhibit, axis: Axis) -> Spec:
    """Return a quantitative channel, or a categorical one if the values are names."""
    numbers = _numbers(exhibit, axis)
    if len(numbers) < len(exhibit.rows) + len(exhibit.paper_rows):
        return _category(exhibit, axis)
    scale: Spec = {"type": "log", "nice": False} if axis.log else {"zero": False}
    return {"field": axis.field, "type": "quantitative", "scale": scale,
            "axis": {"title": _title(axis), "grid": False}}  # fmt: skip


def _scaled(exhibit: Exhibit, axis: Axis) -> Spec:
    """Return the quantitative channel of an axis, with the badge in its title."""
    scale: Spec = {"scale": {"type": "log"}} if axis.log else {}
    shown = {"title": _title(axis, exhibit.badge), "tickCount": 5}
    return {"field": axis.field, "type": "quantitative", "axis": shown} | scale


def _beside(exhibit: Exhibit) -> Spec:
    """Return the channel that offsets the series' marks within a category."""
    names = list(_colours(exhibit))
    return {"field": exhibit.series, "type": "nominal", "scale": {"domain": names}}


def _colours(exhibit: Exhibit) -> dict[Any, str]:
    """Return a colour for each name of the series; grey for names that only the paper has."""
    own = _names(exhibit.rows, exhibit.series)
    spare = iter(_COLOURS * (1 + len(own) // len(_COLOURS)))
    colours = {name: KIND_COLOURS.get(str(name)) or next(spare) for name in own}
    others = [one for one in _names(exhibit.paper_rows, exhibit.series) if one not in colours]
    return colours | dict.fromkeys(others, PAPER_COLOUR)


def _colour(exhibit: Exhibit) -> Spec:
    colours = _colours(exhibit)
    return {
        "field": exhibit.series, "type": "nominal", "sort": list(colours),
        "scale": {"domain": list(colours), "range": list(colours.values())}, "legend": _LEGEND,
    }  # fmt: skip


def _shape(exhibit: Exhibit, shapes: Sequence[str] = SHAPES) -> Spec:
    # With the domain of the colours, shape and colour share a legend.
    names = list(_colours(exhibit))
    return {
        "field": exhibit.series, "type": "nominal", "sort": names,
        "scale": {"domain": names, "range": [shapes[i % len(shapes)] for i in range(len(names))]},
        "legend": _LEGEND,
    }  # fmt: skip


def _tooltip(exhibit: Exhibit) -> list[Spec]:
    found = []
    for axis in _columns(exhibit):
        values = [row.get(axis.field) for row in exhibit.rows]
        number = all(isinstance(value, int | float) for value in values) and values
        form = {"type": "quantitative", "format": ".4~g"} if number else {"type": "nominal"}
        found.append({"field": axis.field, "title": _title(axis)} | form)
    return found


def _panels(exhibit: Exhibit, layers: list[Spec]) -> Spec:
    """Return the spec with one panel, or one for each value of the facet."""
    rank = {name: i for i, name in enumerate(_names(exhibit.rows, exhibit.series))}
    rows = [
        {**row, "_order": rank.get(row.get(exhibit.series or ""))}
        if exhibit.form == "stacked"
        else row
        for row in exhibit.rows
    ]
    names = _names((*exhibit.rows, *exhibit.paper_rows), exhibit.facet)
    if not exhibit.facet or len(names) < 2:
        return finished({"data": {"values": rows}, "layer": layers}, HEIGHT)
    # A facet has one source of data: a field marks the paper's rows.
    theirs = [row for layer in layers for row in layer.get("data", {}).get("values", [])]
    of = [{**row, "_paper": False} for row in rows] + [{**row, "_paper": True} for row in theirs]
    inside = []
    for layer in layers:
        paper = "data" in layer
        kept = {key: value for key, value in layer.items() if key != "data"}
        filters = [{"filter": "datum._paper" if paper else "!datum._paper"}]
        inside.append(kept | {"transform": [*filters, *layer.get("transform", [])]})
    whole = finished({}, HEIGHT)
    shared = {key: whole[key] for key in ("usermeta", "config")}
    # Only a single panel can have its container's width.
    shared["config"] = {key: v for key, v in shared["config"].items() if key != "autosize"}
    return shared | {
        "data": {"values": of},
        "facet": {"field": exhibit.facet, "type": "nominal", "sort": names, "title": None},
        "columns": 2,
        "spec": {"width": WIDTH, "height": HEIGHT, "layer": inside},
        "resolve": {"scale": dict.fromkeys(_OWN_AXES.get(exhibit.form, "y"), "independent")},
    }

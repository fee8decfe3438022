"""Charts of many lines: the leaders are coloured and named at their ends, the others are grey.

``usermeta.leaders`` of a spec states how its lines are ranked (`by`).  `led` applies it to the
rows of a file; `led` in templates/js/leaders.js does the same on the page.

Rows get ``leads`` (their line is a leader) and ``last`` (the last point of their line).
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean, median_low
from typing import Any

from moebench.reports.figures.style import PALETTE, REST, Spec

Row = dict[str, Any]

#: Most lines of a chart that are coloured.
MOST = 6

#: Height of a label in pixels, width of a character, and room beside the text for its symbol.
_LABEL, _LETTER, _SYMBOL = 15, 6.6, 28

#: Largest share of a chart's width that labels may take; longer ones are a legend.
_SHARE = 0.36

_LEGEND = {"title": None, "orient": "top", "symbolType": "stroke"}


def by(
    field: str, value: str, better: str, over: str | None = None, first: str = "",
    also: Iterable[str] = (),
) -> Spec:  # fmt: skip
    """Return the ``usermeta`` entry of a chart with a line per name of ``field``.

    Args:
        value: the field that ranks lines, ``better`` "less" or "more": at their last ``over``, or
            by its mean if there is no horizontal axis to end at.
        first: the field that puts a line before the others, if any of its rows has it.
        also: further fields on the vertical axis.
    """
    return {
        "leaders": {
            "field": field, "value": value, "better": better, "over": over, "first": first,
            "extent": [value, *also],
        }
    }  # fmt: skip


def lines_of(encoding: Spec, interval: str = "") -> list[Spec]:
    """Return the layers of a chart of lines over a quantity: lines, intervals, points, labels.

    Args:
        encoding: the chart's own; ``color`` names the field of the lines.
        interval: stem of the fields with an interval's ends, or empty.
    """
    field = encoding["color"]["field"]
    plain = {"color": {"value": f"var({REST})"}, "detail": {"field": field}}
    shape = {"shape": {"field": field, "type": "nominal", "legend": encoding["color"]["legend"]}}
    others = [{"filter": "!datum.leads"}]
    line = {"type": "line"}
    dot = {"type": "point", "filled": True, "opacity": 1}
    layers: list[Spec] = [
        {"name": "rest", "transform": others, "mark": line | {"strokeWidth": 1},
         "encoding": plain},
        {"name": "rest", "transform": others, "mark": dot | {"size": 16},
         "encoding": plain},
        {"transform": [{"filter": "datum.leads"}], "mark": line | {"strokeWidth": 1.5}},
        {"transform": [{"filter": "datum.leads"}], "mark": dot | {"size": 55}, "encoding": shape},
    ]  # fmt: skip
    if interval:
        ends = {"y": {"field": f"{interval}_low", "type": "quantitative"},
                "y2": {"field": f"{interval}_high"}}  # fmt: skip
        layers.insert(3, {"mark": {"type": "rule", "opacity": 0.5}, "encoding": ends, "transform": [
            {"filter": f"datum.leads && isValid(datum.{interval}_low)"}]})  # fmt: skip
    return [*layers, *pointed(field, encoding)]


def pointed(field: str, encoding: Spec, line: Spec | None = None, **mark: Any) -> list[Spec]:
    """Return the layers that show the line under the pointer, coloured and with its name.

    Args:
        line: channels of the line in addition to the chart's ``encoding``.
        mark: properties of the line.
    """
    chosen = {"param": "pointed", "empty": False}
    legend = encoding["color"]["legend"]
    shape = {"shape": {"field": field, "type": "nominal", "legend": legend}}
    shown = {"opacity": {"condition": chosen | {"value": 1}, "value": 0}}
    grey = {"and": [chosen, "!datum.leads"]}
    named = {"opacity": {"condition": {"test": grey, "value": 1}, "value": 0}}
    select = {"type": "point", "fields": [field], "on": "pointerover", "clear": "pointerout",
              "nearest": True}  # fmt: skip
    return [
        {"name": "pointed line", "mark": {"type": "line", "strokeWidth": 3, **mark},
         "encoding": shown | (line or {})},
        {"name": "pointed points", "mark": {"type": "point", "filled": True, "size": 55},
         "encoding": shown | shape},
        {"name": "pointed name", "transform": [{"filter": "datum.last"}],
         "mark": {"type": "text", "align": "right", "dx": -8, "dy": -9, "fontWeight": 600},
         "encoding": named | {"text": {"field": field}, "color": {"value": "var(--ink)"}}},
        {"name": "pointed nearest", "params": [{"name": "pointed", "select": select}],
         "mark": {"type": "point", "opacity": 0},
         "encoding": {"color": {"value": "transparent"}, "detail": {"field": field}}},
    ]  # fmt: skip


# ----------------------------------------------------------------------------- with rows


def led(spec: Spec, meta: Spec, rows: Sequence[Mapping[str, Any]], width: float) -> list[Row]:
    """Name a chart's leaders at the ends of their lines, and return its rows with their flags.

    Args:
        spec: with scales that fit the rows; it is changed.
        meta: its ``usermeta.leaders``.
        width: of the chart in pixels.
    """
    along = meta["over"] or meta["value"]
    rows = [row for row in rows if None not in (row.get(meta["value"]), row.get(along))]
    names = ranked(rows, meta)
    chosen = names[:MOST]
    lasts = {name: _last(rows, meta, name) for name in names}
    found = [
        {**row, "leads": row[meta["field"]] in chosen,
         "last": row[along] == lasts[row[meta["field"]]]}
        for row in rows
    ]  # fmt: skip
    if len(names) > MOST:
        spec["title"] = {
            "text": f"grey: {len(names) - MOST} others", "anchor": "start", "fontSize": 11,
            "fontWeight": "normal", "color": "var(--muted)",
        }  # fmt: skip
    else:  # an empty layer has no scale
        spec["layer"] = [layer for layer in spec["layer"] if layer.get("name") != "rest"]
    room = _LETTER * max(len(str(name)) for name in chosen) + _SYMBOL
    labelled = meta["over"] is not None and room <= _SHARE * width
    for layer in [spec, *spec["layer"]]:
        for channel in ("color", "shape"):
            one = layer.get("encoding", {}).get(channel, {})
            if one.get("legend"):
                one["legend"] = None if labelled else one["legend"] | {"values": chosen}
    if labelled:
        spec["layer"] += _ends(spec, found, chosen, meta)
    return found


def ranked(rows: Sequence[Mapping[str, Any]], meta: Spec) -> list[Any]:
    """Return the names of a chart's lines, best first; lines that end early follow the others.

    A line ends early if more than half of the lines go on.
    """
    over, sign = meta["over"], 1 if meta["better"] == "less" else -1
    names = dict.fromkeys(row[meta["field"]] for row in rows)
    end = median_low(_last(rows, meta, name) for name in names) if over and names else None

    def key(name: Any) -> tuple[Any, ...]:
        own = [row for row in rows if row[meta["field"]] == name]
        last = over and _last(rows, meta, name)
        values = [row[meta["value"]] for row in own if not over or row[over] == last]
        later = not any(row.get(meta["first"]) for row in own), bool(over) and last < end
        return *later, sign * fmean(values), str(name)

    return sorted(names, key=key)


def told_apart(leading: Iterable[str], colours: Mapping[str, str]) -> dict[str, str]:
    """Return the colours of a chart's leaders: their own, but for the second of one colour.

    That one gets a free colour, and so does a grey one, as the lines that do not lead are grey.
    """
    free, found = [*PALETTE[:-1]], {}
    names = [*leading]
    for name in names:
        if colours[name] in free:
            free.remove(colours[name])
            found[name] = colours[name]
    return {name: found.get(name) or free.pop(0) for name in names}


def _last(rows: Sequence[Mapping[str, Any]], meta: Spec, name: Any) -> Any:
    along = meta["over"] or meta["value"]
    return max(row[along] for row in rows if row[meta["field"]] == name)


def _ends(spec: Spec, rows: Sequence[Row], chosen: Sequence[Any], meta: Spec) -> list[Spec]:
    """Return the layers of labels at the right edge, and fix the vertical scale to place them."""
    y = spec["encoding"]["y"]
    scale = y.get("scale") or {}
    logarithmic = scale.get("type") == "log"
    values = [row[field] for row in rows for field in meta["extent"] if row.get(field) is not None]
    to, back = (log, exp) if logarithmic else (float, float)
    low, high = to(min(values)), to(max(values))
    if not logarithmic and scale.get("zero") is not False:
        low = min(low, 0.0)
    else:
        low -= 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    high += 0.04 * (high - low) if len({*values}) > 1 or low == 0 else 0.0
    y["scale"] = {
        **{key: value for key, value in scale.items() if key not in ("zero", "padding")},
        "domain": [back(low), back(high)], "nice": False,
    }  # fmt: skip
    ends = []
    for name in chosen:
        own = [row for row in rows if row[meta["field"]] == name and row["last"]]
        ends.append(
            {
                meta["field"]: name,
                meta["over"]: own[0][meta["over"]],
                meta["value"]: fmean(row[meta["value"]] for row in own),
            }
        )
    ends.sort(key=lambda one: one[meta["value"]])
    places = spread(
        [(to(one[meta["value"]]) - low) / (high - low) for one in ends], _LABEL / spec["height"]
    )
    for one, at in zip(ends, places, strict=True):
        one["place"] = back(low + at * (high - low))
    field = meta["field"]
    x = {"field": meta["over"], "type": spec["encoding"]["x"]["type"]}
    value = {"field": meta["value"], "type": "quantitative"}
    place = {"field": "place", "type": "quantitative"}
    quiet = {"tooltip": {"value": None}}
    edge = {"value": "width"}
    return [
        {"name": "ends rule", "data": {"values": ends},
         "mark": {"type": "rule", "opacity": 0.5, "strokeDash": [2, 2]},
         "encoding": {"x": x, "x2": edge, "y": value, "y2": {"field": "place"}, **quiet}},
        {"name": "ends point", "data": {"values": ends},
         "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1, "xOffset": 14},
         "encoding": {"x": edge, "y": place, **quiet,
                      "shape": {"field": field, "type": "nominal", "legend": None}}},
        {"name": "ends text", "data": {"values": ends},
         "mark": {"type": "text", "align": "left", "dx": 22, "fontSize": 12},
         "encoding": {"x": edge, "y": place, "text": {"field": field}, **quiet,
                      "color": {"value": "var(--ink)"}}},
    ]  # fmt: skip


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return increasing places from 0 to 1, moved apart to ``gap`` and otherwise left alone."""
    n = len(places)
    gap = min(gap, 1 / max(n - 1, 1))
    free = [place - at * gap for at, place in enumerate(places)]
    up = [max(free[: at + 1]) for at in range(n)]
    down = [min(free[at:]) for at in range(n)]
    # Both sequences increase, so their mean does, and neighbours are at least a gap apart.
    middle = [min(max((a + b) / 2, 0.0), 1 - (n - 1) * gap) for a, b in zip(up, down, strict=True)]
    return [place + at * gap for at, place in enumerate(middle)]

"""The page's charts as SVG and PDF files, drawn without a browser."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from moebench.reports.figures.leaders import led, told_apart
from moebench.reports.figures.style import DECADE, REST, Spec
from moebench.reports.page.static_figures import StaticFigure
from moebench.substrate.files import write_bytes
from moebench.substrate.text import visible_in

#: Width of a text column, in pixels at 72 per inch.
WIDTH = 560

#: The page's colours on paper.
_COLOURS = {
    "var(--ink)": "#14181d", "var(--muted)": "#52606d", "var(--rule)": "#d9dee3",
    f"var({REST})": "#b4bcc5",
}  # fmt: skip
_CONFIG = {
    "background": "white",
    "axis": {"labelColor": "var(--ink)", "titleColor": "var(--muted)", "gridColor": "var(--rule)",
             "domainColor": "var(--rule)", "tickColor": "var(--rule)", "labelLimit": 320},
    "legend": {"labelColor": "var(--ink)", "titleColor": "var(--ink)", "columns": 3},
    "header": {"labelColor": "var(--ink)", "titleColor": "var(--ink)"},
    "title": {"color": "var(--ink)"},
}  # fmt: skip


def write_figures(figures: Sequence[StaticFigure], directory: Path) -> list[Path]:
    """Write each figure as ``NAME.svg`` and ``NAME.pdf``.

    Returns:
        The files written.

    Raises InputError: a file cannot be written.
    """
    import vl_convert  # its JavaScript takes a while to start

    written: list[Path] = []
    names: set[str] = set()
    for figure in figures:
        spec = fitted(figure)
        plain = re.sub(r"[^\w.]+", "-", figure.title, flags=re.ASCII).strip("-.")[:80]
        name = plain if plain not in names else f"{plain}-{len(names)}"
        names.add(name)
        for suffix, content in (
            (".svg", vl_convert.vegalite_to_svg(spec).encode()),
            (".pdf", vl_convert.vegalite_to_pdf(spec)),
        ):
            written.append(directory / f"{name}{suffix}")
            write_bytes(written[-1], content)
    return written


def write_svg(figure: StaticFigure, file: Path) -> None:
    """Write one figure to an SVG file.

    Raises InputError: the file cannot be written.
    """
    import vl_convert

    write_bytes(file, vl_convert.vegalite_to_svg(fitted(figure)).encode())


def fitted(figure: StaticFigure) -> Spec:
    """Return a chart's spec with its rows, a width, and scales that follow from its ``usermeta``.

    `reports.figures.style` defines ``usermeta``; `fitted` in templates/js/charts.js does the same
    on the page.
    """
    spec, rows = deepcopy(figure.spec), figure.rows
    meta = spec.pop("usermeta", {})
    spec |= {"data": {"values": rows}, "width": WIDTH, "description": figure.title}
    layers = spec.get("layer")
    if layers is not None:  # a layer of values that no row has would break the axis
        # What follows the mouse is for the page.
        still = (one for one in layers if not one.get("name", "").startswith("pointed"))
        spec["layer"] = [one for one in still if _has(rows, one)]
    for channel, field in meta.get("sort", {}).items():
        ordered = sorted(rows, key=lambda row: row["rank"])
        spec["encoding"][channel]["sort"] = list(dict.fromkeys(row[field] for row in ordered))
    for channel, field in meta.get("room", {}).items():
        scale = {"domainMax": 1.3 * max(row[field] for row in rows)}
        spec["encoding"][channel]["scale"] = spec["encoding"][channel].get("scale", {}) | scale
    for channel, fields in meta.get("log", {}).items():
        _log(
            spec["encoding"][channel], [row[f] for row in rows for f in fields if f in row], channel
        )
    if "leaders" in meta:
        rows = led(spec, meta["leaders"], rows, WIDTH)
        spec["data"] = {"values": rows}
    if "colours" in meta:
        shapes = meta["colours"].get("shapes", figure.shapes)
        _colour(spec, meta["colours"], rows, shapes)
    config = spec.pop("config")
    config["legend"] = config["legend"] | _CONFIG["legend"]
    config["axis"] = config["axis"] | _CONFIG["axis"]
    if layers is not None or isinstance(spec["height"], Mapping):
        config["autosize"] = {"type": "pad"}
    text = json.dumps(spec | {"config": config | {"background": "white"}})
    for name, colour in _COLOURS.items():
        text = text.replace(name, colour)
    found: Spec = visible_in(json.loads(text))  # vl_convert aborts the process for an ESC
    return found


def _has(rows: Sequence[Mapping[str, Any]], layer: Spec) -> bool:
    field = layer.get("encoding", {}).get("y", {}).get("field")
    return field is None or any(row.get(field) is not None for row in rows)


def _colour(
    spec: Spec, asked: Spec, rows: Sequence[Mapping[str, Any]], shapes: Mapping[str, str]
) -> None:
    """Set a colour, and a shape of points if they have one, for each name that occurs."""
    found = list(dict.fromkeys(row[asked["field"]] for row in rows))
    known, spare = asked["known"], asked["spare"]
    names = [*(n for n in known if n in found), *(n for n in found if n not in known)]
    others = [name for name in names if name not in known]
    colours = known | {name: spare[i % len(spare)] for i, name in enumerate(others)}
    if any("leads" in row for row in rows):
        leading = {row[asked["field"]] for row in rows if row.get("leads")}
        colours |= told_apart([name for name in names if name in leading], colours)
    spec["encoding"]["color"]["scale"] = {
        "domain": names, "range": [colours[name] for name in names],
    }  # fmt: skip
    for layer in spec.get("layer", ()):
        if "shape" in layer.get("encoding", {}):
            layer["encoding"]["shape"]["scale"] = {
                "domain": names, "range": [shapes.get(name, "circle") for name in names],
            }  # fmt: skip


def _log(channel: Spec, values: Sequence[float], name: str) -> None:
    """Make a channel's axis logarithmic if its values span a decade."""
    positive = [value for value in values if value > 0]
    if not positive or math.log10(max(positive) / min(positive)) < math.log10(DECADE):
        return
    kept = {key: value for key, value in channel.get("scale", {}).items() if key != "zero"}
    room = 8 if name == "y" else 12
    channel["scale"] = kept | {"type": "log", "nice": False, "padding": room}
    title = f"{channel['axis']['title']}, logarithmic"
    channel["axis"] |= {"tickCount": 6, "format": "~g", "title": title}

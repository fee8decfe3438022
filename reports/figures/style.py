"""Shared style of all charts: colours for colour-blind readers, axes, tooltips and scales.

A spec has no rows, on which scales depend: its ``usermeta`` states how scales follow from them, and
`fitted` (templates/js/charts.js and formats/svg.py) applies it before drawing.

``usermeta.colours``: the coloured field, the colours of known names, and spare ones for others.
``usermeta.log``: by channel, the fields whose axis is logarithmic if their values span a decade.
``usermeta.sort``: by channel, the field whose names are sorted by the rows' ``rank``.
``usermeta.room``: by channel, the field whose axis leaves room for text after its largest value.
``usermeta.leaders``: how lines are ranked (`reports.figures.leaders`).
"""

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import count
from typing import Any

Spec = dict[str, Any]

#: Okabe and Ito's palette without black and yellow, which vanish on one of the two backgrounds.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6bb1", "#868e96")

#: CSS variable of the colour of lines that are not among a chart's leaders.
REST = "--rest"

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

#: Times that differ by more than this are drawn on a logarithmic axis.
DECADE = 10


def system_colours(systems: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a shape for each system: 56 distinct pairs, as 8 and 7 are coprime."""
    return {
        system: (PALETTE[i % len(PALETTE)], SHAPES[i % len(SHAPES)])
        for i, system in zip(count(), systems, strict=False)
    }


def coloured(
    field: str, known: Mapping[str, str], spare: Iterable[str] = PALETTE,
    shapes: Mapping[str, str] | None = None,
) -> Spec:  # fmt: skip
    """Return the Vega-Lite ``usermeta`` entry that names the colours of a scale.

    Args:
        shapes: of the names' points, unless they are systems, whose shapes the report knows.
    """
    found = {"field": field, "known": dict(known), "spare": list(spare)}
    return {"colours": found | ({"shapes": dict(shapes)} if shapes else {})}


def axis(title: str | None, form: str | None = None, grid: bool = True) -> Spec:
    """Return an axis with a title and a number format."""
    return {"title": title, "grid": grid, "tickCount": 6} | ({"format": form} if form else {})


def trimmed(form: str) -> str:
    """Return a number format without trailing zeros, for an axis."""
    return f"{form[:-1]}~{form[-1]}"


def tooltip(*fields: tuple[str, str] | tuple[str, str, str]) -> list[Spec]:
    """Return a tooltip channel: fields with their titles, and number formats except for strings."""
    return [
        {"field": one[0], "title": one[1]}
        | ({"type": "quantitative", "format": one[2]} if len(one) == 3 else {"type": "nominal"})
        for one in fields
    ]


def finished(spec: Spec, height: int | Spec, meta: Spec | None = None) -> Spec:
    """Return a spec with its container's width and the report's style of axes and legends."""
    return spec | {
        "width": "container",
        "height": height,
        "usermeta": meta or {},
        "config": {
            "font": "system-ui, sans-serif",
            "autosize": {"type": "fit-x", "contains": "padding"},
            "view": {"stroke": None},
            "axis": {"titleFontWeight": "normal", "labelFontSize": 12, "titleFontSize": 12},
            "axisY": {"ticks": False, "domain": False, "labelPadding": 8},
            "legend": {
                "labelFontSize": 12,
                "columns": 6,
                "labelLimit": 260,
                "symbolLimit": 60,
                "symbolOpacity": 1,
            },
        },
    }


@cache
def library() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that defines `vegaEmbed`, 900 kB."""
    # Unpacking the libraries takes seconds, so only pages import them.
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script

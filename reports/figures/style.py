"""What all figures share: colours that colour-blind readers can tell apart, and scales.

Which names and values occur is known only where rows are: a spec says in its ``usermeta`` how its
scales follow from them, and the page's `fitted` (templates/js/charts.js) fits them before drawing.

``usermeta.colours``: the field that is coloured, each known name's colour, spare ones for others.
``usermeta.log``: by channel, the fields whose axis is logarithmic where their values span a decade.
``usermeta.sort``: by channel, the field whose names stand in the order of the rows' ``rank``.
``usermeta.room``: by channel, the field whose axis leaves room for text behind its largest value.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import count
from typing import Any

Spec = dict[str, Any]

#: Okabe and Ito's palette without black and yellow, which vanish on one of the two backgrounds.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6bb1", "#868e96")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")

#: Times that differ by more than this are drawn on a logarithmic axis.
DECADE = 10


def system_colours(systems: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A colour and a shape for each system; as 8 and 7 have no factor in common, 56 pairs."""
    return {
        system: (PALETTE[i % len(PALETTE)], SHAPES[i % len(SHAPES)])
        for i, system in zip(count(), systems, strict=False)
    }


def coloured(field: str, known: Mapping[str, str], spare: Iterable[str] = PALETTE) -> Spec:
    """The ``usermeta`` of a colour scale."""
    return {"colours": {"field": field, "known": dict(known), "spare": list(spare)}}


def axis(title: str | None, form: str | None = None, grid: bool = True) -> Spec:
    """An axis with a title, and how it writes numbers."""
    return {"title": title, "grid": grid, "tickCount": 6} | ({"format": form} if form else {})


def tooltip(*fields: tuple[str, str] | tuple[str, str, str]) -> list[Spec]:
    """Fields with their titles, and a number's form; of strings without one."""
    return [
        {"field": one[0], "title": one[1]}
        | ({"type": "quantitative", "format": one[2]} if len(one) == 3 else {"type": "nominal"})
        for one in fields
    ]


def finished(spec: Spec, height: int | Spec, meta: Spec | None = None) -> Spec:
    """The spec at the width of its place, with the report's own shape of axes and legends."""
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
    """Vega, Vega-Lite and vega-embed as one script that defines `vegaEmbed` (about 900 kB)."""
    # Unpacking the libraries takes seconds: only where a page is made.
    import altair as alt
    import vl_convert

    version = alt.SCHEMA_VERSION.lstrip("v").rpartition(".")[0]
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)
    return script

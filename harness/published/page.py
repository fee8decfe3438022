"""An HTML page of predicted against measured rates: SVG charts and a legend, no scripts.

First a chart for each phase, then the curves of the groups: measured and predicted over each other.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from moebench.harness.published.laws import Law, laws
from moebench.harness.published.prediction import Phase, Prediction
from moebench.harness.published.rows import Row
from moebench.harness.published.score import Pair, compared, ratio
from moebench.reports.figures.style import SHAPES, system_colours
from moebench.substrate.text import visible

#: Side of a chart's square of data, and the margins left of and below it, in pixels.
SIDE, LEFT, BELOW, ABOVE = 420, 64, 48, 24

_PHASES: tuple[Phase, ...] = ("decode", "prefill")

#: Outlines of the points around (0, 0), in pixels.
_OUTLINES = dict(
    zip(
        SHAPES,
        (
            "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
            "M-3.5 -3.5h7v7h-7z",
            "M0 -4.5l4.5 8h-9z",
            "M0 -5l4.5 5l-4.5 5l-4.5 -5z",
            "M-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
            "M0 4.5l4.5 -8h-9z",
            "M4.5 0l-8 4.5v-9z",
        ),
        strict=True,
    )
)

_STYLE = """
:root { color-scheme: light dark; --paper: light-dark(#ffffff, #14181d);
  --ink: light-dark(#1f2933, #e3e8ee); --muted: light-dark(#52606d, #9fb0c0);
  --rule: light-dark(#dfe3e8, #39434e); }
body { margin: 0 auto; max-width: 68rem; padding: 1.25rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; }
p { color: var(--muted); font-size: .88rem; max-width: 60rem; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--muted); }
svg .title { fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--rule); }
.equal { stroke: var(--ink); }
.twice { stroke: var(--muted); stroke-dasharray: 4 4; }
.point { fill-opacity: .75; }
.point:hover { fill-opacity: 1; stroke: var(--ink); }
.point.faint { fill-opacity: .25; }
.curves { display: flex; flex-wrap: wrap; gap: .75rem; }
.curves figure { margin: 0; width: 224px; }
.curves figcaption { color: var(--muted); font-size: .75rem; overflow-wrap: anywhere; }
.curve { fill: none; stroke-width: 2; }
.predicted { stroke-dasharray: 5 3; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 0; }
ul { list-style: none; padding: 0; columns: 22rem; font-size: .82rem; }
li { break-inside: avoid; overflow-wrap: anywhere; }
li svg { vertical-align: -2px; margin-right: .35rem; }
"""


def page(rows: Sequence[Row], predictions: Sequence[Prediction]) -> str:
    """Return the page: decode and prefill side by side, in tokens/s on logarithmic axes."""
    pairs = compared(rows, predictions)
    marks = system_colours(dict.fromkeys(row.cluster for row, _ in pairs))
    charts = "".join(
        _chart(phase, [pair for pair in pairs if pair[1].phase == phase], marks)
        for phase in _PHASES
    )
    legend = "".join(
        f'<li><svg width="12" height="12" viewBox="-6 -6 12 12" aria-hidden="true">'
        f'<path d="{_OUTLINES[shape]}" fill="{colour}"/></svg>{_safe(name)}</li>'
        for name, (colour, shape) in marks.items()
    )
    curves = "".join(_figures(laws(rows, predictions)))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>moebench: predicted against measured</title><style>{_STYLE}</style></head><body>
<h1>Published measurements: predicted against measured tokens/s</h1>
<p>One point for each measured rate; colour and shape are the machine with the owner of the source.
On the solid line, prediction and measurement are equal; on the dashed lines they differ by a factor
of 2. Pale points are rows that are not absolute: only their order within a group counts. Point at
one to see its row, source and ratio (predicted / measured).</p>
<div class="charts">{charts}</div><ul>{legend}</ul>
<h2>Curves: milliseconds per token</h2>
<p>Rows of one system and group that differ in one variable.  Lines with points are measured, dashed
lines are predicted; both axes are linear and start at zero or at the smallest value.</p>
<div class="curves">{curves}</div></body></html>
"""


def _chart(phase: Phase, pairs: Sequence[Pair], marks: dict[str, tuple[str, str]]) -> str:
    """Return one phase's chart as SVG; without figures, an empty frame that states it."""
    width, height = LEFT + SIDE + 12, ABOVE + SIDE + BELOW
    head = (
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'aria-label="{phase}: predicted against measured tokens per second">'
        f'<text class="title" x="{LEFT}" y="15">{phase}</text>'
    )
    if not pairs:
        return f'{head}<text x="{LEFT}" y="{height / 2:g}">no predicted figure</text></svg>'
    values = [value for _, one in pairs for value in (one.measured, one.predicted or 0)]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05

    def at(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * SIDE

    grid = ""
    for tick in _ticks(10**low, 10**high):
        x, y = LEFT + at(tick), ABOVE + SIDE - at(tick)
        grid += (
            f'<path class="grid" d="M{x:.1f} {ABOVE}v{SIDE}M{LEFT} {y:.1f}h{SIDE}"/>'
            f'<text x="{x:.1f}" y="{ABOVE + SIDE + 16}" text-anchor="middle">{tick:g}</text>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    lines = "".join(_line(kind, math.log10(factor), low, high) for kind, factor in
                    (("equal", 1), ("twice", 2), ("twice", 0.5)))  # fmt: skip
    points = "".join(
        _point(pair, LEFT + at(pair[1].measured), ABOVE + SIDE - at(pair[1].predicted or 0), marks)
        for pair in sorted(pairs, key=lambda pair: pair[0].absolute)
    )
    middle = ABOVE + SIDE / 2
    return (
        f"{head}{grid}{lines}{points}"
        f'<text x="{LEFT + SIDE / 2}" y="{height - 8}" text-anchor="middle">'
        "measured (tokens/s), logarithmic</text>"
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        "predicted (tokens/s), logarithmic</text></svg>"
    )


#: Side of a curve's frame of data, and the margins left of and below it, in pixels.
CURVE_WIDTH, CURVE_HEIGHT, CURVE_LEFT, CURVE_BELOW = 170, 110, 44, 22


def _figures(found: Sequence[Law]) -> Iterator[str]:
    """Yield a figure for each group, phase and variable, with the curves of its systems."""
    of: dict[tuple[str, str, str], list[Law]] = defaultdict(list)
    for law in found:
        of[law.group, law.phase, law.variable].append(law)
    for (group, phase, variable), same in of.items():
        names = system_colours([law.system for law in same])
        systems = ", ".join(
            f'<span style="color:{names[law.system][0]}">{_safe(law.system)}</span>' for law in same
        )
        yield (
            f"<figure>{_curves(same, {name: colour for name, (colour, _) in names.items()})}"
            f"<figcaption>{_safe(group)}, {phase}, over {_safe(variable)}: {systems}</figcaption>"
            "</figure>"
        )


def _curves(same: Sequence[Law], colours: Mapping[str, str]) -> str:
    """Return the measured and the predicted curves of one figure as SVG."""
    points = [point for law in same for point in law.points]
    left, right = min(x for x, *_ in points), max(x for x, *_ in points)
    top = max(value for _, *both in points for value in both) * 1.05
    width, height = CURVE_LEFT + CURVE_WIDTH + 8, CURVE_HEIGHT + CURVE_BELOW + 8

    def place(x: float, ms: float) -> str:
        across = CURVE_LEFT + (x - left) / (right - left) * CURVE_WIDTH
        return f"{across:.1f} {8 + (1 - ms / top) * CURVE_HEIGHT:.1f}"

    drawn = ""
    for law in same:
        colour = colours[law.system]
        for kind, at in (("measured", 1), ("predicted", 2)):
            path = "L".join(place(point[0], point[at]) for point in law.points)
            drawn += f'<path class="curve {kind}" stroke="{colour}" d="M{path}"/>'
        for x, measured, predicted in law.points:
            said = (
                f"{law.system}: x = {x:.4g}, measured {measured:.4g} ms, predicted {predicted:.4g}"
            )
            drawn += (
                f'<path d="{_OUTLINES[SHAPES[0]]}" fill="{colour}" '
                f'transform="translate({place(x, measured)}) scale(.7)">'
                f"<title>{_safe(said)}</title></path>"
            )
    frame = f"M{CURVE_LEFT} 8v{CURVE_HEIGHT}h{CURVE_WIDTH}"
    return (
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'aria-label="milliseconds per token, measured and predicted">'
        f'<path class="grid" fill="none" d="{frame}"/>{drawn}'
        f'<text x="{CURVE_LEFT - 4}" y="16" text-anchor="end">{_short(top / 1.05)}</text>'
        f'<text x="{CURVE_LEFT - 4}" y="{8 + CURVE_HEIGHT}" text-anchor="end">0</text>'
        f'<text x="{CURVE_LEFT}" y="{height - 4}">{_short(left)}</text>'
        f'<text x="{width - 8}" y="{height - 4}" text-anchor="end">{_short(right)}</text></svg>'
    )


def _short(value: float) -> str:
    """Return a number with three digits, without an exponent where it is no longer for that."""
    return f"{float(f'{value:.3g}'):g}"


def _line(kind: str, shift: float, low: float, high: float) -> str:
    """Return the line predicted = 10^shift × measured, cut at the frame."""
    start, end = max(low, low - shift), min(high, high - shift)
    if start >= end:
        return ""
    scale = SIDE / (high - low)
    x1, x2 = (LEFT + (x - low) * scale for x in (start, end))
    y1, y2 = (ABOVE + SIDE - (x + shift - low) * scale for x in (start, end))
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """Return values to label: powers of ten, with 2 and 5 times these below three decades."""
    steps = (1, 2, 5) if high / low < 1000 else (1,)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [step * 10.0**decade for decade in decades for step in steps]
    return [value for value in values if low <= value <= high]


def _point(pair: Pair, x: float, y: float, marks: dict[str, tuple[str, str]]) -> str:
    row, one = pair
    colour, shape = marks[row.cluster]
    said = (
        f"{row.id}: measured {one.measured:.4g}, predicted {one.predicted:.4g} tokens/s, "
        f"ratio {ratio(one):.2f}\n{row.cluster}\n{row.source}: {row.where}"
    )
    faint = "" if row.absolute else " faint"
    return (
        f'<path class="point{faint}" transform="translate({x:.1f} {y:.1f})" fill="{colour}" '
        f'd="{_OUTLINES[shape]}"><title>{_safe(said)}</title></path>'
    )


def _safe(text: str) -> str:
    """Return a text for HTML, lines kept, with acting characters as escapes."""
    return escape("\n".join(map(visible, text.split("\n"))))

"""Rates at contexts between those of the grid: monotone interpolation, and its measured error.

Milliseconds for a token are interpolated over the logarithm of the context by a monotone cubic
(Fritsch and Carlson 1980, with the slopes of Fritsch and Butland 1984).  The page does the same in
JavaScript (``templates/js/advice.js``).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from moebench.harness.advise.grid import GridRow, InterpolationError, Point


class Rates(NamedTuple):
    """Rates of an engine in tokens/s."""

    decode: float | None
    prefill: float | None


def monotone(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Return the monotone cubic through the points at ``x``; constant outside of them.

    Args:
        xs: ascending.
    """
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    widths = [b - a for a, b in pairwise(xs)]
    rises = [(b - a) / w for (a, b), w in zip(pairwise(ys), widths, strict=True)]
    slopes = _slopes(widths, rises)
    at = max(i for i, left in enumerate(xs[:-1]) if left <= x)
    width, t = widths[at], (x - xs[at]) / widths[at]
    return (
        ys[at] * (1 + 2 * t) * (1 - t) ** 2 + width * slopes[at] * t * (1 - t) ** 2
        + ys[at + 1] * t * t * (3 - 2 * t) - width * slopes[at + 1] * t * t * (1 - t)
    )  # fmt: skip


def _slopes(widths: Sequence[float], rises: Sequence[float]) -> list[float]:
    """Return the slope at each point: 0 at a turn, else a harmonic mean of both sides' rises."""
    if len(rises) == 1:
        return [rises[0], rises[0]]
    inner = []
    for (w0, w1), (r0, r1) in zip(pairwise(widths), pairwise(rises), strict=True):
        a, b = 2 * w1 + w0, w1 + 2 * w0
        inner.append((a + b) / (a / r0 + b / r1) if r0 * r1 > 0 else 0.0)
    first = _end(widths[0], widths[1], rises[0], rises[1])
    return [first, *inner, _end(widths[-1], widths[-2], rises[-1], rises[-2])]


def _end(w0: float, w1: float, r0: float, r1: float) -> float:
    """Return the slope at an end: of the parabola through three points, kept monotone."""
    slope = ((2 * w0 + w1) * r0 - w0 * r1) / (w0 + w1)
    if slope * r0 <= 0:
        return 0.0
    return 3 * r0 if r0 * r1 < 0 and abs(slope) > 3 * abs(r0) else slope


def best_rows(rows: Iterable[GridRow]) -> dict[str, GridRow]:
    """Return the best row of each engine, by its name; rows are best first."""
    found: dict[str, GridRow] = {}
    for row in rows:
        found.setdefault(row.engine, row)
    return found


def between(points: Sequence[Point], context: int) -> dict[str, Rates]:
    """Return the rates at a context of the best rows of engines that both neighbours have.

    Args:
        points: of one machine, model and format, ascending in context.
    """
    below = [point for point in points if point.context < context]
    above = [point for point in points if point.context > context]
    if not below or not above:
        return {}
    by_point = [(point.context, best_rows(point.rows)) for point in points]
    low, high = best_rows(below[-1].rows), best_rows(above[0].rows)
    return {
        name: Rates(*(
            _rate([(c, getattr(rows[name], phase)) for c, rows in by_point if name in rows],
                  below[-1].context, above[0].context, context)
            for phase in Rates._fields
        ))
        for name in high if name in low
    }  # fmt: skip


def _rate(
    curve: Sequence[tuple[int, float | None]], low: int, high: int, context: int
) -> float | None:
    """Return a rate at a context; None if a neighbour has none."""
    known = [(math.log2(c), 1e3 / rate) for c, rate in curve if rate]
    if not {math.log2(low), math.log2(high)} <= {x for x, _ in known}:
        return None
    return 1e3 / monotone([x for x, _ in known], [y for _, y in known], math.log2(context))


def interpolation_error(
    pairs: Iterable[tuple[Mapping[str, Rates], Iterable[GridRow]]],
) -> tuple[InterpolationError, ...]:
    """Return the errors of interpolated rates, by phase.

    Args:
        pairs: at each of some contexts, what was interpolated, and the rows that were computed.
    """
    errors: dict[str, list[float]] = {phase: [] for phase in Rates._fields}
    for guessed, rows in pairs:
        for name, row in best_rows(rows).items():
            for phase, guess in zip(Rates._fields, guessed.get(name, (None, None)), strict=True):
                exact = getattr(row, phase)
                if guess and exact:
                    errors[phase].append(abs(guess / exact - 1))
    return tuple(
        InterpolationError(phase, len(all_), _quantile(all_, 0.5), _quantile(all_, 0.9), max(all_))
        for phase, all_ in errors.items() if all_
    )  # fmt: skip


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]

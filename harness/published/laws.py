"""Laws of groups of published rows: time per token over what a curve varies, and crossings.

A curve is three or more rows of one system in one group that differ in one variable.  Its law is
the straight line of the time per token in ms over that variable by least squares, for measured and
for predicted rates alike.  Where the lines of two systems of a group cross is their crossing.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from moebench.harness.published.prediction import Phase, Prediction
from moebench.harness.published.rows import Row
from moebench.harness.published.score import CURVE, Pair, compared


def _layers(row: Row) -> float | None:
    return float(row.n_cpu_moe) if isinstance(row.n_cpu_moe, int) else None


def _inverse(number: float | None) -> float | None:
    return 1 / number if number else None


def _named(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return float(found[1]) if found else None


#: What curves vary, in the order in which it is looked for; an inverse makes its law a line.
VARIABLES: dict[str, Callable[[Row], float | None]] = {
    "layers on the host": _layers,
    "1 / threads": lambda row: _inverse(row.threads),
    "1 / tokens of a micro-batch": lambda row: _inverse(row.ubatch),
    "resident experts of a layer": lambda row: _named(
        r"(\d+) (?:resident )?experts?", row.cached_experts_or_slots + " " + row.other_flags
    ),
    "1 / MT/s": lambda row: _inverse(_named(r"DDR\d-(\d+)", row.ram_type)),
    "tokens": lambda row: None if row.prompt_tokens is None else float(row.prompt_tokens),
}


class Line(NamedTuple):
    """Time per token in ms: ``start + slope * variable``."""

    start: float
    slope: float

    def crossing(self, other: "Line") -> float | None:
        """Return the variable's value where two lines cross; None for parallel ones."""
        return None if self.slope == other.slope else (
            (other.start - self.start) / (self.slope - other.slope)
        )  # fmt: skip


class Law(NamedTuple):
    """The law of a curve.

    Attributes:
        variable: one of `VARIABLES`.
        points: its values, with the measured and the predicted ms of a token, by value.
    """

    group: str
    phase: Phase
    system: str
    variable: str
    points: tuple[tuple[float, float, float], ...]
    measured: Line
    predicted: Line


class Crossing(NamedTuple):
    """Value of the variable at which two systems of a group are equally fast; None outside both."""

    group: str
    phase: Phase
    systems: tuple[str, str]
    variable: str
    measured: float | None
    predicted: float | None


def laws(rows: Sequence[Row], predictions: Sequence[Prediction]) -> list[Law]:
    """Return the laws of all curves, in the order of the rows."""
    curves: dict[tuple[str, Phase, str], list[Pair]] = defaultdict(list)
    for row, one in compared(rows, predictions):
        if row.group.strip():
            curves[row.group, one.phase, row.system.strip()].append((row, one))
    return [law for key, pairs in curves.items() if (law := _law(*key, pairs)) is not None]


def _law(group: str, phase: Phase, system: str, pairs: Sequence[Pair]) -> Law | None:
    """Return the law over the variable with the most values; None without a curve."""
    best: tuple[int, str, list[float]] | None = None
    for name, value in VARIABLES.items():
        found = [value(row) for row, _ in pairs]
        numbers = [x for x in found if x is not None]
        count = len(set(numbers))
        if len(numbers) == len(pairs) and count >= CURVE and (best is None or count > best[0]):
            best = count, name, numbers
    if best is None:
        return None
    _, variable, values = best
    points = sorted(
        (x, 1e3 / one.measured, 1e3 / one.predicted)
        for x, (_, one) in zip(values, pairs, strict=True)
        if one.predicted
    )
    x, measured, predicted = (np.array(column) for column in zip(*points, strict=True))
    return Law(group, phase, system, variable, tuple(points), _line(x, measured),
               _line(x, predicted))  # fmt: skip


def _line(x: np.ndarray, y: np.ndarray) -> Line:
    slope, start = np.polyfit(x, y, 1)
    return Line(float(start), float(slope))


def crossings(found: Sequence[Law]) -> Iterator[Crossing]:
    """Yield the crossings of the curves of each group that vary the same."""
    of: dict[tuple[str, Phase, str], list[Law]] = defaultdict(list)
    for law in found:
        of[law.group, law.phase, law.variable].append(law)
    for (group, phase, variable), same in of.items():
        for one, other in combinations(same, 2):
            low = max(law.points[0][0] for law in (one, other))
            high = min(law.points[-1][0] for law in (one, other))

            def within(x: float | None, low: float = low, high: float = high) -> float | None:
                return x if x is not None and low <= x <= high else None

            yield Crossing(
                group, phase, (one.system, other.system), variable,
                within(one.measured.crossing(other.measured)),
                within(one.predicted.crossing(other.predicted)),
            )  # fmt: skip

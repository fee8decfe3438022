"""Ratios of a time between the systems of a table, and which of them cannot be told apart.

The interval of a ratio covers two uncertainties.  The first is the choice of cells: Student's, at
95 %, over paired cells, from three on.  The second is the hardware profile, for simulated times:
both systems run on the same machine, so each number of the profile moves both of their times, and
their ratio by less.  Numbers are independent: their shares add up as the root of the sum of
squares, as in a run's own interval (`harness.run.interval`).  A document names the numbers that
move a run most; what the others add to its interval counts as independent of the other run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from moebench.reports.compare.conditions import InputSet
from moebench.results.document import Document, dig, effects_on
from moebench.results.intervals import Interval, ratio_interval
from moebench.results.metrics import metric_of

#: Fewest cells whose differences give an interval: over two it is an order of magnitude too wide.
CELLS = 3


class Ratio(NamedTuple):
    """Ratio of two systems' times, with its interval; None if nothing is known of it."""

    value: float
    interval: Interval | None

    @property
    def tied(self) -> bool:
        """Whether the systems cannot be told apart."""
        if self.interval is None:
            return math.isclose(self.value, 1.0)
        return self.interval.low <= 1.0 <= self.interval.high


@dataclass(frozen=True, slots=True)
class Times:
    """A time of one system, TPOT or TTFT, and how far the numbers of the profile move it.

    Attributes:
        by_cell: mean time in ms of a cell's runs.
        effects: by number of the profile, the changes of the time at its low and at its high end,
            as shares of it; empty for measured times.
        rest: decrease and increase due to all other numbers, as shares of the time.
    """

    by_cell: Mapping[InputSet, float]
    effects: Mapping[str, tuple[float, float]]
    rest: tuple[float, float]

    @classmethod
    def of(cls, cells: Mapping[InputSet, Sequence[Document]], figure: str = "tpot_ms") -> "Times":
        """Return the times of a system's runs by cell; at least one run has a time.

        Args:
            figure: ``tpot_ms``, or ``ttft_ms`` of whole documents.
        """
        read, by_cell = metric_of(figure).read, {}
        for cell, runs in cells.items():
            known = [value for run in runs if (value := read(run)) is not None]
            if known:
                by_cell[cell] = fmean(known)
        # Runs of a row differ in texts and seeds alone, which change the effects by little.
        run = next((run for runs in cells.values() for run in runs if run.get("interval")), None)
        return cls(by_cell, *_effects(run, figure)) if run else cls(by_cell, {}, (0.0, 0.0))

    @property
    def mean(self) -> float:
        """Mean time over cells, in ms."""
        return fmean(self.by_cell.values())

    def over(self, other: "Times") -> Ratio:
        """Return this time over another system's."""
        value, parts = self.mean / other.mean, []
        if len(self.by_cell) >= CELLS and self.by_cell.keys() == other.by_cell.keys():
            found = ratio_interval(
                [self.by_cell[cell] for cell in other.by_cell], [*other.by_cell.values()]
            )
            assert found is not None, "several cells"
            parts.append((value - found.low, found.high - value))
        if self.effects or other.effects or any(self.rest) or any(other.rest):
            down, up = self._moved(other)
            parts.append((value * down, value * up))
        if not parts:
            return Ratio(value, None)
        low, high = (math.hypot(*sides) for sides in zip(*parts, strict=True))
        return Ratio(value, Interval(max(value - low, 0.0), value + high))

    def _moved(self, other: "Times") -> tuple[float, float]:
        """Return how far the profile's numbers together decrease and increase the ratio."""
        names, none = [*{**self.effects, **other.effects}], (0.0, 0.0)
        ours = 1 + np.array([self.effects.get(name, none) for name in names]).reshape(-1, 2)
        theirs = 1 + np.array([other.effects.get(name, none) for name in names]).reshape(-1, 2)
        changes = ours / np.maximum(theirs, 1e-9) - 1
        down, up = changes.min(1, initial=0.0), changes.max(1, initial=0.0)
        (less, more), (less_there, more_there) = self.rest, other.rest
        return (
            math.hypot(*down, less, more_there / (1 + more_there)),
            math.hypot(*up, more, less_there / max(1 - less_there, 1e-9)),
        )


def _effects(
    run: Document, figure: str
) -> tuple[dict[str, tuple[float, float]], tuple[float, float]]:
    """Return a run's named effects on a time, and what all others decrease and increase it by."""
    effects, mean = effects_on(run, figure), dig(run, f"metrics.{figure}.mean")
    low, high = (dig(run, f"interval.{figure}.{end}") for end in ("low", "high"))
    if not mean or low is None or high is None:
        return effects, (0.0, 0.0)
    ends = (max(1 - low / mean, 0.0), max(high / mean - 1, 0.0))
    named = (
        math.hypot(*(min(0.0, *both) for both in effects.values())),
        math.hypot(*(max(0.0, *both) for both in effects.values())),
    )
    down, up = (
        math.sqrt(max(end**2 - part**2, 0.0)) for end, part in zip(ends, named, strict=True)
    )
    return effects, (down, up)

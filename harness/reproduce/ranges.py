"""Claims over the ranges of uncertain numbers: figures, verdicts, and where a verdict changes.

A claim's experiments name the numbers that decide their times (`Experiment.numbers`).  Each number
is moved alone, on all machines of the claim at once, through the range that its profile states.
The cells are those of ``--quick``.  Where the verdict changes between two places, the distance is
halved until it is at most `FINEST`; the crossing is then interpolated.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from moebench.harness.reproduce.claim import Claim
from moebench.harness.reproduce.evidence import UNDEFINED, Evidence, Experiment
from moebench.results.claims import Crossing, Point, Range, Verdict
from moebench.substrate.errors import IntegrityError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.profile_ranges import Uncertain, number_at, uncertain

#: Places of a range that are measured in any case.
PLACES = (-1.0, -0.5, 0.0, 0.5, 1.0)

#: Distance of two places below which a change of the verdict is interpolated.
FINEST = 1 / 8

#: Experiments to run, with the evidence whose numbers apply to them.
Wanted = list[tuple[tuple[Experiment, ...], Evidence]]


@dataclass
class Search:
    """The figures of one claim over the range of one number.

    Attributes:
        numbers: the number on each machine of the claim's cells.
        figures: measured so far, by place.
        failed: whether a figure could not be measured.
    """

    claim: Claim
    field: str
    numbers: Mapping[str, Uncertain]
    figures: dict[float, float] = dataclasses.field(default_factory=dict)
    failed: bool = False

    @property
    def missing(self) -> list[float]:
        """The places to measure next; none when the search is done."""
        if self.failed:
            return []
        if not self.figures:
            return list(PLACES)
        return [
            (a + b) / 2
            for a, b in pairwise(sorted(self.figures))
            if b - a > FINEST and self._verdict(a) != self._verdict(b)
        ]

    def result(self) -> Range:
        """Return the range with its crossings and implied values."""
        places = sorted(self.figures)
        return Range(
            field=self.field,
            unit=next(iter(self.numbers.values())).number.unit,
            points=tuple(
                Point(at=at, values=self._values(at), figure=self.figures[at],
                      verdict=self._verdict(at))
                for at in places
            ),
            crossings=tuple(one for pair in pairwise(places) for one in self._crossings(*pair)),
            implied=tuple(
                self._values(at) for pair in pairwise(places) for at in self._implied(*pair)
            ),
        )  # fmt: skip

    def _verdict(self, at: float) -> Verdict:
        return self.claim.judge(self.figures[at])

    def _values(self, at: float) -> dict[str, float]:
        return {machine: number_at(number, at) for machine, number in self.numbers.items()}

    def _crossings(self, a: float, b: float) -> Iterator[Crossing]:
        """Yield the changes of the verdict between two places, where the figure passes an edge."""
        first, last = self.figures[a], self.figures[b]
        low, high = sorted((first, last))
        bands = (
            self.claim.bands.reproduced,
            self.claim.bands.no_effect,
            self.claim.bands.direction,
        )
        edges = {edge for band in bands if band for edge in (band.low, band.high)}
        passed = sorted((e for e in edges if e is not None and low <= e <= high),
                        reverse=first > last)  # fmt: skip
        stops = [first, *passed, last]
        between = [(x + y) / 2 for x, y in pairwise(stops)]
        verdicts = [self.claim.judge(value) for value in between]
        # At the ends the figures themselves count: an edge may be one of them.
        verdicts[0], verdicts[-1] = self._verdict(a), self._verdict(b)
        for edge, below, above in zip(passed, verdicts, verdicts[1:], strict=False):
            if below != above:
                at = _between(a, b, first, last, edge)
                yield Crossing(at=at, values=self._values(at), below=below, above=above)

    def _implied(self, a: float, b: float) -> Iterator[float]:
        """Yield the place between two others at which the figure is the paper's."""
        paper, first, last = self.claim.paper, self.figures[a], self.figures[b]
        if paper is not None and (first - paper) * (last - paper) < 0:
            yield _between(a, b, first, last, paper)


def _between(a: float, b: float, first: float, last: float, value: float) -> float:
    """Return the place from ``a`` to ``b`` of a value from ``first`` to ``last``, on a line."""
    share = (value - first) / (last - first) if last != first else 0.0
    return round(a + share * (b - a), 4)


def searches(claims: Iterable[Claim], evidence: Evidence) -> list[Search]:
    """Return a search for each claim and each of its numbers that has a range."""
    found, small = [], evidence.moved({})
    for claim in claims:
        for name in claim.numbers:
            numbers = _numbers(claim, name, small)
            if any(number_at(n, -1) != number_at(n, 1) for n in numbers.values()):
                found.append(Search(claim, name, numbers))
    return found


def _numbers(claim: Claim, name: str, evidence: Evidence) -> dict[str, Uncertain]:
    """Return an uncertain number on each machine of a claim's cells."""
    specs = [job.spec for experiment in claim.needs for job in evidence.jobs(experiment)]
    places = {spec.machine: spec.software for spec in specs if spec.machine != "local"}
    return {
        machine: number
        for machine, software in places.items()
        for number in uncertain(load_profile(machine, software))
        if number.field == name
    }


def carry_out(
    asked: Sequence[Search], evidence: Evidence, run: Callable[[Wanted], None]
) -> dict[str, tuple[Range, ...]]:
    """Measure all searches, in rounds whose cells run together; return the ranges by claim id.

    Args:
        run: runs the cells of some experiments.
    """
    at: dict[tuple[str, float], Evidence] = {}

    def moved(name: str, place: float) -> Evidence:
        key = (name, place) if place else ("", 0.0)  # at 0 all numbers are the profile's
        return at.setdefault(key, evidence.moved({name: place} if place else {}))

    while todo := [(one, place) for one in asked for place in one.missing]:
        run([(one.claim.needs, moved(one.field, place)) for one, place in todo])
        for one, place in todo:
            try:
                assert one.claim.measure is not None
                one.figures[place] = one.claim.measure(moved(one.field, place)).value
            except IntegrityError:
                raise
            except UNDEFINED:
                one.failed = True
    found: dict[str, list[Range]] = {}
    for one in asked:
        if not one.failed:
            found.setdefault(one.claim.id, []).append(one.result())
    return {name: tuple(ranges) for name, ranges in found.items()}

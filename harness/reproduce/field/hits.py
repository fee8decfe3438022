"""Pairs of systems in one place, of which the one with more hits is slower (R-1).

A hit saves the time of a miss, and systems pay differently for a miss: a copy over the link, a
product on the host, or both at once.  With h the hit rate and c what a miss costs, the system with
fewer hits is faster where

    (1 - h_few) · c_few < (1 - h_many) · c_many.
"""

from collections.abc import Iterator
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.field.experiments import SPEED
from moebench.harness.reproduce.read import TPOT
from moebench.results.claims import Measured
from moebench.results.document import Document, dig, system_of

#: Differences that count: of the hit rate, 0 to 1, and of TPOT as a share.
HITS, TIME = 0.02, 0.02


class Cell(NamedTuple):
    """One system in one place.

    Attributes:
        hits: hit rate, complete at the gate, 0 to 1.
        cost: time that the device waits for a miss, in ms; 0 without misses.
    """

    system: str
    hits: float
    tpot: float
    cost: float


class Contrast(NamedTuple):
    """Two systems of a place that differ in hits and in time; ``many`` has more hits."""

    place: str
    many: Cell
    few: Cell

    @property
    def reversed(self) -> bool:
        """Whether the system with more hits is slower."""
        return self.many.tpot > self.few.tpot

    @property
    def ratio(self) -> float:
        """TPOT of the system with more hits over that of the other."""
        return self.many.tpot / self.few.tpot

    @property
    def told(self) -> bool:
        """Whether the costs of misses tell which is slower."""
        few, many = ((1 - one.hits) * one.cost for one in (self.few, self.many))
        return (few < many) == self.reversed


def contrasts(runs: Runs) -> list[Contrast]:
    """Return all pairs of systems in one place that differ by `HITS` and `TIME` or more."""
    found = []
    for (model, machine, share, _), place in runs.groups(
        "model", "machine", "cache_ratio", "seed"
    ).items():
        name = f"{model}, {machine}, {share:.0%} of the experts"
        found += [Contrast(name, many, few) for many, few in _differing(map(_cell, place))]
    if not found:
        raise MissingEvidenceError("no two systems of a place differ in hits and time")
    return found


def _differing(cells: Iterator[Cell]) -> Iterator[tuple[Cell, Cell]]:
    for one, other in combinations(cells, 2):
        many, few = (one, other) if one.hits > other.hits else (other, one)
        if many.hits - few.hits >= HITS and abs(many.tpot / few.tpot - 1) >= TIME:
            yield many, few


def _cell(run: Document) -> Cell:
    spec = run["spec"]
    options = ", ".join(f"{name}={value}" for name, value in spec["overrides"].items())
    experts = dig(run, "metrics.experts.decode")
    misses = experts["active"] - experts["hits"]
    waited = sum(v for k, v in dig(run, "metrics.decode.stall_ms").items() if k != "control")
    name = f"{system_of(spec)} ({options})" if options else system_of(spec)
    return Cell(
        name, float(dig(run, "metrics.cache_ratio")), float(dig(run, TPOT)),
        waited / misses if misses else 0.0,
    )  # fmt: skip


def reversals(evidence: Evidence) -> Measured:
    """Measure the share of pairs whose system with more hits is slower, in percent."""
    runs = evidence.runs(SPEED)
    samples, pairs = [], 0
    for of in runs.by("seed").values():
        found = contrasts(of)
        pairs += len(found)
        samples.append(100 * fmean(pair.reversed for pair in found))
    said = f"{pairs} pairs at equal memory that differ by 2 points of hits and 2 % of TPOT or more"
    return Measured.of(samples, runs.badge, said)


def greatest(evidence: Evidence) -> Measured:
    """Measure the greatest TPOT of a system with more hits over one with fewer."""
    runs = evidence.runs(SPEED)
    samples = [max(pair.ratio for pair in contrasts(of)) for of in runs.by("seed").values()]
    pair = max(contrasts(runs), key=lambda one: one.ratio)
    said = f"{pair.few.system} with {pair.few.hits:.0%} hits, {pair.many.system} with "
    return Measured.of(samples, runs.badge, f"{said}{pair.many.hits:.0%}; {pair.place}")


def turns(evidence: Evidence) -> str:
    """Return the costs of a miss at which fewer hits are faster, in the clearest pair."""
    found = contrasts(evidence.runs(SPEED))
    pair = max(found, key=lambda one: one.ratio)
    edge = (1 - pair.many.hits) / (1 - pair.few.hits)
    actual = pair.few.cost / pair.many.cost if pair.many.cost else float("inf")
    told = fmean(one.told for one in found)
    return (
        "Fewer hits are faster where a miss costs less than (1 - h_many) / (1 - h_few) of what it "
        f"costs the other system. {_named(pair)} ({pair.place}): the edge is {edge:.2f}, and its "
        f"misses cost {actual:.2f}. This rule tells the faster system in {told:.0%} of "
        f"{len(found)} pairs."
    )


def _named(pair: Contrast) -> str:
    return (
        f"{pair.few.system} with {pair.few.hits:.0%} hits in {pair.few.tpot:.3g} ms, "
        f"{pair.many.system} with {pair.many.hits:.0%} in {pair.many.tpot:.3g} ms"
    )

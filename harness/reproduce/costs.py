"""Costs of reproductions: what one took, kept with its results, and what another one will take.

A reproduction keeps, in the provenance of each paper's results, the CPU seconds of a cell of each
experiment, of ``--quick`` and in full, and of the calling process (which measures claims, and
trains some networks).  Learning is part of the cells that learn.  `harness.reproduce.expected`
forecasts with them.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from moebench.harness.reproduce import ranges
from moebench.harness.reproduce.claim import Claim, PaperClaims
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.harness.reproduce.run_claims import DIFFERING, MOVABLE
from moebench.harness.sweep.estimate import run_seconds
from moebench.harness.sweep.forecast import LIVE, REPLAY, counts_of
from moebench.harness.sweep.progress import Board
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.results.claims import ClaimResult, PaperResult
from moebench.substrate.errors import IntegrityError, MoeBenchError

Size = Literal["quick", "full"]

_T = TypeVar("_T")


# ----------------------------------------------------------------------------- the cells


class Step(NamedTuple):
    """The cells of one experiment for the claims of a paper, their counters or their ranges."""

    paper: str
    experiment: str
    size: Size
    jobs: Sequence[Job]


def steps(
    papers: Sequence[PaperClaims], evidence: Evidence, known: Mapping[str, PaperResult]
) -> Iterator[Step]:
    """Yield the cells of a reproduction, as far as earlier results tell which there will be.

    Claims that differed before have their counter-experiments again, and ranges are measured at the
    same places; ranges without earlier results, at `ranges.PLACES`.  A cell may occur repeatedly.

    In a store without runs, cells of ranges have ids that only tell them apart: nothing is looked
    up by them, and real ones take a third of the time of all.

    Args:
        known: earlier results, by paper.
    """
    fresh = not evidence.store.ids()
    small = evidence.moved({})
    size: Size = "quick" if evidence.quick else "full"
    moved: dict[tuple[str, float], Evidence] = {}
    changed: dict[str, Evidence] = {}
    for paper in papers:
        needs = [*(c.needs for c in paper.claims), *(s.needs for s in paper.exhibits)]
        yield from _steps(paper, size, [one for some in needs for one in some], evidence)
        earlier = {one.id: one for one in known[paper.paper].claims} if paper.paper in known else {}
        for claim in paper.claims:
            for counter in claim.counters:
                if counter.always or _differed(claim, earlier):
                    for changes in ({}, counter.changes):
                        key = repr(sorted(changes.items()))
                        if key not in changed:
                            changed[key] = evidence.changed(changes)
                        yield from _steps(paper, "quick", claim.needs, changed[key])
        movable = [claim for claim in paper.claims if _may_move(claim, earlier)]
        for search in ranges.searches(movable, evidence):
            for place in _places(search, earlier):
                at = (search.field, place) if place else ("", 0.0)
                if fresh:
                    for step in _steps(paper, "quick", search.claim.needs, small):
                        yield step._replace(jobs=_elsewhere(step.jobs, *at)) if place else step
                    continue
                if at not in moved:
                    moved[at] = evidence.moved({search.field: place} if place else {})
                yield from _steps(paper, "quick", search.claim.needs, moved[at])


def _elsewhere(jobs: Sequence[Job], name: str, place: float) -> list[Job]:
    """Return jobs with ids of their own, for a place in the range of a number."""
    return [job._replace(cell_id=f"{job.cell_id}+{name}@{place:g}") for job in jobs]


def _differed(claim: Claim, earlier: Mapping[str, ClaimResult]) -> bool:
    return claim.id in earlier and earlier[claim.id].verdict in DIFFERING


def _may_move(claim: Claim, earlier: Mapping[str, ClaimResult]) -> bool:
    """Return whether a claim is measured over ranges; unknown claims are."""
    if claim.measure is None or not claim.numbers:
        return False
    before = earlier.get(claim.id)
    if before is None or before.measured is None:
        return before is None
    return before.verdict in MOVABLE and before.measured.badge != "counted"


def _places(search: ranges.Search, earlier: Mapping[str, ClaimResult]) -> Sequence[float]:
    before = earlier.get(search.claim.id)
    for one in before.ranges if before else ():
        if one.field == search.field:
            return [point.at for point in one.points]
    return ranges.PLACES


def _steps(
    paper: PaperClaims, size: Size, needs: Iterable[Experiment], evidence: Evidence
) -> Iterator[Step]:
    for experiment in {one.name: one for one in needs}.values():
        try:
            yield Step(paper.paper, experiment.name, size, evidence.jobs(experiment))
        except IntegrityError:
            raise
        except MoeBenchError:  # the reproduction says why, and leaves it out
            continue


# ----------------------------------------------------------------------------- measuring


def speed_s() -> float:
    """Return the CPU seconds of a fixed computation, the least of ten: the computer's speed.

    It is about half interpreted code and half products of small matrices, as runs are.
    """
    weights = np.full((256, 512), 0.5, dtype=np.float32)
    state = np.full((512, 1), 0.25, dtype=np.float32)
    taken = []
    for _ in range(10):
        began = time.process_time()
        counts: dict[int, int] = {}
        for number in range(150_000):
            counts[number % 97] = counts.get(number % 97, 0) + 1
        for _ in range(1000):
            weights @ state
        taken.append(time.process_time() - began)
    return min(taken)


@dataclass
class Meter:
    """Measures what a reproduction takes: CPU seconds of its cells and of this process by paper.

    Attributes:
        cells: wall seconds of each cell that was run.
        own: CPU seconds of this process while it measures the claims of each paper.
    """

    cells: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    _began: dict[str, float] = field(default_factory=dict)
    _cpu: float = field(default_factory=time.process_time)
    _workers: float = field(default_factory=lambda: _workers_s())

    @contextmanager
    def watched(self, opened: AbstractContextManager[Board]) -> Iterator[Board]:
        """Yield a board that notes the time of each cell and passes it on to another board."""
        with opened as shown:
            yield _Watched(self, shown)

    def started(self, cell: str) -> None:
        """Note that a cell starts."""
        self._began[cell] = time.monotonic()

    def ended(self, cell: str) -> None:
        """Note that a cell has ended."""
        self.cells[cell] = time.monotonic() - self._began.pop(cell)

    def timed(self, paper: PaperClaims) -> PaperClaims:
        """Return a paper's claims and exhibits with functions that note this process's time."""

        def around(make: Callable[..., _T]) -> Callable[..., _T]:
            def timed(*given: Any) -> _T:
                began = time.process_time()
                try:
                    return make(*given)
                finally:
                    spent = time.process_time() - began
                    self.own[paper.paper] = self.own.get(paper.paper, 0.0) + spent

            return timed

        claims = [
            replace(claim, measure=around(claim.measure)) if claim.measure else claim
            for claim in paper.claims
        ]
        exhibits = [replace(show, make=around(show.make)) for show in paper.exhibits]
        return replace(paper, claims=tuple(claims), exhibits=tuple(exhibits))

    def costs(
        self, papers: Sequence[PaperClaims], evidence: Evidence, found: Sequence[PaperResult],
        earlier: Mapping[str, PaperResult],
    ) -> dict[str, dict[str, Any]]:  # fmt: skip
        """Return what a finished reproduction took, by paper, for `PaperResult.provenance`.

        Experiments of which less than half of the cells ran now have the costs of earlier results.
        """
        workers, walls = _workers_s() - self._workers, sum(self.cells.values())
        share = min(1.0, workers / walls) if walls and workers else 1.0
        unshared = time.process_time() - self._cpu - sum(self.own.values())
        by: dict[tuple[str, str, Size], dict[str, Job]] = {}
        for step in steps(papers, evidence, {one.paper: one for one in found}):
            key = (step.paper, step.experiment, step.size)
            by.setdefault(key, {}).update({job.cell_id: job for job in step.jobs})
        size: Size = "quick" if evidence.quick else "full"
        costs: dict[str, dict[str, Any]] = {}
        for paper in papers:
            before = costs_of(earlier.get(paper.paper))
            experiments = {name: dict(sizes) for name, sizes in before["experiments"].items()}
            for (owner, name, how), jobs in by.items():
                ran = [self.cells[cell] * share for cell in jobs if cell in self.cells]
                if owner == paper.paper and len(ran) * 2 >= len(jobs) > 0:
                    sizes = experiments.setdefault(name, {})
                    sizes[how] = [len(ran), round(sum(ran) / len(ran), 4), work(jobs.values())]
            own = self.own.get(paper.paper, 0.0) + unshared / len(papers)
            fresh = bool(self.cells) or size not in before["own_s"]
            costs[paper.paper] = {
                "speed_s": round(speed_s(), 4),
                "own_s": before["own_s"] | ({size: round(own, 2)} if fresh else {}),
                "experiments": experiments,
            }
        return costs


class _Watched:
    """A board that notes the time of each cell, and shows what another board shows."""

    def __init__(self, meter: Meter, shown: Board) -> None:
        self._meter, self._shown = meter, shown

    def started(self, worker: int, job: Job) -> None:
        self._meter.started(job.cell_id)
        self._shown.started(worker, job)

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        self._meter.ended(job.cell_id)
        self._shown.ended(worker, job, outcome)


def _workers_s() -> float:
    """Return the CPU seconds of all processes that this one has started and that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def costs_of(result: PaperResult | None) -> dict[str, Any]:
    """Return the costs that a paper's results keep; empty ones if there are none."""
    found = result.provenance.get("costs") if result else None
    return found if isinstance(found, dict) else {"own_s": {}, "experiments": {}}


def work(jobs: Iterable[Job]) -> float:
    """Return the mean time of some cells by the constants for any cell, in seconds."""
    times = [run_seconds(counts_of(job.spec), REPLAY if job.spec.replays else LIVE) for job in jobs]
    return round(sum(times) / len(times), 4)

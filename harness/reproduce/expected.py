"""Expected time of a reproduction, from what an earlier one took (`harness.reproduce.costs`).

The CPU seconds of an earlier run's cells and of its calling process are multiplied by the cells
that are to run, counter-experiments and ranges included, and by this computer's speed.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moebench.harness.reproduce.costs import Size, Step, costs_of, speed_s, work
from moebench.harness.sweep.estimate import START_S
from moebench.harness.sweep.worker import Job
from moebench.results.claims import PaperResult

#: Least share of the calling process's time that is spent even if all cells are stored: DAOP's
#: claims with --quick took 69 s of it with their cells, and 35 s without.
LEAST_OWN = 0.5


@dataclass(frozen=True, slots=True)
class Guess:
    """Expected time of a reproduction.

    Attributes:
        seconds: wall time.
        cells, todo: distinct cells, and those that the store does not hold.
        measured: those to run whose costs were measured in an earlier reproduction.
        scale: time of this computer over that of the one that measured.
        of: when and with which commit the costs were measured.
    """

    seconds: float
    cells: int
    todo: int
    measured: int
    scale: float
    of: str


def guess(
    found: Iterable[Step], finished: Callable[[Iterable[str]], Mapping[str, str]],
    known: Mapping[str, PaperResult], processes: int, slowdown: float = 1.0,
) -> Guess:  # fmt: skip
    """Return the expected time of a reproduction's cells and of its calling process.

    Args:
        finished: returns which of some cells are stored.
        known: earlier results with their costs, by paper.
        processes: cells that run at the same time.
        slowdown: wall time over CPU time beside the other processes of this computer.
    """
    first: dict[str, Step] = {}
    jobs: dict[str, Job] = {}
    for step in found:
        for job in step.jobs:
            first.setdefault(job.cell_id, step)
            jobs.setdefault(job.cell_id, job)
    stored = finished(jobs)
    speed = speed_s()
    scales = {name: _scale(result, speed) for name, result in known.items()}
    seconds, measured = 0.0, 0
    left: dict[str, int] = {}
    sizes: dict[str, Size] = {}
    for cell, step in first.items():
        sizes.setdefault(step.paper, step.size)
        left.setdefault(step.paper, 0)
        if cell in stored:
            continue
        left[step.paper] += 1
        each = _each(costs_of(known.get(step.paper)), step, jobs[cell])
        measured += each is not None
        constant = work([jobs[cell]])
        seconds += constant if each is None else each * scales[step.paper]
    own = 0.0
    for paper, count in left.items():
        whole = sum(step.paper == paper for step in first.values())
        spent = costs_of(known.get(paper))["own_s"]
        usual = spent.get(sizes[paper], max(spent.values(), default=0.0))
        own += usual * scales.get(paper, 1.0) * max(count / whole, LEAST_OWN)
    todo = sum(left.values())
    cores = max(1, min(processes, os.cpu_count() or 1))
    start = START_S if todo else 0.0
    used = [known[paper] for paper in left if "costs" in known.get(paper, _NONE).provenance]
    made = {f"{r.provenance.get('created', '')[:10]} ({r.provenance.get('commit')})" for r in used}
    return Guess(
        (start + seconds / cores + own) * slowdown, len(jobs), todo, measured,
        max((scales[one.paper] for one in used), default=1.0), ", ".join(sorted(made)),
    )  # fmt: skip


#: Stands for a paper without earlier results.
_NONE = PaperResult(paper="smoe", title="", quick=True, provenance={}, claims=())


def _scale(result: PaperResult, speed: float) -> float:
    before = costs_of(result).get("speed_s")
    return speed / before if before else 1.0


def _each(costs: Mapping[str, Any], step: Step, job: Job) -> float | None:
    """Return a cell's CPU seconds from its experiment's costs; None if these are not known.

    Costs of the other size are multiplied by the ratio of the constants' times.
    """
    sizes = costs["experiments"].get(step.experiment, {})
    other: Size = "full" if step.size == "quick" else "quick"
    if step.size in sizes:
        return float(sizes[step.size][1])
    if other in sizes:
        _, seconds, by_constants = sizes[other]
        return float(seconds * work([job]) / by_constants)
    return None

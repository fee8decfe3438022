"""Runs the cells of a sweep on workers, and stores each when it is finished.

The calling process alone writes the store.  A cell is `done` in it only after its samples are on
disk, so a process that is killed leaves cells whole or not there.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from moebench.harness import keep as kept
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.pool import InProcess, Processes, Workers, schedule
from moebench.harness.sweep.progress import Board, title
from moebench.harness.sweep.worker import Document, Failed, Finished, Job, group_of
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.errors import MoeBenchError

#: Opens the workers for cells; told whether they measure this computer's hardware.
Open = Callable[[bool], Workers]


def jobs_of(
    specs: Sequence[RunSpec], planned: Planned,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Job]:  # fmt: skip
    """Return the jobs of cells with their ids, grouped by shared inputs."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(group_of(spec), []).append(spec)
    jobs: list[Job] = []
    for group, row in groups.items():
        for spec in row:
            jobs.append(Job(planned.cell_id(spec), spec, group))
            progress(len(jobs), len(specs))
    return jobs


def carry_out(jobs: Sequence[Job], store: Store, opened: Open, shown: Board) -> None:
    """Run cells and store their runs or failures.

    Cells that measure this computer run after all others, and alone: another one beside them would
    slow them down.

    Raises MoeBenchError: the store cannot be written; what was finished before is in it.
    """
    for local in (False, True):
        chosen = [job for job in jobs if (job.spec.machine == "local") == local]
        if not chosen:
            continue
        with closing(opened(local)) as workers:
            for worker, job, outcome in schedule(chosen, workers, shown.started):
                outcome = _checked(job, outcome)
                keep(store, job, outcome)
                shown.ended(worker, job, outcome)


def _checked(job: Job, outcome: Finished | Failed) -> Finished | Failed:
    """Return an outcome, or a failure if its run id shows that the worker's inputs differ."""
    if isinstance(outcome, Failed) or job.spec.machine == "local":
        return outcome
    if outcome.document["run_id"] == job.cell_id:
        return outcome
    text = "the worker read other weights, data or library versions than this computer has"
    return Failed(text, text)


def keep(store: Store, job: Job, outcome: Finished | Failed) -> None:
    """Store a cell's run or its failure."""
    spec = job.spec.model_dump()
    if isinstance(outcome, Failed):
        store.fail(job.cell_id, spec, outcome.error, outcome.traceback)
        return
    cell = (job.cell_id, spec)
    kept.keep(store, outcome.document, outcome.picture, outcome.samples, cell)


def local_workers(jobs: int | None, data_dir: Path | None, scratch: Path, samples: bool) -> Open:
    """Open workers on this computer: ``jobs`` processes, or this one for 0."""

    def opened(local: bool) -> Workers:
        if jobs == 0:
            return InProcess(data_dir, scratch, samples)
        size = 1 if local else processes_for(jobs)
        return Processes(size, data_dir, scratch, samples)

    return opened


def processes_for(jobs: int | None) -> int:
    """Return the number of processes that run cells: the given one, or one per core.

    For 0 it is 1: this process.
    """
    return max(1, os.cpu_count() or 1 if jobs is None else jobs)


def run_all(
    specs: Sequence[RunSpec], data_dir: Path | None, directory: Path, jobs: int,
    progress: Callable[[int, int], None],
) -> list[Document]:  # fmt: skip
    """Run specs, or take them from the store; return their documents in order.

    Args:
        directory: the store's; every finished run is in it at once.
        jobs: processes; 0 runs everything in this one.
        progress: told of finished and of all runs.

    Raises MoeBenchError: the first failure of a run; those that finished before are stored.
    """
    store = Store(directory)
    cells = jobs_of(specs, Planned(data_dir))
    finished = store.finished(job.cell_id for job in cells)
    todo = [job for job in cells if job.cell_id not in finished]
    opened = local_workers(jobs, data_dir, directory, samples=False)
    carry_out(todo, store, opened, _Strict(len(todo), progress))
    finished = store.finished(job.cell_id for job in cells)
    run_of = {job.spec.model_dump_json(): finished[job.cell_id] for job in cells}
    found = [store.get(run_of[spec.model_dump_json()]) for spec in specs]
    return [document for document in found if document is not None]


class _Strict:
    """A progress board that counts finished runs and stops at the first failure."""

    def __init__(self, total: int, progress: Callable[[int, int], None]) -> None:
        self._total, self._done, self._progress = total, 0, progress

    def started(self, worker: int, job: Job) -> None:
        """Do nothing: only finished runs are counted."""

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        if isinstance(outcome, Failed):
            raise MoeBenchError(f"{title(job.spec)}: {outcome.error}")
        self._done += 1
        self._progress(self._done, self._total)

"""``moebench sweep``: many cells, each kept as soon as it is finished; the rest can be resumed.

The command's process alone writes the store.  A cell is `done` in it only after its samples are on
disk, so a process that is killed leaves cells whole or not there.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import console
from harness.commands import find_data_dir, parse_settings, require_writable
from harness.pool import InProcess, Processes, Workers, schedule
from harness.spec import RunSpec
from harness.sweep_estimate import estimate
from harness.sweep_plan import cells_from_file, expand
from harness.sweep_progress import Board, board, title
from harness.sweep_worker import Document, Failed, Finished, Job, Opened, group_of
from results.samples import write_samples
from results.store import Store
from substrate.errors import MoeBenchError, UsageError

#: Opens the workers for cells; told whether they measure this computer's hardware.
Open = Callable[[bool], Workers]


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The options of ``moebench sweep`` as typed.

    Attributes:
        axes: field of a run → values separated by commas; None means "not given".
    """

    file: Path | None
    axes: dict[str, str | None]
    settings: list[str]
    jobs: int | None
    ray: str | None
    dry_run: bool
    force: bool
    retry_failed: bool
    samples: bool
    data_dir: Path | None
    store: Path
    json: bool


def sweep_command(request: SweepRequest) -> int:
    """Plan, show or carry out; 0 where every cell is done, 1 where some failed."""
    data_dir = find_data_dir(request.data_dir)
    specs = _specs(request, data_dir)
    store = Store(request.store)
    finished = store.finished()  # a store that cannot be read is said before cells are hashed
    cells = jobs_of(specs, data_dir)
    failed = {cell.cell_id: cell.error for cell in store.cells("failed")}
    again = request.retry_failed or request.force
    todo = [
        job for job in cells
        if (request.force or job.cell_id not in finished)
        and (again or job.cell_id not in failed)
    ]  # fmt: skip
    if request.dry_run:
        _show_plan(request, cells, todo, finished, failed, store)
        return 0
    require_writable(request.store)
    if todo:
        store.queue([(job.cell_id, job.spec.model_dump()) for job in todo])
        with _workers(request, data_dir) as opened, board(len(todo)) as shown:
            carry_out(todo, store, opened, shown)
    return _sum_up(request, cells, len(todo), store)


def _specs(request: SweepRequest, data_dir: Path | None) -> list[RunSpec]:
    axes = {k: _listed(text) for k, text in request.axes.items() if text is not None}
    if request.file is not None:
        if axes or request.settings:
            raise UsageError(f"{request.file} and flags: give a file or flags, not both")
        return cells_from_file(request.file, data_dir)
    if not axes:
        raise UsageError("nothing to sweep; give FILE.yaml or, for example, --systems smoe,...")
    common = {"set": parse_settings(request.settings)}
    return expand({"common": common, "product": axes}, data_dir)


def _listed(text: str) -> list[str]:
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise UsageError(f"{text!r}: allowed: values separated by single commas")
    return values


def jobs_of(specs: Sequence[RunSpec], data_dir: Path | None) -> list[Job]:
    """Cells with their identities, those of one group together."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(group_of(spec), []).append(spec)
    opened = Opened(data_dir)
    return [Job(opened.cell_id(spec), spec, group) for group, row in groups.items() for spec in row]


# ----------------------------------------------------------------------------- running


def carry_out(jobs: Sequence[Job], store: Store, opened: Open, shown: Board) -> None:
    """Run cells and keep what comes back.

    Cells that measure this computer run after all others, and alone: another one beside them would
    slow them down.

    Raises:
        MoeBenchError: the store cannot be written; what was finished before is in it.
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
    """A worker on another machine must have read what this process would have read."""
    if isinstance(outcome, Failed) or job.spec.machine == "local":
        return outcome
    if outcome.document["run_id"] == job.cell_id:
        return outcome
    text = "the worker read other weights, data or library versions than this computer has"
    return Failed(text, text)


def keep(store: Store, job: Job, outcome: Finished | Failed) -> None:
    """Keep a cell's run or its failure."""
    spec = job.spec.model_dump()
    if isinstance(outcome, Failed):
        store.fail(job.cell_id, spec, outcome.error, outcome.traceback)
        return
    if outcome.samples:
        write_samples(store.directory, outcome.document["run_id"], outcome.samples)
    store.put(outcome.document, cell=(job.cell_id, spec))


@contextmanager
def _workers(request: SweepRequest, data_dir: Path | None) -> Iterator[Open]:
    if request.ray is None:
        yield local_workers(request.jobs, data_dir, request.store, request.samples)
        return
    try:
        import ray
    except ImportError as error:
        raise UsageError("--ray needs Ray: pip install 'moebench[cluster]'") from error
    from harness.cluster import RayWorkers, connect

    connect(request.ray)
    try:
        yield lambda local: RayWorkers(data_dir, request.samples, request.jobs, local)
    finally:
        ray.shutdown()


def local_workers(jobs: int | None, data_dir: Path | None, scratch: Path, samples: bool) -> Open:
    """Workers of this computer: ``jobs`` processes, or this one for 0."""

    def opened(local: bool) -> Workers:
        if jobs == 0:
            return InProcess(data_dir, scratch, samples)
        size = 1 if local else _processes(jobs)
        return Processes(size, data_dir, scratch, samples)

    return opened


def _processes(jobs: int | None) -> int:
    return jobs or os.cpu_count() or 1


def run_all(
    specs: Sequence[RunSpec],
    data_dir: Path | None,
    directory: Path,
    jobs: int,
    progress: Callable[[int, int], None],
) -> list[Document]:
    """Carry out runs, or take them from the store; their documents in the order of the specs.

    Args:
        directory: the store's; every finished run is in it at once.
        jobs: processes; 0 runs everything in this one.
        progress: told of finished and of all runs.

    Raises:
        MoeBenchError: the first failure of a run; those that finished before are stored.
    """
    store = Store(directory)
    cells = jobs_of(specs, data_dir)
    finished = store.finished()
    todo = [job for job in cells if job.cell_id not in finished]
    opened = local_workers(jobs, data_dir, directory, samples=False)
    carry_out(todo, store, opened, _Strict(len(todo), progress))
    finished = store.finished()
    run_of = {job.spec.model_dump_json(): finished[job.cell_id] for job in cells}
    found = [store.get(run_of[spec.model_dump_json()]) for spec in specs]
    return [document for document in found if document is not None]


class _Strict:
    """A board that counts, and stops at the first failure."""

    def __init__(self, total: int, progress: Callable[[int, int], None]) -> None:
        self._total, self._done, self._progress = total, 0, progress

    def started(self, worker: int, job: Job) -> None:
        """Nobody asks."""

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        if isinstance(outcome, Failed):
            raise MoeBenchError(f"{title(job.spec)}: {outcome.error}")
        self._done += 1
        self._progress(self._done, self._total)


# ----------------------------------------------------------------------------- showing


def _show_plan(
    request: SweepRequest, cells: Sequence[Job], todo: Sequence[Job], finished: dict[str, str],
    failed: dict[str, str | None], store: Store,
) -> None:  # fmt: skip
    state = {job.cell_id: "to run" for job in todo}
    known = dict.fromkeys(finished, "stored") | dict.fromkeys(failed, "failed before")
    states = [state.get(job.cell_id) or known[job.cell_id] for job in cells]
    processes = 1 if request.jobs == 0 else _processes(request.jobs)
    guess = estimate([job.spec for job in todo], store.runs(), processes)
    counts = Counter(states)
    if request.json:
        rows = [
            {"cell_id": job.cell_id, "state": s, "spec": job.spec.model_dump()}
            for job, s in zip(cells, states, strict=True)
        ]
        plan: dict[str, Any] = {"cells": rows, "estimate_s": round(guess.seconds, 1)}
        print(json.dumps(plan, sort_keys=True))
    else:
        lines = [[job.cell_id, s, title(job.spec)] for job, s in zip(cells, states, strict=True)]
        console.table("cells", ["cell", "state", "what"], lines)
    said = ", ".join(f"{n} {name}" for name, n in counts.items())
    console.stderr().print(f"{len(cells)} cells: {said}; {processes} at a time, {guess}")


def _sum_up(request: SweepRequest, cells: Sequence[Job], ran: int, store: Store) -> int:
    finished = store.finished()
    failures = {cell.cell_id: cell for cell in store.cells("failed")}
    failed = [job for job in cells if job.cell_id in failures]
    if request.json:
        rows = [
            {"cell_id": job.cell_id, "run_id": finished.get(job.cell_id), "error": None}
            | ({"error": failures[job.cell_id].error} if job.cell_id in failures else {})
            for job in cells
        ]
        print(json.dumps({"cells": rows}, sort_keys=True))
    done = sum(job.cell_id in finished for job in cells)
    line = f"{len(cells)} cells: {done} done ({len(cells) - ran} were known), {len(failed)} failed"
    out = console.stderr()
    out.print(f"{line}; moebench report shows them")
    if failed:
        out.print("moebench report names the failures; --retry-failed runs these cells again")
    return 1 if failed else 0

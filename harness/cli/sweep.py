"""``moebench sweep``, once its options are parsed: plans cells, shows them or carries them out."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.arguments import find_data_dir, parse_overrides, require_writable
from moebench.harness.cli.usage_errors import fitted
from moebench.harness.sweep.estimate import estimate
from moebench.harness.sweep.execute import Open, carry_out, jobs_of, local_workers, processes_for
from moebench.harness.sweep.plan import cells_from_file, expand
from moebench.harness.sweep.progress import board, title
from moebench.harness.sweep.worker import Job, Opened
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.results.store_hints import in_store
from moebench.substrate.errors import UsageError

#: Planning a few cells takes less, and says nothing.
QUICK_S = 0.8


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The options of ``moebench sweep`` as typed.

    Attributes:
        axes: field of a run → values separated by commas; None means "not given".
    """

    file: Path | None
    axes: dict[str, str | None]
    overrides: list[str]
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
    console.say_refused({spec.system for spec in specs})
    store = Store(request.store)
    finished = store.finished()  # a store that cannot be read is said before cells are hashed
    with console.progress("naming cells", QUICK_S) as progress:
        cells = jobs_of(specs, data_dir, progress)
    failed = {cell.cell_id: cell.error for cell in store.cells("failed")}
    again = request.retry_failed or request.force
    todo = [
        job for job in cells
        if (request.force or job.cell_id not in finished)
        and (again or job.cell_id not in failed)
    ]  # fmt: skip
    if request.dry_run:
        return _show_plan(request, cells, todo, finished, failed, store, data_dir)
    require_writable(request.store)
    if todo:
        store.queue([(job.cell_id, job.spec.model_dump()) for job in todo])
        with _workers(request, data_dir) as opened, board(len(todo)) as shown:
            carry_out(todo, store, opened, shown)
    return _sum_up(request, cells, len(todo), store)


def _specs(request: SweepRequest, data_dir: Path | None) -> list[RunSpec]:
    axes = {k: _listed(text) for k, text in request.axes.items() if text is not None}
    if request.file is not None:
        if axes or request.overrides:
            raise UsageError(f"{request.file} and flags: give a file or flags, not both")
        with console.progress("planning cells", QUICK_S) as progress:
            return cells_from_file(request.file, data_dir, console.stderr().print, progress)
    if not axes:
        raise UsageError("nothing to sweep; give FILE.yaml or, for example, --systems smoe,...")
    common = {"set": parse_overrides(request.overrides)}
    with console.progress("planning cells", QUICK_S) as progress:
        plan = {"common": common, "product": axes}
        return expand(plan, data_dir, console.stderr().print, progress)


def _listed(text: str) -> list[str]:
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise UsageError(f"{text!r}: allowed: values separated by single commas")
    return values


@contextmanager
def _workers(request: SweepRequest, data_dir: Path | None) -> Iterator[Open]:
    if request.ray is None:
        yield local_workers(request.jobs, data_dir, request.store, request.samples)
        return
    try:
        import ray
    except ImportError as error:
        raise UsageError("--ray needs Ray: pip install 'moebench[cluster]'") from error
    from moebench.harness.sweep.cluster import RayWorkers, connect

    connect(request.ray)
    try:
        yield lambda local: RayWorkers(data_dir, request.samples, request.jobs, local)
    finally:
        ray.shutdown()


# ----------------------------------------------------------------------------- showing


def _show_plan(
    request: SweepRequest, cells: Sequence[Job], todo: Sequence[Job], finished: dict[str, str],
    failed: dict[str, str | None], store: Store, data_dir: Path | None,
) -> int:  # fmt: skip
    opened, problems = Opened(data_dir), {}
    with console.progress("checking cells", QUICK_S) as progress:
        for number, job in enumerate(todo, 1):
            progress(number, len(todo))
            if reason := opened.problem(job.spec):
                problems[job.cell_id] = reason
    state = {job.cell_id: "to run" for job in todo} | dict.fromkeys(problems, "cannot run")
    known = dict.fromkeys(finished, "stored") | dict.fromkeys(failed, "failed before")
    states = [state.get(job.cell_id) or known[job.cell_id] for job in cells]
    processes = 1 if request.jobs == 0 else processes_for(request.jobs)
    timed = [run for run in store.runs() if "evaluation" not in run]
    guess = estimate([job.spec for job in todo], timed, processes)
    counts = Counter(states)
    if request.json:
        rows = [
            {"cell_id": job.cell_id, "state": s, "spec": job.spec.model_dump()}
            | ({"error": problems[job.cell_id]} if job.cell_id in problems else {})
            for job, s in zip(cells, states, strict=True)
        ]
        plan: dict[str, Any] = {"cells": rows, "estimate_s": round(guess.seconds, 1)}
        print(json.dumps(plan, sort_keys=True))
    else:
        lines = [[job.cell_id, s, title(job.spec)] for job, s in zip(cells, states, strict=True)]
        console.table("cells", ["cell", "state", "what"], lines)
    said = ", ".join(f"{n} {name}" for name, n in counts.items())
    for reason, times in Counter(problems.values()).items():
        line = fitted(f"cannot run, {times} cells: {reason}", ["sweep"])
        console.stderr().print(line, markup=False)
    console.stderr().print(f"{len(cells)} cells: {said}; {processes} at a time, {guess}")
    return 1 if problems else 0


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
    where = in_store(request.store)
    out.print(f"{line}; moebench report{where} shows them")
    if failed:
        advice = "the same sweep with --retry-failed runs these cells again"
        out.print(f"moebench report{where} names the failures; {advice}")
    return 1 if failed else 0

"""``moebench sweep``: plans cells, and lists or runs them."""

import json as json_
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness.cli.options import Changed, takes_axes
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE, argument, option
from moebench.reports.text import counted

if TYPE_CHECKING:
    from moebench.harness.api.sweep import Plan
    from moebench.harness.sweep.execute import Open
    from moebench.harness.sweep.worker import Job
    from moebench.results.spec import RunSpec
    from moebench.results.store import Store

#: Planning a few cells takes less, and says nothing.
QUICK_S = 0.8


@takes_axes(system=Changed("Systems, separated by commas (as all lists)."))
def sweep(
    axes: dict[str, str],
    file: Annotated[
        Path | None, argument("YAML file of axes, or a shipped sweep: standard, ...")
    ] = None,
    set_: Annotated[
        list[str] | None,
        option("Option of the systems in all cells, as key=value; repeatable.", "--set"),
    ] = None,
    jobs: Annotated[
        int | None, option("Number of worker processes [one per core]; 0 runs in this one.", min=0)
    ] = None,
    ray: Annotated[str | None, option("Run on a Ray cluster: its address, or auto.")] = None,
    dry_run: Annotated[bool, option("List the cells and exit.", "--dry-run")] = False,
    force: Annotated[bool, option("Run stored cells again.", "--force")] = False,
    retry_failed: Annotated[bool, option("Run failed cells again.", "--retry-failed")] = False,
    no_samples: Annotated[
        bool, option("Do not keep the time of every token.", "--no-samples")
    ] = False,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Run every combination of the given axes; finished cells are not run again.

    Exit code: 0 every cell that is possible here is done, 1 a cell failed or none is possible.
    """
    from moebench.harness import console
    from moebench.harness.api.sweep import Plan
    from moebench.harness.arguments import find_data_dir, parse_overrides, require_writable
    from moebench.harness.sweep.execute import processes_for
    from moebench.harness.sweep.progress import board, forecast_of
    from moebench.results.store import Store

    folder, kept = find_data_dir(data_dir), Store(store)
    specs = _specs(file, axes, parse_overrides(set_ or []), folder)
    console.say_refused({spec.system for spec in specs})
    with console.progress("naming cells", QUICK_S) as progress:
        plan = Plan.of(specs, kept, folder, force, retry_failed, progress)
    if dry_run:
        raise typer.Exit(_show_plan(plan, kept, jobs, json))
    require_writable(store)
    if plan.todo:
        with workers_on(ray, jobs, folder, store, not no_samples) as workers:
            forecast = forecast_of(plan.todo, kept, plan.planned, processes_for(jobs))
            count = counted(len(plan.todo), "cell")
            console.say(f"{count} to run, {forecast.processes} at a time, {forecast}")
            with board(forecast) as shown:
                plan.run(kept, workers, shown)
    raise typer.Exit(_sum_up(plan.cells, len(plan.todo), kept, file is not None, json))


def _specs(
    file: Path | None, axes: dict[str, str], overrides: dict[str, str], data_dir: Path | None
) -> "list[RunSpec]":
    """Return the specs of all cells, from a sweep's file or the typed axes."""
    from moebench.harness import console
    from moebench.harness.arguments import listed
    from moebench.harness.sweep.plan import cells_from_file, expand
    from moebench.substrate.errors import UsageError

    lists = {name: listed(text) for name, text in axes.items()}
    if file is not None and (lists or overrides):
        raise UsageError(f"{file} and flags: give a file or flags, not both")
    if file is None and not lists:
        raise UsageError("nothing to sweep; give FILE.yaml or, for example, --systems smoe,...")
    with console.progress("planning cells", QUICK_S) as progress:
        if file is not None:
            return cells_from_file(file, data_dir, console.stderr().print, progress)
        plan = {"common": {"set": overrides}, "product": lists}
        return expand(plan, data_dir, console.stderr().print, progress)


@contextmanager
def workers_on(
    ray: str | None, jobs: int | None, data_dir: Path | None, store: Path, samples: bool
) -> "Iterator[Open]":
    """Open worker processes on this computer, or workers of a Ray cluster."""
    from moebench.harness.extras import require
    from moebench.harness.sweep.execute import local_workers

    if ray is None:
        yield local_workers(jobs, data_dir, store, samples)
        return
    require("ray", "--ray")
    import ray as cluster

    from moebench.harness.sweep.cluster import RayWorkers, connect

    connect(ray)
    try:
        yield lambda local: RayWorkers(data_dir, samples, jobs, local)
    finally:
        cluster.shutdown()


# ----------------------------------------------------------------------------- showing


def _show_plan(plan: "Plan", store: "Store", jobs: int | None, as_json: bool) -> int:
    """List the cells with state and estimated time; return 1 if none can run."""
    from moebench.harness import console
    from moebench.harness.cli.usage_errors import adapt_options
    from moebench.harness.sweep.execute import processes_for
    from moebench.harness.sweep.progress import forecast_of, title

    cells, todo = plan.cells, plan.todo
    problems = {}
    with console.progress("checking cells", QUICK_S) as progress:
        for number, job in enumerate(todo, 1):
            progress(number, len(todo))
            if reason := plan.planned.problem(job.spec):
                problems[job.cell_id] = reason
    state = {job.cell_id: "to run" for job in todo} | dict.fromkeys(problems, "not possible here")
    states = [state.get(job.cell_id) or plan.known[job.cell_id] for job in cells]
    possible = [job for job in todo if job.cell_id not in problems]
    forecast = forecast_of(possible, store, plan.planned, processes_for(jobs))
    counts = Counter(states)
    if as_json:
        rows = [
            {"cell_id": job.cell_id, "state": s, "spec": job.spec.model_dump()}
            | ({"error": problems[job.cell_id]} if job.cell_id in problems else {})
            for job, s in zip(cells, states, strict=True)
        ]
        listed: dict[str, Any] = {"cells": rows, "estimate_s": round(forecast.seconds, 1)}
        print(json_.dumps(listed, sort_keys=True))
    else:
        lines = [[job.cell_id, s, title(job.spec)] for job, s in zip(cells, states, strict=True)]
        console.table("cells", ["cell", "state", "what"], lines)
    said = ", ".join(f"{n} {name}" for name, n in counts.items())
    for reason, times in Counter(problems.values()).items():
        line = adapt_options(f"not possible here, {counted(times, 'cell')}: {reason}", ["sweep"])
        console.stderr().print(line, markup=False)
    console.stderr().print(
        f"{counted(len(cells), 'cell')}: {said}; {forecast.processes} at a time, {forecast}"
    )
    return 1 if problems and len(problems) == len(cells) else 0


def _sum_up(
    cells: "Sequence[Job]", ran: int, store: "Store", from_file: bool, as_json: bool
) -> int:
    """Print the number of finished cells; return 1 if a cell failed, or none could run.

    Args:
        from_file: the cells are a file's, whose fields reasons name in place of options.
    """
    from moebench.harness import console
    from moebench.harness.cli.usage_errors import adapt_options, as_fields
    from moebench.reports.sections.failures import reasons
    from moebench.results.store_hints import in_store

    finished = store.finished(job.cell_id for job in cells)
    failures = {cell.cell_id: cell for cell in store.cells("failed")}
    failed = [job for job in cells if job.cell_id in failures]
    if as_json:
        rows = [
            {"cell_id": job.cell_id, "run_id": finished.get(job.cell_id), "error": None}
            | ({"error": failures[job.cell_id].error} if job.cell_id in failures else {})
            for job in cells
        ]
        print(json_.dumps({"cells": rows}, sort_keys=True))
    done = sum(job.cell_id in finished for job in cells)
    cannot = [failures[job.cell_id] for job in failed if failures[job.cell_id].impossible]
    broken = len(failed) - len(cannot)
    known = f"{len(cells) - ran} were known"
    line = f"{counted(len(cells), 'cell')}: {done} done ({known}), {broken} failed"
    out, where = console.stderr(), in_store(store.directory)
    not_possible = f", {len(cannot)} not possible here" if cannot else ""
    out.print(f"{line}{not_possible}; moebench report{where} shows them")
    for why, count, which in reasons(cannot):
        named = as_fields(why) if from_file else adapt_options(why, ["sweep"])
        out.print(
            f"not possible here, {counted(int(count), 'cell')}: {named} ({which})", markup=False
        )
    if failed:
        again = "runs" if broken else "tries"
        advice = f"the same sweep with --retry-failed {again} these cells again"
        out.print(f"moebench report{where} names the failures; {advice}" if broken else advice)
    return 1 if broken or (cannot and not done) else 0

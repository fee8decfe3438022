"""``moebench reproduce``: measures the papers' claims, tables and figures."""

import os
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moebench.harness import console
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, PER_CORE, STORE, option
from moebench.reports.text import counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from moebench.harness.reproduce.claim import PaperClaims
    from moebench.harness.reproduce.evidence import Evidence
    from moebench.harness.sweep.progress import Board
    from moebench.harness.sweep.worker import Job
    from moebench.results.claims import PaperResult


class Which(StrEnum):
    """Papers that can be reproduced, and ``field``: what the field reports."""

    smoe = "smoe"
    daop = "daop"
    duoserve = "duoserve"
    flashmoe = "flashmoe"
    field = "field"
    all = "all"


def reproduce(
    paper: Which,
    quick: Annotated[
        bool, option("Use fewer prompts; takes minutes instead of hours.", "--quick")
    ] = False,
    jobs: Annotated[
        int, option("Number of worker processes.", min=1, show_default=PER_CORE)
    ] = os.cpu_count() or 1,
    retry_failed: Annotated[bool, option("Run failed cells again.", "--retry-failed")] = False,
    dry_run: Annotated[bool, option("List the cells and exit.", "--dry-run")] = False,
    markdown: Annotated[bool, option("Print Markdown, with explanations.", "--markdown")] = False,
    out: Annotated[Path | None, option("Folder for the results [claims in the store].")] = None,
    figures: Annotated[Path | None, option("Folder for the figures as SVG and PDF.")] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Measure a paper's claims, tables and figures, and give verdicts.

    Finished cells are not run again; the same command resumes an interrupted run.
    """
    import time

    from moebench.harness.arguments import find_data_dir, require_writable
    from moebench.harness.extras import require
    from moebench.harness.reproduce.costs import Meter
    from moebench.harness.reproduce.equal_memory import EQUAL_MEMORY
    from moebench.harness.reproduce.evidence import Evidence
    from moebench.harness.reproduce.run_claims import ExecutionContext, exhibit
    from moebench.harness.reproduce.run_claims import reproduce as measure
    from moebench.harness.sweep.estimate import duration
    from moebench.harness.sweep.execute import local_workers
    from moebench.harness.sweep.planned import Planned
    from moebench.harness.sweep.progress import board, forecast_of
    from moebench.reports import reproduction
    from moebench.reports.figures import exhibits
    from moebench.reports.sections import claims as text
    from moebench.results.claims import PAPERS, write, write_exhibit
    from moebench.results.store import Store

    folder, target = find_data_dir(data_dir), out or store / "claims"
    evidence = Evidence(Store(store), folder, store, quick)
    names = PAPERS if paper is Which.all else (paper.value,)
    chosen = [import_module(f"moebench.harness.reproduce.{name}").PAPER for name in names]
    if dry_run:
        _show_plan(chosen, evidence, _known(target), jobs)
        return
    require_writable(store)
    require_writable(target, "--out")
    if figures is not None:
        require("vl_convert", "--figures")
        require_writable(figures, "--figures")
    began, earlier, meter = time.monotonic(), _known(target), Meter()
    opened = local_workers(jobs, folder, store, samples=True)

    def shown(todo: "Sequence[Job]") -> "AbstractContextManager[Board]":
        forecast = forecast_of(todo, evidence.store, Planned(folder), jobs)
        console.say(f"{counted(len(todo), 'cell')} to run, {jobs} at a time, {forecast}")
        return meter.watched(board(forecast))

    context = ExecutionContext(opened, shown, console.say, retry_failed)
    equal = exhibit(EQUAL_MEMORY, evidence, context) if paper is Which.all else None
    found = measure([meter.timed(one) for one in chosen], evidence, context)
    costs = meter.costs(chosen, evidence, found, earlier)
    found = [
        one.model_copy(update={"provenance": one.provenance | {"costs": costs[one.paper]}})
        for one in found
    ]
    for result in found:
        write(result, target)
    if equal is not None:
        write_exhibit(equal, target)
    if figures is not None:
        console.say(f"{counted(len(exhibits.write(found, figures)), 'file')} in {figures}")
    if json:
        console.print_json([result.model_dump(mode="json") for result in found])
    elif markdown:
        print(reproduction.one_document(found))
    else:
        for result in found:
            console.table(result.title, text.HEADERS, text.lines(result))
    fewer = ", with fewer prompts (--quick)" if quick else ""
    took = duration(time.monotonic() - began)
    console.say(f"{text.summary(found)}; {took}{fewer}; in {target}")


def _known(folder: Path) -> dict[str, "PaperResult"]:
    """Return earlier results by paper: those of a folder, else those that ship with moebench."""
    from moebench.results.claims import read

    return {one.paper: one for results in (read(), read(folder)) for one in results}


def _show_plan(
    chosen: Sequence["PaperClaims"], evidence: "Evidence", known: dict[str, "PaperResult"],
    processes: int,
) -> None:  # fmt: skip
    """Print the cells and the expected time, with counter-experiments and ranges."""
    from moebench.harness.reproduce.costs import steps
    from moebench.harness.reproduce.expected import guess
    from moebench.harness.sweep.estimate import duration
    from moebench.harness.sweep.forecast import Load
    from moebench.harness.sweep.progress import title

    with Load() as load:
        planned = list(steps(chosen, evidence, known))
    slower = load.slowdown(processes)
    found = guess(planned, evidence.store.finished, known, processes, slower)
    jobs = {job.cell_id: job for step in planned for job in step.jobs}
    stored = evidence.store.finished(jobs)
    lines = [
        [cell, "stored" if cell in stored else "to run", title(job.spec)]
        for cell, job in jobs.items()
    ]
    console.table("cells", ["cell", "state", "what"], lines)
    rests = ""
    if found.measured:
        rests = f"{counted(found.measured, 'cell')} by the times of {found.of}"
        rests += f" × {found.scale:.2f} for this computer, "
    rests += f"{counted(found.todo - found.measured, 'cell')} from constants"
    if slower > 1.1:
        rests += f", × {slower:.1f} beside the programs that run now"
    console.say(
        f"{counted(found.cells, 'cell')}, {found.todo} to run, about {duration(found.seconds)}: "
        f"{rests}; with the counter-experiments and ranges that earlier verdicts call for"
    )

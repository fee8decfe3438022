"""``moebench reproduce``: measures the papers' claims, tables and figures."""

import os
from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moebench.harness import console
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE, option
from moebench.reports.text import counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from moebench.harness.reproduce.claim import PaperClaims
    from moebench.harness.reproduce.evidence import Evidence
    from moebench.harness.sweep.progress import Board
    from moebench.harness.sweep.worker import Job


class Which(StrEnum):
    """Papers that can be reproduced."""

    smoe = "smoe"
    daop = "daop"
    duoserve = "duoserve"
    flashmoe = "flashmoe"
    all = "all"


def reproduce(
    paper: Which,
    quick: Annotated[
        bool, option("Use fewer prompts; takes minutes instead of hours.", "--quick")
    ] = False,
    jobs: Annotated[int, option("Number of worker processes.", min=1)] = os.cpu_count() or 1,
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
    from moebench.harness.reproduce.evidence import Evidence
    from moebench.harness.reproduce.run_claims import ExecutionContext
    from moebench.harness.reproduce.run_claims import reproduce as measure
    from moebench.harness.sweep.estimate import duration
    from moebench.harness.sweep.execute import local_workers
    from moebench.harness.sweep.planned import Planned
    from moebench.harness.sweep.progress import board, forecast_of
    from moebench.reports import reproduction
    from moebench.reports.figures import exhibits
    from moebench.reports.sections import claims as text
    from moebench.results.claims import PAPERS, write
    from moebench.results.store import Store

    folder, target = find_data_dir(data_dir), out or store / "claims"
    evidence = Evidence(Store(store), folder, store, quick)
    names = PAPERS if paper is Which.all else (paper.value,)
    chosen = [import_module(f"moebench.harness.reproduce.{name}").PAPER for name in names]
    if dry_run:
        _show_plan(chosen, evidence, folder, jobs)
        return
    require_writable(store)
    require_writable(target)
    if figures is not None:
        require("vl_convert", "--figures")
        require_writable(figures, "--figures")
    began = time.monotonic()
    opened = local_workers(jobs, folder, store, samples=True)

    def shown(todo: "Sequence[Job]") -> "AbstractContextManager[Board]":
        forecast = forecast_of(todo, evidence.store, Planned(folder), jobs)
        console.say(f"{counted(len(todo), 'cell')} to run, {jobs} at a time, {forecast}")
        return board(forecast)

    context = ExecutionContext(opened, shown, console.say, retry_failed)
    found = measure(chosen, evidence, context)
    for result in found:
        write(result, target)
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


def _show_plan(
    chosen: Sequence["PaperClaims"], evidence: "Evidence", data_dir: Path | None, processes: int
) -> None:
    """Print the cells and their estimated time, without counter-experiments."""
    from moebench.harness.reproduce.run_claims import cells_of
    from moebench.harness.sweep.planned import Planned
    from moebench.harness.sweep.progress import forecast_of, title

    jobs = cells_of(chosen, evidence)
    finished = evidence.store.finished(job.cell_id for job in jobs)
    todo = [job for job in jobs if job.cell_id not in finished]
    states = ["stored" if job.cell_id in finished else "to run" for job in jobs]
    guess = forecast_of(todo, evidence.store, Planned(data_dir), processes)
    lines = [[job.cell_id, s, title(job.spec)] for job, s in zip(jobs, states, strict=True)]
    console.table("cells", ["cell", "state", "what"], lines)
    console.say(
        f"{counted(len(jobs), 'cell')}, {len(todo)} to run, {guess}; counter-experiments depend on "
        "verdicts"
    )

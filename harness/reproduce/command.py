"""``moebench reproduce``, once its options are parsed."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from moebench.harness import console
from moebench.harness.arguments import find_data_dir, require_writable
from moebench.harness.reproduce.claim import PaperClaims
from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.run_claims import Workshop, cells_of, reproduce
from moebench.harness.sweep.estimate import duration, estimate
from moebench.harness.sweep.execute import local_workers, processes_for
from moebench.harness.sweep.progress import board, title
from moebench.reports.figures import exhibits
from moebench.reports.sections import claims as text
from moebench.results.claims import PAPERS, PaperResult, write
from moebench.results.store import Store


@dataclass(frozen=True, slots=True)
class ReproduceRequest:
    """The options of ``moebench reproduce`` as typed."""

    paper: str
    quick: bool
    jobs: int
    retry_failed: bool
    dry_run: bool
    form: str
    out: Path
    figures: Path | None
    data_dir: Path | None
    store: Path


def papers(name: str) -> list[PaperClaims]:
    """The claims of a paper, or of all."""
    names = PAPERS if name == "all" else (name,)
    return [import_module(f"moebench.harness.reproduce.{one}").PAPER for one in names]


def reproduce_command(request: ReproduceRequest) -> int:
    """Measure, judge, keep and show; 0 whatever the verdicts are."""
    data_dir = find_data_dir(request.data_dir)
    store = Store(request.store)
    evidence = Evidence(store, data_dir, request.store, request.quick)
    chosen = papers(request.paper)
    if request.dry_run:
        return _show_plan(chosen, evidence, request)
    require_writable(request.store)
    require_writable(request.out)
    if request.figures is not None:
        require_writable(request.figures, "--figures")
    began = time.monotonic()
    say = console.stderr().print
    opened = local_workers(request.jobs, data_dir, request.store, samples=True)
    workshop = Workshop(opened, board, say, request.retry_failed)
    found = reproduce(chosen, evidence, workshop)
    for result in found:
        write(result, request.out)
    if request.figures is not None:
        written = exhibits.write(found, request.figures)
        say(f"{len(written)} files in {request.figures}")
    _show(found, request.form)
    fewer = ", with fewer prompts (--quick)" if request.quick else ""
    say(f"{text.summary(found)}; {duration(time.monotonic() - began)}{fewer}; in {request.out}")
    return 0


def _show(found: Sequence[PaperResult], form: str) -> None:
    if form == "json":
        print(json.dumps([result.model_dump(mode="json") for result in found], sort_keys=True))
    elif form == "markdown":
        print(text.markdown(found))
    else:
        for result in found:
            console.table(result.title, text.HEADERS, text.lines(result))


def _show_plan(chosen: Sequence[PaperClaims], evidence: Evidence, request: ReproduceRequest) -> int:
    """The cells, and a guess of their time; counter-experiments come with the verdicts."""
    jobs = cells_of(chosen, evidence)
    finished = evidence.store.finished()
    todo = [job for job in jobs if job.cell_id not in finished]
    states = ["stored" if job.cell_id in finished else "to run" for job in jobs]
    guess = estimate([job.spec for job in todo], evidence.store.runs(), processes_for(request.jobs))
    lines = [[job.cell_id, s, title(job.spec)] for job, s in zip(jobs, states, strict=True)]
    console.table("cells", ["cell", "state", "what"], lines)
    console.stderr().print(
        f"{len(jobs)} cells, {len(todo)} to run, {guess}; counter-experiments depend on verdicts"
    )
    return 0

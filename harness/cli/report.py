"""``moebench report``, once its options are parsed."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebench.harness import console
from moebench.harness.arguments import require_file, require_folder
from moebench.results.store import Cell, Store
from moebench.results.store_hints import no_runs
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.reports.report import Report
    from moebench.reports.sections.accuracy import View
    from moebench.results.claims import PaperResult

#: An α table of one's own, in the store's folder.
OWN_TABLE = "alpha.csv"

#: Claims that were measured for a store, in its folder.
OWN_CLAIMS = "claims"

#: More runs than this are no list for a terminal.
LISTED = 50


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """The options of ``moebench report`` as typed.

    Attributes:
        accuracy: an α table; None is the store's own, else the one that ships.
        claims: a folder of `moebench reproduce`; None is the store's own, else what ships.
        intervals: intervals behind means.
    """

    store: Path
    accuracy: Path | None = None
    claims: Path | None = None
    html: Path | None = None
    csv: Path | None = None
    latex: Path | None = None
    figures: Path | None = None
    markdown: bool = False
    intervals: bool = False
    as_json: bool = False


def report_command(request: ReportRequest) -> None:
    """The stored runs and an accuracy table: as a page, files, JSON, Markdown, or tables.

    Raises:
        UsageError: there is nothing to report.
    """
    if request.html is not None:
        require_file("--html", request.html)
    folders = {"--csv": request.csv, "--latex": request.latex, "--figures": request.figures}
    for option, folder in folders.items():
        if folder is not None:
            require_folder(option, folder)
    store = Store(request.store)
    runs, failed = store.runs(), store.cells("failed")
    console.say_left_out(store)
    if not runs and not failed:
        raise UsageError(no_runs(request.store))
    views, claims = _accuracy(request), _claims(request)
    if request.html is not None:
        _write_page(request.html, store, runs, views, failed, claims)
    if request.csv is not None or request.latex is not None:
        _write_tables(request, runs, views, failed, claims)
    if request.figures is not None:
        _write_figures(request.figures, store, runs, views)
    if request.as_json:
        print(json.dumps(runs, sort_keys=True))
        return
    files = (request.html, request.csv, request.latex, request.figures)
    if request.markdown or files == (None,) * len(files):
        _print(request, runs, views, failed, claims)


def _accuracy(request: ReportRequest) -> list["View"]:
    """The table that was named, or the store's own, or the one that ships."""
    from moebench.reports.sections import accuracy

    own = request.store / OWN_TABLE
    if request.accuracy is not None:
        return accuracy.load(request.accuracy)
    return accuracy.load(own) if own.exists() else accuracy.load()


def _claims(request: ReportRequest) -> list["PaperResult"]:
    """Of the folder that was named, or the store's own, or those that ship.

    Raises:
        UsageError: the folder that was named holds none.
    """
    from moebench.results.claims import PAPERS, read

    if request.claims is None:
        return read(request.store / OWN_CLAIMS) or read()
    found = read(request.claims)
    if not found:
        names = ", ".join(f"{paper}.json" for paper in PAPERS)
        raise UsageError(
            f"--claims {request.claims}: no claims there ({names}); write them: "
            f"moebench reproduce all --out {request.claims}"
        )
    return found


def _write_page(
    out: Path, store: Store, runs: list[dict[str, Any]], views: list["View"], failed: list[Cell],
    claims: list["PaperResult"],
) -> None:  # fmt: skip
    from moebench.harness.run.repeat import repeats
    from moebench.reports.page.page import Contents, render
    from moebench.reports.sections import throughput
    from moebench.substrate.analysis.components import documents

    directory = store.directory
    contents = Contents(
        runs,
        repeats(store, runs),
        store.timelines(),
        views,
        failed,
        throughput.load(directory, runs),
        documents(),
        claims,
    )
    render(contents, out, str(directory))
    console.stderr().print(f"{len(runs)} runs in {out} ({os.path.getsize(out) / 1e6:.1f} MB)")


def _write_tables(
    request: ReportRequest, runs: list[dict[str, Any]], views: list["View"], failed: list[Cell],
    claims: list["PaperResult"],
) -> None:  # fmt: skip
    from moebench.reports.formats.csv import write_csv, write_latex
    from moebench.reports.report import report

    found = report(runs, views, failed, claims, brief=True, intervals=request.intervals)
    written = write_csv(runs, found, request.csv, views, failed) if request.csv else []
    written += write_latex(found, request.latex) if request.latex else []
    console.stderr().print(f"written: {', '.join(map(str, written))}", markup=False)
    _say_left_out(found)


def _write_figures(
    directory: Path, store: Store, runs: list[dict[str, Any]], views: list["View"]
) -> None:
    from moebench.reports.compare.conditions import lacks
    from moebench.reports.compare.tables import comparisons, matrix
    from moebench.reports.formats.svg import write_figures
    from moebench.reports.page.static_figures import stills
    from moebench.reports.sections import throughput

    whole = [run for run in runs if not lacks(run)]
    beside = matrix(comparisons(whole).tables)
    curves = throughput.load(store.directory, whole)
    written = write_figures(stills(whole, beside, views, curves, store.timelines()), directory)
    console.stderr().print(f"{len(written)} figures in {directory}")


def _print(
    request: ReportRequest, runs: list[dict[str, Any]], views: list["View"], failed: list[Cell],
    claims: list["PaperResult"],
) -> None:  # fmt: skip
    """All tables as Markdown or on a terminal."""
    from moebench.reports.report import report
    from moebench.reports.text import markdown

    if not request.markdown and not sys.stdout.isatty():
        _pipe(runs, failed)
        return
    brief = not request.markdown
    found = report(runs, views, failed, claims, brief=brief, intervals=request.intervals)
    if request.markdown:
        print("\n".join(map(markdown, found.tables.values())))
    else:
        for name, table in found.tables.items():
            if name == "runs" and len(runs) > LISTED:
                console.stdout().print(f"{len(runs)} runs; --csv DIR or --html FILE lists them")
            else:
                console.text_table(table)
    _say_left_out(found)


def _pipe(runs: list[dict[str, Any]], failed: list[Cell]) -> None:
    """One table for other programs: the runs, with all columns."""
    from moebench.reports.sections import failures
    from moebench.reports.sections.runs import runs_table

    if runs:
        found = runs_table(runs, "runs", brief=True, once=False)
        console.table(found.title, found.headers, found.rows)
    for row in failures.lines(failed):
        print(f"failed: {', '.join(row)}", file=sys.stderr)


def _say_left_out(found: "Report") -> None:
    """What stands in no comparison."""
    if not found.compared.tables:
        console.stderr().print("note: no runs that can be compared")
    for line in found.left_out:
        console.stderr().print(f"note: {line}", markup=False)

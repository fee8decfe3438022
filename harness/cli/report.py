"""``moebench report``, once its options are parsed."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.options import require_file, require_folder
from moebench.results.documents import spans_or_none
from moebench.results.store import Cell, Store
from moebench.substrate.errors import UsageError


def report_command(
    html: Path | None,
    directory: Path,
    as_json: bool,
    csv: Path | None = None,
    latex: Path | None = None,
) -> None:
    """The stored runs and the committed accuracy table: as a page, files, JSON, or tables."""
    if html is not None:
        require_file("--html", html)
    for option, folder in (("--csv", csv), ("--latex", latex)):
        if folder is not None:
            require_folder(option, folder)
    store = Store(directory)
    runs, failed = store.runs(), store.cells("failed")
    console.say_left_out(store)
    if not runs and not failed:
        raise UsageError(f"no runs in {directory}; run: moebench run --system smoe --setting S3")
    from moebench.reports import accuracy

    views = accuracy.load()
    if html is not None:
        from moebench.reports import throughput
        from moebench.reports.html import render
        from moebench.substrate.analysis.components import documents

        timelines = {
            run["run_id"]: spans_or_none(store.timeline(run["run_id"])) or [] for run in runs
        }
        curves = throughput.load(directory, runs)
        render(runs, timelines, html, str(directory), views, failed, curves, documents())
        console.stderr().print(f"{len(runs)} runs in {html} ({os.path.getsize(html) / 1e6:.1f} MB)")
    if csv is not None or latex is not None:
        from moebench.reports.export import write_csv, write_latex

        written = write_csv(runs, csv, views, failed) if csv else []
        written += write_latex(runs, latex, views) if latex else []
        console.stderr().print(f"written: {', '.join(map(str, written))}")
    if as_json:
        print(json.dumps(runs, sort_keys=True))
    elif html is None and csv is None and latex is None:
        from moebench.reports.tables import BRIEF, cell, rows

        lines = [[cell(column, row[column.key]) for column in BRIEF] for row in rows(runs)]
        console.table(f"runs in {directory}", [column.header for column in BRIEF], lines)
        _show_failures(failed, directory)
        if sys.stdout.isatty():  # a pipe gets one table; --csv writes all
            _show_evaluations(runs, directory)
            for view in views or ():
                for block in view.blocks:
                    title = f"{view.title}: {block.title}"
                    console.table(title, view.headers, block.text_lines)
                console.table(
                    f"{view.title}: change with α", accuracy.VERDICT_HEADERS, view.verdict_lines
                )
                console.stdout().print(view.summary)
            if views:
                console.stdout().print(f"{accuracy.CAVEAT}\n{accuracy.METHOD}")


def _show_evaluations(runs: Sequence[dict[str, Any]], directory: Path) -> None:
    """What evaluators found, if any asked."""
    from moebench.reports.evaluations import HEADERS, lines

    if rows := lines(runs):
        console.table(f"what evaluators found, in {directory}", HEADERS, rows)


def _show_failures(failed: Sequence[Cell], directory: Path) -> None:
    """Cells without a run: a table on a terminal, lines beside the one table of a pipe."""
    from moebench.reports.failures import HEADERS, lines

    rows = lines(failed)
    if rows and sys.stdout.isatty():
        console.table(f"failed cells; where, in {directory}", HEADERS, rows)
    for row in () if sys.stdout.isatty() else rows:
        print(f"failed: {', '.join(row)}", file=sys.stderr)

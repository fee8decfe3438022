"""What the commands do, once their options are parsed."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import console
from harness.spec import DEFAULT_DATA_DIR, resolve
from results.store import Cell, Store
from substrate.errors import InputError, UsageError
from workloads.hub import is_hub


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of ``moebench run`` as typed; None means "not given"."""

    given: dict[str, Any]
    settings: list[str]
    data_dir: Path | None
    store: Path
    timeline: Path | None
    force: bool
    json: bool


def find_data_dir(given: Path | None) -> Path | None:
    """The folder of evaluation sets: what was given, else the default if it exists."""
    if given is not None:
        if not (is_hub(given) or given.is_dir()):
            raise InputError(f"--data-dir {given}: no such folder")
        return given
    return DEFAULT_DATA_DIR if DEFAULT_DATA_DIR.is_dir() else None


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """``key=value`` pairs of ``--set``."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise UsageError(f"--set {pair}: expected key=value, for example --set evict=lru")
        settings[key] = value
    return settings


def require_writable(store: Path) -> None:
    """Refuse a store that can never be written, before a run spends time on it."""
    nearest = next(p for p in (store, *store.absolute().parents) if os.path.exists(p))
    if not nearest.is_dir():
        raise InputError(f"--store {store}: {nearest} is not a folder; give another --store")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"--store {store}: {nearest} is not writable; give another --store")


def _require_file_place(file: Path) -> None:
    if file.is_dir():
        raise InputError(f"--timeline {file}: this is a folder; give a file, for example out.json")
    if not file.parent.is_dir():
        raise InputError(f"--timeline {file}: no such folder {file.parent}")


def run_command(request: RunRequest) -> None:
    """Resolve, reuse a stored result or run, store, show."""
    data_dir = find_data_dir(request.data_dir)
    spec = resolve(data_dir, **request.given, settings=parse_settings(request.settings))
    if request.timeline is not None:
        _require_file_place(request.timeline)
    require_writable(request.store)

    from harness.runner import prepare, run
    from harness.sweep_worker import samples_of
    from results.samples import write_samples

    inputs = prepare(spec, data_dir)
    store = Store(request.store)
    stored = None if request.force or request.timeline else store.get(inputs.run_id)
    if stored is None:
        with console.progress(f"{spec.system} on {spec.model}") as progress:
            outcome = run(inputs, request.store, progress, request.timeline is not None)
        stored = outcome.document
        if samples := samples_of(outcome.generations):
            write_samples(request.store, inputs.run_id, samples)
        store.put(stored, outcome.picture, (inputs.run_id, spec.model_dump()))
        if request.timeline is not None:
            outcome.timeline.write_chrome_trace(request.timeline)
            console.stderr().print(f"timeline in {request.timeline}: open it at ui.perfetto.dev")
    else:
        console.stderr().print(f"run {inputs.run_id} was stored; --force runs it again")
    if request.json:
        print(json.dumps(stored, sort_keys=True))
    else:
        console.show_run(stored)


def report_command(
    html: Path | None,
    directory: Path,
    as_json: bool,
    csv: Path | None = None,
    latex: Path | None = None,
) -> None:
    """The stored runs and the committed accuracy table: as a page, files, JSON, or tables."""
    store = Store(directory)
    runs, failed = store.runs(), store.cells("failed")
    if not runs and not failed:
        raise UsageError(f"no runs in {directory}; run: moebench run --system smoe --setting S3")
    from reports import accuracy

    views = accuracy.load()
    if html is not None:
        from reports import throughput
        from reports.html import render

        timelines = {run["run_id"]: store.timeline(run["run_id"]) or [] for run in runs}
        curves = throughput.load(directory, runs)
        render(runs, timelines, html, str(directory), views, failed, curves)
        console.stderr().print(f"{len(runs)} runs in {html} ({os.path.getsize(html) / 1e6:.1f} MB)")
    if csv is not None or latex is not None:
        from reports.export import write_csv, write_latex

        written = write_csv(runs, csv, views, failed) if csv else []
        written += write_latex(runs, latex, views) if latex else []
        console.stderr().print(f"written: {', '.join(map(str, written))}")
    if as_json:
        print(json.dumps(runs, sort_keys=True))
    elif html is None and csv is None and latex is None:
        from reports.tables import BRIEF, cell, rows

        lines = [[cell(column, row[column.key]) for column in BRIEF] for row in rows(runs)]
        console.table(f"runs in {directory}", [column.header for column in BRIEF], lines)
        _show_failures(failed, directory)
        if sys.stdout.isatty():  # a pipe gets one table; --csv writes both
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


def _show_failures(failed: Sequence[Cell], directory: Path) -> None:
    """Cells without a run: a table on a terminal, lines beside the one table of a pipe."""
    from reports.failures import HEADERS, lines

    rows = lines(failed)
    if rows and sys.stdout.isatty():
        console.table(f"failed cells; where, in {directory}", HEADERS, rows)
    for row in () if sys.stdout.isatty() else rows:
        print(f"failed: {', '.join(row)}", file=sys.stderr)

"""``moebench compare``, ``report``, ``show``, ``rm`` and ``gc``: what is stored."""

from pathlib import Path
from typing import Annotated

import typer

from moebench.harness.cli.parameters import DEFAULT_STORE, JSON, STORE


def compare(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Two runs, or two systems: how they differ.")
    ] = None,
    systems: Annotated[str | None, typer.Option(help="Separated by commas [all].")] = None,
    settings: Annotated[str | None, typer.Option(help="See: moebench list settings.")] = None,
    workloads: Annotated[str | None, typer.Option(help="Averaged over [all].")] = None,
    batches: Annotated[str | None, typer.Option(help="A table for each [all].")] = None,
    mixed: Annotated[
        str | None, typer.Option(help="What may differ, and is marked: software, prompts, ...")
    ] = None,
    store: STORE = DEFAULT_STORE,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a document.")] = False,
    json: JSON = False,
) -> None:
    """Systems beside each other, under equal conditions: bytes, precision, prompts, software."""
    from moebench.harness.cli.compare import compare_command
    from moebench.harness.cli.pair import pair_command

    wanted = {"system": systems, "setting": settings, "workload": workloads, "batch": batches}
    form = "json" if json else "markdown" if markdown else "text"
    if runs:
        return pair_command(store, runs, wanted, mixed, form)
    compare_command(store, wanted, mixed, form)


def report(
    html: Annotated[Path | None, typer.Option(help="Write one offline page.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder for the tables as CSV.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Folder for the tables as LaTeX.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures as SVG and PDF.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a document.")] = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="95 % intervals behind means.")
    ] = False,
    accuracy: Annotated[
        Path | None,
        typer.Option(help="Table of moebench accuracy [alpha.csv of the store, or as shipped]."),
    ] = None,
    claims: Annotated[
        Path | None,
        typer.Option(help="Folder of moebench reproduce [claims, in the store, or as shipped]."),
    ] = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Show systems beside each other, accuracy and single runs, or write them as files."""
    from moebench.harness.cli.report import ReportRequest, report_command

    report_command(
        ReportRequest(store, accuracy, claims, html, csv, latex, figures, markdown, intervals, json)
    )


def show(
    run: Annotated[str, typer.Argument(help="A run's id, or how it begins.")],
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Show one stored run: figures, spec, provenance, notes, and the command that repeats it."""
    from moebench.harness.cli.stored import show_command

    show_command(store, run, json)


def rm(
    runs: Annotated[list[str], typer.Argument(help="Runs' ids, or how they begin.")],
    store: STORE = DEFAULT_STORE,
) -> None:
    """Remove runs from the store, with their samples; all that are named, or none."""
    from moebench.harness.cli.stored import remove_command

    remove_command(store, runs)


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would go, and remove nothing.")
    ] = False,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Remove from the store what no run refers to, and what was left half-written; never a run."""
    from moebench.harness.cli.stored import collect_command

    collect_command(store, dry_run, json)

"""``moebench reproduce``: the papers' claims, tables and figures, measured again."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE


class Which(StrEnum):
    """A paper, or all of them."""

    smoe = "smoe"
    daop = "daop"
    duoserve = "duoserve"
    flashmoe = "flashmoe"
    all = "all"


def reproduce(
    paper: Which,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer prompts: minutes instead of hours.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run cells again that failed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print it as a document, with explanations.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results [claims, in the store].")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures as SVG and PDF.")
    ] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Measure again what a paper claims, and every table and figure of it.

    Finished cells are not run again: a run that was stopped goes on where it was.
    """
    from moebench.harness.reproduce.command import ReproduceRequest, reproduce_command

    form = "json" if json else "markdown" if markdown else "text"
    request = ReproduceRequest(
        paper.value, quick, jobs, retry_failed, dry_run, form, out or store / "claims", figures,
        data_dir, store,
    )  # fmt: skip
    raise typer.Exit(reproduce_command(request))

"""``moebench accuracy`` and ``check``: accuracy tables and their regression check."""

import os
from pathlib import Path
from typing import Annotated

import typer

from moebench.harness import console
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, PER_CORE, STORE, option
from moebench.reports.text import counted
from moebench.substrate.errors import UsageError


def accuracy(
    settings: Annotated[str, option("Settings, separated by commas.")] = "S1,S2,S3",
    workloads: Annotated[
        str | None,
        option("Workloads, separated by commas [the generated families and SMoE's five sets]."),
    ] = None,
    alphas: Annotated[str | None, option("Values of α, separated by commas [SMoE's 13].")] = None,
    system: Annotated[
        str, option("System to measure; its routing must have a threshold α.")
    ] = "smoe",
    prompts: Annotated[int, option("Examples scored in each cell.", min=1)] = 50,
    seed: Annotated[int, option("Random seed for drawing the examples.", min=0)] = 0,
    jobs: Annotated[
        int, option("Number of worker processes.", min=1, show_default=PER_CORE)
    ] = os.cpu_count() or 1,
    out: Annotated[
        Path | None,
        option("CSV file to update; its other cells are kept [alpha.csv of the store]."),
    ] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
) -> None:
    """Compute the accuracy of each workload as a function of α (SMoE, Table IV).

    Stored cells are not computed again.
    """
    from moebench.harness.arguments import find_data_dir, require_file, require_writable
    from moebench.harness.cli.report import OWN_TABLE
    from moebench.harness.guard.accuracy_table import ALPHAS, REAL, cells, write_rows
    from moebench.harness.sweep.execute import run_all
    from moebench.workloads.exercises import FAMILIES

    folder, table = find_data_dir(data_dir), out or store / OWN_TABLE
    names = _split(workloads) or [*FAMILIES, *(REAL if folder else ())]
    try:
        thresholds = [float(text) for text in _split(alphas)] or ALPHAS
    except ValueError as error:
        raise UsageError(f"--alphas {alphas}: allowed: numbers separated by commas") from error
    given = {"system": system, "prompts": prompts, "seed": seed}
    specs = cells(folder, names, _split(settings), thresholds, given)
    require_writable(store)
    require_file("--out", table)
    with console.progress("accuracy") as progress:
        documents = run_all(specs, folder, store, jobs, progress)
    write_rows(documents, table)
    console.say(f"{counted(len(documents), 'cell')} in {table}")


def _split(typed: str | None) -> list[str]:
    return [] if typed is None else [name.strip() for name in typed.split(",")]


def check(
    file: Annotated[
        Path | None, option("YAML file with the cells to check, as of a sweep [the shipped cells].")
    ] = None,
    references: Annotated[
        Path | None, option("With --file: folder that holds the accepted figures.")
    ] = None,
    update: Annotated[bool, option("Accept the figures measured now as the reference.")] = False,
    jobs: Annotated[
        int, option("Number of worker processes; 0 runs in this one.", min=0, show_default=PER_CORE)
    ] = os.cpu_count() or 1,
    junit: Annotated[
        Path | None, option("File to write the verdicts to as JUnit XML, for test reports.")
    ] = None,
    markdown: Annotated[
        Path | None, option("File to write what moved to as Markdown, for a pull request.")
    ] = None,
    data_dir: DATA_DIR = None,
    json: JSON = False,
) -> None:
    """Recompute reference cells and compare answers and simulated latencies with them.

    Exit code: 0 pass, 1 regressed, 3 not measured, 4 improved: --update accepts it.
    """
    from moebench.harness.arguments import find_data_dir
    from moebench.harness.guard.check import REFERENCES, check_command, own
    from moebench.harness.guard.outputs import Files

    if (file is None) != (references is None):
        raise typer.BadParameter("--file FILE.yaml and --references DIR go together")
    if update and (junit or markdown):
        raise typer.BadParameter("--update judges nothing: leave out --junit and --markdown")
    folder, files = find_data_dir(data_dir), Files(junit, markdown)
    if file is None or references is None:
        if folder is not None:
            raise typer.BadParameter("--data-dir is for cells of your own: give --file FILE.yaml")
        files.require([REFERENCES])
        raise typer.Exit(check_command(update, jobs, json, files=files))
    guarded = own(file, references, folder)
    files.require([file, guarded.references])
    raise typer.Exit(check_command(update, jobs, json, guarded, files))

"""``moebench accuracy`` and ``moebench check``: tables of accuracy, and whether it has moved."""

import os
from pathlib import Path
from typing import Annotated

import typer

from moebench.harness import console
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE
from moebench.substrate.errors import UsageError


def accuracy(
    settings: Annotated[str, typer.Option(help="Separated by commas.")] = "S1,S2,S3",
    workloads: Annotated[
        str | None,
        typer.Option(help="Separated by commas [the generated families and SMoE's five sets]."),
    ] = None,
    alphas: Annotated[str | None, typer.Option(help="Separated by commas [SMoE's 13].")] = None,
    system: Annotated[str, typer.Option(help="A system whose routing has an α.")] = "smoe",
    prompts: Annotated[int, typer.Option(min=1, help="Questions in each cell.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Draws the questions.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    out: Annotated[
        Path | None,
        typer.Option(help="The table's file; its other cells stay [alpha.csv of the store]."),
    ] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
) -> None:
    """Compute the α table (SMoE, Table IV): what substitution costs, workload by workload.

    Cells that are stored already are not computed again.
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
    console.say(f"{len(documents)} cells in {table}")


def _split(typed: str | None) -> list[str]:
    return [] if typed is None else [name.strip() for name in typed.split(",")]


def check(
    file: Annotated[
        Path | None, typer.Option(help="Cells of your own, as a sweep's YAML [ours].")
    ] = None,
    references: Annotated[
        Path | None, typer.Option(help="With --file: folder of what was accepted.")
    ] = None,
    update: Annotated[bool, typer.Option(help="Accept what is measured now.")] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0 is this one.")] = os.cpu_count()
    or 1,
    data_dir: DATA_DIR = None,
    json: JSON = False,
) -> None:
    """Recompute fixed cells; compare answers question by question, simulated latencies exactly.

    Exit code: 0 pass or improved, 1 regressed, 3 not measured.
    """
    from moebench.harness.arguments import find_data_dir
    from moebench.harness.guard.check import check_command, own

    if (file is None) != (references is None):
        raise typer.BadParameter("--file FILE.yaml and --references DIR go together")
    folder = find_data_dir(data_dir)
    if file is None or references is None:
        if folder is not None:
            raise typer.BadParameter("--data-dir is for cells of your own: give --file FILE.yaml")
        raise typer.Exit(check_command(update, jobs, json))
    raise typer.Exit(check_command(update, jobs, json, own(file, references, folder)))

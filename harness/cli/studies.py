"""``moebench accuracy`` and ``moebench check``: tables of accuracy, and whether it has moved."""

import os
from pathlib import Path
from typing import Annotated

import typer

from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE


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
    from moebench.harness.cli.report import OWN_TABLE
    from moebench.harness.guard.accuracy_table import TableRequest, accuracy_command

    table = out or store / OWN_TABLE
    accuracy_command(
        TableRequest(
            settings, workloads, alphas, system, prompts, seed, data_dir, store, table, jobs
        )
    )  # fmt: skip


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

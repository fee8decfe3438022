"""The α table (SMoE, Table IV): what substitution costs on each workload, setting by setting.

Every cell is a run as `moebench run` makes it, with the answers scored through the decode path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from moebench.harness import console
from moebench.harness.arguments import find_data_dir, require_file, require_writable
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.execute import run_all
from moebench.harness.sweep.worker import Document
from moebench.results.accuracy_table import (
    items_from_run,
    key,
    read_items,
    read_table,
    row_from_run,
    write_items,
    write_table,
)
from moebench.results.spec import RunSpec
from moebench.substrate.errors import UsageError
from moebench.workloads.catalogue import workload
from moebench.workloads.exercises import FAMILIES
from moebench.workloads.workload import Workload

#: The thresholds of SMoE's Table IV.
ALPHAS = tuple(round(0.05 * step, 2) for step in range(13))
#: SMoE's datasets, one for each category.
REAL = ("gaokao", "wic", "triviaqa", "race_middle", "gsm8k")


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The options of ``moebench accuracy`` as typed; lists are separated by commas."""

    settings: str
    workloads: str | None
    alphas: str | None
    system: str
    prompts: int
    seed: int
    data_dir: Path | None
    store: Path
    out: Path
    jobs: int


def scoring_of(chosen: Workload) -> str:
    """Options are weighed, other answers are written; both through decode."""
    return "likelihood" if chosen.metric == "choice" else "generation"


def accuracy_command(request: TableRequest) -> None:
    """Compute the table, write it, say where it is."""
    data_dir = find_data_dir(request.data_dir)
    names = _listed(request.workloads, [*FAMILIES, *(REAL if data_dir else ())])
    unscored = [name for name in names if not workload(name).scored]
    if unscored:
        raise UsageError(f"--workloads {','.join(unscored)}: no reference answers to score")
    require_writable(request.store)
    require_file("--out", request.out)
    axes = (names, _listed(request.settings, []), _alphas(request.alphas))
    specs = [
        _cell(request, data_dir, setting, name, alpha) for name, setting, alpha in product(*axes)
    ]
    with console.progress("accuracy") as progress:
        documents = run_all(specs, data_dir, request.store, request.jobs, progress)
    write_rows(documents, request.out)
    console.stderr().print(f"{len(documents)} cells in {request.out}")


def _listed(typed: str | None, default: list[str]) -> list[str]:
    return default if typed is None else [name.strip() for name in typed.split(",")]


def _alphas(typed: str | None) -> list[float]:
    try:
        return [float(text) for text in _listed(typed, [])] or list(ALPHAS)
    except ValueError as error:
        raise UsageError(f"--alphas {typed}: allowed: numbers separated by commas") from error


def _cell(
    request: TableRequest, data_dir: Path | None, setting: str, name: str, alpha: float
) -> RunSpec:
    return resolve(
        data_dir,
        system=request.system,
        setting=setting,
        workload=name,
        alpha=alpha,
        prompts=request.prompts,
        seed=request.seed,
        scoring=scoring_of(workload(name)),
    )


def write_rows(documents: Sequence[Document], out: Path) -> None:
    """Put runs into an accuracy table, and beside it which questions each got right.

    A cell that the table holds is replaced; its others stay.
    """
    rows = []
    for document in documents:
        chosen = workload(document["spec"]["workload"])
        rows.append(
            row_from_run(
                document,
                generated=chosen.source == "generated",
                category=chosen.category,
            )
        )
    new = {key(row) for row in rows}
    others = [row for row in (read_table(out) if out.exists() else []) if key(row) not in new]
    items = {
        run: text for run, text in read_items(out).items() if run in {r.run_id for r in others}
    }
    for document in documents:
        if (text := items_from_run(document)) is not None:
            items[document["run_id"]] = text
    write_table(out, [*others, *rows])
    write_items(out, items)

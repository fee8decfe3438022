"""The α table (SMoE, Table IV): accuracy loss by substitution for each workload, setting and α.

Every cell is a run as `moebench run` makes it, with the answers scored through the decode path.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from moebench.harness.run.rules import resolve
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
from moebench.workloads.workload import Workload

#: The thresholds of SMoE's Table IV.
ALPHAS = tuple(round(0.05 * step, 2) for step in range(13))
#: SMoE's datasets, one for each category.
REAL = ("gaokao", "wic", "triviaqa", "race_middle", "gsm8k")


def scoring_of(chosen: Workload) -> str:
    """Return the workload's scoring option: by likelihood if it has options, else by generation."""
    return "likelihood" if chosen.metric == "choice" else "generation"


def cells(
    data_dir: Path | None, workloads: Sequence[str], settings: Sequence[str],
    alphas: Sequence[float], given: Mapping[str, Any],
) -> list[RunSpec]:  # fmt: skip
    """Resolve a run for each workload, setting and α; ``given`` holds the options of all runs.

    Raises UsageError: a workload has no reference answers.
    """
    unscored = [name for name in workloads if not workload(name).scored]
    if unscored:
        raise UsageError(f"--workloads {','.join(unscored)}: no reference answers to score")
    return [
        resolve(
            data_dir, **given, setting=setting, workload=name, alpha=alpha,
            scoring=scoring_of(workload(name)),
        )
        for name, setting, alpha in product(workloads, settings, alphas)
    ]  # fmt: skip


def write_rows(documents: Sequence[Document], out: Path) -> None:
    """Add runs to an accuracy table and its file of per-example answers.

    A row of the same cell is replaced; the table's other rows stay.
    """
    rows = []
    for document in documents:
        chosen = workload(document["spec"]["workload"])
        rows.append(
            row_from_run(document, generated=chosen.source == "generated", category=chosen.category)
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

"""Single runs as a table: what distinguishes them in columns, what they share said once."""

from collections.abc import Mapping, Sequence
from typing import Any

from moebench.reports.tables import COLUMNS, MISSING, Column, Document, cell, rows
from moebench.reports.text import TextTable, text_table

#: Fields of a spec that a column shows, and those that only follow from others.
_SHOWN = {
    "system", "variant", "overrides", "setting", "machine", "software", "model", "workload",
    "batch", "alpha", "routing", "trace", "options", "slots", "cache_ratio",
}  # fmt: skip


def runs_table(
    runs: Sequence[Document], title: str, brief: bool = False, once: bool = True
) -> TextTable:
    """One row a run.

    There is a column for every field of their specs in which runs differ.

    Args:
        brief: only what fits into a terminal.
        once: say above the table what is the same for all of several runs.
    """
    found = rows(list(runs))
    shared: list[Column] = []
    kept: list[Column] = []
    for column in COLUMNS:
        if column.brief or not brief:
            values = {row[column.key] for row in found}
            if once and column.chosen and len(values) == 1 < len(found):
                shared.append(column)
            elif values != {None} or not once:
                kept.append(column)
    more = _differing(runs)
    names = [column for column in kept if _is_name(column)]
    figures = [column for column in kept if not _is_name(column)]
    lines = [
        [
            *(cell(column, row[column.key]) for column in names),
            *(texts[at] for texts in more.values()),
            *(cell(column, row[column.key]) for column in figures),
        ]
        for at, row in enumerate(found)
    ]
    headers = [*(c.header for c in names), *more, *(c.header for c in figures)]
    said = ", ".join(
        f"{column.title} {cell(column, found[0][column.key])}"
        for column in shared
        if found[0][column.key] is not None
    )
    return text_table(title, headers, lines, f"all: {said}" if said else "")


def _is_name(column: Column) -> bool:
    return column.chosen or column.key in ("run", "system")


def _differing(runs: Sequence[Document]) -> dict[str, list[str]]:
    """Fields of specs that no column shows and in which runs differ, a text for each run."""
    each = [fields({k: v for k, v in run["spec"].items() if k not in _SHOWN}) for run in runs]
    return {
        name: texts
        for name in dict.fromkeys(name for found in each for name in found)
        if len({*(texts := [found.get(name, "") or MISSING for found in each])}) > 1
    }


def fields(spec: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Every field of a spec as text, what is nested with a dotted name; "" for None."""
    found: dict[str, str] = {}
    for name, value in spec.items():
        if isinstance(value, Mapping):
            found |= fields(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = "" if value is None else str(value)
    return found

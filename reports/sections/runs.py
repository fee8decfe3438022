"""The table of single runs: a column for what differs, a line for what is equal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from moebench.reports.text import MISSING, TextTable, text_table
from moebench.results.document import (
    Document,
    badge_of,
    dig,
    model_of,
    routing_of,
    score_at_floor,
    software_of,
    system_of,
)
from moebench.results.metrics import shown
from moebench.results.spec import OPTIONS


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        of: reads its value from a document; None if the document lacks it.
        text: writes a value that is not None.
        brief: whether a terminal's table has it, too.
        chosen: whether it tells what was run, not what came out; if it is equal for all runs, it is
            written once above the table.
    """

    key: str
    header: str
    of: Callable[[Document], Any]
    text: Callable[[Any], str] = str
    brief: bool = True
    chosen: bool = True


def _set_of(run: Document) -> str | None:
    """Return the changed options of a run's system as ``--set`` takes them, without α."""
    changed = {k: v for k, v in (dig(run, "spec.overrides") or {}).items() if k != "alpha"}
    return " ".join(f"{key}={value}" for key, value in sorted(changed.items())) or None


def _field(name: str) -> Column:
    return Column(name, name, lambda run: dig(run, f"spec.{name}"))


_CHOICES = (
    Column("run", "run", lambda run: run["run_id"], chosen=False),
    Column("system", "system", lambda run: system_of(run["spec"])
           + (" (oracle)" if run.get("oracle") else ""), chosen=False),
    Column("set", "set", _set_of),
    _field("setting"),
    _field("machine"),
    Column("software", "software", lambda run: software_of(run["spec"])),
    _field("workload"),
    Column("routing", "routing", lambda run: routing_of(run["spec"])),
    Column("model", "model", model_of),
    _field("batch"),
    Column("alpha", "α", lambda run: run["spec"].get("alpha", dig(run, "spec.options.alpha")),
           "{:g}".format),  # the papers' own letter
    Column("badge", "badge", badge_of),
)  # fmt: skip
_FLOOR = Column(
    "floor", "at chance level", lambda run: "yes" if score_at_floor(run) else None, chosen=False
)


def columns() -> list[Column]:
    """Return every column: what was run, then the figures of `results.metrics`."""
    figures = [
        Column(one.key, one.header, one.read, one.text, "brief runs" in one.where, chosen=False)
        for one in shown("runs")
    ]
    return [*_CHOICES, *figures, _FLOOR]


def cell(column: Column, value: object) -> str:
    """Return a value as text; a dash for None."""
    return MISSING if value is None else column.text(value)


def rows(runs: Sequence[Document]) -> list[dict[str, Any]]:
    """Return one flat row a run, keyed by `Column.key`, with the document's own numbers."""
    return [{column.key: column.of(run) for column in columns()} for run in runs]


#: Fields of a spec that have a column, and those that follow from others.
_SHOWN = {column.key for column in _CHOICES} | {"variant", "overrides", "trace", "options"}
_SHOWN |= {option.name for option in OPTIONS.values() if option.part == "follows"}


def runs_table(
    runs: Sequence[Document], title: str, brief: bool = False, once: bool = True
) -> TextTable:
    """Return a table with one row per run, and a column for every spec field in which runs differ.

    Args:
        brief: only columns that fit into a terminal.
        once: write values that are equal for all of several runs once, above the table.
    """
    found = rows(runs)
    shared: list[Column] = []
    kept: list[Column] = []
    for column in columns():
        if column.brief or not brief:
            values = {row[column.key] for row in found}
            if once and column.chosen and len(values) == 1 < len(found):
                shared.append(column)
            elif values != {None} or not once:
                kept.append(column)
    more = _differing(runs)
    names = [column for column in kept if column in _CHOICES]
    figures = [column for column in kept if column not in _CHOICES]
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
        f"{column.header} {cell(column, found[0][column.key])}"
        for column in shared
        if found[0][column.key] is not None
    )
    return text_table(title, headers, lines, f"all: {said}" if said else "")


def _differing(runs: Sequence[Document]) -> dict[str, list[str]]:
    """Return spec fields without a column in which runs differ, as a text for each run."""
    each = [fields({k: v for k, v in run["spec"].items() if k not in _SHOWN}) for run in runs]
    return {
        name: texts
        for name in dict.fromkeys(name for found in each for name in found)
        if len({*(texts := [found.get(name, "") or MISSING for found in each])}) > 1
    }


def fields(spec: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return every field of a spec as text, nested ones with dotted names; "" for None."""
    found: dict[str, str] = {}
    for name, value in spec.items():
        if isinstance(value, Mapping):
            found |= fields(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = "" if value is None else str(value)
    return found

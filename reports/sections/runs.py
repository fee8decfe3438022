"""The table of single runs: differing options and figures as columns, common ones stated once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from moebench.reports.text import TextTable, text_table
from moebench.results.document import (
    Document,
    badge_of,
    dig,
    model_of,
    routing_of,
    score_at_floor,
    set_of,
    software_of,
    system_of,
)
from moebench.results.metrics import MISSING, Metric, shown, written


class Name(NamedTuple):
    """A column of words that says what was run, or what its score cannot show.

    Attributes:
        of: reads the word from a run.
        chosen: it was chosen, so it is stated once if it is the same for all runs.
    """

    key: str
    header: str
    of: Callable[[Document], Any]
    chosen: bool = True


def _option(name: str) -> Name:
    return Name(name, name, lambda run: run["spec"].get(name))


NAMES = (
    Name("run", "run", lambda run: run["run_id"], chosen=False),
    Name("system", "system", lambda run: system_of(run["spec"])
         + (" (oracle)" if run.get("oracle") else ""), chosen=False),
    Name("set", "set", lambda run: set_of(run["spec"]) or None),
    *map(_option, ("setting", "machine")),
    Name("software", "software", lambda run: software_of(run["spec"])),
    _option("workload"),
    Name("routing", "routing", lambda run: routing_of(run["spec"])),
    Name("model", "model", model_of),
    _option("batch"),
    Name("alpha", "α", lambda run: run["spec"].get("alpha", dig(run, "spec.options.alpha"))),
    Name("badge", "badge", badge_of),
)  # fmt: skip
#: Stated after the figures.
FLOOR = Name("floor", "at chance level", lambda run: "yes" if score_at_floor(run) else None)

#: Fields of a spec that the columns above show, and those that only follow from others.
_SHOWN = {name.key for name in NAMES} | {
    "variant", "overrides", "trace", "options", "slots", "cache_ratio"
}  # fmt: skip


def rows(runs: Sequence[Document]) -> list[dict[str, Any]]:
    """Return one flat row per run: names and figures by key, numbers as the document holds them."""
    columns: list[Name | Metric] = [*NAMES, *shown("runs"), FLOOR]
    return [{column.key: column.of(run) for column in columns} for run in runs]


def cell(column: Name | Metric, value: Any) -> str:
    """Return a row's value as text without its unit; a dash for None."""
    if value is None:
        return MISSING
    return written(value, column.form) if isinstance(column, Metric) else f"{value}"


def runs_table(
    runs: Sequence[Document], title: str, brief: bool = False, once: bool = True
) -> TextTable:
    """Return a table with one row per run, and a column for each option in which runs differ.

    Args:
        brief: only the columns that fit into a terminal.
        once: state above the table, once, what is the same for all of several runs.
    """
    found = rows(runs)

    def values(column: Name | Metric) -> set[Any]:
        return {row[column.key] for row in found}

    shared = [name for name in NAMES if once and name.chosen and len(values(name)) == 1 < len(runs)]
    names = [name for name in NAMES if name not in shared]
    figures: list[Name | Metric] = [*shown("brief runs" if brief else "runs"), FLOOR]
    if once:
        names = [name for name in names if values(name) != {None}]
        figures = [figure for figure in figures if values(figure) != {None}]
    more = _differing(runs)
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
        f"{name.header} {found[0][name.key]}" for name in shared if found[0][name.key] is not None
    )
    return text_table(title, headers, lines, f"all: {said}" if said else "")


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

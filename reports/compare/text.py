"""Comparisons as text and as plain values for JSON."""

from typing import Any

from moebench.reports.compare.rows import Row
from moebench.reports.compare.tables import Comparison
from moebench.reports.text import MISSING, Mark, TextTable
from moebench.results.metrics import Metric, shown, written

#: Mark after a value that differs from those of most rows.
MARK = " ≠"


#: Remark of a lossy system.
LOSSY = "lossy"


def text_table(
    table: Comparison, brief: bool = False, intervals: bool = False, paper: bool = False
) -> TextTable:
    """Return a comparison as a table of text.

    Args:
        brief: only figures that fit into a terminal.
        intervals: append each mean's interval, if there is one.
        paper: for a paper, with short headers and a mark in place of the remark that a system is
            lossy.
    """
    figures = _shown(table, brief)
    words = _words(table, LOSSY if paper else "")
    rows = tuple(
        (
            row.system + (MARK if row.differs else ""),
            *_figures(row, figures, len(table.cells), intervals),
            *(column[at] for column in words.values()),
        )
        for at, row in enumerate(table.rows)
    )
    short = {figure.short: figure.label for figure in figures if figure.short and paper}
    heads = [figure._replace(label=figure.short) if figure.short and paper else figure
             for figure in figures]  # fmt: skip
    headers = ("system", *(figure.header for figure in heads), *words)
    return TextTable(
        table.title, headers, (rows,), said(table), _marks(table, figures),
        ties=_ties(table, figures), names=short,
        lossy=frozenset((0, at) for at, row in enumerate(table.rows) if not row.lossless),
    )  # fmt: skip


def said(table: Comparison) -> str:
    """Return what all rows have in common, and why the table is apart from the main one."""
    badges = {row.badge for row in table.rows if not row.missing}
    badge = f"all {badges.pop()}" if len(badges) == 1 else ""
    return "; ".join(filter(None, [table.said, badge, *_remarks_of_all(table), table.reason]))


def _remarks_of_all(table: Comparison) -> tuple[str, ...]:
    """Return the remarks if they are equal for every row, else none."""
    each = {row.remarks for row in table.rows if not row.missing}
    return each.pop() if len(each) == 1 else ()


def _shown(table: Comparison, brief: bool) -> list[Metric]:
    """Return the figures that some system has."""
    return [
        figure
        for figure in shown("brief compare" if brief else "compare")
        if any(figure.key in row.values for row in table.rows)
    ]


def _words(table: Comparison, omit: str = "") -> dict[str, list[str]]:
    """Return the columns of words: badges, if rows differ in them, and remarks, if any.

    Args:
        omit: a remark to leave out.
    """
    found = {}
    if len({row.badge for row in table.rows if not row.missing}) > 1:
        found["badge"] = [row.badge for row in table.rows]
    shared = (*_remarks_of_all(table), omit)
    if any(remarks := [_remark(row, shared) for row in table.rows]):
        found["remark"] = remarks
    return found


def _remark(row: Row, shared: tuple[str, ...]) -> str:
    differs = [f"{name} {text}{MARK}" for name, text in row.differs.items()]
    bound = f"a bound: {row.reference}" if row.reference else ""
    own = [text for text in row.remarks if text not in shared]
    return "; ".join(filter(None, [*differs, bound, *own, row.missing]))


def _figures(row: Row, figures: list[Metric], cells: int, intervals: bool) -> list[str]:
    if row.missing:
        return ["n/a", *[""] * (len(figures) - 1)]
    return [_figure(row, figure, cells, intervals) for figure in figures]


def _figure(row: Row, figure: Metric, cells: int, intervals: bool) -> str:
    value = row.values.get(figure.key)
    if value is None:
        return MISSING
    text = figure.text(value.mean)
    if value.stderr is not None:
        text += f" ± {written(value.stderr, '.2g')}"
    if intervals and value.interval is not None:
        low, high = (figure.text(end) for end in value.interval)
        text += f" [{low}, {high}]" if low != high else ""
    return text if value.n == cells else f"{text} ({value.n} of {cells})"


def _marks(table: Comparison, figures: list[Metric]) -> dict[tuple[int, int, int], Mark]:
    found: dict[tuple[int, int, int], Mark] = {}
    for at, row in enumerate(table.rows):
        for column, figure in enumerate(figures, 1):
            marks = table.marks.get(figure.key)
            if marks is not None and row.system in marks.best | marks.second:
                found[0, at, column] = "best" if row.system in marks.best else "second"
    return found


def _ties(table: Comparison, figures: list[Metric]) -> frozenset[tuple[int, int, int]]:
    """Return the cells whose rank several systems share although their texts differ."""
    found = set()
    for column, figure in enumerate(figures, 1):
        for rank in table.marks.get(figure.key) or ():
            own = [at for at, row in enumerate(table.rows) if row.system in rank]
            if len({figure.text(table.rows[at].values[figure.key].mean) for at in own}) > 1:
                found |= {(0, at, column) for at in own}
    return frozenset(found)


def document(table: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values, for JSON."""
    return {
        "title": table.title,
        "place": table.place._asdict(),
        "conditions": dict(table.common),
        "apart": {name: {"here": own, "main": main} for name, (own, main) in table.apart.items()},
        "cells": [cell._asdict() for cell in table.cells],
        "systems": [
            {
                "system": row.system,
                "badge": row.badge,
                "runs": list(row.run_ids),
                "figures": {key: value._asdict() for key, value in row.values.items()},
                "bound": row.reference or None,
                "remarks": list(row.remarks),
                "differs": dict(row.differs),
                "not_applicable": row.missing or None,
            }
            for row in table.rows
        ],
    }


def records(table: Comparison) -> list[dict[str, Any]]:
    """Return a row per system: the table's conditions, then each figure with its interval."""
    shared = {
        "table": table.title, **table.place._asdict(), **table.common, "apart": table.reason,
        "cells": len(table.cells),
    }  # fmt: skip
    return [shared | _system(table, row) for row in table.rows]


def _system(table: Comparison, row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {
        "system": row.system, "badge": row.badge, "bound": row.reference,
        "remarks": "; ".join(row.remarks), "runs": " ".join(row.run_ids),
    }  # fmt: skip
    for key in (metric.key for metric in shown("compare")):
        value = row.values.get(key)
        low, high = (value and value.interval) or (None, None)
        marks = table.marks.get(key)
        found |= {
            key: value and value.mean, f"{key}.low": low, f"{key}.high": high,
            f"{key}.n": value and value.n, f"{key}.stderr": value and value.stderr,
            f"{key}.place": None if marks is None else marks.place(row.system),
        }  # fmt: skip
    return found

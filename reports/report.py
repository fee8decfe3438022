"""Every table of the report as text, in reading order."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moebench.reports.compare.conditions import NO_SETTINGS, Settings, lacks
from moebench.reports.compare.tables import Comparisons, comparisons, matrix
from moebench.reports.compare.text import text_table as comparison_table
from moebench.reports.sections import accuracy, claims, evaluations, failures, field
from moebench.reports.sections.runs import runs_table
from moebench.reports.text import MISSING, TextTable, counted, text_table
from moebench.results.claims import PaperResult
from moebench.results.document import Document
from moebench.results.field import rows_of
from moebench.results.store import Cell

COMPARED = (
    "× best: TPOT over that of the fastest system, bounds excluded. × bound: TPOT over the least "
    "that machine and routing allow with the system's own slots. Figures are means over workloads "
    "and seeds; best and second best are marked where systems differ: TPOT beyond the interval of "
    "the ratio, scores beyond two standard errors."
)
INTERVALS = (
    "In brackets: 95 % intervals of the mean by Student's t, over workloads by seeds as if these "
    "were drawn at random."
)
BESIDE = (
    "TPOT over that of the fastest system of the same column; a dash: no run. A column holds only "
    "runs under equal conditions."
)


class Report(NamedTuple):
    """Contents of the report's text outputs.

    Attributes:
        tables: tables by file name without its suffix.
        left_out: sentences about runs that no comparison holds.
    """

    tables: dict[str, TextTable]
    left_out: tuple[str, ...]
    compared: Comparisons


def report(
    runs: Sequence[Document], views: Iterable[accuracy.View] = (), failed: Sequence[Cell] = (),
    reproduced: Sequence[PaperResult] = (), brief: bool = False, intervals: bool = False,
    settings: Settings = NO_SETTINGS, paper: bool = False,
) -> Report:  # fmt: skip
    """Return the report: comparisons, accuracy, claims, evaluations, single runs and failures.

    Args:
        brief: only figures that fit into a terminal.
        intervals: append intervals to means.
        settings: what each setting of the papers states, by its name.
        paper: tables of comparisons have short headers and marks, for LaTeX.
    """
    compared = comparisons(runs, settings)
    tables = [
        (f"comparison-{table.title}", comparison_table(table, brief, intervals, paper))
        for table in compared.tables
    ]
    if tables:  # notes are only under the last table
        name, last = tables[-1]
        notes = (COMPARED, INTERVALS) if intervals else (COMPARED,)
        tables[-1] = name, last._replace(notes=notes)
    beside = matrix(compared.tables)
    if len(beside.titles) > 1:
        columns = [
            [MISSING if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            for ratios in beside.ratios
        ]
        lines = zip(beside.systems, *columns, strict=True)
        headers = ("system", *beside.titles)
        tables.insert(0, ("ratios", text_table("TPOT, × best", headers, lines, notes=[BESIDE])))
    for view in views:
        name = f"{view.series[0].setting}-{view.series[0].system}"
        tables += [(f"accuracy-{name}", _alpha(view)), (f"verdict-{name}", _verdicts(view))]
    tables += [(f"claims-{one.paper}", claims.table(one, brief)) for one in reproduced]
    if found := evaluations.lines(runs):
        headers = evaluations.HEADERS
        title = "results of evaluators"
        tables.append(
            ("evaluations", text_table(title, headers, found, notes=[evaluations.CAPTION]))
        )
    # A run without system or badge cannot be shown; `left_out` names it.
    named = [run for run in runs if not {"spec.system", "badge"} & {*lacks(run)}]
    if named:
        tables.append(("runs", runs_table(named, counted(len(named), "run"), brief)))
    if lines_ := failures.lines(failed):
        tables.append(("failures", text_table("failed cells", failures.HEADERS, lines_)))
    if why := failures.reasons(failed):
        headers = failures.REASON_HEADERS
        tables.append(("not-possible", text_table("not possible here", headers, why)))
    if best := field.lines(rows_of(named, failed)):
        shown = text_table(field.TITLE, field.HEADERS, best, notes=[field.caption()])
        tables.insert(0, ("field", shown))
    return Report(_by_name(tables), compared.left_out, compared)


def _alpha(view: accuracy.View) -> TextTable:
    groups = tuple(tuple(map(tuple, block.text_lines)) for block in view.blocks)
    titles = "; ".join(block.title for block in view.blocks)
    said = f"{view.origin}. Groups: {titles}"
    return TextTable(view.title, tuple(view.headers), groups, said, notes=(accuracy.CAVEAT,))


def _verdicts(view: accuracy.View) -> TextTable:
    title = f"{view.title}: change with α"
    notes = [view.summary, accuracy.METHOD]
    return text_table(title, accuracy.VERDICT_HEADERS, view.verdict_lines, view.origin, notes)


def _by_name(tables: Iterable[tuple[str, TextTable]]) -> dict[str, TextTable]:
    """Return the tables by distinct names that are valid file names."""
    found: dict[str, TextTable] = {}
    for title, table in tables:
        name = re.sub(r"[^0-9A-Za-z.]+", "-", title).strip("-.")[:80]
        others = sum(one == name or one.startswith(f"{name}--") for one in found)
        found[f"{name}--{others + 1}" if others else name] = table
    return found

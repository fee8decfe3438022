"""The rows of a comparison: means over cells, ratios to the fastest, best and second best.

A figure is the mean over cells; runs of one cell that were measured again are first averaged.
Intervals are Student's, at 95 %, over workloads by seeds: how much the mean would differ with other
workloads and seeds of this kind, where those here count as drawn at random from such.  They say
nothing about a profile's uncertainty, which each run's own interval does.
"""

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from statistics import fmean
from typing import NamedTuple

from moebench.reports.compare.conditions import Cell
from moebench.results.document import ERRORS, Document, basis, dig, score_at_floor
from moebench.results.intervals import Interval, mean_interval, ratio_interval
from moebench.results.metrics import BY_KEY, RATIO, TPOT, Metric, shown


class Value(NamedTuple):
    """A figure of a row.

    Attributes:
        mean: over ``n`` cells.
        interval: over them; None for a single one.
        stderr: of the mean, over a run's questions, for a score or a perplexity.
    """

    mean: float
    n: int
    interval: Interval | None = None
    stderr: float | None = None


class Row(NamedTuple):
    """A system in a table.

    Attributes:
        system: its title, with all that was chosen in it.
        values: by a figure's key; without those that some run lacks.
        badge: what its latencies are; several, where its runs differ.
        run_ids: its runs, cell by cell.
        differs: by condition, the text of each that differs from most of the table's; empty unless
            the table was asked to mix.
        reference: why it is no competitor but a bound; empty for any other.
        remarks: what its scores cannot say: those at their floor, answers that were cut.
        missing: why there is no run, for a system that does not exist here.
    """

    system: str
    values: Mapping[str, Value]
    badge: str = ""
    run_ids: tuple[str, ...] = ()
    differs: Mapping[str, str] = {}
    reference: str = ""
    remarks: tuple[str, ...] = ()
    missing: str = ""


class Marks(NamedTuple):
    """The systems that are best in a figure, and second best; ties share a place."""

    best: frozenset[str]
    second: frozenset[str]

    def place(self, system: str) -> int | None:
        """1, 2, or None for any other system."""
        return 1 if system in self.best else 2 if system in self.second else None


def row_of(
    system: str, cells: Mapping[Cell, Sequence[Document]], differs: Mapping[str, str]
) -> Row:
    """The row of a system's runs, cell by cell; without its ratio to the best."""
    ordered = [cells[cell] for cell in sorted(cells)]
    runs = [run for ones in ordered for run in ones]
    values = {}
    for figure in shown("compare"):
        if (value := _value(figure, ordered)) is not None:
            values[figure.key] = value
    badges = ", ".join(sorted({basis(run) for run in runs}))
    ids = tuple(str(run["run_id"]) for run in runs)
    return Row(system, values, badges, ids, differs, _reference(runs), _remarks(runs))


def _reference(runs: Sequence[Document]) -> str:
    """Why a row bounds the others; empty where it does not."""
    return "knows the future" if any(run.get("oracle") for run in runs) else ""


def _remarks(runs: Sequence[Document]) -> tuple[str, ...]:
    found = []
    if flat := sorted({str(run["spec"]["workload"]) for run in runs if score_at_floor(run)}):
        found.append(f"score at its floor: {', '.join(flat)}")
    cut, n = (sum(dig(run, f"accuracy.{key}") or 0 for run in runs) for key in ("cut", "n"))
    if cut:
        found.append(f"{cut} of {n} answers cut at --new-tokens")
    return tuple(found)


def _value(figure: Metric, cells: Sequence[Sequence[Document]]) -> Value | None:
    """Over the cells that have it; None where none has, or one only in some of its runs."""
    each = [[figure.of(run) for run in runs] for runs in cells]
    known = [runs for runs in each if None not in runs]
    if not known or any({None} < {*runs} for runs in each):
        return None
    means = [fmean(value for value in runs if value is not None) for runs in known]
    stderr = None
    if figure.of_questions:
        errors = [
            dig(runs[0], "accuracy.stderr") or 0.0
            for runs, values in zip(cells, each, strict=True)
            if None not in values
        ]
        stderr = sqrt(sum(error * error for error in errors)) / len(errors)
    return Value(fmean(means), len(means), mean_interval(means), stderr)


def with_ratios(
    rows: Sequence[Row], systems: Mapping[str, Mapping[Cell, Sequence[Document]]]
) -> list[Row]:
    """The rows with each one's TPOT over that of the fastest that is no bound."""
    timed = [row for row in rows if TPOT in row.values]
    racing = [row for row in timed if not row.reference] or timed
    if not racing:
        return list(rows)
    best = min(racing, key=lambda row: (row.values[TPOT].mean, row.system))
    of = BY_KEY[TPOT].of

    def by_cell(row: Row) -> dict[Cell, float]:
        found = {}
        for cell, runs in systems[row.system].items():
            known = [value for run in runs if (value := of(run)) is not None]
            if known:
                found[cell] = fmean(known)
        return found

    under, found = by_cell(best), []
    for row in rows:
        if TPOT in row.values:
            over = by_cell(row)
            paired = over.keys() == under.keys() and row is not best
            interval = (
                ratio_interval([over[c] for c in under], [*under.values()]) if paired else None
            )
            ratio = row.values[TPOT].mean / best.values[TPOT].mean
            value = Value(ratio, row.values[TPOT].n, interval)
            row = row._replace(values={**row.values, RATIO: value})
        found.append(row)
    return found


def marks_of(rows: Sequence[Row]) -> dict[str, Marks]:
    """Best and second best of each figure, by its key; bounds left out."""
    found = {}
    for figure in shown("compare"):
        values = {row.system: row.values[figure.key] for row in rows
                  if figure.key in row.values and not row.reference}  # fmt: skip
        if figure.better and len({value.n for value in values.values()}) == 1:
            places = _places(values, 1 if figure.better == "less" else -1)
            if len(places) > 1:
                found[figure.key] = Marks(places[0], places[1] if len(values) > 2 else frozenset())
    return found


def _places(values: Mapping[str, Value], sign: int) -> list[frozenset[str]]:
    """Systems from the best down; those that cannot be told from a place's first share it."""
    places: list[list[str]] = []
    for system in sorted(values, key=lambda name: sign * values[name].mean):
        value = values[system]
        first = values[places[-1][0]] if places else None
        if first is None or _differ(first, value):
            places.append([system])
        else:
            places[-1].append(system)
    return [frozenset(place) for place in places]


def _differ(one: Value, other: Value) -> bool:
    error = ERRORS * hypot(one.stderr or 0.0, other.stderr or 0.0)
    return abs(one.mean - other.mean) > error

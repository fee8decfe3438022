"""The rows of a comparison: means over cells, ratios to the fastest, best and second best.

A figure is the mean over cells; repeated measurements of one cell are averaged first.  Intervals
are Student's, at 95 %, over workloads by seeds, as if these were drawn at random.  Only the
interval of a ratio of TPOT includes the profile's uncertainty (`reports.compare.times`).
"""

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from statistics import fmean
from typing import NamedTuple

from moebench.reports.compare.conditions import InputSet
from moebench.reports.compare.times import Times
from moebench.results.document import ERRORS, Document, basis, dig, is_lossless, score_at_floor
from moebench.results.intervals import Interval, mean_interval
from moebench.results.metrics import Metric, shown

TPOT, RATIO = "tpot_ms", "ratio_best"


class Value(NamedTuple):
    """Mean of a figure in a row.

    Attributes:
        mean: mean over ``n`` cells.
        interval: interval over the cells; None for a single one.
        stderr: standard error of the mean over examples, for scores and perplexities alone.
    """

    mean: float
    n: int
    interval: Interval | None = None
    stderr: float | None = None


class Row(NamedTuple):
    """A system's row in a table.

    Attributes:
        system: title of the system with its changed options.
        values: means by a figure's key, without figures that some run lacks.
        badge: badge of its latencies; several, if its runs differ.
        run_ids: ids of its runs, cell by cell.
        differs: conditions, as text, that differ from those of most rows; only with ``--mixed``.
        reference: why it is a bound rather than a competitor; empty for a competitor.
        lossless: whether every run computed the lossless model's tokens.
        remarks: whether it is lossy; how much of the room for experts it leaves empty; limits of
            its scores: at chance level, answers that were cut.
        missing: why there is no run, for a system that is not applicable.
    """

    system: str
    values: Mapping[str, Value]
    badge: str = ""
    run_ids: tuple[str, ...] = ()
    differs: Mapping[str, str] = {}
    reference: str = ""
    lossless: bool = True
    remarks: tuple[str, ...] = ()
    missing: str = ""


class Marks(NamedTuple):
    """Systems that are best and second best in a figure; ties share a rank."""

    best: frozenset[str]
    second: frozenset[str]

    def place(self, system: str) -> int | None:
        """Return a system's rank: 1, 2, or None for any other."""
        return 1 if system in self.best else 2 if system in self.second else None


def row_of(
    system: str, cells: Mapping[InputSet, Sequence[Document]], differs: Mapping[str, str]
) -> Row:
    """Return the row of a system's runs by cell, without its ratio to the best."""
    ordered = [cells[cell] for cell in sorted(cells)]
    runs = [run for ones in ordered for run in ones]
    values = {}
    for figure in shown("compare"):
        if (value := _value(figure, ordered)) is not None:
            values[figure.key] = value
    badges = ", ".join(sorted({basis(run) for run in runs}))
    ids = tuple(str(run["run_id"]) for run in runs)
    lossless = all(map(is_lossless, runs))
    remarks = (*(() if lossless else ("lossy",)), *_remarks(runs))
    return Row(system, values, badges, ids, differs, _reference(runs), lossless, remarks)


def _reference(runs: Sequence[Document]) -> str:
    """Return why a row is a bound for the others; "" if it is not."""
    return "knows the future" if any(run.get("oracle") for run in runs) else ""


def _remarks(runs: Sequence[Document]) -> tuple[str, ...]:
    found = [text] if (text := empty_room(runs)) else []
    if flat := sorted({str(run["spec"]["workload"]) for run in runs if score_at_floor(run)}):
        found.append(f"score at chance level: {', '.join(flat)}")
    cut, n = (sum(dig(run, f"accuracy.{key}") or 0 for run in runs) for key in ("cut", "n"))
    if cut:
        found.append(f"{cut} of {n} answers cut at --new-tokens")
    return tuple(found)


def empty_room(runs: Sequence[Document]) -> str:
    """Say how much memory experts take if they leave over half of their room empty; else ""."""
    each = [(dig(run, "memory.slot_bytes"), dig(run, "memory.room_bytes")) for run in runs]
    known = [(taken, room) for taken, room in each if taken is not None and room is not None]
    if all(taken >= room / 2 for taken, room in known):
        return ""
    taken, room = (fmean(sizes) / 1e9 for sizes in zip(*known, strict=True))
    return f"its experts take {taken:.3g} of {room:.3g} GB"


def _value(figure: Metric, cells: Sequence[Sequence[Document]]) -> Value | None:
    """Return a figure's mean over the cells that have it; None if none, or part of a cell, has."""
    each = [[figure.read(run) for run in runs] for runs in cells]
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


def with_ratios(rows: Sequence[Row], times: Mapping[str, Times]) -> list[Row]:
    """Return the rows with their ratio of TPOT to the fastest competitor's.

    Args:
        times: of the systems that have a TPOT, by title.
    """
    timed = [row for row in rows if row.system in times]
    racing = [row for row in timed if not row.reference] or timed
    if not racing:
        return list(rows)
    best = min(racing, key=lambda row: (row.values[TPOT].mean, row.system))
    found = []
    for row in rows:
        if row.system in times:
            ratio = times[row.system].over(times[best.system])
            interval = None if row is best else ratio.interval
            value = Value(ratio.value, row.values[TPOT].n, interval)
            row = row._replace(values={**row.values, RATIO: value})
        found.append(row)
    return found


def ties_of(times: Mapping[str, Times]) -> dict[str, frozenset[str]]:
    """Return, for each system, the others whose TPOT cannot be told from its own."""
    found: dict[str, set[str]] = {name: set() for name in times}
    names = sorted(times, key=lambda name: times[name].mean)
    for at, fast in enumerate(names):
        for slow in names[at + 1 :]:
            if times[slow].over(times[fast]).tied:
                found[fast].add(slow)
                found[slow].add(fast)
    return {name: frozenset(others) for name, others in found.items()}


def marks_of(rows: Sequence[Row], ties: Mapping[str, frozenset[str]]) -> dict[str, Marks]:
    """Return best and second best of each figure by its key, without bounds.

    Args:
        ties: from `ties_of`; they hold for TPOT and its ratio.
    """
    found = {}
    for figure in shown("compare"):
        values = {row.system: row.values[figure.key] for row in rows
                  if figure.key in row.values and not row.reference}  # fmt: skip
        if figure.better and len({value.n for value in values.values()}) == 1:
            known = ties if figure.key in (TPOT, RATIO) else None
            places = _places(values, 1 if figure.better == "less" else -1, known)
            if len(places) > 1:
                found[figure.key] = Marks(places[0], places[1] if len(values) > 2 else frozenset())
    return found


def _places(
    values: Mapping[str, Value], sign: int, ties: Mapping[str, frozenset[str]] | None
) -> list[frozenset[str]]:
    """Rank systems, best first; a system that cannot be told from the first of a rank shares it."""
    places: list[list[str]] = []
    for system in sorted(values, key=lambda name: sign * values[name].mean):
        first = places[-1][0] if places else None
        if first is None:
            tied = False
        elif ties is None:
            tied = not _differ(values[first], values[system])
        else:
            tied = system in ties[first]
        if tied:
            places[-1].append(system)
        else:
            places.append([system])
    return [frozenset(place) for place in places]


def _differ(one: Value, other: Value) -> bool:
    error = ERRORS * hypot(one.stderr or 0.0, other.stderr or 0.0)
    return abs(one.mean - other.mean) > error

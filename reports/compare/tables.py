"""Comparison tables: comparable runs sorted into tables of systems, as plain values.

`comparisons` sorts runs by the rule of `reports.compare.conditions`.  Within one group, runs
under the conditions that most systems share make the main table, and of equally many those that
are nearest to the paper's; others have tables of their own, each with the reason.  A table holds
every system that read all of its cells (workload, seed), so that all of its means are over the same
texts.  `reports.compare.rows` computes them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from moebench.reports.compare.conditions import (
    CONDITIONS,
    NAMES,
    NO_SETTINGS,
    OF_CELLS,
    ComparisonGroup,
    InputSet,
    Settings,
    cell_of,
    conditions_of,
    distance,
    lacks,
    newest,
    place_of,
    title_of,
)
from moebench.reports.compare.rows import (
    RATIO,
    TPOT,
    Marks,
    Row,
    marks_of,
    row_of,
    ties_of,
    with_ratios,
)
from moebench.reports.compare.times import Times
from moebench.reports.text import counted
from moebench.results.document import Document, dig
from moebench.substrate.errors import UsageError

WhyNot = Callable[[Document, str], str | None]


class Comparison(NamedTuple):
    """One comparison table: common conditions of its systems, and a row for each, fastest first.

    Attributes:
        title: title that differs from those of all other tables.
        common: conditions by name, as text, with workloads and seeds.
        apart: conditions in which it is not comparable with its group's main table, by name: its
            own text and that table's; empty for the main table.
        marks: best and second best by a figure's key, if systems differ in it.
        ties: for each system with a TPOT, the others that cannot be told from it.
    """

    place: ComparisonGroup
    title: str
    common: Mapping[str, str]
    apart: Mapping[str, tuple[str, str]]
    cells: tuple[InputSet, ...]
    rows: tuple[Row, ...]
    marks: Mapping[str, Marks]
    ties: Mapping[str, frozenset[str]]

    @property
    def reason(self) -> str:
        """Why it is not comparable with the main table, in words; empty for a main table."""
        parts = [f"{name} {own}, not {other}" for name, (own, other) in self.apart.items()]
        return f"not comparable with the table above: {'; '.join(parts)}" if parts else ""

    @property
    def said(self) -> str:
        """Conditions that all of its systems have in common, in one line."""
        plain = {c.name: c.default for c in CONDITIONS}
        plain["expert-precision"] = self.place.precision
        quiet = {c.name for c in CONDITIONS if c.quiet}
        shown = {**self.place.parts, **self.common}
        return ", ".join(
            f"{name} {text}"
            for name, text in shown.items()
            if name in self.apart or (name not in quiet and text != plain.get(name))
        )


class Comparisons(NamedTuple):
    """All tables of some runs, and sentences about runs that are in none.

    Attributes:
        left_out: sentences about runs that no table holds.
    """

    tables: tuple[Comparison, ...]
    left_out: tuple[str, ...]


# ----------------------------------------------------------------------------- from runs to tables


def comparisons(
    runs: Iterable[Document], settings: Settings = NO_SETTINGS, mixed: Collection[str] = (),
    why_not: WhyNot = lambda run, system: None,
) -> Comparisons:  # fmt: skip
    """Return every table of these runs, sorted by group, main tables first.

    Args:
        settings: what each setting states: the main table is the one nearest to it.
        mixed: conditions that may differ within a table.
        why_not: returns why a system is not applicable in a run's group, or None.

    Raises UsageError: ``mixed`` names none of `NAMES`.
    """
    for name in mixed:
        if name not in NAMES:
            raise UsageError(f"--mixed {name}: allowed: {', '.join(NAMES)}")
    left_out, whole = [], []
    for run in runs:
        if gone := lacks(run):
            left_out.append(
                f"run {run.get('run_id')} lacks {', '.join(gone)}: another version wrote it, or it "
                "is damaged"
            )
        elif "evaluation" not in run:  # an evaluator's prompts differ from any workload's
            whole.append(run)
    kept, older = newest(whole)
    if older:
        names = ", ".join(str(run["run_id"]) for run in older[:5])
        more = ", ..." if len(older) > 5 else ""
        are = "is" if len(older) == 1 else "are"
        left_out.append(
            f"{counted(len(older), 'run')} {are} left out, as a newer run of the same spec used "
            f"other code, weights, prompts or hardware figures: {names}{more}"
        )
    places: dict[ComparisonGroup, list[Document]] = {}
    for run in kept:
        places.setdefault(place_of(run), []).append(run)
    every = {title_of(run): None for run in kept}
    tables: list[Comparison] = []
    for place, ones in sorted(places.items()):
        absent = [Row(s, {}, missing=r) for s in every if (r := why_not(ones[0], s))]
        tables += _tables_of(place, ones, settings, mixed, absent)
    return Comparisons(tuple(_named(tables)), tuple(left_out))


class _Found(NamedTuple):
    """Runs of one table: their equal conditions, and the systems' runs by cell."""

    conditions: Mapping[str, str]
    cells: frozenset[InputSet]
    systems: Mapping[str, Mapping[InputSet, Sequence[Document]]]

    @property
    def first(self) -> Document:
        """A run of these conditions."""
        cells = next(iter(self.systems.values()))
        return next(iter(cells.values()))[0]


def _tables_of(
    place: ComparisonGroup, runs: Sequence[Document], settings: Settings, mixed: Collection[str],
    absent: Sequence[Row],
) -> list[Comparison]:  # fmt: skip
    alike: dict[tuple[tuple[str, str], ...], dict[str, dict[InputSet, list[Document]]]] = {}
    for run in runs:
        equal = tuple((n, t) for n, t in conditions_of(run).items() if n not in mixed)
        cells = alike.setdefault(equal, {}).setdefault(title_of(run), {})
        cells.setdefault(cell_of(run), []).append(run)
    found = [
        _Found(dict(equal), cells, holders)
        for equal, systems in alike.items()
        for cells, holders in _by_cells(systems, mixed)
    ]

    def order(one: _Found) -> tuple[Any, ...]:
        run = one.first
        most_memory = -(dig(run, "memory.offered_device_bytes") or 0)
        sizes = -len(one.systems), -len(one.cells)
        return (*sizes, *distance(run, settings), most_memory, *one.conditions.values())

    found.sort(key=order)
    main = found[0]
    usual = _usual([_conditions(cells) for cells in main.systems.values()])
    there = {name: text for name, text in usual.items() if name not in mixed}
    return [_table(place, one, main, there, absent) for one in found]


def _by_cells(
    systems: Mapping[str, Mapping[InputSet, Sequence[Document]]], mixed: Collection[str]
) -> list[tuple[frozenset[InputSet], dict[str, Mapping[InputSet, Sequence[Document]]]]]:
    """Return, for each set of cells that a system read, all systems that read all of it."""

    def key(cell: InputSet) -> InputSet:
        # Another number of prompts is another sample.
        data = "" if {*OF_CELLS, "prompts"} & {*mixed} else cell.data
        workload = "" if "workloads" in mixed else cell.workload
        return InputSet(workload, "" if "seed" in mixed else cell.seed, data)

    read = {name: frozenset(map(key, cells)) for name, cells in systems.items()}
    return [
        (
            frozenset(c for name in systems for c in systems[name] if key(c) in wanted),
            {
                name: {cell: ones for cell, ones in cells.items() if key(cell) in wanted}
                for name, cells in systems.items()
                if read[name] >= wanted
            },
        )
        for wanted in dict.fromkeys(read.values())
    ]


def _table(
    place: ComparisonGroup, found: _Found, main: _Found, there: Mapping[str, str],
    absent: Sequence[Row],
) -> Comparison:  # fmt: skip
    """Build one table.

    Args:
        main: runs of the group's main table.
        there: usual conditions of the main table, without those that may be mixed.
    """
    each = {name: _conditions(cells) for name, cells in found.systems.items()}
    common = _usual(list(each.values()))
    apart = {
        name: (text, there[name])
        for name, text in common.items()
        if found is not main and text != there.get(name, text)
    }
    if found is not main and not apart:
        apart = {"questions": ("other ones of the same workloads", "these")}
    rows = [
        row_of(system, cells, {n: t for n, t in each[system].items() if t != common[n]})
        for system, cells in found.systems.items()
    ]
    times = {row.system: Times.of(found.systems[row.system]) for row in rows if TPOT in row.values}
    ties = ties_of(times)
    rows = with_ratios(rows, times)
    slowest = float("inf")
    rows.sort(
        key=lambda row: (row.values[TPOT].mean if TPOT in row.values else slowest, row.system)
    )
    if found is main:
        rows += [row for row in absent if row.system not in found.systems]
    return Comparison(
        place, place.title, common, apart, tuple(sorted(found.cells)), tuple(rows),
        marks_of(rows, ties), ties,
    )  # fmt: skip


def _conditions(cells: Mapping[InputSet, Sequence[Document]]) -> dict[str, str]:
    """Return a system's conditions by name, as text; several values if its runs differ."""
    each = [conditions_of(run) for runs in cells.values() for run in runs]
    texts = {c.name: ", ".join(sorted({one[c.name] for one in each})) for c in CONDITIONS}
    workloads = ", ".join(sorted({cell.workload for cell in cells}))
    return texts | {
        "workloads": workloads, "seed": ", ".join(sorted({cell.seed for cell in cells})),
    }  # fmt: skip


def _usual(conditions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the most frequent text of each condition, by name."""
    return {name: Counter(one[name] for one in conditions).most_common(1)[0][0] for name in NAMES}


def refuse_mixtures(tables: Iterable[Comparison], mixed: Collection[str] = ()) -> None:
    """Refuse runs that are not comparable.

    Raises UsageError: some are not; the message names them, the condition and a remedy.
    """
    for table in tables:
        for name, (own, other) in table.apart.items():
            allow = ",".join(sorted({*mixed, name})) if name in NAMES else None
            raise UsageError(
                f"{table.place.title}: {table.rows[0].system} has {name} {own}, the others "
                f"{other}: not a fair comparison; leave it out (--systems)"
                + (f", or allow it and see it marked: --mixed {allow}" if allow else "")
            )


# ----------------------------------------------------------------------------- names, a heat map


def _named(tables: Sequence[Comparison]) -> list[Comparison]:
    """Return the tables with distinct titles."""
    same: dict[str, list[Comparison]] = {}
    for table in tables:
        same.setdefault(table.place.title, []).append(table)
    found: list[Comparison] = []
    counts: Counter[str] = Counter()
    for table in tables:
        title = ", ".join([table.place.title, *_distinct(table, same[table.place.title])])
        counts[title] += 1
        # Other prompts of the same workloads have no name: number the tables.
        found.append(table._replace(title=f"{title} ({n})" if (n := counts[title]) > 1 else title))
    return found


def _distinct(table: Comparison, others: Sequence[Comparison]) -> list[str]:
    """Return the conditions of a table that differ among tables of one title."""
    each = [{**one.place.parts, **one.common} for one in others]
    own = {**table.place.parts, **table.common}
    if all(one["expert-precision"] == one["precision"] for one in each):
        del own["expert-precision"]  # the precision states it already
    return [f"{name} {text}" for name, text in own.items() if len({o[name] for o in each}) > 1]


class Matrix(NamedTuple):
    """Ratios to the best, ``[table][system]``; None if a table has no run of a system."""

    titles: tuple[str, ...]
    systems: tuple[str, ...]
    ratios: tuple[tuple[float | None, ...], ...]


def matrix(tables: Sequence[Comparison]) -> Matrix:
    """Return the ratios to the best for a heat map, of tables with two systems or more.

    A system's α is omitted if its table has no other one of it, as settings have an α of their own.
    Systems are sorted by the geometric mean of their ratios.
    """
    shown = [table for table in tables if sum(RATIO in row.values for row in table.rows) > 1]
    ratios = [
        {
            name: row.values[RATIO].mean
            for name, row in zip(_names(table), table.rows, strict=True)
            if RATIO in row.values
        }
        for table in shown
    ]
    each: dict[str, list[float]] = {}
    for found in ratios:
        for system, ratio in found.items():
            each.setdefault(system, []).append(ratio)
    systems = sorted(each, key=lambda system: (geometric_mean(each[system]), system))
    return Matrix(
        tuple(table.title for table in shown),
        tuple(systems),
        tuple(tuple(found.get(system) for system in systems) for found in ratios),
    )


def _names(table: Comparison) -> list[str]:
    """Return the systems' titles, without α if the title is unique without it."""
    short = [
        " ".join(part for part in row.system.split(" ") if not part.startswith("alpha="))
        for row in table.rows
    ]
    counts = Counter(short)
    return [
        name if counts[name] == 1 else row.system
        for name, row in zip(short, table.rows, strict=True)
    ]

"""The history of a figure over the commits of a user's repository, with its steps.

A history is of one system in one comparison group.  Its rows are versions of the system under equal
conditions, in the order of the commits.  Each row is compared with the latest earlier version that
ran under equal conditions on the same texts.  If there is none, it is compared with the version
before it, and a difference is attributed to the conditions that changed, not to the system.

A *step* is a difference that the interval of the comparison excludes.  Times follow the rule of
`reports.compare.times`.  Other figures have the interval of the paired differences over cells, from
three cells on; without an interval, every difference is a step.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from moebench.reports.compare.conditions import (
    ComparisonGroup,
    Condition,
    InputSet,
    cell_of,
    conditions_of,
    lacks,
    place_of,
    title_of,
)
from moebench.reports.compare.times import CELLS, Times
from moebench.results.document import Document, basis, dig, system_of
from moebench.results.intervals import Interval, mean_interval
from moebench.results.metrics import Metric

#: Figures of `moebench report --metric`.
FIGURES = ("tpot_ms", "ttft_ms", "hit_ratio", "kl")


class Commit(NamedTuple):
    """A commit: its id, the time at which it was committed (seconds since 1970), its subject."""

    id: str
    time: int
    subject: str

    @property
    def short(self) -> str:
        """The beginning of the id."""
        return self.id[:10]


@dataclass(frozen=True, slots=True)
class Placed:
    """A run, and the version of its system in a repository.

    Attributes:
        system: the system's latest name.
        at: index of the commit that made the version, or that precedes it if it is uncommitted.
        committed: whether a commit contains the version.
        libraries: digests of moebench's modules that the system imported, by name.
    """

    run: Document
    system: str
    at: int
    committed: bool = True
    libraries: Mapping[str, str] = field(default_factory=dict)


class Change(NamedTuple):
    """Difference of a row from an earlier one.

    Attributes:
        before: index of the earlier row in its history.
        value: ratio of a time to the earlier one, or difference of another figure.
        interval: of the value; None if nothing is known of it.
        differs: whether the interval excludes that the figures are equal.
        conditions: conditions that changed, by name: text before and after.
        better: whether the difference is an improvement; None if the figures are tied.
    """

    before: int
    value: float
    interval: Interval | None
    differs: bool
    conditions: Mapping[str, tuple[str, str]]
    better: bool | None

    @property
    def step(self) -> bool:
        """Whether the system differs: the figures do, under equal conditions."""
        return self.differs and not self.conditions


@dataclass(frozen=True, slots=True)
class Row:
    """A version of a system under equal conditions.

    Attributes:
        cells: runs by the texts that they read; all have the figure.
        conditions: what must be equal for a comparison, by name, as text.
        change: None for a row without an earlier version.
    """

    at: int
    committed: bool
    cells: Mapping[InputSet, Sequence[Document]]
    conditions: Mapping[str, str]
    libraries: Mapping[str, str]
    value: float
    interval: Interval | None
    change: Change | None = None

    @property
    def runs(self) -> list[Document]:
        """The runs of all cells."""
        return [run for cell in sorted(self.cells) for run in self.cells[cell]]

    @property
    def badge(self) -> str:
        """Badge of the latencies; several, if runs differ."""
        return ", ".join(sorted({basis(run) for run in self.runs}))

    @property
    def name(self) -> str:
        """Name under which the system ran."""
        return ", ".join(sorted({system_of(run["spec"]) for run in self.runs}))


class History(NamedTuple):
    """A figure of a system in a comparison group, over commits.

    Attributes:
        rows: at least two versions, in the order of the commits.
        untested: indices of the commits that made versions without a run.
    """

    system: str
    place: ComparisonGroup
    metric: Metric
    commits: Sequence[Commit]
    rows: tuple[Row, ...]
    untested: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """The system and its comparison group."""
        return f"{self.system}, {self.place.title}"


# ----------------------------------------------------------------------------- conditions


def _measured(path: str) -> Condition:
    """Return a condition of measured runs; a simulated machine does not depend on it."""
    name = path.rpartition(".")[2].replace("machine", "processor")
    return Condition(name, lambda run: "-" if run["simulated"] else dig(run, path))


#: Conditions of runs at different times, in addition to those of a comparison.
OF_TIME = (
    Condition("code of moebench", lambda run: str(dig(run, "provenance.code_hash"))[:8]),
    Condition("torch", lambda run: dig(run, "provenance.versions.torch")),
    _measured("provenance.machine"),
    _measured("provenance.threads"),
)

#: Name of the condition that moebench's modules which a system imports are equal.
LIBRARIES = "systems of moebench"


def _conditions(run: Document) -> dict[str, str]:
    return conditions_of(run) | {one.name: one.text(one.of(run)) for one in OF_TIME}


def changed(first: Row, second: Row) -> dict[str, tuple[str, str]]:
    """Return the conditions that differ between two rows, with both texts."""
    found = {
        name: (text, second.conditions[name])
        for name, text in first.conditions.items()
        if text != second.conditions[name]
    }
    for name in sorted(first.libraries.keys() & second.libraries.keys()):
        both = first.libraries[name], second.libraries[name]
        if both[0] != both[1]:
            found[LIBRARIES] = (f"{name} {both[0][:8]}", both[1][:8])
            break
    if not first.cells.keys() & second.cells.keys():
        found |= _texts(first, second)
    return found


def _texts(first: Row, second: Row) -> dict[str, tuple[str, str]]:
    """Return how the texts differ of two rows that share none."""
    for names in (("workload", "seed"), ("data",)):  # other prompts of one workload have no name
        found = {name: (_listed(first, name), _listed(second, name)) for name in names}
        if differ := {name: both for name, both in found.items() if both[0] != both[1]}:
            return differ
    return {}


def _listed(row: Row, name: str) -> str:
    return ", ".join(sorted({str(getattr(cell, name))[:60] for cell in row.cells}))


# ----------------------------------------------------------------------------- the rule


def histories(
    placed: Iterable[Placed], commits: Sequence[Commit], metric: Metric,
    versions: Mapping[str, Sequence[int]] | None = None,
) -> list[History]:  # fmt: skip
    """Return the histories of all systems that have runs of two versions or more.

    Args:
        placed: the runs; a run occurs once for each commit that made its version.
        commits: from the oldest to HEAD.
        versions: by a system's name, indices of the commits that made a version of it.
    """
    groups: dict[tuple[str, ComparisonGroup], list[Placed]] = {}
    for one in placed:
        if "evaluation" not in one.run and not lacks(one.run):
            title = title_of({**one.run, "spec": {**one.run["spec"], "system": one.system}})
            groups.setdefault((title, place_of(one.run)), []).append(one)
    found = []
    for (title, place), ones in sorted(groups.items(), key=lambda item: item[0]):
        rows = _compared(_rows(ones, metric), metric)
        if len({(row.at, row.committed) for row in rows}) > 1:
            made = {at for one in ones for at in (versions or {}).get(one.system, ())}
            untested = made - {row.at for row in rows if row.committed}
            history = History(title, place, metric, commits, rows, tuple(sorted(untested)))
            found.append(history)
    return found


def _rows(placed: Iterable[Placed], metric: Metric) -> list[Row]:
    """Return the rows in the order of commits, then of the time of their first runs."""
    groups: dict[tuple[object, ...], list[Placed]] = {}
    for one in placed:
        if metric.read(one.run) is not None:
            # Runs of one commit with other modules of moebench have another hash.
            version = (one.at, not one.committed, str(dig(one.run, "provenance.system_hash")))
            key = (*version, *_conditions(one.run).items())
            groups.setdefault(key, []).append(one)
    rows: list[tuple[tuple[object, ...], Row]] = []
    for key, ones in groups.items():
        cells: dict[InputSet, list[Document]] = {}
        for one in sorted(ones, key=lambda one: str(one.run["run_id"])):
            cells.setdefault(cell_of(one.run), []).append(one.run)
        created = min(str(dig(one.run, "provenance.created")) for one in ones)
        value, interval = _value(cells, metric)
        first = ones[0]
        row = Row(first.at, first.committed, cells, _conditions(first.run), first.libraries,
                  value, interval)  # fmt: skip
        rows.append(((*key[:2], created, *key[2:]), row))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _means(cells: Mapping[InputSet, Sequence[Document]], metric: Metric) -> dict[InputSet, float]:
    found = {}
    for cell, runs in cells.items():
        values = [value for run in runs if (value := metric.read(run)) is not None]
        found[cell] = fmean(values)
    return found


def _value(
    cells: Mapping[InputSet, Sequence[Document]], metric: Metric
) -> tuple[float, Interval | None]:
    """Return the mean over cells; its interval is over cells, or the profile's of a single run."""
    means = [*_means(cells, metric).values()]
    if len(means) >= CELLS:
        interval = mean_interval(means)
        # An interval that reaches below zero is over too few values to be shown.
        return fmean(means), interval if interval and interval.low >= 0 else None
    interval = None
    if len(means) == 1 and metric.ends:
        (runs,) = cells.values()
        low, high = (dig(runs[0], f"{metric.ends}.{end}") for end in ("low", "high"))
        if len(runs) == 1 and low is not None and high is not None:
            interval = Interval(low, high)
    return fmean(means), interval


def _compared(rows: Sequence[Row], metric: Metric) -> tuple[Row, ...]:
    """Return the rows with their changes."""
    found: list[Row] = []
    for row in rows:
        earlier = [at for at, one in enumerate(found) if _precedes(one, row)]
        change = None
        if earlier:
            equal = [at for at in earlier if not changed(found[at], row)]
            before = max(equal or earlier)
            change = _change(before, found[before], row, metric)
        found.append(
            Row(row.at, row.committed, row.cells, row.conditions, row.libraries, row.value,
                row.interval, change)
        )  # fmt: skip
    return tuple(found)


def _precedes(first: Row, second: Row) -> bool:
    """Return whether a row is of an earlier version, or of the same one in other conditions."""
    same = (first.at, first.committed) == (second.at, second.committed)
    return not same or bool(changed(first, second)) or not first.committed


def _change(before: int, first: Row, second: Row, metric: Metric) -> Change:
    shared = first.cells.keys() & second.cells.keys()
    one, other = (
        {cell: runs for cell, runs in row.cells.items() if cell in shared or not shared}
        for row in (first, second)
    )
    if metric.time:
        ratio = Times.of(other, metric.key).over(Times.of(one, metric.key))
        value, interval, differs, grew = (
            ratio.value,
            ratio.interval,
            not ratio.tied,
            ratio.value > 1,
        )
    else:
        value, interval = _difference(_means(one, metric), _means(other, metric))
        ends = interval or Interval(value, value)
        differs, grew = not ends.low <= 0 <= ends.high, value > 0
    better = grew == (metric.better == "more") if differs else None
    return Change(before, value, interval, differs, changed(first, second), better)


def _difference(
    one: Mapping[InputSet, float], other: Mapping[InputSet, float]
) -> tuple[float, Interval | None]:
    """Return the second mean minus the first, and its interval over paired cells."""
    value = fmean(other.values()) - fmean(one.values())
    if math.isclose(fmean(other.values()), fmean(one.values())):
        value = 0.0
    if len(one) < CELLS or one.keys() != other.keys():
        return value, None
    return value, mean_interval([other[cell] - one[cell] for cell in one])


def steps(history: History) -> Iterator[Row]:
    """Yield the rows that are steps of the system."""
    return (row for row in history.rows if row.change is not None and row.change.step)

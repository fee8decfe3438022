"""The history of a figure over commits as tables, CSV rows and JSON."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from moebench.reports.compare.history import Change, History, Row, steps
from moebench.reports.text import MISSING, TextTable, counted, text_table
from moebench.results.intervals import Interval

CAPTION = (
    "A row is a version of the system under equal conditions; its commit is the first of the range "
    "with this source. A change is relative to the latest earlier version that ran under equal "
    "conditions on the same texts, or else to the version before it. A step is a change whose "
    "interval excludes that both versions are equal, under equal conditions. The interval of a "
    "change is that of the comparisons: it covers the choice of workloads and seeds, from three "
    "on, and, for times, the ranges of the hardware profile. Without an interval, every "
    "difference is a step."
)


#: Fields of a change in JSON and CSV.
_CHANGE = ("against", "value", "low", "high", "differs", "step", "conditions")


class Since(NamedTuple):
    """What `moebench report --since` found.

    Attributes:
        since: the commit before the range, as the user named it.
        notes: sentences about runs that are in no history.
    """

    since: str
    histories: Sequence[History]
    notes: Sequence[str] = ()

    @property
    def tables(self) -> dict[str, TextTable]:
        """A table for each history, by the name of its file."""
        found = [table(one, self.since) for one in self.histories]
        if found:  # the explanation is only under the last table
            found[-1] = found[-1]._replace(notes=(*found[-1].notes, CAPTION))
        return {f"history-{at}": one for at, one in enumerate(found, 1)}


def table(history: History, since: str) -> TextTable:
    """Return a history as text."""
    metric, commits = history.metric, history.commits
    count = counted(sum(1 for _ in steps(history)), "step")
    said = [f"{metric.label} over {since}..{commits[-1].short}"]
    said += [f"{name} {text}" for name, text in history.place.parts.items()]
    said += [count]
    notes = []
    if history.untested:
        names = ", ".join(commits[at].short for at in history.untested)
        notes.append(f"Commits that made a version without a run: {names}.")
    headers = ("commit", "date", "subject", "runs", "badge", metric.header, "interval",
               "change", "against", "verdict")  # fmt: skip
    return text_table(
        f"{metric.label}: {history.title}", headers, lines(history), ", ".join(said), notes
    )


def lines(history: History) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table."""
    metric = history.metric
    for row in history.rows:
        commit = history.commits[row.at]
        renamed = "" if history.system.startswith(row.name) else f" (as {row.name})"
        yield (
            version_of(history, row),
            _date(commit.time)[:10],
            commit.subject + renamed,
            str(len(row.runs)),
            row.badge,
            metric.text(row.value),
            _ends(row.interval, metric.text),
            MISSING if row.change is None else _change(history, row.change),
            MISSING if row.change is None else version_of(history, history.rows[row.change.before]),
            verdict(history, row),
        )


def version_of(history: History, row: Row) -> str:
    """Return the commit of a row; a version in no commit is listed after the one before its run."""
    name = history.commits[row.at].short
    return name if row.committed else f"{name} + uncommitted"


def _date(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()


def _ends(interval: Interval | None, text: Any) -> str:
    return MISSING if interval is None else f"{text(interval.low)} to {text(interval.high)}"


def _change(history: History, change: Change) -> str:
    """Return a change with its interval: of a time in percent, else in the figure's unit."""
    metric, time = history.metric, history.metric.time
    factor, unit = (100.0, "%") if time else (metric.factor, metric.unit.replace("%", "points"))

    def text(value: float) -> str:
        return f"{factor * (value - time):+.3g}"

    ends = "" if change.interval is None else f" ({_ends(change.interval, text)})"
    return f"{text(change.value)} {unit}{ends}"


def verdict(history: History, row: Row) -> str:
    """Return whether a row is a step of the system, and the conditions that changed."""
    change = row.change
    if change is None:
        return "first"
    direction = "tied"
    if change.differs:
        words = ("faster", "slower") if history.metric.time else ("better", "worse")
        direction = words[0 if change.better else 1]
    if not change.conditions:
        return f"step: {direction}" if change.step else direction
    said = f"changed conditions: {_conditions(change.conditions)}"
    return f"{direction}, no step of the system; {said}" if change.differs else f"tied; {said}"


def _conditions(changed: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name} {before} → {after}" for name, (before, after) in changed.items())


def records(found: Since) -> Iterator[dict[str, Any]]:
    """Yield every row with its history, for CSV: stored numbers, dates as ISO 8601."""
    for history in found.histories:
        shared = {"system": history.system, **history.place._asdict(), "figure": history.metric.key}
        for row in _documents(history):
            change = row.pop("change") or dict.fromkeys(_CHANGE)
            conditions = change.pop("conditions") or {}
            yield {
                **shared, **row, "runs": " ".join(row["runs"]),
                **{f"change.{name}": value for name, value in change.items()},
                "change.conditions": _conditions(conditions),
            }  # fmt: skip


def document(found: Since) -> dict[str, Any]:
    """Return the histories as plain values, for JSON."""
    return {
        "since": found.since,
        "histories": [
            {
                "system": one.system, "place": one.place._asdict(), "figure": one.metric.key,
                "rows": _documents(one),
                "untested": [one.commits[at].id for at in one.untested],
            }
            for one in found.histories
        ],
        "notes": [*found.notes],
    }  # fmt: skip


def _documents(history: History) -> list[dict[str, Any]]:
    return [
        {
            "commit": history.commits[row.at].id, "committed": row.committed,
            "date": _date(history.commits[row.at].time),
            "subject": history.commits[row.at].subject, "ran_as": row.name,
            "runs": [str(run["run_id"]) for run in row.runs], "badge": row.badge,
            "value": row.value,
            "low": row.interval and row.interval.low, "high": row.interval and row.interval.high,
            "verdict": verdict(history, row),
            "change": row.change and _plain(history, row.change),
        }
        for row in history.rows
    ]  # fmt: skip


def _plain(history: History, change: Change) -> dict[str, Any]:
    """Return a change as plain values; a time's is a ratio, another figure's a difference."""
    low, high = change.interval or (None, None)
    values = (version_of(history, history.rows[change.before]), change.value, low, high,
              change.differs, change.step,
              {name: list(both) for name, both in change.conditions.items()})  # fmt: skip
    return dict(zip(_CHANGE, values, strict=True))

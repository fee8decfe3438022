"""Progress of a sweep: a live display on a terminal, plain lines in a pipe."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeGuard

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from moebench.harness import console
from moebench.harness.sweep.estimate import duration
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.reports.sections import failures
from moebench.results.spec import RunSpec
from moebench.substrate.text import visible


class Board(Protocol):
    """Display of a sweep's cells, notified when a cell starts and ends."""

    def started(self, worker: int, job: Job) -> None:
        """Called when a worker starts a cell."""

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        """Called when a worker has finished a cell or the cell has failed."""


class Unseen:
    """A board that shows nothing."""

    def started(self, worker: int, job: Job) -> None:
        """Do nothing."""

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        """Do nothing."""


def title(spec: RunSpec) -> str:
    """Return a short title of a cell."""
    return visible(failures.title(spec.model_dump()))


@contextmanager
def board(total: int) -> Iterator[Board]:
    """Show the progress of a sweep of ``total`` cells, live on a terminal, else as lines."""
    if console.stderr().is_terminal:
        drawn = _Live(total)
        with drawn.live:
            yield drawn
    else:
        yield _Lines(total)


def _is_failure(outcome: Finished | Failed) -> TypeGuard[Failed]:
    """Return whether a cell failed; those that are not possible here are summed up at the end."""
    return isinstance(outcome, Failed) and outcome.traceback is not None


class _Lines:
    """Progress of a sweep as lines: one for every tenth of the cells and for every failure."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._failed, self._said = total, 0, 0, 0
        self._began = time.monotonic()

    def started(self, worker: int, job: Job) -> None:
        """Do nothing: lines show only ended cells."""

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        self._done += 1
        if _is_failure(outcome):
            self._failed += 1
            error = " ".join(outcome.error.split())
            console.say(f"failed: {title(job.spec)}: {error}")
        if self._done * 10 // self._total > self._said:
            self._said = self._done * 10 // self._total
            left = (time.monotonic() - self._began) / self._done * (self._total - self._done)
            rest = f", {duration(left)} left" if self._done < self._total else ""
            console.say(f"sweep: {self._done}/{self._total}, {self._failed} failed{rest}")


class _Live:
    """Live progress of a sweep: a bar with counts and time left, and every worker's cell."""

    def __init__(self, total: int) -> None:
        self._now: dict[int, str] = {}
        self._failed = 0
        self._bar = Progress(
            TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[running]} running, {task.fields[failed]} failed"),
        )  # fmt: skip
        self._task: TaskID = self._bar.add_task("", total=total, running=0, failed=0)
        self.live = Live(get_renderable=self._draw, console=console.stderr(), transient=True)

    def started(self, worker: int, job: Job) -> None:
        self._now[worker] = title(job.spec)
        self._bar.update(self._task, running=len(self._now))

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        self._now.pop(worker, None)
        if _is_failure(outcome):
            self._failed += 1
            error = visible(" ".join(outcome.error.split()))
            self.live.console.print(escape(f"failed: {title(job.spec)}: {error}"))
        self._bar.update(self._task, advance=1, running=len(self._now), failed=self._failed)

    def _draw(self) -> Group:
        lines = [Text(f"  {worker}: {what}") for worker, what in sorted(self._now.items())]
        return Group(self._bar, *lines)

"""Progress of a sweep: a live display on a terminal, plain lines in a pipe."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeGuard

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from moebench.harness import console
from moebench.harness.sweep.estimate import duration, remaining_seconds
from moebench.harness.sweep.forecast import Forecast, Forecaster
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.reports.sections import failures
from moebench.results.spec import RunSpec
from moebench.results.store import Store
from moebench.substrate.text import visible

#: Measurements that take less are not announced.
MEASURED_S = 2.0


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
def board(forecast: Forecast) -> Iterator[Board]:
    """Show the progress of a sweep, live on a terminal, else as lines.

    Args:
        forecast: expected times of all cells that will run.
    """
    left = Left(forecast)
    if console.stderr().is_terminal:
        drawn = _Live(len(forecast.tasks), left)
        with drawn.live:
            yield drawn
    else:
        yield _Lines(len(forecast.tasks), left)


def forecast_of(jobs: Sequence[Job], store: Store, planned: Planned, processes: int) -> Forecast:
    """Return the expected times of cells; show progress while rates are measured."""
    with console.progress("estimating the time", MEASURED_S) as progress:
        return Forecaster(store, planned, processes, progress).of(jobs)


class Left:
    """Remaining time of a sweep, corrected when a cell has ended.

    Its text is computed anew at most once in a millisecond for each cell of the sweep.
    """

    def __init__(self, forecast: Forecast, clock: Callable[[], float] = time.monotonic) -> None:
        self._tasks, self._processes = dict(forecast.tasks), forecast.processes
        self._clock = clock
        self._began: dict[str, float] = {}
        self._taken: dict[str, float] = {}
        self._said, self._at = "", float("-inf")

    def started(self, job: Job) -> None:
        """Note that a cell begins; a cell of a lost worker begins again."""
        self._began[job.cell_id] = self._clock()

    def ended(self, job: Job, outcome: Finished | Failed) -> None:
        """Note that a cell has ended; the time of a failed one says nothing about the others."""
        began = self._began.pop(job.cell_id)
        if isinstance(outcome, Failed):
            del self._tasks[job.cell_id]
        else:
            self._taken[job.cell_id] = self._clock() - began

    def __str__(self) -> str:
        now = self._clock()
        if now - self._at < len(self._tasks) / 1000:
            return self._said
        running = {cell: now - began for cell, began in self._began.items()}
        seconds = remaining_seconds(self._tasks, self._taken, running, self._processes)
        self._said, self._at = f"{duration(seconds)} left", now
        return self._said


def _is_failure(outcome: Finished | Failed) -> TypeGuard[Failed]:
    """Return whether a cell failed; those that are not possible here are summed up at the end."""
    return isinstance(outcome, Failed) and outcome.traceback is not None


class _Lines:
    """Progress of a sweep as lines: one for every tenth of the cells and for every failure."""

    def __init__(self, total: int, left: Left) -> None:
        self._total, self._done, self._failed, self._said = total, 0, 0, 0
        self._left = left

    def started(self, worker: int, job: Job) -> None:
        """Note the time; lines show only ended cells."""
        self._left.started(job)

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        self._done += 1
        self._left.ended(job, outcome)
        if _is_failure(outcome):
            self._failed += 1
            error = " ".join(outcome.error.split())
            console.say(f"failed: {title(job.spec)}: {error}")
        if self._done * 10 // self._total > self._said:
            self._said = self._done * 10 // self._total
            rest = f", {self._left}" if self._done < self._total else ""
            console.say(f"sweep: {self._done}/{self._total}, {self._failed} failed{rest}")


class _Live:
    """Live progress of a sweep: a bar with counts and time left, and every worker's cell."""

    def __init__(self, total: int, left: Left) -> None:
        self._left = left
        self._now: dict[int, str] = {}
        self._failed = 0
        self._bar = Progress(
            TextColumn("sweep"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[running]} running, {task.fields[failed]} failed"),
        )  # fmt: skip
        self._task: TaskID = self._bar.add_task("", total=total, running=0, failed=0, left="")
        self.live = Live(get_renderable=self._draw, console=console.stderr(), transient=True)

    def started(self, worker: int, job: Job) -> None:
        self._left.started(job)
        self._now[worker] = title(job.spec)
        self._bar.update(self._task, running=len(self._now))

    def ended(self, worker: int, job: Job, outcome: Finished | Failed) -> None:
        self._left.ended(job, outcome)
        self._now.pop(worker, None)
        if _is_failure(outcome):
            self._failed += 1
            error = visible(" ".join(outcome.error.split()))
            self.live.console.print(escape(f"failed: {title(job.spec)}: {error}"))
        self._bar.update(self._task, advance=1, running=len(self._now), failed=self._failed)

    def _draw(self) -> Group:
        self._bar.update(self._task, left=str(self._left))
        lines = [Text(f"  {worker}: {what}") for worker, what in sorted(self._now.items())]
        return Group(self._bar, *lines)

"""Schedules sweep cells on several processes, and retries cells whose process died.

`schedule` sends cells to workers one by one, so that a finished cell is known at once and a killed
worker loses only its current cell.  A worker runs one group of cells until the group is empty,
because data shared by the group stays in the worker's memory.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, Protocol

from moebench.harness.run.identity import code_hash
from moebench.harness.sweep.worker import Failed, Finished, Job, Worker

#: Number of attempts at a cell whose workers die, after which the cell counts as the cause.
TRIES = 3


class Lost(NamedTuple):
    """Outcome of a cell whose worker died while running it."""

    why: str


Outcome = Finished | Failed | Lost


class Workers(Protocol):
    """Workers that run cells; a worker is a number below ``size`` and runs one cell at a time."""

    size: int

    def send(self, worker: int, job: Job) -> None:
        """Start a cell on an idle worker."""

    def wait(self) -> list[tuple[int, Outcome]]:
        """Wait for outcomes and return them by worker; a lost worker can receive cells again."""

    def release(self, worker: int) -> None:
        """Called when no cell remains for a worker."""

    def close(self) -> None:
        """Stop all workers, including those that run a cell."""


def schedule(
    jobs: Iterable[Job], workers: Workers,
    started: Callable[[int, Job], None] = lambda worker, job: None,
) -> Iterator[tuple[int, Job, Finished | Failed]]:  # fmt: skip
    """Run cells on workers, and yield each cell once with its worker and outcome.

    Args:
        started: called when a worker starts a cell.
    """
    queue = _Queue(jobs)
    busy: dict[int, Job] = {}
    lost: Counter[str] = Counter()
    while True:
        for worker in range(workers.size):
            if worker in busy:
                continue
            job = queue.take(worker)
            if job is None:
                workers.release(worker)
                continue
            workers.send(worker, job)
            busy[worker] = job
            started(worker, job)
        if not busy:
            return
        for worker, outcome in workers.wait():
            job = busy.pop(worker)
            if isinstance(outcome, Lost):
                lost[job.cell_id] += 1
                if lost[job.cell_id] < TRIES:
                    queue.put_back(job)
                    continue
                text = f"{TRIES} workers were lost with this cell ({outcome.why})"
                outcome = Failed(text, text)
            yield worker, job, outcome


class _Queue:
    """Waiting cells by group; a worker that started a group continues with it."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._groups: dict[str, list[Job]] = {}
        for job in jobs:
            self._groups.setdefault(job.group, []).append(job)
        self._own: dict[int, str] = {}

    def take(self, worker: int) -> Job | None:
        """Remove and return the next cell of the worker's group, a free group, or the longest."""
        if not self._groups:
            return None
        mine = self._own.get(worker)
        if mine not in self._groups:
            free = [g for g in self._groups if g not in self._own.values()]
            mine = free[0] if free else max(self._groups, key=lambda g: len(self._groups[g]))
            self._own[worker] = mine
        waiting = self._groups[mine]
        job = waiting.pop(0)
        if not waiting:
            del self._groups[mine]
        return job

    def put_back(self, job: Job) -> None:
        """Insert a cell whose worker was lost at the front of its group."""
        self._groups.setdefault(job.group, []).insert(0, job)


class InProcess:
    """Worker that runs cells in this process, without start-up time and easy to debug."""

    size = 1

    def __init__(self, data_dir: Path | None, scratch: Path, samples: bool) -> None:
        self._worker = Worker(data_dir, scratch, samples)
        self._job: Job | None = None

    def send(self, worker: int, job: Job) -> None:
        """Store the cell, which `wait` runs."""
        self._job = job

    def wait(self) -> list[tuple[int, Outcome]]:
        """Run the stored cell and return its outcome."""
        assert self._job is not None
        return [(0, self._worker.run(self._job, code_hash()))]

    def release(self, worker: int) -> None:
        """Do nothing: the worker is this process."""

    def close(self) -> None:
        """Do nothing: the worker is this process."""


class Processes:
    """Worker processes on this computer, each started for its first cell.

    Every worker ends when this process ends, for any reason, because the worker's pipe closes.
    """

    def __init__(self, size: int, data_dir: Path | None, scratch: Path, samples: bool) -> None:
        self.size = size
        self._options = (data_dir, scratch, samples)
        # A forked process would inherit torch's threads.
        self._spawn = multiprocessing.get_context("spawn")
        self._running: dict[int, tuple[BaseProcess, Connection]] = {}

    def send(self, worker: int, job: Job) -> None:
        """Start a cell on a worker, starting its process if there is none."""
        if worker not in self._running:
            here, there = self._spawn.Pipe()
            process = self._spawn.Process(target=_serve, args=(there, *self._options), daemon=True)
            with _ignoring_ctrl_c():  # the process inherits it from its first instruction on
                process.start()
            there.close()  # only the process holds this end, so its death closes the pipe
            self._running[worker] = (process, here)
        with suppress(OSError):  # an idle process that died is detected by `wait`
            self._running[worker][1].send((job, code_hash()))

    def wait(self) -> list[tuple[int, Outcome]]:
        """Wait until a process sends an outcome or dies, and return the outcomes by worker."""
        of = {connection: worker for worker, (_, connection) in self._running.items()}
        return [(of[c], self._receive(of[c])) for c in wait(list(of)) if isinstance(c, Connection)]

    def _receive(self, worker: int) -> Outcome:
        process, connection = self._running[worker]
        try:
            outcome: Finished | Failed = connection.recv()
            return outcome
        except (EOFError, OSError):
            process.join()
            self.release(worker)
            return Lost(f"exit code {process.exitcode}")

    def release(self, worker: int) -> None:
        """End a worker's idle process."""
        if worker in self._running:
            process, connection = self._running.pop(worker)
            connection.close()
            process.join()

    def close(self) -> None:
        """Kill all worker processes at once."""
        for process, _ in self._running.values():
            process.kill()
        for worker in list(self._running):
            self.release(worker)


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Make processes started inside the block ignore Ctrl-C, which the sweep handles."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection, data_dir: Path | None, scratch: Path, samples: bool) -> None:
    """Run in a worker process: receive cells and send outcomes until the pipe closes."""
    end_with_parent()
    worker = Worker(data_dir, scratch, samples)
    with suppress(EOFError, OSError):
        while True:
            job, code = connection.recv()
            connection.send(worker.run(job, code))


def end_with_parent() -> None:
    """On Linux, end this process at once when its parent process ends.

    A closed pipe is noticed only between two cells, and training in a cell may take minutes.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid != os.getppid():  # the parent has already ended
            os._exit(1)

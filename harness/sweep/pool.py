"""Schedules cells on several processes, and retries those whose process died.

`schedule` hands cells to workers one by one, so that a finished cell is known at once and a killed
worker costs the cell that it had.  A worker keeps to one group of cells while it lasts, because
what they share stays in its memory.
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

#: How often a cell is tried whose workers die; after that the cell is taken to be the cause.
TRIES = 3


class Lost(NamedTuple):
    """A worker died with the cell that it had."""

    why: str


Outcome = Finished | Failed | Lost


class Workers(Protocol):
    """Where cells run.  A worker is a number below ``size`` and has at most one cell."""

    size: int

    def send(self, worker: int, job: Job) -> None:
        """Start a cell."""

    def wait(self) -> list[tuple[int, Outcome]]:
        """What became of cells, as soon as there is any; a lost worker can be sent to again."""

    def release(self, worker: int) -> None:
        """Nothing more is for this worker."""

    def close(self) -> None:
        """Stop them all, whatever they do."""


def schedule(
    jobs: Iterable[Job],
    workers: Workers,
    started: Callable[[int, Job], None] = lambda worker, job: None,
) -> Iterator[tuple[int, Job, Finished | Failed]]:
    """Carry out cells; each comes back once, with the worker that ended it.

    Args:
        started: told of every cell that a worker begins.
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
    """Waiting cells by group; a worker that began a group continues with it."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._groups: dict[str, list[Job]] = {}
        for job in jobs:
            self._groups.setdefault(job.group, []).append(job)
        self._own: dict[int, str] = {}

    def take(self, worker: int) -> Job | None:
        """The next cell: of the worker's group, of one that nobody has, of the longest one."""
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
        """A cell whose worker was lost is next in its group."""
        self._groups.setdefault(job.group, []).insert(0, job)


class InProcess:
    """Runs cells in this process: no start-up time, and easy to debug."""

    size = 1

    def __init__(self, data_dir: Path | None, scratch: Path, samples: bool) -> None:
        self._worker = Worker(data_dir, scratch, samples)
        self._job: Job | None = None

    def send(self, worker: int, job: Job) -> None:
        """Remember the cell; `wait` runs it."""
        self._job = job

    def wait(self) -> list[tuple[int, Outcome]]:
        """Run the cell."""
        assert self._job is not None
        return [(0, self._worker.run(self._job, code_hash()))]

    def release(self, worker: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class Processes:
    """Processes of this computer, each begun with its first cell.

    A process ends with this one, however this one ends: its pipe closes.
    """

    def __init__(self, size: int, data_dir: Path | None, scratch: Path, samples: bool) -> None:
        self.size = size
        self._options = (data_dir, scratch, samples)
        # A fork would inherit torch's threads.
        self._spawn = multiprocessing.get_context("spawn")
        self._running: dict[int, tuple[BaseProcess, Connection]] = {}

    def send(self, worker: int, job: Job) -> None:
        """Start a cell, and first its process where there is none."""
        if worker not in self._running:
            here, there = self._spawn.Pipe()
            process = self._spawn.Process(target=_serve, args=(there, *self._options), daemon=True)
            with _ignoring_ctrl_c():  # as the process is from its first instruction
                process.start()
            there.close()  # the process has its own: when it dies, ours is at its end
            self._running[worker] = (process, here)
        with suppress(OSError):  # it died while it was idle: `wait` sees that
            self._running[worker][1].send((job, code_hash()))

    def wait(self) -> list[tuple[int, Outcome]]:
        """Outcomes of all processes that have one."""
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
        """End a process that has nothing to do."""
        if worker in self._running:
            process, connection = self._running.pop(worker)
            connection.close()
            process.join()

    def close(self) -> None:
        """End all processes at once."""
        for process, _ in self._running.values():
            process.kill()
        for worker in list(self._running):
            self.release(worker)


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C: the sweep handles it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection, data_dir: Path | None, scratch: Path, samples: bool) -> None:
    """A worker process: receives cells and sends outcomes until its pipe closes."""
    end_with_parent()
    worker = Worker(data_dir, scratch, samples)
    with suppress(EOFError, OSError):
        while True:
            job, code = connection.recv()
            connection.send(worker.run(job, code))


def end_with_parent() -> None:
    """Where the system can (Linux), end at once with the process that started this one.

    A closed pipe is seen only between two cells, and a cell may learn for minutes.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.pid != os.getppid():  # it ended before
            os._exit(1)

"""Progress of one piece of work: a bar on a terminal, lines in a pipe.

In a pipe a line comes for every tenth of the work, for every phase that lasts longer than two
seconds, and at least every ten seconds.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from moebench.substrate.progress_events import listening

#: A phase that lasts longer is named; a silence that lasts longer is broken.
NAMED_S, SILENT_S = 2.0, 10.0

#: How often a pipe's lines are thought of while the work itself says nothing.
TICK_S = 0.5

Step = Callable[[int, int], None]


@contextmanager
def shown(what: str, console: Any, after_s: float = 0.0) -> Iterator[Step]:
    """Show the progress of ``what``; yields ``step(done, total)``.  Phases are listened to.

    Args:
        after_s: how long a pipe is told nothing.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)

            def phase(name: str, done: int, total: int | None) -> None:
                bar.update(task, description=f"{what}: {_part(name, done, total)}")

            with listening(phase):
                yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    lines = Lines(what, after_s=after_s)
    with listening(lines.phase), _ticking(lines.tick):
        yield lines.step


def _part(name: str, done: int, total: int | None) -> str:
    return name if total is None else f"{name} {done}/{total}"


@contextmanager
def _ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Call it now and then from a thread, until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(TICK_S):
            tick()

    thread = threading.Thread(target=run, daemon=True, name="progress")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Lines:
    """What a pipe is told.

    Args:
        clock: seconds, from any start.
        say: prints a line.
        after_s: nothing is said for so long of work that may be done at once.
    """

    def __init__(
        self, what: str, clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = _say, after_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._what, self._clock, self._say, self._after_s = what, clock, say, after_s
        self._lock = threading.Lock()  # the work and the ticking thread both come here
        self._began = self._spoke = self._entered = clock()
        self._phase: tuple[str, int, int | None] | None = None
        self._named = True
        self._done: tuple[int, int] | None = None
        self._tenth = 0

    def step(self, done: int, total: int) -> None:
        """So much of the work is done."""
        with self._lock:
            tenth = done * 10 // total
            if tenth < self._tenth:  # another part of the work has begun
                self._tenth = 0
            self._done = (done, total)
            if tenth > self._tenth:
                self._tenth = tenth
                if self._clock() - self._began < self._after_s:
                    return
                self._spoke = self._clock()
                self._say(f"{self._what}: {done}/{total}")

    def phase(self, name: str, done: int, total: int | None) -> None:
        """The work is in this phase, so far in it."""
        with self._lock:
            if self._phase is None or self._phase[0] != name:
                self._entered, self._named = self._clock(), False
            self._phase = (name, done, total)

    def tick(self) -> None:
        """Say what is under way, if it is time to."""
        with self._lock:
            now = self._clock()
            unnamed = not self._named and now - self._entered >= NAMED_S
            if not unnamed and now - self._spoke < SILENT_S:
                return
            self._named, self._spoke = True, now
            part = "" if self._phase is None else f"{_part(*self._phase)}, "
            done = "" if self._done is None else f"{self._done[0]}/{self._done[1]} done, "
            self._say(f"{self._what}: {part}{done}{now - self._began:.0f} s")

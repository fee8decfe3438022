"""Progress display of one task: a bar on a terminal, lines in a pipe.

In a pipe, a line is printed for every tenth of the work, for every phase that lasts longer than two
seconds, and at least every ten seconds.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from moebench.substrate.progress_events import Listener, phase_listener
from moebench.substrate.text import visible

#: Seconds after which a phase is named, and after which a line is printed in any case.
NAMED_S, SILENT_S = 2.0, 10.0

#: Interval in seconds at which `Lines.tick` checks if a line is due.
TICK_S = 0.5

Step = Callable[[int, int], None]


@contextmanager
def shown(
    what: str, console: Any, after_s: float = 0.0, also: Listener | None = None
) -> Iterator[Step]:
    """Show the progress of the task ``what`` and its phases; yield ``step(done, total)``.

    Args:
        after_s: seconds before the first line in a pipe.
        also: called with the phases, too.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)

            def phase(name: str, done: int, total: int | None) -> None:
                bar.update(task, description=f"{what}: {_part(name, done, total)}")
                if also is not None:
                    also(name, done, total)

            with phase_listener(phase):
                yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    lines = Lines(what, after_s=after_s)

    def told(name: str, done: int, total: int | None) -> None:
        lines.phase(name, done, total)
        if also is not None:
            also(name, done, total)

    with phase_listener(told), _ticking(lines.tick):
        yield lines.step


def _part(name: str, done: int, total: int | None) -> str:
    return name if total is None else f"{name} {done}/{total}"


@contextmanager
def _ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Call ``tick`` every `TICK_S` seconds from a thread until the block ends."""
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
    print(visible(line), file=sys.stderr, flush=True)


class Lines:
    """Progress lines of one task, printed to a pipe.

    Args:
        clock: returns seconds from any start.
        say: prints a line.
        after_s: seconds without lines for tenths, since the task may be short.
    """

    def __init__(
        self, what: str, clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = _say, after_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._what, self._clock, self._say, self._after_s = what, clock, say, after_s
        self._lock = threading.Lock()  # the task and the ticking thread both call methods
        self._began = self._spoke = self._entered = clock()
        self._phase: tuple[str, int, int | None] | None = None
        self._named = True
        self._done: tuple[int, int] | None = None
        self._tenth = 0

    def step(self, done: int, total: int) -> None:
        """Record that ``done`` of ``total`` units are done, and print a line for each tenth."""
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
        """Record the task's current phase and the progress in it."""
        with self._lock:
            if self._phase is None or self._phase[0] != name:
                self._entered, self._named = self._clock(), False
            self._phase = (name, done, total)

    def tick(self) -> None:
        """Print the current phase and progress, if a line is due."""
        with self._lock:
            now = self._clock()
            unnamed = not self._named and now - self._entered >= NAMED_S
            if not unnamed and now - self._spoke < SILENT_S:
                return
            self._named, self._spoke = True, now
            part = "" if self._phase is None else f"{_part(*self._phase)}, "
            done = "" if self._done is None else f"{self._done[0]}/{self._done[1]} done, "
            self._say(f"{self._what}: {part}{done}{now - self._began:.0f} s")

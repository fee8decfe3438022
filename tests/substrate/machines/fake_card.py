"""A card of this computer's memory that finds races and ends its copies as late as it may.

Streams have vector clocks, and so have threads: an operation comes after all that its stream was
given, after the events that its stream follows, and after what its thread has seen the end of (a
lock hands that on).  Two accesses to one slot of which one writes, and of which neither comes after
the other, are a race, whatever really happened.

What is computed is computed at once, copies are carried out when somebody must have them.  With
``late``, nobody but the control thread sees the end of anything: while it waits, all copies end;
when it reads something back, all that is computed has ended, and copies have by chance.
"""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from moebench.substrate.errors import BudgetError

Clock = dict[str, int]

WAIT_S = 20


def join(clock: Clock, other: Clock) -> None:
    for name, count in other.items():
        clock[name] = max(clock.get(name, 0), count)


class Race(AssertionError):
    """Two accesses without an order."""


class Stream:
    """``waiting`` are operations that have not been carried out, by position."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = {}
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        #: Up to where the host has seen it, or may.
        self.seen = 0


class Event:
    """A point of a stream."""

    def __init__(self, card: "FakeCard", stream: Stream, position: int, clock: Clock) -> None:
        self._card, self.stream, self.position, self.clock = card, stream, position, clock
        self.time_ns: int | None = None

    def query(self) -> bool:
        return self._card.query(self)

    def synchronize(self) -> None:
        self._card.synchronize(self)


class Lock:
    """A reentrant lock that hands on what its threads have seen, and tells when one waits."""

    def __init__(self, card: "FakeCard") -> None:
        self._card, self._lock = card, threading.RLock()
        self.clock: Clock = {}

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, *arguments: Any) -> bool:
        got = self._lock.acquire(*arguments)
        join(self._card.thread_clock(), self.clock)
        return got

    def release(self) -> None:
        join(self.clock, self._card.thread_clock())
        self._lock.release()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()

    def _release_save(self) -> Any:
        join(self.clock, self._card.thread_clock())
        self._card.waits(True)
        return self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        self._lock._acquire_restore(state)
        self._card.waits(False)
        join(self._card.thread_clock(), self.clock)


class FakeCard:
    """See the module's docstring, and `Accelerator`.

    Attributes:
        name, free, total: what it says of itself.
        reads, blocked: how often the control thread read something back, or waited for an event.
        pinned: memory that is.
        holds: a copy does not end either while the control thread waits for another to begin.
    """

    def __init__(
        self, late: bool = False, seed: int = 0, free: int = 10**10, pinnable: bool = True
    ) -> None:
        self.name, self.free, self.total = "Fake Card", free, free + 10**9
        self.uuid = "GPU-fake"
        self.reads = self.blocked = 0
        self.pinned: set[int] = set()
        self.limited: int | None = None
        self.races: list[Race] = []
        self.compute = Stream("compute")
        self._streams = [self.compute]
        self._late, self._pinnable, self._draw = late, pinnable, random.Random(seed)
        self._control = threading.get_ident()
        self._cond = threading.Condition(threading.RLock())
        self._idle = self.holds = self._watched = False
        self._clocks: dict[int, Clock] = defaultdict(dict)
        self._current = threading.local()
        self._arena: Tensor | None = None
        #: By what is accessed: the last write, and reads since, as stream and position.
        self._writes: dict[Hashable, tuple[str, int]] = {}
        self._read: dict[Hashable, dict[str, int]] = defaultdict(dict)

    # ------------------------------------------------------------------ order

    def thread_clock(self) -> Clock:
        return self._clocks[threading.get_ident() if self._watched else 0]

    @property
    def current(self) -> Stream:
        return getattr(self._current, "stream", self.compute)

    def _next(self, stream: Stream) -> int:
        join(stream.clock, self.thread_clock())
        position = stream.clock[stream.name] = stream.clock.get(stream.name, 0) + 1
        return position

    def access(self, what: Hashable, write: bool) -> None:
        """Something is read, or written, by the thread's stream.

        Raises:
            Race: there is no order between this and an earlier access.
        """
        with self._cond:
            stream = self.current
            position = self._next(stream)
            before = [self._writes[what]] if what in self._writes else []
            if write:
                before += self._read[what].items()
            for name, earlier in before:
                if stream.clock.get(name, 0) < earlier:
                    how = "writes" if write else "reads"
                    race = Race(f"{stream.name} {how} {what} beside {name}")
                    self.races.append(race)
                    raise race
            if write:
                self._writes[what] = stream.name, position
                self._read[what].clear()
            else:
                self._read[what][stream.name] = position

    def _run(self, stream: Stream, position: int) -> None:
        while stream.waiting and stream.waiting[0][0] <= position:
            stream.waiting.pop(0)[1]()

    def waits(self, waiting: bool) -> None:
        """A thread gives up its lock to wait, or has it again."""
        if threading.get_ident() == self._control:
            with self._cond:
                self._idle = waiting
                self._cond.notify_all()

    def free_run(self) -> None:
        """From now on all ends by itself."""
        with self._cond:
            self._late = False
            self._cond.notify_all()

    def lock(self) -> Lock:
        """In place of `threading.RLock`; without it, all threads have seen what one has."""
        self._watched = True
        return Lock(self)

    # ------------------------------------------------------------------ streams and events

    def stream(self) -> Stream:
        """By the order in which a machine asks for them."""
        names = ("copies", "returns", "evictions", *map(str, range(len(self._streams))))
        self._streams.append(Stream(names[len(self._streams) - 1]))
        return self._streams[-1]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._current.stream = self.current, stream
        yield
        self._current.stream = before

    def record(self, stream: Stream) -> Event:
        with self._cond:
            position = self._next(stream)
            event = Event(self, stream, position, dict(stream.clock))

            def passes() -> None:
                event.time_ns = time.perf_counter_ns()

            if stream is self.compute:
                passes()
            else:
                stream.waiting.append((position, passes))
            return event

    def follow(self, stream: Stream, event: Event) -> None:
        with self._cond:
            position = self._next(stream)
            join(stream.clock, event.clock)
            if stream is self.compute:
                self._run(event.stream, event.position)
            else:
                run = event.stream, event.position
                stream.waiting.append((position, lambda: self._run(*run)))

    def query(self, event: Event) -> bool:
        with self._cond:
            if self._late and event.stream.seen < event.position:
                return False
            self._run(event.stream, event.position)
            join(self.thread_clock(), event.clock)
            return True

    def synchronize(self, event: Event) -> None:
        with self._cond:
            if threading.get_ident() == self._control:
                self.blocked += 1
            else:
                assert self._cond.wait_for(
                    lambda: (
                        not self._late
                        or (self._idle and not self.holds)
                        or event.stream.seen >= event.position
                    ),
                    WAIT_S,
                ), "nobody lets it end"
            event.stream.seen = max(event.stream.seen, event.position)
            self._run(event.stream, event.position)
            join(self.thread_clock(), event.clock)

    def elapsed_ns(self, since: Event, until: Event) -> int:
        assert since.time_ns is not None
        for event in (since, until):
            late = self._late and event.stream is self.compute
            assert not late or event.position <= event.stream.seen, "nobody knows that it passed"
        assert until.time_ns is not None, "it has not passed"
        return until.time_ns - since.time_ns

    # ------------------------------------------------------------------ numbers

    def put(self, values: Tensor) -> Tensor:
        return values.clone()

    def index(self, places: list[int]) -> Tensor:
        return torch.tensor(places)

    def read(self, *values: Tensor) -> tuple[Tensor, ...]:
        with self._cond:
            self.reads += 1
            self._see(self.current)
            for stream in self._streams[1:]:
                if self._draw.random() < 0.5:
                    stream.seen = stream.clock.get(stream.name, 0)
            self._cond.notify_all()
        return tuple(value.clone() for value in values)

    def _see(self, stream: Stream) -> None:
        stream.seen = stream.clock.get(stream.name, 0)
        self._run(stream, stream.seen)
        join(self.thread_clock(), stream.clock)

    # ------------------------------------------------------------------ memory

    def memory(self) -> tuple[int, int]:
        return self.free, self.total

    def limit(self, count_bytes: int) -> None:
        self.limited = count_bytes

    def allocate(self, count: int, stride_bytes: int) -> Tensor:
        """Not a number everywhere, in whatever precision."""
        self._arena = torch.full((count, stride_bytes), 0xFF, dtype=torch.uint8)
        return self._arena

    def pin(self, memory: Tensor) -> None:
        if not self._pinnable:
            raise BudgetError("cannot be pinned")
        self.pinned.add(memory.data_ptr())

    def unpin(self, memory: Tensor) -> None:
        self.pinned.remove(memory.data_ptr())

    def _slot(self, memory: Tensor) -> int | None:
        assert self._arena is not None
        offset = memory.data_ptr() - self._arena.data_ptr()
        return offset // self._arena.stride(0) if 0 <= offset < self._arena.nbytes else None

    def copy(self, target: Tensor, source: Tensor) -> None:
        with self._cond:
            for memory, write in ((source, False), (target, True)):
                if (slot := self._slot(memory)) is not None:
                    self.access(("slot", slot), write)
            stream = self.current
            assert stream is not self.compute
            stream.waiting.append((self._next(stream), lambda: _copied(target, source)))


def _copied(target: Tensor, source: Tensor) -> None:
    with torch.inference_mode():
        target.copy_(source)

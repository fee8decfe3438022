"""The thread that brings experts to a local machine's slots: needed ones first, then prefetches."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from moebench.substrate.machines.protocol import Lane, Op, Span, TransferClient
from moebench.substrate.machines.records import Records, aligned

_T = TypeVar("_T")

#: Does a copy of a span; what the copy returns, and when it began and ended in ns.
Timed = Callable[[Span, Callable[[], int]], tuple[int, int, int]]


@dataclass(slots=True)
class Job:
    """A transfer: its chunks, how many are done, and the span of the last.

    Without a client it is a stream of common weights, which ``stream`` carries.
    """

    op: Op
    client: TransferClient | None
    lane: Lane
    chunks: int = 1
    after: Sequence[Span] = ()
    stream: Callable[[int], int] | None = None
    done: int = 0
    start_ns: int = 0
    #: A prefetch of which every further chunk goes before other loads.
    finishing: bool = False
    span: Span = field(init=False)

    def __post_init__(self) -> None:
        self.span = Span(self.op, self.lane)


class Loader:
    """Needed transfers in their order, then prefetches in theirs.

    All but the copying itself happens under the machine's lock.

    Args:
        changed: the machine's condition; everybody is told of every end.
        rows: the device's slots ``[slots, stride]`` as bytes.
        ended: is given the span of every chunk, under the lock.
        await_: returns when copies that are begun then follow a span, or the machine closes.
        timed: does a copy, whose bytes it is told; returns them, when it began and when it ended.
    """

    def __init__(
        self,
        records: Records,
        rows: Tensor,
        changed: threading.Condition,
        ended: Callable[[Span, bool], None],
        await_: Callable[[Span], None],
        timed: Timed,
    ) -> None:
        self._records, self._rows, self._changed = records, rows, changed
        self._ended, self._await, self._timed = ended, await_, timed
        self._record_bytes = records.format.record_bytes
        self._needed: deque[Job] = deque()
        self._queued: deque[Job] = deque()
        #: What was taken last.
        self._carried: Job | None = None
        self.closing = False

    @property
    def waiting(self) -> int:
        """How many needed transfers have not begun."""
        return len(self._needed)

    def need(self, job: Job) -> None:
        """Carry it before every prefetch."""
        with self._changed:
            self._needed.append(job)
            self._changed.notify_all()

    def prefetch(self, ops: Iterable[Op], client: TransferClient, chunks: int) -> list[Op]:
        """Queue prefetches in place of those that have not begun; returns what is dropped."""
        with self._changed:
            begun = [job for job in self._queued if job.done]
            new = [Job(op, client, self._records.lane, chunks) for op in ops]
            wanted = [job.op for job in new]
            dropped = [j.op for j in self._queued if not j.done and j.op not in wanted]
            self._queued = deque([*begun, *new])
            self._changed.notify_all()
            return dropped

    def cancel(self, layer: int) -> list[Op]:
        """Drop prefetches for layers up to this one that have not begun; returns them."""
        with self._changed:
            kept = [job for job in self._queued if job.done or job.op.layer > layer]
            dropped = [j.op for j in self._queued if not j.done and j.op.layer <= layer]
            self._queued = deque(kept)
            return dropped

    def finish(self, op: Op) -> None:
        """Go on with a prefetch that has begun before all others that are needed."""
        with self._changed:
            if self._carried is not None and self._carried.op == op:
                self._carried.finishing = True
            for job in [job for job in self._queued if job.done and job.op == op]:
                job.finishing = True
                self._queued.remove(job)
                self._needed.appendleft(job)

    # ------------------------------------------------------------------ its thread

    def next_job(self) -> Job | None:
        """The next needed one, else the next prefetch that may begin; None when closing."""
        with self._changed:
            while not self.closing:
                if self._needed:
                    self._carried = self._needed.popleft()
                    return self._carried
                if self._queued:
                    job = self._queued.popleft()
                    if job.done or self._begun(job):
                        self._carried = job
                        return job
                    continue
                self._changed.wait()
        return None

    def _begun(self, job: Job) -> bool:
        assert job.client is not None, "what no client waits for is needed"
        after = job.client.claim(job.op, time.perf_counter_ns())
        if after is None:
            return False
        job.after = after
        job.client.under_way(job.op, job.span)
        return True

    def carry(self, job: Job) -> None:
        """Copy a chunk; of a needed load, and of a prefetch in one piece, that is all."""
        for dependency in job.after:
            self._await(dependency)
        if self.closing:
            return
        complete = job.done + 1 == job.chunks
        span = job.span if complete else Span(job.op, job.lane)
        moved, start_ns, end_ns = self._timed(span, partial(self._move, job))
        with self._changed:
            job.start_ns = job.start_ns or start_ns
            job.done += 1
            span.start_ns, span.end_ns = start_ns, end_ns
            span.moved_bytes = moved
            self._ended(span, job.chunks == 1)
            if not complete:
                (self._needed if job.finishing else self._queued).appendleft(job)
            elif job.client is not None:
                job.client.arrived(job.op, job.start_ns, end_ns)
            self._changed.notify_all()

    def _move(self, job: Job) -> int:
        """A stream, or the next chunk of a record; how many of its bytes."""
        if job.stream is not None:
            return job.stream(job.op.layer)
        assert job.client is not None
        size = self._records.stride_bytes
        first = aligned(size * job.done // job.chunks)
        last = job.done + 1 == job.chunks
        beyond = size if last else aligned(size * (job.done + 1) // job.chunks)
        slot = self._rows[job.client.slot_of(job.op)]
        if beyond > first:
            self._records.copy(job.op.layer, job.op.experts[0], slot, first, beyond)
        return min(beyond, self._record_bytes) - min(first, self._record_bytes)


def start_thread(
    name: str,
    following: Callable[[], _T | None],
    work: Callable[[_T], None],
    fail: Callable[[Exception], None],
) -> threading.Thread:
    """Start a thread that works off what follows, until nothing does or its work fails."""
    threads = torch.get_num_threads()

    def loop() -> None:
        # OpenMP would give a new thread as many as there are cores: other sums, on others' cores.
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():  # each thread has its own
                while (one := following()) is not None:
                    work(one)
        except Exception as failure:  # whatever it is, it must be heard of
            fail(failure)

    thread = threading.Thread(target=loop, name=name, daemon=True)
    thread.start()
    return thread

"""The thread that copies records into a local machine's slots, needed ones before all others."""

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

#: Runs the copy of a span; returns the copy's result, and its start and end in ns.
Timed = Callable[[Span, Callable[[], int]], tuple[int, int, int]]


@dataclass(slots=True)
class Job:
    """A transfer: its number of chunks, how many are done, and the span of the last one.

    Without a client it copies streamed non-expert weights by calling ``stream``.
    """

    op: Op
    client: TransferClient | None
    lane: Lane
    chunks: int = 1
    after: Sequence[Span] = ()
    stream: Callable[[int], int] | None = None
    done: int = 0
    start_ns: int = 0
    #: Whether the remaining chunks of a prefetch are copied before other loads.
    finishing: bool = False
    span: Span = field(init=False)

    def __post_init__(self) -> None:
        self.span = Span(self.op, self.lane)


class Loader:
    """Queues of transfers, and their copying: needed ones in order, then uploads, then prefetches.

    Everything but the copying itself happens under the machine's lock.

    Args:
        changed: the machine's condition, notified at the end of every chunk.
        rows: the device's slots ``[slots, stride]`` as bytes.
        ended: called with the span of every chunk, under the lock.
        await_: returns when copies that begin then follow a span, or when the machine closes.
        timed: runs a copy; returns its bytes, and its start and end in ns.
    """

    def __init__(
        self, records: Records, rows: Tensor, changed: threading.Condition,
        ended: Callable[[Span, bool], None], await_: Callable[[Span], None], timed: Timed,
    ) -> None:  # fmt: skip
        self._records, self._rows, self._changed = records, rows, changed
        self._ended, self._await, self._timed = ended, await_, timed
        self._record_bytes = records.format.record_bytes
        self._needed: deque[Job] = deque()
        self._queued: deque[Job] = deque()
        self._uploads: deque[Job] = deque()
        #: The transfer that was begun last.
        self._carried: Job | None = None
        self.closing = False

    @property
    def waiting(self) -> int:
        """The number of needed transfers that have not begun."""
        return len(self._needed)

    @property
    def idle(self) -> bool:
        """Whether no transfer is queued or under way."""
        last = self._carried
        under_way = last is not None and last.span.end_ns is None
        return not (self._needed or self._uploads or self._queued or under_way)

    def need(self, job: Job) -> None:
        """Queue a needed transfer, which is copied before every prefetch."""
        with self._changed:
            self._needed.append(job)
            self._changed.notify_all()

    def upload(self, job: Job) -> None:
        """Queue an upload, which is copied before every prefetch that has not begun."""
        with self._changed:
            self._uploads.append(job)
            self._changed.notify_all()

    def prefetch(self, ops: Iterable[Op], client: TransferClient, chunks: int) -> list[Op]:
        """Replace queued prefetches that have not begun; return the dropped operations."""
        with self._changed:
            begun = [job for job in self._queued if job.done]
            new = [Job(op, client, self._records.lane, chunks) for op in ops]
            wanted = [job.op for job in new]
            dropped = [j.op for j in self._queued if not j.done and j.op not in wanted]
            self._queued = deque([*begun, *new])
            self._changed.notify_all()
            return dropped

    def cancel(self, layer: int) -> list[Op]:
        """Drop and return prefetches for layers up to this one that have not begun."""
        with self._changed:
            kept = [job for job in self._queued if job.done or job.op.layer > layer]
            dropped = [j.op for j in self._queued if not j.done and j.op.layer <= layer]
            self._queued = deque(kept)
            return dropped

    def finish(self, op: Op) -> None:
        """Copy an upload, or the rest of a begun prefetch, before all other needed transfers.

        Uploads queued before it stay before it.
        """
        with self._changed:
            waiting = [job.op for job in self._uploads]
            if op in waiting:
                first = [self._uploads.popleft() for _ in range(waiting.index(op) + 1)]
                self._needed.extendleft(reversed(first))
            if self._carried is not None and self._carried.op == op:
                self._carried.finishing = True
            for job in [job for job in self._queued if job.done and job.op == op]:
                job.finishing = True
                self._queued.remove(job)
                self._needed.appendleft(job)

    # ------------------------------------------------------------------ its thread

    def next_job(self) -> Job | None:
        """Return the next needed transfer, else upload, else prefetch; None when closing."""
        with self._changed:
            while not self.closing:
                if self._needed:
                    self._carried = self._needed.popleft()
                    return self._carried
                if self._uploads and not (self._queued and self._queued[0].done):
                    self._carried = self._uploads.popleft()
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
        """Copy the next chunk of a transfer; a needed load has one chunk."""
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
        """Copy streamed weights, or the next chunk of a record; return the bytes of weights."""
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
    name: str, following: Callable[[], _T | None], work: Callable[[_T], None],
    fail: Callable[[Exception], None],
) -> threading.Thread:  # fmt: skip
    """Start a thread that processes items until ``following`` returns None or work fails."""
    threads = torch.get_num_threads()

    def loop() -> None:
        # OpenMP would use all cores in a new thread, which changes sums and disturbs other threads.
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():  # a mode of each thread
                while (one := following()) is not None:
                    work(one)
        except Exception as failure:  # the control thread raises any failure
            fail(failure)

    thread = threading.Thread(target=loop, name=name, daemon=True)
    thread.start()
    return thread

"""This computer as the machine, on the wall clock: a CPU as the device, a disk below it.

Slots are rows of one tensor in memory, experts are read from their records by a loader thread, and
the mathematics runs on the calling thread.  There is no host lane beside the device: the host *is*
the device.  (A CUDA device with streams and pinned buffers is a machine of its own.)
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span, TransferClient, Work
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.weights import ExpertStore


@dataclass(slots=True)
class _Job:
    """A transfer for the loader: its chunks, how many are done, and the span of the next."""

    op: Op
    client: TransferClient
    chunks: int = 1
    done: int = 0
    start_ns: int = 0
    #: A prefetch of which every further chunk goes before other loads.
    finishing: bool = False
    #: Ends with the last chunk.
    span: Span = field(init=False)

    def __post_init__(self) -> None:
        self.span = Span(self.op, Lane.DISK)


class LocalMachine:
    """The machine protocol on this computer; see the module's docstring.

    Use as a context manager: it owns a thread and a file.

    Args:
        blocking_copies: the control thread waits for every needed load that it asks for.
    """

    load_path = (Lane.DISK,)
    has_host_lane = False
    host_memory = None
    decision_ns = sync_ns = 0

    def __init__(
        self, store: ExpertStore, slots: int, timeline: Timeline, *, blocking_copies: bool = False
    ) -> None:
        self.store = store
        self._blocking_copies = blocking_copies
        self.timeline = timeline
        self.slots = torch.empty(slots, store.record_values, dtype=store.dtype)
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._needed: deque[_Job] = deque()
        self._queued: deque[_Job] = deque()
        #: What the loader has taken last.
        self._carried: _Job | None = None
        self._least_ns: dict[tuple[OpKind, Lane], int] = {}
        self._device_free_ns = time.perf_counter_ns()
        self._failure: Exception | None = None
        self._closing = False

    def __enter__(self) -> "LocalMachine":
        self._file = os.open(self.store.path, os.O_RDONLY)
        self._loader = threading.Thread(target=self._load_for_ever, name="loader", daemon=True)
        self._loader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._loader.join()
        os.close(self._file)

    # ------------------------------------------------------------------ the control thread

    def now_ns(self) -> int:
        """The wall clock."""
        return time.perf_counter_ns()

    def begin(self) -> None:
        """What this thread did between two batches counts as no stall."""
        self._device_free_ns = self.now_ns()

    def elapse(self, decisions: int) -> None:
        """Real time passes by itself."""

    def wait(self, span: Span) -> None:
        """Block until the span has ended; a loader's failure is raised here."""
        with self._changed:
            self._changed.wait_for(lambda: span.end_ns is not None or self._failure is not None)
            if self._failure is not None:
                raise self._failure

    def submit(
        self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Work | None = None, *args: Any
    ) -> Span:
        """Run an operation on this thread, once what it waits for has ended."""
        asked = self.now_ns()
        for dependency in after:
            self.wait(dependency)
        span = Span(op, lane, self.now_ns())
        if work is not None:
            span.value = work(*args)
        span.end_ns = self.now_ns()
        self._measured(span)
        span.stall_ns = (span.start_ns or 0) - self._device_free_ns
        span.cause = "load" if after and (span.start_ns or 0) > asked else "control"
        self._device_free_ns = span.end_ns or 0
        if op.kind is OpKind.EXPERT:
            self.timeline.costs.on_device(span.duration_ns, len(op.rows))
        self.timeline.add(span)
        return span

    def _measured(self, span: Span) -> None:
        each = span.duration_ns // max(1, len(span.op.experts))
        key = (span.op.kind, span.lane)
        self._least_ns[key] = min(each, self._least_ns.get(key, each))

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """The least that was measured of this kind; one nanosecond before anything was."""
        return self._least_ns.get((op.kind, lane), 1)

    def control_ns(self, op: Op, lane: Lane) -> int:
        """Not known: this thread submits an operation by carrying it out."""
        return 0

    # ------------------------------------------------------------------ transfers

    def load(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> Span:
        """Ask the loader for a needed expert; it goes before every queued prefetch."""
        for dependency in after:
            self.wait(dependency)
        job = _Job(op, client)
        with self._changed:
            client.under_way(op, job.span)
            self._needed.append(job)
            self._changed.notify_all()
        if self._blocking_copies:
            self.wait(job.span)
        return job.span

    def prefetch(
        self,
        ops: Iterable[Op],
        client: TransferClient,
        chunks: int = 1,
        since_ns: Sequence[int] = (),
    ) -> None:
        """Queue prefetches in place of those that the loader has not begun.

        What they follow has ended: this thread does all other work itself.
        """
        with self._changed:
            begun = [job for job in self._queued if job.done]
            self._queued = deque([*begun, *(_Job(op, client, chunks) for op in ops)])
            self._changed.notify_all()

    def cancel(self, layer: int) -> int:
        """Drop prefetches that the loader has not begun."""
        with self.lock:
            kept = [job for job in self._queued if job.done or job.op.layer > layer]
            dropped = len(self._queued) - len(kept)
            self._queued = deque(kept)
            return dropped

    def finish(self, op: Op) -> None:
        """Let the loader go on with a prefetch that has begun before all others that are needed."""
        with self._changed:
            if self._carried is not None and self._carried.op == op:
                self._carried.finishing = True
            for job in [job for job in self._queued if job.done and job.op == op]:
                job.finishing = True
                self._queued.remove(job)
                self._needed.appendleft(job)

    def write_back(self, layer: int, expert: int, since_ns: int) -> Span:
        """Never: records stay in their file, so nothing has to be written back."""
        raise UsageError(
            "this machine has no lane from the device to the host: no eviction writes back"
        )

    def backlog_ns(self, lane: Lane) -> int:
        """What waits for the loader, at the least that a transfer took; lanes of work are idle."""
        if lane is not Lane.DISK:
            return 0
        with self.lock:
            return len(self._needed) * self._least_ns.get((OpKind.LOAD, Lane.DISK), 0)

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Read one record from disk into a slot."""
        self.store.read_into(self._file, layer, expert, self.slots[slot])

    def _load_for_ever(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                self._carry(job)
        except Exception as failure:  # whatever it is, the control thread must not wait for ever
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _next_job(self) -> _Job | None:
        """The next needed load, else the next prefetch that may begin; None when closing."""
        with self._changed:
            while not self._closing:
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

    def _begun(self, job: _Job) -> bool:
        if job.client.claim(job.op, self.now_ns()) is None:
            return False
        job.client.under_way(job.op, job.span)
        return True

    def _carry(self, job: _Job) -> None:
        """Read a chunk; of a needed load, and of a prefetch in one piece, that is all."""
        op, start_ns = job.op, self.now_ns()
        slot = job.client.slot_of(op)
        values = self.store.record_values
        first, beyond = (values * n // job.chunks for n in (job.done, job.done + 1))
        part = self.slots[slot, first:beyond]
        self.store.read_into(self._file, op.layer, op.experts[0], part, first)
        with self._changed:
            job.start_ns = job.start_ns or start_ns
            job.done += 1
            complete = job.done == job.chunks
            span = job.span if complete else Span(op, Lane.DISK)
            span.start_ns, span.end_ns = start_ns, self.now_ns()
            span.moved_bytes = part.numel() * part.itemsize
            if job.chunks == 1:
                self._measured(span)
            self.timeline.add(span)
            if complete:
                job.client.arrived(op, job.start_ns, span.end_ns)
            else:
                (self._needed if job.finishing else self._queued).appendleft(job)
            self._changed.notify_all()

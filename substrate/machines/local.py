"""This computer as the machine, on the wall clock: a CPU as the device, a disk below it.

Slots are rows of one tensor in memory, experts are read from their records by a loader thread, and
the mathematics runs on the calling thread.  There is no host lane beside the device: the host *is*
the device.  (A CUDA device with streams and pinned buffers is a machine of its own.)
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span, Transfer, Work
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.weights import ExpertStore


class LocalMachine:
    """The machine protocol on this computer; see the module's docstring.

    Use as a context manager: it owns a thread and a file.
    """

    load_path = (Lane.DISK,)
    has_host_lane = False

    def __init__(self, store: ExpertStore, slots: int, timeline: Timeline) -> None:
        self.store = store
        self.timeline = timeline
        self.slots = torch.empty(slots, store.record_values, dtype=store.dtype)
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._needed: deque[tuple[Span, Transfer]] = deque()
        self._queued: deque[tuple[Op, Transfer]] = deque()
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
        """What this thread did between two batches is nobody's stall."""
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
        self._end(span)
        span.stall_ns = (span.start_ns or 0) - self._device_free_ns
        span.cause = "load" if after and (span.start_ns or 0) > asked else "control"
        self._device_free_ns = span.end_ns or 0
        with self.lock:
            self.timeline.add(span)
        return span

    def _end(self, span: Span) -> None:
        span.end_ns = self.now_ns()
        each = span.duration_ns // max(1, len(span.op.experts))
        key = (span.op.kind, span.lane)
        self._least_ns[key] = min(each, self._least_ns.get(key, each))

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """The least that was measured of this kind; one nanosecond before anything was."""
        return self._least_ns.get((op.kind, lane), 1)

    # ------------------------------------------------------------------ transfers

    def load(self, op: Op, transfer: Transfer, after: Sequence[Span] = ()) -> Span:
        """Ask the loader for a needed expert; it goes before every queued prefetch."""
        for dependency in after:
            self.wait(dependency)
        span = Span(op, Lane.DISK)
        with self._changed:
            transfer.under_way(span)
            self._needed.append((span, transfer))
            self._changed.notify_all()
        return span

    def enqueue(self, op: Op, transfer: Transfer) -> None:
        """Queue a prefetch."""
        with self._changed:
            self._queued.append((op, transfer))
            self._changed.notify_all()

    def cancel(self, layer: int | None = None) -> int:
        """Drop prefetches that the loader has not started."""
        with self.lock:
            kept = [q for q in self._queued if layer is not None and q[0].layer > layer]
            dropped = len(self._queued) - len(kept)
            self._queued = deque(kept)
            return dropped

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Read one record from disk into a slot."""
        self.store.read_into(self._file, layer, expert, self.slots[slot])

    def _load_for_ever(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                self._carry(*job)
        except Exception as failure:  # whatever it is, the control thread must not wait for ever
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _next_job(self) -> tuple[Span, Transfer] | None:
        """The next needed load, else the next prefetch that may begin; None when closing."""
        with self._changed:
            while not self._closing:
                if self._needed:
                    return self._needed.popleft()
                if self._queued:
                    op, transfer = self._queued.popleft()
                    span = Span(op, Lane.DISK)
                    if transfer.begin(self.now_ns()):
                        transfer.under_way(span)
                        return span, transfer
                    continue
                self._changed.wait()
        return None

    def _carry(self, span: Span, transfer: Transfer) -> None:
        span.start_ns = self.now_ns()
        transfer.copy()
        with self._changed:
            self._end(span)
            transfer.arrived(span.start_ns, span.end_ns or 0)
            self.timeline.add(span)
            self._changed.notify_all()

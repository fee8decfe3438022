"""This computer as the machine, on the wall clock.

    control thread   decides, and computes the operations of the device's lane
    loader           copies experts to their slots: needed ones first, then uploads, then prefetches
    host thread      computes experts in host memory, if the machine has a host lane
    back thread      copies evicted experts back to host memory, for systems that write back

The device is a part of this computer's memory, its slots rows of one tensor.  Experts are copied
from a disk, and then there is no host lane; or from another part of memory behind a link of a given
rate, whose experts the host's thread computes (`substrate.machines.records`).
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from moebench.substrate.errors import UsageError
from moebench.substrate.machines.loader import Job, Loader, start_thread
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span, TransferClient, Work, op_of
from moebench.substrate.machines.records import MemoryRecords, Records, RecordsInMemory, rows
from moebench.substrate.machines.timeline import Timeline, cause_of
from moebench.substrate.models.fused import expert_function

#: Interval in s after which a thread releases the GIL for others; Python's default is 5 ms.
SWITCH_S = 1e-4

#: Number of trials for the first estimate of an operation's time.
TRIALS = 5


class Task(NamedTuple):
    """An operation for the host's thread, or for the thread that copies evicted experts back."""

    span: Span
    after: Sequence[Span]
    work: Work | None
    args: tuple[Any, ...]
    #: An event behind the device's earlier operations, on a GPU; else None.
    mark: Any = None


class LocalMachine:
    """The machine protocol on this computer's CPU and memory, by the wall clock.

    Use as a context manager: it owns threads.

    Args:
        records: the source of experts' records; open.
        slots: how many experts fit on the device.
        overlap: False lets no operation start before the one submitted before it has ended.
        blocking_copies: the control thread waits for every needed load that it submits.
    """

    host_memory = None
    decision_ns = sync_ns = 0

    def __init__(
        self, records: Records, slots: int, timeline: Timeline, *, overlap: bool = True,
        blocking_copies: bool = False,
    ) -> None:  # fmt: skip
        self.records, self.timeline = records, timeline
        self._overlap, self._blocking_copies = overlap, blocking_copies
        self.load_path = (records.lane,)
        #: The records in host memory, if the machine has a host lane.
        self._host = records if isinstance(records, RecordsInMemory) else None
        self.has_host_lane = self._host is not None
        self._rows = self._slot_memory(slots)
        #: Records by slot, in their format's elements.
        self.slots = self._rows.view(records.format.dtype)[:, : records.format.values]
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._loader = Loader(
            records, self._rows, self._changed, self._carried, self._precede, self._timed_copy
        )
        self._tasks: deque[Task] = deque()
        self._backs: deque[Task] = deque()
        self._d2h = threading.Lock()
        self._last: Span | None = None
        self._least_ns: dict[tuple[OpKind, Lane], int] = {}
        #: When the device's last operation ended; how long it has since been idle because the
        #: control thread waited for another lane, and the cause of that wait.
        self._device_free_ns = time.perf_counter_ns()
        self._idle_in_wait, self._waited_for = 0, ""
        self._host_layer = -1
        self._failure: Exception | None = None
        self._closing = False

    def _slot_memory(self, slots: int) -> Tensor:
        """Return the device's slots as bytes ``[slots, stride]``."""
        return rows(slots, self.records.stride_bytes, f"{slots} slots of the device")

    def __enter__(self) -> Self:
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        loader = self._loader
        self._threads = [start_thread("loader", loader.next_job, loader.carry, self._fail)]
        if self.has_host_lane:
            for name, tasks in (("host", self._tasks), ("back", self._backs)):
                following = partial(self._next_task, tasks)
                self._threads.append(start_thread(name, following, self._run, self._fail))
        try:
            self._try_out()
        except BaseException:  # without a context, no caller would end the threads
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing = self._loader.closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        sys.setswitchinterval(self._switch_s)

    def _try_out(self) -> None:
        """Measure a load, and an expert of one row on device and host, for first estimates."""
        layer, shape = self.records.shape.moe_layers[0], self.records.shape
        compute, made = expert_function(shape), self.records.format
        row = torch.zeros(1, shape.hidden_size, dtype=made.state_dtype)
        load = op_of(OpKind.LOAD, layer, (), (0,))
        expert = op_of(OpKind.EXPERT, layer, (1,), (0,))
        trials: list[tuple[Op, Lane, Callable[[], object]]] = [
            (load, self.records.lane, lambda: self.copy_record(layer, 0, 0)),
            (expert, Lane.DEVICE, lambda: self._try_expert(row)),
        ]
        if self._host is not None:
            record = self._host.on_host(layer, 0)
            trials.append((expert, Lane.HOST, lambda: compute(row, *made.matrices(record))))
        for op, lane, work in trials:
            for _ in range(TRIALS):
                start_ns = self.now_ns()
                work()
                self._measured(Span(op, lane, start_ns, self.now_ns()))

    def _try_expert(self, row: Tensor) -> None:
        records = self.records
        expert_function(records.shape)(row, *records.format.matrices(self.slots[0]))

    # ------------------------------------------------------------------ the control thread

    def now_ns(self) -> int:
        """Return the wall clock's time in ns."""
        return time.perf_counter_ns()

    def begin(self) -> None:
        """Begin a batch: the time since the last one counts as no stall."""
        self._device_free_ns, self._idle_in_wait = self.now_ns(), 0

    def elapse(self, decisions: int) -> None:
        """Do nothing: decisions take real time."""

    def wait(self, span: Span) -> None:
        """Block until the span has ended; another thread's failure is raised here."""
        if span.end_ns is not None and self._failure is None:
            return
        since_ns = self.now_ns()
        self._await(span)
        self._idle_in_wait += self.now_ns() - since_ns
        self._waited_for = cause_of(span)

    def _await(self, span: Span) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: span.end_ns is not None or self._failure is not None or self._closing
            )
            if self._failure is not None:
                raise self._failure

    def drain(self) -> None:
        """Block until every queued transfer to the device has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._loader.idle or self._failure is not None)
            if self._failure is not None:
                raise self._failure

    def submit(
        self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Work | None = None, *args: Any
    ) -> Span:
        """Run an operation on this thread, after its dependencies, or on the thread of its lane.

        Predictions of any lane run on this thread.
        """
        if not self._overlap and self._last is not None:
            self.wait(self._last)
        here = op.kind is OpKind.PREDICT or lane is Lane.DEVICE
        span = self._last = (self._submit_here if here else self._submit_there)(
            op, lane, after, work, args
        )
        return span

    def _submit_here(
        self, op: Op, lane: Lane, after: Sequence[Span], work: Work | None, args: tuple[Any, ...]
    ) -> Span:
        for dependency in after:
            self.wait(dependency)
        span = Span(op, lane, self.now_ns())
        if work is not None:
            span.value = work(*args)
        span.end_ns = self.now_ns()
        self._measured(span)
        if lane is Lane.DEVICE:
            idle_ns = (span.start_ns or 0) - self._device_free_ns
            waited_ns = min(idle_ns, self._idle_in_wait)
            if waited_ns:
                span.stall_ns, span.cause = waited_ns, self._waited_for
                span.late_ns = idle_ns - waited_ns
            else:
                span.stall_ns, span.cause = idle_ns, "control"
            self._device_free_ns, self._idle_in_wait = span.end_ns, 0
            if op.kind is OpKind.EXPERT:
                self.timeline.costs.device_ns.append(span.duration_ns / len(op.rows))
        self.timeline.add(span)
        return span

    def _submit_there(
        self, op: Op, lane: Lane, after: Sequence[Span], work: Work | None, args: tuple[Any, ...]
    ) -> Span:
        assert isinstance(self._host, MemoryRecords), f"{op} has no thread here"
        if lane in (Lane.HOST, Lane.D2H):
            if op.kind is OpKind.RETURN:  # by the host's thread, in order
                work, args = self._host.give_back, (sum(op.rows),)
            return self._hand_over(self._tasks, Task(Span(op, lane), after, work, args))
        job = Job(op, None, lane, after=after, stream=self._host.stream)
        self._loader.need(job)
        return job.span

    def _hand_over(self, tasks: deque[Task], task: Task) -> Span:
        with self._changed:
            tasks.append(task)
            self._changed.notify_all()
        return task.span

    def _measured(self, span: Span) -> None:
        each = span.duration_ns // max(1, len(span.op.experts))
        key = (span.op.kind, span.lane)
        self._least_ns[key] = min(each, self._least_ns.get(key, each))

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """Return the least measured time of this kind of operation; 1 ns without any."""
        return self._least_ns.get((op.kind, lane), 1)

    def control_ns(self, op: Op, lane: Lane) -> int:
        """Return 0: this thread submits an operation of the device by computing it."""
        return 0

    # ------------------------------------------------------------------ transfers

    def load(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> Span:
        """Queue a needed expert in the loader, before every queued prefetch."""
        if not self._overlap and self._last is not None:
            self.wait(self._last)
        job = Job(op, client, self.records.lane, after=after)
        with self.lock:
            client.under_way(op, job.span)
            self._loader.need(job)
        self._last = job.span
        if self._blocking_copies:
            self.wait(job.span)
        return job.span

    def _precede(self, span: Span) -> None:
        """Return once a copy that begins then follows the span."""
        self._await(span)

    def _timed_copy(self, span: Span, copy: Callable[[], int]) -> tuple[int, int, int]:
        start_ns = self.now_ns()
        moved = copy()
        return moved, start_ns, self.now_ns()

    def _carried(self, span: Span, whole: bool) -> None:
        if whole:
            self._measured(span)
        self.timeline.add(span)

    def prefetch(
        self, ops: Iterable[Op], client: TransferClient, chunks: int = 1,
        since_ns: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Queue prefetches in place of those that the loader has not begun.

        Predictions that they wait for have ended, as they run on the control thread.
        """
        self.timeline.dropped(self._loader.prefetch(ops, client, chunks), self.now_ns())

    def cancel(self, layer: int) -> int:
        """Drop prefetches that the loader has not begun."""
        dropped = self._loader.cancel(layer)
        self.timeline.dropped(dropped, self.now_ns())
        return len(dropped)

    def upload(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> None:
        """Queue an upload in the loader, behind needed transfers and before queued prefetches."""
        job = Job(op, client, self.records.lane, after=after)
        with self.lock:
            client.under_way(op, job.span)
            self._loader.upload(job)

    def finish(self, op: Op) -> None:
        """Let the loader copy an upload, or the rest of a begun prefetch, before all else."""
        self._loader.finish(op)

    def write_back(self, layer: int, expert: int, slot: int, since_ns: int, form: int = 0) -> Span:
        """Copy a slot back to host memory; refused where records are on a disk."""
        if self._host is None:
            raise UsageError(
                "this machine has no lane from the device to the host: no eviction writes back; "
                "allowed: --emulated-link RATE"
            )
        op = op_of(OpKind.WRITE_BACK, layer, (), (expert,))
        args = (layer, expert, self._rows[slot])
        return self._hand_over(
            self._backs, Task(Span(op, Lane.D2H), (), self._host.write_back, args)
        )

    def backlog_ns(self, lane: Lane) -> int:
        """Return the least time of the operations queued for a lane's thread; 0 for the device."""
        with self.lock:
            if lane is self.records.lane:
                return self._loader.waiting * self._least_ns.get((OpKind.LOAD, lane), 0)
            waiting = sum(
                len(task.span.op.experts) for task in self._tasks
                if task.span.lane is lane is Lane.HOST
            )  # fmt: skip
            return waiting * self._least_ns.get((OpKind.EXPERT, lane), 0)

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Copy one record into a slot."""
        self.records.copy(layer, expert, self._rows[slot], 0, self.records.stride_bytes)

    # ------------------------------------------------------------------ the host's threads

    def _next_task(self, tasks: deque[Task]) -> Task | None:
        """Return the next task in order; None when closing."""
        with self._changed:
            self._changed.wait_for(lambda: tasks or self._closing)
            return None if self._closing else tasks.popleft()

    def _run(self, task: Task) -> None:
        span, op = task.span, task.span.op
        for dependency in task.after:
            self._await(dependency)
        if self._closing:
            return
        # Outputs and write-backs share the d2h lane.
        with self._d2h if span.lane is Lane.D2H else nullcontext():
            start_ns = self.now_ns()
            value = None if task.work is None else task.work(*task.args)
            end_ns = self.now_ns()
        with self._changed:
            span.start_ns, span.end_ns, span.value = start_ns, end_ns, value
            self._measured(span)
            if op.kind is OpKind.WRITE_BACK:
                span.moved_bytes = self.slots[0].nbytes
            if op.kind is OpKind.EXPERT:
                first = op.layer != self._host_layer
                self.timeline.costs.on_host(span.duration_ns / len(op.rows), op.rows[0], first)
                self._host_layer = op.layer
            self.timeline.add(span)
            self._changed.notify_all()

    def _fail(self, failure: Exception) -> None:
        """Keep a thread's failure, which the control thread raises instead of waiting forever."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

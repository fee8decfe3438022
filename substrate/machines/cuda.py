"""A GPU as the machine, measured on the wall clock.

    control thread   decides, and launches the device's operations on the compute stream
    loader           copies experts to their slots on a stream of its own, and waits for each
    host thread      computes experts in host memory, and copies outputs back on a third stream
    back thread      copies evicted experts back to host memory on a fourth, for some systems

A thread that depends on another's operation waits until that operation was *launched*; its stream
then waits for the operation's event.  A span gets its end when the control thread next waits, as it
does at every gate, and finds the event passed (`_settle`).  So only a gate's read-back keeps the
control thread from running ahead of the GPU.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from moebench.substrate.errors import BudgetError
from moebench.substrate.machines.accelerator import Accelerator, Event
from moebench.substrate.machines.local import LocalMachine, Task
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span, Work
from moebench.substrate.machines.records import RecordsInMemory
from moebench.substrate.machines.timeline import Timeline, cause_of
from moebench.substrate.models.expert_store import Weights
from moebench.substrate.models.fused import expert_function

#: Operations whose results are on the host when their work returns, because it reads them back.
READ_BACK = frozenset((OpKind.GATE, OpKind.PREDICT, OpKind.HEAD))


class CardRecords(RecordsInMemory):
    """Records in host memory, from which a GPU copies them.

    Args:
        pinned: page-lock them; a driver copies pageable memory through a buffer of its own.
    """

    def __init__(
        self, weights: Weights, dtype: torch.dtype, card: Accelerator, pinned: bool = True
    ) -> None:
        self._card, self._pinned = card, pinned
        super().__init__(weights, dtype)
        self.notes = [f"experts are copied from {'pinned' if pinned else 'pageable'} host memory"]

    def __enter__(self) -> Self:
        if self._pinned:
            self._card.pin(self._rows)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pinned:
            self._card.unpin(self._rows)

    def copy(self, layer: int, expert: int, slot: Tensor, first: int, beyond: int) -> None:
        """Launch the copy of a part of a record, on this thread's stream."""
        self._card.copy(slot[first:beyond], self.row(layer, expert)[first:beyond])

    def write_back(self, layer: int, expert: int, slot: Tensor) -> None:
        """Launch the copy of a slot back to its record, on this thread's stream."""
        self._card.copy(self.row(layer, expert), slot)


class _Clock:
    """Converts events to wall-clock times, counted from an event that was waited for."""

    def __init__(self, card: Accelerator) -> None:
        self._card, self._base = card, card.record(card.compute)
        self._base.synchronize()
        self._base_ns = time.perf_counter_ns()

    def ns(self, event: Event) -> int:
        """Return the wall-clock time of an event in ns; at most now, as the two clocks differ."""
        return min(self._base_ns + self._card.elapsed_ns(self._base, event), time.perf_counter_ns())


class _Launched(NamedTuple):
    """An operation that was launched on the GPU and whose end has not been read.

    Attributes:
        began: an event before it, or its start on the wall clock in ns.
        after: the spans that its stream waits for.
        waited_ns, waited_for: how long the control thread had waited for another lane, and why.
    """

    clock: _Clock
    began: Event | int
    ended: Event
    after: Sequence[Span] = ()
    waited_ns: int = 0
    waited_for: str = ""

    def times_ns(self) -> tuple[int, int]:
        """Return the start and end in ns of an operation that has ended."""
        end_ns = self.clock.ns(self.ended)
        start_ns = self.began if isinstance(self.began, int) else self.clock.ns(self.began)
        return min(start_ns, end_ns), end_ns


class CudaMachine(LocalMachine):
    """The machine protocol on a GPU, by the wall clock; see the module's docstring.

    Use as a context manager: it owns threads.

    Args:
        records: the records in host memory; open.
        slots: how many experts fit on the GPU, in one allocation.
        overlap, blocking_copies: as of `LocalMachine`.

    Raises BudgetError: the GPU has less memory; also raised at the end of the context.
    """

    def __init__(
        self, records: CardRecords, slots: int, timeline: Timeline, card: Accelerator, *,
        overlap: bool = True, blocking_copies: bool = False,
    ) -> None:  # fmt: skip
        self._card = card
        super().__init__(records, slots, timeline, overlap=overlap, blocking_copies=blocking_copies)
        self._clock = _Clock(card)
        self._copies, self._returns, self._evictions = (card.stream() for _ in range(3))
        #: Launched operations, and in order those of the two lanes for whose ends no thread waits;
        #: all under the lock.
        self._launched: dict[Span, _Launched] = {}
        self._computing: deque[Span] = deque()
        self._returning: deque[Span] = deque()
        self._free_ns = dict.fromkeys(Lane, 0)

    def _slot_memory(self, slots: int) -> Tensor:
        return self._card.allocate(slots, self.records.stride_bytes)

    def __exit__(self, *raised: object) -> None:
        super().__exit__()
        error = raised[1] if raised else None
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise BudgetError(
                f"the memory of {self._card.name} that this run may use is full; give a smaller "
                "--batch, shorter prompts, or a smaller --capacity or --slots"
            ) from error

    def _try_expert(self, row: Tensor) -> None:
        records, here = self.records, self._card.put(row)
        out = expert_function(records.shape)(here, *records.format.matrices(self.slots[0]))
        self._card.read(out)

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Copy one record into a slot, and wait for the copy."""
        with self._card.on(self._copies):
            super().copy_record(layer, expert, slot)
        self._card.record(self._copies).synchronize()

    # ------------------------------------------------------------------ the control thread

    def begin(self) -> None:
        """Begin a batch: synchronise the GPU's clock with the wall clock again."""
        self._settle()
        self._clock = _Clock(self._card)
        super().begin()

    def wait(self, span: Span) -> None:
        """Block until the span has ended; another thread's failure is raised here."""
        self._settle()
        if span.end_ns is not None and self._failure is None:
            return
        since_ns = self.now_ns()
        launched = self._once_launched(span)
        if launched is not None:
            launched.ended.synchronize()
        self._settle()
        self._await(span)  # a copy's own thread sets its times
        if span.lane is not Lane.DEVICE:
            self._idle_in_wait += self.now_ns() - since_ns
            self._waited_for = cause_of(span)

    def _once_launched(self, span: Span) -> _Launched | None:
        """Wait until the operation is launched; None if it has ended or the machine closes."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    span in self._launched
                    or span.end_ns is not None
                    or self._failure is not None
                    or self._closing
                )
            )
            if self._failure is not None:
                raise self._failure
            return self._launched.get(span)

    def _follow(self, stream: Any, span: Span) -> None:
        """Let later operations of the stream wait for the span."""
        launched = self._once_launched(span)
        if launched is not None:
            self._card.follow(stream, launched.ended)

    def _launch(self, span: Span, launched: _Launched, unwaited: deque[Span] | None = None) -> None:
        """Register an operation as launched.

        Under the same lock add it to the queue of `_settle` if no thread waits for its end: else
        the control thread could wait forever for an end that no thread reads.
        """
        with self._changed:
            self._launched[span] = launched
            if unwaited is not None:
                unwaited.append(span)
            self._changed.notify_all()

    def _submit_here(
        self, op: Op, lane: Lane, after: Sequence[Span], work: Work | None, args: tuple[Any, ...]
    ) -> Span:
        card, span = self._card, Span(op, lane)
        for dependency in after:
            self._follow(card.compute, dependency)
        since_ns, began = self.now_ns(), card.record(card.compute)
        if work is not None:
            span.value = work(*args)
        waited = self._idle_in_wait, self._waited_for
        if lane is Lane.DEVICE:
            self._idle_in_wait = 0
        if op.kind in READ_BACK:
            self._settle()
            with self._changed:
                if began.query():
                    began_ns = self._clock.ns(began)
                    span.start_ns, span.end_ns = self._in_turn(lane, began_ns, self.now_ns())
                    self._ended(span, _Launched(self._clock, since_ns, began, after, *waited))
                else:  # the GPU has not reached this operation yet
                    span.start_ns, span.end_ns = since_ns, self.now_ns()
                    self.timeline.add(span)
            return span
        launched = _Launched(self._clock, began, card.record(card.compute), after, *waited)
        self._launch(span, launched, self._computing)
        return span

    def _settle(self) -> None:
        """Read the times of all operations that have ended, without waiting."""
        for spans in (self._returning, self._computing):
            while spans:
                with self._changed:
                    launched = self._launched[spans[0]]
                    if not launched.ended.query():
                        break
                    span = spans.popleft()
                    span.start_ns, span.end_ns = self._in_turn(span.lane, *launched.times_ns())
                    self._ended(span, launched)
                    del self._launched[span]
                    self._changed.notify_all()

    def _in_turn(self, lane: Lane, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return times of a lane's next operation that begin after the one before.

        Differences between the clocks, or queued outputs, could make it begin earlier.
        """
        free_ns = self._free_ns[lane]
        end_ns = self._free_ns[lane] = max(end_ns, free_ns)
        return max(start_ns, free_ns), end_ns

    def _ended(self, span: Span, launched: _Launched) -> None:
        if span.lane is Lane.DEVICE:
            self._count_idle(span, launched)
        self._measured(span)
        self.timeline.add(span)

    def _count_idle(self, span: Span, launched: _Launched) -> None:
        """Set an operation's stall: the device's idle time before it, and the cause."""
        assert span.start_ns is not None
        idle_ns = max(0, span.start_ns - self._device_free_ns)
        waited_ns, waited_for = launched.waited_ns, launched.waited_for
        for dependency in launched.after:
            came_ns = dependency.end_ns
            if came_ns is None:  # its own thread has not set its end yet
                _, came_ns = self._launched[dependency].times_ns()
            if came_ns - self._device_free_ns > waited_ns:
                waited_ns, waited_for = came_ns - self._device_free_ns, cause_of(dependency)
        span.stall_ns = min(idle_ns, waited_ns) or idle_ns
        span.cause = waited_for if min(idle_ns, waited_ns) else "control"
        span.late_ns = idle_ns - span.stall_ns
        self._device_free_ns = span.start_ns + span.duration_ns
        if span.op.kind is OpKind.EXPERT:
            self.timeline.costs.device_ns.append(span.duration_ns / len(span.op.rows))

    # ------------------------------------------------------------------ the other threads

    def _submit_there(
        self, op: Op, lane: Lane, after: Sequence[Span], work: Work | None, args: tuple[Any, ...]
    ) -> Span:
        assert lane in (Lane.HOST, Lane.D2H), f"{op} has no stream here"
        return self._hand_over(self._tasks, Task(Span(op, lane), after, work, args))

    def _hand_over(self, tasks: deque[Task], task: Task) -> Span:
        # The task uses results of earlier launches: a layer's empty outputs, a slot's contents.
        mark = self._card.record(self._card.compute)
        return super()._hand_over(tasks, task._replace(mark=mark))

    def _run(self, task: Task) -> None:
        card, span = self._card, task.span
        evicts = span.op.kind is OpKind.WRITE_BACK
        stream = self._evictions if evicts else self._returns
        with card.on(stream):
            card.follow(stream, task.mark)
            for dependency in task.after:
                self._follow(stream, dependency)
            if self._closing:
                return
            if span.lane is Lane.HOST:  # its work launches the copy of its output
                super()._run(task._replace(after=()))
                return
            began = card.record(stream) if evicts else self.now_ns()
            if task.work is not None:
                task.work(*task.args)
            launched = _Launched(self._clock, began, card.record(stream))
        self._launch(span, launched, None if evicts else self._returning)
        if not evicts:
            return
        launched.ended.synchronize()
        with self._changed:
            span.start_ns, span.end_ns = self._in_turn(span.lane, *launched.times_ns())
            span.moved_bytes = self.slots[0].nbytes
            self._carried(span, True)
            self._changed.notify_all()

    def _precede(self, span: Span) -> None:
        self._follow(self._copies, span)

    def _timed_copy(self, span: Span, copy: Callable[[], int]) -> tuple[int, int, int]:
        """Launch the copy, register it, and wait for it; return its bytes and times."""
        with self._card.on(self._copies):
            began = self._card.record(self._copies)
            moved = copy()
            launched = _Launched(self._clock, began, self._card.record(self._copies))
        self._launch(span, launched)
        launched.ended.synchronize()
        with self.lock:
            return moved, *self._in_turn(span.lane, *launched.times_ns())

    def _carried(self, span: Span, whole: bool) -> None:
        del self._launched[span]
        super()._carried(span, whole)

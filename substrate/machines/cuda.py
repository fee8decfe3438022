"""A card as the machine, on the wall clock.

    control thread   decides, and launches what is on the device's lane on the compute stream
    loader           copies experts to their slots on a stream of its own, and waits for each
    host thread      computes experts in host memory; their outputs go back on a third stream
    back thread      copies evicted experts back to host memory on a fourth, where a system does so

A thread that depends on another's operation waits until that one was *launched*; the stream then
waits for its event.  An operation's span has no end until its event has passed and somebody asked:
the control thread does when it waits for something itself, as it does for every gate.  So only a
gate's read-back keeps the control thread from running ahead of the card.
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

#: What these compute is known on the host when they return: it was read back, unless a predictor
#: asked nothing of the card.
READ_BACK = frozenset((OpKind.GATE, OpKind.PREDICT, OpKind.HEAD))


class CardRecords(RecordsInMemory):
    """Records in host memory, from where a card copies them.

    Args:
        pinned: lock them in place; a driver copies what is not by way of a buffer of its own.
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
        """The same of a slot."""
        self._card.copy(self.row(layer, expert), slot)


class _Clock:
    """The card's time on the wall clock: events count from one that was waited for."""

    def __init__(self, card: Accelerator) -> None:
        self._card, self._base = card, card.record(card.compute)
        self._base.synchronize()
        self._base_ns = time.perf_counter_ns()

    def ns(self, event: Event) -> int:
        """When an event passed; not later than now, by whatever the two clocks differ."""
        return min(self._base_ns + self._card.elapsed_ns(self._base, event), time.perf_counter_ns())


class _Launched(NamedTuple):
    """An operation that the card was given and that nobody has seen the end of.

    Attributes:
        began: an event before it, or when it began on the wall clock.
        after: spans that its stream waits for.
        waited_ns, waited_for: how long the control thread had waited for another lane, and which.
    """

    clock: _Clock
    began: Event | int
    ended: Event
    after: Sequence[Span] = ()
    waited_ns: int = 0
    waited_for: str = ""

    def times_ns(self) -> tuple[int, int]:
        """Start and end, once the end has passed."""
        end_ns = self.clock.ns(self.ended)
        start_ns = self.began if isinstance(self.began, int) else self.clock.ns(self.began)
        return min(start_ns, end_ns), end_ns


class CudaMachine(LocalMachine):
    """The machine protocol on a card; see the module's docstring.

    Use as a context manager: it owns threads.

    Args:
        records: in host memory; open.
        slots: how many fit on the card: one piece of its memory.
        overlap, blocking_copies: as of `LocalMachine`.

    Raises:
        BudgetError: the card has less memory; inside its context, too.
    """

    def __init__(
        self,
        records: CardRecords,
        slots: int,
        timeline: Timeline,
        card: Accelerator,
        *,
        overlap: bool = True,
        blocking_copies: bool = False,
    ) -> None:
        self._card = card
        super().__init__(records, slots, timeline, overlap=overlap, blocking_copies=blocking_copies)
        self._clock = _Clock(card)
        self._copies, self._returns, self._evictions = (card.stream() for _ in range(3))
        #: Under the lock.  Of the two lanes whose ends nobody waits for, spans in their order.
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
                "--batch, shorter prompts, or a smaller --cache-ratio or --slots"
            ) from error

    def _try_expert(self, row: Tensor) -> None:
        records, here = self.records, self._card.put(row)
        out = expert_function(records.shape)(here, *records.format.matrices(self.slots[0]))
        self._card.read(out)

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Copy one record into a slot, and wait."""
        with self._card.on(self._copies):
            super().copy_record(layer, expert, slot)
        self._card.record(self._copies).synchronize()

    # ------------------------------------------------------------------ the control thread

    def begin(self) -> None:
        """Tie the card's clock to the wall clock anew."""
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
        self._await(span)  # of a copy, its own thread says what it took
        if span.lane is not Lane.DEVICE:
            self._idle_in_wait += self.now_ns() - since_ns
            self._waited_for = cause_of(span)

    def _once_launched(self, span: Span) -> _Launched | None:
        """Wait until the card was given the operation; None if it has ended, or all ends."""
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
        """What the stream is given from now on follows the span."""
        launched = self._once_launched(span)
        if launched is not None:
            self._card.follow(stream, launched.ended)

    def _launch(self, span: Span, launched: _Launched, unwaited: deque[Span] | None = None) -> None:
        """Say that the card was given an operation.

        At once also to `_settle`, if no thread waits for its end: the control thread may come for
        it as soon as the lock is free, and would wait for ever for an end that nobody takes.
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
                else:  # the card is still at what came before
                    span.start_ns, span.end_ns = since_ns, self.now_ns()
                    self.timeline.add(span)
            return span
        launched = _Launched(self._clock, began, card.record(card.compute), after, *waited)
        self._launch(span, launched, self._computing)
        return span

    def _settle(self) -> None:
        """Take the times of all that has ended; nobody waits."""
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
        """Times of a lane's next operation, which follows the one before.

        A microsecond between the clocks, or outputs that queue, would have it begin earlier.
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
        """Say what the device stood idle for before an operation."""
        assert span.start_ns is not None
        idle_ns = max(0, span.start_ns - self._device_free_ns)
        waited_ns, waited_for = launched.waited_ns, launched.waited_for
        for dependency in launched.after:
            came_ns = dependency.end_ns
            if came_ns is None:  # its own thread has not come to say so
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
        # It reads what was launched before: a layer's empty outputs, a slot's last contents.
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
            if span.lane is Lane.HOST:  # which launches its output's way back
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
        """Launch the copy, say so, and wait for it."""
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

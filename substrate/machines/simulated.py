"""A simulated machine with a virtual clock in integer ns, deterministic from run to run.

An operation gets its start and end when it is submitted, because those of all its dependencies are
known by then.  Only queued prefetches and uploads are left open, because they may be overtaken, and
prefetches cancelled; they start when the clock passes the instant at which their lane became idle.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, cast

from moebench.substrate.errors import IntegrityError
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.protocol import (
    HostMemory,
    Lane,
    Op,
    OpKind,
    Span,
    TransferClient,
    Work,
    op_of,
)
from moebench.substrate.machines.timeline import Timeline, cause_of

#: Enum members as globals: an enum looks them up in a Python function, slow for each operation.
_DEVICE, _HOST, _H2D, _DISK = Lane.DEVICE, Lane.HOST, Lane.H2D, Lane.DISK
_EXPERT, _COMBINE, _PREDICT = OpKind.EXPERT, OpKind.COMBINE, OpKind.PREDICT


@dataclass(slots=True)
class _Begun:
    """A prefetch in chunks that has begun.

    Attributes:
        since_ns: the instant at which it began.
        after: the spans that its chunks wait for.
        first: the read of its record, else the first chunk.
        done: the number of submitted chunks.
    """

    op: Op
    client: TransferClient
    chunks: int
    since_ns: int
    after: Sequence[Span]
    first: Span | None
    done: int = 0


class SimulatedMachine:
    """The machine protocol on a cost model and a virtual clock; see the module's docstring.

    Args:
        host_memory: the cache of experts that are on the disk; None if all are in host memory.
        parallel_reads: reads from the disk are submitted while others are under way; otherwise each
            when the one before has ended.
        overlap: False lets no operation start before the one submitted before it has ended.
        blocking_copies: the control thread waits for every transfer to the device that it submits.
    """

    has_host_lane = True

    def __init__(
        self, costs: CostModel, timeline: Timeline, host_memory: HostMemory | None = None, *,
        parallel_reads: bool = True, overlap: bool = True, blocking_copies: bool = False,
    ) -> None:  # fmt: skip
        self.costs = costs
        self.timeline = timeline
        self._measured = timeline.costs
        self.decision_ns, self.sync_ns = costs.decision_ns, costs.sync_ns
        self.blocking_copies = blocking_copies
        self._waits_each_layer = costs.waits_each_layer
        if costs.synchronous:
            self.submit = self._submit_synchronous  # type: ignore[method-assign]
        self._lost_beside_copies = costs.lost_beside_copies
        self._lost_together = costs.lost_together
        #: Without overlap, the last submitted operation: all lanes are idle once it has ended.
        self._last: Span | None = None
        self._add = timeline.add
        if not overlap:
            self._place = self._place_last  # type: ignore
            self._add = self._add_last
        #: The layer of the last expert on the host.
        self._host_layer = -1
        self.load_path = (_DISK, _H2D) if host_memory is not None else (_H2D,)
        self.host_memory = host_memory
        #: Time on the link and bytes of a record, by form.
        self._records = [
            (costs.ns(Op(OpKind.LOAD, 0, form=form), _H2D), size)
            for form, size in enumerate(costs.form_bytes)
        ]
        self._parallel_reads = parallel_reads and overlap
        self.lock = RLock()
        self._now = 0
        self._free = dict.fromkeys(Lane, 0)
        #: How long the device has been idle while the control thread waited for another lane, and
        #: the cause of that wait.
        self._idle_in_wait, self._waited_for = 0, ""
        #: By lane and `Op.sizes`: first launch, whole submission, time on the lane.
        self._prices: dict[Lane, dict[Hashable, tuple[int, int, int]]] = {lane: {} for lane in Lane}
        #: Prefetches that have not begun, each with the instant from which it can begin; and the
        #: client and number of chunks of all of them.
        self._queue: list[tuple[Op, int]] = []
        self._request: tuple[TransferClient, int]
        #: The prefetch in chunks that has begun.
        self._begun: _Begun | None = None
        #: Uploads that have not begun, each with its client, when it was queued and what it awaits.
        self._uploads: deque[tuple[Op, TransferClient, int, Sequence[Span]]] = deque()

    # ------------------------------------------------------------------ the control thread

    def now_ns(self) -> int:
        """Return the time of the control thread's virtual clock, in ns."""
        return self._now

    def pass_to(self, at_ns: int) -> None:
        """Set the clock to the instant at which a batch ended that was replayed elsewhere."""
        self._now = at_ns

    def begin(self) -> None:
        """Do nothing: no virtual time passes between batches."""

    def elapse(self, decisions: int) -> None:
        """Charge the control thread for decisions, while lanes continue."""
        self._now += decisions * self.decision_ns
        if self._queue or self._begun or self._uploads:
            self._start_queued()

    def wait(self, span: Span) -> None:
        """Advance the clock to the span's end, plus the time to read its result."""
        end: int = span.end_ns  # type: ignore[assignment]
        if span.lane is not _DEVICE:
            idle = end - max(self._now, self._free[_DEVICE])
            if idle > 0:
                self._idle_in_wait += idle
                self._waited_for = cause_of(span)
        self._now = (end if end > self._now else self._now) + self.sync_ns
        if self._queue or self._begun or self._uploads:
            self._start_queued()

    # ------------------------------------------------------------------ needed operations

    def submit(
        self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Work | None = None, *args: Any
    ) -> Span:
        """Place an operation on its lane at the cost model's price; run its ``work`` at once.

        An operation of many kernels begins when its first kernel is launched, and cannot end before
        its last one is launched.
        """
        value = None if work is None else work(*args)
        price = self._prices[lane].get(op.sizes) or self._price(op, lane)
        first_launch, control, duration = price
        if self._waits_each_layer and op.kind is _EXPERT and lane is _DEVICE:
            self._wait_for_device(after)
        now = self._now
        since = now + first_launch
        self._now = launched = now + control
        if lane is _DEVICE:
            span = self._place(op, lane, since, duration, after, launched)
            if op.kind is _EXPERT:
                took = span.end_ns - span.start_ns  # type: ignore[operator]
                self._measured.device_ns.append(took / len(op.rows))
            elif self._waits_each_layer and op.kind is _COMBINE:
                self.wait(span)
        elif lane is _HOST and op.kind is _EXPERT:
            span = self._host_expert(op, since, duration, after, launched)
        elif lane is _H2D or lane is _DISK:
            self._start_queued()
            moved = self.costs.moved_bytes(op)
            span = self._place(op, lane, since, duration, after, launched, moved)
            if self.blocking_copies and lane is _H2D:
                self.wait(span)
        else:
            span = self._place(op, lane, since, duration, after, launched)
        span.value = value
        return span

    def _wait_for_device(self, after: Sequence[Span]) -> None:
        """Advance the clock until the device has ended all that was submitted to it.

        An expert's Python asks which rows use it (torch.where), which waits for the stream: for
        earlier operations, and for the transfers that the stream waits for before the expert.  The
        time to read the answer is part of the expert's Python.
        """
        idle_ns = until = self._free[_DEVICE]
        for span in after:
            if span.end_ns is not None and span.end_ns > until:
                until, awaited = span.end_ns, span
        if until <= self._now:
            return
        idle = until - max(self._now, idle_ns)
        if idle > 0 and until > idle_ns:
            self._idle_in_wait += idle
            self._waited_for = cause_of(awaited)
        self._now = until
        if self._queue or self._begun or self._uploads:
            self._start_queued()

    def _submit_synchronous(
        self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Work | None = None, *args: Any
    ) -> Span:
        """Submit an operation where the control thread itself computes the device's operations."""
        lane = _DEVICE if op.kind is _PREDICT else lane
        span = SimulatedMachine.submit(self, op, lane, after, work, *args)
        if lane is _DEVICE:
            self._now = span.end_ns  # type: ignore[assignment]
        return span

    def _host_expert(
        self, op: Op, since_ns: int, duration_ns: int, after: Sequence[Span], launched_ns: int
    ) -> Span:
        """Place an expert on the host, after the read of its record into host memory."""
        began = None
        if self.host_memory is not None:
            self._start_queued()
            began, brought = self._read(op, since_ns)
            after = (*after, *brought)
        span = self._place(op, _HOST, since_ns, duration_ns, after, launched_ns)
        if self.host_memory is not None:
            self.host_memory.used(op, span)
        took = span.end_ns - (began or span).start_ns  # type: ignore[operator]
        each = took / len(op.rows)
        self._measured.on_host(each, op.rows[0], first=op.layer != self._host_layer)
        self._host_layer = op.layer
        return span

    def load(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> Span:
        """Transfer a needed expert along the load path, ahead of every queued prefetch."""
        self._now += self.costs.load_submit_ns
        if self._queue or self._begun or self._uploads:
            self._start_queued()
        span = self._carry(op, client, self._now, after)
        if self.blocking_copies:
            self.wait(span)
        return span

    def _carry(self, op: Op, client: TransferClient, since_ns: int, after: Sequence[Span]) -> Span:
        """Place the transfer of a record in one piece."""
        began = None
        if self.host_memory is not None:
            began, brought = self._read(op, since_ns, after)
            after = (*after, *brought)
        duration, moved = self._records[op.form]
        span = self._place(op, _H2D, since_ns, duration, after, 0, moved)
        if self.host_memory is not None:
            self.host_memory.used(op, span)
        client.under_way(op, span)
        client.arrived(op, (began or span).start_ns, span.end_ns)  # type: ignore[arg-type]
        return span

    def _read(
        self, op: Op, since_ns: int, after: Sequence[Span] = ()
    ) -> tuple[Span | None, tuple[Span, ...]]:
        """Read an expert's record into host memory, if it is not there.

        A read that is submitted during another one has no access latency of its own, and runs at
        the rate that the disk reaches with several reads.

        Returns:
            the read, if there is one, and the spans that a use of the record must wait for.
        """
        memory = cast(HostMemory, self.host_memory)
        if memory.holds(op):
            earlier = memory.find(op)
            return None, () if earlier is None else (earlier,)
        last_use = memory.make_room()
        if last_use is not None:
            after = (*after, last_use)
        asked = max([since_ns, *(cast(int, span.end_ns) for span in after)])
        queued = self._parallel_reads and asked < self._free[_DISK]
        read = op_of(OpKind.READ, op.layer, (), op.experts, op.form, queued=queued)
        duration, moved = self.costs.ns(read, _DISK), self._records[op.form][1]
        span = self._place(read, _DISK, since_ns, duration, after, 0, moved)
        memory.bring(op, span)
        return span, (span,)

    def write_back(self, layer: int, expert: int, slot: int, since_ns: int, form: int = 0) -> Span:
        """Place the copy of a record back to the host."""
        op = op_of(OpKind.WRITE_BACK, layer, (), (expert,), form)
        duration, moved = self.costs.ns(op, Lane.D2H), self._records[form][1]
        return self._place(op, Lane.D2H, since_ns, duration, (), 0, moved)

    def backlog_ns(self, lane: Lane) -> int:
        """Return the time until the lane is idle, in ns from now."""
        return max(0, self._free[lane] - self._now)

    def _price(self, op: Op, lane: Lane) -> tuple[int, int, int]:
        """Return and cache the cost model's price of an operation."""
        price = self._prices[lane][op.sizes] = self.costs.price(op, lane)
        return price

    def _place(
        self, op: Op, lane: Lane, since_ns: int, duration_ns: int, after: Sequence[Span],
        not_before_ns: int = 0, moved_bytes: int = 0,
    ) -> Span:  # fmt: skip
        """Place an operation submitted at ``since_ns`` behind its lane's last; return its span."""
        start = free = self._free[lane]
        cause, late, behind = "", 0, 0
        if since_ns > free:
            start, cause, behind = since_ns, "control", since_ns - free
            if lane is _DEVICE and self._idle_in_wait:
                late = behind = behind - self._idle_in_wait
                cause, self._idle_in_wait = self._waited_for, 0
        for dependency in after:
            end = dependency.end_ns
            if end is None:
                raise IntegrityError(f"{op} waits for {dependency!r}, which has not started")
            if end > start:
                start, cause, late = end, cause_of(dependency), behind
        if self._lost_beside_copies and lane is _DEVICE:
            duration_ns += self._beside(self._lost_beside_copies, _H2D, start, duration_ns)
        elif self._lost_together and (lane is _HOST or lane is _H2D):
            other = _H2D if lane is _HOST else _HOST
            duration_ns += self._beside(self._lost_together, other, start, duration_ns)
        end = start + duration_ns
        if end < not_before_ns:
            end = not_before_ns
        self._free[lane] = end
        span = Span(op, lane, start, end, start - free - late, cause, late, moved_bytes)
        self._add(span)
        return span

    def _place_last(
        self, op: Op, lane: Lane, since_ns: int, duration_ns: int, after: Sequence[Span],
        *more: int,
    ) -> Span:  # fmt: skip
        """Place an operation behind the one submitted before it, on any lane (no overlap)."""
        after = after if self._last is None else (*after, self._last)
        return SimulatedMachine._place(self, op, lane, since_ns, duration_ns, after, *more)

    def _add_last(self, span: Span) -> None:
        self._last = span
        self.timeline.add(span)

    def _beside(self, lost: float, other: Lane, start_ns: int, alone_ns: int) -> int:
        """Return by how much another lane's queue at its start slows an operation, in ns.

        The operation that is submitted later bears the whole of it.
        """
        return round(lost * min(alone_ns / (1 - lost), max(0, self._free[other] - start_ns)))

    # ------------------------------------------------------------------ prefetches

    def prefetch(
        self, ops: Iterable[Op], client: TransferClient, chunks: int = 1,
        since_ns: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Replace the queued prefetches that have not begun by now."""
        before, now = self._queue, self._now
        if since_ns:
            since = [max(now, ns) for ns in since_ns]
            self._queue = list(zip(ops, since, strict=True))
        else:
            self._queue = [(op, now) for op in ops]
        if before and self.timeline.keeping:
            kept = [op for op, _ in self._queue]
            self.timeline.dropped([op for op, _ in before if op not in kept], now)
        self._request = client, chunks

    def cancel(self, layer: int) -> int:
        """Drop prefetches for layers up to this one that have not begun by now."""
        queued = self._queue
        if queued:
            self._queue = [entry for entry in queued if entry[0].layer > layer]
            if self.timeline.keeping:
                dropped = [op for op, _ in queued if op.layer <= layer]
                self.timeline.dropped(dropped, self._now)
        return len(queued) - len(self._queue)

    def upload(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> None:
        """Queue an upload; it begins once its first lane is idle and no needed operation is due."""
        self._uploads.append((op, client, self._now, after))

    def finish(self, op: Op) -> None:
        """Place the remaining chunks of the prefetch that has begun, or an upload, from now on."""
        while self._begun is not None and self._begun.op == op:
            self._next_chunk(self._begun, self._now)
        while any(queued[0] == op for queued in self._uploads):
            self._next_upload(self._now)

    def _start_queued(self) -> None:
        """Start transfers in the background whose lane became idle before now.

        Needed operations go first at now.
        """
        while self._queue or self._begun is not None or self._uploads:
            begun = self._begun
            if begun is not None:
                there = [cast(int, span.end_ns) for span in begun.after]
                start = max(self._free[_H2D], begun.since_ns, *there)
            elif self._uploads:
                op, _, since_ns, awaited = self._uploads[0]
                there = [cast(int, span.end_ns) for span in awaited]
                start = max(self._free[self._first_lane(op)], since_ns, *there)
            else:
                op, since_ns = self._queue[0]
                start = max(self._free[self._first_lane(op)], since_ns)
            if self._last is not None:
                start = max(start, cast(int, self._last.end_ns))
            if start >= self._now:
                return
            if begun is not None:
                self._next_chunk(begun, start)
                continue
            if self._uploads:
                self._next_upload(start)
                continue
            client, chunks = self._request
            del self._queue[0]
            after = client.claim(op, start)
            if after is None:
                continue
            if chunks == 1:
                self._carry(op, client, start, after)
            else:
                self._begin(op, client, chunks, start, after)

    def _next_upload(self, since_ns: int) -> None:
        op, client, _, after = self._uploads.popleft()
        self._carry(op, client, since_ns, after)

    def _first_lane(self, op: Op) -> Lane:
        """Return a transfer's first lane: the link if host memory has the record, else the disk."""
        return _H2D if self.host_memory is None or self.host_memory.holds(op) else _DISK

    def _begin(
        self, op: Op, client: TransferClient, chunks: int, since_ns: int, after: Sequence[Span]
    ) -> None:
        """Begin a prefetch in chunks: read its record at once; its chunks follow one by one."""
        began = None
        if self.host_memory is not None:
            began, brought = self._read(op, since_ns, after)
            self.host_memory.hold(op)
            after = (*after, *brought)
        self._begun = _Begun(op, client, chunks, since_ns, after, began)

    def _next_chunk(self, begun: _Begun, since_ns: int) -> None:
        op, chunks = begun.op, begun.chunks
        record, done = self._records[op.form][1], begun.done
        part = op_of(op.kind, op.layer, op.rows, op.experts, op.form, (done, chunks))
        moved = record * (done + 1) // chunks - record * done // chunks
        duration = self.costs.ns(part, _H2D)
        span = self._place(part, _H2D, since_ns, duration, begun.after, 0, moved)
        begun.first = begun.first or span
        begun.done += 1
        if begun.done == chunks:
            self._begun = None
            if self.host_memory is not None:
                self.host_memory.used(op, span)
            begun.client.under_way(op, span)
            begun.client.arrived(op, begun.first.start_ns, span.end_ns)  # type: ignore[arg-type]

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Note the record in host memory; nothing is copied, as the decoder has all weights."""
        if self.host_memory is not None:
            self.host_memory.place(op_of(OpKind.LOAD, layer, (), (expert,)))

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """Return the cost model's time of an operation on a lane, in ns."""
        return self.costs.ns(op, lane)

    def control_ns(self, op: Op, lane: Lane) -> int:
        """Return the cost model's time of the control thread for an operation, in ns."""
        return self.costs.control_ns(op, lane)

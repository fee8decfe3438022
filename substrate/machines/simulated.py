"""A machine with a virtual clock: integer nanoseconds, the same spans on every run.

Time is resolved when an operation is submitted: all that it waits for is known by then, so its
start and end are too.  Only queued prefetches are left open, because they may still be overtaken or
cancelled; they start when the clock passes the instant at which their lane had nothing else to do.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, cast

from moebench.substrate.errors import IntegrityError
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span, TransferClient, Work, op_of
from moebench.substrate.machines.timeline import Timeline

#: What the device waited for, by what it depended on; otherwise by that one's lane.
_CAUSES = {
    OpKind.LOAD: "load",
    OpKind.READ: "load",
    OpKind.STREAM: "load",
    OpKind.RETURN: "host",
}
_LANE_NAMES = {lane: lane.value for lane in Lane}
#: An enum's member is looked up by a Python function, and this comes with every transfer.
_H2D = Lane.H2D


@dataclass(slots=True)
class _Begun:
    """A prefetch that goes in chunks and has begun.

    Attributes:
        since_ns: when it was queued.
        after: what the next chunk waits for.
        done: chunks so far; the first started at ``start_ns``.
    """

    op: Op
    client: TransferClient
    chunks: int
    since_ns: int
    after: Sequence[Span]
    done: int = 0
    start_ns: int = 0


class SimulatedMachine:
    """The machine protocol on a cost model; see the module's docstring.

    Args:
        from_disk: experts cross the disk's lane before the link.
        overlap: False lets no operation start before the one submitted before it has ended.
        blocking_copies: the control thread waits for every needed load that it submits.
    """

    has_host_lane = True

    def __init__(
        self,
        costs: CostModel,
        timeline: Timeline,
        from_disk: bool = False,
        *,
        overlap: bool = True,
        blocking_copies: bool = False,
    ) -> None:
        self.costs = costs
        self.timeline = timeline
        self._overlap, self._blocking_copies = overlap, blocking_copies
        self._last: Span | None = None
        self.load_path = (Lane.DISK, Lane.H2D) if from_disk else (Lane.H2D,)
        self._from_disk, self._record_bytes = from_disk, costs.record_bytes
        self.lock = RLock()
        self._now = 0
        self._free = dict.fromkeys(Lane, 0)
        #: Prefetches that have not begun, and what they have in common: client, chunks, and when
        #: they were queued.
        self._queue: deque[Op] = deque()
        self._request: tuple[TransferClient, int, int]
        #: The prefetch that goes in chunks and has begun.
        self._begun: _Begun | None = None

    # ------------------------------------------------------------------ the control thread

    def now_ns(self) -> int:
        """The control thread's clock."""
        return self._now

    def begin(self) -> None:
        """Nothing passes between two batches of virtual time."""

    def elapse(self, decisions: int) -> None:
        """Let the control thread decide; lanes go on meanwhile."""
        self._now += decisions * self.costs.decision_ns
        self._start_queued()

    def wait(self, span: Span) -> None:
        """Let the clock run to the span's end, and a little further to read its result."""
        self._now = max(self._now, cast(int, span.end_ns)) + self.costs.sync_ns
        self._start_queued()

    # ------------------------------------------------------------------ needed operations

    def submit(
        self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Work | None = None, *args: Any
    ) -> Span:
        """Place an operation on its lane; ``work`` runs at once, its time is the profile's.

        Of an operation of many kernels the first runs as soon as it is launched, and the last
        cannot end before it is.
        """
        value = None if work is None else work(*args)
        first_launch, control, duration = self.costs.price(op, lane)
        now = self._now
        self._now = launched = now + control
        moved = 0
        if lane is _H2D:
            self._start_queued()
            moved = self.costs.moved_bytes(op)
        span = self._place(op, lane, now + first_launch, duration, after, launched, moved)
        span.value = value
        return span

    def load(self, op: Op, client: TransferClient, after: Sequence[Span] = ()) -> Span:
        """Bring a needed expert along the load path, ahead of every queued prefetch."""
        self._now += self.costs.copy_submit_ns
        self._start_queued()
        span = self._carry(op, client, self._now, after)
        if self._blocking_copies:
            self.wait(span)
        return span

    def _carry(self, op: Op, client: TransferClient, since_ns: int, after: Sequence[Span]) -> Span:
        """One transfer in one piece."""
        if self._from_disk:
            first, last = self._cross(op, since_ns, after, self._record_bytes)
        else:
            duration = self.costs.price(op, _H2D)[2]
            first = last = self._place(op, _H2D, since_ns, duration, after, 0, self._record_bytes)
        client.under_way(op, last)
        client.arrived(op, first.start_ns, last.end_ns)  # type: ignore[arg-type]
        return last

    def _cross(
        self, op: Op, since_ns: int, after: Sequence[Span], moved_bytes: int
    ) -> tuple[Span, Span]:
        """A record or a part of it on every lane of the load path, one after the other."""
        first: Span | None = None
        if self._from_disk:
            read = op_of(OpKind.READ, op.layer, op.rows, op.experts, op.share)
            duration = self.costs.ns(read, Lane.DISK)
            first = self._place(read, Lane.DISK, since_ns, duration, after, 0, moved_bytes)
            after = (first,)
        duration = self.costs.ns(op, _H2D)
        last = self._place(op, _H2D, since_ns, duration, after, 0, moved_bytes)
        return first or last, last

    def write_back(self, layer: int, expert: int, since_ns: int) -> Span:
        """A record on its way back to the host."""
        op = op_of(OpKind.WRITE_BACK, layer, (), (expert,))
        duration, moved = self.costs.ns(op, Lane.D2H), self._record_bytes
        return self._place(op, Lane.D2H, since_ns, duration, (), 0, moved)

    def backlog_ns(self, lane: Lane) -> int:
        """Until when the lane is taken, from now."""
        return max(0, self._free[lane] - self._now)

    def _place(
        self,
        op: Op,
        lane: Lane,
        since_ns: int,
        duration_ns: int,
        after: Sequence[Span],
        not_before_ns: int = 0,
        moved_bytes: int = 0,
    ) -> Span:
        """Put an operation behind its lane's last: submitted at ``since_ns``, ended not before."""
        if not self._overlap and self._last is not None:
            after = (*after, self._last)
        free, late = self._free[lane], 0
        if since_ns > free:
            start, cause = since_ns, "control"
        else:
            start, cause = free, ""
        for dependency in after:
            end = dependency.end_ns
            if end is None:
                raise IntegrityError(f"{op} waits for {dependency!r}, which has not started")
            if end > start:
                start = end
                cause = _CAUSES.get(dependency.op.kind) or _LANE_NAMES[dependency.lane]
                late = since_ns - free if since_ns > free else 0
        end = start + duration_ns
        if end < not_before_ns:
            end = not_before_ns
        self._free[lane] = end
        span = Span(op, lane, start, end, start - free - late, cause, late, moved_bytes)
        self._last = span
        self.timeline.add(span)
        return span

    # ------------------------------------------------------------------ prefetches

    def prefetch(self, ops: Iterable[Op], client: TransferClient, chunks: int = 1) -> None:
        """Queue prefetches in place of those that have not begun by now."""
        self._queue = deque(ops)
        self._request = client, chunks, self._now

    def cancel(self, layer: int) -> int:
        """Drop prefetches that have not begun by now."""
        queued = len(self._queue)
        if queued:
            self._queue = deque([op for op in self._queue if op.layer > layer])
        return queued - len(self._queue)

    def finish(self, op: Op) -> None:
        """Carry what is left of the prefetch that has begun, from now on."""
        while self._begun is not None and self._begun.op == op:
            self._next_chunk(self._begun, self._now)

    def _start_queued(self) -> None:
        """Start prefetches whose turn came before now; at now itself, needed work goes first."""
        while self._queue or self._begun is not None:
            begun, (client, chunks, since_ns) = self._begun, self._request
            if begun is not None:
                since_ns = begun.since_ns
            start = max(self._free[self.load_path[0]], since_ns)
            if not self._overlap and self._last is not None:  # every lane must be idle
                start = max(start, cast(int, self._last.end_ns))
            if start >= self._now:
                return
            if begun is not None:
                self._next_chunk(begun, since_ns)
                continue
            op = self._queue.popleft()
            after = client.claim(op, start)
            if after is None:
                continue
            if chunks == 1:
                self._carry(op, client, since_ns, after)
            else:
                self._begun = _Begun(op, client, chunks, since_ns, after)

    def _next_chunk(self, begun: _Begun, since_ns: int) -> None:
        op, chunks = begun.op, begun.chunks
        record, done = self._record_bytes, begun.done
        part = op_of(op.kind, op.layer, op.rows, op.experts, 1 / chunks)
        moved = record * (done + 1) // chunks - record * done // chunks
        first, last = self._cross(part, since_ns, begun.after, moved)
        begun.start_ns = begun.start_ns if done else cast(int, first.start_ns)
        begun.done += 1
        if begun.done == chunks:
            self._begun = None
            begun.client.under_way(op, last)
            begun.client.arrived(op, begun.start_ns, cast(int, last.end_ns))

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Nothing moves: the mathematics reads the weights where they are."""

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """The cost model's own figure."""
        return self.costs.ns(op, lane)

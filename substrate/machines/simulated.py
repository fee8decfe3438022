"""A machine with a virtual clock: integer nanoseconds, the same spans on every run.

Time is resolved when an operation is submitted: all that it waits for is known by then, so its
start and end are too.  Only queued prefetches are left open, because they may still be overtaken or
cancelled; they start when the clock passes the instant at which their lane had nothing else to do.
"""

from collections import deque
from collections.abc import Sequence
from threading import RLock
from typing import Any, cast

from moebench.substrate.errors import IntegrityError
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span, Transfer, Work, op_of
from moebench.substrate.machines.timeline import Timeline

#: What the device waited for, by what it depended on; otherwise by that one's lane.
_CAUSES = {
    OpKind.LOAD: "load",
    OpKind.READ: "load",
    OpKind.RETURN: "host",
}
_LANE_NAMES = {lane: lane.value for lane in Lane}


class SimulatedMachine:
    """The machine protocol on a cost model; see the module's docstring."""

    has_host_lane = True

    def __init__(self, costs: CostModel, timeline: Timeline, from_disk: bool = False) -> None:
        self.costs = costs
        self.timeline = timeline
        self.load_path = (Lane.DISK, Lane.H2D) if from_disk else (Lane.H2D,)
        self.lock = RLock()
        self._now = 0
        self._free = dict.fromkeys(Lane, 0)
        #: Prefetches that have not started: operation, transfer, and when it was queued.
        self._queue: deque[tuple[Op, Transfer, int]] = deque()

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
        span = self._place(op, lane, now + first_launch, duration, after, launched)
        span.value = value
        return span

    def load(self, op: Op, transfer: Transfer, after: Sequence[Span] = ()) -> Span:
        """Bring a needed expert along the load path, ahead of every queued prefetch."""
        self._now += self.costs.copy_submit_ns
        self._start_queued()
        return self._carry(op, transfer, self._now, after)

    def _carry(self, op: Op, transfer: Transfer, since_ns: int, after: Sequence[Span]) -> Span:
        """Place one transfer on every lane of the load path, one after the other."""
        *hops, last_lane = self.load_path
        first: Span | None = None
        for lane in hops:
            read = op_of(OpKind.READ, op.layer, op.rows, op.experts)
            span = self._place(read, lane, since_ns, self.costs.ns(read, lane), after)
            first, after = first or span, (span,)
        last = self._place(op, last_lane, since_ns, self.costs.ns(op, last_lane), after)
        transfer.under_way(last)
        transfer.arrived((first or last).start_ns, last.end_ns)  # type: ignore[arg-type]
        return last

    def _place(
        self,
        op: Op,
        lane: Lane,
        since_ns: int,
        duration_ns: int,
        after: Sequence[Span],
        not_before_ns: int = 0,
    ) -> Span:
        """Put an operation behind its lane's last: submitted at ``since_ns``, ended not before."""
        free = self._free[lane]
        submitted_late = since_ns > free
        start, cause, late = (since_ns, "control", 0) if submitted_late else (free, "", 0)
        for dependency in after:
            end = dependency.end_ns
            if end is None:
                raise IntegrityError(f"{op} waits for {dependency!r}, which has not started")
            if end > start:
                start = end
                cause = _CAUSES.get(dependency.op.kind) or _LANE_NAMES[dependency.lane]
                late = since_ns - free if submitted_late else 0
        end = start + duration_ns
        if end < not_before_ns:
            end = not_before_ns
        self._free[lane] = end
        span = Span(op, lane, start, end, start - free - late, cause, late)
        self.timeline.add(span)
        return span

    # ------------------------------------------------------------------ prefetches

    def enqueue(self, op: Op, transfer: Transfer) -> None:
        """Queue a prefetch behind everything needed."""
        self._queue.append((op, transfer, self._now))

    def cancel(self, layer: int | None = None) -> int:
        """Drop prefetches that have not started by now."""
        queued = len(self._queue)
        if queued:
            self._queue = deque(
                [q for q in self._queue if layer is not None and q[0].layer > layer]
            )
        return queued - len(self._queue)

    def _start_queued(self) -> None:
        """Start prefetches whose turn came before now; at now itself, needed work goes first."""
        while self._queue:
            op, transfer, since_ns = self._queue[0]
            start = max(self._free[self.load_path[0]], since_ns)
            if start >= self._now:
                return
            self._queue.popleft()
            if transfer.begin(start):
                self._carry(op, transfer, since_ns, ())

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Nothing moves: the mathematics reads the weights where they are."""

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """The cost model's own figure."""
        return self.costs.ns(op, lane)

"""A machine with a virtual clock: integer nanoseconds, the same spans on every run.

Time is resolved when an operation is submitted: all that it waits for is known by then, so its
start and end are too.  Only queued prefetches are left open, because they may still be overtaken or
cancelled; they start when the clock passes the instant at which their lane had nothing else to do.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext

from substrate.costs import CostModel
from substrate.machine import Lane, Op, OpKind, Span, Transfer, Work
from substrate.timeline import Timeline

#: What the device waited for, by what it depended on.
_CAUSES = {
    OpKind.LOAD: "load",
    OpKind.READ: "load",
    OpKind.RETURN: "host",
}


class _Queued:
    """A prefetch that has not started."""

    __slots__ = ("op", "since_ns", "span", "transfer")

    def __init__(self, op: Op, transfer: Transfer, span: Span, since_ns: int) -> None:
        self.op, self.transfer, self.span, self.since_ns = op, transfer, span, since_ns


class SimulatedMachine:
    """The machine protocol on a cost model; see the module's docstring."""

    has_host_lane = True

    def __init__(self, costs: CostModel, timeline: Timeline, from_disk: bool = False) -> None:
        self.costs = costs
        self.timeline = timeline
        self.load_path = (Lane.DISK, Lane.H2D) if from_disk else (Lane.H2D,)
        self.lock = nullcontext()
        self._now = 0
        self._free = dict.fromkeys(Lane, 0)
        self._queue: deque[_Queued] = deque()

    # ------------------------------------------------------------------ the control thread

    def now_ns(self) -> int:
        """The control thread's clock."""
        return self._now

    def elapse(self, decisions: int) -> None:
        """Let the control thread decide; lanes go on meanwhile."""
        self._advance(self._now + decisions * self.costs.decision_ns)

    def wait(self, span: Span) -> None:
        """Let the clock run to the span's end, and a little further to read its result."""
        if span.end_ns is None:
            raise RuntimeError(f"{span!r} is a queued prefetch: nothing may wait for it")
        self._advance(max(self._now, span.end_ns) + self.costs.sync_ns)

    def _advance(self, to_ns: int) -> None:
        self._now = to_ns
        self._start_queued()

    # ------------------------------------------------------------------ needed operations

    def submit(self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Work | None = None) -> Span:
        """Place an operation on its lane; ``work`` runs at once, its time is the profile's."""
        span = Span(op, lane)
        if work is not None:
            span.value = work()
        self._now += self.costs.control_ns(op, lane)
        self._place(span, self._now, after)
        return span

    def load(self, op: Op, transfer: Transfer, after: Sequence[Span] = ()) -> Span:
        """Bring a needed expert along the load path, ahead of every queued prefetch."""
        self._now += self.costs.control_ns(op, Lane.H2D)
        self._start_queued()
        return self._carry(op, transfer, self._now, after, Span(op, self.load_path[-1]))

    def _carry(
        self, op: Op, transfer: Transfer, since_ns: int, after: Sequence[Span], last: Span
    ) -> Span:
        """Place one transfer on every lane of the load path, one after the other."""
        first: Span | None = None
        for lane in self.load_path[:-1]:
            hop = Span(op._replace(kind=OpKind.READ), lane)
            self._place(hop, since_ns, after)
            first, after = first or hop, (hop,)
        self._place(last, since_ns, after)
        start = (first or last).start_ns
        transfer.arrive(start or 0, last.end_ns or 0)
        return last

    def _place(self, span: Span, since_ns: int, after: Sequence[Span]) -> None:
        free = self._free[span.lane]
        start, cause = (since_ns, "control") if since_ns > free else (free, "")
        for dependency in after:
            end = dependency.end_ns
            if end is None:
                raise RuntimeError(f"{span!r} depends on a queued prefetch")
            if end > start:
                start, cause = end, _CAUSES.get(dependency.op.kind, dependency.lane.value)
        span.start_ns = start
        span.end_ns = self._free[span.lane] = start + self.costs.ns(span.op, span.lane)
        span.stall_ns, span.cause = start - free, cause
        self.timeline.add(span)

    # ------------------------------------------------------------------ prefetches

    def enqueue(self, op: Op, transfer: Transfer) -> Span:
        """Queue a prefetch behind everything needed."""
        self._now += self.costs.control_ns(op, Lane.H2D)
        span = Span(op, self.load_path[-1])
        self._queue.append(_Queued(op, transfer, span, self._now))
        return span

    def cancel(self, layer: int | None = None) -> int:
        """Drop prefetches that have not started by now."""
        kept = [q for q in self._queue if layer is not None and q.op.layer > layer]
        dropped = len(self._queue) - len(kept)
        self._queue = deque(kept)
        return dropped

    def _start_queued(self) -> None:
        """Start every prefetch whose turn came before now; at now itself, needed work goes first."""
        while self._queue:
            head = self._queue[0]
            start = max(self._free[self.load_path[0]], head.since_ns)
            if start >= self._now:
                return
            self._queue.popleft()
            if head.transfer.begin(start):
                self._carry(head.op, head.transfer, head.since_ns, (), head.span)

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        """Nothing moves: the mathematics reads the weights where they are."""

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """The cost model's own figure."""
        return self.costs.ns(op, lane)

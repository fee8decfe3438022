"""The timeline: sums of busy time, stalls by cause and bytes over spans, and kept spans."""

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span
from moebench.substrate.terms import Phase

#: What the device waited for, by what it depended on; otherwise by that one's lane.
_CAUSES = {
    OpKind.LOAD: "load", OpKind.READ: "load", OpKind.STREAM: "load", OpKind.PAGE: "load",
    OpKind.RETURN: "host",
}  # fmt: skip
_LANE_NAMES = {lane: lane.value for lane in Lane}

#: How many of the last durations of each kind are kept.
COSTS_KEPT = 64


def cause_of(span: Span) -> str:
    """Return the cause of a stall of a lane that waits for the span.

    Of a state that goes up to the device it is what that waited for, or else the link.
    """
    if span.op.kind is OpKind.RETURN and span.lane is Lane.H2D:
        return span.cause or "load"
    return _CAUSES.get(span.op.kind) or _LANE_NAMES[span.lane]


def _recent() -> "deque[float]":
    return deque(maxlen=COSTS_KEPT)


@dataclass(slots=True)
class Costs:
    """Times of the last operations on this machine, in ns, oldest first, in any form.

    Each list starts with one estimate, for the first decision.

    Attributes:
        load_ns: a needed expert's transfer along the whole load path.
        host_ns, host_ns_per_row: an expert on the host, including the read of its record from the
            disk; and that time over its rows.
        host_first: whether that expert was the first on the host in its layer.
        device_ns: an expert on the device; the mean of several in one operation.
    """

    load_ns: "deque[float]" = field(default_factory=_recent)
    host_ns: "deque[float]" = field(default_factory=_recent)
    host_ns_per_row: "deque[float]" = field(default_factory=_recent)
    host_first: "deque[bool]" = field(default_factory=lambda: deque(maxlen=COSTS_KEPT))
    device_ns: "deque[float]" = field(default_factory=_recent)

    def estimate(self, machine: Machine) -> None:
        """Add the machine's estimates, before any operation has run."""
        one = Op(OpKind.EXPERT, 0, rows=(1,), experts=(0,))
        *before, link = machine.load_path
        read_ns = sum(machine.estimate_ns(Op(OpKind.READ, 0), lane) for lane in before)
        self.load_ns.append(read_ns + machine.estimate_ns(Op(OpKind.LOAD, 0), link))
        self.device_ns.append(machine.estimate_ns(one, Lane.DEVICE))
        if machine.has_host_lane:
            self.on_host(read_ns + machine.estimate_ns(one, Lane.HOST), 1)

    def on_host(self, took_ns: float, rows: int, first: bool = False) -> None:
        """Add the time of an expert on the host."""
        self.host_ns.append(took_ns)
        self.host_ns_per_row.append(took_ns / rows)
        self.host_first.append(first)


#: Events at an instant: a token is done; an expert is evicted; a prefetch that has not begun is
#: dropped, because its layer's gate is known or another request replaces it.
NoteKind = Literal["token", "evict", "cancel"]

#: The lane on which each event is drawn.
_NOTED_ON: Mapping[NoteKind, Lane] = {
    "token": Lane.DEVICE, "evict": Lane.DEVICE, "cancel": Lane.H2D,
}  # fmt: skip


class Note(NamedTuple):
    """An event at an instant; for a token, ``expert`` is the token's number."""

    kind: NoteKind
    at_ns: int
    layer: int
    expert: int | None


class Computed(NamedTuple):
    """Operations of equal sizes on a lane: one of them, and a list that holds their number."""

    op: Op
    times: list[int]


class Totals:
    """Sums over one phase: busy time and bytes by lane, the device's idle time by cause.

    Attributes:
        computed: what the device and the host computed, by lane and by `Op.sizes`.
    """

    def __init__(self) -> None:
        self.busy_ns: dict[Lane, int] = dict.fromkeys(Lane, 0)
        self.stall_ns: dict[str, int] = defaultdict(int)
        self.moved_bytes: dict[Lane, int] = dict.fromkeys(Lane, 0)
        self.computed: dict[Lane, dict[Hashable, Computed]] = {Lane.DEVICE: {}, Lane.HOST: {}}


class Timeline:
    """Adds up every span of a run, and keeps the spans of an excerpt or of the whole run.

    Args:
        keep_all: keep every span (for `--timeline`); otherwise only those of a `window`.
    """

    def __init__(self, keep_all: bool = False) -> None:
        self.costs = Costs()
        self._notes: list[Note] = []
        self._by_phase: dict[Phase, Totals] = {"prefill": Totals(), "decode": Totals()}
        self._totals = self._by_phase["prefill"]
        self._spans: list[Span] = []
        self._window: tuple[int, int] | None = None
        self._window_ends: list[int] = []
        self._keep_all = keep_all
        #: Whether current spans and events are kept.
        self.keeping = keep_all
        self._uncounted: list[Span] = []
        #: Spans that were counted since the last token, and those that end after it, each with the
        #: sums that it is part of.
        self._since: list[tuple[list[Span], Totals]] = []
        self._outlasting: list[tuple[Span, Totals]] = []
        #: When the run ended; None while it goes on.
        self._end_ns: int | None = None
        #: Adds a span whose end is known.  A token has hundreds, which are counted together later.
        self.add: Callable[[Span], None] = self._uncounted.append

    def _count(self) -> None:
        """Add up the spans since the last count, which are of one phase and all kept or not."""
        spans, totals = self._uncounted.copy(), self._totals
        del self._uncounted[: len(spans)]  # another thread may have added one meanwhile
        busy_ns, stall_ns, moved_bytes = totals.busy_ns, totals.stall_ns, totals.moved_bytes
        device, on_device_ns, host = Lane.DEVICE, 0, Lane.HOST
        computed = totals.computed
        for span in spans:
            took_ns = span.end_ns - span.start_ns  # type: ignore[operator]
            if span.lane is device:
                on_device_ns += took_ns
                if span.stall_ns:
                    stall_ns[span.cause] += span.stall_ns
                if span.late_ns:
                    stall_ns["control"] += span.late_ns
            else:
                busy_ns[span.lane] += took_ns
                moved_bytes[span.lane] += span.moved_bytes
                if span.lane is not host:
                    continue
            ops, op = computed[span.lane], span.op
            alike = ops.get(op.sizes)
            if alike is None:
                ops[op.sizes] = Computed(op, [1])
            else:
                alike.times[0] += 1
        busy_ns[device] += on_device_ns
        self._since.append((spans, totals))
        if self._end_ns is not None:
            self._cut(self._end_ns)
        if self.keeping:
            self._spans += spans

    @property
    def totals(self) -> Mapping[Phase, Totals]:
        """The sums over each phase."""
        self._count()
        return self._by_phase

    @property
    def spans(self) -> list[Span]:
        """The kept spans, in the order in which they were added."""
        self._count()
        return self._spans

    def begin(self, phase: Phase) -> None:
        """Count the following spans in a phase."""
        self._count()
        self._totals = self._by_phase[phase]

    def finish(self, at_ns: int) -> None:
        """End the run: what lanes do later, for a request that does not come, does not count.

        Of a transfer that is under way, the time until then counts, and no bytes do.
        """
        self._count()
        self._end_ns = at_ns
        self._cut(at_ns)

    def _cut(self, end_ns: int) -> None:
        """Subtract what counted spans do after the end of the run."""
        self._keep_outlasting(end_ns)
        for span, totals in self._outlasting:
            start_ns, until_ns = cast(int, span.start_ns), cast(int, span.end_ns)
            totals.busy_ns[span.lane] -= until_ns - max(end_ns, start_ns)
            totals.moved_bytes[span.lane] -= span.moved_bytes
        self._outlasting = []

    def replayed(
        self, sums: Mapping[Phase, Totals], outlasting: Iterable[tuple[Phase, Span]]
    ) -> None:
        """Add the sums of spans that were counted elsewhere.

        Args:
            outlasting: those of the spans that end after the last token so far.
        """
        for phase, more in sums.items():
            totals = self._by_phase[phase]
            for lane in Lane:
                totals.busy_ns[lane] += more.busy_ns[lane]
                totals.moved_bytes[lane] += more.moved_bytes[lane]
            for cause, ns in more.stall_ns.items():
                totals.stall_ns[cause] += ns
            for lane, ops in more.computed.items():
                for sizes, (op, times) in ops.items():
                    alike = totals.computed[lane].setdefault(sizes, Computed(op, [0]))
                    alike.times[0] += times[0]
        self._outlasting += [(span, self._by_phase[phase]) for phase, span in outlasting]

    def keep(self, spans: Iterable[Span], notes: Iterable[Note]) -> None:
        """Keep spans and events of the current token that were counted elsewhere."""
        self._spans += spans
        self._notes += notes

    @property
    def kept_tokens(self) -> int:
        """Number of first tokens of the current batch of which some spans and events are kept."""
        if self._keep_all:
            return sys.maxsize
        return 0 if self._window is None else self._window[1]

    def pictured_since(self, ends_ns: Sequence[int]) -> int:
        """Return an instant before which no span of a batch is in the `picture` or in `records`.

        Args:
            ends_ns: the ends of all tokens of the batch.
        """
        if self._keep_all or self._window is None:
            return -1
        last = min(self._window[1], len(ends_ns)) - 1
        return ends_ns[last - 1] if last > 0 else -1

    def _keep_outlasting(self, at_ns: int) -> None:
        """Keep the counted spans that end after an instant."""
        found = [entry for entry in self._outlasting if entry[0].end_ns > at_ns]  # type: ignore
        for spans, totals in self._since:
            found += [(span, totals) for span in spans if span.end_ns > at_ns]  # type: ignore
        self._outlasting, self._since = found, []

    def busy_ns(self, lane: Lane) -> int:
        """Return the busy time of a lane over both phases, in ns."""
        return sum(t.busy_ns[lane] for t in self.totals.values())

    def launch_bound_ns(self, duration_ns: Callable[[Op, Lane], int]) -> int:
        """Return the device's busy time in which its next kernel was not launched yet, in ns.

        Args:
            duration_ns: the time that bytes and FLOPs of an operation take, `CostModel.ns`.
        """
        device = Lane.DEVICE
        worked = sum(
            times[0] * duration_ns(op, device)
            for totals in self.totals.values()
            for op, times in totals.computed[device].values()
        )
        return self.busy_ns(device) - worked

    def stall_ns(self) -> dict[str, int]:
        """Return the idle time of the device by cause over both phases, in ns."""
        causes = sorted({cause for t in self.totals.values() for cause in t.stall_ns})
        return {c: sum(t.stall_ns.get(c, 0) for t in self.totals.values()) for c in causes}

    def bytes_moved(self, lane: Lane) -> int:
        """Return the bytes of weights moved on a lane over both phases."""
        return sum(t.moved_bytes[lane] for t in self.totals.values())

    def window(self, tokens: tuple[int, int] | None) -> None:
        """Keep the spans of these tokens of the next batch (first, last + 1); None keeps none."""
        self._count()
        self._window = tokens
        self.keeping = self._keep_all or (tokens is not None and tokens[0] <= 0 < tokens[1])

    def token(self, index: int, at_ns: int) -> None:
        """Note the end of a token; the following spans are of the next one."""
        self._count()
        self._keep_outlasting(at_ns)
        self.note("token", at_ns, expert=index + 1)
        if self._window is not None:
            first, beyond = self._window
            if first - 1 <= index < beyond:
                self._window_ends.append(at_ns)
            self.keeping = self._keep_all or first <= index + 1 < beyond

    # ------------------------------------------------------------------ excerpts

    def note(self, kind: NoteKind, at_ns: int, layer: int = -1, expert: int | None = None) -> None:
        """Keep an event, if spans are kept now (`keeping`)."""
        if self.keeping:
            self._notes.append(Note(kind, at_ns, layer, expert))

    def dropped(self, ops: Iterable[Op], at_ns: int) -> None:
        """Keep the event that these prefetches were dropped."""
        if self.keeping:
            for op in ops:
                self.note("cancel", at_ns, op.layer, op.experts[0])

    def picture(self) -> list[dict[str, Any]]:
        """Return the spans and events of the window's last token, as `records` does.

        Times count from that token's start, where earlier spans are cut.  Empty if no token of the
        window was reached, or none precedes it.
        """
        if len(self._window_ends) < 2:
            return []
        return self._records(*self._window_ends[-2:])

    def records(self) -> list[dict[str, Any]]:
        """Return all kept spans, then all events, as dicts, in microseconds from the first.

        An event has ``instant``, and its end is its start.
        """
        times = [*(s.start_ns or 0 for s in self.spans), *(note.at_ns for note in self._notes)]
        return self._records(min(times) - 1, max(times) + 1, min(times)) if times else []

    def _records(self, after: int, until: int, origin: int | None = None) -> list[dict[str, Any]]:
        """Return the spans and events between two instants as dicts."""
        zero = after if origin is None else origin

        def record(
            lane: Lane, kind: str, layer: int, experts: Sequence[int], *ns: int
        ) -> dict[str, Any]:
            start, end = (round((at - zero) / 1e3, 3) for at in ns)
            return {"lane": lane.value, "kind": str(kind), "layer": layer, "experts": list(experts),
                    "start_us": start, "end_us": end}  # fmt: skip

        found = []
        for span in self.spans:
            op, start, end = span.op, span.start_ns, span.end_ns
            if start is None or end is None or start >= until or end <= after:
                continue
            row = record(span.lane, op.kind, op.layer, op.experts, max(start, after), end)
            row["rows"] = list(op.rows)
            if span.stall_ns:
                row |= {"stall_us": span.stall_ns / 1e3, "waited_for": span.cause}
            found.append(row)
        for kind, at_ns, layer, expert in self._notes:
            if after < at_ns <= until:
                experts = () if expert is None else (expert,)
                found.append(record(_NOTED_ON[kind], kind, layer, experts, at_ns, at_ns))
                found[-1]["instant"] = True
        return found

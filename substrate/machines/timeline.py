"""Spans become figures: busy time, stalls by cause, bytes, and a picture in time."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span
from moebench.substrate.terms import Phase

#: What the device waited for, by what it depended on; otherwise by that one's lane.
_CAUSES = {OpKind.LOAD: "load", OpKind.READ: "load", OpKind.STREAM: "load", OpKind.RETURN: "host"}
_LANE_NAMES = {lane: lane.value for lane in Lane}

#: How many measured durations of each kind are kept.
COSTS_KEPT = 64


def cause_of(span: Span) -> str:
    """What a lane stands idle for that waits for the span."""
    return _CAUSES.get(span.op.kind) or _LANE_NAMES[span.lane]


def _recent() -> "deque[float]":
    return deque(maxlen=COSTS_KEPT)


@dataclass(slots=True)
class Costs:
    """What the last operations took on this machine, in ns, oldest first, whatever their form.

    Each list starts with one estimate, so that the first decision has something to go by.

    Attributes:
        load_ns: a needed expert's transfer, all of its load path.
        host_ns, host_ns_per_row: an expert on the host, from the read of its record on if it came
            from the disk, and that over its rows.
        host_first: whether it was the first on the host of its layer.
        device_ns: an expert on the device; of several in one operation, its share.
    """

    load_ns: "deque[float]" = field(default_factory=_recent)
    host_ns: "deque[float]" = field(default_factory=_recent)
    host_ns_per_row: "deque[float]" = field(default_factory=_recent)
    host_first: "deque[bool]" = field(default_factory=lambda: deque(maxlen=COSTS_KEPT))
    device_ns: "deque[float]" = field(default_factory=_recent)

    def estimate(self, machine: Machine) -> None:
        """Begin with what the machine says of operations that it has not run."""
        one = Op(OpKind.EXPERT, 0, rows=(1,), experts=(0,))
        *before, link = machine.load_path
        read_ns = sum(machine.estimate_ns(Op(OpKind.READ, 0), lane) for lane in before)
        self.load_ns.append(read_ns + machine.estimate_ns(Op(OpKind.LOAD, 0), link))
        self.device_ns.append(machine.estimate_ns(one, Lane.DEVICE))
        if machine.has_host_lane:
            self.on_host(read_ns + machine.estimate_ns(one, Lane.HOST), 1)

    def on_host(self, took_ns: float, rows: int, first: bool = False) -> None:
        """Keep what an expert took on the host."""
        self.host_ns.append(took_ns)
        self.host_ns_per_row.append(took_ns / rows)
        self.host_first.append(first)


#: What happens at an instant: a token is done; an expert loses its slot; a prefetch that has not
#: begun is dropped, because its layer's gate is known or another request takes its place.
NoteKind = Literal["token", "evict", "cancel"]

#: Where each is drawn.
_NOTED_ON: Mapping[NoteKind, Lane] = {
    "token": Lane.DEVICE, "evict": Lane.DEVICE, "cancel": Lane.H2D,
}  # fmt: skip


class Note(NamedTuple):
    """Something that happened at an instant; a token has its number in place of an expert."""

    kind: NoteKind
    at_ns: int
    layer: int
    expert: int | None


class Totals:
    """Sums of one phase: busy time and transfers by lane, the device's idle time by cause."""

    def __init__(self) -> None:
        self.busy_ns: dict[Lane, int] = dict.fromkeys(Lane, 0)
        self.stall_ns: dict[str, int] = defaultdict(int)
        self.moved_bytes: dict[Lane, int] = dict.fromkeys(Lane, 0)


class Timeline:
    """Adds up every span of a run; keeps the spans themselves only where a picture needs them.

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
        #: Whether what happens now is kept.
        self.keeping = keep_all
        self._uncounted: list[Span] = []
        #: Takes a span whose end is known.  Hundreds come with a token: they are counted together.
        self.add: Callable[[Span], None] = self._uncounted.append

    def _count(self) -> None:
        """Add up what has come since the last count: all of one phase, and kept or not."""
        spans, totals = self._uncounted.copy(), self._totals
        del self._uncounted[: len(spans)]  # another thread may have added one meanwhile
        busy_ns, stall_ns, moved_bytes = totals.busy_ns, totals.stall_ns, totals.moved_bytes
        device, on_device_ns = Lane.DEVICE, 0
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
        busy_ns[device] += on_device_ns
        if self.keeping:
            self._spans += spans

    @property
    def totals(self) -> Mapping[Phase, Totals]:
        """The sums of each phase."""
        self._count()
        return self._by_phase

    @property
    def spans(self) -> list[Span]:
        """Those that were kept, in the order in which they were added."""
        self._count()
        return self._spans

    def begin(self, phase: Phase) -> None:
        """Count what follows under a phase."""
        self._count()
        self._totals = self._by_phase[phase]

    def busy_ns(self, lane: Lane) -> int:
        """Time that a lane worked, over both phases."""
        return sum(t.busy_ns[lane] for t in self.totals.values())

    def stall_ns(self) -> dict[str, int]:
        """Time that the device stood idle by cause, over both phases."""
        causes = sorted({cause for t in self.totals.values() for cause in t.stall_ns})
        return {c: sum(t.stall_ns.get(c, 0) for t in self.totals.values()) for c in causes}

    def bytes_moved(self, lane: Lane) -> int:
        """Bytes of weights that crossed a lane, over both phases."""
        return sum(t.moved_bytes[lane] for t in self.totals.values())

    def window(self, tokens: tuple[int, int] | None) -> None:
        """Keep the spans of these tokens of the next batch (first, last + 1); None keeps none."""
        self._count()
        self._window = tokens
        self.keeping = self._keep_all or (tokens is not None and tokens[0] <= 0 < tokens[1])

    def token(self, index: int, at_ns: int) -> None:
        """A token of the batch is done; what follows belongs to the next one."""
        self._count()
        self.note("token", at_ns, expert=index + 1)
        if self._window is not None:
            first, beyond = self._window
            if first - 1 <= index < beyond:
                self._window_ends.append(at_ns)
            self.keeping = self._keep_all or first <= index + 1 < beyond

    # ------------------------------------------------------------------ pictures

    def note(self, kind: NoteKind, at_ns: int, layer: int = -1, expert: int | None = None) -> None:
        """Keep that something happened, where spans are kept; see `keeping`."""
        if self.keeping:
            self._notes.append(Note(kind, at_ns, layer, expert))

    def dropped(self, ops: Iterable[Op], at_ns: int) -> None:
        """Note that these prefetches will not begin."""
        if self.keeping:
            for op in ops:
                self.note("cancel", at_ns, op.layer, op.experts[0])

    def picture(self) -> list[dict[str, Any]]:
        """What ran and what happened during the window's last token; see `records`.

        Times are from that token's start; what began before it is cut there.
        Empty where no token of the window was reached, or it has no token before it.
        """
        if len(self._window_ends) < 2:
            return []
        return self._records(*self._window_ends[-2:])

    def records(self) -> list[dict[str, Any]]:
        """All kept spans, then all notes, as plain records, in microseconds from the first of them.

        A note has ``instant``, and its end is its start.
        """
        times = [*(s.start_ns or 0 for s in self.spans), *(note.at_ns for note in self._notes)]
        return self._records(min(times) - 1, max(times) + 1, min(times)) if times else []

    def _records(self, after: int, until: int, origin: int | None = None) -> list[dict[str, Any]]:
        """Spans that ran between two instants, and what happened after the first of them."""
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

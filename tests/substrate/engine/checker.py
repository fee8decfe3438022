"""A checker of timelines that shares nothing with the engine.

It reads only recorded spans and what happened to slots: what the substrate believes does not count.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from moebench.substrate.machines.protocol import Lane, OpKind, Span
from moebench.substrate.memory.capacity import Home
from tests.substrate.engine.fakes import RECORD_BYTES
from tests.substrate.engine.watch import Claim, LetGo

#: A transfer that never became complete.
NEVER = 1 << 62


@dataclass
class _Stay:
    """One expert in a slot, from its transfer's start to the last operation that reads it."""

    key: int
    slot: int
    start_ns: int
    ready_ns: int
    last_read_ns: int


def check_timeline(
    spans: Sequence[Span],
    events: Sequence[Claim | LetGo],
    *,
    num_experts: int,
    capacity: int,
    record_bytes: int = RECORD_BYTES,
    common_bytes: int = 0,
    budget_bytes: int | None = None,
    writes_back: bool = False,
) -> None:
    """Assert what must always hold, from spans in the order of submission and events alone."""
    check_lanes(spans)
    stays = _Slots(spans, num_experts, writes_back).stays(events)
    _check_slots(stays, capacity)
    _check_occupancy(stays, capacity, record_bytes, common_bytes, budget_bytes)


def check_lanes(spans: Sequence[Span]) -> None:
    """A lane does one thing at a time, and nothing ends before it starts."""
    lanes: dict[Lane, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        assert span.start_ns is not None
        assert span.end_ns is not None
        assert 0 <= span.start_ns <= span.end_ns
        lanes[span.lane].append((span.start_ns, span.end_ns))
    for lane, times in lanes.items():
        times.sort()
        for (_, end), (start, _) in pairwise(times):
            assert start >= end, f"{lane} does two things at {start}"


# ----------------------------------------------------------------------------- slots


@dataclass
class _Slots:
    """Pairs claims with transfers and write-backs, and device computations with what they read."""

    spans: Sequence[Span]
    num_experts: int
    writes_back: bool
    current: dict[int, _Stay] = field(default_factory=dict)
    all: list[_Stay] = field(default_factory=list)

    def stays(self, events: Sequence[Claim | LetGo]) -> list[_Stay]:
        self.unclaimed = self._of_kind(OpKind.LOAD)
        self.unread = self._of_kind(OpKind.WRITE_BACK)
        pending = list(events)
        for index, span in enumerate(self.spans):
            while pending and pending[0].index <= index:
                self._happens(pending.pop(0))
            if span.op.kind is OpKind.EXPERT and span.lane is Lane.DEVICE:
                self._reads(span)
        for event in pending:
            self._happens(event)
        assert not any(self.unclaimed.values()), "a transfer had no slot to go to"
        assert not any(self.unread.values()), "nobody had left who was written back"
        return self.all

    def _of_kind(self, kind: OpKind) -> dict[int, list[int]]:
        """By key, the spans of one kind in order."""
        found: dict[int, list[int]] = defaultdict(list)
        for index, span in enumerate(self.spans):
            if span.op.kind is kind:
                found[self._keys(span)[0]].append(index)
        return found

    def _keys(self, span: Span) -> list[int]:
        return [span.op.layer * self.num_experts + e for e in span.op.experts]

    def _reads(self, span: Span) -> None:
        for key in self._keys(span):
            assert key in self.current, f"{span!r} reads an expert that has no slot"
            stay = self.current[key]
            assert span.start_ns >= stay.ready_ns, f"{span!r} reads before {stay.ready_ns}"
            stay.last_read_ns = max(stay.last_read_ns, span.end_ns)

    def _happens(self, event: Claim | LetGo) -> None:
        if isinstance(event, LetGo):
            self.current.pop(event.key)
            return
        if event.victim is not None:
            victim = self.current.pop(event.victim)
            assert victim.slot == event.slot, "a victim leaves its own slot"
            if self.writes_back:
                self._is_written_back(victim, event.index)
        assert event.key not in self.current, "an expert has two slots"
        assert event.slot not in {s.slot for s in self.current.values()}, "a slot has two owners"
        start, ready = (0, 0) if event.placed else self._transfer(event)
        self.current[event.key] = _Stay(event.key, event.slot, start, ready, ready)
        self.all.append(self.current[event.key])

    def _is_written_back(self, victim: _Stay, index: int) -> None:
        """Its record is read once it is complete, and its slot waits for that."""
        assert self.unread[victim.key], f"{victim} was not written back"
        found = self.unread[victim.key].pop(0)
        assert found >= index
        span = self.spans[found]
        assert span.lane is Lane.D2H
        assert span.start_ns >= victim.ready_ns, f"{span!r} reads before {victim.ready_ns}"
        victim.last_read_ns = max(victim.last_read_ns, span.end_ns)

    def _transfer(self, claim: Claim) -> tuple[int, int]:
        """Start and end of the transfer that follows a claim, in one piece or in chunks."""
        left = self.unclaimed[claim.key]
        assert left, f"{claim} and nothing came"
        assert left[0] >= claim.index
        chunks = round(1 / self.spans[left[0]].op.share)
        taken, self.unclaimed[claim.key] = left[:chunks], left[chunks:]
        parts = [self.spans[index] for index in taken]
        assert {part.op.share for part in parts} == {1 / chunks}
        return parts[0].start_ns, parts[-1].end_ns if len(parts) == chunks else NEVER


def _check_slots(stays: Sequence[_Stay], capacity: int) -> None:
    """A slot is overwritten only after the last operation that reads what it held."""
    by_slot: dict[int, list[_Stay]] = defaultdict(list)
    for stay in stays:
        by_slot[stay.slot].append(stay)
    assert set(by_slot) <= set(range(capacity))
    for slot, following in by_slot.items():
        for before, after in pairwise(following):
            assert after.start_ns >= before.last_read_ns, (
                f"slot {slot}: {after.key} comes at {after.start_ns}, "
                f"{before.key} is in use until {before.last_read_ns}"
            )


def _check_occupancy(
    stays: Sequence[_Stay], capacity: int, record: int, common: int, budget: int | None
) -> None:
    """Experts in use or under way, counted at every instant without looking at slot numbers."""
    changes = [(s.start_ns, 1) for s in stays if s.last_read_ns > s.start_ns]
    changes += [(s.last_read_ns, -1) for s in stays if s.last_read_ns > s.start_ns]
    held = 0
    for _, change in sorted(changes):
        held += change
        assert held <= capacity
        assert budget is None or common + held * record <= budget


# ----------------------------------------------------------------------------- order


def check_order(
    spans: Sequence[Span], homes: Sequence[Home] = (), deferred: Sequence[tuple[int, ...]] = ()
) -> None:
    """A layer's parts follow each other, wherever they run.

    Args:
        homes: where each layer's common weights are; none is the device.
        deferred: of each layer of each pass, in order, the experts that its sum does not need.
    """
    left = list(deferred)
    done = 0  # when the state that the next part reads is known
    streamed: dict[int, int] = {}
    outputs: dict[int, dict[int, int]] = defaultdict(dict)  # layer → expert → end
    carried: list[int] = []
    shared = 0
    for span in spans:
        op, home = span.op, homes[span.op.layer] if homes else "device"
        match op.kind:
            case OpKind.STREAM:
                assert home == "stream"
                streamed[op.layer] = span.end_ns
            case OpKind.ATTEND | OpKind.GATE | OpKind.DENSE | OpKind.SHARED:
                assert span.lane is (Lane.HOST if home == "host" else Lane.DEVICE)
                assert span.start_ns >= done, f"{span!r} begins before its input"
                if op.kind is OpKind.ATTEND and home == "stream":
                    assert span.start_ns >= streamed.pop(op.layer), f"{span!r} has no weights"
                if op.kind is OpKind.SHARED:
                    shared = span.end_ns
                else:
                    done = span.end_ns
            case OpKind.EXPERT:
                assert span.start_ns >= done, f"{span!r} begins before its input"
                outputs[op.layer] |= dict.fromkeys(op.experts, span.end_ns)
            case OpKind.RETURN if op.experts:
                assert span.start_ns >= outputs[op.layer][op.experts[0]]
                outputs[op.layer][op.experts[0]] = span.end_ns
            case OpKind.COMBINE:
                ends, later = outputs.pop(op.layer, {}), left.pop(0) if left else ()
                now = [end for expert, end in ends.items() if expert not in later]
                assert span.start_ns >= max([done, shared, *now, *carried])
                carried = [ends[expert] for expert in later]
                done = span.end_ns
            case OpKind.HEAD:
                assert span.start_ns >= max(done, streamed.pop(-1, 0))
                assert not outputs, "experts of no sum"
                carried = []

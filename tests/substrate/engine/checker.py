"""A checker of timelines that shares nothing with the engine.

It reads only recorded spans and claims: what the substrate believes does not count.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from moebench.substrate.machines.protocol import Lane, OpKind, Span
from tests.substrate.engine.fakes import RECORD_BYTES
from tests.substrate.engine.watch import Claim


@dataclass
class _Stay:
    """One expert in a slot, from its transfer's start to the last computation that reads it."""

    key: int
    slot: int
    start_ns: int
    ready_ns: int
    last_read_ns: int


def check_timeline(
    spans: Sequence[Span],
    claims: Sequence[Claim],
    *,
    num_experts: int,
    capacity: int,
    record_bytes: int = RECORD_BYTES,
    common_bytes: int = 0,
    budget_bytes: int | None = None,
) -> None:
    """Assert what must always hold, from spans in the order of submission and claims alone."""
    check_lanes(spans)
    stays = _stays(spans, claims, num_experts)
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


def _stays(spans: Sequence[Span], claims: Sequence[Claim], num_experts: int) -> list[_Stay]:
    """Pair every claim with its transfer, and every device computation with the stay it reads."""
    unclaimed = {i for i, s in enumerate(spans) if s.op.kind is OpKind.LOAD}
    stays: list[_Stay] = []
    current: dict[int, _Stay] = {}
    pending = list(claims)

    def admit(claim: Claim) -> None:
        if claim.victim is not None:
            assert current.pop(claim.victim).slot == claim.slot, "a victim leaves its own slot"
        assert claim.key not in current, "an expert has two slots"
        start = ready = 0
        if not claim.placed:
            load = min(i for i in unclaimed if i >= claim.index and _keys(spans[i]) == [claim.key])
            unclaimed.remove(load)
            start, ready = spans[load].start_ns, spans[load].end_ns
        current[claim.key] = _Stay(claim.key, claim.slot, start, ready, ready)
        stays.append(current[claim.key])

    def _keys(span: Span) -> list[int]:
        return [span.op.layer * num_experts + e for e in span.op.experts]

    for index, span in enumerate(spans):
        while pending and pending[0].index <= index:
            admit(pending.pop(0))
        if span.op.kind is OpKind.EXPERT and span.lane is Lane.DEVICE:
            for key in _keys(span):
                assert key in current, f"{span!r} reads an expert that has no slot"
                stay = current[key]
                assert span.start_ns >= stay.ready_ns, f"{span!r} reads before {stay.ready_ns}"
                stay.last_read_ns = max(stay.last_read_ns, span.end_ns)
    for claim in pending:
        admit(claim)
    assert not unclaimed, "a transfer had no slot to go to"
    return stays


def _check_slots(stays: Sequence[_Stay], capacity: int) -> None:
    """A slot is overwritten only after the last computation that reads what it held."""
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

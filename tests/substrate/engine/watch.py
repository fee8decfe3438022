"""Watches who gets a slot and what is loaded, from outside the engine."""

from typing import Any, NamedTuple

from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Span
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache


class Claim(NamedTuple):
    """An expert got a slot: before the span with this index; ``placed`` before the first of all."""

    index: int
    key: int
    slot: int
    victim: int | None
    placed: bool


class LetGo(NamedTuple):
    """An expert that is not kept lost its slot, before the span with this index."""

    index: int
    key: int


def watch_slots(cache: ExpertCache, timeline: Timeline) -> list[Any]:
    events: list[Any] = []
    claim, let_go = cache.claim, cache.let_go

    def claimed(key: int, victim: int | None) -> int:
        slot = claim(key, victim)
        events.append(Claim(len(timeline.spans), key, slot, victim, placed=False))
        return slot

    def gone(key: int, last_use: Span) -> None:
        let_go(key, last_use)
        events.append(LetGo(len(timeline.spans), key))

    cache.claim, cache.let_go = claimed, gone  # type: ignore[method-assign]
    return events


def watch_needed(machine: SimulatedMachine, submit_ns: int) -> list[tuple[int, Span]]:
    """Of every needed load the first lane's span, and of what is left of a prefetch."""
    needed: list[tuple[int, Span]] = []
    load, finish = machine.load, machine.finish
    spans, first_lane = machine.timeline.spans, machine.load_path[0]

    def loaded(op, client, after=()):
        asked = machine.now_ns() + submit_ns
        span = load(op, client, after)
        own = (s for s in reversed(spans) if s.op.experts == op.experts and s.op.layer == op.layer)
        needed.append((asked, next(s for s in own if s.lane is first_lane)))
        return span

    def finished(op):
        before, asked = len(spans), machine.now_ns()
        finish(op)
        needed.extend((asked, s) for s in spans[before:] if s.lane is first_lane)

    machine.load, machine.finish = loaded, finished  # type: ignore[method-assign]
    return needed


def watch_turns(transfers: Transfers) -> list[int]:
    """When speculative prefetches got their slots."""
    turns: list[int] = []
    claim = transfers.claim

    def claimed(op, now_ns):
        after = claim(op, now_ns)
        if after is not None:
            turns.append(now_ns)
        return after

    transfers.claim = claimed  # type: ignore[method-assign]
    return turns

"""Watches who gets a slot and what is loaded, from outside the engine."""

from typing import Any, NamedTuple

from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Lane, Span
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
    """Of every needed load the first span, and of a prefetch those of the chunks that are left."""
    needed: list[tuple[int, Span]] = []
    load, finish = machine.load, machine.finish
    timeline = machine.timeline

    def loaded(op, client, after=()):
        before, asked = len(timeline.spans), machine.now_ns() + submit_ns
        span = load(op, client, after)
        whom = op.layer, op.experts
        needed.append(
            (asked, next(s for s in timeline.spans[before:] if (s.op.layer, s.op.experts) == whom))
        )
        return span

    def finished(op):
        before, asked = len(timeline.spans), machine.now_ns()
        finish(op)
        needed.extend((asked, span) for span in timeline.spans[before:])

    machine.load, machine.finish = loaded, finished  # type: ignore[method-assign]
    return needed


def watch_turns(transfers: Transfers) -> list[tuple[Lane, int]]:
    """When speculative prefetches got their slots, and the lane on which they begin."""
    turns: list[tuple[Lane, int]] = []
    claim = transfers.claim
    memory = transfers.machine.host_memory

    def claimed(op, now_ns):
        after = claim(op, now_ns)
        if after is not None:
            on_disk = memory is not None and not memory.holds(op)
            turns.append((Lane.DISK if on_disk else Lane.H2D, now_ns))
        return after

    transfers.claim = claimed  # type: ignore[method-assign]
    return turns

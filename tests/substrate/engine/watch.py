"""Watches what is loaded and when prefetches have their turn, from outside the engine."""

from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Lane, Span
from moebench.substrate.machines.simulated import SimulatedMachine


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

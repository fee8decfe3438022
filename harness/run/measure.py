"""Computes the figures of a run's document from the engine's raw records."""

import os
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np

from moebench.substrate.analysis.bound import LeastCosts, least_decode_ns
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind
from moebench.substrate.machines.timeline import Timeline

PERCENTILES = (50, 90, 99)

#: A figure whose middle half of batches spreads over more than this share of its median is noisy.
NOISY = 0.1

#: Counts of `substrate.engine.counts` that a document holds for each phase.
EXPERT_COUNTS = (
    "active", "hits", "in_flight", "begun", "loads", "host", "host_resident", "deferred",
    "unchosen", "replaced",
)  # fmt: skip


def ms(ns: float) -> float:
    """Nanoseconds as milliseconds, to the nanosecond."""
    return round(ns / 1e6, 6)


def spread(samples_ns: Sequence[int]) -> dict[str, float] | None:
    """Mean and percentiles in ms; None without samples."""
    if not samples_ns:
        return None
    values = {"mean": float(np.mean(samples_ns))}
    for p in PERCENTILES:
        values[f"p{p}"] = float(np.percentile(samples_ns, p))
    return {name: ms(value) for name, value in values.items()}


def ratio(part: float, whole: float) -> float | None:
    """A share, or None where there is nothing to share."""
    return round(part / whole, 6) if whole else None


def durations_ns(generations: Sequence[Generation]) -> list[int]:
    """Return each batch's time from its start to its last token."""
    return [g.token_ends_ns[-1] - g.started_ns for g in generations]


def generated_tokens(generations: Sequence[Generation]) -> int:
    """Count the tokens of all texts, each one's first included."""
    return sum(len(text) for g in generations for text in g.tokens)


def latencies(generations: Sequence[Generation]) -> dict[str, Any]:
    """TPOT over every decoded step, TTFT and end-to-end over batches.

    ``tokens_per_s`` is every token, each batch's first included, over the batches' whole times:
    prefill counts, as in DAOP (§V-A, end-to-end performance).
    """
    steps = [ns for g in generations for ns in g.steps_ns]
    whole, tokens = durations_ns(generations), generated_tokens(generations)
    return {
        "decoded_tokens": tokens - sum(len(g.tokens) for g in generations),
        "tpot_ms": spread(steps),
        "ttft_ms": spread([g.ttft_ns for g in generations]),
        "e2e_ms": ms(float(np.mean(whole))),
        "tokens_per_s": round(tokens / (sum(whole) / 1e9), 4),
    }


def expert_figures(engine: Engine) -> dict[str, Any]:
    """Both cache ratios of decode, counts of both phases, and how many prefetches were used."""
    c = engine.tally.by_phase["decode"]
    return {
        "cache_ratio": ratio(c.hits + c.host_resident, c.active),
        "cache_ratio_begun": ratio(c.begun, c.active),
        "experts": {
            phase: {name: getattr(n, name) for name in EXPERT_COUNTS}
            for phase, n in engine.tally.by_phase.items()
        },
        "prefetch": {
            "issued": c.prefetched,
            "top_score": c.prefetched_top_score,
            "active": c.prefetched_active,
            "used": c.prefetched_used,
            "asked": c.asked,
            "all_of_top_k": ratio(c.asked_all, c.asked),
            "at_least_one": ratio(c.asked_any, c.asked),
        },
        "routed_ahead": {
            "places": c.routed_ahead,
            "right": ratio(c.routed_ahead_right, c.routed_ahead),
            "degraded": ratio(c.degraded, c.routed_ahead),
        },
    }


def lane_figures(timeline: Timeline) -> dict[str, Any]:
    """Busy time, idle causes and bytes, over the run and for decode alone."""
    decode = timeline.totals["decode"]
    return {
        "bytes_h2d": timeline.bytes_moved(Lane.H2D),
        "bytes_disk": timeline.bytes_moved(Lane.DISK),
        "lanes": {lane.value: ms(timeline.busy_ns(lane)) for lane in Lane},
        "stall_ms": {cause: ms(ns) for cause, ns in timeline.stall_ns().items()},
        "decode": {
            "lanes": {lane.value: ms(decode.busy_ns[lane]) for lane in Lane},
            "stall_ms": {cause: ms(decode.stall_ns[cause]) for cause in sorted(decode.stall_ns)},
            "bytes_h2d": decode.moved_bytes[Lane.H2D],
            "bytes_disk": decode.moved_bytes[Lane.DISK],
        },
    }


def unknown() -> dict[str, Any]:
    """All that a package that runs by itself does not say: null, where others have figures."""
    lanes: dict[str, Any] = {"lanes": {}, "stall_ms": {}, "bytes_h2d": None, "bytes_disk": None}
    names = (
        "cache_ratio", "cache_ratio_begun", "experts", "prefetch", "routed_ahead", "host_memory",
        "peak_device_bytes", "peak_host_bytes",
    )  # fmt: skip
    return {**dict.fromkeys(names), **lanes, "decode": lanes}


def host_memory_figures(machine: Machine) -> dict[str, int] | None:
    """What host memory before the disk held and answered; None where no expert is on the disk.

    ``records`` fit at once; of all uses of an expert's record, transfers to the device and host
    computations, ``reads`` came from the disk and ``hits`` found it.
    """
    memory = machine.host_memory
    if memory is None:
        return None
    return {"records": memory.capacity, "reads": memory.reads, "hits": memory.hits}


def bound(engine: Engine, generations: Sequence[Generation]) -> dict[str, float | None]:
    """The least mean TPOT for this platform and these expert choices, and the distance to it."""
    steps = sum(len(g.steps_ns) for g in generations)
    if not steps:
        return {"tpot_ms": None, "ratio": None}
    slots, memory = engine.cache.slots, engine.machine.host_memory
    held = slots + (memory.capacity if memory is not None else 0)
    least = sum(
        least_decode_ns(g.used, slots, least_costs(engine, len(g.tokens)), held)
        for g in generations
    )
    actual = sum(sum(g.steps_ns) for g in generations)
    return {"tpot_ms": ms(least / steps), "ratio": round(actual / least, 4)}


def least_costs(engine: Engine, batch: int) -> LeastCosts:
    """The machine's estimate of each operation that no system can avoid."""
    machine, shape = engine.machine, engine.model.shape
    one = Op(OpKind.EXPERT, 0, (1,), (0,))
    per_layer = [OpKind.ATTEND, OpKind.GATE, OpKind.COMBINE]
    if shape.shared_width:
        per_layer.append(OpKind.SHARED)
    layers, rows = len(shape.moe_layers), (batch,)
    common = [Op(kind, 0, rows) for kind in per_layer] * layers
    common += [Op(kind, 0, rows) for kind in (OpKind.ATTEND, OpKind.DENSE)] * len(
        shape.dense_layers
    )
    common.append(Op(OpKind.HEAD, -1, rows))
    uses_host = machine.has_host_lane and engine.system.assign.uses_host
    submit = machine.control_ns(one, Lane.DEVICE)
    if uses_host:
        back = Op(OpKind.RETURN, 0, (1,), (0,))
        on_host = machine.control_ns(one, Lane.HOST) + machine.control_ns(back, Lane.D2H)
        submit = min(submit, on_host)
    # A gate's launch is left out: a layer that is routed ahead has none, but its experts are read
    # back, too.
    launches = sum(
        machine.control_ns(op, Lane.DEVICE) for op in common if op.kind is not OpKind.GATE
    )
    return LeastCosts(
        common=sum(machine.estimate_ns(op, Lane.DEVICE) for op in common),
        device=machine.estimate_ns(one, Lane.DEVICE),
        link=machine.estimate_ns(Op(OpKind.LOAD, 0), machine.load_path[-1]),
        host=machine.estimate_ns(one, Lane.HOST) if uses_host else None,
        read=least_read_ns(machine),
        control=launches + layers * machine.decision_ns + (layers + 1) * machine.sync_ns,
        submit=submit,
    )


def least_read_ns(machine: Machine) -> int:
    """A record from the disk into host memory, with others under way; 0 where none is read."""
    if machine.host_memory is None:
        return 0
    return machine.estimate_ns(Op(OpKind.READ, 0, queued=True), Lane.DISK)


def involuntary_switches() -> int:
    """Count how often another process has taken the processor from this one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def steadiness(generations: Sequence[Generation], switches: int | None) -> dict[str, Any]:
    """Return how far a measured TPOT spreads over the batches, and what else the computer did.

    Args:
        switches: involuntary ones, during the run; None where they are not known.

    Returns:
        median and quartiles of the batches' mean TPOT in ms, their distance as a share of the
        median, whether that makes it noisy, and the load of the computer.
    """
    means = [np.mean(g.steps_ns) / 1e6 for g in generations if g.steps_ns]
    spread = None
    tpot: dict[str, float] | None = None
    if means:
        low, median, high = (round(float(x), 6) for x in np.percentile(means, (25, 50, 75)))
        tpot, spread = {"median": median, "low": low, "high": high}, (high - low) / median
    return {
        "batches": len(generations),
        "tpot_ms": tpot,
        "spread": None if spread is None else round(spread, 4),
        "noisy": spread is not None and spread > NOISY,
        "load_average": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
        "involuntary_switches": switches,
    }

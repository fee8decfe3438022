"""Builds a run on this computer: records, threads, slots and engine; and says how steady it was."""

import json
import os
import resource
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moebench.harness.stage.stage import Memory, Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.files_read import use
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.records import (
    READS_IN_FLIGHT,
    DiskRecords,
    EmulatedLink,
    MemoryRecords,
    available_bytes,
)
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.dummy import DummyWeights
from moebench.substrate.models.expert_store import ExpertStore, Weights
from moebench.substrate.models.formats import format_of
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.weights import Checkpoint
from moebench.systems.policies.assign import LoadAll

#: What a local machine computes in; and what it keeps experts in, unless they are quantised.
DTYPE = torch.float32

#: A figure whose middle half of batches spreads over more than this share of its median is noisy.
NOISY = 0.1


def local(
    spec: RunSpec,
    system: System,
    weights: Weights,
    weights_hash: str,
    ran: str,
    memory: Memory,
    scratch: Path,
    keep: bool,
    stack: ExitStack,
    model: Callable[[Decoder], Model] = lambda decoder: decoder,
) -> tuple[Stage, Decoder]:
    """Build a run on this computer, whose decoder computes with what is in the slots.

    Args:
        ran: what its figures are of.
        memory: from `memory_for`.
        scratch: where expert records are kept.
        keep: keep every span, not only the picture's.
        stack: closes files and threads.
        model: what answers the engine, by way of the decoder.
    """
    check(spec, system)
    shape, emulated = weights.shape, spec.emulated_link_gb_s is not None
    check_common(shape, DTYPE, "fp32")
    timeline = Timeline(keep)
    slots = system.place.slots(shape, memory.capacity.slots) or memory.capacity.slots
    stored_as = spec.expert_dtype or DTYPE
    made = format_of(shape, stored_as)
    record_bytes = made.record_bytes
    device = Tier("local", memory.capacity.slots * record_bytes)
    cache = ExpertCache(shape, slots, system.scope, device, record_bytes)
    # They take long: all checks come before.
    if spec.emulated_link_gb_s is not None:
        link = EmulatedLink(spec.emulated_link_gb_s * 1e9)
        records: DiskRecords | MemoryRecords = MemoryRecords(
            weights, stored_as, link, system.pinned_copies is not False
        )
    else:
        name = f"{weights_hash}-{made.name}.bin"
        store = ExpertStore.build(weights, use(scratch / "experts" / name), stored_as)
        in_flight = READS_IN_FLIGHT if system.parallel_reads else 1
        records = DiskRecords(store, in_flight, spec.page_cache == "keep")
    stack.enter_context(records)
    machine = stack.enter_context(
        LocalMachine(
            records,
            cache.slots,
            timeline,
            overlap=system.overlap,
            blocking_copies=system.blocking_copies,
        )
    )
    notes = [f"{ran} ran, measured on this computer's CPU with {cache.slots} slots in memory"]
    notes += [*made.notes, *records.notes]
    if torch.cuda.is_available():
        notes.append("this computer's CUDA device took no part; --device cuda runs on it")
    if system.assign.uses_host and not emulated:
        system.assign = LoadAll()
        notes.append("host assist is off: on this machine the host is the device (assign=load)")
    on_host = records.on_host if isinstance(records, MemoryRecords) else None
    experts = SlotExperts(cache, machine.slots, on_host, made)
    decoder = Decoder(shape, weights.common(DTYPE), experts)
    homes = memory.capacity.homes if emulated else ()
    stage = Stage(
        engine=Engine(system, model(decoder), machine, cache, timeline, homes),
        machine=machine,
        timeline=timeline,
        device=device,
        host=Tier("host", 0),
        profile=None,
        badge="measured, emulated link" if emulated else "measured",
        ran=ran,
        notes=[*notes, *memory.notes],
        slots=cache.slots,
        total=len(shape.moe_layers) * shape.num_experts,
        memory=memory.document(cache.slots, record_bytes),
        load_ns=lambda placed: 0,
    )
    return stage, decoder


def named(spec: RunSpec, checkpoint: Checkpoint) -> str:
    """The model that computes, as a measured time must name it."""
    size = checkpoint.shape.total_params
    text = f"{size / 1e9:.3g} B" if size >= 1e9 else f"{size / 1e6:.3g} M"
    name = f"{spec.model}'s scale model"
    if spec.weights is not None:
        name = Path(spec.weights).resolve().name
    return f"{name}, {text} parameters"


def dummies(weights: DummyWeights) -> list[str]:
    """Notes on random weights."""
    shape = weights.shape
    total = len(shape.moe_layers) * shape.num_experts
    notes = ["weights are random numbers in the model's shape; routing decides which are used"]
    if weights.distinct < total:
        notes.append(f"{weights.distinct} random records stand for {total} experts")
    return notes


def check_common(shape: ModelShape, dtype: torch.dtype, precision: str) -> None:
    """Refuse common weights that do not fit into this computer's memory."""
    size, free = shape.common_params * dtype.itemsize, available_bytes()
    if free is not None and size > free:
        raise BudgetError(
            f"--machine local: common weights take {size / 1e9:.3g} GB in {precision}, this "
            f"computer has {free / 1e9:.3g} GB of memory to spare; choose a smaller --model"
        )


def check(spec: RunSpec, system: System) -> None:
    """Refuse options that a local machine does not support."""
    if system.reads_unfinished:
        raise UsageError(
            f"--machine local: {type(system).__name__} computes on copies that are under way, and "
            "its results would be wrong; allowed: a simulated machine, or reads_unfinished=false"
        )
    options = {"expert_precision": None, "host_experts": None, "module_hooks": False}
    source = "host memory"
    if spec.device == "cpu" and spec.emulated_link_gb_s is None:
        options |= {"overlap": True, "pinned_copies": None}
        source = "the disk"
    precision = spec.precision if spec.device == "cuda" else "fp32"
    for name, allowed in options.items():
        given = getattr(system, name)
        if given is not allowed:
            raise UsageError(
                f"--machine local: {name} is {json.dumps(given)}, and that machine takes "
                f"{precision} experts from {source}; allowed: --set {name}={json.dumps(allowed)}"
            )


# ------------------------------------------------------------------ how steady it was


def involuntary_switches() -> int:
    """How often another process has taken the processor from this one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def steadiness(generations: Sequence[Generation], switches: int | None) -> dict[str, Any]:
    """How far a measured TPOT spreads from batch to batch, and what else the computer did.

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

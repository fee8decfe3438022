"""Builds stages on this computer's processor: records, threads, slots and engine."""

from contextlib import ExitStack

import torch

from moebench.harness.stage.memory import Memory, Offer, check_common, offer_of_setting
from moebench.harness.stage.stage import Stage, StageRequest, on_this_computer
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.runtime import Supports
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.files_read import record_read
from moebench.substrate.machines.free_memory import available_bytes
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.records import (
    READS_IN_FLIGHT,
    DiskRecords,
    EmulatedLink,
    MemoryRecords,
)
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Room
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.formats import format_of
from moebench.systems.policies.assign import LoadAll
from moebench.systems.registry import name_of

#: Data type in which a local machine computes, and stores experts unless they are quantised.
DTYPE = torch.float32


class LocalKind:
    """This computer's processor; experts come from its disk, or over an emulated link."""

    def supports(self, spec: RunSpec) -> Supports:
        """Return runtime options that can be measured with experts from disk or emulated link."""
        if spec.emulated_link_gb_s is not None:
            return on_this_computer("fp32", "host memory")
        return on_this_computer("fp32", "the disk", {"overlap": True, "pinned_copies": None})

    def offer(self, spec: RunSpec) -> Offer:
        """Return the memory of the setting's machine, or this computer's for a number of slots.

        Raises UsageError: no option determines how many experts may be on the device.
        """
        found = offer_of_setting(spec, raised=True)
        if found is not None:
            return found
        if spec.cache_ratio is None and spec.slots is None:
            raise UsageError(
                "--machine local: how many experts may be on the device? give --capacity, "
                "--slots, or --setting NAME, whose machine's share is taken"
            )
        # One memory serves as device and host memory; the run's ratio or slots set the budget.
        free = available_bytes() or 0
        return Offer(Room("this computer", free, 0, free), raised=True)

    def build(self, request: StageRequest, memory: Memory, stack: ExitStack) -> Stage:
        """Build a stage whose decoder computes with the experts in the slots."""
        spec, system, weights = request.spec, request.system, request.weights
        assert weights is not None, "a run on this computer has weights"
        runtime = system.runtime
        shape, emulated = weights.shape, spec.emulated_link_gb_s is not None
        check_common(shape, DTYPE, "fp32")
        timeline = Timeline(request.keep_timeline)
        slots = system.place.slots(shape, memory.capacity.slots) or memory.capacity.slots
        stored_as = spec.expert_dtype or DTYPE
        made = format_of(shape, stored_as)
        record_bytes = made.record_bytes
        device = Tier("local", memory.capacity.slots * record_bytes)
        cache = ExpertCache(shape, slots, system.scope, device, record_bytes)
        alone = system.assign.uses_host and not emulated
        if alone:
            every = len(shape.moe_layers) * shape.num_experts
            _require_no_host(system, whole=cache.slots == every)
        # Check everything before writing the records, which takes long.
        if spec.emulated_link_gb_s is not None:
            link = EmulatedLink(spec.emulated_link_gb_s * 1e9)
            records: DiskRecords | MemoryRecords = MemoryRecords(
                weights, stored_as, link, runtime.pinned_copies is not False
            )
        else:
            name = f"{request.weights_name}-{made.name}.bin"
            store = ExpertStore.build(
                weights, record_read(request.scratch / "experts" / name), stored_as
            )
            in_flight = READS_IN_FLIGHT if runtime.parallel_reads else 1
            records = DiskRecords(store, in_flight, spec.page_cache == "keep")
        stack.enter_context(records)
        machine = stack.enter_context(
            LocalMachine(
                records,
                cache.slots,
                timeline,
                overlap=runtime.overlap,
                blocking_copies=bool(runtime.blocking_copies),
            )
        )
        notes = [
            f"{request.ran} ran, measured on this computer's CPU with {cache.slots} slots in memory"
        ]
        notes += [*made.notes, *records.notes]
        if torch.cuda.is_available():
            notes.append("this computer's CUDA device took no part; --device cuda runs on it")
        if alone:
            system.assign = LoadAll()
            notes.append("host assist is off: on this machine the host is the device (assign=load)")
        on_host = records.on_host if isinstance(records, MemoryRecords) else None
        decoder = Decoder(
            shape, weights.common(DTYPE), SlotExperts(cache, machine.slots, on_host, made)
        )
        homes = memory.capacity.homes if emulated else ()
        return Stage(
            engine=Engine(system, request.model(decoder), machine, cache, timeline, homes),
            machine=machine,
            timeline=timeline,
            device=device,
            host=Tier("host", 0),
            profile=None,
            badge="measured, emulated link" if emulated else "measured",
            ran=request.ran,
            notes=[*notes, *memory.notes],
            slots=cache.slots,
            total=len(shape.moe_layers) * shape.num_experts,
            memory=memory.document(cache.slot_bytes, record_bytes),
            load_ns=lambda placed: 0,
        )


def _require_no_host(system: System, whole: bool) -> None:
    """Refuse policies that cannot work where the host is the device: every miss is loaded.

    Args:
        whole: whether the device holds all experts, so that none is evicted.

    Raises UsageError: names the policy, and what to give instead.
    """
    instead = {"place": "popular", "prefetch": "none", "evict": "lru"}
    for decision, policy in system.policies.items():
        if policy.needs_host and not (decision == "evict" and whole):
            raise UsageError(
                f"--machine local: here the host is the device and every missing expert is loaded, "
                f"but {decision}={name_of(decision, policy)} works only where the host computes "
                f"some; give --emulated-link RATE, or --set {decision}={instead[decision]}"
            )

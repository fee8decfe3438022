"""Counts how many experts fit into the memory that a run is offered."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from moebench.harness.settings import setting
from moebench.results.spec import RunSpec
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.free_memory import available_bytes
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.memory.capacity import Capacity, Request, Room, plan
from moebench.substrate.models.bits import Quantised
from moebench.substrate.models.catalogue import OWN_BITS, quantised
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import OnlyNamed

if TYPE_CHECKING:
    import torch


class Offer(NamedTuple):
    """The memory that a run may use.

    Attributes:
        room: device and host memory in bytes.
        profile: the machine that has this memory; None for this computer.
        raised: whether the device's budget is raised if experts do not fit.
    """

    room: Room
    profile: HardwareProfile | None = None
    raised: bool = False


def offer_of_setting(spec: RunSpec, raised: bool) -> Offer | None:
    """Return the memory of the setting's machine, or None without a setting."""
    if spec.setting is None:
        return None
    profile = load_profile(setting(spec.setting).machine, spec.software)
    return Offer(Room.of(profile), profile, raised)


@dataclass(frozen=True, slots=True)
class Memory:
    """Capacity of the device in experts, with the notes on it for the run's document.

    Attributes:
        profile: the machine whose memory was offered; None if it is this computer's own.
    """

    capacity: Capacity
    profile: HardwareProfile | None
    notes: list[str]

    def document(self, slot_bytes: int, expert_bytes: int) -> dict[str, int]:
        """Return the document's ``memory``: bytes offered, of all slots, and of an expert.

        ``room_bytes`` are those of all experts that fit, where the system's slots may be fewer.
        """
        return {
            "offered_device_bytes": self.capacity.offered_bytes,
            "offered_host_bytes": self.capacity.host.budget_bytes,
            "expert_bytes": expert_bytes,
            "room_bytes": self.capacity.room * expert_bytes,
            "slot_bytes": slot_bytes,
        }


def count_memory(
    spec: RunSpec, system: System, full: ModelShape, longest: int, offer: Offer
) -> Memory:
    """Count the experts that fit into the offered memory.

    The system is told the full-size model and the most prompt tokens of a batch.

    Args:
        longest: tokens of the longest sequence, new ones included.

    Raises:
        UsageError: two options state the experts' precision.
        BudgetError: the model does not fit.
    """
    system.full_size(full)
    # Under other scorings the longest text has an answer of unknown length.
    prompt = longest - spec.new_tokens if spec.scoring == "fixed-length" else longest
    system.expect(prompt * spec.batch, spec.batch)
    if spec.expert_dtype is not None and system.expert_precision is not None:
        raise UsageError(
            f"--expert-dtype {spec.expert_dtype} and expert_precision={system.expert_precision}: "
            "both say what experts are stored as; add --set expert_precision=null"
        )
    if spec.quant is not None and system.expert_precision is not None:
        raise UsageError(
            f"--quant {spec.quant} and expert_precision={system.expert_precision}: both say what "
            "experts are stored as; add --set expert_precision=null"
        )
    stored = quantised(spec.quant, spec.model)
    capacity = plan(
        Request(
            room=offer.room,
            shape=full,
            precision=spec.precision if stored is None else stored.bits.others,
            kv_tokens=spec.context + longest,
            texts=spec.batch,
            expert_precision=system.expert_precision,
            expert_dtype=spec.expert_dtype if stored is None else stored.bits.routed,
            homes=partial(system.place.homes, full),
            cache_ratio=spec.cache_ratio,
            slots=spec.slots,
            all_resident=system.all_resident,
            allow_overcommit=spec.allow_overcommit or offer.raised,
            device_bytes=(
                None if spec.device_memory_gib is None else round(spec.device_memory_gib * 2**30)
            ),
            free_host_bytes=None if spec.free_host_gb is None else round(spec.free_host_gb * 1e9),
            own_bytes=system.device_bytes,
            most_slots=partial(system.most_slots, full),
            host_experts=system.host_experts,
            forms=system.forms,
            chosen_forms=system.place.chosen_forms(full),
            kept=partial(_kept, system, full),
            kv_on_host=system.divides,
        )
    )
    notes = [] if stored is None else [_bits_note(spec, stored)]
    notes += _notes(spec, system, full, capacity, offer.room.device)
    return Memory(capacity, offer.profile, notes)


def _kept(system: System, full: ModelShape, slots: int) -> int:
    """Return how many experts stay on the device of a system that maps the file of its weights.

    The file's pages of experts that are never evicted may leave host memory.  A placement that is
    trained counts as none: memory is counted before.
    """
    if system.runtime.pinned_copies is not False or not isinstance(system.evict, OnlyNamed):
        return 0
    if system.place.calibrates:
        return 0
    return len({*system.place.place(full, slots, system.scope)})


def _bits_note(spec: RunSpec, stored: Quantised) -> str:
    """Return a sentence on the bits of the weights that are charged."""
    name = spec.model if spec.quant == OWN_BITS else spec.quant
    return (
        f"weights are charged as {name}: {stored.bits.routed:.4g} bits each in routed experts, "
        f"{stored.bits.others:.4g} in all others; the computation is not quantised"
    )


def _notes(
    spec: RunSpec, system: System, full: ModelShape, capacity: Capacity, device: str
) -> list[str]:
    """Sentences on what is offloaded, at which precision, and where a run differs from a paper."""
    notes = [*system.remarks(full, capacity.slots)]
    total = len(full.moe_layers) * full.num_experts
    if spec.machine != "local":  # a local machine holds all non-expert weights
        notes += _homes(capacity, full)
    if system.divides:
        size = capacity.host.reserved("KV cache") / 1e9
        notes.append(
            f"the KV cache, {size:.4g} GB, is in host memory, where decode's attention reads it"
        )
    if capacity.slots == total and {*capacity.homes} == {"device"}:
        notes.append(f"nothing is offloaded: the device holds all {total} experts")
    if capacity.overcommitted and spec.machine != "local":
        notes.append(f"overcommitted: {device} cannot hold every expert")
    if spec.expert_dtype is not None and spec.machine != "local":
        full_mb, packed_mb = (
            full.expert_bytes(stored) / 1e6 for stored in (spec.precision, spec.expert_dtype)
        )
        notes.append(
            f"experts are charged as packed {spec.expert_dtype}, "
            f"{packed_mb:.4g} MB each instead of {full_mb:.4g} in {spec.precision}"
        )
    paper = None if spec.setting is None else setting(spec.setting)
    if paper is not None and paper.input_tokens is not None:
        notes.append(
            f"{paper.paper} uses prompts of {paper.input_tokens} tokens in {paper.name}; these "
            "keep their own lengths"
        )
    return notes


def _homes(capacity: Capacity, full: ModelShape) -> list[str]:
    """Sentences on non-expert weights that are not on the device."""
    layers, head = capacity.homes[: full.num_layers], capacity.homes[full.num_layers :]
    source = " from the disk" if capacity.streams_from_disk else ""
    where = {"stream": f"streamed{source} to the device in every pass", "host": "on the host"}
    notes = []
    for home, so in where.items():
        count = sum(one == home for one in layers)
        if count:
            also = ", and the head," if home in head else ""
            notes.append(f"common weights of {count} of {full.num_layers} layers{also} are {so}")
    return notes


def check_common(shape: ModelShape, dtype: "torch.dtype", precision: str) -> None:
    """Refuse non-expert weights that do not fit into this computer's memory.

    Raises BudgetError: the weights exceed the free memory.
    """
    size, free = shape.common_params * dtype.itemsize, available_bytes()
    if free is not None and size > free:
        raise BudgetError(
            f"--machine local: common weights take {size / 1e9:.3g} GB in {precision}, this "
            f"computer has {free / 1e9:.3g} GB of memory to spare; choose a smaller --model"
        )

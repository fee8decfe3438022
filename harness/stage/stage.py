"""Builds what a run needs beside its model: machine, memory and engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from moebench.harness.run import measure
from moebench.harness.settings import setting
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.machines import accelerator
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.measured_costs import cost_model
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind
from moebench.substrate.machines.records import available_bytes
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Capacity, Request, Room, plan
from moebench.substrate.memory.host import HostRecords
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape


@dataclass(slots=True, kw_only=True)
class Stage:
    """A run's engine, machine and memory, and what its document says of them.

    Attributes:
        profile: None on this computer; ``ran`` is then the model that really ran there.
        badge: how far its times are to be trusted.
        slots, total: experts that fit on the device, and that there are.
        memory: bytes that the run offers to any system, and those that this one's slots take.
        load_ns: time to bring common weights and so many placed experts to the device.
        card: UUID of the CUDA device that computes, if one does.
    """

    engine: Engine
    machine: Machine
    timeline: Timeline
    device: Tier
    host: Tier
    profile: HardwareProfile | None
    notes: list[str]
    slots: int
    total: int
    memory: dict[str, int]
    load_ns: Callable[[int], int]
    badge: str
    ran: str | None = None
    card: str | None = None

    def start(self) -> float:
        """Place the experts; the model's loading time in ms."""
        before = self.machine.now_ns()
        placed = self.engine.start()
        return measure.ms(self.load_ns(placed) + self.machine.now_ns() - before)


@dataclass(frozen=True, slots=True)
class Memory:
    """How many experts fit on the device of a profile, and what the document must say of that.

    Without a setting this computer stands for no profile.
    """

    capacity: Capacity
    profile: HardwareProfile | None
    notes: list[str]

    def document(self, slots: int, expert_bytes: int) -> dict[str, int]:
        """The document's ``memory``: what was offered, and what so many experts of it take."""
        return {
            "offered_device_bytes": self.capacity.offered_bytes,
            "offered_host_bytes": self.capacity.host.budget_bytes,
            "expert_bytes": expert_bytes,
            "slot_bytes": slots * expert_bytes,
        }


def memory_for(
    spec: RunSpec,
    system: System,
    full: ModelShape,
    longest: int,
    profile: HardwareProfile | None = None,
) -> Memory:
    """Count what fits; on this computer the share that the setting's machine holds, or as asked.

    The system learns the full-size model.

    Args:
        longest: tokens of the longest sequence, new ones included.
        profile: in place of the spec's own.
    """
    name: str | None = spec.machine
    if name == "local":
        name = None if spec.setting is None else setting(spec.setting).machine
    if profile is None and name is not None:
        profile = load_profile(name, spec.software)
    on_card = profile is None and spec.device == "cuda"
    if profile is None and not on_card and spec.cache_ratio is None and spec.slots is None:
        raise UsageError(
            "--machine local: how many experts may be on the device? give --cache-ratio, --slots, "
            "or --setting NAME, whose machine's share is taken"
        )
    if profile is not None:
        room = Room.of(profile)
    else:
        room = _this_card() if on_card else _this_computer()
    system.full_size(full)
    if spec.expert_dtype is not None and system.expert_precision is not None:
        raise UsageError(
            f"--expert-dtype {spec.expert_dtype} and expert_precision={system.expert_precision}: "
            "both say what experts are stored as; add --set expert_precision=null"
        )
    capacity = plan(
        Request(
            room=room,
            shape=full,
            precision=spec.precision,
            kv_tokens=longest * spec.batch,
            expert_precision=system.expert_precision,
            expert_dtype=spec.expert_dtype,
            homes=partial(system.place.homes, full),
            cache_ratio=spec.cache_ratio,
            slots=spec.slots,
            all_resident=system.all_resident,
            allow_overcommit=spec.allow_overcommit or (spec.machine == "local" and not on_card),
            device_bytes=(
                None if spec.device_memory_gib is None else round(spec.device_memory_gib * 2**30)
            ),
            free_host_bytes=None if spec.free_host_gb is None else round(spec.free_host_gb * 1e9),
            own_bytes=system.device_bytes,
            most_slots=partial(system.most_slots, full),
            host_experts=system.host_experts,
        )
    )
    notes = [*system.remarks(full, capacity.slots)]
    total = len(full.moe_layers) * full.num_experts
    if spec.machine != "local":  # which holds all common weights
        notes += _homes(capacity, full)
    if capacity.slots == total and {*capacity.homes} == {"device"}:
        notes.append(f"nothing is offloaded: the device holds all {total} experts")
    if capacity.overcommitted and spec.machine != "local":
        notes.append(f"overcommitted: {room.device} cannot hold every expert")
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
    return Memory(capacity, profile, notes)


def _this_computer() -> Room:
    """Its memory is the device's and the host's; what is offered comes from what was asked for."""
    free = available_bytes() or 0
    return Room("this computer", free, 0, free)


def _this_card() -> Room:
    """What is free of the card's memory, and this computer's as the host's."""
    card = accelerator.Cuda()
    free, _ = card.memory()
    return Room(card.name, free, accelerator.WORKSPACE_BYTES, available_bytes() or 0)


def _homes(capacity: Capacity, full: ModelShape) -> list[str]:
    """What common weights are not on the device."""
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


def simulated(
    spec: RunSpec, system: System, model: Model, full: ModelShape, memory: Memory, keep: bool,
    notes: Sequence[str] = (),
) -> Stage:  # fmt: skip
    """Build a run on the simulated machine.

    Args:
        model: answers the engine: a decoder or a trace.
        full: the model that is charged.
        memory: from `memory_for`.
        keep: keep every span, not only the picture's.
        notes: what else must be said of the run.
    """
    capacity, profile, shape = memory.capacity, memory.profile, model.shape
    assert profile is not None, "a simulated machine has a profile"
    costs = cost_model(
        profile,
        full,
        spec.precision,
        expert_precision=spec.expert_dtype or system.expert_precision,
        pinned=system.pinned_copies,
        module_hooks=system.module_hooks,
        fused_experts=system.assign.whole_layers(full),
        parallel_reads=system.parallel_reads,
    )
    timeline = Timeline(keep)
    records = None
    if capacity.from_disk:
        records = HostRecords(capacity.host, costs.record_bytes, system.host_experts)
    machine = SimulatedMachine(
        costs,
        timeline,
        records,
        parallel_reads=system.parallel_reads,
        overlap=system.overlap,
        blocking_copies=system.blocking_copies,
    )
    total = len(shape.moe_layers) * shape.num_experts
    slots = system.place.slots(shape, capacity.slots) or capacity.slots
    cache = ExpertCache(shape, slots, system.scope, capacity.device, costs.record_bytes)
    said = [
        f"simulated on {profile.name} with {profile.software.name} software: no such hardware ran; "
        f"{profile.estimates} of the profile's {profile.numbers} numbers are estimates"
    ]
    if machine.host_memory is not None:
        said.append(
            f"experts are on the disk: host memory has room for {machine.host_memory.capacity} of "
            f"{total}"
        )
    if system.expert_precision is not None:
        said.append(
            f"experts are charged as {system.expert_precision}; the mathematics is not quantised"
        )
    if system.reads_unfinished:
        said.append(
            f"{spec.title} computes experts whose copy is still under way (in_flight) on whatever "
            "their slots hold: its time is simulated, its results would be wrong; accuracy here is "
            "that of the right weights"
        )
    return Stage(
        engine=Engine(
            system, model, machine, cache, timeline, capacity.homes, capacity.streams_from_disk
        ),
        machine=machine,
        timeline=timeline,
        device=capacity.device,
        host=capacity.host,
        profile=profile,
        badge=profile.badge,
        notes=[*said, *notes, *memory.notes],
        slots=cache.slots,
        total=total,
        memory=memory.document(cache.slots, costs.record_bytes),
        load_ns=lambda placed: loading_ns(placed, costs, capacity, system),
    )


def loading_ns(placed: int, costs: CostModel, capacity: Capacity, system: System) -> int:
    """Time until common weights and so many experts are on the device.

    From the disk, where experts live there; common weights are one file, read from front to back.
    """
    common_ns = capacity.common_bytes / costs.h2d_bytes_per_ns
    expert_ns = costs.ns(Op(OpKind.LOAD, 0), Lane.H2D)
    if capacity.from_disk:
        read = Op(OpKind.READ, 0, queued=system.parallel_reads)
        common_ns = max(
            common_ns, costs.shape.common_bytes(costs.precision) / costs.read_bytes_per_ns
        )
        expert_ns = max(expert_ns, costs.ns(read, Lane.DISK))
    return round(common_ns + placed * expert_ns)

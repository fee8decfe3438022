"""What a run runs on: model, machine, memory and engine, wired once."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from moebench.harness.run import measure
from moebench.harness.run.inputs import Inputs
from moebench.harness.run.settings import setting
from moebench.harness.run.shared import SharedWork
from moebench.harness.run.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.machines.protocol import Machine
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Capacity, plan
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.weights import ExpertStore
from moebench.systems.policies.assign import LoadAll


@dataclass(slots=True)
class Stage:
    """Everything that runs: model, machine, memory and engine, wired once."""

    engine: Engine
    machine: Machine
    timeline: Timeline
    device: Tier
    host: Tier
    profile: HardwareProfile | None
    notes: list[str]
    slots: int
    total: int
    load_ns: Callable[[int], int]

    def start(self) -> float:
        """Place the experts; the model's loading time in ms."""
        before = self.machine.now_ns()
        placed = self.engine.start()
        return measure.ms(self.load_ns(placed) + self.machine.now_ns() - before)


@dataclass(slots=True)
class LiveStage(Stage):
    """A stage whose model computes."""

    decoder: Decoder
    shared: SharedWork


def set_up(
    spec: RunSpec, system: System, inputs: Inputs, shared: SharedWork, scratch: Path, keep: bool,
    stack: ExitStack, wrap: Callable[[Model], Model] = lambda model: model,
) -> LiveStage:  # fmt: skip
    """Wire a run.

    Args:
        shared: of the run's checkpoint.
        scratch: where expert records are kept for a local machine.
        keep: keep every span, not only the picture's.
        stack: closes what the machine holds open.
        wrap: put around the model, for example to record what it answers.
    """
    capacity, profile, notes = _capacity(spec, system, inputs.full, inputs.longest)
    if spec.machine == "local":
        return _local(spec, system, inputs, shared, capacity, profile, notes, scratch, keep, stack)
    lengths = [len(q.prompt) for q in inputs.questions]
    notes = [
        f"prompts of {min(lengths)} to {max(lengths)} tokens, as the computing model's own "
        "tokenizer counts them",
        *notes,
    ]
    decoder = shared.decoder(reuse_predictions=True)
    model = wrap(shared.remembering(decoder))
    stage = _simulated(spec, system, model, inputs.full, capacity, profile, notes, keep)
    values = {f.name: getattr(stage, f.name) for f in fields(stage)}
    return LiveStage(**values, decoder=decoder, shared=shared)


def set_up_replay(
    spec: RunSpec, system: System, model: Model, full: ModelShape, longest: int, keep: bool
) -> Stage:
    """Wire a replay on a simulated machine.

    Args:
        model: answers from a trace.
        full: the model that is charged.
        longest: tokens of the longest sequence.
        keep: keep every span, not only the picture's.
    """
    capacity, profile, notes = _capacity(spec, system, full, longest)
    return _simulated(spec, system, model, full, capacity, profile, notes, keep)


def _capacity(
    spec: RunSpec, system: System, full: ModelShape, longest: int
) -> tuple[Capacity, HardwareProfile, list[str]]:
    """How many experts fit; a local machine takes the share that its setting's machine holds."""
    name = spec.machine
    if name == "local":
        if spec.setting is None:
            raise UsageError("--machine local: give --setting NAME, whose cache ratio is used")
        name = setting(spec.setting).machine
    profile = load_profile(name)
    capacity = plan(
        profile,
        full,
        spec.precision,
        kv_tokens=longest * spec.batch,
        cache_ratio=spec.cache_ratio,
        all_resident=system.all_resident,
        allow_overcommit=spec.allow_overcommit or spec.machine == "local",
        free_host_bytes=None if spec.free_host_gb is None else round(spec.free_host_gb * 1e9),
        own_bytes=system.device_bytes,
        most_slots=system.most_slots(full),
    )
    notes = []
    if capacity.overcommitted and spec.machine != "local":
        notes.append(f"overcommitted: {profile.gpu.name} cannot hold every expert")
    paper = None if spec.setting is None else setting(spec.setting)
    if paper is not None and paper.input_tokens is not None:
        notes.append(
            f"{paper.paper} uses prompts of {paper.input_tokens} tokens in {paper.name}; these "
            "keep their own lengths"
        )
    if capacity.from_disk:
        notes.append("experts do not fit into host memory: every load starts on the disk")
    return capacity, profile, notes


def _simulated(
    spec: RunSpec, system: System, model: Model, full: ModelShape, capacity: Capacity,
    profile: HardwareProfile, notes: list[str], keep: bool,
) -> Stage:  # fmt: skip
    shape, costs = model.shape, CostModel(profile, full, spec.precision)
    timeline = Timeline(costs.record_bytes, keep)
    machine = SimulatedMachine(costs, timeline, capacity.from_disk)
    cache = ExpertCache(shape, capacity.slots, system.scope, capacity.device, costs.record_bytes)
    common_ns = full.common_bytes(spec.precision) / costs.h2d_bytes_per_ns
    load_one = measure.link_ns(machine)
    notes = [
        f"simulated on {profile.name} ({profile.badge}): no such hardware ran; "
        f"{profile.estimates} of the profile's {profile.numbers} numbers are estimates",
        *notes,
    ]
    return Stage(
        engine=Engine(system, model, machine, cache, timeline),
        machine=machine,
        timeline=timeline,
        device=capacity.device,
        host=capacity.host,
        profile=profile,
        notes=notes,
        slots=cache.slots,
        total=len(shape.moe_layers) * shape.num_experts,
        load_ns=lambda placed: round(common_ns + placed * load_one),
    )


def _local(
    spec: RunSpec, system: System, inputs: Inputs, shared: SharedWork, capacity: Capacity,
    profile: HardwareProfile, notes: list[str], scratch: Path, keep: bool, stack: ExitStack,
) -> LiveStage:  # fmt: skip
    shape, dtype = inputs.checkpoint.shape, torch.float32
    store_path = (
        scratch / "experts" / f"{inputs.hashes['weights']}-{dtype}.bin".replace("torch.", "")
    )
    store = ExpertStore(store_path, shape, dtype)
    timeline = Timeline(store.record_bytes, keep)
    device = Tier("memory", capacity.slots * store.record_bytes)
    cache = ExpertCache(shape, capacity.slots, system.scope, device, store.record_bytes)
    ExpertStore.build(inputs.checkpoint, store_path, dtype)  # long, so after all that may refuse
    machine = stack.enter_context(LocalMachine(store, cache.slots, timeline))
    if system.assign.uses_host:
        system.assign = LoadAll()
        notes.append("host assist is off: on this machine the host is the device (assign=load)")
    notes = [
        f"measured on this computer's CPU with {cache.slots} slots in memory; records are read "
        "through the page cache",
        *notes,
    ]
    decoder = Decoder(shape, inputs.checkpoint.common(dtype), SlotExperts(cache, machine.slots))
    return LiveStage(
        engine=Engine(system, decoder, machine, cache, timeline),
        decoder=decoder,
        shared=shared,
        machine=machine,
        timeline=timeline,
        device=device,
        host=Tier("host", 0),
        profile=None,
        notes=notes,
        slots=cache.slots,
        total=len(shape.moe_layers) * shape.num_experts,
        load_ns=lambda placed: 0,
    )

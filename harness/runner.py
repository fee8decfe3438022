"""One run, from a spec to its document: build, generate, measure."""

import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from harness import measure
from harness.accuracy import Accuracy
from harness.settings import setting
from harness.spec import RunSpec, code_hash, run_id
from substrate.arch import ModelShape
from substrate.capacity import Capacity, plan
from substrate.catalogue import model_shape, scale_names, scale_path
from substrate.costs import CostModel
from substrate.engine import Engine, Generation
from substrate.errors import CheckpointError, UsageError
from substrate.local import LocalMachine, SlotExperts
from substrate.machine import Machine
from substrate.memory import ExpertCache, Tier
from substrate.model import Decoder, Experts
from substrate.profile import HardwareProfile, load_profile
from substrate.simulated import SimulatedMachine
from substrate.system import System
from substrate.timeline import Timeline
from substrate.weights import Checkpoint, ExpertStore, ResidentExperts
from systems import build
from systems.options import describe
from systems.policies.assign import LoadAll
from workloads.catalogue import Sample, Workload, load, workload
from workloads.prompts import build_prompt
from workloads.scoring import cut

#: Decoded tokens of the first batch that the report's picture shows.
PICTURE_TOKENS = (8, 10)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: its document, the picture's spans, and the timeline behind them."""

    document: dict[str, Any]
    picture: list[dict[str, Any]]
    timeline: Timeline


@dataclass(slots=True)
class Inputs:
    """What a run reads, and the identity that follows from it."""

    spec: RunSpec
    checkpoint: Checkpoint
    full: ModelShape
    tokenizer: Tokenizer
    workload: Workload
    sample: Sample
    prompts: list[list[int]]
    hashes: dict[str, str]

    @property
    def run_id(self) -> str:
        """Equal for equal results; every measurement on this computer is its own."""
        return run_id(self.spec, **self.hashes)


def run(
    inputs: Inputs,
    scratch: Path,
    progress: Progress = lambda done, total: None,
    keep_timeline: bool = False,
) -> Outcome:
    """Carry out a run.

    Args:
        inputs: from `prepare`.
        scratch: where expert records are kept for a local machine.
        keep_timeline: keep every span, not only the picture's.

    Raises:
        MoeBenchError: anything that the user can mend; nothing was stored.
    """
    started = time.monotonic()
    spec = inputs.spec
    system = build(spec.system, spec.settings)
    # The scale model's products are too small to share between threads.
    torch.set_num_threads(1)
    with ExitStack() as stack, torch.inference_mode():
        stage = _stage(spec, system, inputs, scratch, keep_timeline, stack)
        load_ms = stage.start()
        accuracy = Accuracy(inputs.workload)
        generations = _generate(spec, stage, inputs, accuracy, progress)
        document = _document(spec, stage, inputs, generations, accuracy, load_ms)
    document["provenance"]["wall_s"] = round(time.monotonic() - started, 3)
    return Outcome(document, stage.timeline.picture(), stage.timeline)


# ----------------------------------------------------------------------------- what is read


def prepare(spec: RunSpec, data_dir: Path | None) -> Inputs:
    """Open the weights and draw the prompts; what can be wrong with the input shows here.

    Args:
        data_dir: the folder of evaluation sets, if any.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    build(spec.system, spec.settings)
    path = _weights_path(spec)
    checkpoint = Checkpoint(path)
    full = model_shape(spec.model)
    _check_topology(full, checkpoint)
    tokenizer_file = path / "tokenizer.json"
    if not tokenizer_file.exists():
        raise CheckpointError(f"{tokenizer_file}: missing; a run needs the model's tokenizer")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    chosen = workload(spec.workload)
    sample = load(chosen, count=spec.prompts, seed=spec.seed, data_dir=data_dir)
    shots = ()
    if chosen.few_shot:
        shots = load(chosen, "train", chosen.few_shot, spec.seed, data_dir).examples
    prompts = [tokenizer.encode(build_prompt(chosen, e, shots)).ids for e in sample.examples]
    local = spec.machine == "local"
    profile = datetime.now(UTC).isoformat() if local else load_profile(spec.machine).content_hash()
    hashes = {
        "weights": checkpoint.content_hash(),
        "data": sample.data_hash,
        "profile": profile,
    }
    return Inputs(spec, checkpoint, full, tokenizer, chosen, sample, prompts, hashes)


def _weights_path(spec: RunSpec) -> Path:
    if spec.weights is not None:
        return Path(spec.weights)
    if spec.model not in scale_names():
        ours = ", ".join(scale_names())
        raise UsageError(
            f"no scale model of {spec.model} ships yet (there is one of: {ours}); "
            "give real weights with --weights DIR"
        )
    return scale_path(spec.model)


def _check_topology(full: ModelShape, checkpoint: Checkpoint) -> None:
    """Weights may differ from the model in widths only."""
    for field in ("family", "num_layers", "dense_layers", "num_experts", "top_k", "gate"):
        wanted, found = getattr(full, field), getattr(checkpoint.shape, field)
        if wanted != found:
            raise CheckpointError(
                f"{checkpoint.path}: {field} is {found}, the model charged for has {wanted}; "
                "only widths and vocabulary may differ"
            )


# ----------------------------------------------------------------------------- what it runs on


@dataclass(slots=True)
class _Stage:
    """Everything that runs: model, machine, memory and engine, wired once."""

    engine: Engine
    decoder: Decoder
    reference: Decoder
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


def _stage(
    spec: RunSpec, system: System, inputs: Inputs, scratch: Path, keep: bool, stack: ExitStack
) -> _Stage:
    local = spec.machine == "local"
    capacity, profile, notes = _capacity(spec, system, inputs)
    make = _local if local else _simulated
    return make(spec, system, inputs, capacity, profile, notes, scratch, keep, stack)


def _capacity(
    spec: RunSpec, system: System, inputs: Inputs
) -> tuple[Capacity, HardwareProfile, list[str]]:
    """How many experts fit; a local machine takes the share that its setting's machine holds."""
    name = spec.machine
    if name == "local":
        if spec.setting is None:
            raise UsageError("--machine local: give --setting NAME, whose cache ratio is used")
        name = setting(spec.setting).machine
    profile = load_profile(name)
    longest = max(len(p) for p in inputs.prompts) + spec.new_tokens
    capacity = plan(
        profile,
        inputs.full,
        spec.precision,
        kv_tokens=longest * spec.batch,
        cache_ratio=spec.cache_ratio,
        all_resident=system.all_resident,
        allow_overcommit=spec.allow_overcommit or spec.machine == "local",
        free_host_bytes=None if spec.free_host_gb is None else round(spec.free_host_gb * 1e9),
    )
    notes = []
    if capacity.overcommitted and spec.machine != "local":
        notes.append(f"overcommitted: {profile.gpu.name} cannot hold every expert")
    if capacity.from_disk:
        notes.append("experts do not fit into host memory: every load starts on the disk")
    return capacity, profile, notes


def _simulated(
    spec: RunSpec, system: System, inputs: Inputs, capacity: Capacity, profile: HardwareProfile,
    notes: list[str], scratch: Path, keep: bool, stack: ExitStack,
) -> _Stage:  # fmt: skip
    shape, costs = inputs.checkpoint.shape, CostModel(profile, inputs.full, spec.precision)
    timeline = Timeline(costs.record_bytes, keep)
    machine = SimulatedMachine(costs, timeline, capacity.from_disk)
    cache = ExpertCache(shape, capacity.slots, system.scope, capacity.device, costs.record_bytes)
    experts = ResidentExperts(inputs.checkpoint, torch.float32)
    decoder = _decoder(inputs, experts)
    common_ns = inputs.full.common_bytes(spec.precision) / costs.h2d_bytes_per_ns
    load_one = measure._link_ns(machine)
    notes = [f"simulated on {profile.name} ({profile.badge}): no such hardware ran", *notes]
    return _Stage(
        engine=Engine(system, decoder, machine, cache, timeline),
        decoder=decoder,
        reference=_decoder(inputs, experts),
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
    spec: RunSpec, system: System, inputs: Inputs, capacity: Capacity, profile: HardwareProfile,
    notes: list[str], scratch: Path, keep: bool, stack: ExitStack,
) -> _Stage:  # fmt: skip
    shape, dtype = inputs.checkpoint.shape, torch.float32
    store_path = scratch / "experts" / f"{inputs.hashes['weights']}-{dtype}.bin".replace("torch.", "")
    store = ExpertStore.build(inputs.checkpoint, store_path, dtype)
    timeline = Timeline(store.record_bytes, keep)
    device = Tier("memory", capacity.slots * store.record_bytes)
    cache = ExpertCache(shape, capacity.slots, system.scope, device, store.record_bytes)
    machine = stack.enter_context(LocalMachine(store, cache.slots, timeline))
    if system.assign.uses_host:
        system.assign = LoadAll()
        notes.append("host assist is off: on this machine the host is the device (assign=load)")
    notes = [f"measured on this computer's CPU with {cache.slots} slots in memory", *notes]
    decoder = _decoder(inputs, SlotExperts(cache, machine.slots))
    return _Stage(
        engine=Engine(system, decoder, machine, cache, timeline),
        decoder=decoder,
        reference=_decoder(inputs, ResidentExperts(inputs.checkpoint, dtype)),
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


def _decoder(inputs: Inputs, experts: Experts) -> Decoder:
    return Decoder(inputs.checkpoint.shape, inputs.checkpoint.common(torch.float32), experts)


# ----------------------------------------------------------------------------- what it does


def _generate(
    spec: RunSpec, stage: _Stage, inputs: Inputs, accuracy: Accuracy, progress: Progress
) -> list[Generation]:
    generations = []
    batches = range(0, len(inputs.prompts), spec.batch)
    for done, first in enumerate(batches):
        rows = slice(first, first + spec.batch)
        prompts = inputs.prompts[rows]
        stage.timeline.window(PICTURE_TOKENS if first == 0 else None)
        generation = stage.engine.generate(prompts, spec.new_tokens)
        generations.append(generation)
        texts = [_answer(inputs, tokens) for tokens in generation.tokens]
        accuracy.add_texts(inputs.sample.examples[rows], texts)
        accuracy.add_logits(stage.reference, prompts, generation.tokens, stage.decoder.history)
        progress(done + 1, len(batches))
    return generations


def _answer(inputs: Inputs, tokens: Sequence[int]) -> str:
    return cut(inputs.tokenizer.decode(list(tokens), skip_special_tokens=False), inputs.workload.stop)


# ----------------------------------------------------------------------------- what it says


def _document(
    spec: RunSpec, stage: _Stage, inputs: Inputs, generations: list[Generation],
    accuracy: Accuracy, load_ms: float,
) -> dict[str, Any]:  # fmt: skip
    profile, engine = stage.profile, stage.engine
    resolved = {
        **spec.model_dump(),
        "alpha": getattr(engine.system.route, "alpha", None),
        "cache_ratio": measure.ratio(stage.slots, stage.total),
        "slots": stage.slots,
        "options": describe(engine.system),
    }
    return {
        "run_id": inputs.run_id,
        "spec": resolved,
        "badge": "measured" if profile is None else profile.badge,
        "simulated": profile is not None,
        "lossless": engine.system.lossless,
        "notes": stage.notes,
        "metrics": {
            **measure.latencies(generations),
            **measure.expert_figures(engine),
            **measure.lane_figures(stage.timeline),
            "peak_device_bytes": stage.device.peak_bytes,
            "peak_host_bytes": stage.host.peak_bytes,
            **measure.energy(profile, stage.timeline, generations),
            "load_ms": load_ms,
        },
        "accuracy": accuracy.document(),
        "bound": measure.bound(engine, generations),
        "provenance": _provenance(spec, profile, inputs),
    }


def _provenance(
    spec: RunSpec, profile: HardwareProfile | None, inputs: Inputs
) -> dict[str, Any]:
    sample, hashes = inputs.sample, inputs.hashes
    calibration = None if profile is None else profile.calibration
    return {
        "versions": {name: _version(name) for name in ("moebench", "torch", "numpy", "tokenizers")}
        | {"python": platform.python_version()},
        "commit": _commit(),
        "code_hash": code_hash(),
        "machine": spec.machine if profile is not None else platform.processor() or platform.machine(),
        "profile": None if profile is None else profile.description,
        "profile_hash": None if profile is None else hashes["profile"],
        "profile_error": None if calibration is None else calibration.error.ratio,
        "weights": spec.weights or f"scale model of {spec.model}",
        "weights_hash": hashes["weights"],
        "data": f"{sample.source}, {len(sample.examples)} of {sample.available}, seed {sample.seed}",
        "data_hash": hashes["data"],
        "threads": torch.get_num_threads(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, where moebench runs from one."""
    here = Path(__file__).parent.parent
    if not (here / ".git").exists():
        return None
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True
    )
    return done.stdout.strip() or None

"""Simulates a published row: its engine on its machine, with the values of the constants.

The engine, cost model and policies are those of every other run; this module only builds them from
a row's `Case`, without the catalogue's memory planning, since a row states its placement.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moebench.harness.published.case import Case
from moebench.harness.published.constants import COMPONENTS, Values
from moebench.harness.published.prediction import Phase
from moebench.harness.published.routing import Drawn
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.policies import Placement
from moebench.substrate.machines import compose
from moebench.substrate.machines.costs import CostModel, HostProducts
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.machines.profile_ranges import moved
from moebench.substrate.machines.quantity import Count, Efficiency, Ratio
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import ModelShape
from moebench.systems.llamacpp import CpuMoE, GpuLayers, HostOrCopy, LlamaCpp, StaticSplit
from moebench.systems.policies.assign import LoadForOneUse

#: Bytes of one value of a KV cache without a format of its own.
CACHE_BYTES = 2.0

#: Kinds of software whose control thread is C++.
NATIVE = ("ggml", "ik", "kt")


def milliseconds(case: Case, values: Values, phase: Phase) -> float:
    """Return the simulated milliseconds of a decoded token, or of the prompt."""
    batch = case.batch
    lengths, shape = case.lengths, case.shape
    decodes = phase == "decode"
    most = min(lengths.prompt, case.micro_batch)
    rows = 1 if decodes else most
    cached = lengths.cached + (lengths.prompt - most) // 2
    seen = lengths.context if decodes else _equal_prompt(most, cached)
    hot = round(case.hot * shape.num_experts)
    model = Drawn(shape, rows * batch, case.micro_batch, hot, _hits(case, values), values["alike"])
    engine = _engine(case, values, model)
    done = engine.generate([[0] * seen] * batch, 2 if decodes else 1)
    # Each micro-batch of a prompt takes as long as one in its middle.
    return done.steps_ns[0] / 1e6 if decodes else done.ttft_ns / 1e6 * lengths.prompt / most


def _equal_prompt(prompt: int, cached: int) -> int:
    """Return the length of an empty-cache prompt with as many products of queries and keys."""
    return max(prompt, round(math.sqrt(2.0 * prompt * cached + prompt * prompt)))


def _hits(case: Case, values: Values) -> float:
    """Return the share of a token's experts that are hot: as stated, else by the law."""
    if not case.hot:
        return 0.0
    law = values["cache hits" if case.engine.caches else "static hits"]
    return case.hit_rate or case.hot**law


# ------------------------------------------------------------------------------ the engine


def _engine(case: Case, values: Values, model: Drawn) -> Engine:
    shape, rules = case.shape, case.engine
    system = _system(case)
    rate = values[case.format] if case.format else 1.0
    if case.rate is not None:
        rate = case.rate
    if rules.kernels:
        rate *= values[rules.kernels]
    rate *= _core(case, values)
    costs = CostModel(
        profile_of(case, values), shape, case.bits.others, expert_precision=case.bits.routed,
        pinned=case.pinned, host=HostProducts("fused", case.threads, rate),
    )  # fmt: skip
    here = [layer for layer in shape.moe_layers if layer >= case.first]
    host_layers = len(shape.moe_layers) - len(here)
    hot = round(case.hot * shape.num_experts) * host_layers
    # Room for a layer's copies: fewer slots take as long where nothing overlaps, but more steps.
    if rules.misses == "host":
        spare = shape.num_experts
    elif rules.loads == "all":
        spare = 2 * shape.num_experts
    else:
        spare = 2 * shape.top_k * case.batch
    slots = len(here) * shape.num_experts + hot + (spare if host_layers else 0)
    timeline = Timeline()
    machine = SimulatedMachine(costs, timeline, overlap=system.overlap, blocking_copies=False)
    tier = Tier("device", slots * costs.record_bytes)
    cache = ExpertCache(shape, slots, system.scope, tier, costs.record_bytes, [])
    homes = ["host" if case.whole and layer < case.first else "device"
             for layer in range(shape.num_layers)]  # fmt: skip
    engine = Engine(system, model, machine, cache, timeline, homes)  # type: ignore[arg-type]
    engine.start()
    return engine


def _system(case: Case) -> LlamaCpp:
    hot = Hot(hot=round(case.hot * case.shape.num_experts), first=case.first)
    if case.engine.misses == "link":
        return LlamaCpp(
            place=hot, assign=LoadForOneUse(experts=case.engine.loads), overlap=case.engine.overlap,
            pinned_copies=case.pinned, blocking_copies=False,
        )  # fmt: skip
    never = np.iinfo(np.int32).max
    streams = case.engine.streams_from if not case.on_host else None
    assign = HostOrCopy(min_batch=streams or int(never), micro_batch=case.micro_batch)
    place: StaticSplit | Hot = GpuLayers() if case.whole else CpuMoE()
    if case.hot:
        place = hot
    else:
        assert isinstance(place, StaticSplit)
        place.first = case.first
    return LlamaCpp(place=place, assign=assign, host_together=True, pinned_copies=case.pinned)


@dataclass(kw_only=True)
class Hot(Placement):
    """Static hot experts: as many in each layer, and all of the layers from ``first`` on."""

    hot: int
    first: int

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the experts of the lowest ids of each layer, and all of the last layers."""
        return [
            (layer, expert) for layer in shape.moe_layers
            for expert in range(shape.num_experts if layer >= self.first else self.hot)
        ]  # fmt: skip


# ------------------------------------------------------------------------------ the machine


def profile_of(case: Case, values: Values) -> HardwareProfile:
    """Return the row's machine with the values of the constants."""
    profile = _with_constants(case.profile)
    for field, value in _changes(case, values, profile):
        profile = moved(profile, field, value)
    return profile


def _with_constants(profile: HardwareProfile) -> HardwareProfile:
    """Return the profile with the numbers of its software that constants set."""
    one = Efficiency(value=1.0, unit="1", badge="estimate", source="set by a constant")
    gain = Ratio(value=1.0, unit="1", badge="estimate", source="set by a constant")
    rows = Count(value=1, unit="1", badge="estimate", source="set by a constant")
    fields = ("attention_reads", "latent_reads", "host_attention")
    set_later = {**dict.fromkeys(fields, one), "host_rows_gain": gain, "unpacking_rows": rows}
    # Gains of one row are constants, too.
    software = profile.software.model_copy(update={**set_later, "host_kernel_gain": None})
    return profile.model_copy(update={"software": software})


def _changes(case: Case, values: Values, profile: HardwareProfile) -> Iterable[tuple[str, float]]:
    """Yield the fields of the profile that the constants set, each with its value."""
    host, gpu, link, rules = profile.host, profile.gpu, profile.link, case.engine
    software = profile.software
    reads = host.gemv_bandwidth.value
    if "reads" not in case.measured:
        reads *= values[case.reads] / BASES.get(case.reads, 1.0)
    if case.sockets > 1 and case.reads != "measured reads":
        doublings = math.log2(case.sockets)
        one = reads / compose.TWO_SOCKETS**doublings
        bound = values["bound sockets"] ** doublings
        reads = one * (bound if case.bound else values["unbound sockets"])
    yield "host.gemv_bandwidth", reads
    # A cache for each value has the bytes of its format; the kernels unpack it as they read.
    yield "software.host_attention", values["host attention"] * CACHE_BYTES / case.cache_bytes
    native = software.name in NATIVE
    reading = "attention reads" if native else "python attention reads"
    yield "software.attention_reads", values[reading]
    yield "software.latent_reads", values["latent reads"]
    yield "software.host_rows_gain", _rows_gain(case, values)
    handoff = values["handoff us"] * (values["virtual handoff"] if case.virtual else 1.0)
    if case.hot and rules.misses == "host":
        handoff += values["cached layer us"]
    yield "host.handoff", handoff
    factor = values["launch ggml" if native else "launch python"]
    yield "software.launch", software.launch.value * factor
    yield "software.layer", software.layer.value * factor
    yield "software.expert", software.expert.value * factor
    yield "gpu.small_read_efficiency", gpu.small_read_efficiency.value * values["small reads"]
    if profile.pool and not case.on_host:
        for reading in ("small_read_efficiency", "large_read_efficiency"):
            yield f"gpu.{reading}", getattr(gpu, reading).value * values["pool reads"]
    yield "gpu.tensor_efficiency", values[case.products]
    yield "software.unpacking_rows", round(values["unpacking rows"])
    # Engines copy whole tensors.  An unpinned copy is read, written to a buffer, and read again.
    yield "link.in_engine_efficiency", 1.0
    pinned = min(link.pinned_h2d.value, reads)
    yield "link.pinned_h2d", pinned
    if "link" not in case.measured:
        yield "link.pageable_h2d", min(values["unpinned copies"] * pinned, reads / 3)


#: Values of constants that the composed profile holds already.
BASES = {"measured reads": 0.9}


def _core(case: Case, values: Values) -> float:
    """Return a core's rate over the profile's."""
    if "cores" in case.measured:
        return 1.0
    return values["core AVX-512" if case.wide else "core AVX2"]


def _rows_gain(case: Case, values: Values) -> float:
    """Return a core's rate with many rows over its composed rate with one."""
    rate = _core(case, values) * values[rules_of_rows(case)]
    return float(rate * case.sockets ** (math.log2(2 * values["sockets products"]) - 1))


#: Constants that only prompts depend on, and only decoded tokens of one text.
OF_PROMPTS = frozenset({
    *(name for name in COMPONENTS if name.startswith("rows ")), "sockets products",
    "device products", "other products", "unpacking rows", "alike",
})  # fmt: skip
OF_TOKENS = frozenset({
    "attention reads", "latent reads", "codebook formats", "few bits", "fp4 formats", "repacked",
    "python attention reads", "cache hits", "static hits",
})  # fmt: skip


def names_of(case: Case, phase: Phase) -> list[str]:
    """Return the constants on which a figure can depend."""
    foreign = OF_TOKENS if phase == "prefill" else OF_PROMPTS
    rows = {name for name in COMPONENTS if name.startswith("rows ")} - {rules_of_rows(case)}
    rows |= {"device products", "other products"} - {case.products}
    foreign |= rows | {"core AVX2" if case.wide else "core AVX-512"}
    foreign |= {"server reads", "desktop reads", "measured reads", "pool reads"} - {case.reads}
    if case.batch > 1:
        foreign -= OF_PROMPTS - rows
    return [name for name in COMPONENTS if name not in foreign]


def rules_of_rows(case: Case) -> str:
    """Return the name of the constant of an engine's products with many rows."""
    if case.tiles:
        return "rows AMX"
    return f"rows {case.engine.products}" + (" repacked" if case.repacked else "")

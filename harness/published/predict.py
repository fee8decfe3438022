"""Predicts published rows: each becomes a simulated run of its engine on its machine.

The engine, cost model and policies are those of every other run; this module only builds them from
a row's `Case`, without the catalogue's memory planning, since a row states its placement.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moebench.harness.published.case import NOISE, Case, Unpredictable, case_of
from moebench.harness.published.engines import Engine as Rules
from moebench.harness.published.prediction import Phase, Prediction
from moebench.harness.published.routing import Drawn
from moebench.harness.published.rows import Row
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.policies import Placement
from moebench.substrate.machines.costs import CostModel, HostProducts
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.machines.profile_ranges import moved
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import ModelShape
from moebench.systems.llamacpp import CpuMoE, GpuLayers, HostOrCopy, LlamaCpp, StaticSplit, staging
from moebench.systems.policies.assign import LoadForOneUse

#: Factor of a standard deviation at the ends of an interval of 80 %.
EIGHTY = 1.2816

#: Numbers of a profile whose ranges an interval covers.
VARIED: dict[Phase, tuple[str, ...]] = {
    "decode": (
        "gpu.small_read_efficiency", "host.gemv_bandwidth", "host.core_rate", "host.handoff",
        "software.launch",
    ),
    "prefill": (
        "gpu.tensor_efficiency", "link.pinned_h2d", "link.pageable_h2d", "host.gemv_bandwidth",
    ),
}  # fmt: skip

#: Copies of weights that are mapped from a file, over page-locked ones: value and lowest share.
UNPINNED, UNPINNED_LOWEST = 0.6, 1 / 3

#: Share of an integrated GPU's peak that products of quantised experts reach.
POOL_SHARE = 0.1

#: Standard deviation of the logarithm of the model's own error: what its rules leave out.
OWN_ERROR: dict[Phase, float] = {"decode": 0.25, "prefill": 0.5}

#: Most micro-batches of a prompt that are simulated; a longer one takes as much time for each.
MOST_MICRO_BATCHES = 4


def predict(rows: Sequence[Row]) -> list[Prediction]:
    """Return a prediction for each phase of each row that has a measured rate."""
    return [one for row in rows for one in predict_row(row)]


def predict_row(row: Row) -> list[Prediction]:
    """Return a row's predictions, or the reason why there are none."""
    measured = [(phase, rate) for phase in row.phases if (rate := row.measured(phase)) is not None]
    try:
        case = case_of(row)
        return [_prediction(case, phase, rate) for phase, rate in measured]
    except Unpredictable as why:
        return [Prediction(row.id, phase, rate, reason=str(why)) for phase, rate in measured]


def _prediction(case: Case, phase: Phase, measured: float) -> Prediction:
    profile = _with_rules(case.profile, case.engine)
    took_ms = milliseconds(case, profile, phase)
    variance = NOISE**2 + OWN_ERROR[phase] ** 2 + sum(sd**2 for sd in case.unsaid.values())
    for field, number in profile.quantities():
        if field in VARIED[phase] and number.range is not None:
            ends = [milliseconds(case, moved(profile, field, end), phase)
                    for end in number.range]  # fmt: skip
            # A range is taken as two standard deviations to each side.
            variance += (math.log(max(ends) / min(ends)) / 4) ** 2
    spread = math.exp(EIGHTY * math.sqrt(variance))
    rate = tokens(case, phase) * 1e3 / took_ms
    remarks = list(case.remarks)
    if phase == "decode" and (limit := _limit(case)) is not None and measured > limit:
        remarks.append(f"impossible as stated: the memory allows {limit:.3g} tokens/s at most")
    return Prediction(
        case.row.id, phase, measured, rate, rate / spread, rate * spread, remarks=tuple(remarks)
    )


def tokens(case: Case, phase: Phase) -> float:
    """Return the tokens that the returned milliseconds are of."""
    batch = case.row.batch or 1
    return float(batch) if phase == "decode" else float(case.lengths.prompt) * batch


def _limit(case: Case) -> float | None:
    """Return the decode rate at which the experts on the host need all of its bandwidth."""
    share = sum(layer < case.first for layer in case.shape.moe_layers)
    if not share or case.hot:
        return None
    size = share * case.shape.top_k * case.shape.expert_bytes(case.bits.routed)
    return case.profile.host.gemv_bandwidth.high.bytes_per_s / size * 1.25


# ------------------------------------------------------------------------------ one simulation


def milliseconds(case: Case, profile: HardwareProfile, phase: Phase) -> float:
    """Return the simulated milliseconds of a decoded token, or of the prompt."""
    batch = case.row.batch or 1
    lengths, shape = case.lengths, case.shape
    decodes = phase == "decode"
    most = min(lengths.prompt, MOST_MICRO_BATCHES * case.micro_batch)
    rows = 1 if decodes else most
    cached = lengths.cached + (lengths.prompt - most) // 2
    seen = lengths.context if decodes else _equal_prompt(most, cached)
    hot = round(case.hot * shape.num_experts)
    model = Drawn(shape, rows * batch, case.micro_batch, hot, case.hits)
    engine = _engine(case, profile, model)
    done = engine.generate([[0] * seen] * batch, 2 if decodes else 1)
    return done.steps_ns[0] / 1e6 if decodes else done.ttft_ns / 1e6 * lengths.prompt / most


def _equal_prompt(prompt: int, cached: int) -> int:
    """Return the length of an empty-cache prompt with as many products of queries and keys."""
    return max(prompt, round(math.sqrt(2.0 * prompt * cached + prompt * prompt)))


def _engine(case: Case, profile: HardwareProfile, model: Drawn) -> Engine:
    shape, rules = case.shape, case.engine
    system = _system(case)
    products = HostProducts("fused", case.threads, case.rate * rules.gain)
    costs = CostModel(
        profile, shape, case.bits.others,
        expert_precision=case.bits.routed, pinned=case.pinned, host=products,
    )  # fmt: skip
    here = [layer for layer in shape.moe_layers if layer >= case.first]
    host_layers = len(shape.moe_layers) - len(here)
    hot = round(case.hot * shape.num_experts) * host_layers
    spare = staging(shape) if rules.misses == "host" else 2 * shape.top_k * int(case.row.batch or 1)
    slots = len(here) * shape.num_experts + hot + (spare if host_layers else 0)
    timeline = Timeline(False)
    machine = SimulatedMachine(costs, timeline, overlap=system.overlap, blocking_copies=False)
    tier = Tier("device", max(1, slots) * costs.record_bytes)
    cache = ExpertCache(shape, max(1, slots), system.scope, tier, costs.record_bytes, [])
    homes = ["host" if case.whole and layer < case.first else "device"
             for layer in range(shape.num_layers)]  # fmt: skip
    engine = Engine(system, model, machine, cache, timeline, homes)  # type: ignore[arg-type]
    engine.start()
    return engine


def _system(case: Case) -> LlamaCpp:
    if case.engine.misses == "link":
        return LlamaCpp(
            place=Hot(hot=round(case.hot * case.shape.num_experts), first=case.first),
            assign=LoadForOneUse(experts="active"), overlap=True, pinned_copies=case.pinned,
            blocking_copies=False,
        )  # fmt: skip
    never = np.iinfo(np.int32).max
    place: StaticSplit = GpuLayers() if case.whole else CpuMoE()
    place.first = case.first
    streams = case.engine.streams_from if not case.on_host else None
    assign = HostOrCopy(min_batch=streams or int(never), micro_batch=case.micro_batch)
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


def _with_rules(profile: HardwareProfile, rules: Rules) -> HardwareProfile:
    """Return a profile with the engine's products on host and device, and its hand-over."""
    host = profile.host
    share = host.gemm_efficiency.model_copy(update={"value": rules.host_share, "range": None})
    handoff = host.handoff
    ratio = rules.handoff_us / handoff.value
    ends = None if handoff.range is None else tuple(ratio * end for end in handoff.range)
    handoff = handoff.model_copy(update={"value": rules.handoff_us, "range": ends})
    host = host.model_copy(update={"gemm_efficiency": share, "handoff": handoff})
    # The engine's rules state these, not its kind of software.
    own = {"host_gemm_share": None, "host_kernel_gain": None}
    software = profile.software.model_copy(update=own)
    reached = POOL_SHARE if profile.pool else rules.device_share
    ends = (reached / 2, min(1.0, 2 * reached))
    tensor = profile.gpu.tensor_efficiency.model_copy(update={"value": reached, "range": ends})
    gpu = profile.gpu.model_copy(update={"tensor_efficiency": tensor})
    # Engines copy whole tensors.
    pinned, link = profile.link.pinned_h2d, profile.link
    # An unpinned copy is read, written to a staging buffer and read again by the card.
    through = host.gemv_bandwidth.value / 3
    unpinned = link.pageable_h2d.model_copy(update={
        "value": min(UNPINNED * pinned.value, through), "unit": pinned.unit,
        "range": (min(UNPINNED_LOWEST * pinned.value, through), pinned.value),
    })  # fmt: skip
    whole = link.in_engine_efficiency.model_copy(update={"value": 1.0, "range": None})
    link = link.model_copy(update={"pageable_h2d": unpinned, "in_engine_efficiency": whole})
    changed = {"host": host, "gpu": gpu, "link": link, "software": software}
    return profile.model_copy(update=changed)

"""Times of one expert as the simulated machine charges them (SMoE Fig. 3, 8 and part of 18)."""

from moebench.harness.reproduce.evidence import BADGES, Evidence
from moebench.harness.reproduce.read import curried
from moebench.results.claims import Measured
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.models.catalogue import model_shape

#: Model and GPU of Fig. 8.
MODEL, MACHINE = "qwen2-57b-a14b", "a6000"

#: Models of Fig. 3 (first version: Fig. 6), those of S1 to S3.
MODELS = ("deepseek-moe-16b", "xverse-moe-a4.2b", "qwen2-57b-a14b")

#: A machine with the same GPU and another host, whose profile takes no number from SMoE.
OTHER_MACHINE = "a6000@duoserve"


def expert_ns(lane: Lane, rows: int, machine: str = MACHINE, model: str = MODEL) -> int:
    """Return the time of one expert on a lane, in ns, for ``rows`` tokens that all choose it."""
    costs = CostModel(load_profile(machine), model_shape(model), "bf16")
    return costs.ns(Op(OpKind.EXPERT, 0, (rows,), (0,)), lane)


def load_ns(machine: str = MACHINE, model: str = MODEL) -> int:
    """Return the time to copy one expert to the device, in ns."""
    costs = CostModel(load_profile(machine), model_shape(model), "bf16")
    return costs.ns(Op(OpKind.LOAD, 0), Lane.H2D)


@curried
def over_one_row(evidence: Evidence, lane: Lane, rows: int) -> Measured:
    """Return the time of an expert for ``rows`` rows over its time for one row."""
    profile = load_profile(MACHINE)
    value = expert_ns(lane, rows) / expert_ns(lane, 1)
    said = f"{MODEL}, {profile.host.cores.count} cores; exact: what the cost model charges"
    return Measured.of([value], charged_badge(profile, lane), said)


@curried
def host_over_load(evidence: Evidence, machine: str = MACHINE) -> Measured:
    """Return the time of one expert on the host over the time to load it."""
    name = evidence.machine(machine)
    profile, value = load_profile(name), expert_ns(Lane.HOST, 1, name) / load_ns(name)
    said = f"{MODEL} on {machine}; exact: what the cost model charges"
    return Measured.of([value], charged_badge(profile, Lane.HOST), said)


@curried
def over_gpu(evidence: Evidence, lane: Lane) -> Measured:
    """Return the time to load an expert, or of one on the host, over its time on the GPU.

    There is a sample for each model, with one token.
    """
    name = evidence.machine(MACHINE)
    times = [
        load_ns(name, model) if lane is Lane.H2D else expert_ns(lane, 1, name, model)
        for model in MODELS
    ]
    samples = [
        ns / expert_ns(Lane.DEVICE, 1, name, model) for ns, model in zip(times, MODELS, strict=True)
    ]
    said = f"{', '.join(MODELS)} on {MACHINE}, as the cost model charges"
    return Measured.of(samples, charged_badge(load_profile(name), Lane.HOST), said, "models")


def charged_badge(profile: HardwareProfile, lane: Lane) -> str:
    """Return the lowest badge of the profile numbers that price an expert on a lane."""
    gpu, host = profile.gpu, profile.host
    numbers = (
        (gpu.bandwidth, gpu.small_read_efficiency, gpu.large_read_efficiency, gpu.tensor_efficiency)
        if lane is Lane.DEVICE
        else (host.gemv_bandwidth, host.peak_fp32, host.gemm_efficiency, host.handoff)
    )
    return min((str(number.badge) for number in numbers), key=BADGES.index)

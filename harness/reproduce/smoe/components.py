"""Times of one expert as the simulated machine charges them.

They are the times of SMoE's Fig. 3 and 8, of a part of Fig. 18, and of prompts (first version,
§4.1).
"""

from collections.abc import Sequence
from itertools import count

from moebench.harness.reproduce.evidence import BADGES, Evidence
from moebench.harness.reproduce.read import curried
from moebench.harness.reproduce.smoe.experiments import SETTINGS
from moebench.harness.settings import setting
from moebench.results.claims import Measured
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.models.catalogue import model_shape

#: Model and machine of S3.
MODEL, MACHINE = "qwen2-57b-a14b", "a6000"

#: The same GPU with the host of Fig. 8, which has 8 cores.
EIGHT_CORES = "a6000@smoe-8core"

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
def over_one_row(evidence: Evidence, lane: Lane, rows: int, machine: str = EIGHT_CORES) -> Measured:
    """Return the time of an expert for ``rows`` rows over its time for one row."""
    profile = load_profile(machine)
    value = expert_ns(lane, rows, machine) / expert_ns(lane, 1, machine)
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
def over_lane(evidence: Evidence, lane: Lane, other: Lane = Lane.DEVICE) -> Measured:
    """Return the time of an expert on a lane over that on another, by default the GPU's.

    The link's is that of a load.  There is a sample for each model, with one token.
    """
    name = evidence.machine(MACHINE)
    samples = [one_ns(lane, name, model) / one_ns(other, name, model) for model in MODELS]
    said = f"{', '.join(MODELS)} on {MACHINE}, as the cost model charges"
    return Measured.of(samples, charged_badge(load_profile(name), Lane.HOST), said, "models")


def one_ns(lane: Lane, machine: str, model: str) -> int:
    """Return the time of an expert and one token on a lane, in ns; the link's is that of a load."""
    return load_ns(machine, model) if lane is Lane.H2D else expert_ns(lane, 1, machine, model)


# ----------------------------------------------------------------------------- prompts


def rows_of(tokens: int, model: str) -> int:
    """Return the rows of an expert in a prompt whose tokens choose all experts equally often."""
    shape = model_shape(model)
    return max(1, round(tokens * shape.top_k / shape.num_experts))


@curried
def prompt_over(evidence: Evidence, tokens: int, before: int) -> Measured:
    """Return the host's time of an expert of a prompt over that of a shorter prompt."""
    times = [expert_ns(Lane.HOST, rows_of(n, MODEL), EIGHT_CORES, MODEL) for n in (tokens, before)]
    said = f"{MODEL} on {EIGHT_CORES}; exact: what the cost model charges"
    badge = charged_badge(load_profile(EIGHT_CORES), Lane.HOST)
    return Measured.of([times[0] / times[1]], badge, said)


def slower_from(model: str, machine: str) -> int:
    """Return the tokens of the shortest prompt of which the host takes longer than a load."""
    load = load_ns(machine, model)
    return next(
        n for n in count(1) if expert_ns(Lane.HOST, rows_of(n, model), machine, model) > load
    )


def longest_limit(evidence: Evidence, settings: Sequence[str] = SETTINGS) -> Measured:
    """Measure the longest of the prompts of `slower_from` over settings, in tokens."""
    found = {}
    for name in settings:
        row = setting(name)
        found[name] = slower_from(row.model, evidence.machine(row.machine))
    said = ", ".join(f"{name} {tokens}" for name, tokens in found.items())
    badges = [charged_badge(load_profile(setting(s).machine), Lane.HOST) for s in settings]
    return Measured.of(
        [max(found.values())], min(badges, key=BADGES.index),
        f"exact: a largest value; {said} tokens, as the cost models charge",
    )  # fmt: skip


def charged_badge(profile: HardwareProfile, lane: Lane) -> str:
    """Return the lowest badge of the profile numbers that price an expert on a lane."""
    gpu, host = profile.gpu, profile.host
    numbers = (
        (gpu.bandwidth, gpu.small_read_efficiency, gpu.large_read_efficiency, gpu.tensor_efficiency)
        if lane is Lane.DEVICE
        else (host.gemv_bandwidth, host.peak_fp32, host.gemm_efficiency, host.handoff)
    )
    return min((str(number.badge) for number in numbers), key=BADGES.index)

"""FlashMoE's times: of runs, of charged components, and of decisions on this computer."""

import math
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import cast

import numpy as np

from moebench.harness.reproduce import read
from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.flashmoe import counts
from moebench.harness.reproduce.flashmoe.experiments import EVICTIONS, OTHERS, POLICIES
from moebench.harness.reproduce.read import STALL, TPOT, Figure, Measure, percent
from moebench.results.claims import Measured
from moebench.substrate.engine.decisions import LayerView
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from moebench.systems.daop import THRESHOLD, swaps
from moebench.systems.learn import eviction_network
from moebench.systems.learn.eviction_network import History

#: Document path of the peak device memory, in bytes.
PEAK = "metrics.peak_device_bytes"


def best_of(runs: Runs, name: str, others: Sequence[str]) -> float:
    """Return the decode speed with one eviction policy over the best of some others."""
    best = min(evicting(runs, other).mean(TPOT) for other in others)
    return best / evicting(runs, name).mean(TPOT)


def evicting(runs: Runs, name: str) -> Runs:
    """Return the runs with one eviction policy, whatever its options."""
    return Runs(run for run in runs if run["spec"]["overrides"].get("evict") == name)


def slower_share(runs: Runs) -> float:
    """Return the share of other eviction policies with which decode is slower."""
    others = [name for name in POLICIES if name != "flashmoe"]
    slower = [best_of(runs, "flashmoe", [name]) > 1 for name in others]
    return sum(slower) / len(slower)


def of_setting(setting: str, figure: Figure, said: str = "decoded tokens a second") -> Measure:
    """Return a function that measures a figure of a setting's runs with all eviction policies."""
    return read.measured(figure, EVICTIONS, said=said, setting=setting)


def faster_than(setting: str, other: str) -> Measure:
    """Return a function that measures FlashMoE's gain in decode speed over a policy, in percent."""
    return of_setting(setting, lambda runs: percent(best_of(runs, "flashmoe", [other])))


def speedups(runs: Runs, *paths: str, others: Sequence[str] = OTHERS) -> list[float]:
    """Return other systems' time over FlashMoE's, by setting and system.

    Args:
        paths: document paths of the times that are added up.
    """
    return [
        sum(place.of(system=other).mean(path) for path in paths)
        / sum(place.of(system="flashmoe").mean(path) for path in paths)
        for place in runs.by("setting").values()
        for other in others
    ]


def sooner(others: Sequence[str], *paths: str) -> Figure:
    """Return a function from runs to other systems' mean time over FlashMoE's."""
    return lambda runs: fmean(speedups(runs, *paths, others=others))


def loading_share(runs: Runs) -> float:
    """Return the share of decode in which the device waits for experts, in percent."""
    return read.share_of_decode(evicting(runs, "flashmoe"), STALL)


def _slots_over_own(runs: Runs, reserved: bool) -> float:
    """Return the slots of a layer that Eq. 1 gives for a run's memory, over the run's slots.

    Args:
        reserved: whether context and workspace, which the profile reserves, are the model's.
    """
    (spec, *_), (peak, *_) = ([run["spec"] for run in runs], runs.values(PEAK))
    shape = model_shape(spec["model"])
    if not reserved:
        peak -= load_profile(spec["machine"]).gpu.reserved_memory.bytes
    layers = len(shape.moe_layers)
    experts = layers * shape.num_experts * shape.expert_bytes(spec["precision"])
    by_equation = (peak - shape.common_bytes(spec["precision"])) * shape.num_experts / experts
    return float(by_equation / (spec["slots"] / layers))


def slots_by_equation_1(runs: Runs) -> float:
    """Return the slots of a layer by Eq. 1 for the peak memory of a run, over its own slots."""
    return _slots_over_own(runs, reserved=True)


def slots_without_reserve(runs: Runs) -> float:
    """Return the same for the memory without context and workspace."""
    return _slots_over_own(runs, reserved=False)


def epochs(evidence: Evidence) -> Measured:
    """Measure the most epochs of a layer's network, over all that OLMoE's runs trained."""
    most = [
        float(counts.network(routing).network.note["epochs"].split()[-1])
        for routing in counts.routings(evidence, "F1")
    ]
    return Measured.of(most, "counted", "most epochs of a layer", "trained networks")


def features_over_training(evidence: Evidence) -> Measured:
    """Measure the time to build the inputs and labels over the time to train on them.

    Four layers are trained together (`eviction_network.TOGETHER`), and stand for all.
    """
    (routing, *_) = counts.routings(evidence, "F1")
    texts = [ids[:, : eviction_network.TOGETHER] for ids in routing.sequences(learnt=True)]
    options, experts = eviction_network.EvictionNetworkOptions(), routing.experts

    def build() -> None:
        for ids in texts:
            eviction_network.features(ids, experts)
            eviction_network.labels(ids, experts)

    def train() -> None:
        with TemporaryDirectory() as empty:
            eviction_network.trained(texts, experts, options, Path(empty))

    built, both = _timed_us(build, 1), _timed_us(train, 1)
    said = f"{len(texts)} texts, {len(texts[0][0])} layers; training {(both - built) / 1e6:.1f} s"
    return Measured.of([built / (both - built)], "measured", said)


@read.curried
def charged(evidence: Evidence, what: str) -> Measured:
    """Measure the charged time of a component, averaged over both models."""
    found = {row["model"]: row["charged"] for row in read.components(what)}
    said = ", ".join(f"{model} {value:.4g}" for model, value in found.items())
    return Measured.of([fmean(found.values())], "estimate", f"charged at batch 1: {said}")


# ----------------------------------------------------------------------------- on this computer


def _timed_us(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call, in µs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - began) / 1e3)
    return median(times)


def network_us(evidence: Evidence) -> Measured:
    """Measure the time of the network's inputs and output for one layer, in µs."""
    (routing, *_) = counts.routings(evidence, "F1")
    known, ids = counts.network(routing), routing.sequences(learnt=False)[0]
    history = History(ids.shape[1], routing.experts)
    for experts in ids[:16, 0]:
        history.step(0, experts)
    answer = known.network.distances
    found = _timed_us(lambda: answer(0, history.features(0)), 500)
    return Measured.of([found], "measured", "numpy on one core of this computer; median of 500")


#: Number of Qwen3's layers, and the time to read one of its experts (§3.1).
LAYERS, READ_MS = 48, 3.0


def _prompt_of_a_layer() -> LayerView:
    """Return a view of 256 tokens with 8 random experts of 128, 24 of them on the device."""
    random = np.random.default_rng(0)
    experts, k = 128, 8
    resident = np.zeros(experts, dtype=bool)
    resident[random.permutation(experts)[: experts * 3 // 16]] = True
    chosen = np.argsort(random.random((256, experts)))[:, :k]
    view = SimpleNamespace(
        topk_ids_TK=chosen, shape=SimpleNamespace(num_experts=experts),
        resident_E=resident, in_flight_E=np.zeros(experts, dtype=bool),
    )  # fmt: skip
    return cast(LayerView, view)


def swaps_ms(evidence: Evidence) -> Measured:
    """Measure the time of DAOP's Algorithm 1 for a prompt of 256 tokens in all layers, in ms."""
    view = _prompt_of_a_layer()
    found = _timed_us(lambda: swaps(view, THRESHOLD), 100) * LAYERS / 1e3
    return Measured.of([found], "measured", "our Algorithm 1 on one core of this computer")


def swaps_and_reads_ms(evidence: Evidence) -> Measured:
    """Measure the time of DAOP's Algorithm 1 and of its expert reads in sequence, in ms."""
    decided = swaps_ms(evidence)
    loaded = LAYERS * len(swaps(_prompt_of_a_layer(), THRESHOLD))
    said = f"{loaded} experts at {READ_MS:g} ms, and {decided.value:.1f} ms to decide"
    return Measured.of([decided.value + loaded * READ_MS], "estimate", said)


#: Clock cycles a second of the paper's host (Table 2: Ryzen 9600X, at most 5.4 GHz).
CLOCK_HZ = 5.4e9


def placements_s(evidence: Evidence) -> Measured:
    """Return the time to weigh all placements of 64 experts in 24 slots, one a cycle, in s."""
    few, many = math.comb(8, 4), math.comb(64, 24)
    said = (
        f"exact: {many:.2g} placements, one at each cycle of {CLOCK_HZ / 1e9:g} GHz; Mixtral's 8 "
        f"experts in 4 slots have {few}"
    )
    return Measured.of([many / CLOCK_HZ], "counted", said)


def search_s(evidence: Evidence) -> Measured:
    """Measure the time to search all 2^64 splits of a layer's experts over host and device, in s.

    The time is extrapolated from 8 to 14 experts, by the growth for each further expert.
    """
    sizes = (8, 10, 12, 14)
    times = [_timed_us(lambda n=size: _least(n), 3) for size in sizes]  # type: ignore[misc]
    growth, start = np.polyfit(sizes, np.log(times), 1)
    seconds = math.exp(start + growth * 64) / 1e6
    said = f"sums over all splits, times {math.exp(growth):.2f} for each expert more, to 64 experts"
    return Measured.of([seconds], "measured", said)


def _least(experts: int) -> float:
    """Return the least time of any split of experts, whose host part and loads overlap."""
    costs = [(3.5 * (e % 5), 30.0) for e in range(experts)]
    return min(
        max(
            sum(host for (host, _), there in zip(costs, split, strict=True) if there),
            sum(load for (_, load), there in zip(costs, split, strict=True) if not there),
        )
        for split in product((False, True), repeat=experts)
    )

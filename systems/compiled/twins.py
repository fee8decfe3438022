"""The compositions that ``replay.cpp`` repeats, and their policies and options as its numbers.

A run is replayed in compiled code if all of its policies stand here, and its machine and system do
nothing that `why_not` names.  Every other run is replayed by the engine in Python.
"""

from collections.abc import Callable, Mapping
from typing import Any

from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.policies import Placement, Policy
from moebench.substrate.engine.system import AdmitAll
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.dali import GreedyAssignment, ResidualPrefetch
from moebench.systems.fiddler import LoadOrCompute
from moebench.systems.hybrimoe import ImpactDriven, MakespanSchedule, MinusRecentScore
from moebench.systems.policies.assign import Balanced, HostAll, LoadAll, Optimal
from moebench.systems.policies.evict import (
    FirstInFirstOut,
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    LowestAverageScore,
    NeverEvict,
    OnePlaceholder,
    OnlyNamed,
)
from moebench.systems.policies.evict_engines import WorkloadAware
from moebench.systems.policies.prefetch import NextGate, NoPrefetch
from moebench.systems.policies.route import ExactRouting
from moebench.systems.smoe import ExpertCacheRouter, TopScorePrefetch

#: The fields of `engine.Setup` that a policy sets.
Numbers = Mapping[str, float]


def _linked(policy: Any) -> dict[str, float]:
    return {
        "history": policy.history,
        "from_backlog": policy.link == "backlog",
        "load_prompts": policy.prefill == "load",
    }


#: By decision and class of the policy, its number in replay.cpp and its options.
ASSIGN: Mapping[type[Policy], tuple[int, Callable[[Any], Numbers]]] = {
    LoadAll: (0, lambda p: {}),
    HostAll: (1, lambda p: {}),
    Balanced: (2, lambda p: _linked(p) | {"by_rows": p.by == "batch", "tie_host": p.tie == "host"}),
    Optimal: (3, _linked),
    LoadOrCompute: (4, lambda p: {"history": p.history, "minimise_sum": p.minimise == "sum"}),
    MakespanSchedule: (5, lambda p: {"history": p.history, "fill": p.fill}),
    GreedyAssignment: (6, lambda p: {"history": p.history}),
}
EVICT: Mapping[type[Policy], tuple[int, Callable[[Any], Numbers]]] = {
    NeverEvict: (0, lambda p: {}),
    OnePlaceholder: (1, lambda p: {}),
    OnlyNamed: (1, lambda p: {}),
    FirstInFirstOut: (2, lambda p: {}),
    LeastRecentlyUsed: (3, lambda p: {}),
    LeastFrequentlyUsed: (
        4, lambda p: {"survive": p.survive, "oldest_first": p.tie == "lru"},
    ),
    LowestAverageScore: (5, lambda p: {"window": p.window}),
    MinusRecentScore: (6, lambda p: {"smoothing": p.smoothing, "top": p.top}),
    WorkloadAware: (
        7, lambda p: {"window": p.window, "hot": max(1, int(p.window * p.share))},
    ),
}  # fmt: skip
PREFETCH: Mapping[type[Policy], tuple[int, Callable[[Any], Numbers]]] = {
    NoPrefetch: (0, lambda p: {}),
    TopScorePrefetch: (1, lambda p: {"whole_prompt_layers": p.prefill}),
    NextGate: (1, lambda p: {}),
    ResidualPrefetch: (2, lambda p: {"fetches": p.experts}),
    ImpactDriven: (3, lambda p: {"fetches": p.experts, "impact_history": p.history}),
}

#: Policies that read each layer's mean scores, and those that read its rows' highest ones.
READS_MEAN = (LowestAverageScore, MinusRecentScore)
READS_BEST = (Balanced, Optimal, MakespanSchedule)


def why_not(engine: Engine) -> str | None:
    """Return why a run is replayed by the engine in Python; None if compiled code can replay it."""
    system, machine, cache = engine.system, engine.machine, engine.cache
    if type(engine.model) is not TracedModel:
        return "its model computes"
    if type(machine) is not SimulatedMachine or type(machine.costs) is not CostModel:
        return "its machine is measured"
    if machine.host_memory is not None or any(home != "device" for home in engine.homes):
        return "weights are on the disk, or non-expert weights on the host"
    if cache.forms > 1 or [*cache.used_forms] != [0]:
        return "records have several forms"
    route = system.route
    alone = isinstance(route, ExpertCacheRouter) and system.alpha_in_use == 0
    known = {"assign": ASSIGN, "prefetch": PREFETCH, "evict": EVICT}
    for decision, policy in system.policies.items():
        if decision in known and type(policy) not in known[decision]:
            return f"{decision} is {type(policy).__name__}"
    if type(route) is not ExactRouting and not alone:
        return f"route is {type(route).__name__}"
    if type(system.admit) is not AdmitAll:
        return f"admit is {type(system.admit).__name__}"
    if type(system.place).after_prefill is not Placement.after_prefill:
        return f"place is {type(system.place).__name__}, which fetches after prompts"
    prefetch = system.prefetch
    swaps = isinstance(prefetch, ResidualPrefetch) and prefetch.swaps
    if prefetch.chunks > 1 or swaps or (prefetch.predictor and prefetch.predictor.in_prefill):
        return "prefetches are in chunks, of exchanges, or of prompts' predictions"
    options = (
        system.synchronises, system.reads_unfinished, not system.overlap, system.in_flight != "wait"
    )  # fmt: skip
    if any(options):
        return "the system waits for layers, does not overlap, or reads unfinished copies"
    return None

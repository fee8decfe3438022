"""The policies that ``replay.cpp`` repeats, with their options as its numbers, and its limits.

A run is replayed in compiled code if its machine and system do nothing that `why_not` names.  Of
its decisions, those that stand here are compiled, too; the others are asked in Python.

The definition is the code in Python.  So whoever changes a file of `REPEATED` sees the change: no
run is replayed in compiled code from then on, until `DIGEST` says that replay.cpp repeats it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.policies import (
    Admission,
    Eviction,
    Placement,
    Policy,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.models.shape import ModelShape
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
from moebench.systems.policies.predict import NextGates, NextGatesOnNormed, NextLayer
from moebench.systems.policies.prefetch import NextGate, NoPrefetch
from moebench.systems.policies.route import ExactRouting
from moebench.systems.smoe import ExpertCacheRouter, TopScorePrefetch

#: The files that replay.cpp repeats, below the folder of packages.
REPEATED = (
    *(f"substrate/engine/{name}.py" for name in (
        "counts", "decisions", "in_flight", "loop", "operations", "policies", "prefetches",
        "records", "transfers",
    )),
    *(f"substrate/machines/{name}.py" for name in ("costs", "protocol", "simulated", "timeline")),
    "substrate/memory/cache.py", "substrate/memory/residency.py",
    *(f"systems/{name}.py" for name in ("dali", "fiddler", "hybrimoe", "smoe")),
    *(f"systems/policies/{name}.py" for name in (
        "assign", "evict", "evict_engines", "latency", "makespan", "predict", "prefetch", "route",
    )),
)  # fmt: skip

#: Of these files as replay.cpp repeats them.
DIGEST = "c18a0e5b53fa58ce"


def digest(root: Path = Path(__file__).parents[2]) -> str:
    """Return 16 hex digits of a hash of the files of `REPEATED`."""
    found = hashlib.sha256()
    for name in REPEATED:
        found.update(name.encode() + hashlib.sha256((root / name).read_bytes()).digest())
    return found.hexdigest()[:16]


@cache
def repeated() -> bool:
    """Return whether replay.cpp repeats the files as they are."""
    return digest() == DIGEST


#: The fields of `engine.Setup` that a policy sets.
Numbers = Mapping[str, float | None]


def _linked(policy: Any) -> dict[str, float]:
    return {
        "history": policy.history,
        "from_backlog": policy.link == "backlog",
        "load_prompts": policy.prefill == "load",
    }


#: By decision and class of the policy, its number in replay.cpp and its options.
ASSIGN: Mapping[type[Policy], tuple[int, Callable[[Any], Numbers]]] = {
    LoadAll: (1, lambda p: {}),
    HostAll: (2, lambda p: {}),
    Balanced: (3, lambda p: _linked(p) | {"by_rows": p.by == "batch", "tie_host": p.tie == "host"}),
    Optimal: (4, _linked),
    LoadOrCompute: (5, lambda p: {"history": p.history, "minimise_sum": p.minimise == "sum"}),
    MakespanSchedule: (6, lambda p: {"history": p.history, "fill": p.fill}),
    GreedyAssignment: (7, lambda p: {"history": p.history}),
}
EVICT: Mapping[type[Policy], tuple[int, Callable[[Any], Numbers]]] = {
    NeverEvict: (1, lambda p: {}),
    OnePlaceholder: (2, lambda p: {}),
    OnlyNamed: (2, lambda p: {}),
    FirstInFirstOut: (3, lambda p: {}),
    LeastRecentlyUsed: (4, lambda p: {}),
    LeastFrequentlyUsed: (
        5, lambda p: {"survive": p.survive, "oldest_first": p.tie == "lru"},
    ),
    LowestAverageScore: (6, lambda p: {"window": p.window}),
    MinusRecentScore: (7, lambda p: {"smoothing": p.smoothing, "top": p.top}),
    WorkloadAware: (
        8, lambda p: {"window": p.window, "hot": max(1, int(p.window * p.share))},
    ),
}  # fmt: skip
PREFETCH: Mapping[type[Policy], tuple[int, Callable[[Any], Numbers]]] = {
    NoPrefetch: (1, lambda p: {}),
    TopScorePrefetch: (2, lambda p: {"whole_prompt_layers": p.prefill, "band": p.alpha}),
    NextGate: (3, lambda p: {"fetches": p.experts}),
    ResidualPrefetch: (4, lambda p: {"fetches": p.experts}),
    ImpactDriven: (5, lambda p: {"fetches": p.experts, "impact_history": p.history}),
}

#: Policies that read each layer's mean scores, and those that read its rows' highest ones.
READS_MEAN = (LowestAverageScore, MinusRecentScore)
READS_BEST = (Balanced, Optimal, MakespanSchedule)

#: Predictors whose forecasts are recorded scores, and whose prices are those of a pass.
RECORDED = (NextGates, NextGatesOnNormed, NextLayer)


class Decided(NamedTuple):
    """Where each decision of a run is made: its number in replay.cpp, 0 if Python is asked.

    Attributes:
        numbers: options of the decisions that have one.
        routing: whether Python is asked for the routing.
        observers: policies in Python that observe each layer.
        growth: whether Python is asked if an expert may take a free slot.
        uploads: whether Python is asked for copies in the background.
        predictions: whether they are made in Python, layer by layer; otherwise they are recorded.
    """

    assign: int
    evict: int
    prefetch: int
    numbers: Numbers
    routing: bool
    observers: Sequence[Policy]
    growth: bool
    uploads: bool
    predictions: bool

    @property
    def asks_layers(self) -> bool:
        """Whether Python is asked anything."""
        known = self.assign and self.evict and self.prefetch and not self.predictions
        return not known or self.routing or self.uploads or bool(self.observers)


def decided(system: System, shape: ModelShape) -> Decided:
    """Return which decisions of a system are compiled."""
    admit = type(system.admit)
    uploads = admit.uploads is not Admission.uploads or admit.pass_ends is not Admission.pass_ends
    numbers: dict[str, float | None] = {}
    found = {}
    for decision, table in (("assign", ASSIGN), ("evict", EVICT), ("prefetch", PREFETCH)):
        policy = system.policies[decision]
        asked = 0, _no_options
        number, options = table.get(type(policy), asked)
        if decision == "assign" and (uploads or system.in_flight == "host" or system.admit.chooses):
            number, options = asked
        tells = type(system.evict).foresee is not Eviction.foresee
        if decision == "prefetch" and number > 1 and (tells or _exchanges(system)):
            number, options = asked
        found[decision] = number
        numbers |= options(policy)
    for name, value in (("fetches", shape.top_k), ("top", 2 * shape.top_k)):
        numbers[name] = numbers.get(name) or value
    band = numbers.get("band")
    numbers["band"] = 1 + (system.alpha_in_use if band is None else band)
    route, evict = system.route, system.evict
    exact = type(route) is ExactRouting or (
        type(route) is ExpertCacheRouter and system.alpha_in_use == 0
    )
    observers = [
        policy for name, policy in system.policies.items()
        if type(policy).observe is not Policy.observe and not found.get(name)
    ]  # fmt: skip
    growth = type(evict).grows is not Eviction.grows
    predictor = system.prefetch.predictor
    predictions = predictor is not None and type(predictor) not in RECORDED
    return Decided(
        **found, numbers=numbers, routing=not exact, observers=observers, growth=growth,
        uploads=uploads, predictions=predictions,
    )  # fmt: skip


def _no_options(policy: Any) -> Numbers:
    return {}


def _exchanges(system: System) -> bool:
    return isinstance(system.prefetch, ResidualPrefetch) and system.prefetch.swaps


def ours(system: System) -> bool:
    """Return whether all policies are ours, with the methods of their classes.

    A user's own may read what only the cache in Python knows.
    """
    policies = system.policies.values()
    own = all(type(policy).__module__.startswith("moebench.") for policy in policies)
    replaced = any(
        callable(getattr(type(policy), name, None)) for policy in policies for name in vars(policy)
    )
    return own and not replaced and type(system).observe is System.observe


def why_not(engine: Engine) -> str | None:
    """Return why a run is replayed by the engine in Python; None if compiled code can replay it."""
    system, machine, cache = engine.system, engine.machine, engine.cache
    route, assign, prefetch = system.route, system.assign, system.prefetch
    evict, predictor = system.evict, system.prefetch.predictor
    reasons = {
        "its model computes": type(engine.model) is not TracedModel,
        "its machine is measured": not isinstance(machine, SimulatedMachine)
        or machine.costs.synchronous,
        "experts are on the disk": machine.host_memory is not None,
        "non-expert weights are not on the device": any(home != "device" for home in engine.homes),
        "records have several forms": cache.forms > 1 or [*cache.used_forms] != [0],
        "it waits for every layer": system.synchronises,
        "it reads unfinished copies": system.reads_unfinished,
        "it divides passes": system.divides,
        "layers are routed ahead": route.routes_passes
        or type(route).routes_ahead is not Routing.routes_ahead,
        "outputs may be deferred": not assign.lossless,
        "experts are fetched after the prompts": type(system.place).after_prefill
        is not Placement.after_prefill,
        "prefetches are in chunks": prefetch.chunks > 1,
        "experts are sent back": evict.writes_back
        or type(prefetch).leaving is not Prefetching.leaving,
        "states are read": system.reads_hidden or system.reads_token_norms
        or system.reads_token_embeddings,
        "prompts are predicted": isinstance(predictor, RECORDED) and predictor.in_prefill,
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), None)

"""Random small models, budgets, systems and routing: runs that can be repeated."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from moebench.substrate.engine.records import Generation
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import Scope
from moebench.substrate.memory.capacity import Home
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.duoserve import PathPredictor
from moebench.systems.learn.eviction_network import Network
from moebench.systems.options import build
from tests.substrate.engine.arbitrary import (
    AnyAssignment,
    AnyCommitted,
    AnyPlacement,
    AnyPrefetch,
    AnyRouting,
    Arbitrary,
    MayWriteBack,
)
from tests.substrate.engine.fakes import FlatCosts, Rig, prices, random_trace, rig, small_shape

#: By its class: the cases know no variants.
SHIPPED_DAOP = "moebench.systems.daop_shipped:ShippedDAOP"
SHIPPED_INFINITY = "moebench.systems.moe_infinity_shipped:ShippedMoEInfinity"
SYSTEMS = (
    "smoe", "moe-ondemand", "daop", SHIPPED_DAOP, "duoserve", "flashmoe", "moe-infinity",
    SHIPPED_INFINITY, "acc", "moesys", "ktransformers", "arbitrary",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A run that can be repeated.

    Attributes:
        slots: on the device, together or of each layer.
        host_records: in host memory, where experts are on the disk.
        learnt: whether what a system learns is there.
    """

    shape: ModelShape
    seed: int
    system: str
    overrides: dict[str, str]
    slots: int | tuple[int, ...]
    scope: Scope
    batches: tuple[tuple[int, ...], ...]
    passes: int
    costs: FlatCosts
    host_records: int | None
    homes: tuple[Home, ...] = ()
    learnt: bool = False

    def made(self) -> System:
        """The system, with random networks in place of trained ones."""
        if self.system == "arbitrary":
            return _arbitrary(self)
        system = build(self.system, self.overrides)
        if self.system == "duoserve" and self.learnt:
            system.prefetch._predictor = PathPredictor(_Guesses(self), (2, 4))
        if self.system == "moe-infinity" and self.learnt:
            random = np.random.default_rng(self.seed)
            cells = len(self.shape.moe_layers), self.shape.num_experts
            system.prefetch._calibrated = list(random.integers(0, 3, (5, *cells)))
        if self.overrides.get("evict") == "flashmoe":
            random = np.random.default_rng(self.seed)
            layers, experts = len(self.shape.moe_layers), self.shape.num_experts
            weights = random.standard_normal((layers, 2 * experts, experts))
            system.evict.network = Network([weights], [np.zeros((layers, experts))])
        return system

    def made_rig(self) -> Rig:
        trace = random_trace(self.seed, self.shape, self.batches, self.passes)
        return rig(
            self.made(),
            TracedModel(trace),
            slots=self.slots,
            costs=self.costs,
            scope=self.scope,
            host_records=self.host_records,
            homes=self.homes,
        )

    def run(self) -> tuple[Rig, list[Generation]]:
        made = self.made_rig()
        prompts = [[[0] * n for n in lengths] for lengths in self.batches]
        return made, [made.engine.generate(p, self.passes) for p in prompts]


class _Guesses:
    """Stands in for ExpertMLP: any probabilities."""

    def __init__(self, case: Case) -> None:
        self._random, self._experts = np.random.default_rng(case.seed), case.shape.num_experts

    def probabilities(self, path_TLK, row):
        return self._random.random((len(path_TLK), self._experts))


def _arbitrary(case: Case) -> Arbitrary:
    drawn = case.overrides
    prefetch = AnyCommitted if drawn["discipline"] == "committed" else AnyPrefetch
    return Arbitrary(
        place=AnyPlacement(seed=case.seed),
        route=AnyRouting(seed=case.seed, ahead=frozenset(json.loads(drawn["ahead"]))),
        assign=AnyAssignment(seed=case.seed),
        prefetch=prefetch(seed=case.seed, chunks=int(drawn["chunks"])),
        evict=MayWriteBack(writes_back=drawn["writes_back"] == "True"),
        scope=case.scope,
        overlap=drawn["overlap"] == "True",
        blocking_copies=drawn["blocking_copies"] == "True",
        parallel_reads=drawn["parallel_reads"] == "True",
    )


@st.composite
def shapes(draw) -> ModelShape:
    layers = draw(st.integers(1, 4))
    experts = draw(st.integers(2, 8))
    dense = draw(st.sets(st.integers(0, layers - 1), max_size=layers - 1))
    return small_shape(
        layers=layers,
        experts=experts,
        top_k=draw(st.integers(1, min(3, experts))),
        dense_layers=tuple(sorted(dense)),
        shared=draw(st.booleans()),
    )


@st.composite
def smoe_overrides(draw, most_staging: int) -> dict[str, str]:
    evicts = ["lru", "lfu", "score"] + ["static"] * (most_staging > 0)
    chosen = {
        "alpha": str(draw(st.sampled_from([0, 0.25, 0.6, 1]))),
        "route.refine": str(draw(st.booleans())),
        "assign": draw(st.sampled_from(["load", "host", "balanced"])),
        "prefetch": draw(st.sampled_from(["none", "next-gate", "top-score", "top-score"])),
        "evict": draw(st.sampled_from(evicts)),
    }
    if chosen["assign"] == "balanced":
        chosen["assign.by"] = draw(st.sampled_from(["score", "batch"]))
    if chosen["prefetch"] == "top-score":
        chosen["prefetch.predict"] = draw(st.sampled_from(["layer", "gate"]))
        chosen["prefetch.prefill"] = str(draw(st.booleans()))
    if chosen["evict"] == "static":
        chosen["evict.staging"] = str(draw(st.integers(1, min(3, most_staging))))
    return chosen


@st.composite
def daop_overrides(draw, shape: ModelShape) -> dict[str, str]:
    counts = st.lists(st.integers(0, 9), min_size=shape.num_experts, max_size=shape.num_experts)
    popularity = [draw(counts) for _ in range(shape.num_layers)]
    return {
        "place.popularity": json.dumps(popularity),
        "route.first": str(draw(st.integers(1, 3))),
        "route.most_host": draw(st.sampled_from(["null", "0", "1", "2"])),
        "assign.threshold": str(draw(st.sampled_from([1, 1.05, 2]))),
    }


@st.composite
def moe_infinity_overrides(draw) -> dict[str, str]:
    return {
        "prefetch.match": draw(st.sampled_from(["iteration", "request"])),
        "prefetch.entries": str(draw(st.integers(1, 3))),
        "prefetch.capacity": str(draw(st.integers(1, 6))),
        "prefetch.budget": str(draw(st.integers(0, 4))),
        "evict": draw(st.sampled_from(["activation-aware", "fewest-visits", "lru"])),
    }


@st.composite
def ktransformers_overrides(draw) -> dict[str, str]:
    threshold = draw(st.integers(0, 6))
    return {
        "place": draw(st.sampled_from(["by-id", "front-loading", "random"])),
        "assign.threshold": str(threshold),
        "assign.update": str(threshold > 0 and draw(st.booleans())),
    }


@st.composite
def arbitrary_overrides(draw, shape: ModelShape) -> dict[str, str]:
    return {
        "ahead": json.dumps(draw(st.lists(st.sampled_from(shape.moe_layers)))),
        "discipline": draw(st.sampled_from(["speculative", "committed"])),
        "chunks": str(draw(st.integers(1, 3))),
        "writes_back": str(draw(st.booleans())),
    }


@st.composite
def flat_costs(draw) -> FlatCosts:
    read = draw(st.integers(1, 200))
    lanes = prices(
        load=draw(st.integers(1, 200)),
        read=read,
        queued=draw(st.integers(1, read)),
        host=draw(st.integers(1, 200)),
        expert=draw(st.integers(1, 30)),
        attend=draw(st.integers(1, 100)),
    )
    # Of an engine whose launches hide, or of one in Python, for which everything waits.
    control = st.integers(0, 9) | st.integers(50, 400)
    return FlatCosts(
        lanes,
        launch_ns=draw(control),
        submit_ns=draw(control),
        sync_ns=draw(control),
        decision_ns=draw(control),
    )


@st.composite
def cases(draw, systems: Sequence[str] = (*SYSTEMS, "smoe", "gpu-only")) -> Case:
    shape = draw(shapes())
    layers = len(shape.moe_layers)
    total = layers * shape.num_experts
    system = draw(st.sampled_from(systems))
    scope: Scope = draw(st.sampled_from(["global", "layer"] if system != "moesys" else ["global"]))
    fewest = max(shape.top_k, layers if scope == "layer" else 1)
    changes: dict[str, str] = {}
    if system == SHIPPED_DAOP:  # one slot of every pool stays empty
        fewest = min(max(fewest + 1, 2 * (layers if scope == "layer" else 1)), total)
    if system == "ktransformers":  # one layer is staged, or one expert of each
        changes = draw(ktransformers_overrides())
        staged = layers if scope == "layer" else shape.num_experts
        fewest = max(fewest, staged if changes["assign.threshold"] != "0" else 0)
    if system == "moesys":
        changes = {"prefetch.buffers": str(draw(st.integers(1, layers + 1)))}
        fewest = shape.num_experts
    slots = total if system == "gpu-only" else draw(st.integers(fewest, total))
    match system:
        case "smoe":
            # Some slot of every pool must be left for placed experts.
            changes = draw(smoe_overrides(slots // (layers if scope == "layer" else 1) - 1))
        case "moe-ondemand":
            changes = {"evict": draw(st.sampled_from(["lru", "lfu", "score"]))}
        case _ if system in ("daop", SHIPPED_DAOP):
            changes = draw(daop_overrides(shape))
        case "flashmoe":
            changes = {"evict": draw(st.sampled_from(["flashmoe", "lifo", "arc", "lecar"]))}
        case "moe-infinity":
            changes = draw(moe_infinity_overrides())
        case "arbitrary":
            changes = draw(arbitrary_overrides(shape))
    if draw(st.integers(0, 3)) == 0 or system == "arbitrary":
        changes["overlap"] = str(draw(st.booleans()))
        changes["blocking_copies"] = str(draw(st.booleans()))
        changes["parallel_reads"] = str(draw(st.booleans()))
    lengths = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    case = Case(
        shape=shape,
        seed=draw(st.integers(0, 1 << 16)),
        system=system,
        overrides=changes,
        slots=slots,
        scope=scope,
        batches=tuple(draw(st.lists(lengths, min_size=1, max_size=2))),
        passes=draw(st.integers(1, 5)),
        costs=draw(flat_costs()),
        host_records=draw(st.none() | st.integers(2, total)),
        learnt=draw(st.booleans()),
    )
    return draw(_divided(case)) if system == "arbitrary" else case


@st.composite
def _divided(draw, case: Case) -> Case:
    """Homes of common weights, and where layers have slots of their own, any numbers of them."""
    homes = st.lists(
        st.sampled_from(["device", "device", "host", "stream"]),
        min_size=case.shape.num_layers,
        max_size=case.shape.num_layers,
    )
    case = replace(case, homes=tuple(draw(homes)))
    if case.scope == "global":
        return case
    layers, experts = len(case.shape.moe_layers), case.shape.num_experts
    each = st.lists(st.integers(0, experts), min_size=layers, max_size=layers)
    return replace(case, slots=tuple(draw(each)))


def examples(count: int):
    return settings(max_examples=count, deadline=None)


def steps_of(generation: Generation) -> list[list[int]]:
    """The keys that each layer of each decoded token used."""
    return [keys for token in generation.used for keys in token]

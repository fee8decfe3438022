"""Random small models, budgets, systems and routing: runs that can be repeated."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st

from moebench.substrate.engine.loop import Generation
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.options import build
from tests.substrate.engine.fakes import FlatCosts, Rig, prices, random_trace, rig, small_shape


@dataclass(frozen=True)
class Case:
    """A run that can be repeated."""

    shape: ModelShape
    seed: int
    system: str
    settings: dict[str, str]
    slots: int
    scope: Scope
    batches: tuple[tuple[int, ...], ...]
    passes: int
    costs: FlatCosts
    from_disk: bool

    def run(self) -> tuple[Rig, list[Generation]]:
        trace = random_trace(self.seed, self.shape, self.batches, self.passes)
        made = rig(
            build(self.system, self.settings),
            TracedModel(trace),
            slots=self.slots,
            costs=self.costs,
            scope=self.scope,
            from_disk=self.from_disk,
        )
        prompts = [[[0] * n for n in lengths] for lengths in self.batches]
        return made, [made.engine.generate(p, self.passes) for p in prompts]

    @property
    def total(self) -> int:
        return len(self.shape.moe_layers) * self.shape.num_experts


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
def smoe_settings(draw, most_staging: int) -> dict[str, str]:
    evicts = ["lru", "lfu", "score"] + ["static"] * (most_staging > 0)
    chosen = {
        "route.alpha": str(draw(st.sampled_from([0, 0.25, 0.6, 1]))),
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
def flat_costs(draw) -> FlatCosts:
    lanes = prices(
        load=draw(st.integers(1, 200)),
        read=draw(st.integers(1, 200)),
        host=draw(st.integers(1, 200)),
        expert=draw(st.integers(1, 30)),
        attend=draw(st.integers(1, 100)),
    )
    control = st.integers(0, 9)
    return FlatCosts(
        lanes,
        launch_ns=draw(control),
        submit_ns=draw(control),
        sync_ns=draw(control),
        decision_ns=draw(control),
    )


@st.composite
def cases(draw, systems: Sequence[str] = ("smoe", "smoe", "moe-ondemand", "gpu-only")) -> Case:
    shape = draw(shapes())
    layers = len(shape.moe_layers)
    total = layers * shape.num_experts
    system = draw(st.sampled_from(systems))
    scope: Scope = draw(st.sampled_from(["global", "layer"]))
    fewest = max(shape.top_k, layers if scope == "layer" else 1)
    slots = total if system == "gpu-only" else draw(st.integers(fewest, total))
    changes: dict[str, str] = {}
    if system == "smoe":
        # Some slot of every pool must be left for placed experts.
        changes = draw(smoe_settings(slots // (layers if scope == "layer" else 1) - 1))
    elif system == "moe-ondemand":
        changes = {"evict": draw(st.sampled_from(["lru", "lfu", "score"]))}
    lengths = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    return Case(
        shape=shape,
        seed=draw(st.integers(0, 1 << 16)),
        system=system,
        settings=changes,
        slots=slots,
        scope=scope,
        batches=tuple(draw(st.lists(lengths, min_size=1, max_size=2))),
        passes=draw(st.integers(1, 5)),
        costs=draw(flat_costs()),
        from_disk=draw(st.booleans()),
    )


def examples(count: int):
    return settings(max_examples=count, deadline=None)


def steps_of(generation: Generation) -> list[list[int]]:
    """The keys that each layer of each decoded token used."""
    return [keys for token in generation.used for keys in token]

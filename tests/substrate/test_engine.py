"""What must always hold, over random small models, budgets, systems and routing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.measure import bound
from substrate.arch import ModelShape
from substrate.bound import belady_misses
from substrate.engine import Generation
from substrate.errors import IntegrityError
from substrate.machine import Lane, OpKind
from substrate.memory import Scope
from substrate.system import Assigned, Assignment, Placement
from substrate.terms import Gate
from substrate.trace import PassTrace, RoutingTrace, TracedModel
from systems import build
from tests.substrate.fakes import (
    FixedModel,
    FlatCosts,
    Rig,
    check_timeline,
    prices,
    random_trace,
    rig,
    small_shape,
    top_k_of,
)


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


def fewest_loads(steps: Iterable[Iterable[int]], capacity: int) -> int:
    """The least a cache of this capacity can load when every step needs its keys at once.

    Between two steps it keeps those it holds or has just used whose next use comes first; the first
    ``capacity`` loads are free, as if it had held the best content from the start.
    """
    asked = [set(step) for step in steps]
    kept: set[int] = set()
    loads = 0
    for now, keys in enumerate(asked):
        loads += len(keys - kept)

        def next_use(key: int, now: int = now) -> int:
            return next((t for t in range(now + 1, len(asked)) if key in asked[t]), len(asked))

        again = [k for k in kept | keys if next_use(k) < len(asked)]
        kept = set(sorted(again, key=lambda k: (next_use(k), k))[:capacity])
    return max(0, loads - capacity)


def steps_of(generation: Generation) -> list[list[int]]:
    return [keys for token in generation.used for keys in token]


# ----------------------------------------------------------------------------- memory and time


@examples(500)
@given(cases())
def test_slots_lanes_and_budgets_at_every_instant(case):
    made, _ = case.run()
    check_timeline(
        made.spans,
        made.claims,
        num_experts=case.shape.num_experts,
        capacity=case.slots,
        budget_bytes=made.tier.budget_bytes,
    )
    made.cache.check_integrity()
    assert made.tier.used_bytes <= made.tier.peak_bytes <= made.tier.budget_bytes


@examples(200)
@given(cases())
def test_the_same_run_gives_the_same_spans(case):
    def recorded():
        made, generations = case.run()
        spans = [(s.op, s.lane, s.start_ns, s.end_ns, s.cause) for s in made.spans]
        return spans, made.claims, [g.token_ends_ns for g in generations]

    assert recorded() == recorded()


@examples(300)
@given(cases())
def test_every_active_expert_is_accounted_for(case):
    made, generations = case.run()
    by_kind = {(kind, lane): 0 for kind in OpKind for lane in Lane}
    for span in made.spans:
        by_kind[span.op.kind, span.lane] += max(1, len(span.op.experts))
    active = host = moved = 0
    for counts in made.engine.counts.values():
        assert counts.hits + counts.in_flight + counts.loads + counts.host == counts.active
        assert counts.prefetched_used <= counts.prefetched_active + counts.replaced
        assert max(counts.prefetched_active, counts.prefetched_used) <= counts.prefetched
        active, host = active + counts.active, host + counts.host
        moved += counts.loads + counts.prefetched
    assert by_kind[OpKind.EXPERT, Lane.DEVICE] == active - host
    assert by_kind[OpKind.EXPERT, Lane.HOST] == by_kind[OpKind.RETURN, Lane.D2H] == host
    assert by_kind[OpKind.LOAD, Lane.H2D] == moved
    assert by_kind[OpKind.READ, Lane.DISK] == moved * case.from_disk
    decoded = sum(len(keys) for g in generations for keys in steps_of(g))
    assert made.engine.counts["decode"].active == decoded


@examples(200)
@given(cases())
def test_phase_is_told_not_guessed(case):
    made, _ = case.run()
    one_batch = [
        ("decode" if step else "prefill", layer)
        for step in range(case.passes)
        for layer in case.shape.moe_layers
    ]
    assert made.phases == one_batch * len(case.batches)


@examples(200)
@given(cases())
def test_tokens_end_in_order_and_lanes_fit_into_the_run(case):
    made, generations = case.run()
    now = 0
    for generation in generations:
        assert generation.started_ns >= now
        assert [len(t) for t in generation.tokens] == [case.passes] * len(generation.tokens)
        assert generation.ttft_ns > 0
        assert all(step > 0 for step in generation.steps_ns)
        now = generation.token_ends_ns[-1]
    device = [s for s in made.spans if s.lane is Lane.DEVICE]
    stalls = sum(made.timeline.stall_ns().values())
    assert made.timeline.busy_ns(Lane.DEVICE) + stalls == device[-1].end_ns <= now


@examples(200)
@given(cases(systems=["gpu-only"]))
def test_gpu_only_moves_nothing_and_waits_for_nothing_but_control(case):
    made, _ = case.run()
    assert {s.lane for s in made.spans} == {Lane.DEVICE}
    assert set(made.timeline.stall_ns()) <= {"control"}
    assert all(c.hits == c.active for c in made.engine.counts.values())


# ----------------------------------------------------------------------------- transfers


@examples(300)
@given(cases(systems=["smoe"]))
def test_needed_loads_never_wait_for_a_prefetch_that_had_not_started(case):
    made, _ = case.run()
    first_lane = made.machine.load_path[0]
    needed = {id(span) for _, span in made.needed}
    prefetches = [s for s in made.spans if s.lane is first_lane and id(s) not in needed]
    for asked, load in made.needed:
        assert not [p for p in prefetches if asked <= p.start_ns < load.start_ns]


@examples(300)
@given(cases(systems=["smoe"]))
def test_only_transfers_that_start_evict(case):
    made, _ = case.run()
    started = [s for s in made.spans if s.op.kind is OpKind.LOAD]
    keys = [s.op.layer * case.shape.num_experts + s.op.experts[0] for s in started]
    assert sorted(c.key for c in made.claims if not c.placed) == sorted(keys)


def test_a_cancelled_prefetch_evicts_nobody():
    # Layer 1's predicted experts 0 and 1 are queued behind layer 0's own load of 3.  The true gate
    # is known while 0 is under way and before 1's turn: 1 never gets a slot.
    shape = small_shape(layers=2, experts=4)
    keep, want, guess = [[0.1, 0.1, 0.5, 0.3]], [[0.5, 0.3, 0.1, 0.1]], [[0.6, 0.2, 0.1, 0.1]]
    gates = {(0, 0): want, (0, 1): keep, (1, 0): keep, (1, 1): keep}
    system = build("moe-ondemand", {"prefetch": "next-gate"})
    model = FixedModel(shape, gates, {(1, 0): guess})
    system.place = _Placed(pairs=[(0, 0), (0, 1), (1, 2), (1, 3), (0, 2)])
    made = rig(system, model, slots=5, costs=FlatCosts(prices(load=1000, attend=1, gate=1)))
    made.engine.generate([[0]], 2)
    assert made.engine.counts["decode"].loads == 1
    assert made.engine.counts["decode"].prefetched == 1
    assert [(c.key, c.victim) for c in made.claims if not c.placed] == [(3, 0), (4 + 0, 1)]


def test_waiting_loads_take_the_slots_of_computed_experts():
    # One slot, three rows that each use another expert: every load waits for the last computation.
    shape = small_shape(layers=1, experts=3, top_k=1)
    rows = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
    made = rig(build("moe-ondemand"), FixedModel(shape, {(0, 0): rows}), slots=1)
    made.engine.generate([[0], [0], [0]], 1)
    experts = [s for s in made.spans if s.op.kind is OpKind.EXPERT]
    loads = [s for s in made.spans if s.op.kind is OpKind.LOAD]
    assert [s.op.experts for s in experts] == [(0,), (1,), (2,)]
    assert [s.start_ns for s in loads] == [s.end_ns for s in experts[:2]]
    check_timeline(made.spans, made.claims, num_experts=3, capacity=1)


@pytest.mark.parametrize("settings", [{}, {"evict": "static", "evict.staging": "1"}])
def test_a_load_waits_for_a_wrong_prefetch_that_holds_the_last_slot(settings):
    # Layer 1 has one slot that may change, and a prefetch of expert 1 is under way in it when
    # the gate asks for 2: the load must wait for a transfer that nobody needs any more.
    shape = small_shape(layers=2, experts=4, top_k=1)
    use = [[[0.1] * e + [0.7] + [0.1] * (3 - e)] for e in range(4)]
    gates = {(0, 0): use[0], (0, 1): use[0], (1, 0): use[0], (1, 1): use[2]}
    system = build("moe-ondemand", {"prefetch": "next-gate", **settings})
    slots, scope = (3, "global") if settings else (2, "layer")
    model = FixedModel(shape, gates, {(1, 0): use[1]})
    made = rig(system, model, slots=slots, scope=scope, costs=FlatCosts(prices(load=1000)))
    made.engine.generate([[0]], 2)
    wrong, right = [s for s in made.spans if s.op.kind is OpKind.LOAD][-2:]
    assert (wrong.op.experts, right.op.experts) == ((1,), (2,))
    assert right.start_ns >= wrong.end_ns
    check_timeline(made.spans, made.claims, num_experts=4, capacity=slots)


def test_an_assignment_that_forgets_an_expert_is_a_bug_of_the_system():
    class Forgetful(Assignment):
        def assign(self, view, missing):
            return Assigned((), ())

    shape = small_shape(layers=1)
    system = build("moe-ondemand")
    system.assign = Forgetful()
    model = TracedModel(random_trace(0, shape, [[4]], 1))
    with pytest.raises(IntegrityError, match="assigned 0 loads and 0 host"):
        rig(system, model, slots=2).engine.generate([[0] * 4], 1)


@dataclass(kw_only=True)
class _Placed(Placement):
    """Given pairs."""

    pairs: list[tuple[int, int]]

    def place(self, shape, slots, scope):
        return self.pairs


# ----------------------------------------------------------------------------- limits


@examples(300)
@given(cases())
def test_no_policy_loads_less_than_the_least_possible(case):
    made, generations = case.run()
    counts = made.engine.counts["decode"]
    least = sum(fewest_loads(steps_of(g), made.cache.slots) for g in generations)
    assert counts.loads + counts.prefetched + counts.host >= least


@examples(300)
@given(cases(systems=["moe-ondemand", "gpu-only"]))
def test_on_demand_never_beats_belady(case):
    made, generations = case.run()
    least = sum(belady_misses([*steps_of(g)], made.cache.slots) for g in generations)
    assert made.engine.counts["decode"].loads >= least


@examples(300)
@given(cases(systems=["moe-ondemand", "gpu-only"]))
def test_no_run_beats_its_printed_bound(case):
    made, generations = case.run()
    printed = bound(made.engine, generations)
    if case.passes == 1:
        assert printed == {"tpot_ms": None, "ratio": None}
    else:
        assert printed["tpot_ms"] > 0
        assert printed["ratio"] >= 1


@examples(200)
@given(cases(systems=["smoe"]))
def test_no_smoe_run_beats_its_printed_bound(case):
    case = replace(case, passes=max(2, case.passes))
    made, generations = case.run()
    assert bound(made.engine, generations)["ratio"] >= 1


def rotating(rounds: int) -> RoutingTrace:
    """Two rows of one expert each: {0,1} in prefill, then {0,1} {0,2} {1,2} and again."""
    trace = RoutingTrace(small_shape(layers=1, experts=3, top_k=1), [[]])
    for pair in [(0, 1)] + rounds * [(0, 1), (0, 2), (1, 2)]:
        scores_TE = np.full((2, 3), 0.1)
        scores_TE[[0, 1], pair] = 0.8
        gate = Gate(scores_TE, top_k_of(scores_TE, 1))
        trace.batches[0].append(PassTrace((1, 1), {0: gate}, chosen=[0, 0]))
    return trace


def test_the_bound_does_not_depend_on_the_order_within_a_layer():
    # One slot.  Each pass hits the expert that the last one left, and loads one: 30 loads for 30
    # tokens.  Asked one after the other by id, Belady would count four misses for three tokens.
    costs = FlatCosts(prices(load=9000))
    made = rig(build("moe-ondemand"), TracedModel(rotating(10)), slots=1, costs=costs)
    generation = made.engine.generate([[0], [0]], 31)
    assert made.engine.counts["decode"].loads == 30
    assert fewest_loads(steps_of(generation), 1) <= 30
    assert bound(made.engine, [generation])["ratio"] >= 1

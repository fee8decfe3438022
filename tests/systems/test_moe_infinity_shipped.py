"""MoE-Infinity as shipped: a queue by id, eviction by fewest visits, a budget used up by hits."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moebench.substrate.analysis.cache_replay import replay, requests, topology
from moebench.substrate.engine.decisions import Plan, fetches
from moebench.substrate.machines.protocol import OpKind
from moebench.systems.moe_infinity_shipped import FewestVisits, QueueById, ShippedMoEInfinity
from moebench.systems.options import build
from moebench.systems.policies.evict import LeastFrequentlyUsed
from moebench.systems.registry import system_class
from tests.substrate.engine.fakes import FixedModel, FlatCosts, prices, rig, small_shape
from tests.systems.policies.golden import golden_trace
from tests.systems.views import active, started, victim_of, view

# --------------------------------------------------------------------------- the queue


def test_what_is_there_waits_for_lower_ids_to_come():
    seen = view([[0.3, 0.3, 0.2, 0.2, 0, 0]], 4, {1, 3})
    assert QueueById().assign(seen, active(seen)) == Plan([0, 1, 2, 3], (), (), fetches(0, [0, 2]))


def test_only_the_next_fetch_runs_beside_a_computation():
    # Experts 0, 1 and 2 of one layer; 1 is on the device.  The gate is known at 33.
    model = FixedModel(small_shape(layers=1, top_k=3), {(0, 0): [[0.4, 0.3, 0.2, 0.1]]})
    system = build("moe-infinity", {"place": "none"}, "shipped")
    system.place.place = lambda shape, slots, scope: [(0, 1)]
    made = rig(system, model, slots=4, costs=FlatCosts(prices(load=40, expert=10)))
    made.engine.generate([[1]], 1)
    spans = {
        kind: [(s.op.experts, s.start_ns, s.end_ns) for s in made.spans if s.op.kind is kind]
        for kind in (OpKind.LOAD, OpKind.EXPERT)
    }
    assert spans[OpKind.LOAD] == [((0,), 33, 73), ((2,), 73, 113)]
    assert spans[OpKind.EXPERT] == [((0,), 73, 83), ((1,), 83, 93), ((2,), 113, 123)]


# --------------------------------------------------------------------------- visits

#: Keys of (layer, expert) with four experts a layer.
L0E0, L0E1, L1E0, L1E1 = 0, 1, 4, 5


def test_ties_go_by_expert_then_by_layer():
    policy = started(FewestVisits())
    assert victim_of(policy, L0E0, L0E1, L1E0, L1E1) == L0E0
    assert victim_of(policy, L0E1, L1E0, L1E1) == L1E0
    assert victim_of(policy, L0E1, L1E1) == L0E1
    assert victim_of(policy) is None


def test_visits_survive_an_eviction():
    policy = started(FewestVisits())
    policy.used(0, [0])
    policy.used(0, [0])
    policy.left(L0E0)
    policy.arrived(L0E0)
    policy.used(0, [1])
    assert victim_of(policy, L0E0, L0E1) == L0E1
    policy.end_sequences()
    policy.used(1, [0])
    assert victim_of(policy, L0E0, L1E0) == L1E0


def test_published_stream():
    """Another implementation of LFU whose counts survive; one layer, so that ties go by id."""
    steps = requests([(0, step) for step in golden_trace()])
    own, other = FewestVisits(charges_hits=False), LeastFrequentlyUsed(survive=True, tie="id")
    done = [replay(policy, [steps], topology(1, 64, 8), 16) for policy in (own, other)]
    assert done[0] == done[1]


# --------------------------------------------------------------------------- the budget


def dispatched(steps, slots: int) -> tuple[int, set[tuple[int, int]]]:
    """Return hits and final cache content by the shipped code's rules, expert by expert.

    The running layer's experts are locked.  Where hits have used up the budget and nothing else is
    cached, the code's search for a victim never ends; as in the product, a free slot is taken then.
    """
    free, cached, visits, hits = slots, set(), Counter(), 0
    for layer, experts in steps:
        for expert in experts:
            visits[layer, expert] += 1
        for expert in experts:
            key = layer, expert
            if key in cached:
                hits += 1
            elif free <= 0 and (others := cached - {(layer, e) for e in experts}):
                leaves = min(others, key=lambda at: (visits[at], at[1], at[0]))
                cached.remove(leaves)
            cached.add(key)
            free -= 1
    return hits, cached


@example(steps=[(0, (0,)), (0, (0,)), (0, (0,)), (0, (0, 1)), (0, (0,))], slots=4)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.sets(st.integers(0, 3), min_size=1, max_size=2)),
        min_size=1,
        max_size=40,
    ).map(lambda drawn: [(layer, tuple(sorted(experts))) for layer, experts in drawn]),
    slots=st.integers(4, 12),
)
def test_the_cache_is_the_codes(steps, slots):
    done = replay(FewestVisits(), [steps], topology(3, 4, 2), slots, "global")
    assert sum(done.hits) == dispatched(steps, slots)[0]


def test_hits_use_the_budget_up():
    # Four slots.  Two experts are used twice: that is four visits, and the third must evict.
    steps = [(0, (0, 1)), (0, (0, 1)), (0, (2,)), (0, (3,))]
    done = replay(FewestVisits(), [steps], topology(1, 8, 2), 4)
    assert [(victim, new) for _, victim, new in done.evicted] == [(0, 2), (2, 3)]
    grows = replay(FewestVisits(charges_hits=False), [steps], topology(1, 8, 2), 4)
    assert grows.evicted == []


def test_the_budget_ends_within_a_layer():
    # Three slots, one visit; of the next layer's three experts two fit.
    policy = started(FewestVisits(), slots=3)
    policy.used(0, [3])
    policy.used(1, [0, 1, 2])
    assert [policy.grows(key) for key in (4, 5, 6)] == [True, True, False]
    policy.used(0, [0])
    assert not policy.grows(0)


# --------------------------------------------------------------------------- the system


def test_shipped_moe_infinity_predicts_and_calibrates_nothing():
    system = build("moe-infinity", {}, "shipped")
    assert type(system) is system_class("moe-infinity", "shipped") is ShippedMoEInfinity
    assert system.lossless
    assert system.scope == "global"
    assert not system.predictors
    assert not any(policy.calibrates for policy in system.policies.values())


@pytest.mark.parametrize("charges", ["true", "false"])
def test_the_quirk_is_an_option(charges):
    system = build("moe-infinity", {"evict.charges_hits": charges}, "shipped")
    assert system.evict.charges_hits == (charges == "true")

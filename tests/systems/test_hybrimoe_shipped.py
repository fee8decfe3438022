"""HybriMoE as shipped: golden vectors of the published schedule, staging, and evictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch, fetches
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.hybrimoe import HybriMoE
from moebench.systems.hybrimoe_shipped import (
    AfterNext,
    Costs,
    LowestOfItsLayer,
    ShippedHybriMoE,
    TwoEnded,
    two_ended,
)
from moebench.systems.options import build
from moebench.systems.registry import system_class
from tests.substrate.engine.fakes import random_trace, rig, small_shape
from tests.systems.views import active, cache, shape, victim_of, view

# --------------------------------------------------------------------------- the schedule


@pytest.mark.parametrize("cached", [6, 4, 3, 2, 1])
def test_golden_six_of_which_some_are_cached(cached):
    found = two_ended([1] * cached, [1] * (6 - cached), Costs())
    assert (found.gpu, found.cpu) == ([0, 1, 2, 3, 4], [5])
    assert (found.gpu_ends, found.cpu_ends) == pytest.approx((2.5, 1.79))


def test_golden_six_of_which_none_is_cached():
    found = two_ended([], [1] * 6, Costs())
    assert (found.gpu, found.cpu) == ([0, 1, 2, 3], [5, 4])
    ends = found.gpu_ends, found.cpu_ends, found.moved
    assert ends == pytest.approx((2.418, 2.79, 1.672), abs=1e-3)


def test_tokens_weigh_on_the_cpu_alone_and_ties_go_to_the_gpu():
    costs = Costs(token=1, first=0, gpu=2, move=0)
    # 2 ≤ 2 GPU, 4 > 2 CPU, 4 ≤ 5 GPU.
    assert two_ended([4, 3, 2], [], costs)[:2] == ([0, 1], [2])
    assert two_ended([], [], costs) == ([], [], 0, 0, 0)


# --------------------------------------------------------------------------- plans


def planned(k, resident, policy=None):
    """Return (load, device, host) of a layer whose row prefers 5, 2, 7, 0, ... in this order."""
    scores = np.zeros((1, 8))
    scores[:, [5, 2, 7, 0, 1, 3, 4, 6]] = np.linspace(0.3, 0.1, 8)
    seen = view(scores, k, resident)
    plan = (policy or TwoEnded()).assign(seen, active(seen))
    return list(plan.load), list(plan.device), list(plan.host)


def test_one_row_best_scored_first_of_what_is_there_and_of_what_is_not():
    # 7 and 0 are there: 7 0 5 2.  GPU .5, 1, and with the move 1.5 < 1.79; the CPU has the last.
    assert planned(4, {7, 0, 6}) == (fetches(0, [5]), [7, 0, 5], [2])
    # Of what is there the CPU takes one as well.
    assert planned(4, {7, 0, 5, 2}) == ([], [5, 2, 7], [0])
    # With a dear GPU all but one.
    policy = TwoEnded(gpu_cost=4)
    assert planned(4, {7, 0, 5, 2}, policy=policy) == ([], [5], [0, 7, 2])


@pytest.mark.parametrize("layer", range(4))
def test_several_rows_are_the_gpus_alone(layer):
    # Staged in the first and the last layer; kept in the others, whatever the phase is called.
    seen = view(np.tile([0.1, 0.1, 0.3, 0, 0, 0.4, 0, 0.2], (2, 1)), 4, {7, 0}, layer=layer)
    seen.shape = shape(8, 4, 4)
    plan = TwoEnded().assign(seen, active(seen))
    keep = layer in (1, 2)
    assert plan.load == [Fetch(layer, 2, keep=keep), Fetch(layer, 5, keep=keep)]
    assert (plan.device, plan.host) == ([0, 7, 2, 5], ())


def test_what_is_fetched_for_later_layers():
    def asked(rows, layer, **options):
        policy, model = AfterNext(**options), shape(4, 1, 5)
        policy.start(model, cache(model, 12))
        rows_of = {1: [0.1, 0.2, 0.4, 0.3], 2: [0.4, 0.1, 0.2, 0.3], 3: [0.1, 0.2, 0.1, 0.6]}
        for at, row in rows_of.items():
            policy.observe(view(np.array([row]), 2, layer=at, layers=5))
        seen = view(np.full((rows, 4), 1 / 4), 2, layer=layer, layers=5)
        return list(policy.prefetch(seen, {}))

    assert asked(3, 0) == [Fetch(2, e, keep=False) for e in range(4)]
    assert asked(3, 2) == [Fetch(4, e, keep=False) for e in range(4)]
    assert asked(3, 3) == []
    assert asked(1, 0) == asked(1, 3) == []
    # p = 2.  Of layer 1's best 2 and 3, .4 goes to 2 and .3 to 3; of layer 2's best 0 and 3, .4 to
    # 0 and .3 to 3: the same as their own.
    assert asked(1, 0, size=2) == asked(1, 0, size=2, as_coded=False) == fetches(1, [2, 3])
    assert asked(1, 1, size=1) == fetches(2, [0])
    # Of layer 3's best 3 and 1, the code gives .6 to 1 and .2 to 3.
    assert asked(1, 2, size=1) == fetches(3, [1])
    assert asked(1, 2, size=1, as_coded=False) == fetches(3, [3])
    assert AfterNext(size=1).reads_scores
    assert not AfterNext().reads_scores


# --------------------------------------------------------------------------- who leaves


def started(**options):
    """Return a policy started for two layers that keep two of four experts and stage two."""
    policy, model = LowestOfItsLayer(**options), shape(4, 1, 2)
    policy.start(model, cache(model, 6))
    assert policy.reserve == policy.transient == 2
    return policy


def test_the_lowest_of_the_incoming_layer_and_of_equal_ones_the_longest_unused():
    policy = started()
    for key in (0, 1, 2, 5, 4):
        policy.arrived(key)
    policy.observe(view(np.array([[0.1, 0.0, 0.0, 0.9]]), 1, layers=2))
    # S: .05, 0, 0, .45 in layer 0; nothing in layer 1, that of 7, to which 5 came first.
    assert victim_of(policy, 0, 1, 2, 4, 5) == 5
    assert policy.victim(np.ones(8, bool), 3) == 1
    policy.used(0, [1, 3])
    assert policy.victim(np.ones(8, bool), 3) == 2
    policy.left(2)
    assert policy.victim(np.ones(8, bool), 3) == 1
    assert policy.victim(np.array([1, 0, 1, 1, 1, 1, 1, 1], bool), 3) == 0


def test_nobody_leaves_for_what_is_staged_for_a_later_layer():
    policy = started()
    policy.arrived(4)
    policy.observe(view(np.full((2, 4), 1 / 4), 1, layers=2))
    assert policy.victim(np.ones(8, bool), 7) is None
    policy.observe(view(np.full((1, 4), 1 / 4), 1, layers=2))
    assert policy.victim(np.ones(8, bool), 7) == 4


def test_scores_as_meant_and_as_coded():
    # p = 2: the highest are .5 of 2 and .3 of 1.  The code gives .5 to 1 and .3 to 2.
    rows = np.array([[0.2, 0.3, 0.5, 0.0], [0.8, 0.0, 0.0, 0.2]])
    for given_rows, options, expected in (
        (rows[:1], {"as_coded": False}, [0, 0.15, 0.25, 0]),
        (rows[:1], {}, [0, 0.25, 0.15, 0]),
        (rows, {"as_coded": False}, [0.25, 0, 0.125, 0]),
        (rows, {}, [0, 0.25, 0.15, 0]),
    ):
        policy = started(**options)
        policy.observe(view(given_rows, 1, layers=2))
        assert policy._scores.of(0) == pytest.approx(expected)


def as_the_code_adds(before: list[float], scores: list[float], p: int) -> list[float]:
    """Return S after one gate: the sorted scores of the p best, added in the order of ids."""
    best = sorted(range(len(scores)), key=lambda e: -scores[e])[:p]
    after = [0.5 * s for s in before]
    for expert, rank in zip(sorted(best), best, strict=True):
        after[expert] += 0.5 * scores[rank]
    return after


@settings(max_examples=30, deadline=None)
@given(st.lists(st.permutations(range(1, 9)), min_size=1, max_size=4))
def test_eviction_and_prefetch_read_the_same_scores_as_the_code(orders):
    """k = 2, so that p = 4 of eight experts are credited; scores are eighths of no ties."""
    model, expected = shape(8, 2, 3), [0.0] * 8
    evict, prefetch = LowestOfItsLayer(), AfterNext(size=8)
    for policy in (evict, prefetch):
        policy.start(model, cache(model, 20))
    for order in orders:
        scores = [n / 36 for n in order]
        expected = as_the_code_adds(expected, scores, 4)
        for policy in (evict, prefetch):
            policy.observe(view([scores], 2, layer=1, layers=3))
    assert evict._scores.of(1) == pytest.approx(expected)
    asked = prefetch.prefetch(view([[1 / 8] * 8], 2, layer=0, layers=3), {})
    order = [fetch.expert for fetch in asked]
    assert [expected[e] for e in order] == sorted(expected, reverse=True)


def test_budgets_and_scopes_that_do_not_do():
    policy, model = LowestOfItsLayer(), shape(4, 1, 2)
    with pytest.raises(BudgetError, match=r"2 layers .* 4 slots are too few, 5 would do"):
        policy.start(model, cache(model, 4))
    for slots, reserve in ((5, 3), (6, 2), (7, 1), (8, 0)):
        policy.start(model, cache(model, slots))
        assert policy.reserve == reserve
    with pytest.raises(UsageError, match=r"use it with --set scope=global"):
        policy.start(model, cache(model, 8, "layer"))
    for option in ("token_cost", "first_cost", "gpu_cost", "move_cost"):
        with pytest.raises(UsageError, match=rf"assign\.{option} is -1; allowed: 0 or more"):
            TwoEnded(**{option: -1})
    with pytest.raises(UsageError, match=r"prefetch\.size is -1"):
        AfterNext(size=-1)


# --------------------------------------------------------------------------- the whole system


def test_shipped_hybrimoe_uses_its_policies_and_notes():
    system = build("hybrimoe", {}, "shipped")
    assert type(system) is system_class("hybrimoe", "shipped") is ShippedHybriMoE
    assert isinstance(system, HybriMoE)
    assert system.lossless
    assert system.scope == "global"
    assert system.pinned_copies
    assert system.prefetch == AfterNext(size=0, as_coded=True)
    assert system.evict == LowestOfItsLayer(as_coded=True)
    results, costs, copies = system.remarks(shape(), 9)
    assert "its results would be wrong" in results
    assert "on the CPU 1 a token and 0.79 once, 0.5 on the GPU, 0.4179 a move" in costs
    assert "copies all experts of the layer after the next" in copies
    other = build("hybrimoe", {"assign": "load", "prefetch": "none"}, "shipped")
    assert other.remarks(shape(), 9) == [results]


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**16),
    batch=st.integers(1, 3),
    slots=st.integers(10, 24),
    size=st.integers(0, 2),
)
def test_each_layer_keeps_its_share_and_staging_is_empty_in_the_end(seed, batch, slots, size):
    model = small_shape(layers=3, experts=8)
    trace = random_trace(seed, model, [[3] * batch], 4)
    system = build("hybrimoe", {"prefetch.size": str(size)}, "shipped")
    made = rig(system, TracedModel(trace), slots=slots)
    check_shares(made)
    made.engine.generate([[1] * 3] * batch, 4)
    check_timeline(made.spans, made.events, num_experts=8, capacity=slots)
    check_shares(made)
    made.cache.check_integrity()


def check_shares(made):
    """Check that kept experts fill all slots but staging, in equal parts."""
    held = [sum(made.cache.holds(made.cache.key(layer, e)) for e in range(8)) for layer in range(3)]
    reserve = made.engine.system.evict.reserve
    assert sum(held) == made.cache.slots - reserve
    assert max(held) - min(held) <= 1


def test_what_is_staged_for_the_layer_after_the_next_is_gone_when_it_comes():
    # Five layers of eight experts, two kept in each.
    trace = random_trace(0, small_shape(layers=5, experts=8, top_k=4), [[6]], 1)
    system, held = build("hybrimoe", {}, "shipped"), []
    assign = system.assign.assign

    def counted(seen, active):
        held.append(int((seen.resident_E | seen.in_flight_E).sum()))
        return assign(seen, active)

    system.assign.assign = counted
    made = rig(system, TracedModel(trace), slots=16)
    made.engine.generate([[1] * 6], 1)
    # All but the last layer find what they keep.
    assert held == [2, 2, 2, 2, 8]
    # Six of layers 2, 3 and 4 were staged.
    counts = made.counts["prefill"]
    assert counts.prefetched == 18
    assert counts.prefetched_used == len(set(trace.batches[0][0].gates[4].ids_TK.ravel()) - {0, 1})

"""HybriMoE: a layer's plan, impact compared with trying all fetches, and MRS by hand.

The simulation has tests of its own: tests/systems/policies/test_makespan.py.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.terms import Lookahead
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.hybrimoe import (
    HybriMoE,
    ImpactDriven,
    MakespanSchedule,
    MinusRecentScore,
    expected,
)
from moebench.systems.options import build
from moebench.systems.policies.makespan import Times, schedule
from moebench.systems.policies.predict import NextGates
from tests.substrate.engine.fakes import (
    FixedModel,
    FlatCosts,
    prices,
    random_trace,
    rig,
    small_shape,
)
from tests.systems.policies.exact import exact_ends  # noqa: F401
from tests.systems.views import Backlog, active, cache, costs, fetched, shape, victim_of, view

# --------------------------------------------------------------------------- a layer's plan

#: 7 a token on the host, 10 on the device, 20 a load.
MEASURED = {"load": [20], "host": [14], "per_row": [7], "device": [10]}
TAKES = Times(token_ns=7, first_ns=0, gpu_ns=10, pcie_ns=20)


def planned(rows, resident, in_flight=(), lanes=None, measured=MEASURED, phase="decode", **options):
    """Return (device, host, load) for rows per expert; scores decrease with the id."""
    scores = np.linspace(0.5, 0.1, 8)[None]
    seen = view(
        scores, 3, resident, in_flight=in_flight, measured=costs(**measured), lanes=lanes,
        phase=phase,
    )  # fmt: skip
    plan = MakespanSchedule(**options).assign(seen, active(seen, rows))
    assert plan.deferred == ()
    return list(plan.device), list(plan.host), fetched(0, plan.load)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_plan_is_the_simulations(phase):
    # As (3, 2, 1) cached: experts 5, 0 and 2.
    assert planned({0: 2, 2: 1, 5: 3}, {0, 2, 5}, phase=phase) == ([5, 0], [2], [])
    # Of equal loads the better scored one is loaded: 1, 4 and 6 are absent.
    # CPU 6 at 7, 4 at 14; link 1 at 20, CPU 1 at 21: it is loaded.
    assert planned({1: 1, 4: 1, 6: 1}, set(), phase=phase) == ([1], [6, 4], [1])


def test_what_the_link_still_carries_is_waited_for():
    lanes = Backlog({Lane.H2D: 6})
    # The CPU has 6 at 7 and 4 at 14, the GPU 1 at 16 at the earliest.
    found = planned({1: 1, 4: 1, 6: 1}, set(), in_flight={1}, lanes=lanes)
    assert found == ([1], [6, 4], [])
    # The link would bring 4 at 26 rather than at 20.
    assert planned({4: 3, 6: 1}, set(), lanes=Backlog({Lane.H2D: 1}))[2] == [4]
    assert planned({4: 3, 6: 1}, set(), lanes=Backlog({Lane.H2D: 9}))[2] == []


def test_a_link_from_the_disk_is_as_busy_as_the_busier_lane():
    lanes = Backlog({Lane.H2D: 1, Lane.DISK: 9}, (Lane.DISK, Lane.H2D))
    assert planned({4: 3, 6: 1}, set(), lanes=lanes)[2] == []


def test_the_first_on_the_host_is_as_dear_as_it_was():
    # 2 rows 34, 1 row 7, 1 row 7: 7 a token, and 20 for the first.
    dear = {**MEASURED, "host": [34, 7, 7], "per_row": [17, 7, 7], "first": [True, False, False]}
    assert planned({1: 1, 4: 1}, set()) == ([], [4, 1], [])
    # The link has 1 at 20, the CPU 4 at 27, the GPU 1 at 30.
    assert planned({1: 1, 4: 1}, set(), measured=dear) == ([1], [4], [1])
    assert planned({1: 1, 4: 1}, set(), measured=dear, history=2) == ([], [4, 1], [])


def test_what_the_host_computed_can_be_admitted():
    found = planned({1: 1, 4: 1, 6: 1, 7: 1}, {7}, fill=True)
    assert found == ([7, 1], [6, 4], [1, 6, 4])
    # What is on the device already is not loaded.
    assert planned({0: 2, 2: 1, 5: 3}, {0, 2, 5}, fill=True) == ([5, 0], [2], [])


# --------------------------------------------------------------------------- prefetching


def prefetched(forecast, held=(), k=3, measured=MEASURED, rows=1, **options):
    """Return the fetches with these (layer, expert) resident; forecasts name the best experts."""
    model = shape(8, k, 4)
    slots = cache(model, 16)
    for layer, expert in held:
        slots.claim(slots.key(layer, expert), None)
    policy = ImpactDriven(**options)
    policy.start(model, slots)
    seen = view(np.full((rows, 8), 1 / 8), k, layers=4, measured=costs(**measured))

    def scores(rows):
        best = np.zeros((len(rows), 8))
        for row, experts in zip(best, rows, strict=True):
            row[list(experts)] = np.linspace(0.3, 0.2, len(experts))
        return best

    told = {layer: scores(rows) for layer, rows in forecast.items()}
    return [(fetch.layer, fetch.expert) for fetch in policy.prefetch(seen, told)]


#: 7 a token on the host and 5 once, 1 on the device, 100 a load.
DEARER = {
    "load": [100], "host": [12, 7], "per_row": [12, 7], "device": [1], "first": [True, False],
}  # fmt: skip


def test_the_greatest_saving_is_fetched_first_and_the_others_are_weighed_again():
    takes = Times(7, 5, 1, 100)
    of_three = [schedule((1,) * (3 - n), (1,) * n, takes).makespan_ns for n in range(4)]
    assert of_three == [3, 12, 19, 26]
    # 9 is saved in layer 1; then 7 in layers 2 and 3, and of the nearer one 9 is left.
    found = prefetched(
        {1: [(0, 1, 2)], 2: [(3, 4, 5)], 3: [(6, 7, 1)]},
        held=[(1, 0), (1, 2), (2, 4), (3, 0)],
        measured=DEARER,
        experts=9,
    )
    assert found == [(1, 1), (2, 3), (2, 5), (3, 6), (3, 7), (3, 1)]


def test_of_equal_impacts_the_nearest_layers_and_the_best_scored():
    found = prefetched({1: [(5, 3, 1)], 2: [(3, 4, 5)]})
    assert found[:2] == [(1, 5), (2, 3)]


def test_of_equal_scores_the_lowest_experts_are_expected():
    """More than a sort without order keeps in order by itself."""
    assert list(expected(np.zeros((1, 300)), 4)) == [0, 1, 2, 3]
    scores = np.tile([0.0, 1.0], 150)[None]
    assert list(expected(scores, 3)) == [1, 3, 5]
    both = expected(np.concatenate([scores, scores]), 2)
    assert both == {1: 2, 3: 2}


def test_what_saves_nothing_is_not_fetched():
    # With one absent of three the CPU takes 7, and of three cached ones it takes two, 14.
    assert schedule((1, 1), (1,), TAKES).makespan_ns == 14
    assert schedule((1, 1, 1), (), TAKES).makespan_ns == 14
    assert prefetched({1: [(0, 1, 2)]}, held=[(1, 0), (1, 1)]) == []
    assert prefetched({1: [(0, 1, 2)]}, held=[(1, 0), (1, 1), (1, 2)]) == []
    assert prefetched({}) == []


def test_number_of_fetches_follows_the_option():
    forecast = {1: [(0, 1, 2)], 2: [(3, 4, 5)], 3: [(6, 7, 1)]}
    assert len(prefetched(forecast, measured=DEARER)) == 3  # the top-k
    assert len(prefetched(forecast, measured=DEARER, experts=1)) == 1
    assert len(prefetched(forecast, measured=DEARER, experts=20)) == 9


@given(
    rows=st.lists(st.permutations(range(8)).map(lambda e: e[:2]), min_size=1, max_size=4),
    held=st.sets(st.integers(0, 7), max_size=6),
)
def test_the_first_is_the_best_of_all_that_could_be_fetched(rows, held):
    tokens = {e: sum(e in row for row in rows) for row in rows for e in row}

    def makespan(there):
        cached = sorted((n for e, n in tokens.items() if e in there), reverse=True)
        absent = sorted((n for e, n in tokens.items() if e not in there), reverse=True)
        return schedule(tuple(cached), tuple(absent), TAKES).makespan_ns

    saving = {e: makespan(held) - makespan(held | {e}) for e in tokens if e not in held}
    most = max(saving.values(), default=0)
    found = prefetched({2: rows}, [(2, e) for e in held], k=2, rows=len(rows), experts=1)
    if most <= 0:
        assert found == []
    else:
        ((_, expert),) = found
        assert saving[expert] == most


def test_the_gates_of_the_next_three_layers_are_asked_in_decode():
    assert ImpactDriven().predictor == NextGates(layers=3)
    assert ImpactDriven(layers=1, prefill=True).predictor == NextGates(layers=1, in_prefill=True)
    seen = view(np.zeros((2, 8)), 2, phase="prefill", layers=6)
    assert not ImpactDriven().predictor.asked(seen)
    assert ImpactDriven(prefill=True).predictor.asked(seen)
    assert set(build("hybrimoe").lookaheads) == {Lookahead.GATE}


def test_a_trace_of_nearer_predictions_is_refused_unless_they_are_enough():
    model = small_shape(layers=5, experts=8)

    def run(**overrides):
        trace = random_trace(0, model, [[3]], 3)  # of two layers
        system = build("hybrimoe", overrides)
        made = rig(system, TracedModel(trace), slots=10, scope=system.scope)
        made.engine.generate([[1, 1, 1]], 3)

    with pytest.raises(UsageError, match=r"no predictions of kind gate that layer 0 made of layer"):
        run()
    run(**{"prefetch.layers": "2"})
    run(prefetch="none")


# --------------------------------------------------------------------------- caching


def seen_by(policy, rows, layer=0):
    policy.observe(view(np.array(rows), 1, layer=layer, layers=2))


def started(**options):
    policy, model = MinusRecentScore(**options), shape(4, 1, 2)
    policy.start(model, cache(model, 8))
    return policy


def test_recent_scores_follow_the_recurrence():
    # α = 1/2, p = 2.  S: (.3, 0, .2, 0), then (.15, .2, .1, .15): 1 and 3 are the best two.
    policy = started()
    seen_by(policy, [[0.6, 0.0, 0.4, 0.0]])
    seen_by(policy, [[0.1, 0.4, 0.2, 0.3]])
    assert policy._scores.of(0) == pytest.approx([0.15, 0.2, 0.1, 0.15])
    assert policy._scores.of(1) == pytest.approx([0, 0, 0, 0])
    assert victim_of(policy, 0, 1, 2, 3) == 2
    assert victim_of(policy, 1, 3) == 3
    assert victim_of(policy, 0, 4) == 4  # layer 1 has no scores yet
    assert victim_of(policy) is None


def test_the_weight_of_the_newest_and_how_many_count():
    policy = started(smoothing=0.25, top=3)
    seen_by(policy, [[0.4, 0.3, 0.2, 0.1]])
    assert policy._scores.of(0) == pytest.approx([0.1, 0.075, 0.05, 0])
    seen_by(policy, [[0.0, 0.0, 0.0, 1.0]])
    assert policy._scores.of(0) == pytest.approx([0.075, 0.05625, 0.0375, 0.25])


def test_of_several_rows_the_mean_counts():
    policy = started(smoothing=1)
    seen_by(policy, [[1.0, 0.0, 0.0, 0.0], [0.0, 0.2, 0.8, 0.0]])
    assert policy._scores.of(0) == pytest.approx([0.5, 0, 0.4, 0])


def test_options_out_of_range_are_one_line():
    for option in (
        {"assign.history": "0"}, {"prefetch.history": "65"}, {"prefetch.layers": "0"},
        {"prefetch.experts": "-1"}, {"evict.smoothing": "0"}, {"evict.smoothing": "1.5"},
        {"evict.top": "-1"},
    ):  # fmt: skip
        ((key, value),) = option.items()
        with pytest.raises(UsageError, match=rf"{key} is {value}(\.0)?; allowed"):
            build("hybrimoe", option)


# --------------------------------------------------------------------------- the whole system


def test_hybrimoe_uses_its_published_policies():
    system = build("hybrimoe")
    assert type(system) is HybriMoE
    assert system.lossless
    assert system.scope == "layer"
    assert system.assign == MakespanSchedule(history=10, fill=False)
    assert system.prefetch == ImpactDriven(layers=3, experts=0, history=10, prefill=False)
    assert system.evict == MinusRecentScore(smoothing=0.5, top=0)
    with pytest.raises(BudgetError, match="room for 2 experts"):
        rig(system, FixedModel(small_shape(), {}), slots=2, scope="layer")


def test_a_token_by_hand():
    """Two layers of six experts, two slots each: 0 and 1.  One prompt token, one decoded one."""
    gates = {
        (0, 0): [[0.5, 0.4, 0.1, 0, 0, 0]], (0, 1): [[0.5, 0.4, 0.1, 0, 0, 0]],
        (1, 0): [[0, 0.5, 0.4, 0.1, 0, 0]], (1, 1): [[0, 0, 0, 0.6, 0.4, 0]],
    }  # fmt: skip
    expects = {(1, 0): [[0, 0, 0, 0.6, 0.4, 0]]}
    model = FixedModel(small_shape(layers=2, experts=6), gates, expects)
    # 10 on the device, 40 a load, 30 on the host.
    made = rig(build("hybrimoe"), model, slots=4, scope="layer", costs=FlatCosts(prices(host=30)))
    made.engine.generate([[1]], 2)
    check_timeline(made.spans, made.events, num_experts=6, capacity=4)

    def of(kind: OpKind, lane: Lane) -> list[tuple[int, tuple[int, ...], int, int]]:
        spans = [s for s in made.spans if s.op.kind is kind and s.lane is lane]
        return [(s.op.layer, s.op.experts, s.start_ns, s.end_ns) for s in spans]

    # Prefill: two layers of 30 + 3 + 20 + 2, and the head: 116.  Decode's first gate is known at
    # 149; the CPU would end 2 at 30 and the link bring it at 40.  It is back at 183, the sum 185.
    assert of(OpKind.EXPERT, Lane.HOST) == [(0, (2,), 149, 179)]
    # The prediction takes 159..164.  Layer 1 would take 50 with 3 and 4 absent, 30 with one of
    # them, and 20.  0 has the higher S, so 1 leaves first.
    assert of(OpKind.LOAD, Lane.H2D) == [(1, (3,), 164, 204), (1, (4,), 204, 244)]
    assert [claim.victim for claim in made.claims if not claim.placed] == [6 + 1, 6 + 0]
    # Its gate is known at 218.
    assert of(OpKind.EXPERT, Lane.DEVICE)[-3:] == [
        (0, (1,), 149, 159), (1, (3,), 218, 228), (1, (4,), 244, 254),
    ]  # fmt: skip
    assert made.counts["decode"].prefetched_used == 2


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**16),
    slots=st.integers(3, 24),
    batch=st.integers(1, 3),
    scope=st.sampled_from(["layer", "global"]),
    more=st.sampled_from([{}, {"assign.fill": "true"}, {"prefetch.prefill": "true"}]),
)
def test_timelines_are_sound(seed, slots, batch, scope, more):
    model = small_shape(layers=3, experts=8)
    trace = random_trace(seed, model, [[2] * batch], 4)
    system = build("hybrimoe", {"scope": scope, **more})
    made = rig(system, TracedModel(trace), slots=slots, scope=scope)
    made.engine.generate([[1, 1]] * batch, 4)
    capacity = slots if scope == "global" else slots // 3 * 3
    check_timeline(made.spans, made.events, num_experts=8, capacity=capacity)
    made.cache.check_integrity()


def test_among_many_equal_scores_the_lowest_ids_are_expected():
    scores = np.random.default_rng(0).integers(1, 4, (1, 400)) / 4
    wanted = sorted(range(400), key=lambda e: (-scores[0, e], e))[:150]
    assert expected(scores, 150) == dict.fromkeys(wanted, 1)
    assert [*expected(scores, 150)] == wanted

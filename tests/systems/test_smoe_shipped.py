"""Rules of SMoE's shipped code, on examples computed with its functions; α = 0.25."""

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Plan, fetches
from moebench.substrate.engine.system import AdmitAll
from moebench.systems.options import build
from moebench.systems.registry import system_class
from moebench.systems.smoe_shipped import (
    FirstPredicted,
    LoadOrder,
    NextGateWithoutAttention,
    OneEnded,
    PlaceByLayer,
    SetOrderRouter,
    ShippedSMoE,
    divided,
    predicted_set,
    trimmed_mean,
)
from tests.systems.policies.exact import exact_ends  # noqa: F401
from tests.systems.views import active, cache, costs, fetched, flags, shape, started, view

MS = 1e6


def row(scores: dict[int, float], experts: int = 64) -> list[float]:
    """Return one row's gate scores; experts without a given score have zero."""
    return [scores.get(e, 0.0) for e in range(experts)]


# ----------------------------------------------------------------------------- substitution

FOUR = {0: 0.40, 1: 0.22, 2: 0.20, 3: 0.18}
SIX = {0: 0.30, 1: 0.12, 2: 0.11, 3: 0.10, 5: 0.095, 8: 0.08}
TWO_ROWS = [{0: 0.40, 1: 0.14, 2: 0.12, 3: 0.11}, {3: 0.50, 4: 0.30, 5: 0.05}]


def routed(rows, k, resident, in_flight=(), **seen):
    given = [row(scores) for scores in rows]
    shown = view(given, k, resident=resident, in_flight=in_flight, **seen)
    return SetOrderRouter().route(shown)


@pytest.mark.parametrize(
    ("rows", "k", "resident", "expected"),
    [
        # β = S_3 = .20 is expert 2's: it is no candidate though it is there.  3 is.
        ([FOUR], 2, {0, 2, 3}, [[0, 3]]),
        ([FOUR], 2, {0, 2}, [[0, 1]]),
        # Candidates 5 and 8 are taken by id mod 8: 8 for the better expert 1, then 5 for 2.
        ([SIX], 3, {0, 5, 8}, [[0, 8, 5]]),
        ([SIX], 3, {0, 8}, [[0, 8, 2]]),
        # 3 is not there, but the other row's top-score expert.
        (TWO_ROWS, 2, {0}, [[0, 3], [3, 4]]),
    ],
)
def test_substitution(rows, k, resident, expected):
    assert routed(rows, k, resident).ids_TK.tolist() == expected


def test_a_substitute_is_weighed_by_its_own_score_and_the_top_score_set_is_told():
    found = routed(TWO_ROWS, 2, {0})
    assert found.weigh_as_TK is found.ids_TK
    assert found.top_score == {0, 3, 4}  # .40 ≥ 1.25·.12;  .50 and .30 ≥ 1.25·.05


def test_a_copy_under_way_counts_as_there():
    assert routed([FOUR], 2, {0, 2}, in_flight={3}).ids_TK.tolist() == [[0, 3]]
    # So does the low-score expert's own: it stays.
    assert routed([FOUR], 2, {0, 2, 3}, in_flight={1}).ids_TK.tolist() == [[0, 1]]


def test_prefill_and_no_alpha_are_exact():
    for seen in ({"phase": "prefill"}, {"alpha": 0.0}):
        assert routed([FOUR], 2, {0, 2, 3}, **seen).ids_TK.tolist() == [[0, 1]]
    assert SetOrderRouter().lossless_at(0)
    assert not SetOrderRouter().lossless_at(0.1)


def test_a_substitute_serves_one_place_of_a_row():
    # β = .10; 1 and 2 are low-score (< .125), 5 alone is a candidate that is there.
    assert routed([SIX], 3, {0, 5}).ids_TK.tolist() == [[0, 5, 2]]


# ----------------------------------------------------------------------------- division

A, B, C = 0, 1, 2


@pytest.mark.parametrize(
    ("queue", "host", "load", "expected"),
    [([A, B, C], 1, 3, ([B], [A, C])), ([B, C, A], 1, 1, ([C], [B, A])), ([A], 1, 0.1, ([], [A]))],
)
def test_division(queue, host, load, expected):
    assert divided(queue, load, host) == expected


def assigned(policy, rows, layer=0, phase="decode", resident=()):
    seen = view([[0.1] * 8], 1, layer=layer, phase=phase, resident=resident)
    return policy.assign(seen, active(seen, rows))


def test_most_rows_come_first_in_both_phases():
    for phase in ("decode", "prefill"):
        # C_load = C_cpu = 50 ms: the host takes B, the link C, the host A.
        plan = assigned(started(OneEnded()), {A: 1, B: 3, C: 2}, phase=phase)
        assert fetched(0, plan.load) == [C]
        assert list(plan.host) == [B, A]
        assert list(plan.device) == [C]
    tied = assigned(started(OneEnded()), {A: 1, B: 1, C: 1}, resident=[C])
    assert (list(tied.host), fetched(0, tied.load), list(tied.device)) == ([A], [B], [C, B])


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([5], 5),
        ([1, 1, 1, 1, 11], 1),  # mean 3, σ 4: 11 is 8 away
        ([2, 4, 4, 4, 5, 5, 7, 9], 29 / 6),  # mean 5, σ 2: 2 and 9 are further away than 2
        ([3, 3, 3], 3),
        ([0.1, 0.3], 0.2),  # both are one σ away
        ([909925.048, 861425.549], 885675.2985),
    ],
)
def test_trimmed_means(values, mean):
    assert trimmed_mean(values) == pytest.approx(mean)


def waited(policy, *, host=(), loads=0, left=0, layer=0, end=1000 * MS):
    """Report a layer with loads and these host durations (ns) to the policy."""
    seen = view([[0.1] * 8], 1, layer=layer, measured=costs(host=[1e9, *host]))
    plan = Plan([], range(len(host)), (), fetches(layer, range(loads)))
    policy.waited(seen, plan, int(end), int(end + left))


def test_costs_are_measured_by_layer_and_a_load_by_what_is_waited_for():
    policy = started(OneEnded())
    # Layer 0 has computed one expert: C_load is C_cpu, trimmed mean of 50 and 50 ms.
    waited(policy, host=[50 * MS], loads=1, left=400 * MS)
    tied = assigned(policy, {0: 1, 1: 1, 2: 1, 3: 1})
    assert (list(tied.host), fetched(0, tied.load)) == ([0, 2], [1, 3])
    # And now two: C_load is the mean of 2 and 400 ms, which is 201; C_cpu stays 50.
    waited(policy, host=[50 * MS])
    behind = assigned(policy, {0: 1, 1: 1, 2: 1, 3: 1})  # 0 host, 1 load (201|50), 2 3 host
    assert (list(behind.host), fetched(0, behind.load)) == ([0, 2, 3], [1])
    # Layer 1 has computed none: it knows neither.
    other = assigned(policy, {0: 1, 1: 1, 2: 1, 3: 1}, layer=1)
    assert (list(other.host), fetched(1, other.load)) == ([0, 2], [1, 3])


def test_a_link_that_is_done_before_the_host_costs_nothing():
    policy = started(OneEnded())
    for _ in range(10):  # the first 2 ms are forgotten
        waited(policy, host=[50 * MS], loads=2, left=-MS)
    # C_load = 0: after the host's first every miss is loaded.
    plan = assigned(policy, {0: 1, 1: 1, 2: 1, 3: 1})
    assert (list(plan.host), fetched(0, plan.load)) == ([0], [1, 2, 3])


def test_what_is_waited_for_is_shared_by_the_loads():
    policy = started(OneEnded())
    waited(policy, host=[50 * MS, 50 * MS])
    for _ in range(10):
        waited(policy, loads=4, left=240 * MS)  # 60 ms each
    # 0 host (0|50), 1 load (60|50), 2 host (60|100), 3 load, 4 host (120|150), 5 load.
    plan = assigned(policy, dict.fromkeys(range(6), 1))
    assert (list(plan.host), fetched(0, plan.load)) == ([0, 2, 4], [1, 3, 5])


def test_the_hosts_cost_is_that_of_its_last_ten_experts_in_the_layer():
    policy = started(OneEnded())
    waited(policy, host=[9000 * MS] * 5)
    for _ in range(10):
        waited(policy, host=[100 * MS], loads=4, left=240 * MS)  # 60 ms each
    # 0 host (0|100), 1 2 load (120|100), 3 host (120|200), 4 5 load.
    plan = assigned(policy, dict.fromkeys(range(6), 1))
    assert (list(plan.host), fetched(0, plan.load)) == ([0, 3], [1, 2, 4, 5])
    # Another layer has 50 ms from the start, and that is its cost of a load too.
    other = assigned(policy, dict.fromkeys(range(4), 1), layer=1)
    assert (list(other.host), fetched(1, other.load)) == ([0, 2], [1, 3])
    # Loads alone add no host computation.
    waited(policy, loads=1, left=0, layer=1)
    assert [*policy._host_ns[1]] == [50e6]
    assert len(policy._host_ns[0]) == len(policy._load_ns) == 10


# ----------------------------------------------------------------------------- eviction

#: Keys of (0, 0), (0, 1), (1, 0) with four experts a layer.
FIRST, SECOND, THIRD = 0, 1, 4


def evicts(policy, free=(FIRST, SECOND, THIRD)):
    return policy.victim(flags(free, 8), 7)


def placed(window=None):
    policy = started(LoadOrder(window=window), experts=4, layers=2)
    for key in (FIRST, SECOND, THIRD):
        policy.placed(key)
    return policy


def test_first_in_first_out():
    policy = placed()
    assert evicts(policy) == FIRST
    assert evicts(policy, {SECOND, THIRD}) == SECOND  # (0, 0) is in use
    policy.used(0, [0])  # a use moves nothing
    assert evicts(policy) == FIRST
    policy.left(FIRST)
    policy.arrived(FIRST)  # a load does
    assert evicts(policy) == SECOND
    assert not policy.reads_scores


def test_with_a_window_the_position_dominates():
    policy = placed(window=4)
    policy.observe(view([[0.30, 0.10, 0, 0]], 1, layer=0))
    policy.observe(view([[0.20, 0, 0, 0]], 1, layer=1))
    # .30·4 + 0, .10·4 + 1, .20·4 + 2.
    assert evicts(policy) == FIRST
    assert evicts(policy, {SECOND, THIRD}) == SECOND
    assert policy.reads_scores
    # With .60 for the first: 2.4 against 1.4.
    policy = placed(window=4)
    policy.observe(view([[0.60, 0.10, 0, 0]], 1, layer=0))
    assert evicts(policy) == SECOND


def test_nobody_leaves_where_nobody_may():
    assert evicts(placed(), ()) is evicts(placed(window=2), ()) is None


def test_the_start_is_in_the_order_of_layers():
    placed = list(PlaceByLayer().place(shape(experts=4, layers=2), 5, "global"))
    assert placed == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


# ----------------------------------------------------------------------------- prefetch

THREE = {12: 0.30, 3: 0.25, 9: 0.20, 1: 0.10}
FIVE = {40: 0.2, 33: 0.15, 2: 0.14, 7: 0.13, 60: 0.12, 5: 0.05}


@pytest.mark.parametrize(
    ("predicted", "k", "order"), [(THREE, 3, [9, 3, 12]), (FIVE, 5, [33, 2, 7, 40, 60])]
)
def test_the_order_of_the_predicted_set(predicted, k, order):
    assert list(predicted_set([row(predicted)], k, 0.25)) == order


def prefetched(predicted, held, k=3):
    model = shape(64, k, 2)
    held_by = cache(model, 8)
    for expert in held:
        held_by.claim(held_by.key(1, expert), None)
    policy = FirstPredicted()
    policy.start(model, held_by)
    seen = view([[0.1] * 64], k)
    return fetched(1, policy.prefetch(seen, {1: np.array([row(predicted)])}))


def test_one_expert_the_first_that_has_no_slot():
    assert prefetched(THREE, held=()) == [9]
    assert prefetched(THREE, held={9}) == [3]  # on its way is enough
    assert prefetched(THREE, held={9, 3}) == [12]
    assert prefetched(THREE, held={9, 3, 12}) == []


def test_predictions_are_made_after_misses_in_decode():
    asks = NextGateWithoutAttention().asked
    seen = view([[0.1] * 8])
    assert not asks(seen)  # everything was there
    seen.absent = [3]
    assert asks(seen)
    last = view([[0.1] * 8], layer=27)
    last.absent = [3]
    assert not asks(last)
    prompt = view([[0.1] * 8], phase="prefill")
    prompt.absent = [3]
    assert not asks(prompt)


# ----------------------------------------------------------------------------- the system


def test_shipped_smoe_uses_its_policies():
    system = build("smoe", {}, "shipped")
    assert type(system) is system_class("smoe", "shipped") is ShippedSMoE
    assert list(map(type, system.policies.values())) == [
        PlaceByLayer, SetOrderRouter, OneEnded, FirstPredicted, AdmitAll, LoadOrder,
    ]  # fmt: skip
    assert (system.alpha, system.evict.window) == (0.25, None)
    assert system.synchronises
    assert system.reads_unfinished
    assert system.scope == "global"
    published = build("smoe")
    assert not published.synchronises
    assert not published.reads_unfinished


def test_averages_are_over_the_window_s_steps():
    assert LoadOrder()._scores is None
    assert [LoadOrder(window=n)._scores.window for n in (0, 2, 7)] == [0, 2, 7]

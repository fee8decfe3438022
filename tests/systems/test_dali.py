"""DALI by hand: the 0-1 program, the residual of a gate, tokens of predictions, exchanges."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.models.shape import GateKind
from moebench.substrate.terms import Lookahead, RoutedSequence
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.dali import (
    DALI,
    LEAST_SCORE,
    GreedyAssignment,
    ResidualPrefetch,
    WorkloadSwaps,
    difference_first,
    exchange,
    greedy,
    logits_of,
    makespan,
    most_tokens,
)
from moebench.systems.options import build
from moebench.systems.policies.evict_engines import WorkloadAware
from tests.substrate.engine.fakes import random_trace, rig, small_shape
from tests.systems.views import active, cache, costs, flags, shape, view

MS = 10**6

# --------------------------------------------------------------------------- the 0-1 program


def test_the_greedy_takes_the_largest_difference_first():
    # The device takes 1 ms, a transfer 5 ms more; the host 2 ms a token.
    #
    #   expert   tokens   there   device   host   difference
    #   0        4        no      6        8      2
    #   1        1        no      6        2      4
    #   2        3        yes     1        6      5
    #   3        1        yes     1        2      1
    #
    #   2: device ends 1, host would end 6          device 1
    #   1: device 7, host 2                         host 2
    #   0: device 7, host 10                        device 7
    #   3: device 8, host 4                         host 4: the makespan is 7
    device, host = [6 * MS, 6 * MS, 1 * MS, 1 * MS], [8 * MS, 2 * MS, 6 * MS, 2 * MS]
    assert difference_first(device, host) == [2, 1, 0, 3]
    assert greedy(device, host) == [True, False, True, False]
    assert makespan(device, host, [True, False, True, False]) == 7 * MS

    assert best(device, host) == 7 * MS


def best(device, host):
    """Return the least makespan of all assignments."""
    every = product([True, False], repeat=len(device))
    return min(makespan(device, host, chosen) for chosen in every)


def test_the_greedy_is_not_always_the_optimum():
    # 3 and 3, then 2, 2 and 2: 7 on the device.  The optimum is 3 + 3 and 2 + 2 + 2.
    times = [3 * MS, 3 * MS, 2 * MS, 2 * MS, 2 * MS]
    assert greedy(times, times) == [True, False, True, False, True]
    assert makespan(times, times, greedy(times, times)) == 7 * MS
    assert best(times, times) == 6 * MS


def test_equal_ends_are_the_devices():
    assert greedy([MS], [MS]) == [True]
    assert greedy([MS + 1000], [MS]) == [True]  # a difference of 1 us does not count
    assert greedy([MS + 1001], [MS]) == [False]
    assert greedy([], []) == []


times = st.integers(1, 50).map(lambda n: n * MS)


@pytest.mark.slow
@given(st.lists(st.tuples(times, times), max_size=9))
def test_the_greedy_is_at_most_twice_the_optimum(experts):
    device, host = [d for d, _ in experts], [h for _, h in experts]
    found, least = makespan(device, host, greedy(device, host)), best(device, host)
    assert least <= found <= 2 * least
    assert found <= sum(map(min, device, host))


@given(st.integers(0, 9), times, times)
def test_the_greedy_is_the_optimum_for_experts_of_equal_times(experts, device, host):
    chosen = greedy([device] * experts, [host] * experts)
    least = min(max(n * device, (experts - n) * host) for n in range(experts + 1))
    assert makespan([device] * experts, [host] * experts, chosen) == least


def planned(resident=(), in_flight=(), rows=None, **more):
    measured = costs(load=[5 * MS], host=[2 * MS], per_row=[2 * MS], device=[1 * MS])
    seen = view([[0.0] * 8], 4, resident, in_flight=in_flight, measured=measured, **more)
    return GreedyAssignment().assign(seen, active(seen, rows))


def test_the_plan_of_the_hand_calculated_layer():
    # The experts of the first test as 4, 5, 6 and 7.
    plan = planned(resident=[6, 7], rows={4: 4, 5: 1, 6: 3, 7: 1})
    assert (plan.device, plan.host) == ([6, 4], [5, 7])
    assert plan.load == [Fetch(0, 4)]


def test_a_transfer_under_way_is_not_paid_again():
    # Both take 1 ms on the device and 2 ms on the host: equal differences, in order of id.
    #   2: device 1 ≤ host 2;  5: device 2 ≤ host 2
    plan = planned(resident=[5], in_flight=[2], rows={2: 1, 5: 1})
    assert (plan.device, plan.host, plan.load) == ([5, 2], [], [])


def test_prefill_is_divided_too():
    rows = {4: 4, 5: 1, 6: 3, 7: 1}
    plan = planned(resident=[6, 7], rows=rows, phase="prefill")
    assert (plan.device, plan.host) == ([6, 4], [5, 7])


def test_a_history_that_is_not_kept_is_refused():
    with pytest.raises(UsageError, match=r"assign\.history is 0; allowed: 1 to"):
        GreedyAssignment(history=0)


# --------------------------------------------------------------------------- the residual


def test_the_expert_with_most_tokens_is_first():
    # Top-2 of three rows: {0, 1}, {1, 2}, {1, 0}.  Expert 1 has 3 tokens, 0 two, 2 one; 3 none.
    rows = np.log([[4, 3, 2, 1], [1, 3, 4, 2], [3, 4, 2, 1]])
    assert list(most_tokens(rows, 2).items()) == [(1, 3), (0, 2), (2, 1)]


def test_of_equally_many_tokens_the_best_probability_is_first_then_the_id():
    assert list(most_tokens(np.log([[1, 2, 7]]), 2)) == [2, 1]
    # Probabilities, not values: row 1 is row 0 plus a constant, and its 5 is a third.
    rows = np.array([[3.0, 0, 0, 0], [5.0, 5.0, 5.0, 5.0]])
    assert list(most_tokens(rows, 1)) == [0]
    assert list(most_tokens(np.array([[0.0, 0, 9], [8, 8, 0]]), 1)) == [2, 0]


def started(text=None, gate=GateKind.SOFTMAX_TOPK, layers=2, held=(), k=2, **options):
    """Return a calibrated prefetch in a model of four experts a layer."""
    model = shape(4, k, layers).model_copy(update={"gate": gate})
    prefetch, slots = ResidualPrefetch(**options), cache(model, 8)
    if text is not None:
        prefetch.calibrate([text], model, Path(), lambda done, total: None)
    prefetch.start(model, slots)
    for key in held:
        slots.claim(key, None)
    return prefetch, model


def text_of(scores, predicted, prefill=0):
    """Return a text of two layers: this layer's next scores and its predictions of them."""
    scores, predicted = np.array(scores, dtype=float), np.array(predicted, dtype=float)
    none = np.full_like(predicted, np.nan)
    return RoutedSequence(
        np.argsort(-np.stack([scores, scores], 1), axis=2)[..., :2],
        prefill,
        np.stack([np.full_like(scores, 0.25), scores], axis=1),
        {Lookahead.NORMED: np.stack([predicted, none], axis=1)},
    )


#: Two tokens: the next gate has twice the predicted ratio of expert 1 to 0, then eight times.
#: Logarithms: the mean factor is 4.
TEXT = text_of([[0.2, 0.4, 0.2, 0.2], [0.1, 0.8, 0.05, 0.05]], [[0.25] * 4, [0.2, 0.2, 0.1, 0.5]])


def test_the_residual_is_the_mean_difference_of_logits():
    prefetch, model = started(TEXT)
    # Token 1: log ratios to expert 0: 2, 1, 1 - 1, 1, 1 = ×2, ×1, ×1.
    # Token 2: 8, .5, .5 against 1, .5, 2.5 = ×8, ×1, ×1/5.  Means: ×4, ×1, ×5^-½.
    found = prefetch.corrected(1, np.full((1, 4), 0.25), model)[0]
    assert np.exp(found - found[0]) == pytest.approx([1, 4, 1, 5**-0.5])
    assert prefetch.learnt == {"tokens": "2"}


def test_the_corrected_expert_is_fetched():
    guess = {1: np.array([[0.4, 0.15, 0.35, 0.1]])}
    seen = view([[0.0] * 4], 2)
    prefetch, _ = started(TEXT)
    # .4, .15 · 4 = .6, .35, .1 / √5: expert 1 is likeliest, then 0.
    assert prefetch.prefetch(seen, guess) == [Fetch(1, 1)]
    prefetch, _ = started(TEXT, experts=3)  # the top 2 have tokens
    assert prefetch.prefetch(seen, guess) == [Fetch(1, 1), Fetch(1, 0)]
    prefetch, _ = started(TEXT, held=[4 + 1])
    assert prefetch.prefetch(seen, guess) == [Fetch(1, 0)]
    prefetch, _ = started(residual=False)
    assert prefetch.prefetch(seen, guess) == [Fetch(1, 0)]
    assert prefetch.prefetch(seen, {}) == []


def test_tokens_without_a_prediction_are_left_out():
    text = TEXT
    unmade = text.predicted_TLE[Lookahead.NORMED].copy()
    unmade[0] = np.nan
    again = text_of([[0.2, 0.4, 0.2, 0.2], [0.1, 0.8, 0.05, 0.05]], unmade[:, 0], prefill=1)
    prefetch, model = started(again)
    found = prefetch.corrected(1, np.full((1, 4), 0.25), model)[0]
    assert np.exp(found - found[0]) == pytest.approx([1, 8, 1, 0.2])
    assert prefetch.learnt == {"tokens": "1"}


def test_without_predictions_nothing_is_corrected_and_a_note_says_so():
    text = RoutedSequence(np.zeros((2, 2, 2), dtype=int), 0, np.full((2, 2, 4), 0.25))
    prefetch, model = started(text)
    assert "no residual" in prefetch.learnt["note"]
    assert (prefetch.corrected(1, np.full((1, 4), 0.25), model) == np.log(0.25)).all()
    assert "no residual" in ResidualPrefetch().learnt["note"], "before any calibration, too"
    assert ResidualPrefetch(residual=False).learnt == {}
    assert not ResidualPrefetch(residual=False).calibrates
    assert ResidualPrefetch().calibrates


softmax = GateKind.SOFTMAX_TOPK
sigmoid = GateKind.TOPK_SIGMOID


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9999), st.sampled_from([softmax, sigmoid]))
def test_the_correction_is_the_gate_on_the_state_plus_the_mean_residual(seed, gate):
    # The rule as the paper words it, on states and a weight matrix that a policy does not see.
    random = np.random.default_rng(seed)
    weight_EH, states_T2H = random.standard_normal((4, 5)), random.standard_normal((6, 2, 5))

    def scores(states_TH):
        z = states_TH @ weight_EH.T
        return 1 / (1 + np.exp(-z)) if gate is sigmoid else np.exp(z) / np.exp(z).sum(1)[:, None]

    here, there = states_T2H[:, 0], states_T2H[:, 1]
    residual_H = (there - here).mean(axis=0)
    prefetch, model = started(text_of(scores(there), scores(here)), gate)
    now = random.standard_normal((3, 5))
    found = prefetch.corrected(1, scores(now), model)
    expected = (now + residual_H) @ weight_EH.T
    shift = 0 if gate is sigmoid else (found - expected).mean(axis=1, keepdims=True)
    assert found - shift == pytest.approx(expected, abs=1e-6)


def test_scores_of_zero_have_a_logit():
    assert logits_of(np.zeros(1), softmax) == np.log(LEAST_SCORE)
    assert logits_of(np.ones(1), sigmoid) == -np.log(LEAST_SCORE)
    biased = np.array([1.25, -0.5])
    assert logits_of(biased, GateKind.SIGMOID_BIAS_TOPK_RENORM).tolist() == [1.25, -0.5]


def test_residuals_of_another_model_are_refused():
    prefetch, _ = started(TEXT)
    with pytest.raises(UsageError, match="prefetch=residual was calibrated for 2 layers of 4"):
        prefetch.start(shape(8, 2, 2), cache(shape(8, 2, 2), 8))
    with pytest.raises(UsageError, match=r"prefetch\.experts is 0; allowed: 1 or more"):
        ResidualPrefetch(experts=0)


def test_it_reads_the_state_that_the_gate_reads_in_decode():
    (predictor,) = DALI().predictors
    assert (predictor.lookahead, predictor.layers) == (Lookahead.NORMED, 1)
    assert (predictor.in_prefill, ResidualPrefetch(prefill=True).predictor.in_prefill) == (
        False,
        True,
    )


# --------------------------------------------------------------------------- the paper's cache


def test_an_exchange_by_hand():
    # Residents 0, 1, 2 have 3, 0, 1 tokens; the absent 3, 4, 5 have 2, 5, 0.
    # 4 replaces 1, then 3 replaces 2; 5 has no tokens and is never loaded.
    tokens, resident = np.array([3, 0, 1, 2, 5, 0]), flags([0, 1, 2], 6)
    assert exchange(tokens, resident, 1) == [(4, 1)]
    assert exchange(tokens, resident, 9) == [(4, 1), (3, 2)]
    assert exchange(np.zeros(6, dtype=int), resident, 9) == []
    assert exchange(np.ones(6, dtype=int), resident, 2) == [(3, 0), (4, 1)]  # ties: lowest id


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8))
def test_an_exchange_keeps_the_number_of_residents(experts):
    tokens, resident = np.array([n for n, _ in experts]), np.array([r for _, r in experts])
    found = exchange(tokens, resident, 3)
    come, leave = {c for c, _ in found}, {n for _, n in found}
    assert len(come) == len(leave) == len(found)
    assert resident[[*leave]].all()
    assert not resident[[*come]].any()
    others = [e for e in range(len(tokens)) if not resident[e] and e not in come]
    if others and come:
        assert max(tokens[others]) <= min(tokens[[*come]])


def swapping(**options):
    """Return the policy with experts 0 and 1 of each of two layers as residents."""
    model = shape(4, 1, 2)
    policy = WorkloadSwaps(**options)
    slots = cache(model, 8, "layer")
    policy.start(model, slots)
    for key in (0, 1, 4, 5):
        slots.claim(key, None)
        policy.placed(key)
    return policy, slots


def test_after_a_window_the_most_used_expert_replaces_the_least_used():
    policy, slots = swapping(window=2)
    policy.observe(view([[0, 0, 0, 9]], 1))
    assert policy.due() == []
    policy.observe(view([[9, 0, 0, 0], [0, 0, 0, 9]], 1))  # 0: 1 token, 3: 2 tokens
    assert policy.due() == [Fetch(0, 3, instead_of=1)]
    slots.claim(3, None)
    policy.left(1)
    policy.arrived(3)
    assert policy.due() == []
    policy.observe(view([[0, 0, 9, 0]], 1))  # the counts began at zero
    policy.observe(view([[0, 0, 9, 0]], 1))
    assert policy.due() == [Fetch(0, 2, instead_of=0)]


def test_an_exchange_of_an_expert_in_a_staging_slot_moves_nothing():
    policy, slots = swapping(window=1)
    slots.claim(3, None)
    policy.arrived(3)
    assert policy.victim(flags([0, 1, 3], 8), incoming=2) == 3  # residents are not evicted
    policy.observe(view([[1, 0, 0, 9]], 1))  # 1 has fewest tokens with 0 of them, ties to 0
    assert policy.due() == []
    assert policy.victim(flags([0, 1, 3], 8), incoming=2) == 0
    assert policy.victim(flags([1, 3], 8), incoming=2) is None


def test_exchanges_of_a_layers_first_expert_are_its_own():
    model = shape(4, 1, 2)
    policy = WorkloadSwaps(window=1)
    slots = cache(model, 8, "layer")
    policy.start(model, slots)
    for key in (0, 1, 6, 7):
        slots.claim(key, None)
        policy.placed(key)
    policy.observe(view([[9, 0, 0, 0]], 1, layer=1))
    assert policy.due() == [Fetch(1, 0, instead_of=2)]
    policy.observe(view([[9, 0, 0, 0]], 1))  # the layer before has nothing to exchange
    assert policy.due() == [Fetch(1, 0, instead_of=2)]
    policy.observe(view([[0, 0, 9, 0]], 1, layer=1))
    assert policy.due() == []


def test_the_next_window_replaces_an_exchange_that_has_not_begun():
    policy, _ = swapping(window=1)
    policy.observe(view([[0, 0, 9, 0]], 1))
    policy.observe(view([[0, 0, 0, 9]], 1, layer=1))
    assert policy.due() == [Fetch(0, 2, instead_of=0), Fetch(1, 3, instead_of=0)]
    policy.observe(view([[9, 0, 0, 0]], 1))
    assert policy.due() == [Fetch(1, 3, instead_of=0)]


def test_staging_slots_are_kept_empty_in_each_pool():
    policy, _ = swapping()
    assert policy.reserve == 4
    with pytest.raises(BudgetError, match=r"evict\.staging=4 keeps 8 of 8 slots empty"):
        swapping(staging=4)
    with pytest.raises(UsageError, match=r"evict\.window is 0; allowed: 1 to 4096"):
        WorkloadSwaps(window=0)


def test_the_prefetch_of_dali_makes_the_exchanges():
    made = build("dali", {"evict": "dali-swap", "evict.window": "1"})
    model = shape(4, 1, 2)
    slots = cache(model, 8, "layer")
    made.prefetch.start(model, slots)
    made.evict.start(model, slots)
    for key in (0, 1):
        made.evict.placed(key)
    made.evict.observe(view([[0, 0, 0, 9]], 1))
    guess = {1: np.array([[0.1, 0.7, 0.1, 0.1]])}
    found = made.prefetch.prefetch(view([[0.0] * 4], 1), guess)
    assert found == [Fetch(1, 1), Fetch(0, 3, instead_of=0)]


# --------------------------------------------------------------------------- tinyserve's rule


def test_the_default_eviction_counts_256_accesses_and_an_expert_is_hot_from_25_on():
    # Expert 0 is used in 25 of 126 accesses, most of them long ago, and is hot; with 24 it is not,
    # and leaves as the least recently used one.
    for uses, leaves in ((25, 1), (24, 0)):
        policy = DALI().evict
        assert isinstance(policy, WorkloadAware)
        assert (policy.window, policy.share) == (256, 0.1)
        model = shape(4, 1, 2)
        policy.start(model, cache(model, 8, "layer"))
        policy.arrived(0)  # an access too
        for _ in range(uses - 1):
            policy.used(0, [0])
        policy.arrived(1)
        policy.arrived(2)
        for _ in range(99):
            policy.used(0, [2])
        assert policy.victim(flags([0, 1, 2], 8), incoming=3) == leaves


# --------------------------------------------------------------------------- the whole system


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 999),
    st.integers(3, 6),
    st.integers(1, 3),
    st.sampled_from([{}, {"evict": "dali-swap", "evict.window": "2", "evict.staging": "1"}]),
)
def test_any_routing_in_any_memory(seed, each, rows, options):
    model = small_shape(layers=3, experts=6)
    trace = random_trace(seed, model, [[2] * rows], 6)
    made = rig(build("dali", options), TracedModel(trace), slots=3 * each)
    made.engine.generate([[1, 1]] * rows, 6)
    check_timeline(made.spans, made.events, num_experts=6, capacity=3 * each)
    assert made.counts["prefill"].prefetched == 0


def test_dali_is_lossless_and_takes_any_batch():
    assert build("dali").lossless
    assert build("dali").max_batch is None
    assert build("dali").scope == "layer"


@pytest.mark.parametrize("experts", [5, 64, 400])
def test_of_equal_experts_the_lowest_ids_are_exchanged(experts):
    """Few different numbers of tokens, so that most are equal to many others."""
    random = np.random.default_rng(0)
    tokens, resident = random.integers(0, 4, experts), random.random(experts) < 0.5
    absent = [e for e in range(experts) if not resident[e] and tokens[e]]
    held = [e for e in range(experts) if resident[e]]
    come = sorted(absent, key=lambda e: (-tokens[e], e))
    leave = sorted(held, key=lambda e: (tokens[e], e))
    pairs = exchange(tokens, resident, experts)
    assert pairs == list(zip(come, leave, strict=False))
    assert exchange(tokens, resident, 1) == pairs[:1]
    assert exchange(np.zeros(experts, int), resident, experts) == []


def test_among_many_equal_logits_the_lowest_ids_have_the_tokens():
    logits = np.random.default_rng(0).integers(0, 3, (1, 400)).astype(float)
    wanted = sorted(range(400), key=lambda e: (-logits[0, e], e))[:150]
    assert [*most_tokens(logits, 150)] == wanted

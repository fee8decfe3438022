"""MoE-Infinity by hand: priorities, evictions, the match by brute force, the collection."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Prompts
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.terms import RoutedSequence
from moebench.systems.moe_infinity import (
    ActivationAware,
    Collection,
    MatchedPrefetch,
    MoEInfinity,
    SimilarRequests,
    activation_matrix,
    largest,
    shares,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import FixedModel, FlatCosts, Rig, prices, rig, small_shape
from tests.systems.views import cache, flags, shape, started, view

#: A past request in four layers of three experts: tokens that each expert got.
PAST = np.array([[4, 0, 0], [1, 3, 0], [2, 2, 0], [0, 1, 3]])
MODEL = shape(experts=3, top_k=1, layers=4)
FORECAST = {layer: PAST[layer : layer + 1] for layer in range(4)}


def text(counts_LE: np.ndarray) -> RoutedSequence:
    """Return a text of top-1 tokens with this activation matrix."""
    ids_LT = [np.repeat(np.arange(len(row)), row) for row in counts_LE]
    return RoutedSequence(np.stack(ids_LT, axis=1)[:, :, None], 1)


def test_the_matrix_of_a_text():
    assert activation_matrix(text(PAST), 3).tolist() == PAST.tolist()
    # Ranks count alike; ids may be kept in sixteen bits.
    ids_TLK = np.array([[[0, 2], [1, 2]], [[2, 1], [2, 0]]], dtype=np.int16)
    assert activation_matrix(RoutedSequence(ids_TLK, 1), 3).tolist() == [[1, 1, 2], [1, 1, 2]]


# --------------------------------------------------------------------------- priority


def prefetched(layer: int, held=(), past=PAST, **options) -> list[tuple[int, int | None]]:
    """Return the fetches from a layer when ``past`` is the most similar request."""
    held_by = cache(MODEL, 12)
    for key in held:
        held_by.claim(held_by.key(*key), None)
    policy = MatchedPrefetch(**options)
    policy.start(MODEL, held_by)
    seen = view([[0.5, 0.3, 0.2]], 1, layer=layer, layers=4)
    forecast = {i: past[i : i + 1] for i in range(4)}
    return [(fetch.layer, fetch.expert) for fetch in policy.prefetch(seen, forecast)]


def test_priority_is_the_share_times_the_proximity():
    # From layer 0:  layer 1   ¼ ¾ 0  times 1 - 1/4 = ¾   .1875 .5625 0
    #                layer 2   ½ ½ 0  times 1 - 2/4 = ½   .25   .25   0
    #                layer 3   0 ¼ ¾  times 1 - 3/4 = ¼   0     .0625 .1875
    assert prefetched(0) == [(1, 1), (2, 0), (2, 1), (1, 0), (3, 2), (3, 1)]
    # From layer 1:  layer 2 at ¾: .375 twice; layer 3 at ½: .125 and .375.
    assert prefetched(1) == [(2, 0), (2, 1), (3, 2), (3, 1)]


def test_the_distance_over_one_more_than_the_layers():
    # Layer 1 at .8: .2 .6; layer 2 at .6: .3 .3; layer 3 at .4: .1 and a bit more than .3.
    assert prefetched(0, decay="L+1") == [(1, 1), (3, 2), (2, 0), (2, 1), (1, 0), (3, 1)]


def test_as_many_absent_experts_as_the_budget_is():
    assert prefetched(0, budget=2) == [(1, 1), (2, 0)]
    assert prefetched(0, budget=2, held=[(1, 1), (2, 1)]) == [(2, 0), (1, 0)]
    assert prefetched(0, budget=0) == prefetched(0, budget=12)
    assert prefetched(0, budget=0, held=[(i, e) for i in range(4) for e in range(3)]) == []


def test_layers_without_experts_are_no_distance():
    # Layers 0 and 2 of four have no experts: layer 3 is one away from layer 1, of two.
    dense = shape(experts=3, top_k=1, layers=4, dense_layers=(0, 2), dense_width=4)
    policy = MatchedPrefetch()
    policy.start(dense, cache(dense, 6))
    seen = view([[0.5, 0.3, 0.2]], 1, layer=1, layers=4)
    seen.shape = dense
    forecast = {1: np.array([[5, 0, 0]]), 3: np.array([[0, 1, 3]])}
    fetches = policy.prefetch(seen, forecast)
    assert [(fetch.layer, fetch.expert) for fetch in fetches] == [(3, 2), (3, 1)]
    assert policy._proximity_LD[0, 3] == 0.5


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.7]), min_size=1), st.integers(0, 9))
def test_the_largest_come_first_and_ties_in_order(values, most):
    wanted = sorted((i for i, v in enumerate(values) if v), key=lambda i: (-values[i], i))
    assert largest(np.array(values), most) == (wanted[:most] if most else wanted)


def test_shares_of_several_rows_and_of_nothing():
    rows = {2: np.array([[0.5, 0.25, 0.25], [0.5, 0.75, 0.75]]), 1: np.zeros((2, 3))}
    assert shares(rows, MODEL)[2].tolist() == pytest.approx([1 / 3] * 3)
    assert not shares(rows, MODEL)[[0, 1, 3]].any()
    assert not shares({}, MODEL).any()


# --------------------------------------------------------------------------- eviction


def leaving(policy: ActivationAware, keys: set[int]) -> list[int]:
    """Return the victims one after the other."""
    order = []
    while keys:
        order.append(policy.victim(flags(keys, 12), 0))
        keys = keys - {order[-1]}
    return order


def test_who_is_unlikely_and_late_leaves_first():
    policy = started(ActivationAware(), experts=3, layers=4)
    policy.foresee(FORECAST)
    # (p + ε) times 1, ¾, ½, ¼:  layer 0  1+ε ε ε      layer 1  .1875 .5625 ¾ε
    #                            layer 2  .25 .25 ½ε   layer 3  ¼ε .0625 .1875
    # .1875 of layer 1 is ¾ of .25 + ε, of layer 3 ¼ of .75 + ε: that has less of ε.
    expected = [9, 8, 5, 1, 2, 10, 11, 3, 6, 7, 4, 0]
    assert leaving(policy, set(range(12))) == expected
    policy.epsilon = 0.0
    policy._changed = True
    assert leaving(policy, set(range(12))) == [1, 2, 5, 8, 9, 10, 3, 11, 6, 7, 4, 0]


def test_a_large_epsilon_keeps_early_layers_whatever_is_expected():
    policy = started(ActivationAware(epsilon=100.0), experts=3, layers=4)
    policy.foresee(FORECAST)
    order = leaving(policy, set(range(12)))
    assert [key // 3 for key in order] == [3] * 3 + [2] * 3 + [1] * 3 + [0] * 3


def test_the_last_prediction_counts():
    policy = started(ActivationAware(), experts=3, layers=4)
    policy.foresee(FORECAST)
    assert policy.victim(flags({3, 4}, 12), 0) == 3
    policy.foresee(FORECAST | {1: np.array([[3, 1, 0]])})
    assert policy.victim(flags({3, 4}, 12), 0) == 4


def test_without_a_prediction_what_the_running_requests_used_counts():
    policy = started(ActivationAware(), experts=3, layers=4)
    policy.begin_sequences(Prompts((1,)))
    for experts in ([0, 1], [1], [1, 2]):
        policy.used(1, experts)
    # Layer 1: 1, 3 and 1 of 5.
    assert leaving(policy, {3, 4, 5}) == [3, 5, 4]
    policy.begin_sequences(Prompts((1,)))
    policy.used(1, [0])
    assert leaving(policy, {3, 4, 5}) == [4, 5, 3]


def test_nobody_leaves_where_nobody_may():
    assert started(ActivationAware(), experts=3, layers=4).victim(flags((), 12), 0) is None


# --------------------------------------------------------------------------- the collection


def stored(collection: Collection) -> list[list[float]]:
    return [collection.total(np.array([i])).tolist() for i in range(collection.size)]


def test_a_full_collection_replaces_the_most_similar_matrix():
    collection = Collection(2, 3)
    for counts in ([4, 0, 0], [0, 1, 1], [9, 1, 0]):
        collection.insert(np.array(counts))
    assert stored(collection) == [[9, 1, 0], [0, 1, 1]]
    # The direction counts, not the number of tokens: .707 with the second, .11 with the first.
    collection.insert(np.array([0, 100, 0]))
    assert stored(collection) == [[9, 1, 0], [0, 100, 0]]


def test_what_used_nothing_is_not_stored():
    collection = Collection(2, 3)
    collection.insert(np.zeros(3))
    assert collection.size == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1), st.integers(4, 6))
def test_replacement_keeps_every_kind_of_request(requests, capacity):
    """Of four kinds that have nothing in common, each that was stored stays stored."""
    collection, kinds = Collection(capacity, 8), set()
    for kind in range(4):  # one of each kind fits
        collection.insert(np.eye(8)[2 * kind])
        kinds.add(kind)
    for kind, tokens in requests:
        counts = np.zeros(8)
        counts[2 * kind : 2 * kind + 2] = tokens, 1
        collection.insert(counts)
        assert {int(np.argmax(counts)) // 2 for counts in stored(collection)} == kinds
    assert collection.size == min(capacity, 4 + len(requests))


# --------------------------------------------------------------------------- the match


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a.ravel() @ b.ravel() / np.linalg.norm(a) / np.linalg.norm(b))


def passes(random: np.random.Generator, prompts: tuple[int, ...], layers: int, experts: int):
    """Return the views of a prefill and two decoded tokens, layer by layer."""
    for step in range(3):
        rows = np.repeat(np.arange(len(prompts)), [1] * len(prompts) if step else prompts)
        for layer in range(layers - 1):
            scores = random.random((len(rows), experts))
            phase = "decode" if step else "prefill"
            seen = view(scores, 2, layer=layer, layers=layers, phase=phase)
            seen.forward.sequences = (1,) * len(prompts) if step else prompts
            yield step, layer, rows, seen


@given(
    seed=st.integers(0, 2**32 - 1),
    prompts=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    match=st.sampled_from(["iteration", "request"]),
    entries=st.integers(1, 3),
)
def test_the_match_is_the_largest_cosine(seed, prompts, match, entries):
    layers, experts = 4, 5
    random = np.random.default_rng(seed)
    past = random.integers(0, 20, (6, layers, experts)).astype(float)
    collection = Collection(6, layers * experts)
    for matrix in past:
        collection.insert(matrix.ravel())
    similar = SimilarRequests(shape(experts, 2, layers), collection, match, entries)
    similar.begin(len(prompts))
    compared = np.zeros((len(prompts), layers, experts))
    for _, layer, rows, seen in passes(random, prompts, layers, experts):
        if layer == 0 and match == "iteration":
            compared[:] = 0
        for sequence, ids in zip(rows, seen.topk_ids_TK, strict=True):
            compared[sequence, layer, ids] += 1
        similar.observe(seen)
        expected = np.zeros((layers, experts))
        for matrix in compared:
            by_hand = [cosine(matrix, other) for other in past]
            order = np.argsort(by_hand)[::-1]
            # Where two are as good as equal, rounding may decide.
            assume(by_hand[order[entries - 1]] - by_hand[order[entries]] > 1e-5)
            expected += past[order[:entries]].sum(axis=0)
        found = similar.forecast(seen, None, ())  # type: ignore[arg-type]
        assert np.concatenate([found[i] for i in range(layers)]).tolist() == expected.tolist()


def test_equal_cosines_go_to_the_matrix_that_is_stored_first():
    collection = Collection(3, 12)
    for matrix in (PAST[::-1], PAST, PAST):
        collection.insert(matrix.ravel())
    assert collection.products(PAST.reshape(1, 12), 0).argmax() == 1


def test_several_of_many_equal_matches_are_those_that_are_stored_first():
    """All have one token of expert 0 in layer 0, and one of another expert of any layer."""
    collection = Collection(31, 32)
    past = np.eye(32)[1:] + np.eye(32)[0]
    for matrix in past:
        collection.insert(matrix)
    model = shape(8, 1, 4)
    similar = SimilarRequests(model, collection, "request", 3)
    similar.begin(1)
    seen = view([[0.9] + [0.1] * 7], 1, layer=0, layers=4)
    similar.observe(seen)
    found = similar.forecast(seen, None, ())  # type: ignore[arg-type]
    assert np.concatenate([found[i] for i in range(4)]).ravel().tolist() == past[:3].sum(0).tolist()


def test_every_sequence_is_charged_a_product_with_all_that_is_stored():
    policy = MatchedPrefetch()
    policy.calibrate([text(PAST), text(PAST[::-1])], MODEL, None)  # type: ignore[arg-type]
    policy.start(MODEL, cache(MODEL, 4))
    policy.begin_sequences(Prompts((1, 1, 1)))
    similar = policy.predictor
    one, three = (view([[0.5, 0.3, 0.2]] * rows, 1, layers=4) for rows in (1, 3))
    assert similar.lane is Lane.HOST
    assert [(op.kind, op.rows, op.network) for op in (similar.op(one), similar.op(three))] == [
        (OpKind.PREDICT, (1,), (12, 2)),
        (OpKind.PREDICT, (1,), (12, 6)),
    ]


# --------------------------------------------------------------------------- a run


def test_a_run_begins_with_the_calibration_texts_alone():
    policy = MatchedPrefetch(capacity=2)
    assert policy.calibrates
    assert policy.predictor is None
    policy.calibrate([text(PAST)], MODEL, None)  # type: ignore[arg-type]
    assert policy.learnt == {"requests": "1"}
    for _ in range(2):
        policy.start(MODEL, cache(MODEL, 4))
        for size in (1, 2, 2):
            assert policy._similar._collection.size == size
            policy.begin_sequences(Prompts((1,)))
            policy.observe(view([[0.5, 0.3, 0.2]], 1, layers=4))
            policy.end_sequences()


def test_another_models_texts_are_refused():
    policy = MatchedPrefetch()
    policy.calibrate([text(PAST[:2])], MODEL, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"calibrated with 2 layers of 3 experts.*has 4 of 3"):
        policy.start(MODEL, cache(MODEL, 4))


@pytest.mark.parametrize(
    "option",
    ["prefetch.entries=0", "prefetch.capacity=0", "prefetch.budget=-1", "evict.epsilon=-1"],
)
def test_options_out_of_range_are_one_line(option):
    with pytest.raises(UsageError, match=r"allowed: \d (or more|to \d+)"):
        build("moe-infinity", dict([option.split("=")]))


#: Six slots begin with experts 0 and 1 of three layers.
LOAD, MATCH = 40, 25


def run(learnt: bool, batches: int = 1) -> Rig:
    """Run batches of one token through three layers.

    Layers 0 and 1 use experts 0 and 1, layer 2 uses 2 and 3, as past requests did.
    """
    calm, other = [[0.6, 0.4, 0.0, 0.0]], [[0.0, 0.0, 0.6, 0.4]]
    gates = {(p, i): other if i == 2 else calm for p in range(batches) for i in range(3)}
    system = build("moe-infinity")
    if learnt:
        past = np.array([[9, 9, 0, 0], [9, 9, 0, 0], [0, 0, 9, 9]])
        system.prefetch._calibrated = [past]
    model = FixedModel(small_shape(), gates)
    costs = FlatCosts(prices(load=LOAD, network=MATCH), submit_ns=1)
    made = rig(system, model, slots=6, costs=costs)
    for _ in range(batches):
        made.engine.generate([[1]], 1)
    check_timeline(made.spans, made.claims, num_experts=4, capacity=6)
    return made


def times(made: Rig, kind: OpKind) -> list[tuple[int, tuple[int, ...], int, int]]:
    return [
        (s.op.layer, s.op.experts, s.start_ns, s.end_ns) for s in made.spans if s.op.kind is kind
    ]


def test_prefetches_wait_for_the_match_and_the_match_for_the_gate():
    made = run(learnt=True)
    # Layer 0: attention 30, gate 3; the match runs on the host while the experts compute, 33..53.
    # The control thread waits for it: the sum is launched at 59, layer 1's gate is known at 94.
    assert times(made, OpKind.PREDICT) == [(0, (), 34, 59), (1, (), 95, 120)]
    assert times(made, OpKind.COMBINE)[:2] == [(0, (), 59, 61), (1, (), 120, 122)]
    assert made.timeline.stall_ns() == {"host": 2 * (59 - 53)}
    assert all(s.lane is Lane.HOST for s in made.spans if s.op.kind is OpKind.PREDICT)
    # Both experts of layer 2 are predicted at once; 2 arrives before its gate, 3 is in flight.
    assert [load[:3] for load in times(made, OpKind.LOAD)] == [(2, (2,), 59), (2, (3,), 99)]
    counts = made.counts["prefill"]
    assert (counts.hits, counts.in_flight, counts.loads) == (6, 0, 0)
    assert (counts.prefetched, counts.prefetched_used) == (2, 2)


def test_those_that_nobody_expects_leave_the_last_layer_first():
    made = run(learnt=True)
    # Layer 2's own 0 and 1: p = 0.
    assert [claim.victim for claim in made.claims if not claim.placed] == [8, 9]


def test_without_a_past_request_nothing_is_predicted_until_one_has_ended():
    made = run(learnt=False, batches=2)
    ends = made.spans.index(next(s for s in made.spans if s.op.kind is OpKind.HEAD))
    kinds = [[s.op.kind for s in part] for part in (made.spans[:ends], made.spans[ends:])]
    assert [part.count(OpKind.PREDICT) for part in kinds] == [0, 2]


def test_moe_infinity_is_lossless_and_prefetches_speculatively():
    system = build("moe-infinity")
    assert type(system) is MoEInfinity
    assert system.lossless
    assert (system.scope, system.prefetch.discipline) == ("global", "speculative")
    assert not any(policy.reads_scores for policy in system.policies.values())


@pytest.mark.parametrize("most", [0, 150])
def test_among_many_equal_values_the_first_are_the_largest(most):
    values = np.random.default_rng(0).integers(0, 4, 400) / 4
    wanted = sorted(np.flatnonzero(values).tolist(), key=lambda at: (-values[at], at))
    assert largest(values, most) == (wanted[:most] if most else wanted)

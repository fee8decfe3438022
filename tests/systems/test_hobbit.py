"""HOBBIT by hand: unimportance, the three classes, stacked gates, four terms of a priority."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import NO_EXPERT, Fetch
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.memory.cache import NEVER, ExpertCache
from moebench.substrate.memory.residency import InForms, Whereabouts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.terms import Lookahead
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.hobbit import (
    HIGH,
    HOBBIT,
    LOW,
    SKIP,
    LoadByPrecision,
    Multidimensional,
    SkipMissing,
    StackedGates,
    form_on_device,
    level,
    levels,
    priorities,
    unimportance,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import (
    RECORD_BYTES,
    FlatCosts,
    prices,
    random_trace,
    rig,
    small_shape,
)
from tests.systems.views import active, flags, shape, view

#: Form 1 takes a quarter of everything.
QUARTER = (RECORD_BYTES, RECORD_BYTES // 4)

# --------------------------------------------------------------------------- importance


def test_unimportance_is_the_weight_of_all_experts_before():
    # Weights .8, .6, .4, .2 are shares .4, .3, .2, .1; before them are 0, .4, .7, .9.
    found = unimportance(np.array([[0.8, 0.6, 0.4, 0.2]]))
    assert found[0] == pytest.approx([0, 0.4, 0.7, 0.9])


def test_of_two_experts_the_second_ones_unimportance_is_the_firsts_share():
    # Mixtral: .75 and .25 load the second one at low precision, .55 and .45 whole.
    assert unimportance(np.array([[0.75, 0.25], [0.55, 0.45]])).tolist() == [[0, 0.75], [0, 0.55]]
    assert levels(np.array([[0, 1]]), np.array([[0.75, 0.25]]), 0.6, 0.9) == {0: HIGH, 1: LOW}
    assert levels(np.array([[0, 1]]), np.array([[0.55, 0.45]]), 0.6, 0.9) == {0: HIGH, 1: HIGH}
    assert levels(np.array([[0, 1]]), np.array([[0.95, 0.05]]), 0.6, 0.9) == {0: HIGH, 1: SKIP}


def test_a_threshold_belongs_to_the_better_class():
    assert [level(s, 0.5, 0.75) for s in (0, 0.5, 0.51, 0.75, 0.76)] == [0, 0, 1, 1, 2]
    assert level(1.0, 1, 1) == HIGH
    assert level(1.0, 0, 1) == LOW  # T2 = 1 skips none, whatever rounding gives


def test_the_first_expert_is_always_whole():
    assert levels(np.array([[2, 0]]), np.array([[0.3, 0.2, 0.5]]), 0, 0) == {0: SKIP, 2: HIGH}


def test_experts_are_ranked_by_their_weight_whatever_the_order_of_the_choice():
    scores = np.array([[0.1, 0.2, 0.7]])
    assert levels(np.array([[0, 1, 2]]), scores, 0.75, 0.8) == {0: SKIP, 1: HIGH, 2: HIGH}


def test_of_several_rows_the_best_class_counts():
    # Row 0: expert 1 after .95, skipped.  Row 1: expert 1 after .75, low.
    rows = np.array([[0.95, 0.05, 0.0], [0.0, 0.25, 0.75]])
    assert levels(np.array([[0, 1], [2, 1]]), rows, 0.6, 0.9) == {0: HIGH, 1: LOW, 2: HIGH}


def test_scores_below_zero_and_of_zero_have_no_weight():
    assert unimportance(np.array([[3.0, 1.0, -1.0]])).tolist() == [[0, 0.75, 1]]
    assert unimportance(np.zeros((1, 2))).tolist() == [[0, 0]]


weights = st.lists(st.integers(1, 99), min_size=1, max_size=6)


@given(weights, st.floats(0, 1), st.floats(0, 1))
def test_classes_get_worse_with_rank(given_, t1, t2):
    ranked = sorted(given_, reverse=True)
    ids = np.array([range(len(ranked))])
    found = [*levels(ids, np.array([ranked]) / 100, t1, max(t1, t2)).values()]
    assert found == sorted(found)
    assert found[0] == HIGH
    before = [sum(ranked[:n]) for n in range(len(ranked))]
    assert unimportance(ids * 0 + ranked)[0] == pytest.approx(np.array(before) / sum(ranked))


# --------------------------------------------------------------------------- loading


def in_forms(seen, high=(), low=(), coming=(), coming_low=()):
    """Set which experts are on the device in each form, complete or on their way."""

    def of(there, coming):
        ready = [0 if e in there else NEVER for e in range(experts)]
        return Whereabouts(ready, bytes(e in {*there, *coming} for e in range(experts)), 0)

    experts = seen.shape.num_experts
    seen.residency = InForms([of(high, coming), of(low, coming_low)], 0)
    return seen


#: Shares .4, .3, .2 and .1 of experts 0 to 3: unimportance 0, .4, .7 and .9.
FOUR = [[0.4, 0.3, 0.2, 0.1]]


def planned(t1=0.6, **where):
    seen = in_forms(view(FOUR, 4), **where)
    return LoadByPrecision(t1=t1).assign(seen, active(seen))


def test_missing_experts_come_at_the_precision_of_their_class():
    plan = planned()
    assert plan.load == [Fetch(0, 0), Fetch(0, 1), Fetch(0, 2, form=1), Fetch(0, 3, form=1)]
    assert plan.device == [0, 1, 2, 3]
    assert plan.forms == {0: 0, 1: 0, 2: 1, 3: 1}
    assert [fetch.form for fetch in planned(t1=1).load] == [0, 0, 0, 0]
    assert [fetch.form for fetch in planned(t1=0).load] == [0, 1, 1, 1]


def test_an_important_expert_is_loaded_whole_although_its_low_record_is_there():
    plan = planned(low=[0, 3], high=[1])
    assert plan.load == [Fetch(0, 0), Fetch(0, 2, form=1)]
    assert plan.device == [1, 3, 0, 2]
    assert plan.forms == {0: 0, 1: 0, 2: 1, 3: 1}


def test_a_whole_record_serves_an_unimportant_expert():
    plan = planned(high=[0, 1, 2, 3], low=[2])
    assert (plan.load, plan.forms) == ([], {0: 0, 1: 0, 2: 0, 3: 0})


def test_a_complete_record_is_used_before_one_that_is_coming():
    high, low = in_forms(view(FOUR, 4), low=[2], coming=[1, 2], coming_low=[3]).residency.forms
    assert form_on_device(high, low, 2, LOW) == LOW
    assert form_on_device(high, low, 2, HIGH) == HIGH
    assert form_on_device(high, low, 1, LOW) == HIGH
    assert form_on_device(high, low, 3, LOW) == LOW
    assert form_on_device(high, low, 3, HIGH) is None
    assert form_on_device(high, low, 0, LOW) is None
    # The device computes what is complete first.
    assert planned(low=[2], coming=[1], coming_low=[3]).device == [2, 1, 3, 0]


def test_a_system_of_one_form_loads_every_expert_whole():
    seen = view(FOUR, 4, [1])
    plan = LoadByPrecision().assign(seen, active(seen))
    assert plan.load == [Fetch(0, 0), Fetch(0, 2), Fetch(0, 3)]
    assert (plan.device, plan.forms) == ([1, 0, 2, 3], {})


def skipped(t2, rows=FOUR, k=4, **where):
    seen = in_forms(view(rows, k), **where)
    routed = SkipMissing(t2=t2).route(seen)
    assert routed.ids_TK is routed.weigh_as_TK
    own, ids = seen.topk_ids_TK, routed.ids_TK
    assert (ids[ids != NO_EXPERT] == own[ids != NO_EXPERT]).all()
    return [sorted(set(o) - set(i)) for o, i in zip(own.tolist(), ids.tolist(), strict=True)]


def test_unimportant_experts_are_skipped_if_they_are_missing():
    assert skipped(0.85) == [[3]]
    assert skipped(0.65) == [[2, 3]]
    assert skipped(0.65, low=[2], coming=[3]) == [[]]  # one class further, but on the device
    assert skipped(1) == [[]]


def test_no_row_skips_an_expert_that_another_row_needs():
    rows = [[0.95, 0.05, 0.0], [0.0, 0.25, 0.75]]
    assert skipped(0.9, rows, 2) == [[], []]
    assert skipped(0.7, rows, 2) == [[1], [1]]


@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_thresholds_outside_0_to_1_are_refused(value):
    with pytest.raises(UsageError, match=rf"assign\.t1 is {value}; allowed: 0 to 1"):
        LoadByPrecision(t1=value)
    with pytest.raises(UsageError, match=rf"route\.t2 is {value}; allowed: 0 to 1"):
        SkipMissing(t2=value)


def test_it_is_lossy():
    assert not build("hobbit").lossless
    assert not build("hobbit", {"route.t2": "1", "assign.t1": "1"}).lossless  # forms are declared
    assert not SkipMissing().lossless_at(0)
    assert SkipMissing(t2=1).lossless_at(0)


# --------------------------------------------------------------------------- prefetching


def two_forms(layers=4, experts=4, k=2):
    model = shape(experts, k, layers)
    return model, ExpertCache(model, 8, "global", Tier("device", 0), 0, [(4, 0)])


def prefetched(forecast, held=(), of=two_forms, **options):
    """Return fetches in layer 0, with the given (layer, expert, form) on the device."""
    made = HOBBIT(prefetch=StackedGates(**options))
    model, slots = of()
    made.prefetch.start(model, slots)
    for layer, expert, form in held:
        slots.claim(slots.key(layer, expert, form), None)
    guess = {layer: np.array(rows) for layer, rows in forecast.items()}
    return list(made.prefetch.prefetch(view([[0.0] * 4], 2, layers=4), guess))


#: Layer 1 expects 2 and 0 with shares .7 and .3; layer 2 expects 3 and 1 with .5 each.
EXPECTED = {1: [[0.3, 0.0, 0.7, 0.0]], 2: [[0.0, 0.5, 0.0, 0.5]]}


def test_predicted_experts_come_at_the_precision_of_their_predicted_class():
    assert prefetched(EXPECTED) == [Fetch(1, 2), Fetch(1, 0, form=1)]


def test_a_later_layer_is_prefetched_if_the_next_one_lacks_nothing():
    assert prefetched(EXPECTED, [(1, 2, 0)]) == [Fetch(1, 0, form=1)]
    assert prefetched(EXPECTED, [(1, 2, 0), (1, 0, 1)]) == [Fetch(2, 1), Fetch(2, 3)]
    assert prefetched(EXPECTED, [(1, 2, 0), (1, 0, 0), (2, 1, 0)]) == [Fetch(2, 3)]
    everything = [(1, 2, 0), (1, 0, 0), (2, 1, 0), (2, 3, 0)]
    assert prefetched(EXPECTED, everything) == []
    assert prefetched({}) == []


def test_a_low_record_does_not_serve_an_important_expert():
    assert prefetched(EXPECTED, [(1, 2, 1), (1, 0, 1)]) == [Fetch(1, 2)]


def test_an_expert_that_would_be_skipped_is_not_prefetched():
    assert prefetched({1: [[0.05, 0.0, 0.95, 0.0]]}) == [Fetch(1, 2)]
    assert prefetched({1: [[0.05, 0.0, 0.95, 0.0]]}, [(1, 2, 0)]) == []


def test_in_a_system_of_one_form_every_expert_is_fetched_whole():
    prefetch, model = StackedGates(), shape(4, 2, 4)
    prefetch.start(model, ExpertCache(model, 8, "global", Tier("device", 0), 0))
    guess = {1: np.array(EXPECTED[1])}
    found = prefetch.prefetch(view([[0.0] * 4], 2, layers=4), guess)
    assert list(found) == [Fetch(1, 2), Fetch(1, 0)]


def test_stacked_gates_take_the_time_of_one():
    (predictor,) = build("hobbit", {"prefetch.layers": "3"}).predictors
    assert (predictor.lookahead, predictor.layers) == (Lookahead.NORMED, 3)
    assert predictor.in_prefill
    op = predictor.op(view([[0.0] * 4] * 2, 2, layers=5))
    assert (op.kind, op.rows) == (OpKind.PREDICT, (2,))
    with pytest.raises(UsageError, match=r"prefetch\.layers is 0; allowed: 1 or more"):
        StackedGates(layers=0)


# --------------------------------------------------------------------------- eviction


def test_priorities_by_hand():
    # T = 4, the incoming expert's layer is 2 of 4.
    #
    #   expert   R   F   H   layer   R/T    F/T    H/T    distance   nearness   sum / 4
    #   0        4   1   0   2       1      .25    0      0          1          .5625
    #   1        2   4   4   3       .5     1      1      1          .75        .8125
    #   2        1   2   0   1       .25    .5     0      3          .25        .25
    used = (np.array([4, 2, 1]), np.array([1, 4, 2]), np.array([0, 4, 0]), np.array([2, 3, 1]))
    assert priorities(*used, 4, 2, 4, (1, 1, 1, 1)).tolist() == [0.5625, 0.8125, 0.25]
    assert priorities(*used, 4, 2, 4, (0, 0, 0, 2)).tolist() == [1, 0.75, 0.25]
    assert priorities(*used, 4, 2, 4, (3, 1, 0, 0)).tolist() == [0.8125, 0.625, 0.3125]


LAYERS, E = 4, 4


def policy_of(**options):
    model, slots = two_forms(LAYERS, E)
    policy = Multidimensional(**options)
    policy.start(model, slots)
    return policy


def passed(policy, uses, layers=LAYERS):
    """Make one pass; ``uses`` maps (form, layer) to the experts that are used."""
    for layer in range(layers):
        for form in (0, 1):
            policy.used(form * LAYERS + layer, uses.get((form, layer), ()))


def key(layer, expert, form=0):
    return (form * LAYERS + layer) * E + expert


def victim(policy, *keys, incoming):
    return policy.victim(flags(keys, 2 * LAYERS * E), incoming)


def test_the_four_terms_choose_four_victims():
    # Three passes.  Uses: expert 0 of layer 0 in passes 1 and 2, whole; expert 1 of layer 1 in
    # passes 1 and 2, at low precision; expert 2 of layer 2 in pass 3, whole; expert 3 of layer 3
    # in passes 1 to 3, at low precision, but once whole.
    chosen = {"lru": 0, "lfu": 0, "lhu": 0, "fld": 0}
    found = {}
    for term in chosen:
        policy = policy_of(**(chosen | {term: 1.0}))
        passed(policy, {(0, 0): [0], (1, 1): [1], (1, 3): [3]})
        passed(policy, {(0, 0): [0], (1, 1): [1], (0, 3): [3]})
        passed(policy, {(0, 2): [2], (1, 3): [3]})
        keys = [key(0, 0), key(1, 1), key(2, 2), key(3, 3)]
        found[term] = victim(policy, *keys, incoming=key(2, 0))
    assert found == {
        "lru": key(0, 0),  # R = 2, as expert 1's: the lowest key
        "lfu": key(2, 2),  # used once
        "lhu": key(1, 1),  # never used whole
        "fld": key(1, 1),  # from layer 2 on, layer 1 is the last to come
    }


def test_passes_are_counted_in_a_model_of_one_layer_too():
    # R / T: expert 1 was used in pass 1 of 2, expert 0 in pass 2.
    model = shape(E, 2, 1)
    policy = Multidimensional(lru=1, lfu=0, lhu=0, fld=0)
    policy.start(model, ExpertCache(model, 4, "global", Tier("device", 0), 0))
    policy.used(0, [1])
    policy.used(0, [0])
    assert policy.victim(flags([0, 1], E), 3) == 1


def test_records_of_both_forms_share_their_uses():
    policy = policy_of(lru=0, lfu=1, lhu=0, fld=0)
    passed(policy, {(0, 0): [0], (1, 0): [1]})
    passed(policy, {(0, 0): [0], (1, 0): [2]})
    low = [key(0, e, 1) for e in (0, 1, 3)]
    assert victim(policy, *low, incoming=key(0, 2, 1)) == key(0, 3, 1)
    assert victim(policy, *low[:2], incoming=key(0, 2, 1)) == key(0, 1, 1)


def test_a_new_sequence_forgets_all_uses():
    policy = policy_of()
    passed(policy, {(0, 0): [1]})
    assert victim(policy, key(0, 0), key(0, 1), incoming=key(0, 2)) == key(0, 0)
    policy.begin_sequences(None)
    passed(policy, {(0, 0): [0]})
    assert victim(policy, key(0, 0), key(0, 1), incoming=key(0, 2)) == key(0, 1)


def test_predicted_experts_stay_until_their_layer_unless_nothing_else_can_leave():
    policy = policy_of()
    passed(policy, {(0, 0): [1]}, layers=1)
    policy.foresee({1: np.array([[0.5, 0.5, 0.0, 0.0]])})  # 0 and 1 of layer 1
    assert victim(policy, key(1, 0), key(0, 1), incoming=key(1, 3)) == key(0, 1)
    assert victim(policy, key(1, 0, 1), key(1, 3, 1), incoming=key(1, 2, 1)) == key(1, 3, 1)
    assert victim(policy, key(1, 0), key(1, 1), incoming=key(1, 3)) == key(1, 0)
    policy.used(1, [])
    assert victim(policy, key(1, 0), key(0, 1), incoming=key(1, 3)) == key(1, 0)
    assert victim(policy, incoming=key(1, 3)) is None


def test_without_a_mask_predictions_change_nothing():
    policy = policy_of(mask=False)
    passed(policy, {(0, 0): [1]}, layers=1)
    policy.foresee({1: np.array([[0.5, 0.5, 0.0, 0.0]])})
    assert victim(policy, key(1, 0), key(0, 1), incoming=key(1, 3)) == key(1, 0)


def test_weights_below_zero_or_all_zero_are_refused():
    with pytest.raises(UsageError, match=r"evict\.lhu is -1; allowed: 0 or more"):
        Multidimensional(lhu=-1)
    with pytest.raises(UsageError, match="at least one above 0"):
        Multidimensional(lru=0, lfu=0, lhu=0, fld=0)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 9999), st.tuples(*[st.integers(0, 3)] * 4).filter(any))
def test_the_victim_has_the_lowest_priority_of_the_papers_formula(seed, weights):
    random = np.random.default_rng(seed)
    policy = policy_of(**dict(zip(("lru", "lfu", "lhu", "fld"), map(float, weights), strict=True)))
    history = []
    for _ in range(random.integers(1, 5)):
        chosen = {
            (int(random.integers(2)), layer): random.choice(E, 2, replace=False).tolist()
            for layer in range(LAYERS)
        }
        history.append(chosen)
        passed(policy, chosen)
    form, incoming = int(random.integers(2)), int(random.integers(LAYERS))
    keys = [key(layer, e, form) for layer in range(LAYERS) for e in range(E) if random.integers(2)]

    def priority(k):
        layer, e = divmod(k % (LAYERS * E), E)
        t = len(history)
        both = [n for n, c in enumerate(history, 1) for f in (0, 1) if e in c.get((f, layer), ())]
        whole = [n for n, c in enumerate(history, 1) if e in c.get((0, layer), ())]
        far = (layer - incoming + LAYERS) % LAYERS
        terms = max(both, default=0) / t, len(both) / t, len(whole) / t, 1 - far / LAYERS
        return sum(w * term for w, term in zip(weights, terms, strict=True))

    found = victim(policy, *keys, incoming=key(incoming, 0, form))
    if found is None:
        assert not keys
    else:
        assert priority(found) == pytest.approx(min(map(priority, keys)))


# --------------------------------------------------------------------------- the whole system


def ran(seed, slots, low, rows, options):
    model = small_shape(layers=3, experts=6)
    trace = random_trace(seed, model, [[2] * rows], 6)
    costs = FlatCosts(prices(), form_bytes=QUARTER)
    made = rig(build("hobbit", options), TracedModel(trace), slots=slots, more=[low], costs=costs)
    made.engine.generate([[1, 1]] * rows, 6)
    return made


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 999), st.integers(2, 14), st.integers(1, 6), st.integers(1, 3),
    st.integers(1, 2), st.sampled_from([(0.6, 0.9), (0.3, 0.5), (1, 1), (0, 1)]),
)  # fmt: skip
def test_any_routing_in_any_memory(seed, slots, low, rows, layers, thresholds):
    t1, t2 = map(str, thresholds)
    options = {"assign.t1": t1, "route.t2": t2, "prefetch.layers": str(layers)}
    made = ran(seed, slots, low, rows, options)
    check_timeline(
        made.spans, made.events, num_experts=6, num_layers=3, capacity=slots + low,
        record_bytes=QUARTER, budget_bytes=slots * QUARTER[0] + low * QUARTER[1],
    )  # fmt: skip
    forms = {span.op.form for span in made.spans if span.op.kind is OpKind.LOAD}
    if t1 == "1":
        assert forms <= {HIGH}


def test_low_precision_moves_fewer_bytes():
    def moved(options):
        loads = [s for s in ran(3, 6, 4, 1, options).spans if s.op.kind is OpKind.LOAD]
        return sum(span.moved_bytes for span in loads)

    whole = {"assign.t1": "1", "route.t2": "1"}
    assert moved({"assign.t1": "0.5", "route.t2": "0.8"}) < moved(whole)

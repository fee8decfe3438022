"""Cache-Prior: its rule by hand, and its authors' algorithm restated on random logits.

Scores are softmaxes of logits, so that policies see what a gate gives them.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.cases import CASES
from moebench.harness.conformance.suite import check_system
from moebench.substrate.engine.decisions import Prompts
from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import GateKind
from moebench.systems.cache_prior import (
    CachePrior,
    CachePriorSystem,
    LRUByWeight,
    choice_values,
    prior_choice,
)
from moebench.systems.options import build
from moebench.systems.registry import name_of
from tests.systems.views import cache, flags, shape, view

#: The logits of most cases: k = 2, the router's own choice is 0 and 1, the range is 4.
LOGITS = [4.0, 3.0, 2.5, 2.0, 0.0, 0.0, 0.0, 0.0]
EXPERTS = 8


def softmax(logits):
    powers = np.exp(np.asarray(logits) - np.max(logits))
    return powers / powers.sum()


def started(k=2, layers=2, experts=EXPERTS, **options):
    """Return a router at the start of a batch, all of whose experts this batch has used."""
    policy, model = CachePrior(**options), shape(experts, k, layers)
    policy.start(model, cache(model, 8, "layer"))
    policy.begin_sequences(Prompts((1,)))
    policy._seen_LE[:] = True
    return policy


def routed(policy, *rows, k=2, resident=(), alpha=0.5, **of):
    """Route rows of logits; return their experts."""
    seen = view([softmax(row) for row in rows], k, resident, alpha=alpha, **of)
    found = policy.route(seen)
    assert found.weigh_as_TK is found.ids_TK  # weights are those of the chosen themselves
    return found.ids_TK.tolist()


# ---------------------------------------------------------------- the rule by hand


@pytest.mark.parametrize(
    ("resident", "alpha", "chosen"),
    [
        # J = 1: expert 0 has 4 + λ · 4.  λ = 0.25 adds 1 to it and to residents.
        ([], 0.25, [0, 1]),
        ([2], 0.25, [0, 2]),  # 2.5 + 1 = 3.5 > 3
        ([3], 0.24, [0, 1]),  # 2 + 0.96 < 3
        ([3], 0.26, [0, 3]),  # 2 + 1.04 > 3
        ([4], 0.7, [0, 1]),  # 0 + 2.8 < 3
        ([4], 0.8, [0, 4]),  # 0 + 3.2 > 3
        ([1, 4], 0.8, [0, 1]),  # 3 + 3.2
        ([2, 3], 0.25, [0, 2]),
        (range(8), 0.8, [0, 1]),  # all have the bonus: the router's own choice
    ],
)
def test_residents_get_lambda_times_the_mean_range(resident, alpha, chosen):
    assert routed(started(keep=1), LOGITS, resident=resident, alpha=alpha) == [chosen]


def test_12_6_3_the_best_j_get_the_residents_bonus_which_keeps_them():
    # All but 0 and 1 are resident, λ = 1 adds 4: 2.5 + 4 > 4.  J = 2 keeps both, J = 1 the best,
    # J = 0 none.
    for keep, chosen in ((2, [0, 1]), (1, [0, 2]), (0, [2, 3])):
        found = routed(started(keep=keep), LOGITS, resident=range(2, 8), alpha=1)
        assert found == [chosen]
    assert CachePrior().keep == 2


def test_12_6_3_lambda_0_is_exactly_the_models_routing():
    # Own choices that no order of scores would give are kept as they are.
    policy = started()
    seen = view([softmax(LOGITS)], 2, range(8), alpha=0, own=[[5, 3]])
    assert policy.route(seen).ids_TK is seen.topk_ids_TK
    assert policy.lossless_at(0)
    assert not policy.lossless_at(0.1)
    assert build("cache-prior", {"alpha": "0"}).lossless
    assert not build("cache-prior").lossless


def test_12_6_1_the_mean_includes_the_current_token_and_goes_on_over_sequences():
    # Ranges 4, then 12: Δ̄ is 4, then 8.  λ = 0.25: the bonus of the second token is 2, not 1 (the
    # mean before it) or 3 (its own range).
    policy = started(keep=1)
    routed(policy, LOGITS, alpha=0.25)
    policy.end_sequences()
    policy.begin_sequences(Prompts((1,)))
    policy._seen_LE[:] = True
    # 1 has 9; a resident 2 needs a bonus above 1.5 to be chosen, a resident 3 one above 2.5.
    second = [12.0, 9.0, 7.5, 6.5, 0.0, 0.0, 0.0, 0.0]
    assert routed(policy, second, resident=[2, 3], alpha=0.25) == [[0, 2]]
    assert policy._total[0] / policy._tokens[0] == pytest.approx(8)
    # A third token of range 4: Δ̄ = 20 / 3, and the bonus 1.67.
    assert routed(policy, LOGITS, resident=[3], alpha=0.25) == [[0, 3]]
    # A new run begins anew: Δ̄ is 4, and 2 + 0.24 · 4 < 3.
    model = shape(EXPERTS, 2, 2)
    policy.start(model, cache(model, 8, "layer"))
    policy._seen_LE[:] = True
    assert routed(policy, LOGITS, resident=[3], alpha=0.24) == [[0, 1]]


def test_12_6_1_each_layer_has_a_mean_of_its_own():
    policy = started(keep=1)
    routed(policy, [12.0, 9.0, 7.5, 6.5, 0.0, 0.0, 0.0, 0.0], layer=1)
    assert policy._total[0] == 0
    assert routed(policy, LOGITS, resident=[3], alpha=0.24) == [[0, 1]]  # Δ̄ = 4: 2 + 0.96 < 3


def test_the_rows_of_a_prompt_count_in_their_order_even_where_lambda_is_0():
    policy = started(keep=1)
    routed(policy, LOGITS, [12.0, 9.0, 7.5, 6.5, 0.0, 0.0, 0.0, 0.0], alpha=0, phase="prefill")
    assert policy._tokens[0] == 2
    # Two rows of range 4: Δ̄ is 20 / 3 and then 24 / 4 = 6.  A resident 3 with 2 + 1.6 beats 3.
    assert routed(policy, LOGITS, LOGITS, resident=[3], alpha=0.2) == [[0, 3], [0, 3]]
    # With 3 - 2 = 1 needed, λ = 0.155 gives 1.03 with 20 / 3 and 0.93 with 6.
    policy = started(keep=1)
    routed(policy, LOGITS, [12.0, 9.0, 7.5, 6.5, 0.0, 0.0, 0.0, 0.0], alpha=0, phase="prefill")
    assert routed(policy, LOGITS, LOGITS, resident=[3], alpha=0.155) == [[0, 3], [0, 1]]


def test_12_6_1_a_new_batch_begins_as_with_an_empty_cache():
    policy = started(keep=1)
    policy.begin_sequences(Prompts((1,)))
    # 2 is on the device since an earlier batch: no bonus.
    assert routed(policy, LOGITS, resident=[2], alpha=0.25) == [[0, 1]]
    # A token whose own choice is 2 uses it: from now on it counts.
    assert routed(policy, [0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 3.0], alpha=0.25) == [[2, 7]]
    assert routed(policy, LOGITS, resident=[2], alpha=0.25) == [[0, 2]]
    # Without ``emptied`` all residents count at once.
    policy = started(keep=1, emptied=False)
    policy.begin_sequences(Prompts((1,)))
    assert routed(policy, LOGITS, resident=[2], alpha=0.25) == [[0, 2]]


def test_a_prompt_that_begins_a_batch_is_routed_exactly():
    policy = started(keep=0)
    policy.begin_sequences(Prompts((2,)))
    rows = [LOGITS, LOGITS[::-1]]
    found = routed(policy, *rows, resident=range(8), alpha=1, phase="prefill")
    assert found == [[0, 1], [7, 6]]


def test_12_6_4_hits_are_against_the_state_before_the_token():
    # An expert under way has no bonus: only those that are complete when the gate is known.
    assert routed(started(keep=1), LOGITS, in_flight=[2], alpha=0.25) == [[0, 1]]


def test_12_6_2_weights_are_those_of_the_unchanged_logits():
    # The engine gives each position the gate weight of weigh_as_TK, and renormalises as the model
    # does; z' is not among what it gets.
    seen = view([softmax(LOGITS)], 2, [2], alpha=0.25)
    found = started(keep=1).route(seen)
    assert found.ids_TK.tolist() == found.weigh_as_TK.tolist() == [[0, 2]]
    assert found.top_score is None


# ---------------------------------------------------------------- logits of scores


def test_logits_differ_from_a_softmaxs_logarithm_by_a_constant():
    z = choice_values(softmax(LOGITS)[None], GateKind.SOFTMAX_TOPK)[0]
    assert z - z[0] == pytest.approx(np.array(LOGITS) - LOGITS[0])


def test_sigmoid_scores_are_converted_back():
    logits = np.array([[3.0, -1.0, 0.5, 60.0]])
    z = choice_values(1 / (1 + np.exp(-logits)), GateKind.TOPK_SIGMOID)
    assert z[0, :3] == pytest.approx(logits[0, :3])
    assert np.isfinite(z).all()


def test_biased_sigmoids_are_taken_as_they_are():
    scores = np.array([[1.2, -0.1, 0.5]])
    found = choice_values(scores, GateKind.SIGMOID_BIAS_TOPK_RENORM)
    assert found.tolist() == scores.tolist()


def test_a_score_of_0_counts_as_the_smallest_positive_one():
    z = choice_values(np.array([[0.5, 0.25, 0.0], [0.9, 0.1, 0.0]]), GateKind.SOFTMAX_TOPK)
    assert np.exp(z) == pytest.approx(np.array([[0.5, 0.25, 0.25], [0.9, 0.1, 0.1]]))


def test_prior_choice_is_best_first_with_ties_to_the_lowest_id():
    z = np.array([[1.0, 3.0, 2.0, 3.0]])
    assert prior_choice(z, np.zeros((1, 4), bool), np.array([9.0]), 3).tolist() == [[1, 3, 2]]
    favoured = flags([0, 2], 4)[None]
    assert prior_choice(z, favoured, np.array([2.0]), 3).tolist() == [[2, 0, 1]]


# ---------------------------------------------------------------- LRU by weight


def lru(slots=4, layers=1):
    policy, model = LRUByWeight(), shape(EXPERTS, 2, layers)
    policy.start(model, cache(model, slots, "layer"))
    return policy


def use(policy, scores, *experts):
    policy.observe(view([scores], len(experts)))
    policy.used(0, sorted(experts))


def test_12_6_4_the_heaviest_of_one_tokens_experts_is_evicted_first():
    policy = lru()
    use(policy, [0.1, 0.5, 0.3, 0.1, 0, 0, 0, 0], 0, 1, 2)
    for key in (0, 1, 2):  # loaded by ascending id, which does not matter
        policy.arrived(key)
    assert policy.victim(flags([0, 1, 2], EXPERTS), 5) == 1
    assert policy.victim(flags([0, 2], EXPERTS), 5) == 2
    # Hits take their place in the same order: 2 before 0; 1 is the oldest.
    use(policy, [0.2, 0.0, 0.4, 0.4, 0, 0, 0, 0], 0, 2, 3)
    policy.arrived(3)
    assert [policy.victim(flags(s, EXPERTS), 5) for s in ([0, 1, 2, 3], [0, 2, 3], [0, 3])] == [
        1, 2, 3,
    ]  # fmt: skip
    assert policy.victim(flags([], EXPERTS), 5) is None


def test_equal_weights_are_used_by_ascending_id_and_a_prefetch_is_the_most_recent():
    policy = lru()
    use(policy, [0.25] * 4 + [0.0] * 4, 3, 1)
    policy.arrived(6)
    assert policy.victim(flags([1, 3, 6], EXPERTS), 5) == 1
    assert policy.victim(flags([3, 6], EXPERTS), 5) == 3


# ---------------------------------------------------------------- the whole algorithm


def as_the_code(texts, capacity, k, lam, keep):
    """Return the choices of the authors' algorithm, its hits and its misses, token by token."""
    total = count = 0
    found = []
    for text in texts:
        lru = OrderedDict()
        for logits in text:
            total, count = total + max(logits) - min(logits), count + 1
            own = sorted(range(len(logits)), key=lambda e: -logits[e])
            favoured = set(lru) | set(own[:keep])
            biased = [z + lam * total / count * (e in favoured) for e, z in enumerate(logits)]
            chosen = sorted(range(len(logits)), key=lambda e: -biased[e])[:k]
            found.append((set(chosen), set(chosen) & set(lru)))
            for e in sorted(chosen, key=lambda e: (-logits[e], e)):
                lru.pop(e, None)
                lru[e] = None
                if len(lru) > capacity:
                    lru.popitem(last=False)
    return found


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    capacity=st.integers(3, 7),
    lam=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    keep=st.integers(0, 2),
)
def test_choices_and_contents_are_those_of_the_code(seed, capacity, lam, keep):
    random = np.random.default_rng(seed)
    texts = [random.normal(size=(random.integers(1, 12), EXPERTS)) * 2 for _ in range(3)]
    k, model = 3, shape(EXPERTS, 3, 1)
    route, evict = CachePrior(keep=keep), LRUByWeight()
    slots = cache(model, capacity, "layer")
    route.start(model, slots)
    evict.start(model, slots)
    inside, expected = set(), iter(as_the_code(texts, capacity, k, lam, keep))
    for text in texts:
        route.begin_sequences(Prompts((len(text),)))
        used = set()
        for logits in text:
            seen = view([softmax(logits)], k, inside, alpha=lam)
            evict.observe(seen)
            chosen = set(route.route(seen).ids_TK[0].tolist())
            choice, hits = next(expected)
            assert chosen == choice
            # The code empties its cache: it does not hit experts that an earlier text left.
            assert chosen & inside & used == hits
            used |= chosen
            evict.used(0, sorted(chosen))
            for key in sorted(chosen - inside):
                if len(inside) == capacity:
                    gone = evict.victim(flags(inside - chosen, EXPERTS), key)
                    inside.remove(gone)
                inside.add(key)
                evict.arrived(key)


# ---------------------------------------------------------------- the system


def test_the_system_is_an_lru_of_each_layer_without_prefetch():
    system = build("cache-prior")
    names = {decision: name_of(decision, policy) for decision, policy in system.policies.items()}
    assert names == {
        "place": "none", "route": "cache-prior", "assign": "load", "prefetch": "none",
        "admit": "all", "evict": "lru-by-weight",
    }  # fmt: skip
    assert (system.scope, system.alpha, system.alpha_in_use) == ("layer", 0.5, 0.5)


@dataclass(kw_only=True)
class Exact(CachePriorSystem):
    """The system with λ = 0, which claims to be lossless."""

    alpha: float = 0.0


@pytest.mark.slow
def test_lambda_0_generates_the_tokens_of_the_resident_model():
    found = {f.check: f.state for f in check_system(Exact, cases=[CASES[0]]).findings}
    assert found["lossless"] == "ok"
    assert found["invariants"] == "ok"


def test_experts_in_groups_are_refused():
    system = build("cache-prior")
    assert system.why_not(shape(gate_groups=(1, 1)), 1) is None
    assert "groups" in system.why_not(shape(gate_groups=(4, 2)), 1)


def test_options_out_of_range_are_refused():
    with pytest.raises(UsageError, match=r"route\.keep is -1; allowed: 0 or more"):
        CachePrior(keep=-1)
    with pytest.raises(UsageError, match=r"alpha is 1\.5; allowed: 0 to 1"):
        build("cache-prior", {"alpha": "1.5"})


def test_among_many_equal_logits_the_lowest_ids_are_chosen():
    random = np.random.default_rng(0)
    z_TE, favoured = random.integers(1, 4, (2, 400)) / 4, random.random((2, 400)) < 0.5
    found = prior_choice(z_TE, favoured, np.array([0.25, 0.5]), 300)
    for z_E, held_E, bonus, ids in zip(z_TE, favoured, (0.25, 0.5), found, strict=True):
        biased = z_E + bonus * held_E
        assert ids.tolist() == sorted(range(400), key=lambda e: (-biased[e], e))[:300]

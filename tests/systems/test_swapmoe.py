"""SwapMoE by hand: masked gating, importances, swaps, the plan of slots, refusals."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.models.layers import gate_weights
from moebench.substrate.models.shape import GateKind
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.options import build
from moebench.systems.swapmoe import (
    ImportantSwaps,
    MaskedGating,
    OnlySwapped,
    SwapMoE,
    VirtualExperts,
    importance,
    kept_mass,
    masked_choice,
    swaps_to,
)
from tests.substrate.engine.fakes import FlatCosts, prices, random_trace, rig, small_shape
from tests.systems.views import cache, flags, shape, view

# --------------------------------------------------------------------------- importance

#: Two tokens of top-1: norms 2 and 1, and experts of norms 1, 2 and 4.
GATES = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]])
OWN, TOKEN_NORM, WEIGHT_NORM = np.array([[0], [1]]), np.array([2.0, 1.0]), np.array([1.0, 2.0, 4.0])


def test_importance_by_hand():
    #   expert 0: 2 · .6 · 1 = 1.2    expert 1: 1 · .5 · 2 = 1.0    expert 2: no token
    found = importance(GATES, OWN, TOKEN_NORM, WEIGHT_NORM)
    assert found == pytest.approx([1.2, 1.0, 0])


def test_importance_would_differ_if_every_token_counted_for_every_expert():
    #   0: 2·.6 + 1·.2 = 1.4;  1: (2·.3 + 1·.5) · 2 = 2.2;  2: (2·.1 + 1·.3) · 4 = 2.0
    everyone = np.tile(np.arange(3), (2, 1))
    found = importance(GATES, everyone, TOKEN_NORM, WEIGHT_NORM)
    assert found == pytest.approx([1.4, 2.2, 2.0])


def test_measures_without_norms():
    assert importance(GATES, OWN, TOKEN_NORM, WEIGHT_NORM, "gates") == pytest.approx([1.2, 0.5, 0])
    assert importance(GATES, OWN, None, WEIGHT_NORM, "gates") == pytest.approx([0.6, 0.5, 0])
    assert importance(GATES, OWN, TOKEN_NORM, WEIGHT_NORM, "tokens").tolist() == [1, 1, 0]


def test_a_biased_score_below_0_is_no_importance():
    found = importance(np.array([[-0.5, -0.2]]), np.array([[1]]), None, np.ones(2))
    assert found.tolist() == [0, 0]


# --------------------------------------------------------------------------- masked gating

SCORES = np.array([[0.4, 0.3, 0.2, 0.1]])


def test_only_residents_are_chosen():
    assert masked_choice(SCORES, flags([1, 3], 4), 2).tolist() == [[1, 3]]
    routed = MaskedGating().route(view(SCORES, 2, [1, 3]))
    assert routed.ids_TK.tolist() == [[1, 3]]
    assert routed.weigh_as_TK is routed.ids_TK


@pytest.mark.parametrize(
    ("gate", "weights"),
    [(GateKind.SOFTMAX_TOPK_RENORM, [0.75, 0.25]), (GateKind.SOFTMAX_TOPK, [0.3, 0.1])],
)
def test_residents_are_weighted_by_the_models_own_rule(gate, weights):
    model = shape(4, 2).model_copy(update={"gate": gate})
    scores = torch.from_numpy(SCORES)
    found = gate_weights(model, scores.log(), scores, torch.tensor([[1, 3]]))
    assert found[0].tolist() == pytest.approx(weights)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_both_phases_are_masked_and_tokens_whose_experts_are_there_keep_them(phase):
    rows = [[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.3, 0.2]]
    routed = MaskedGating().route(view(rows, 2, [1, 2, 3], phase=phase))
    assert routed.ids_TK.tolist() == [[3, 2], [2, 3]]
    whole = view(rows, 2, range(4), phase=phase)
    assert MaskedGating().route(whole).ids_TK is whole.topk_ids_TK


def test_an_expert_whose_copy_is_under_way_is_not_chosen():
    seen = view(SCORES, 2, [1, 3], in_flight=[0])
    assert MaskedGating().route(seen).ids_TK.tolist() == [[1, 3]]


def test_too_few_residents_leave_the_models_own_best():
    assert masked_choice(SCORES, flags([3], 4), 2).tolist() == [[3, 0]]


@given(st.integers(0, 9999), st.integers(1, 4), st.integers(0, 8))
def test_the_mask_chooses_the_best_residents(seed, k, residents):
    random = np.random.default_rng(seed)
    scores_TE = random.integers(0, 5, (3, 8)) / 5
    virtual_E = flags(random.permutation(8)[:residents], 8)
    for scores, chosen in zip(scores_TE, masked_choice(scores_TE, virtual_E, k), strict=True):
        assert len({*chosen.tolist()}) == k
        assert virtual_E[chosen].sum() == min(k, residents)
        inside = [e for e in chosen.tolist() if virtual_E[e]]
        best = sorted(np.flatnonzero(virtual_E).tolist(), key=lambda e: (-scores[e], e))
        assert inside == best[: len(inside)]


def test_it_is_not_lossless_and_no_prefill_is_exact():
    assert not build("swapmoe").lossless
    assert not build("swapmoe").route.exact_prefill
    assert build("smoe").route.exact_prefill


# --------------------------------------------------------------------------- swaps


def test_the_largest_gain_is_swapped_first():
    # Residents 1 and 3 with 2 and 1; 2 has 9, 0 has 5.
    assert swaps_to(np.array([5, 2, 9, 1]), flags([1, 3], 4)) == [(2, 3), (0, 1)]


def test_residents_stay_among_equally_important_experts():
    assert swaps_to(np.zeros(4), flags([1, 3], 4)) == []
    assert swaps_to(np.array([1, 1, 1, 2]), flags([0, 1], 4)) == [(3, 1)]
    assert swaps_to(np.ones(2), flags([0, 1], 2)) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=9))
def test_swaps_end_with_the_most_important_experts(experts):
    worth, virtual = np.array([n for n, _ in experts]), np.array([r for _, r in experts])
    after = virtual.copy()
    gains = []
    for come, leave in swaps_to(worth, virtual):
        assert after[leave]
        assert not after[come]
        after[come], after[leave] = True, False
        gains.append(worth[come] - worth[leave])
    assert after.sum() == virtual.sum()
    assert gains == sorted(gains, reverse=True)
    assert min(gains, default=1) > 0
    assert worth[after].min(initial=9) >= worth[~after].max(initial=0)


def swapping(residents=((1, 3), (0, 1)), inputs="passes", **options):
    """Return swaps of two layers of four experts, with these residents, and the slots."""
    model, policy = shape(4, 1, 2), ImportantSwaps(inputs=inputs, **options)
    slots = cache(model, 8)
    policy.weight_norms(np.ones((2, 4)))
    policy.start(model, slots)
    for layer, experts in enumerate(residents):
        for expert in experts:
            slots.claim(4 * layer + expert, None)
    return policy, slots


#: Rows that give the importances 5, 2, 9 and 1 by tokens, as experts of top-1.
ROWS = np.eye(4)[[0] * 5 + [1] * 2 + [2] * 9 + [3]]


def test_one_swap_a_layer_is_begun_after_each_pass():
    policy, slots = swapping(importance="tokens", frequency=2)
    policy.observe(view(ROWS, 1))
    assert policy.pass_ends("prefill") == []  # the second pass is the update
    assert policy.pass_ends("decode") == [Fetch(0, 2, instead_of=3)]
    slots.claim(2, 3)
    policy.observe(view([[0.0, 0, 0, 1]], 1, [1], in_flight=[2]))
    assert policy.pass_ends("decode") == []  # its slot serves no expert yet
    policy.observe(view([[0.0, 0, 0, 1]], 1, [1, 2]))
    # The pass is an update: 3 has both tokens since the last one and replaces the first resident.
    assert policy.pass_ends("decode") == [Fetch(0, 3, instead_of=2)]


def test_swaps_are_spread_over_passes():
    policy, slots = swapping(importance="tokens", frequency=1)
    policy.observe(view(ROWS, 1))
    assert policy.pass_ends("prefill") == [Fetch(0, 2, instead_of=3)]
    policy, slots = swapping(importance="tokens", frequency=3)
    for _ in range(2):
        policy.pass_ends("decode")
    policy.observe(view(ROWS, 1))
    assert policy.pass_ends("decode") == [Fetch(0, 2, instead_of=3)]
    slots.claim(2, 3)
    assert policy.pass_ends("decode") == [Fetch(0, 0, instead_of=1)]
    assert policy.pass_ends("decode") == []


def test_an_update_after_texts_counts_all_their_tokens():
    policy, slots = swapping(inputs="texts", frequency=2, importance="tokens")
    for row in (ROWS[:8], ROWS[8:]):  # two texts of a prompt and a token
        policy.observe(view(row[:-1], 1, phase="prefill"))
        assert policy.pass_ends("prefill") == []
        policy.observe(view(row[-1:], 1))
        assert policy.pass_ends("decode") == []
        policy.end_sequences()
    assert policy.pass_ends("prefill") == [Fetch(0, 2, instead_of=3)]
    slots.claim(2, 3)
    assert policy.pass_ends("decode") == [Fetch(0, 0, instead_of=1)]


def test_the_layer_with_the_largest_gain_goes_first():
    policy, _ = swapping()
    policy.observe(view([[0.6, 0, 0, 0]], 1))
    policy.observe(view([[0, 0, 0.9, 0]], 1, layer=1))
    found = policy.pass_ends("decode")
    assert found == [Fetch(1, 2, instead_of=1), Fetch(0, 0, instead_of=3)]


def test_norms_of_weights_and_tokens_decide():
    policy, slots = swapping()
    policy.weight_norms(np.array([[1, 1, 2, 1]] * 2))
    policy.start(shape(4, 1, 2), slots)
    policy.observe(view([[0.6, 0, 0, 0], [0, 0, 0.4, 0]], 1))  # .6 · 1 < .4 · 2
    assert policy.pass_ends("decode") == [Fetch(0, 2, instead_of=3)]
    policy, _ = swapping()
    seen = view([[0.6, 0, 0, 0], [0, 0, 0.4, 0]], 1)
    seen.norm_T = np.array([1.0, 2.0])  # .6 · 1 < .4 · 2
    policy.observe(seen)
    assert policy.pass_ends("decode") == [Fetch(0, 2, instead_of=3)]


def test_only_a_swap_evicts():
    assert OnlySwapped().victim(flags([0, 1], 8), incoming=2) is None


# --------------------------------------------------------------------------- the plan

#: Two layers of four experts: twelve tokens of top-1 with score 1 each.
LAYER_0, LAYER_1 = [3] * 9 + [1] * 2 + [0], [0, 1, 2, 3] * 3


def text():
    ids_TLK = np.stack([LAYER_0, LAYER_1], axis=1)[..., None]
    scores_TLE = np.eye(4)[ids_TLK[..., 0]]
    return RoutedSequence(ids_TLK, 0, scores_TLE)


def planner(swaps=None, norms=None, k=1, **options):
    """Return a calibrated placement and its model."""
    model, place = shape(4, k, 2), VirtualExperts(**options)
    if swaps is not None:
        place.beside(swaps)
    if norms is not None:
        place.weight_norms(np.array(norms))
    place.calibrate([text()], model, Path(), lambda done, total: None)
    return place, model


def test_the_gate_mass_that_n_experts_keep():
    order = np.array([[3, 1, 0, 2]])
    found = kept_mass(np.array([[1.0, 2, 0, 9]]), order)
    assert found[0] == pytest.approx([0, 0.75, 11 / 12, 1, 1])
    assert kept_mass(np.zeros((1, 2)), np.array([[0, 1]])).tolist() == [[0, 0, 0]]


def test_the_layer_with_even_use_has_more_slots():
    #   layer 0 keeps .75, .92, 1;  layer 1 keeps .25 with each expert
    #   five slots: (1, 4) .75 + 1 = 1.75;  (2, 3) .92 + .75 = 1.67;  (3, 2) 1 + .5
    place, model = planner()
    assert place.plan(model, 5) == [1, 4]
    assert [*place.place(model, 5, "global")] == [(0, 3), *((1, e) for e in range(4))]
    assert place.learnt == {"tokens": "12"}
    place, model = planner(ImportantSwaps())  # a swap needs n_l >= k + 1
    assert place.plan(model, 5) == [2, 3]


def test_equal_and_given_numbers():
    place, model = planner(divide="equal")
    assert place.plan(model, 5) == [3, 2]
    assert place.plan(model, 99) == [4, 4]
    place, model = planner(counts=(1, 2))
    assert place.plan(model, 5) == [1, 2]
    assert place.most_slots() == 3
    place, model = planner()
    assert place.plan(model, 5, "layer") == [2, 2]


def test_a_limit_is_the_most_that_the_device_is_given():
    place, model = planner(limit=4)
    assert sum(place.plan(model, 8)) == 4
    assert build("swapmoe", {"place.limit": "9"}).most_slots(model) == 9
    assert build("swapmoe", {"place.counts": "[4, 3]"}).most_slots(model) == 7
    assert build("swapmoe").most_slots(model) is None
    assert build("swapmoe", {"place": "by-id"}).most_slots(model) is None


def test_the_first_virtual_experts_are_the_most_important():
    norms = [[9.0, 1, 1, 1], [1, 2, 3, 4]]
    place, model = planner(ImportantSwaps(), norms, divide="equal")  # 0: 1 · 9 = 3: 9 · 1
    assert [*place.place(model, 4, "global")] == [(0, 0), (0, 3), (1, 3), (1, 2)]
    place, model = planner(ImportantSwaps(importance="gates"), norms, divide="equal")
    assert [*place.place(model, 4, "global")] == [(0, 3), (0, 1), (1, 0), (1, 1)]
    place, model = planner(ImportantSwaps(importance="tokens"), norms, divide="equal")
    assert [*place.place(model, 4, "global")] == [(0, 3), (0, 1), (1, 0), (1, 1)]


def test_the_baseline_pruning_keeps_the_largest_weights_and_swaps_none():
    options = {"place.content": "largest", "place.divide": "equal", "admit": "all"}
    made = build("swapmoe", options)
    assert not made.place.calibrates
    assert made.reads_weight_norms
    made.weight_norms(np.array([[9.0, 1, 1, 2], [1, 2, 3, 4]]))
    found = [*made.place.place(shape(4, 2, 2), 4, "global")]  # n_l = k suffices
    assert found == [(0, 0), (0, 3), (1, 3), (1, 2)]
    assert made.admit.pass_ends("decode") == ()


def test_norms_of_weights_are_read_where_they_count():
    assert build("swapmoe").reads_weight_norms
    for measure in ("gates", "tokens"):
        assert not build("swapmoe", {"admit.importance": measure}).reads_weight_norms
    pruned = build("swapmoe", {"admit.importance": "gates", "place.content": "largest"})
    assert pruned.place.reads_weight_norms
    assert not pruned.admit.reads_weight_norms
    assert build("swapmoe").reads_token_norms
    assert not build("swapmoe", {"admit": "all"}).reads_token_norms


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "slots", "says"),
    [
        ({}, 5, "has slots for 5 for 2 layers; each layer needs 3: top-2 and one for a swap"),
        ({}, 5, r"\(n_l >= k \+ 1\); give a larger --capacity or --slots, or --set admit=all"),
        ({"counts": (4, 2)}, 8, "has slots for 2 of a layer; each layer needs 3: top-2"),
        ({"limit": 5}, 8, "needs 3: .* give a larger --slots or place.limit"),
        ({"limit": 9}, 8, r"place\.limit: the plan has 9 experts, and 8 fit"),
        ({"counts": (4, 4)}, 7, r"place\.counts: the plan has 8 experts, and 7 fit; give fewer"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(options, slots, says):
    place, model = planner(ImportantSwaps(), k=2, **options)
    with pytest.raises(BudgetError, match=says) as refused:
        place.plan(model, slots)
    assert "\n" not in str(refused.value)


def test_without_swaps_a_layer_needs_top_k_slots():
    place, model = planner(build("moe-ondemand").admit, k=2)
    assert sum(place.plan(model, 4)) == 4
    with pytest.raises(BudgetError, match="each layer needs 2: top-2; give a larger --capacity"):
        place.plan(model, 3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"admit.frequency": "0"}, r"admit\.frequency is 0; allowed: 1 or more"),
        ({"place.limit": "0"}, r"place\.limit is 0; allowed: 1 or more"),
        ({"place.counts": "[3, -1]"}, r"place\.counts has -1; allowed: 0 or more each"),
        ({"place.population": "1"}, r"place\.population is 1; allowed: 2 or more"),
        ({"place.generations": "-1"}, r"place\.generations is -1; allowed: 0 or more"),
        ({"place.seed": "-1"}, r"place\.seed is -1; allowed: 0 or more"),
        ({"admit.importance": "mass"}, r"admit\.importance=mass"),
    ],
)
def test_numbers_out_of_range_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        build("swapmoe", options)


@pytest.mark.parametrize("counts", [(4,), (4, 5)])
def test_counts_of_another_model_are_refused(counts):
    place, model = planner(counts=counts)
    with pytest.raises(UsageError, match=r"needs 2 numbers of at most 4, one for each MoE layer"):
        place.plan(model, 8)


def test_importances_of_another_model_are_refused():
    place, _ = planner()
    with pytest.raises(UsageError, match="was calibrated for 2 layers of 4 experts"):
        place.plan(shape(8, 1, 2), 8)


def test_routers_that_choose_in_groups_are_refused():
    grouped = shape(8, 2).model_copy(update={"gate_groups": (4, 2)})
    assert "not in groups" in SwapMoE().why_not(grouped, 1)
    assert SwapMoE().why_not(shape(8, 2), 3) is None


# --------------------------------------------------------------------------- the whole system


#: Updates at the end of every pass, the other reading of an input.
EVERY_PASS = {"admit.inputs": "passes"}


def run(seed=0, rows=1, slots=12, passes=8, model=None, costs=None, **options):
    """Run the system on random routing, with weights of norm 1, and return the rig."""
    model = model or small_shape(layers=3, experts=6)
    system = build("swapmoe", options)
    layers = len(model.moe_layers)
    system.weight_norms(np.ones((layers, 6)))
    if system.place.calibrates:
        random = np.random.default_rng(seed)
        scores_TLE = random.dirichlet(np.ones(6), (20, layers))
        ids_TLK = np.argsort(-scores_TLE, axis=2)[..., : model.top_k]
        known = RoutedSequence(ids_TLK, 4, scores_TLE)
        system.place.calibrate([known], model, Path(), lambda done, total: None)
    trace = random_trace(seed, model, [[2] * rows, [3] * rows], passes)
    made = rig(system, TracedModel(trace), slots=slots, costs=costs)
    for prompt in ([1, 1], [1, 1, 1]):
        made.engine.generate([prompt] * rows, passes)
    return made


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 999),
    st.integers(9, 18),
    st.integers(1, 3),
    st.sampled_from(["norms", "gates", "tokens"]),
    st.sampled_from([{}, EVERY_PASS, {**EVERY_PASS, "admit.frequency": "3"}]),
)
def test_any_routing_in_any_memory(seed, slots, rows, measure, options):
    options = {"admit.importance": measure, **options}
    made = run(seed, rows, slots, **options)
    check_timeline(
        made.spans, made.events, num_experts=6, capacity=slots,
        queued=made.engine.transfers.queued_uploads(),
    )  # fmt: skip
    made.cache.check_integrity()
    for counts in made.counts.values():
        assert counts.hits == counts.active  # no token waits for a load
        assert counts.loads == counts.host == counts.in_flight == 0
        assert counts.uploads_refused == 0


def held(made, layers=3):
    """Return the number of experts with a slot in each layer."""
    return [sum(made.cache.held[6 * layer : 6 * layer + 6]) for layer in range(layers)]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.integers(9, 17))
def test_swaps_keep_the_number_of_experts_of_each_layer(seed, slots):
    made = run(seed, slots=slots, **EVERY_PASS)
    placed = [sum(c.key // 6 == layer for c in made.claims if c.placed) for layer in range(3)]
    assert held(made) == placed
    assert sum(placed) == slots
    swapped = [claim for claim in made.claims if not claim.placed]
    assert all(claim.key // 6 == claim.victim // 6 for claim in swapped)


def test_swaps_happen_and_a_static_set_stays():
    assert run(slots=9).counts["decode"].uploaded > 0
    assert run(slots=9, **EVERY_PASS).counts["decode"].uploaded > 0
    static = run(slots=9, **{"admit": "all"})
    assert static.counts["decode"].uploaded == 0
    assert all(claim.placed for claim in static.claims)


def test_no_token_waits_for_a_slow_swap():
    # A copy lasts longer than a pass; decode takes the time that it takes without swaps.
    def decoded(**options):
        costs = FlatCosts(prices(load=5000))
        made = run(slots=9, costs=costs, **options)
        ends = [s.end_ns for s in made.spans if s.op.kind.name == "HEAD"]
        return [b - a for n, (a, b) in enumerate(pairwise(ends), start=1) if n != 8]

    assert decoded() == decoded(**{"admit": "all"})
    assert decoded(**EVERY_PASS) == decoded()


def test_a_layer_that_holds_all_its_experts_swaps_none_and_routes_exactly():
    made = run(slots=18, **EVERY_PASS)
    assert sum(counts.uploaded for counts in made.counts.values()) == 0
    assert sum(counts.replaced for counts in made.counts.values()) == 0


def test_exact_routing_without_an_eviction_is_refused_by_name():
    with pytest.raises(UsageError, match=r"OnlySwapped finds no expert to evict .* evict=lru"):
        run(slots=9, **{"route": "exact"})
    assert run(slots=9, **{"route": "exact", "evict": "lru"}).counts["decode"].loads > 0

"""SMoE's Algorithm 1 (expert-cache router): hand-computed cases and a slow reference.

Scores are written in 32nds, so that α = 1/2 gives exact bounds.  `ROW` is the row of most cases,
with k = 3: the model's own choice is [0, 1, 2] and S_{k+1} = 4, the score of expert 3.

    expert      0     1     2     3     4     5     6     7
    score       8    5.5    5     4    3.5    3     2     1
                top   low   low   └─ substitutes ─┘   neither
                     (1+α)·4 = 6 > low > 4 ≥ substitutes > 2 = (1-α)·4
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import LayerView
from moebench.substrate.errors import UsageError
from moebench.systems.smoe import ExpertCacheRouter, SMoE
from tests.systems.views import view

ROW = [8, 5.5, 5, 4, 3.5, 3, 2, 1]
#: S_{k+1} = 1: the own choice stands far above the band, every one of the three is top-score.
TOP_1_6_7 = [1, 12, 1, 1, 1, 1, 9, 6]
TOP_3_6_7 = [1, 1, 1, 12, 1, 1, 9, 6]
TOP_4_5_0 = [6, 1, 1, 1, 12, 9, 1, 1]


def route(rows, resident=(), alpha=0.5, *, k=3, own=None, phase="decode", **options):
    """Route rows of scores in 32nds; each row's experts keep the order of its own choice."""
    seen = view(rows, k, resident, own=own, phase=phase, of=32, alpha=alpha)
    return ExpertCacheRouter(**options).route(seen)


@pytest.mark.parametrize(
    ("resident", "chosen"),
    [
        # Nothing on the device: |A| = 0, both low-score experts are loaded or computed.
        ([], [0, 1, 2]),
        # 6 scores exactly (1-α)·S = 2 and 7 scores 1: outside the band, no substitutes.
        ([6, 7], [0, 1, 2]),
        ([0, 6], [0, 1, 2]),
        # One substitute for two: the weakest, 2, gives way; 1, the best low-score one, stays.
        ([5], [0, 1, 5]),
        # 3 scores exactly S_{k+1} = 4: legal.
        ([3], [0, 1, 3]),
        # As many substitutes as low-score experts.
        ([4, 5], [0, 5, 4]),
        # All substitutes on the device: the best two of {3: 4, 4: 3.5, 5: 3} are 3 and 4; the
        # weakest expert (2) is replaced by the best substitute (3), then 1 by 4.
        ([3, 4, 5], [0, 4, 3]),
        (range(3, 8), [0, 4, 3]),
        # 1 is on the device and stays; only 2 is replaced, by the best substitute.
        ([1, 4, 5], [0, 1, 4]),
        # 2 stays; 1 is replaced although it is the stronger: 2 costs nothing.
        ([2, 5], [0, 5, 2]),
        # Both low-score experts are on the device: no reason to replace anything.
        ([1, 2, 3, 4, 5], [0, 1, 2]),
        (range(8), [0, 1, 2]),
    ],
)
def test_one_row(resident, chosen):
    routed = route([ROW], resident)
    assert routed.ids_TK.tolist() == [chosen]
    assert routed.top_score == {0}  # 8 ≥ 6 alone; on the device or not


def test_an_active_expert_with_the_rivals_score_is_neither_low_nor_replaced():
    # S_{k+1} = 4 is the score of 2 (active) and of 3 (not): low-score is 4 < 5 < 6, expert 1 alone.
    tied = [9, 5, 4, 4, 3, 3, 2, 2]
    routed = route([tied], [3, 4, 5])
    assert routed.ids_TK.tolist() == [[0, 3, 2]]
    assert routed.top_score == {0}
    # The model may break the tie the other way: then 2 is the rival, and a legal substitute.
    assert route([tied], [2, 4], own=[[0, 1, 3]]).ids_TK.tolist() == [[0, 2, 3]]


def test_a_score_of_exactly_the_threshold_is_top_score():
    # (1+α)·4 = 6 is the score of 1: top-score, never replaced.  2 (score 5) is.
    routed = route([[7, 6, 5, 4, 3, 3, 2, 2]], [3, 4])
    assert routed.ids_TK.tolist() == [[0, 1, 3]]
    assert routed.top_score == {0, 1}


def test_a_score_just_above_the_lower_bound_is_a_substitute():
    # (1-α)·4 = 2 excludes 6 in ROW; 2.0625 is inside, and the only one on the device.
    assert route([[8, 5.5, 5, 4, 3.5, 3, 2.0625, 0.9375]], [6]).ids_TK.tolist() == [[0, 1, 6]]


def test_no_top_score_expert_at_all():
    # α = 1: top-score from 8 on; 7, 6 and 5 are low-score, substitutes score above 0 up to 4.
    routed = route([[7, 6, 5, 4, 4, 3, 3, 0]], [4, 5, 7], alpha=1)
    assert routed.ids_TK.tolist() == [[0, 5, 4]]  # 2 → 4 (4), 1 → 5 (3); 7 scores 0, out
    assert routed.top_score == frozenset()


def test_low_score_here_top_score_there_stays():
    # C = {0} ∪ {1, 6, 7}.  Row 0's low-score expert 1 is loaded for row 1 anyway: it stays.
    routed = route([ROW, TOP_1_6_7], [3, 4])
    assert routed.ids_TK.tolist() == [[0, 1, 3], [1, 6, 7]]
    assert routed.top_score == {0, 1, 6, 7}
    # 6 and 7 are in C too, but not in row 0's band: without 3 there is nothing to take.
    assert route([ROW, TOP_1_6_7]).ids_TK.tolist() == [[0, 1, 2], [1, 6, 7]]


def test_shared_top_score_experts_are_substitutes_although_off_the_device():
    # C = {0} ∪ {3, 6, 7} ∪ {4, 5, 0}: row 0's band {3, 4, 5} lies in C, nothing is resident.
    batch = [ROW, TOP_3_6_7, TOP_4_5_0]
    assert route(batch).ids_TK.tolist() == [[0, 4, 3], [3, 6, 7], [4, 5, 0]]
    # Without row 2 only 3 can stand in; row order does not matter (C is complete beforehand).
    assert route(batch[:2]).ids_TK.tolist() == [[0, 1, 3], [3, 6, 7]]
    assert route(batch[1::-1]).ids_TK.tolist() == [[3, 6, 7], [0, 1, 3]]


def test_rows_share_residents_but_substitute_each_for_itself():
    # The same substitute may serve several rows: it is loaded for none of them.
    assert route([ROW, ROW], [3]).ids_TK.tolist() == [[0, 1, 3], [0, 1, 3]]


def test_prefill_is_exact():
    routed = route([ROW, TOP_1_6_7], [3, 4, 5], phase="prefill")
    assert routed.ids_TK.tolist() == routed.weigh_as_TK.tolist() == [[0, 1, 2], [1, 6, 7]]
    assert routed.top_score is None  # nothing is substituted: no distinction is needed


def test_substitutes_by_id():
    # Band {3: 3, 4: 3.5, 5: 4}, S = 4 (expert 5).  Best first: 2 → 5, 1 → 4.  By id: 2 → 3, 1 → 4.
    row = [8, 5.5, 5, 3, 3.5, 4, 2, 1]
    assert route([row], [3, 4, 5], pick="best").ids_TK.tolist() == [[0, 4, 5]]
    assert route([row], [3, 4, 5], pick="id").ids_TK.tolist() == [[0, 4, 3]]


def test_substitute_weighs_as_itself_or_as_the_replaced_expert():
    own, replaced = (route([ROW], [3, 4, 5], weight=w) for w in ("own", "replaced"))
    assert own.ids_TK.tolist() == replaced.ids_TK.tolist() == [[0, 4, 3]]
    assert own.weigh_as_TK.tolist() == [[0, 4, 3]]
    assert replaced.weigh_as_TK.tolist() == [[0, 1, 2]]  # 4 weighs as 1, 3 weighs as 2


def test_without_a_rival_every_expert_is_top_score():
    # k = E: there is no (k+1)-th score and no substitute.
    routed = route([[12, 10, 6, 4]], [], alpha=1, k=4)
    assert routed.ids_TK.tolist() == [[0, 1, 2, 3]]
    assert routed.top_score == {0, 1, 2, 3}


def test_the_models_own_arrays_are_left_alone():
    seen = view([ROW], 3, [3, 4, 5], of=32, alpha=0.5)
    arrays = (seen.scores_TE, seen.topk_ids_TK, seen.resident_E)
    before = [a.copy() for a in arrays]
    assert ExpertCacheRouter().route(seen).ids_TK.tolist() != seen.topk_ids_TK.tolist()
    for array, copy in zip(arrays, before, strict=True):
        assert array.tolist() == copy.tolist()


def test_a_transfer_under_way_is_no_substitute():
    seen = view([ROW], 3, [], in_flight=[3, 4, 5], of=32, alpha=0.5)
    assert ExpertCacheRouter().route(seen).ids_TK.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_out_of_range(alpha):
    with pytest.raises(UsageError, match=r"alpha is .*allowed: 0 to 1"):
        SMoE(alpha=alpha)


# ---------------------------------------------------------------- first version, §5.4

#: The example of §5.4, tokens {1,2,4}, {1,5,4}, {2,6,7}: S_{k+1} = 4 in every row; expert 4 is
#: low-score (5) in the first two and a rival in the third, where 6 is low-score.  Nothing is on the
#: device and 4 is nobody's top-score expert, so Algorithm 1 itself can replace nothing.
SHARED = [
    [0.5, 12, 9, 4, 5, 0.5, 0.5, 0.5],
    [0.5, 12, 0.5, 4, 5, 9, 0.5, 0.5],
    [0.5, 0.5, 12, 0.5, 4, 0.5, 5, 9],
]


def as_sets(routed):
    """Return each row's experts as a set."""
    return [set(row) for row in routed.ids_TK.tolist()]


def test_the_papers_own_refinement():
    assert as_sets(route(SHARED)) == [{1, 2, 4}, {1, 5, 4}, {2, 6, 7}]
    # 6 serves one token, 4 two: token 3 joins them.  Rows 1 and 2 have only 3 in their bands, which
    # nobody uses, so their 4 stays.
    assert as_sets(route(SHARED, refine=True)) == [{1, 2, 4}, {1, 5, 4}, {2, 4, 7}]
    assert route(SHARED, refine=True).top_score == {1, 2, 5, 7}


def test_the_refinement_leaves_what_more_rows_use():
    # Token 3 twice: 6 serves two tokens, as does 4.  The first leaves 6 (4 has two other tokens, 6
    # one), which makes 4 serve three and 6 one: the second follows.
    assert as_sets(route([*SHARED, SHARED[2]], refine=True))[2:] == [{2, 4, 7}, {2, 4, 7}]
    # One token on 4, two on 6: each of the two has one companion at 6 and would find one at 4.
    two_on_6 = [SHARED[0], SHARED[2], SHARED[2]]
    assert as_sets(route(two_on_6, refine=True)) == [{1, 2, 4}, {2, 6, 7}, {2, 6, 7}]


def test_the_refinement_joins_nobody_who_has_left():
    # A fourth token {0, 5, 3}: 3 is low-score, 6 its rival.  Token 3 has left 6 for 4 by then, so
    # nobody is there to join.  (Nor do tokens 1 and 2 leave 4, which serves two, for 3.)
    fourth = [12, 0.5, 0.5, 5, 0.5, 9, 4, 0.5]
    batch = as_sets(route([*SHARED, fourth], refine=True))
    assert batch == [{1, 2, 4}, {1, 5, 4}, {2, 4, 7}, {0, 5, 3}]


def test_the_refinement_too_replaces_the_weakest_first():
    # Row 1 uses 5 (low-score there, with rival 3).  Row 0 has two low-score experts, 1 (5.5) and 2
    # (5), and can join 5 once: 2, the weaker, gives way.
    other = [0.5, 0.5, 0.5, 4, 0.5, 5, 12, 9]
    assert as_sets(route([ROW, other])) == [{0, 1, 2}, {5, 6, 7}]
    assert as_sets(route([ROW, other], refine=True)) == [{0, 1, 5}, {5, 6, 7}]


# ---------------------------------------------------------------- against a slow reference


def reference(scores, own, resident, alpha: Fraction, *, decode=True):
    """Algorithm 1 as the text of §IV-B tells it, row by row, expert by expert, in fractions.

    Returns the rows and the top-score set.
    """
    experts = range(len(scores[0]))
    rivals, top_set = [], set()
    for row, active in zip(scores, own, strict=True):
        inactive = [row[e] for e in experts if e not in active]
        rivals.append(max(inactive) if inactive else Fraction(0))
        for e in active:
            if row[e] >= (1 + alpha) * rivals[-1]:
                top_set.add(e)
    out = []
    for row, active, rival in zip(scores, own, rivals, strict=True):
        give_way = [
            e
            for e in active
            if rival < row[e] < (1 + alpha) * rival and e not in resident and e not in top_set
        ]
        stand_in = [
            e
            for e in experts
            if e not in active
            and (1 - alpha) * rival < row[e] <= rival
            and (e in resident or e in top_set)
        ]
        stand_in.sort(key=lambda e: (-row[e], e))
        swap = {}
        while decode and alpha and give_way and stand_in:
            swap[give_way.pop()] = stand_in.pop(0)  # the last of best-first is the weakest
        out.append([swap.get(e, e) for e in active])
    return out, top_set


@st.composite
def routings(draw):
    """Generate scores in 64ths (many ties), residency, and α in quarters, so bounds are exact."""
    experts = draw(st.integers(4, 10))
    k = draw(st.sampled_from([1, 2, 3, experts - 1, experts]))
    grid = draw(st.sampled_from([st.integers(5, 11), st.integers(0, 24)]))
    rows = draw(
        st.lists(st.lists(grid, min_size=experts, max_size=experts), min_size=1, max_size=4)
    )
    # The model may break ties in any order.
    breaker = draw(st.permutations(range(experts)))
    own = [sorted(range(experts), key=lambda e: (-row[e], breaker[e]))[:k] for row in rows]
    resident = draw(st.sets(st.integers(0, experts - 1)))
    return rows, own, resident, draw(st.sampled_from([2, 1, 3, 4, 0]))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(routings(), st.sampled_from(["decode", "prefill"]))
def test_the_router_does_what_the_text_says(case, phase):
    rows, own, resident, quarters = case
    exact = [[Fraction(s, 64) for s in row] for row in rows]
    ids, top_set = reference(exact, own, resident, Fraction(quarters, 4), decode=phase == "decode")
    # The engine's scores are fp32; sixty-fourths and quarters are exact there too.
    for kind in np.float64, np.float32:
        scores_TE = np.array(rows, dtype=kind) / 64
        seen = view(scores_TE, len(own[0]), resident, own=own, phase=phase, alpha=quarters / 4)
        assert seen.scores_TE.dtype == kind
        routed = ExpertCacheRouter().route(seen)
        assert routed.ids_TK.tolist() == ids
        if phase == "decode" and quarters:
            assert routed.top_score == top_set


# ---------------------------------------------------------------- invariants


@st.composite
def gates(draw) -> LayerView:
    """Generate views with any softmax, residency and α."""
    experts = draw(st.integers(2, 16))
    rows = draw(st.integers(1, 4))
    logits = np.random.default_rng(draw(st.integers(0, 2**32))).normal(0, 0.5, (rows, experts))
    scores_TE = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    k = draw(st.integers(1, experts))
    resident = draw(st.sets(st.integers(0, experts - 1)))
    return view(scores_TE, k, resident, alpha=draw(st.floats(0, 1)))


def experts_of(ids_TK):
    """Return all experts that any row uses."""
    return set(ids_TK.ravel().tolist())


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(gates(), st.sampled_from(["best", "id"]))
def test_substitution_keeps_its_invariants_for_any_gate(seen, pick):
    resident = set(np.flatnonzero(seen.resident_E).tolist())
    plain = ExpertCacheRouter(pick=pick).route(seen)
    refined = ExpertCacheRouter(pick=pick, refine=True).route(seen)
    check_substitutes(seen, plain, resident)
    check_substitutes(seen, refined, resident | experts_of(refined.ids_TK))
    # Substitution never makes more experts needed from off the device.
    absent, absent_then, absent_refined = (
        experts_of(ids_TK) - resident for ids_TK in (seen.topk_ids_TK, plain.ids_TK, refined.ids_TK)
    )
    assert absent_then <= absent
    assert len(absent_refined) <= len(absent_then)
    # With everything on the device there is nothing to replace, ...
    k = seen.topk_ids_TK.shape[1]
    everywhere = view(seen.scores_TE, k, range(seen.shape.num_experts), alpha=seen.alpha)
    assert ExpertCacheRouter(pick=pick).route(everywhere).ids_TK.tolist() == (
        seen.topk_ids_TK.tolist()
    )
    # ... and a single row off the device has its own top-score experts outside its band.
    single = view(seen.scores_TE[:1], k, alpha=seen.alpha)
    assert ExpertCacheRouter(pick=pick).route(single).ids_TK.tolist() == single.topk_ids_TK.tolist()


def check_substitutes(seen, routed, on_hand):
    """Check that only absent low-score experts are replaced, by resident experts of the band."""
    resident = set(np.flatnonzero(seen.resident_E).tolist())
    top_score, alpha = routed.top_score or set(), seen.alpha
    for row, own, chosen in zip(seen.scores_TE, seen.topk_ids_TK, routed.ids_TK, strict=True):
        outside = [row[e] for e in range(len(row)) if e not in own]
        rival = max(outside, default=0.0)
        assert len(set(chosen)) == len(own)
        for was, now in zip(own.tolist(), chosen.tolist(), strict=True):
            if was == now:
                continue
            assert rival < row[was] < (1 + alpha) * rival
            assert was not in resident | top_score
            assert now not in own
            assert (1 - alpha) * rival < row[now] <= rival
            assert now in on_hand | top_score
    assert routed.weigh_as_TK.tolist() == routed.ids_TK.tolist()


@settings(max_examples=100, deadline=None)
@given(gates(), st.booleans())
def test_alpha_zero_is_the_models_own_choice(seen, refine):
    seen.alpha = 0.0
    router = ExpertCacheRouter(refine=refine)
    routed = router.route(seen)
    assert router.lossless_at(0)
    assert not router.lossless_at(0.01)
    assert routed.ids_TK.tolist() == routed.weigh_as_TK.tolist() == seen.topk_ids_TK.tolist()
    # (1+0)·S_{k+1}: whoever is active scores at least the rival, so all are top-score, which is
    # what None says.
    assert routed.top_score is None


def test_alpha_zero_with_ties_is_the_models_own_choice():
    own = [[5, 0, 3]]
    routed = route([[4] * 8], range(8), alpha=0, own=own)
    assert routed.ids_TK.tolist() == own

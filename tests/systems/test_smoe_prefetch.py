"""§IV-C by hand: only predicted top-score experts, the highest first.  Scores in 32nds, k = 3."""

import numpy as np
import pytest

from moebench.substrate.terms import Lookahead
from moebench.systems.options import build
from moebench.systems.policies.prefetch import NextGate
from moebench.systems.registry import make
from moebench.systems.smoe import TopScorePrefetch
from tests.systems.views import view

#: S_{k+1} = 4: with α = 1/2 expert 0 alone reaches 6; with α = 1/4 (bound 5) also 1 and 2.
ROW = [8, 5.5, 5, 4, 3.5, 3, 2, 1]
#: S_{k+1} = 1: all of 1, 6, 7 are top-score.
OTHER = [1, 12, 1, 1, 1, 1, 9, 6]


def ask(rows, phase="decode", k=3, **options):
    """What is asked for the next layer when its scores are predicted to be ``rows``."""
    seen = view([[1] * len(rows[0])], k, phase=phase)
    predicted = np.array(rows, dtype=np.float32) / 32
    return list(TopScorePrefetch(**options).prefetch(seen, 1, predicted))


def test_only_top_score_experts():
    assert ask([ROW], alpha=0.5) == [0]
    # (1 + 1/4)·4 = 5 is expert 2's score: exactly on the bound counts as top-score.
    assert ask([ROW], alpha=0.25) == [0, 1, 2]
    # (1 + 3/8)·4 = 5.5 is expert 1's.
    assert ask([ROW], alpha=0.375) == [0, 1]
    assert ask([ROW], alpha=1) == [0]  # 8 ≥ 8
    assert ask([[7, 6, 5, 4, 4, 3, 2, 1]], alpha=1) == []


def test_highest_score_first():
    # S_{k+1} = 3; all three reach 4.5.
    assert ask([[5, 3, 9, 3, 2, 2, 8, 0]], alpha=0.5) == [2, 6, 0]
    # Equal scores by id.
    assert ask([[1, 9, 1, 9, 1, 1, 9, 1]], alpha=0.5) == [1, 3, 6]


def test_the_union_over_rows():
    # {0: 8} ∪ {1: 12, 6: 9, 7: 6}; 1 is low-score in the first row and wanted all the same.
    assert ask([ROW, OTHER], alpha=0.5) == [1, 6, 0, 7]
    # An expert that two rows want stands once, where its best score puts it: 0 scores 8 and 12.
    again = [12, 1, 1, 1, 1, 1, 9, 6]
    assert ask([ROW, again], alpha=0.5) == ask([again, ROW], alpha=0.5) == [0, 6, 7]


def test_without_alpha_the_whole_predicted_top_k():
    assert ask([ROW]) == ask([ROW], alpha=0.0) == [0, 1, 2]
    # A tie at S_{k+1}: at α = 0 all of the top-k, ties by id, and no more than k.
    assert ask([[4] * 8], alpha=0.0) == [0, 1, 2]
    # One step wider, none of the tied ones is top-score.
    assert ask([[4] * 8], alpha=0.25) == []


def test_where_every_expert_is_active_all_are_wanted():
    assert ask([[4, 12, 6, 10]], k=4, alpha=1.0) == [1, 3, 2, 0]


def test_the_prefill_pipeline_brings_the_next_layer_by_id():
    assert ask([ROW], phase="prefill", alpha=0.5) == list(range(8))
    seen = view([ROW], phase="prefill")
    assert list(TopScorePrefetch().prefetch(seen, 1, None)) == list(range(8))
    assert list(TopScorePrefetch(prefill=False).prefetch(seen, 1, None)) == []


def test_without_a_prediction_nothing():
    assert list(TopScorePrefetch().prefetch(view([ROW]), 1, None)) == []


def test_what_the_prediction_is_made_of():
    assert TopScorePrefetch().lookahead is Lookahead.LAYER  # through the next layer's attention
    assert TopScorePrefetch(predict="gate").lookahead is Lookahead.GATE
    assert make("prefetch", "none").lookahead is Lookahead.NONE
    assert NextGate().lookahead is Lookahead.GATE


@pytest.mark.parametrize(
    ("settings", "alpha"),
    [
        ({}, 0.25),
        ({"route.alpha": "0.4"}, 0.4),
        ({"route.alpha": "0.4", "prefetch.alpha": "0.1"}, 0.1),
        ({"route.alpha": "0.4", "prefetch.alpha": "0"}, 0.0),
        ({"route": "exact"}, None),  # no α to follow: the whole predicted top-k
        ({"route": "exact", "prefetch.alpha": "0.3"}, 0.3),
    ],
)
def test_alpha_follows_the_routers_unless_given(settings, alpha):
    assert build("smoe", settings).prefetch.alpha == alpha


def test_two_systems_do_not_share_an_alpha():
    assert build("smoe", {"route.alpha": "0.6"}).prefetch.alpha == 0.6
    assert build("smoe").prefetch.alpha == 0.25


def test_next_gate_brings_the_top_k_over_all_rows():
    seen = view([[1] * 8])
    predicted = np.array([ROW, OTHER], dtype=np.float32) / 32
    # Best over rows: 0: 8, 1: 12, 2: 5, 3: 4, 4: 3.5, 5: 3, 6: 9, 7: 6.
    assert list(NextGate().prefetch(seen, 1, predicted)) == [1, 6, 0]
    assert list(NextGate(experts=5).prefetch(seen, 1, predicted)) == [1, 6, 0, 7, 2]
    assert list(NextGate().prefetch(seen, 1, None)) == []

"""SMoE's §IV-C by hand: only predicted top-score experts, best first; scores in 32nds, k = 3."""

import numpy as np
import pytest

from moebench.substrate.errors import UsageError
from moebench.substrate.terms import Lookahead
from moebench.systems.options import build
from moebench.systems.registry import make
from moebench.systems.smoe import TopScorePrefetch
from tests.systems.views import fetched, view

#: S_{k+1} = 4: with α = 1/2 expert 0 alone reaches 6; with α = 1/4 (bound 5) also 1 and 2.
ROW = [8, 5.5, 5, 4, 3.5, 3, 2, 1]
#: S_{k+1} = 1: all of 1, 6, 7 are top-score.
OTHER = [1, 12, 1, 1, 1, 1, 9, 6]


def ask(rows, phase="decode", k=3, system_alpha=0.0, **options):
    """Return the experts fetched for layer 1 when its predicted scores are ``rows``."""
    seen = view([[1] * len(rows[0])], k, phase=phase, alpha=system_alpha)
    forecast = {1: np.array(rows, dtype=np.float32) / 32}
    return fetched(1, TopScorePrefetch(**options).prefetch(seen, forecast))


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
    assert fetched(1, TopScorePrefetch().prefetch(seen, {})) == list(range(8))
    assert fetched(1, TopScorePrefetch(prefill=False).prefetch(seen, {})) == []


def test_no_prediction_prefetches_nothing():
    assert fetched(1, TopScorePrefetch().prefetch(view([ROW]), {})) == []


def test_what_the_prediction_is_made_of():
    def kind(policy):
        return policy.predictor and policy.predictor.lookahead

    assert kind(TopScorePrefetch()) is Lookahead.LAYER  # through the next layer's attention
    assert kind(TopScorePrefetch(predict="gate")) is Lookahead.GATE
    assert kind(make("prefetch", "none")) is kind(make("prefetch", "whole-layer")) is None
    assert kind(make("prefetch", "next-gate")) is Lookahead.GATE


def test_alpha_is_the_systems_unless_given():
    # S_{k+1} = 4: two at 5.5, one at 5, one at 8.
    for alpha, wanted in ((0.0, [0, 1, 2]), (0.375, [0, 1]), (0.5, [0])):
        assert ask([ROW], system_alpha=alpha) == wanted
        assert ask([ROW], system_alpha=0.9, alpha=alpha) == wanted


@pytest.mark.parametrize(
    ("overrides", "in_use"),
    [
        ({}, 0.25),
        ({"alpha": "0.4"}, 0.4),
        ({"alpha": "0"}, 0.0),
        ({"route": "exact"}, 0.0),  # no α to follow: the whole predicted top-k
    ],
)
def test_what_views_hold_as_the_systems_alpha(overrides, in_use):
    system = build("smoe", overrides)
    assert system.prefetch.alpha is None
    assert system.alpha_in_use == in_use
    # The prefetch's own α does not change the system's.
    own = build("smoe", {**overrides, "prefetch.alpha": "0.1"})
    assert (own.prefetch.alpha, own.alpha_in_use) == (0.1, in_use)


def test_two_systems_do_not_share_an_alpha():
    assert build("smoe", {"alpha": "0.6"}).alpha_in_use == 0.6
    assert build("smoe").alpha_in_use == 0.25


@pytest.mark.parametrize("chunks", [0, 65])
def test_chunks_out_of_range(chunks):
    with pytest.raises(UsageError, match=r"prefetch\.chunks"):
        TopScorePrefetch(chunks=chunks)

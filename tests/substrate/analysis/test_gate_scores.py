"""Gate scores by rank, weights of chosen experts, and low scores, of tokens by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from moebench.substrate.analysis.gate_scores import low_scores, score_skew, weight_by_rank
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence


def text(
    *tokens: tuple[Sequence[float], Sequence[int]], prefill: int = 0, layers: int = 1
) -> RoutedSequence:
    """Return a text whose tokens have these scores and choices, in each layer."""
    scores = np.array([[scores] * layers for scores, _ in tokens], np.float16)
    ids = np.array([[ids] * layers for _, ids in tokens])
    return RoutedSequence(ids, prefill, scores)


#: A prompt of one token, and two decoded ones.
TEXT = text(([8, 8, 8, 8], [0, 1]), ([0.5, 0.25, 0.125, 0.125], [0, 1]),
            ([0.25, 0.0, 0.5, 0.25], [2, 0]), prefill=1, layers=2)  # fmt: skip
OTHER = text(([0.0, 0.25, 0.25, 0.5], [3, 2]))
WITHOUT = RoutedSequence(np.zeros((3, 1, 2), int), 0)


def test_scores_by_rank_are_relative_to_the_best() -> None:
    """The decoded tokens' ranks: 1/2 1/4 1/8 1/8 and 1/2 1/4 1/4 0."""
    assert score_skew([TEXT, WITHOUT]).tolist() == [1, 0.5, 0.375, 0.125]
    # The other's 1/2 1/4 1/4 0 counts once beside two tokens of two layers each.
    found = score_skew([TEXT, OTHER])
    assert found == pytest.approx([1, 0.5, (2 * 0.125 + 2 * 0.25 + 0.25) / 5 / 0.5, 0.25 / 5 / 0.5])


def test_weights_of_chosen_experts_sum_to_one() -> None:
    """2/3 and 1/3 of both tokens, whatever their order; the other text's are the same."""
    assert weight_by_rank([TEXT, WITHOUT]) == pytest.approx([2 / 3, 1 / 3])
    even = text(([0.25, 0.25, 0.5, 0.0], [0, 1]))
    assert weight_by_rank([OTHER, even]) == pytest.approx(
        [(2 / 3 + 1 / 2) / 2, (1 / 3 + 1 / 2) / 2]
    )
    assert weight_by_rank([OTHER]).sum() == pytest.approx(1)


def test_low_scores_are_below_the_best_inactive_ones_by_alpha() -> None:
    """Best inactive scores of 1/8 and 1/4: of 1/2 1/4 and 1/2 1/4.

    At α = 0 nothing is below; from 0.5 to 1 the second 1/4 is, below 3/8 and 1/2; at 1.5 all but
    the first 1/2, above 5/16; at 3.5 all.
    """
    shares, weights = low_scores([TEXT, WITHOUT], [0.0, 0.5, 1.0, 1.5, 3.5])
    assert shares.tolist() == [0, 0.25, 0.25, 0.75, 1]
    assert weights == pytest.approx([0, 1 / 6, 1 / 6, 2 / 3, 1])
    # The own choice does not change the scores that it reads.
    assert TEXT.scores_TLE is not None
    assert TEXT.scores_TLE[1, 0].tolist() == [0.5, 0.25, 0.125, 0.125]


@pytest.mark.parametrize(
    "statistic", [score_skew, weight_by_rank, lambda of: low_scores(of, [0.1])]
)
def test_texts_without_decoded_scores_are_refused(statistic: Callable[[Any], Any]) -> None:
    prompt = text(([0.5, 0.25, 0.25, 0.0], [0, 1]), prefill=1)
    for texts in ([], [WITHOUT], [prompt]):
        with pytest.raises(UsageError, match="the routing holds no gate scores of decoded tokens"):
            statistic(texts)

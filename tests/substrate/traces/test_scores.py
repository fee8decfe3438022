"""Gate scores that are reconstructed from ranks, row by row and by hand."""

from math import exp
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest

from moebench.substrate.traces.scores import Reconstruction, by_rank, shared_by_order, spread_of


@pytest.mark.parametrize(
    ("model", "spread"),
    [("Mixtral-8x7B", 1.6), ("deepseek-v2-lite", 1.25), ("gpt-oss-20b", 0.8), ("qwen3-x", 1.0),
     ("gemma-4", 1.15), ("olmoe", 1.1), ("my-qwen3", 1.1)],
)  # fmt: skip
def test_families_have_spreads(model: str, spread: float) -> None:
    assert spread_of(model) == spread


@pytest.mark.parametrize(("experts", "spread"), [(4, 1.0), (9, 1.6), (1, 2.0)])
def test_scores_by_rank_are_softmax_of_order_statistics(experts: int, spread: float) -> None:
    logits = [
        spread * NormalDist().inv_cdf((experts - r + 5 / 8) / (experts + 1 / 4))
        for r in range(1, experts + 1)
    ]
    wanted = [exp(one) / sum(map(exp, logits)) for one in logits]
    found = by_rank(experts, spread)
    np.testing.assert_allclose(found, wanted)
    assert found.sum() == pytest.approx(1)
    assert (np.diff(found) < 0).all()


def test_ranks_of_one_bucket_share_their_scores() -> None:
    ten = np.arange(10, 0, -1, dtype=float)
    assert shared_by_order(ten, "score") is ten
    assert shared_by_order(ten, "id").tolist() == [5.5] * 10
    # Ranks 1 and 2, 3 and 4, 5 to 8, and the rest.
    buckets = [9.5, 9.5, 7.5, 7.5, 4.5, 4.5, 4.5, 4.5, 1.5, 1.5]
    assert shared_by_order(ten, "rank buckets").tolist() == buckets
    assert shared_by_order(ten[:4], "rank buckets").tolist() == [9.5, 9.5, 7.5, 7.5]
    assert shared_by_order(ten[:2], "rank buckets").tolist() == [9.5, 9.5]


def trace(ids, experts: int = 6, order: str = "score", source=None, **arrays):
    """Return the parts of a trace that are read: one layer of ``ids`` ``[T, 1, K]``."""
    ids_TLK = np.array(ids, dtype=np.uint8)
    header = SimpleNamespace(
        num_experts=experts, top_k=ids_TLK.shape[2], ids_order=order, source=source or {}
    )
    known = {name: np.array(array) for name, array in arrays.items()}
    return SimpleNamespace(header=header, ids_TLK=ids_TLK, arrays=known)


def test_chosen_experts_have_their_ranks_scores_and_others_the_rest() -> None:
    ranked = by_rank(6, 1.0)
    rest = (1 - ranked[:2].sum()) / 4
    found = Reconstruction(1.0).scores(trace([[[4, 1]], [[0, 5]], [[2, 3]]]), np.array([2, 0]))
    wanted = np.full((2, 1, 6), rest)
    wanted[0, 0, [2, 3]] = wanted[1, 0, [4, 1]] = ranked[:2]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    by_id = Reconstruction(1.0).scores(trace([[[1, 4]]], order="id"), np.array([0]))
    np.testing.assert_allclose(by_id[0, 0, [1, 4]], [ranked[:2].mean()] * 2, rtol=1e-6)


def test_no_unrecorded_expert_is_above_a_recorded_one() -> None:
    low = trace([[[3, 1]]], source={"top_scores": "of all experts"}, top_scores=[[[0.02, 0.01]]])
    found = Reconstruction(1.0).scores(low, np.array([0]))[0, 0]
    np.testing.assert_allclose(found, [0.01, 0.01, 0.01, 0.02, 0.01, 0.01], rtol=1e-6)
    every = Reconstruction(1.0).scores(trace([[[0, 1]]], experts=2), np.array([0]))
    np.testing.assert_allclose(every[0, 0], by_rank(2, 1.0), rtol=1e-6)


def test_published_scores_of_half_precision_are_shared_in_double_precision() -> None:
    """Half precision would round the sum 0.30005 to 0.3000 and each share to three digits."""
    values = np.array([0.2, 0.1, 0.00005], dtype=np.float16)
    found = Reconstruction(1.0)._published(
        trace([[[3, 1, 2]]], top_scores=np.array([[values]])), np.array([0]), 0.7
    )
    exact = [float(value) for value in values]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found[0, 0], [0.7 * v / sum(exact) for v in exact], rtol=1e-12)


def test_published_scores_are_taken() -> None:
    rows = np.array([0])
    whole = trace([[[3, 1]]], source={"top_scores": "of all experts"}, top_scores=[[[0.5, 0.2]]])
    found = Reconstruction(1.0).scores(whole, rows)
    np.testing.assert_allclose(found[0, 0], [0.075, 0.2, 0.075, 0.5, 0.075, 0.075], rtol=1e-6)
    # As shares of the chosen ones' sum they are scaled to the share of these ranks.
    share = by_rank(6, 1.0)[:2].sum()
    chosen = Reconstruction(1.0).scores(trace([[[3, 1]]], top_scores=[[[3.0, 1.0]]]), rows)
    np.testing.assert_allclose(chosen[0, 0, [3, 1]], [share * 0.75, share * 0.25], rtol=1e-6)
    none = Reconstruction(1.0).scores(trace([[[3, 1]]], top_scores=[[[0.0, 0.0]]]), rows)
    np.testing.assert_array_equal(none, np.zeros((1, 1, 6)))


def test_further_candidates_are_at_most_the_lowest_chosen() -> None:
    given = trace(
        [[[3, 1]]], source={"top_scores": "of all experts"}, top_scores=[[[0.6, 0.15]]],
        candidates=[[[3, 1, 0, 5]]],
    )  # fmt: skip
    found = Reconstruction(1.0).scores(given, np.array([0]))[0, 0]
    ranked = by_rank(6, 1.0)
    assert found[[3, 1]].tolist() == pytest.approx([0.6, 0.15])
    assert found[[0, 5]].tolist() == pytest.approx([min(ranked[2], 0.15), min(ranked[3], 0.15)])
    rest = max(1 - found[[3, 1, 0, 5]].sum(), 0) / 2
    assert found[[2, 4]].tolist() == pytest.approx([min(rest, found[5])] * 2, abs=1e-6)


def test_the_note_names_the_spread() -> None:
    assert "spread 1.25); what depends on scores is an estimate" in Reconstruction(1.25).note

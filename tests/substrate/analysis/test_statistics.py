"""Routing statistics on hand-computed examples, and properties for any routing."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.analysis.gate_scores import low_scores, score_skew, weight_by_rank
from moebench.substrate.analysis.statistics import (
    affinity,
    concentration,
    concentration_within,
    hit_rates,
    lag_overlap,
    lfu_hits,
    lru_hits,
    popularity,
    prediction_by_layer,
    prefill_decode_similarity,
    recall_from_history,
    reuse_by_rank,
    sequence_similarity,
    summary,
    used_share,
    window_similarity,
)
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence

NAN = float("nan")


def one_layer(*tokens: tuple[int, ...], prefill: int = 0) -> RoutedSequence:
    return RoutedSequence(np.array(tokens)[:, None, :], prefill)


# --------------------------------------------------------------------------- by hand


def test_popularity_counts_choices() -> None:
    # Layer 0: expert 0 three times, 1 once, 2 twice; layer 1: always 1 and 3.
    ids = [[[0, 1], [1, 3]], [[2, 0], [3, 1]], [[0, 2], [1, 3]]]
    found = popularity([RoutedSequence(np.array(ids), 1)], 4)
    np.testing.assert_allclose(found, [[3 / 6, 1 / 6, 2 / 6, 0], [0, 1 / 2, 0, 1 / 2]])


def test_concentration_of_equal_and_of_single_use() -> None:
    equal, single = [0.25] * 4, [0, 0, 1.0, 0]
    found = concentration(np.array([equal, single]))
    np.testing.assert_allclose(found["gini"], [0, 3 / 4], atol=1e-12)
    np.testing.assert_allclose(found["entropy"], [1, 0], atol=1e-12)
    np.testing.assert_allclose(found["max_over_mean"], [1, 4])
    np.testing.assert_allclose(found["min_over_mean"], [1, 0])


def test_popularity_within_a_sequence_and_over_all() -> None:
    # Each sequence uses one expert of two, all together both alike.
    sequences = [one_layer((0,), (0,)), one_layer((1,), (1,))]
    assert concentration_within(sequences, 2) == {"gini": 1 / 2, "max_over_mean": 2}
    assert concentration(popularity(sequences, 2))["max_over_mean"] == 1


def test_sequences_are_compared_pair_by_pair() -> None:
    # Uses (2, 0, 0), (1, 1, 0) and (0, 0, 1): cosines 1/√2, 0 and 0; the prompt counts, too.
    sequences = [
        one_layer((0,), (0,), prefill=1),
        one_layer((0,), (1,), prefill=2),
        one_layer((2,)),
    ]
    assert sequence_similarity(sequences, 3) == pytest.approx(2**-0.5 / 3)
    assert np.isnan(sequence_similarity(sequences[:1], 3))


def test_experts_used_by_the_first_tokens() -> None:
    # After two tokens: 0, 1, 2 of four in layer 0 and 3, 0 in layer 1; a short text does not count.
    ids = np.array([[[0, 1], [3, 0]], [[1, 2], [0, 3]], [[2, 3], [1, 2]]])
    long, short = RoutedSequence(ids, 1), RoutedSequence(ids[:1], 1)
    assert used_share([long, short], 4, 1) == 1 / 2
    assert used_share([long, short], 4, 2) == (3 / 4 + 2 / 4) / 2
    assert used_share([long, short], 4, 3) == 1
    assert np.isnan(used_share([long, short], 4, 4))


def test_affinity_is_conditional_on_the_layer_before() -> None:
    # Layer 0 chose expert 0 twice: after it 1 and 2, then 1 and 0; expert 2 was never chosen.
    ids = [[[0, 1], [1, 2]], [[0, 3], [1, 0]]]
    found = affinity([RoutedSequence(np.array(ids), 0)], 4)
    np.testing.assert_allclose(
        found, [[[1 / 4, 2 / 4, 1 / 4, 0], [0, 1 / 2, 1 / 2, 0], [0] * 4, [1 / 2, 1 / 2, 0, 0]]]
    )


def test_affinity_foretells_what_popularity_cannot() -> None:
    # Layer 1 repeats layer 0's expert; both experts are equally popular.
    def sequence(*experts: int) -> RoutedSequence:
        return RoutedSequence(np.array([[[e], [e]] for e in experts]), 0)

    assert recall_from_history([sequence(0, 1, 1, 0), sequence(1, 1, 0, 1)], 2) == (1.0, 0.25)


def test_score_skew_is_relative_to_the_best() -> None:
    scores = np.array([[[0.9, 0.9, 0.9]], [[0.1, 0.6, 0.3]], [[0.2, 0.1, 0.2]]])
    routing = RoutedSequence(
        np.array([[[1]], [[1]], [[0]]]), 1, scores
    )  # the prompt does not count
    np.testing.assert_allclose(score_skew([routing]), [1, 0.5 / 0.8, 0.2 / 0.8])


def test_weights_of_the_chosen_by_rank() -> None:
    # Of the chosen: 0.6 and 0.2, then 0.1 and 0.3; shares of rank one are 3/4 and 3/4.
    scores = np.array([[[0.9, 0.0, 0.1]], [[0.6, 0.2, 0.2]], [[0.6, 0.1, 0.3]]])
    routing = RoutedSequence(np.array([[[0, 1]], [[0, 1]], [[1, 2]]]), 1, scores)
    np.testing.assert_allclose(weight_by_rank([routing]), [3 / 4, 1 / 4])


def test_low_score_experts_lie_within_alpha_of_the_best_inactive_one() -> None:
    # Two active experts; S_{k+1} is 0.2 for each decoded token, whatever expert it belongs to.
    scores = np.array([[[0.9, 0.0, 0.1]], [[0.5, 0.25, 0.2]], [[0.2, 0.23, 0.27]]])
    routing = RoutedSequence(np.array([[[0, 1]], [[0, 1]], [[2, 1]]]), 1, scores)
    share, weight = low_scores([routing, RoutedSequence(np.array([[[0, 1]]]), 0)], (0, 0.2, 0.3))
    # Below 0.24: expert 1 of the second token.  Below 0.26: expert 1 of the first, too.
    np.testing.assert_allclose(share, [0, 1 / 4, 2 / 4])
    np.testing.assert_allclose(weight, [0, 0.23 / 0.5 / 2, (0.25 / 0.75 + 0.23 / 0.5) / 2])


def test_reuse_by_rank() -> None:
    # Decoded tokens after one of prompt; two have three successors each.
    routing = one_layer((7, 6), (0, 1), (1, 2), (3, 4), (5, 0), (2, 1), prefill=1)
    # Token 0: 0 again (yes), 1 again (yes).  Token 1: 1 again (yes), 2 again (yes).
    np.testing.assert_allclose(reuse_by_rank([routing], 8), [1, 1])
    # Within one token: of 0 no, 1 no, 3 no, 5 no by rank one; 1 yes, 2 no, 4 no, 0 no by rank two.
    np.testing.assert_allclose(reuse_by_rank([routing], 8, ahead=1), [0, 1 / 4])


def test_reuse_of_experts_that_were_not_chosen_needs_scores() -> None:
    ids, scores = np.array([[[1]], [[0]]]), np.array([[[0.3, 0.5, 0.2]], [[0.5, 0.4, 0.1]]])
    # Ranks of token 0 are 1, 0, 2; its second-best expert is the next token's choice.
    found = reuse_by_rank([RoutedSequence(ids, 0, scores)], 3, ahead=1)
    np.testing.assert_allclose(found, [0, 1, 0])


def test_lag_overlap() -> None:
    routing = one_layer((9, 8), (0, 1), (1, 2), (2, 1), (0, 3), prefill=1)
    np.testing.assert_allclose(lag_overlap([routing], 1), [(1 + 2 + 0) / 6])
    np.testing.assert_allclose(lag_overlap([routing], 3), [1 / 2])
    assert np.isnan(lag_overlap([routing], 4)).all()


def test_similarity_is_the_cosine_of_use() -> None:
    # Prefill uses experts 0 and 1 equally, decode only 0: cos = 1/√2 in layer 0; layer 1 is equal.
    ids = np.array([[[0], [0]], [[1], [0]], [[0], [0]], [[0], [0]]])
    expected = (2**-0.5 + 1) / 2
    assert prefill_decode_similarity([RoutedSequence(ids, 2)], 2) == pytest.approx(expected)
    assert np.isnan(prefill_decode_similarity([RoutedSequence(ids, 4)], 2))


def test_window_similarity_compares_a_window_with_the_next() -> None:
    # Decoded windows of two: layer 0 uses 0 and 1, then 0 alone, then 1 alone: 1/√2, then 0.
    # Layer 1 uses 0 always: 1 and 1.  The token of prompt and the seventh decoded one do not count.
    layer_0 = [1, 0, 1, 0, 0, 1, 1, 0]
    ids = np.array([[[expert], [0]] for expert in layer_0])
    first, expected = RoutedSequence(ids, 1), (2**-0.5 + 0 + 1 + 1) / 4
    assert window_similarity([first], 2, window=2) == pytest.approx(expected)
    # A sequence counts once, however many its windows; one that decoded a single window does not.
    same, short = RoutedSequence(np.zeros((5, 2, 1), int), 1), RoutedSequence(ids[:4], 1)
    found = window_similarity([first, same, short], 2, window=2)
    assert found == pytest.approx((expected + 1) / 2)
    assert np.isnan(window_similarity([short], 2, window=2))


def test_a_window_is_fifteen_decoded_tokens() -> None:
    # After a token of prompt, 15 choose experts 0 and 2, the others 0 and 1: half is shared.
    def routing(others: int) -> RoutedSequence:
        return one_layer(*[(0, 2)] * 16, *[(0, 1)] * others, prefill=1)

    assert window_similarity([routing(15)], 3) == pytest.approx(1 / 2)
    assert np.isnan(window_similarity([routing(14)], 3))


def test_prediction_counts_the_true_top_k() -> None:
    ids = np.array([[[0, 1], [2, 3]], [[0, 1], [1, 0]]])
    guess = np.array([[[0.1, 0.2, 0.3, 0.4]], [[0.4, 0.1, 0.3, 0.2]]])  # 3, 2; then 0, 2
    predicted = np.concatenate([guess, np.full_like(guess, NAN)], axis=1)
    routing = RoutedSequence(ids, 0, predicted_TLE={"gate": predicted})
    found = prediction_by_layer([routing], "gate")
    np.testing.assert_allclose(found, [NAN, 3 / 4])
    assert np.isnan(prediction_by_layer([routing], "layer")).all()


def test_hit_rates_give_the_first_fill_away() -> None:
    # 0 and 1 in turn through one place: the first miss is free, LRU misses the other three;
    # Belady keeps what it has and misses only the second expert, twice.
    found = hit_rates([one_layer((0,), (1,), (0,), (1,))], [1, 2])
    np.testing.assert_allclose(found["lru"], [1 / 4, 1])
    np.testing.assert_allclose(found["belady"], [2 / 4, 1])


def test_without_decoded_tokens_there_are_no_hit_rates() -> None:
    found = hit_rates([RoutedSequence(one_layer((0,), (1,)).ids_TLK, 2)], [1, 2, 4])
    assert list(found) == ["lru", "lfu", "belady"]
    for rates in found.values():
        np.testing.assert_array_equal(rates, [NAN, NAN, NAN])


def test_each_sequence_has_a_cache_of_its_own() -> None:
    # Expert 0 three times, then in another text expert 1 three times: each first load is free.
    sequences = [one_layer((0,), (0,), (0,)), one_layer((1,), (1,), (1,))]
    for rate in hit_rates(sequences, [1]).values():
        np.testing.assert_allclose(rate, [1])


def test_statistics_without_tokens_or_scores_are_refused() -> None:
    empty = one_layer((0, 1))
    with pytest.raises(UsageError, match="no token"):
        popularity([RoutedSequence(empty.ids_TLK[:0], 0)], 2)
    with pytest.raises(UsageError, match="no token"):
        summary([], 2)
    with pytest.raises(UsageError, match="no gate scores"):
        score_skew([empty])


def test_a_summary_of_ids_alone_says_what_is_unknown() -> None:
    found = summary([one_layer((0, 1), (1, 2), (2, 3), prefill=1)], 4)
    assert found["score_skew"] is None
    assert found["prediction_by_layer"] == {}
    assert found["tokens"] == {"prefill": 1, "decode": 2}
    assert found["window_similarity"] is None
    assert found["lag_overlap"] == {"1": 0.5} | dict.fromkeys(("2", "4", "8", "16", "32"))
    assert found["used"] == dict.fromkeys(("32", "64", "128", "256"))
    assert found["sequence_similarity"] is None
    assert found["weight_by_rank"] == {}
    assert set(found["hit_rates"]) == {"eighth", "quarter", "half", "three_quarters"}
    assert len(found["reuse_by_rank"]) == 2


# --------------------------------------------------------------------------- for any routing


@st.composite
def routings(draw: st.DrawFn) -> tuple[list[RoutedSequence], int]:
    experts = draw(st.integers(2, 8))
    top_k = draw(st.integers(1, experts))
    layers, seed = draw(st.integers(1, 3)), draw(st.integers(0, 10_000))
    lengths = draw(st.lists(st.integers(2, 12), min_size=1, max_size=3))
    random_ = np.random.default_rng(seed)
    sequences = []
    for length in lengths:
        scores = random_.dirichlet(np.ones(experts), size=(length, layers))
        ids = np.argsort(-scores, axis=2)[:, :, :top_k]
        guess = random_.dirichlet(np.ones(experts), size=(length, layers))
        sequences.append(
            RoutedSequence(ids, int(random_.integers(1, length)), scores, {"gate": guess})
        )
    return sequences, experts


@given(routings())
def test_statistics_stay_in_their_ranges(case: tuple[list[RoutedSequence], int]) -> None:
    sequences, experts = case
    np.testing.assert_allclose(popularity(sequences, experts).sum(1), 1)
    rows = affinity(sequences, experts).sum(2)
    assert np.all(np.isclose(rows, 1) | (rows == 0))
    skew = score_skew(sequences)
    assert skew[0] == 1
    assert np.all(np.diff(skew) <= 1e-12)
    spread = concentration(popularity(sequences, experts))
    for name in ("gini", "entropy", "min_over_mean"):
        assert np.all((spread[name] >= -1e-9) & (spread[name] <= 1 + 1e-9))
    assert np.all(spread["max_over_mean"] >= 1 - 1e-9)
    for shares in (
        reuse_by_rank(sequences, experts),
        lag_overlap(sequences, 1),
        np.array([prefill_decode_similarity(sequences, experts)]),
        np.array([window_similarity(sequences, experts, window=3)]),
        prediction_by_layer(sequences, "gate"),
        np.array(recall_from_history(sequences, experts)),
    ):
        known = shares[~np.isnan(shares)]
        assert np.all((known >= 0) & (known <= 1 + 1e-9))


@given(routings())
def test_nobody_beats_belady_and_room_never_harms_it(
    case: tuple[list[RoutedSequence], int],
) -> None:
    sequences, experts = case
    rates = hit_rates(sequences, range(1, experts + 1))
    assert np.all(rates["belady"] >= rates["lru"] - 1e-12)
    assert np.all(rates["belady"] >= rates["lfu"] - 1e-12)
    assert np.all(np.diff(rates["belady"]) >= -1e-12)
    for policy in rates.values():
        assert policy[-1] == 1  # everything fits
        assert np.all((policy >= 0) & (policy <= 1))


@given(routings())
def test_perfect_prediction_scores_one_and_sequence_order_is_irrelevant(
    case: tuple[list[RoutedSequence], int],
) -> None:
    sequences, experts = case
    truth = [
        RoutedSequence(
            s.ids_TLK, s.prefill, s.scores_TLE, {"gate": np.roll(s.scores_TLE, -1, axis=1)}
        )
        for s in sequences
    ]
    assert np.all(prediction_by_layer(truth, "gate")[1:] == 1)
    there, back = (popularity(order, experts) for order in (sequences, sequences[::-1]))
    np.testing.assert_allclose(there, back)


@given(routings())
def test_the_share_used_rises_and_lies_between_one_token_s_and_all(
    case: tuple[list[RoutedSequence], int],
) -> None:
    sequences, experts = case
    top_k = sequences[0].ids_TLK.shape[2]
    longest = [max(sequences, key=lambda s: len(s.ids_TLK))]
    shares = [used_share(longest, experts, n) for n in range(1, len(longest[0].ids_TLK) + 1)]
    assert shares[0] == pytest.approx(top_k / experts)
    assert np.all(np.diff(shares) >= 0)
    assert shares[-1] <= 1


@given(routings(), st.randoms(use_true_random=False))
def test_names_of_experts_do_not_matter(
    case: tuple[list[RoutedSequence], int], random: random.Random
) -> None:
    sequences, experts = case
    names = np.array(random.sample(range(experts), experts))
    renamed = [RoutedSequence(names[s.ids_TLK], s.prefill) for s in sequences]

    def found(of: list[RoutedSequence]) -> list[float]:
        return [
            used_share(of, experts, 2),
            sequence_similarity(of, experts),
            *concentration_within(of, experts).values(),
        ]

    np.testing.assert_allclose(found(renamed), found(sequences), atol=1e-12)


# ----------------------------------------------------------------------------- hits of one cache


def test_lru_and_lfu_hits_match_hand_computation() -> None:
    steps = [[0], [1], [0], [2], [0], [1], [2]]
    # LRU with 2: miss 0, 1; hit 0; 2 evicts 1; hit 0; 1 evicts 2; 2 evicts 0.
    assert lru_hits(steps, 2) == 2
    # LFU: the same, but the last 2 evicts 1, which came last and was used once.
    assert lfu_hits(steps, 2) == 2
    assert lfu_hits([*steps, [0]], 2) == 3
    assert lru_hits([*steps, [0]], 2) == 2


def test_hits_of_an_independent_cache_library() -> None:
    """Hits that libcachesim and reference code gave for the same requests."""
    draws = random.Random(7)
    weights = [1 / (i + 1) ** 0.8 for i in range(64)]
    steps = []
    for _ in range(400):
        step: set[int] = set()
        while len(step) < 8:
            step.add(draws.choices(range(64), weights)[0])
        steps.append(sorted(step))
    assert steps[0] == [0, 1, 3, 4, 7, 10, 11, 18]
    assert sum(map(sum, steps)) == 58599
    assert lru_hits(steps, 16) == 1272
    assert lfu_hits(steps, 16) == 1022


def test_a_text_without_decoded_tokens_is_left_out_of_the_similarity() -> None:
    decoded, not_decoded = one_layer((0,), (0,), prefill=1), one_layer((0,), (1,), prefill=2)
    assert prefill_decode_similarity([decoded, not_decoded], 2) == 1


# ----------------------------------------------------------------------------- one by one


def cosine(these: list[float], those: list[float]) -> float:
    dot = sum(a * b for a, b in zip(these, those, strict=True))
    return dot / (sum(a * a for a in these) * sum(b * b for b in those)) ** 0.5


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else NAN


def use(tokens: list[list[list[int]]], layer: int, experts: int) -> list[float]:
    """Return the share of tokens that chose each expert of a layer."""
    return [sum(e in token[layer] for token in tokens) / len(tokens) for e in range(experts)]


def best(scores: list[float], k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda e: (-scores[e], e))[:k]


Case = tuple[list[RoutedSequence], int]
Text = list[list[list[int]]]


def read(sequences: list[RoutedSequence]) -> tuple[list[Text], list[Text], int, int]:
    """Return all tokens of each text, the decoded ones, the number of layers, and the top-k."""
    texts = [s.ids_TLK.tolist() for s in sequences]
    decoded = [text[s.prefill :] for text, s in zip(texts, sequences, strict=True)]
    return texts, decoded, len(texts[0][0]), len(texts[0][0][0])


few = settings(max_examples=40, deadline=None)


@few
@given(routings())
def test_choices_are_counted_one_by_one(case: Case) -> None:
    sequences, experts = case
    texts, _, layers, _ = read(sequences)
    choices = [[e for text in texts for token in text for e in token[layer]]
               for layer in range(layers)]  # fmt: skip
    shares = [[chosen.count(e) / len(chosen) for e in range(experts)] for chosen in choices]
    np.testing.assert_allclose(popularity(sequences, experts), shares)
    after = np.zeros((max(layers - 1, 0), experts, experts))
    for text in texts:
        for token in text:
            for layer in range(layers - 1):
                for one in token[layer]:
                    for other in token[layer + 1]:
                        after[layer, one, other] += 1
    totals = after.sum(2, keepdims=True)
    np.testing.assert_allclose(
        affinity(sequences, experts), np.divide(after, totals, where=totals > 0, out=after * 0)
    )


@few
@given(routings())
def test_decoded_tokens_are_compared_one_by_one(case: Case) -> None:
    sequences, experts = case
    texts, decoded, layers, k = read(sequences)
    for lag in (1, 2):
        overlap = [
            mean([len({*new[layer]} & {*old[layer]}) / k for text in decoded
                  for new, old in zip(text[lag:], text, strict=False)])
            for layer in range(layers)
        ]  # fmt: skip
        np.testing.assert_allclose(lag_overlap(sequences, lag), overlap)
    similar = [
        mean([cosine(use(text[: s.prefill], layer, experts), use(text[s.prefill :], layer, experts))
              for layer in range(layers)])
        for text, s in zip(texts, sequences, strict=True) if len(text) > s.prefill
    ]  # fmt: skip
    np.testing.assert_allclose(prefill_decode_similarity(sequences, experts), mean(similar))
    windows = []
    for text in decoded:
        parts = [text[at : at + 2] for at in range(0, len(text) - 1, 2)]
        pairs = list(pairwise(parts))
        if pairs:
            windows.append(mean([cosine(use(one, layer, experts), use(other, layer, experts))
                                 for one, other in pairs for layer in range(layers)]))  # fmt: skip
    np.testing.assert_allclose(window_similarity(sequences, experts, window=2), mean(windows))


@few
@given(routings(), st.booleans())
def test_reuse_is_counted_one_by_one(case: Case, scored: bool) -> None:
    sequences, experts = case
    _, decoded, layers, k = read(sequences)
    given_ = sequences if scored else [RoutedSequence(s.ids_TLK, s.prefill) for s in sequences]
    reused: list[list[bool]] = []
    for s, text in zip(sequences, decoded, strict=True):
        for at in range(len(text) - 2):
            for layer in range(layers):
                soon = {*text[at + 1][layer], *text[at + 2][layer]}
                ranked = text[at][layer]
                if scored:
                    row = s.scores_TLE[s.prefill + at][layer].tolist()  # type: ignore[index]
                    ranked = ranked + [e for e in best(row, experts) if e not in ranked]
                reused.append([e in soon for e in ranked])
    wanted = np.mean(reused, axis=0) if reused else np.full(experts if scored else k, NAN)
    np.testing.assert_allclose(reuse_by_rank(given_, experts, ahead=2), wanted)


@few
@given(routings())
def test_predictions_and_scores_are_compared_one_by_one(case: Case) -> None:
    sequences, _ = case
    texts, _, layers, k = read(sequences)
    right: list[list[float]] = [[] for _ in range(layers)]
    for s, text in zip(sequences, texts, strict=True):
        for token, guess in zip(text, s.predicted_TLE["gate"].tolist(), strict=True):
            for layer in range(1, layers):
                right[layer].append(len({*token[layer]} & {*best(guess[layer - 1], k)}) / k)
    np.testing.assert_allclose(prediction_by_layer(sequences, "gate"), list(map(mean, right)))
    gate = [sorted(row, reverse=True) for s in sequences for token in s.scores_TLE[s.prefill :]
            for row in token.tolist()]  # type: ignore[index]  # fmt: skip
    by_rank = np.mean(gate, axis=0)
    np.testing.assert_allclose(score_skew(sequences), by_rank / by_rank[0])


def lru_by_list(steps: list[list[int]], capacity: int) -> int:
    content: list[int] = []
    hits = 0
    for key in (key for step in steps for key in sorted(step)):
        hits += key in content
        content = [*(one for one in content if one != key), key][-capacity:]
    return hits


@few
@given(routings())
def test_hit_rates_and_recall_are_those_counted_one_by_one(
    case: tuple[list[RoutedSequence], int],
) -> None:
    sequences, experts = case
    caches = [
        [token[layer] for token in s.ids_TLK[s.prefill :].tolist()]
        for s in sequences for layer in range(s.ids_TLK.shape[1])
    ]  # fmt: skip
    asked = sum(len(step) for steps in caches for step in steps)
    found = hit_rates(sequences, [1, 3])["lru"]
    for size, rate in zip((1, 3), found, strict=True):
        missed = [
            max(0, sum(map(len, steps)) - lru_by_list(steps, size) - size) for steps in caches
        ]
        assert rate == pytest.approx(1 - sum(missed) / asked)
    layers, k = sequences[0].ids_TLK.shape[1:]
    by_affinity, by_popularity = recall_from_history(sequences, experts)
    if layers < 2 or len(sequences) < 2:
        assert np.isnan([by_affinity, by_popularity]).all()
        return
    known = affinity(sequences[::2], experts), popularity(sequences[::2], experts)
    named, popular = [], []
    for s in sequences[1::2]:
        for token in s.ids_TLK.tolist():
            for layer in range(1, layers):
                likely = sum(known[0][layer - 1][e] for e in token[layer - 1])
                named.append(len({*best(likely.tolist(), k)} & {*token[layer]}) / k)
                popular.append(len({*best(known[1][layer].tolist(), k)} & {*token[layer]}) / k)
    assert (by_affinity, by_popularity) == pytest.approx((mean(named), mean(popular)))


def test_a_summary_names_each_statistic() -> None:
    """Two texts of 40 tokens, of which 10 are the prompt, and 16 experts: each value is stated."""
    draws = np.random.default_rng(5)
    sequences = []
    for _ in range(2):
        scores = draws.dirichlet(np.ones(16), size=(40, 3))
        ids = np.argsort(-scores, axis=2)[:, :, :2]
        guess = draws.dirichlet(np.ones(16), size=(40, 3))
        sequences.append(RoutedSequence(ids, 10, scores, {"normed": guess, "gate": scores}))
    found = summary(sequences, 16)
    spread = concentration(popularity(sequences, 16))
    low_share, low_weight = low_scores(sequences, (0.1, 0.35, 0.6))
    made = {kind: prediction_by_layer(sequences, kind) for kind in ("gate", "normed")}
    recalls = recall_from_history(sequences, 16)
    sizes = {"eighth": 2, "quarter": 4, "half": 8, "three_quarters": 12}
    rates = hit_rates(sequences, [*sizes.values()])
    lags = {lag: lag_overlap(sequences, lag) for lag in (1, 2, 4, 8, 16, 32)}
    assert found == {
        "tokens": {"prefill": 20, "decode": 60},
        "score_skew": rounded(score_skew(sequences)[:4]),
        "weight_by_rank": {str(n): rounded(w) for n, w in
                           zip((1, 2), weight_by_rank(sequences), strict=True)},
        "low_score_experts": rounded(low_share), "low_score_weight": rounded(low_weight),
        "reuse_by_rank": rounded(reuse_by_rank(sequences, 16, ahead=3)[:4]),
        "prefill_decode_similarity": rounded(prefill_decode_similarity(sequences, 16)),
        "window_similarity": rounded(window_similarity(sequences, 16, window=15)),
        "prediction": {kind: rounded(np.nanmean(by_layer)) for kind, by_layer in made.items()},
        "prediction_by_layer": {kind: rounded(by_layer) for kind, by_layer in made.items()},
        "popularity": {name: rounded(by_layer.mean()) for name, by_layer in spread.items()},
        "popularity_within": {name: rounded(value) for name, value in
                              concentration_within(sequences, 16).items()},
        "sequence_similarity": rounded(sequence_similarity(sequences, 16)),
        "used": {"32": rounded(used_share(sequences, 16, 32)), "64": None, "128": None,
                 "256": None},
        "least_used_expert": rounded(spread["min_over_mean"].min()),
        "recall_from_affinity": rounded(recalls[0]), "recall_from_popularity": rounded(recalls[1]),
        "random_overlap": 0.125,
        "lag_overlap": {str(lag): rounded(by_layer.mean()) for lag, by_layer in lags.items()},
        "lag_overlap_by_layer": rounded(lags[1]),
        "hit_rates": {size: {name: rounded(rate[n]) for name, rate in rates.items()}
                      for n, size in enumerate(sizes)},
    }  # fmt: skip
    assert found["lag_overlap"]["32"] is None
    tiny = summary([one_layer((0,), (1,), (0,), prefill=1)], 3)
    assert [*tiny["hit_rates"].values()][:3] == [
        {name: rounded(rate[0]) for name, rate in
         hit_rates([one_layer((0,), (1,), (0,), prefill=1)], [1]).items()}
    ] * 3  # fmt: skip


def rounded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [rounded(one) for one in value.tolist()]
    return None if np.isnan(value) else round(float(value), 4)

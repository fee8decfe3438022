"""Routing statistics of recorded sequences, each with the definition of its paper.

They read plain arrays, so they are equal for a live model and for a recorded trace.

Shape letters: T tokens of a sequence, L MoE layers, K chosen experts a token, E experts.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from moebench.substrate.analysis.bound import belady_misses
from moebench.substrate.analysis.gate_scores import low_scores, score_skew, weight_by_rank
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence

#: The experts that one layer requests for each token.
Steps = Sequence[Sequence[int]]

#: Number of decoded tokens of a window (DAOP, section VI-B).
WINDOW = 15

#: Values of α for the low-score experts of `summary`.
LOW_SCORE_ALPHAS = (0.1, 0.35, 0.6)

#: Numbers of tokens after which `summary` counts used experts, and the lags of its overlaps.
USED_AFTER = (32, 64, 128, 256)
LAGS = (1, 2, 4, 8, 16, 32)

#: Cache sizes of `summary`, in eighths of a layer's experts.
CACHE_SIZES = {"eighth": 1, "quarter": 2, "half": 4, "three_quarters": 6}


def popularity(sequences: Sequence[RoutedSequence], num_experts: int) -> np.ndarray:
    """Return each expert's share of its layer's choices ``[L, E]`` (DuoServe, Eq. 2).

    Raises UsageError: there is no token to count.
    """
    counts_LE = sum(_used(s.ids_TLK, num_experts).sum(0) for s in _any(sequences))
    return np.asarray(counts_LE / np.sum(counts_LE, axis=1, keepdims=True))


def concentration(popularity_LE: np.ndarray) -> dict[str, np.ndarray]:
    """Return four measures of how unevenly each layer uses its experts, each ``[L]``.

    ``gini`` is 0 and ``entropy`` (normalised by ln E) is 1 for equal use; ``max_over_mean`` and
    ``min_over_mean`` are the most and the least used expert's share of the fair share 1/E.
    """
    e = popularity_LE.shape[1]
    ascending = np.sort(popularity_LE, axis=1)
    gini = 2 * (ascending * np.arange(1, e + 1)).sum(1) / e - (e + 1) / e
    logs = np.log(popularity_LE, where=popularity_LE > 0, out=np.zeros_like(popularity_LE))
    entropy = -(popularity_LE * logs).sum(1) / np.log(e) if e > 1 else np.ones(len(popularity_LE))
    return {
        "gini": gini, "entropy": entropy, "max_over_mean": ascending[:, -1] * e,
        "min_over_mean": ascending[:, 0] * e,
    }  # fmt: skip


def concentration_within(sequences: Sequence[RoutedSequence], num_experts: int) -> dict[str, float]:
    """Return mean ``gini`` and ``max_over_mean`` of expert use in one sequence (`concentration`).

    Both are means over layers, then over sequences, of prompt and decoded tokens.  Short sequences
    are more uneven than long ones: compare sequences of one length.

    Raises UsageError: there is no token to count.
    """
    each = [concentration(popularity([s], num_experts)) for s in _any(sequences) if len(s.ids_TLK)]
    return {
        name: float(np.mean([by_name[name].mean() for by_name in each]))
        for name in ("gini", "max_over_mean")
    }


def sequence_similarity(sequences: Sequence[RoutedSequence], num_experts: int) -> float:
    """Return the cosine of a layer's expert use in two sequences, a mean over pairs and layers.

    Use is the share of a sequence's tokens, prompt and decoded, that chose an expert.  NaN for
    fewer than two sequences.
    """
    uses = [_used(s.ids_TLK, num_experts).mean(0) for s in sequences if len(s.ids_TLK)]
    if len(uses) < 2:
        return float("nan")
    return mean_cosine(np.stack(uses))


def mean_cosine(use_NLE: np.ndarray) -> float:
    """Return the cosine of a layer's expert use in two of N texts, a mean over pairs and layers.

    N is at least 2, and every text uses at least one expert of each layer.
    """
    unit_NLE = use_NLE / np.linalg.norm(use_NLE, axis=2, keepdims=True)
    # The squared length of a sum of N unit vectors is N plus twice the cosines of all pairs.
    squared_L = (unit_NLE.sum(0) ** 2).sum(1)
    texts = len(use_NLE)
    # Rounding could make the mean negative for texts without common experts.
    return max(float(np.mean(squared_L - texts) / (texts * (texts - 1))), 0.0)


def affinity(sequences: Sequence[RoutedSequence], num_experts: int) -> np.ndarray:
    """Return P(next layer chooses expert j | a layer chose i) ``[L-1, E, E]`` (DuoServe, Eq. 3).

    Rows of experts that were never chosen are zero; all others sum to one.

    Raises UsageError: there is no token to count.
    """
    together = sum(_together(s.ids_TLK, num_experts) for s in _any(sequences))
    totals = np.sum(together, axis=2, keepdims=True)
    return np.asarray(together / np.where(totals > 0, totals, 1))


def recall_from_history(
    sequences: Sequence[RoutedSequence], num_experts: int
) -> tuple[float, float]:
    """Return recall at k of predictions from affinity alone, and from popularity alone.

    Recall is the share of a layer's choices among the k experts that are likeliest after the
    previous layer's choice, or among the k that are chosen most.  Both are fitted on every second
    sequence and tested on the others; NaN for fewer than two sequences or layers.
    """
    known, rest = sequences[::2], sequences[1::2]
    if not rest or rest[0].ids_TLK.shape[1] < 2:
        return float("nan"), float("nan")
    tested = np.concatenate([s.ids_TLK for s in rest])
    affinity_LEE = affinity(known, num_experts)
    prior_LE = popularity(known, num_experts)
    before, after = tested[:, :-1], tested[:, 1:]
    layers = np.arange(before.shape[1])[None, :, None]
    named = _best(affinity_LEE[layers, before].sum(2), after.shape[2])
    popular = np.broadcast_to(_best(prior_LE[1:], after.shape[2]), after.shape)
    return float(_shared(after, named).mean()), float(_shared(after, popular).mean())


def reuse_by_rank(
    sequences: Sequence[RoutedSequence], num_experts: int, ahead: int = 3
) -> np.ndarray:
    """Return P(an expert is chosen within the next ``ahead`` decoded tokens) by its rank.

    SMoE, Fig. 11 (first version) and Fig. 6 (second).  ``[E]`` if all sequences have scores, else
    ``[K]``: without scores, unchosen experts have no rank.  NaN without decoded tokens.
    """
    scored = all(s.scores_TLE is not None for s in sequences)
    shares = []
    for s in sequences:
        ids_TLK = s.ids_TLK[s.prefill :]
        ranked = _ranked(ids_TLK, s.scores_TLE[s.prefill :]) if scored else ids_TLK  # type: ignore[index]
        tokens = len(ids_TLK) - ahead
        if tokens > 0:
            used = _used(ids_TLK, num_experts)
            soon = np.any([used[i : i + tokens] for i in range(1, ahead + 1)], axis=0)
            reused = np.take_along_axis(soon, ranked[:tokens], axis=2)
            shares.append(reused.reshape(-1, reused.shape[2]))
    if not shares:
        ranks = num_experts if scored or not sequences else sequences[0].ids_TLK.shape[2]
        return np.full(ranks, np.nan)
    return np.asarray(np.concatenate(shares).mean(0))


def used_share(sequences: Sequence[RoutedSequence], num_experts: int, tokens: int) -> float:
    """Return the share of a layer's experts that a sequence's first ``tokens`` tokens use.

    Prompt and decoded tokens count, as a token's routing depends on the text only.  The result is a
    mean over layers and over sequences of that length; NaN if there is none.
    """
    shares = [
        _used(s.ids_TLK[:tokens], num_experts).any(0).mean()
        for s in sequences
        if len(s.ids_TLK) >= tokens
    ]
    return float(np.mean(shares)) if shares else float("nan")


def lag_overlap(sequences: Sequence[RoutedSequence], lag: int) -> np.ndarray:
    """Return the share of experts that a decoded token and the one ``lag`` before share ``[L]``.

    NaN if no sequence is long enough.
    """
    shares = []
    for s in _any(sequences):
        ids = s.ids_TLK[s.prefill :]
        if len(ids) > lag:
            shares.append(_shared(ids[lag:], ids[:-lag]).mean(2))
    if not shares:
        return np.full(sequences[0].ids_TLK.shape[1], np.nan)
    return np.asarray(np.concatenate(shares).mean(0))


def prefill_decode_similarity(sequences: Sequence[RoutedSequence], num_experts: int) -> float:
    """Return the mean cosine of a layer's expert use in prefill and in decode (DAOP, Eq. 1).

    The mean is over the layers of a sequence, then over sequences; NaN without decoded tokens.
    """
    cosines = []
    for s in sequences:
        if 0 < s.prefill < len(s.ids_TLK):
            used = _used(s.ids_TLK, num_experts)
            cosines.append(_cosine(used[: s.prefill].mean(0), used[s.prefill :].mean(0)).mean())
    return float(np.mean(cosines)) if cosines else float("nan")


def window_similarity(
    sequences: Sequence[RoutedSequence], num_experts: int, window: int = WINDOW
) -> float:
    """Return the mean cosine of expert use in successive decode windows (DAOP, section VI-B).

    The paper states the window, 15 tokens, and the measure, but not which windows it compares:
    moebench compares each with the next one.  Windows do not overlap and begin with the first
    decoded token; remaining tokens at the end are left out.  The mean is over the layers and pairs
    of a sequence, then over sequences; NaN if no sequence has two windows.
    """
    cosines = []
    for s in sequences:
        used = _used(s.ids_TLK[s.prefill :], num_experts)
        count = len(used) // window
        if count > 1:
            # Axes: windows, tokens of one, layers, experts.
            windows = used[: count * window].reshape(count, window, *used.shape[1:])
            shares = windows.mean(1)
            cosines.append(_cosine(shares[:-1], shares[1:]).mean())
    return float(np.mean(cosines)) if cosines else float("nan")


def prediction_by_layer(sequences: Sequence[RoutedSequence], lookahead: str) -> np.ndarray:
    """Return the share of a layer's top-k that the layer before predicted ``[L]`` (DAOP, Fig. 5).

    NaN for layers without recorded predictions, such as the first layer.
    """
    layers = _any(sequences)[0].ids_TLK.shape[1]
    found, asked = np.zeros(layers), np.zeros(layers)
    for s in sequences:
        if lookahead in s.predicted_TLE and layers > 1:
            predicted, truth = s.predicted_TLE[lookahead][:, :-1], s.ids_TLK[:, 1:]
            made = ~np.isnan(predicted).any(2)
            right = _shared(truth, _best(predicted, truth.shape[2])).mean(2)
            found[1:] += (right * made).sum(0)
            asked[1:] += made.sum(0)
    return np.asarray(np.where(asked > 0, found / np.maximum(asked, 1), np.nan))


# ----------------------------------------------------------------------------- caches


def hit_rates(sequences: Sequence[RoutedSequence], sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Return decode hit rates of LRU, LFU and Belady caches by ``sizes`` (slots of a layer).

    ``lru``, ``lfu`` and ``belady`` (MIN with bypass) are means over layers and requests.  Each
    sequence has its own cache, so that recordings of one text and of many texts are comparable.  As
    many first misses as a cache has slots are free (placed before).  NaN without decoded tokens.
    """
    decoded = [s.ids_TLK[s.prefill :] for s in _any(sequences)]
    requests = sum(ids.size for ids in decoded)
    if not requests:
        return {name: np.full(len(sizes), np.nan) for name in ("lru", "lfu", "belady")}
    caches: list[list[list[int]]] = [
        steps for ids_TLK in decoded for steps in ids_TLK.transpose(1, 0, 2).tolist()
    ]

    def missed(hits: Callable[[Steps, int], int]) -> Callable[[Steps, int], int]:
        return lambda steps, size: max(0, sum(map(len, steps)) - hits(steps, size) - size)

    policies = {"lru": missed(lru_hits), "lfu": missed(lfu_hits), "belady": belady_misses}
    return {
        name: np.array(
            [1 - sum(misses(steps, size) for steps in caches) / requests for size in sizes]
        )
        for name, misses in policies.items()
    }


def lru_hits(steps: Steps, capacity: int) -> int:
    """Return the number of hits of an LRU cache, which evicts the least recently used expert.

    A step's requests are in the order of their ids, none is protected, and the cache starts empty.
    `substrate.analysis.cache_replay` counts other policies.
    """
    cache = OrderedDict[int, None]()
    hits = 0
    for step in steps:
        for key in sorted(step):
            if key in cache:
                hits += 1
                cache.move_to_end(key)
                continue
            if len(cache) == capacity:
                cache.popitem(last=False)
            cache[key] = None
    return hits


def lfu_hits(steps: Steps, capacity: int) -> int:
    """Return the number of hits of an LFU cache, which evicts the least used, then lowest id.

    Counts start at 1 and are deleted at eviction, as in FlashMoE's comparison.
    """
    counts: dict[int, int] = {}
    hits = 0
    for step in steps:
        for key in sorted(step):
            if key in counts:
                hits += 1
                counts[key] += 1
                continue
            if len(counts) == capacity:
                del counts[min(counts, key=lambda k: (counts[k], k))]
            counts[key] = 1
    return hits


# ----------------------------------------------------------------------------- summary


def summary(sequences: Sequence[RoutedSequence], num_experts: int) -> dict[str, Any]:
    """Return all statistics as plain numbers and lists, with None for missing ones.

    Cache sizes are those of ``CACHE_SIZES``, rounded down, at least one expert.

    Raises UsageError: there is no token to count.
    """
    shares_LE = popularity(sequences, num_experts)
    top_k = sequences[0].ids_TLK.shape[2]
    sizes = [max(1, num_experts * eighths // 8) for eighths in CACHE_SIZES.values()]
    rates = hit_rates(sequences, sizes)
    scored = any(s.scores_TLE is not None and len(s.scores_TLE) > s.prefill for s in sequences)
    low_share, low_weight = low_scores(sequences, LOW_SCORE_ALPHAS) if scored else (None, None)
    weights = weight_by_rank(sequences) if scored else ()
    by_affinity, by_popularity = recall_from_history(sequences, num_experts)
    kinds = sorted({kind for s in sequences for kind in s.predicted_TLE})
    predictions = {kind: prediction_by_layer(sequences, kind) for kind in kinds}
    lags = {lag: lag_overlap(sequences, lag) for lag in LAGS}
    found: dict[str, Any] = _plain(
        {
            "tokens": {
                "prefill": sum(s.prefill for s in sequences),
                "decode": sum(len(s.ids_TLK) - s.prefill for s in sequences),
            },
            "score_skew": score_skew(sequences)[: 2 * top_k] if scored else None,
            "weight_by_rank": {str(rank): weight for rank, weight in enumerate(weights, start=1)},
            "low_score_experts": low_share,
            "low_score_weight": low_weight,
            "reuse_by_rank": reuse_by_rank(sequences, num_experts)[: 2 * top_k],
            "prefill_decode_similarity": prefill_decode_similarity(sequences, num_experts),
            "window_similarity": window_similarity(sequences, num_experts),
            "prediction": {kind: _known_mean(found) for kind, found in predictions.items()},
            "prediction_by_layer": predictions,
            "popularity": {k: v.mean() for k, v in concentration(shares_LE).items()},
            "popularity_within": concentration_within(sequences, num_experts),
            "sequence_similarity": sequence_similarity(sequences, num_experts),
            "used": {str(n): used_share(sequences, num_experts, n) for n in USED_AFTER},
            "least_used_expert": concentration(shares_LE)["min_over_mean"].min(),
            "recall_from_affinity": by_affinity,
            "recall_from_popularity": by_popularity,
            "random_overlap": top_k / num_experts,
            "lag_overlap": {str(lag): by_layer.mean() for lag, by_layer in lags.items()},
            "lag_overlap_by_layer": lags[1],
            "hit_rates": {
                size: {name: rate[i] for name, rate in rates.items()}
                for i, size in enumerate(CACHE_SIZES)
            },
        }
    )
    return found


def _plain(value: Any) -> Any:
    """Convert arrays to lists, round numbers to four decimals, and replace NaN by None."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return None if np.isnan(value) else round(float(value), 4)
    return value


# ----------------------------------------------------------------------------- helpers


def _known_mean(values: np.ndarray) -> float:
    """Return the mean of all values that are not NaN, or NaN if there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _any(sequences: Sequence[RoutedSequence]) -> Sequence[RoutedSequence]:
    if not sum(len(s.ids_TLK) for s in sequences):
        raise UsageError("the routing holds no token; record at least one")
    return sequences


def _used(ids_TLK: np.ndarray, num_experts: int) -> np.ndarray:
    """Return a boolean array of the experts that each token chose ``[T, L, E]``."""
    used = np.zeros((*ids_TLK.shape[:2], num_experts), dtype=bool)
    np.put_along_axis(used, ids_TLK, True, axis=2)
    return used


def _together(ids_TLK: np.ndarray, num_experts: int) -> np.ndarray:
    """Return how often two neighbouring layers chose each pair of experts ``[L-1, E, E]``."""
    used = _used(ids_TLK, num_experts).astype(np.float32).transpose(1, 2, 0)
    return np.asarray(used[:-1] @ used[1:].transpose(0, 2, 1), dtype=np.float64)


def _cosine(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """Return the cosine over the last axes of two arrays without zero vectors."""
    norms = np.linalg.norm(these, axis=-1) * np.linalg.norm(those, axis=-1)
    return np.asarray((these * those).sum(-1) / norms)


def _best(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the ids of the k highest scores on the last axis; ties to the lowest id."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k]


def _ranked(ids_TLK: np.ndarray, scores_TLE: np.ndarray) -> np.ndarray:
    """Return all expert ids by rank ``[T, L, E]``: the chosen ones first, in their order."""
    k = ids_TLK.shape[2]
    scores = scores_TLE.astype(np.float64)
    chosen = scores.max() + np.arange(k, 0, -1, dtype=np.float64) if scores.size else np.zeros(k)
    np.put_along_axis(scores, ids_TLK, np.broadcast_to(chosen, ids_TLK.shape), axis=2)
    return _best(scores, scores.shape[2])


def _shared(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """Return a boolean array: which ids in ``these`` ``[..., K]`` are in ``those`` ``[..., N]``."""
    return np.asarray((these[..., :, None] == those[..., None, :]).any(-1))

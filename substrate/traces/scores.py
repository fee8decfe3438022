"""Reconstruction of gate scores for traces with ids only: the mean score by rank of a family.

Logits of E experts are assumed normal with a standard deviation ``spread``; the expert of rank r
has the softmax of the expected r-th largest logit.  One number of a family thus determines the
scores of all ranks.  The spreads were fitted to published weights by rank of real traces (mean
share of the applied weight: DeepSeek-V2-Lite .33/.20/.15/.12/.10/.09, gpt-oss-20b
.35/.26/.21/.17, Mixtral-8x7B .72/.28, Qwen3-30B-A3B .27/.20/.16/.14/.12/.10).

A reconstruction has no differences between tokens.  Experts that were not recorded share the
remaining score equally, and so do ranks that are not known because ids are listed by id or bucket.
If a source published the chosen experts' scores, these are used.
"""

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from moebench.substrate.traces.file import IdsOrder, TraceFile

#: Standard deviation of a gate's logits, by the prefix of a model's name.
SPREADS = {"mixtral": 1.6, "deepseek": 1.25, "gpt-oss": 0.8, "qwen3": 1.0, "gemma": 1.15}
DEFAULT_SPREAD = 1.1

#: Ends of the rank buckets.
BUCKETS = (2, 4, 8, 16)


def spread_of(model: str) -> float:
    """Return the standard deviation of gate logits for a model's family, or the default."""
    found = (s for name, s in SPREADS.items() if model.lower().startswith(name))
    return next(found, DEFAULT_SPREAD)


@lru_cache
def by_rank(experts: int, spread: float) -> np.ndarray:
    """Return expected gate scores by rank ``[E]``, best first, with sum 1.

    They follow Blom's expected order statistics: the r-th largest of n is the quantile at
    (n - r + 5/8) / (n + 1/4).
    """
    normal = NormalDist()
    places = [(experts - r + 0.625) / (experts + 0.25) for r in range(1, experts + 1)]
    raised = np.exp(spread * np.array([normal.inv_cdf(p) for p in places]))
    return np.asarray(raised / raised.sum())


def shared_by_order(by_rank_K: np.ndarray, order: IdsOrder) -> np.ndarray:
    """Return scores by column of a trace's ids; ranks in one bucket have their mean score."""
    if order == "score":
        return by_rank_K
    ends = [e for e in BUCKETS if e < len(by_rank_K)] if order == "rank buckets" else []
    parts = np.split(by_rank_K, ends)
    return np.concatenate([np.full(len(part), part.mean()) for part in parts])


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """Reconstruction of gate scores from ranks, with one logit spread for a model family."""

    spread: float

    def scores(self, trace: TraceFile, rows: np.ndarray) -> np.ndarray:
        """Return reconstructed scores ``[T, L, E]`` for rows of a trace, float32."""
        header = trace.header
        known_TLC = trace.arrays.get("candidates", trace.ids_TLK)[rows].astype(np.int64)
        ranked = by_rank(header.num_experts, self.spread)[: known_TLC.shape[2]]
        columns = shared_by_order(ranked, header.ids_order)
        values_TLC = np.broadcast_to(columns, known_TLC.shape)
        if "top_scores" in trace.arrays:
            chosen_TLK = trace.ids_TLK[rows].astype(np.int64)
            share = float(ranked[: header.top_k].sum())
            published_TLK = self._published(trace, rows, share)
            # Other candidates have their rank's score, but at most the lowest chosen score.
            scores_TLE = np.zeros((*known_TLC.shape[:2], header.num_experts))
            below_TLC = np.minimum(values_TLC, published_TLK.min(2)[..., None])
            np.put_along_axis(scores_TLE, known_TLC, below_TLC, axis=2)
            np.put_along_axis(scores_TLE, chosen_TLK, published_TLK, axis=2)
            values_TLC = np.take_along_axis(scores_TLE, known_TLC, axis=2)
        rest_TL = np.maximum(1 - values_TLC.sum(2), 0) / max(
            1, header.num_experts - known_TLC.shape[2]
        )
        # An expert that was not recorded must not have a higher score than a recorded one.
        rest_TL = np.minimum(rest_TL, values_TLC.min(2))
        shape = (*known_TLC.shape[:2], header.num_experts)
        scores_TLE = np.broadcast_to(rest_TL[..., None], shape).astype(np.float32)
        np.put_along_axis(scores_TLE, known_TLC, values_TLC.astype(np.float32), axis=2)
        return scores_TLE

    def _published(self, trace: TraceFile, rows: np.ndarray, share: float) -> np.ndarray:
        """Return the published scores of the chosen experts as shares of all experts' scores."""
        values = np.asarray(trace.arrays["top_scores"][rows], dtype=np.float64)
        over_all = trace.header.source.get("top_scores") == "of all experts"
        totals = values.sum(2, keepdims=True)
        return values if over_all else share * values / np.where(totals > 0, totals, 1)

    @property
    def note(self) -> str:
        """Note in a run's document that scores were reconstructed."""
        return (
            "gate scores were not recorded: reconstructed by rank (softmax of expected normal "
            f"order statistics, spread {self.spread:g}); what depends on scores is an estimate"
        )

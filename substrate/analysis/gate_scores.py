"""Statistics of the gate's scores in recorded sequences.

Shape letters: E experts, K chosen experts a token.
"""

from collections.abc import Sequence

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence


def score_skew(sequences: Sequence[RoutedSequence]) -> np.ndarray:
    """Return decoded tokens' mean gate score by rank ``[E]``, relative to rank 1 (SMoE, Fig. 4).

    Raises UsageError: no sequence has scores of decoded tokens.
    """
    rows = [s.scores_TLE[s.prefill :] for s in sequences if s.scores_TLE is not None]
    if not sum(map(len, rows)):
        raise UsageError("the routing holds no gate scores of decoded tokens")
    experts = rows[0].shape[2]
    flat = np.concatenate([scores.reshape(-1, experts) for scores in rows]).astype(np.float64)
    by_rank = np.sort(flat, axis=1)[:, ::-1].mean(0)
    return np.asarray(by_rank / by_rank[0])


def weight_by_rank(sequences: Sequence[RoutedSequence]) -> np.ndarray:
    """Return the share of decoded tokens' expert weights by rank of the chosen expert ``[K]``.

    Weights of a token and layer are its chosen experts' scores, normalised to sum to one.  Unlike
    `score_skew`, this needs no scores of experts that were not chosen.

    Raises UsageError: no sequence has scores of decoded tokens.
    """
    rows = []
    for s in sequences:
        if s.scores_TLE is not None and len(s.scores_TLE) > s.prefill:
            scores, ids = s.scores_TLE[s.prefill :].astype(np.float64), s.ids_TLK[s.prefill :]
            rows.append(np.take_along_axis(scores, ids, axis=2).reshape(-1, ids.shape[2]))
    if not rows:
        raise UsageError("the routing holds no gate scores of decoded tokens")
    weights_NK = np.sort(np.concatenate(rows), axis=1)[:, ::-1]
    return np.asarray((weights_NK / weights_NK.sum(axis=1, keepdims=True)).mean(0))


def low_scores(
    sequences: Sequence[RoutedSequence], alphas: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return SMoE's low-score experts as shares of the active ones and of their scores, by α.

    A low-score expert is active, with a score below (1+α) times the best inactive one's (SMoE,
    Eq. 1).  SMoE can substitute it if it is not on the device.

    Returns:
        the low-score experts' share of the decoded tokens' active experts, and their share of the
        active experts' scores, each ``[len(alphas)]``.

    Raises UsageError: no sequence has scores of decoded tokens.
    """
    own, rival = [], []
    for s in sequences:
        if s.scores_TLE is not None and len(s.scores_TLE) > s.prefill:
            scores, ids = s.scores_TLE[s.prefill :].astype(np.float64), s.ids_TLK[s.prefill :]
            own.append(np.take_along_axis(scores, ids, axis=2).reshape(-1, ids.shape[2]))
            np.put_along_axis(scores, ids, -np.inf, axis=2)
            rival.append(scores.max(axis=2).reshape(-1, 1))
    if not own:
        raise UsageError("the routing holds no gate scores of decoded tokens")
    own_NK, rival_N1 = np.concatenate(own), np.concatenate(rival)
    low = [own_NK < (1 + alpha) * rival_N1 for alpha in alphas]
    weights = own_NK / own_NK.sum(axis=1, keepdims=True)
    return (
        np.array([low_NK.mean() for low_NK in low]),
        np.array([(weights * low_NK).sum(axis=1).mean() for low_NK in low]),
    )

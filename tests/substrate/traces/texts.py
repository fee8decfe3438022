"""Random routing as calibration texts."""

from collections.abc import Collection

import numpy as np

from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Learnt, RoutedSequence


def routed_text(
    shape: ModelShape, tokens: int, prefill: int, learns_from: Collection[Learnt], seed: int = 0
) -> RoutedSequence:
    """Return one random text with exactly the data that a policy trains on."""
    random = np.random.default_rng(seed)
    layers = len(shape.moe_layers)
    scores_TLE = random.dirichlet(np.full(shape.num_experts, 4.0), (tokens, layers))
    hidden_TLH = random.standard_normal((tokens, layers, shape.hidden_size))
    embedding_H = random.standard_normal(shape.hidden_size)
    embedding_TH = random.standard_normal((tokens, shape.hidden_size)).astype(np.float16)
    return RoutedSequence(
        np.argsort(-scores_TLE, axis=2)[..., : shape.top_k],
        prefill,
        scores_TLE.astype(np.float16) if "scores" in learns_from else None,
        hidden_TLH=hidden_TLH.astype(np.float16) if "hidden" in learns_from else None,
        embedding_H=embedding_H.astype(np.float16) if "embedding" in learns_from else None,
        embedding_TH=embedding_TH if "token_embeddings" in learns_from else None,
    )

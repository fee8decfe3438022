"""Calibration routing, and untrained networks."""

from itertools import pairwise

import numpy as np

from moebench.systems.learn.eviction_network import Network


def one_layer(*tokens):
    """Return a sequence with routing of one layer ``[T, 1, K]``."""
    return np.array(tokens).reshape(len(tokens), 1, -1)


def routed(tokens=120, layers=2, experts=8, seed=0):
    """Return top-2 routing: one choice alternates between experts 0 and 1, the other is random."""
    chance = np.random.default_rng(seed)
    ids = np.empty((tokens, layers, 2), dtype=np.int64)
    ids[:, :, 0] = (np.arange(tokens) % 2)[:, None]
    ids[:, :, 1] = chance.integers(2, experts, (tokens, layers))
    return ids


def random_network(layers, experts, hidden=128, seed=0):
    chance = np.random.default_rng(seed)
    widths = [2 * experts, hidden, hidden // 2, experts]
    return Network(
        [chance.normal(0, 0.2, (layers, *w)).astype("f4") for w in pairwise(widths)],
        [chance.normal(0, 0.2, (layers, w)).astype("f4") for w in widths[1:]],
    )

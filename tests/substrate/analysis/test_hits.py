"""Hits of one cache, worked by hand and counted by another library."""

import random

from moebench.substrate.analysis.hits import lfu_hits, lru_hits


def test_caches_by_hand() -> None:
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

"""Hits of one small cache on recorded requests, for the routing statistics.

A step's requests come in the order of their ids, none is pinned, and the cache starts empty.  What
systems do with slots is in `substrate.memory.cache`; `substrate.analysis.cache_replay` replays any
policy.
"""

from collections import OrderedDict
from collections.abc import Sequence

#: Steps (tokens) of the experts that each requests.
Steps = Sequence[Sequence[int]]


def lru_hits(steps: Steps, capacity: int) -> int:
    """Hits of a cache that evicts what was not used for longest."""
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
    """Hits of a cache that evicts what was used least often since it came; ties to the lowest id.

    Counts start at 1 and are dropped at eviction, as in FlashMoE's comparison.
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

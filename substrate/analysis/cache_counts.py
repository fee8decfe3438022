"""Hit rates of cache policies on recorded routing, under each of the definitions that are in use.

A *hit* is a chosen expert that has a slot when its layer's gate is known.  What differs is around
it:

- ``steps``: as a system without prefetching counts (`substrate.analysis.cache_replay`,
  ``docs/caches.md``).  A step's experts are asked for together and protect each other; prefill and
  decode; sequences go through one cache.
- ``requests``: the same, each request by itself, nothing protected: the textbook's cache.
- ``statistics``: as `substrate.analysis.statistics.hit_rates` and `moebench trace info` count.
  Single requests of decode alone, a cache of its own for each sequence and layer, whose first
  misses, as many as it has slots, are free: they stand for what was placed before.  Belady's is
  `substrate.analysis.bound.belady_misses` there: whole steps, with bypass.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from moebench.substrate.analysis.bound import belady_misses
from moebench.substrate.analysis.cache_replay import Replayed, Step, replay, requests, token_steps
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence

Counting = Literal["steps", "requests", "statistics"]
COUNTINGS = get_args(Counting)

#: Makes the policy anew.
Make = Callable[[], Eviction]


def hit_rate(
    make: Make, sequences: Sequence[RoutedSequence], shape: ModelShape, slots: int,
    counting: Counting = "steps", scope: Scope = "layer",
) -> float:  # fmt: skip
    """A policy's hits over requests.

    Args:
        shape: layers, experts and top-k (`cache_replay.topology`).
        slots: experts that a layer holds; with ``scope="global"`` so many times the layers, lent
            to all of them.

    Raises:
        UsageError: nothing was decoded, where decode alone counts; or the policy needs more than
            ids; or a scope that this counting does not have.
    """
    if counting == "statistics":
        return _of_statistics(make, sequences, shape, slots, scope)
    steps = [_steps(s.ids_TLK, counting) for s in sequences]
    return replay(make(), steps, shape, slots * shape.num_layers, scope).hit_rate


def _steps(ids_TLK: np.ndarray, counting: Counting) -> list[Step]:
    steps = token_steps(ids_TLK)
    return steps if counting == "steps" else requests(steps)


def _of_statistics(
    make: Make, sequences: Sequence[RoutedSequence], shape: ModelShape, slots: int, scope: Scope
) -> float:
    if scope != "layer":
        raise UsageError("--count statistics: has a cache a layer; leave --scope out")
    decoded = [s.ids_TLK[s.prefill :] for s in sequences]
    asked, missed = 0, 0
    for ids_TLK in (ids for ids in decoded if len(ids)):
        asked += ids_TLK.size
        policy = make()
        if policy.clairvoyant:
            layers = ids_TLK.transpose(1, 0, 2).tolist()
            missed += sum(belady_misses(steps, slots) for steps in layers)
            continue
        done = replay(policy, [_steps(ids_TLK, "requests")], shape, slots * shape.num_layers)
        missed += sum(max(0, count - slots) for count in _missed(done))
    if not asked:
        raise UsageError("--count statistics: the trace decodes no token; count steps instead")
    return 1 - missed / asked


def _missed(done: Replayed) -> list[int]:
    """By layer."""
    return [asked - hits for asked, hits in zip(done.requests, done.hits, strict=True)]

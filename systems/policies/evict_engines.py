"""Eviction rules of engines of 2026: LFRU, Least-Stale and DALI's workload-aware window.

    engine and code                               moebench
    ───────────────                               ────────
    vLLM PR 37190, CachedWeightProvider           LFRU, ``evict.reading=vllm``
    e1n00r/tinyserve 9277e68, LFRUPolicy          LFRU, ``evict.reading=tinyserve``
      LeastStalePolicy                            LeastStale, ``evict.reading=tinyserve``
      DALIPolicy                                  WorkloadAware
    SpecMD, arXiv 2602.03921                      LeastStale: three readings of its rule
    DALI, arXiv 2602.03495                        WorkloadAware

All of them count *accesses*: a hit, or the insertion of a missing expert.  So the order of a
layer's accesses matters, and the engines do not agree on it (`AccessOrder`).

Deviations and readings:

- The engine protects all experts of a layer until the layer ends.  vLLM does so too.  In tinyserve
  a miss can evict an expert of the same token and layer, which is then copied again when it is
  needed.  ``trace caches --count requests`` protects none.
- An expert that another policy computes on the host is no access: these rules never see it arrive.
- A rule has one state for each pool of slots: with ``scope=layer`` a clock, a window and queues for
  each layer, as vLLM has; with ``scope=global`` one of each, as tinyserve has.
- A count of hits (``trace caches``) knows neither the order of the router nor the phase: experts
  come by ascending id, and the pass of a prompt counts as one token.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from moebench.substrate.engine.decisions import LayerView
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import first, pools


class Rule(ABC):
    """State of an eviction rule in one pool of slots."""

    def begin_token(self) -> None:
        """Called when a decoded token begins, before its first access."""

    @abstractmethod
    def hit(self, key: int) -> None:
        """Count an access to a resident expert."""

    @abstractmethod
    def insert(self, key: int) -> None:
        """Add an expert that has got a slot, which is an access."""

    @abstractmethod
    def remove(self, key: int) -> None:
        """Remove an expert that has lost its slot."""

    @abstractmethod
    def choose(self, allowed: Mask) -> int | None:
        """Return the allowed key to evict, or None if none is allowed."""


@dataclass(kw_only=True)
class AccessOrder(Eviction):
    """Base of rules that count accesses, which it passes to a `Rule` in an engine's order.

    ``by-id``: ascending ids, hits and misses as they come (vLLM).  ``by-rank``: the router's order;
    for a single token all hits come first, then the misses; for more rows experts come in the
    order in which the rows name them first, hits and misses as they come (tinyserve).
    """

    reads_scores = False

    def order(self) -> Literal["by-id", "by-rank"]:
        """Return the order of a layer's accesses."""
        return "by-rank"

    @abstractmethod
    def rule(self, shape: ModelShape, keys: int) -> Callable[[int], Rule]:
        """Return what makes the rule of a pool from its number of slots.

        Args:
            keys: the number of all keys.
        """

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Create the rule of each pool, without experts."""
        self._experts, self._first = shape.num_experts, shape.moe_layers[0]
        self._only_layer = len(shape.moe_layers) == 1
        keys = shape.num_layers * shape.num_experts
        self._rules = pools(shape, cache, self.rule(shape, keys))
        self._each_rule = list({id(rule): rule for rule in self._rules}.values())
        self._inside = bytearray(keys)
        #: The keys that the layer uses, in the order of their accesses; the position of each; and
        #: how many accesses have been counted.
        self._turn: list[int] = []
        self._at: dict[int, int] = {}
        self._counted = 0
        #: The router's order of the layer's experts; unknown in a count of hits.
        self._rank: Mapping[int, int] = {}
        self._single, self._before = True, -1

    def observe(self, view: LayerView) -> None:
        """Note the order in which the rows name the experts, and whether there is one row."""
        named = dict.fromkeys(view.topk_ids_TK.ravel().tolist())
        self._rank = {expert: rank for rank, expert in enumerate(named)}
        self._single = len(view.topk_ids_TK) == 1

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Put the layer's accesses in order; they are counted up to each miss when it arrives."""
        self._count_until(len(self._turn))
        if layer == self._first and (self._only_layer or self._before != layer) and self._single:
            for rule in self._each_rule:
                rule.begin_token()
        self._before = layer
        base, last = layer * self._experts, len(self._rank)
        if self.order() == "by-id":
            self._turn = [base + expert for expert in sorted(experts)]
        else:
            ranked = sorted(experts, key=lambda expert: self._rank.get(expert, last))
            self._turn = [base + expert for expert in ranked]
            if self._single:
                self._turn.sort(key=lambda key: not self._inside[key])
        self._at = {key: at for at, key in enumerate(self._turn)}
        self._counted = 0

    def arrived(self, key: int) -> None:
        """Insert the expert, after the accesses that come before it."""
        self._count_before(key)
        self._counted = max(self._counted, self._at.get(key, -1) + 1)
        self._inside[key] = 1
        self._rules[key].insert(key)

    def left(self, key: int) -> None:
        """Remove the expert."""
        self._inside[key] = 0
        self._rules[key].remove(key)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the key that the rule evicts after the accesses that come before the new one."""
        self._count_before(incoming)
        return self._rules[incoming].choose(allowed)

    def _count_before(self, key: int) -> None:
        """Count the accesses before an expert's own; all of the layer's before a prefetched one."""
        self._count_until(self._at.get(key, len(self._turn)))

    def _count_until(self, end: int) -> None:
        for key in self._turn[self._counted : end]:
            if self._inside[key]:
                self._rules[key].hit(key)
        self._counted = max(self._counted, end)


# ----------------------------------------------------------------------------- LFRU


def lfru_victim(count_N: np.ndarray, last_N: np.ndarray, inserted_N: np.ndarray, clock: int) -> int:
    """Return the index of the expert with the least count / (clock - last + 1).

    Of equal scores the one inserted first is evicted.

    Args:
        count_N: accesses of each expert since its insertion, which is the first.
        last_N: the clock at each expert's last access.
        inserted_N: the clock at each expert's insertion.
        clock: the number of accesses so far.
    """
    score_N = count_N / (clock - last_N + 1)
    least = np.flatnonzero(score_N == score_N.min())
    return int(least[inserted_N[least].argmin()])


class _FrequencyOverAge(Rule):
    """LFRU in one pool.  The vectors of all keys are shared with the other pools."""

    def __init__(self, count: np.ndarray, last: np.ndarray, inserted: np.ndarray) -> None:
        self._count, self._last, self._inserted = count, last, inserted
        self._clock = 0

    def hit(self, key: int) -> None:
        self._clock += 1
        self._count[key] += 1
        self._last[key] = self._clock

    def insert(self, key: int) -> None:
        self._clock += 1
        self._count[key] = 1
        self._last[key] = self._inserted[key] = self._clock

    def remove(self, key: int) -> None:
        """Do nothing: an insertion begins the count anew."""

    def choose(self, allowed: Mask) -> int | None:
        keys = allowed.nonzero()[0]
        if not len(keys):
            return None
        of = self._count[keys], self._last[keys], self._inserted[keys]
        return int(keys[lfru_victim(*of, self._clock)])


@dataclass(kw_only=True)
class LFRU(AccessOrder):
    """Frequency-weighted LRU: evicts the least count / (clock - last access + 1).

    The count begins with the insertion; the clock counts accesses.  Ties go to the expert inserted
    first.

    Attributes:
        reading: whose order of accesses: ``vllm``, ascending ids, or ``tinyserve``, a token's hits
            before its misses, both in the router's order (`AccessOrder`).
    """

    reading: Literal["vllm", "tinyserve"] = "vllm"

    def order(self) -> Literal["by-id", "by-rank"]:
        """Return the order of the engine that ``reading`` names."""
        return "by-id" if self.reading == "vllm" else "by-rank"

    def rule(self, shape: ModelShape, keys: int) -> Callable[[int], Rule]:
        """Return what makes a pool's LFRU."""
        count, last, inserted = np.zeros((3, keys), dtype=np.int64)
        return lambda slots: _FrequencyOverAge(count, last, inserted)


# ----------------------------------------------------------------------------- Least-Stale


class _StaleFirst(Rule):
    """Two queues: experts that this token has not used (stale), and those that it has (fresh)."""

    def __init__(self) -> None:
        self.stale, self.fresh = OrderedDict[int, None](), OrderedDict[int, None]()

    def begin_token(self) -> None:
        self.stale.update(self.fresh)
        self.fresh.clear()

    def hit(self, key: int) -> None:
        if key in self.stale:
            del self.stale[key]
            self.fresh[key] = None

    def insert(self, key: int) -> None:
        self.fresh[key] = None

    def remove(self, key: int) -> None:
        self.stale.pop(key, None)
        self.fresh.pop(key, None)

    def choose(self, allowed: Mask) -> int | None:
        found = first(self.stale, allowed)
        return first(self.fresh, allowed) if found is None else found


class _LowestLayer(Rule):
    """The lowest layer first; within it the expert inserted first."""

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._held = OrderedDict[int, None]()

    def hit(self, key: int) -> None:
        """Do nothing: the layer of an expert does not change."""

    def insert(self, key: int) -> None:
        self._held[key] = None

    def remove(self, key: int) -> None:
        self._held.pop(key, None)

    def choose(self, allowed: Mask) -> int | None:
        layers = ((key // self._experts, key) for key in self._held if allowed[key])
        found = min(layers, key=lambda pair: pair[0], default=None)
        return None if found is None else found[1]


#: Weight of the latest interval in the moving average of an expert's intervals.
LATEST = 0.25


class _LongestInterval(Rule):
    """The farthest last access + max(1, average interval); ties to the most recent access."""

    def __init__(self, last: np.ndarray, interval: np.ndarray) -> None:
        self._last, self._interval = last, interval
        self._clock = -1

    def hit(self, key: int) -> None:
        self._clock += 1
        latest, average = self._clock - self._last[key], self._interval[key]
        self._interval[key] = (1 - LATEST) * average + LATEST * latest if average else latest
        self._last[key] = self._clock

    def insert(self, key: int) -> None:
        self._clock += 1
        self._last[key], self._interval[key] = self._clock, 0

    def remove(self, key: int) -> None:
        """Do nothing: an insertion begins anew."""

    def choose(self, allowed: Mask) -> int | None:
        keys = allowed.nonzero()[0]
        if not len(keys):
            return None
        last = self._last[keys]
        next_use = last + np.maximum(self._interval[keys], 1)
        farthest = np.flatnonzero(next_use == next_use.max())
        return int(keys[farthest[last[farthest].argmax()]])


@dataclass(kw_only=True)
class LeastStale(AccessOrder):
    """Least-Stale (SpecMD): evicts experts that the current token is not going to use again.

    The abstract gives the idea alone.  Third parties implement three rules under this name.

    Attributes:
        reading: ``tinyserve``: experts that the current token has not used are stale; the oldest
            stale one is evicted, then the oldest of the others.  ``layer``: the lowest layer first,
            whose next use is farthest.  ``interval``: the farthest predicted next use, by a moving
            average of the intervals between an expert's accesses.
    """

    reading: Literal["tinyserve", "layer", "interval"] = "tinyserve"

    def rule(self, shape: ModelShape, keys: int) -> Callable[[int], Rule]:
        """Return what makes a pool's rule in the chosen reading."""
        if self.reading == "tinyserve":
            return lambda slots: _StaleFirst()
        if self.reading == "layer":
            return lambda slots: _LowestLayer(shape.num_experts)
        last, interval = np.zeros((2, keys))
        return lambda slots: _LongestInterval(last, interval)


# ----------------------------------------------------------------------------- DALI's window


class _Window(Rule):
    """The last accesses of one pool, its cold residents by recency, and all of its residents."""

    def __init__(self, window: int, hot: int) -> None:
        self._recent, self._hot = deque[int](maxlen=window), hot
        self._times: dict[int, int] = {}
        #: Residents that were cold at their last access, least recent first.
        self.cold = OrderedDict[int, None]()
        #: All residents in the order of their insertion.
        self._held = OrderedDict[int, None]()

    def hit(self, key: int) -> None:
        if len(self._recent) == self._recent.maxlen:
            self._times[self._recent[0]] -= 1
        self._recent.append(key)
        self._times[key] = self._times.get(key, 0) + 1
        self.cold.pop(key, None)
        if self._times[key] < self._hot:
            self.cold[key] = None

    def insert(self, key: int) -> None:
        self._held[key] = None
        self.hit(key)

    def remove(self, key: int) -> None:
        self.cold.pop(key, None)
        self._held.pop(key, None)

    def choose(self, allowed: Mask) -> int | None:
        found = first(self.cold, allowed)
        return first(self._held, allowed) if found is None else found


@dataclass(kw_only=True)
class WorkloadAware(AccessOrder):
    """DALI's workload-aware cache: LRU that never evicts hot experts, after tinyserve's code.

    An expert is hot if at least ⌊share · window⌋ of the last ``window`` accesses are its own.  That
    is decided at its own accesses alone: an expert that has cooled since stays protected until it
    is used again, or until no cold one is left.  Then the expert inserted first is evicted.

    Attributes:
        window: how many accesses are counted.
        share: share of the window from which an expert is hot.
    """

    window: int = option(256, low=1, high=4096, searched=(16, 4096), scale="log")
    share: float = option(0.1, low=0, high=1, searched=(0.01, 0.5))

    def rule(self, shape: ModelShape, keys: int) -> Callable[[int], Rule]:
        """Return what makes a pool's window."""
        hot = max(1, int(self.window * self.share))
        return lambda slots: _Window(self.window, hot)

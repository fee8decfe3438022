"""Cache replacement that adapts to requests for evicted experts: ARC and LeCaR.

A *ghost* is an evicted expert that the policy remembers.  A request for a ghost means that it
should have been kept.  Each policy is called twice for a request, as all eviction policies are:
`used` for all of a layer's experts, then `victim`, `left` and `arrived` for each that is loaded.
"""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import first, pools

# ----------------------------------------------------------------------------- ARC


class _Arc:
    """ARC's four lists of one pool, least recent expert first, and its target p for |T1|."""

    def __init__(self, c: int) -> None:
        self.c, self.p = c, 0.0
        self.T1 = OrderedDict[int, None]()  # resident, used once
        self.T2 = OrderedDict[int, None]()  # resident, used more often
        self.B1 = OrderedDict[int, None]()  # ghosts of T1
        self.B2 = OrderedDict[int, None]()  # ghosts of T2
        self.missed, self.ghost_of = -1, 0

    def hit(self, key: int) -> None:
        if key in self.T2:
            del self.T2[key]
            self.T2[key] = None
        elif key in self.T1:
            del self.T1[key]
            self.T2[key] = None

    def miss(self, key: int) -> None:
        """Adapt p if the missed expert is a ghost, once for each miss."""
        if key == self.missed:
            return
        b1, b2 = len(self.B1), len(self.B2)
        self.missed, self.ghost_of = key, 0
        if key in self.B1:
            self.ghost_of, self.p = 1, min(float(self.c), self.p + max(b2 / b1, 1))
            del self.B1[key]
        elif key in self.B2:
            self.ghost_of, self.p = 2, max(0.0, self.p - max(b1 / b2, 1))
            del self.B2[key]

    def replace(self, allowed: Mask) -> int | None:
        t1 = len(self.T1)
        from_t1 = t1 > self.p or (self.ghost_of == 2 and t1 == self.p)
        order = (self.T1, self.T2) if from_t1 else (self.T2, self.T1)
        found = first(order[0], allowed)
        return first(order[1], allowed) if found is None else found

    def remove(self, key: int) -> None:
        if key in self.T1:
            del self.T1[key]
            self.B1[key] = None
        elif key in self.T2:
            del self.T2[key]
            self.B2[key] = None

    def insert(self, key: int) -> None:
        if key != self.missed:
            self.miss(key)
        self.missed = -1
        if self.ghost_of:
            self.T2[key] = None
            return
        self.T1[key] = None
        # Keep |T1| + |B1| ≤ c and all four ≤ 2c.  (The paper does so before it replaces: the same.)
        if len(self.T1) + len(self.B1) > self.c and self.B1:
            self.B1.popitem(last=False)
        if len(self.T1) + len(self.T2) + len(self.B1) + len(self.B2) > 2 * self.c:
            self.B2.popitem(last=False)


@dataclass(kw_only=True)
class AdaptiveReplacement(Eviction):
    """ARC (Megiddo and Modha, FAST 2003, Fig. 4): balances recency (T1) and frequency (T2).

    A request for a ghost of T1 lets T1 grow, one for a ghost of T2 lets it shrink.  An arrival is a
    request: an expert that was prefetched and is then used counts as used twice.
    """

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Make four empty lists for each pool."""
        self._pools, self._experts = pools(shape, cache, _Arc), shape.num_experts

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Move the resident experts among those used to the recent end of T2 (case I)."""
        base = layer * self._experts
        pool = self._pools[base]
        for expert in experts:
            pool.hit(base + expert)

    def arrived(self, key: int) -> None:
        """Add the expert to T2 if it was a ghost, else to T1 (end of cases II to IV)."""
        self._pools[key].insert(key)

    def left(self, key: int) -> None:
        """Make the evicted expert a ghost."""
        self._pools[key].remove(key)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Adapt p to the incoming expert, then choose the expert to evict (ARC's REPLACE)."""
        pool = self._pools[incoming]
        pool.miss(incoming)
        return pool.replace(allowed)


# ----------------------------------------------------------------------------- LeCaR

Variant = Literal["original", "libcachesim"]

#: Maps each ghost to the time of its eviction; oldest first.
_Ghosts = OrderedDict[int, int]


class _LeCaR:
    """LeCaR's state of one pool: orders of residents, ghosts, and weights of LRU and LFU.

    `LeastRegret` updates the orders itself, LFU's too: a miss would call four methods of `ByCount`,
    and a replay spends most of its time on misses.
    """

    def __init__(self, slots: int, variant: Variant, lr: float, seed: int) -> None:
        self.original, self.lr = variant == "original", lr
        self.d = 0.005 ** (1 / slots)
        self.w_lru = self.w_lfu = 0.5
        self.time = 0
        #: Residents, least recent first.
        self.recent = OrderedDict[int, None]()
        #: Residents by use count; equal counts in the order in which they reached it.
        self.by_count = defaultdict[int, OrderedDict[int, None]](OrderedDict)
        self.least = 1  # a lower bound of all counts
        #: Experts that LRU evicted where LFU would have chosen another one, and the reverse.
        self.of_lru, self.of_lfu = _Ghosts(), _Ghosts()
        self.most_ghosts = slots if self.original else slots // 2
        self.draws = _authors_draws(seed) if self.original else _libcachesims_draws()
        self.missed = -1
        self.goes_on = False  # whether the missed expert's count continues
        self.lru_decides: bool | None = None
        self.chosen = -1  # the key to evict, if LRU and LFU disagree on it

    def miss(self, key: int) -> None:
        """If the missed expert is a ghost, lower the weight of the policy that evicted it."""
        self.missed, self.goes_on, self.lru_decides = key, False, None
        if key in self.of_lru:
            self._penalise(self.of_lru, key)
        elif key in self.of_lfu:
            self._penalise(self.of_lfu, key)

    def _penalise(self, ghosts: _Ghosts, key: int) -> None:
        """Lower the weight of the policy that evicted a ghost by exp(-lr · d^t), and normalise."""
        w_lru, w_lfu = self.w_lru, self.w_lfu
        kept = math.exp(-self.lr * self.d ** (self.time - ghosts.pop(key)))
        if ghosts is self.of_lru:
            w_lru *= kept
        else:
            w_lfu *= kept
        w_lru /= w_lru + w_lfu
        if self.original:
            w_lru = min(max(w_lru, 0.01), 0.99)
            self.goes_on = True
        self.w_lru, self.w_lfu = w_lru, 1 - w_lru

    def rarest(self, allowed: Mask) -> int:
        """Return LFU's choice: the allowed key with the smallest count; ties by id or age."""
        for count in sorted(self.by_count):
            keys = self.by_count[count]
            found = first(sorted(keys) if self.original else keys, allowed)
            if found is not None:
                return found
        raise LookupError("no key is allowed")


def _authors_draws(seed: int) -> Iterator[float]:
    """Yield uniform numbers in [0, 1) from numpy's legacy generator, as LeCaR's authors do."""
    generator = np.random.RandomState(seed)
    while True:
        yield from generator.random_sample(64).tolist()


def _libcachesims_draws() -> Iterator[float]:
    """Yield multiples of 0.01 from a Lehmer generator with libCacheSim's constants."""
    state = 0xDEADBEEF
    while True:
        draws, state = _lehmer(state)
        yield from draws


@lru_cache(maxsize=64)
def _lehmer(state: int) -> tuple[list[float], int]:
    """Return the next 4096 draws and the next state; cached, as all pools draw the same."""
    draws, low = [], 2**128 - 1
    for _ in range(4096):
        state = state * 0xDA942042E4DD58B5 & low
        draws.append((state >> 64) % 100 / 100)
    return draws, state


@dataclass(kw_only=True)
class LeastRegret(Eviction):
    """LeCaR (Vietri et al., HotStorage 2018): draws LRU or LFU by weights that regret changes.

    A request for a ghost, t requests after it was evicted, multiplies the weight of the policy that
    evicted it by exp(-lr · d^t), with d = 0.005^(1/slots).

    Attributes:
        variant: ``original``, the authors' code: as many ghosts of each policy as slots, a ghost's
            count continues, LFU's ties by lowest id, weights within [0.01, 0.99].
            ``libcachesim``: half as many ghosts, counts restart, ties by oldest use, draws are
            multiples of 0.01 and made only where LRU and LFU disagree.
        lr: learning rate; libCacheSim's is fixed at 0.45.
        seed: seed of the original's draws; libCacheSim's generator has a fixed state.
    """

    variant: Variant = "original"
    lr: float = option(0.45, low=0, searched=(0.01, 1.0), scale="log")
    seed: int = option(123, low=0, high=2**32 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "libcachesim" and self.seed != type(self).seed:
            raise UsageError(
                f"evict.seed is {self.seed}: evict.variant=libcachesim always draws the same "
                "numbers; leave it out, or take variant=original"
            )

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Create empty pools with equal weights of LRU and LFU."""
        self._experts = shape.num_experts
        keys = shape.num_layers * shape.num_experts
        self._count = [0] * keys  # uses of resident experts
        self._count_then = [0] * keys  # uses of evicted experts when they were evicted
        self._pools = pools(shape, cache, lambda n: _LeCaR(n, self.variant, self.lr, self.seed))

    def weight(self, layer: int = 0) -> float:
        """Return LRU's weight in the pool of a layer."""
        return self._pools[layer * self._experts].w_lru

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count each used expert as a request and update the orders of LRU and LFU."""
        base, counts = layer * self._experts, self._count
        pool = self._pools[base]
        for expert in experts:
            pool.time += 1
            key = base + expert
            count = counts[key]
            if count:
                counts[key] = count + 1
                pool.recent.move_to_end(key)
                by_count = pool.by_count
                keys = by_count[count]
                del keys[key]
                if not keys:
                    del by_count[count]
                by_count[count + 1][key] = None

    def arrived(self, key: int) -> None:
        """Add the expert to the residents, with its old use count or a new one."""
        pool = self._pools[key]
        if key != pool.missed:
            pool.miss(key)
        pool.missed = -1
        self._count[key] = count = self._count_then[key] + 1 if pool.goes_on else 1
        pool.recent[key] = None
        pool.by_count[count][key] = None
        if count < pool.least:
            pool.least = count

    def left(self, key: int) -> None:
        """Make the evicted expert a ghost of LRU or LFU, unless both would have chosen it."""
        pool = self._pools[key]
        self._count_then[key] = count = self._count[key]
        self._count[key] = 0
        del pool.recent[key]
        keys = pool.by_count[count]
        del keys[key]
        if not keys:
            del pool.by_count[count]
        if key == pool.chosen:
            ghosts = pool.of_lru if pool.lru_decides else pool.of_lfu
            ghosts[key] = pool.time
            if len(ghosts) > pool.most_ghosts:
                ghosts.popitem(last=False)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Update the weights, draw LRU or LFU by them, and return that policy's choice."""
        pool = self._pools[incoming]
        if incoming != pool.missed:
            pool.miss(incoming)
        for oldest in pool.recent:
            if allowed[oldest]:
                break
        else:
            return None
        while pool.least not in pool.by_count:
            pool.least += 1
        for rarest in () if pool.original else pool.by_count[pool.least]:
            if rarest == oldest or allowed[rarest]:  # nearly always the first one
                break
        else:
            rarest = pool.rarest(allowed)
        agreed = oldest == rarest
        if pool.lru_decides is None and (not agreed or pool.original):
            pool.lru_decides = next(pool.draws) < pool.w_lru
        found = oldest if pool.lru_decides else rarest
        pool.chosen = -1 if agreed else found  # no weight changes if LRU and LFU agree
        return found

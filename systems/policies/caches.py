"""Cache replacement that learns from ghosts: ARC and LeCaR.

A *ghost* is an expert that left and is still remembered.  A request for one says that it should
have stayed.  Both learning policies see a request in two moments, as every policy here does: `used`
for all of a layer's experts, then `victim`, `left` and `arrived` for each that has to come.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from substrate.arch import ModelShape
from substrate.errors import UsageError
from substrate.memory import ExpertCache, Mask
from substrate.system import Eviction
from systems.policies.evict import ByCount, first, pools

# ----------------------------------------------------------------------------- ARC


class _Arc:
    """ARC's four lists for one pool, least recent first, and its target p for |T1|."""

    def __init__(self, c: int) -> None:
        self.c, self.p = c, 0.0
        self.T1: dict[int, None] = {}  # resident, used once
        self.T2: dict[int, None] = {}  # resident, used more often
        self.B1: dict[int, None] = {}  # ghosts of T1
        self.B2: dict[int, None] = {}  # ghosts of T2
        self.missed, self.ghost_of = -1, 0

    def hit(self, key: int) -> None:
        if key in self.T2:
            del self.T2[key]
            self.T2[key] = None
        elif key in self.T1:
            del self.T1[key]
            self.T2[key] = None

    def miss(self, key: int) -> None:
        """Adapt p to a ghost, once for each miss."""
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

    def leave(self, key: int) -> None:
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
        # |T1| + |B1| ≤ c and all four ≤ 2c.  The paper drops a ghost before it replaces; to drop it
        # afterwards comes to the same.
        if len(self.T1) + len(self.B1) > self.c and self.B1:
            del self.B1[next(iter(self.B1))]
        if len(self.T1) + len(self.T2) + len(self.B1) + len(self.B2) > 2 * self.c:
            del self.B2[next(iter(self.B2))]


@dataclass(kw_only=True)
class AdaptiveReplacement(Eviction):
    """ARC (Megiddo and Modha, FAST 2003, Fig. 4): balances recency (T1) and frequency (T2).

    A ghost of T1 that is wanted again lets T1 grow, a ghost of T2 lets it shrink.  An arrival is a
    request: what was brought ahead of time and is then used counts as used twice.
    """

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Four empty lists for each pool."""
        self._pools, self._experts = pools(shape, cache, _Arc), shape.num_experts

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Case I: residents go to the recent end of T2."""
        base = layer * self._experts
        pool = self._pools[base]
        for expert in experts:
            pool.hit(base + expert)

    def arrived(self, key: int) -> None:
        """The end of cases II to IV: into T2 if it was a ghost, else into T1."""
        self._pools[key].insert(key)

    def left(self, key: int) -> None:
        """A ghost from now on."""
        self._pools[key].leave(key)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """REPLACE, after p was adapted."""
        pool = self._pools[incoming]
        pool.miss(incoming)
        return pool.replace(allowed)


# ----------------------------------------------------------------------------- LeCaR

Variant = Literal["original", "libcachesim"]

#: When each left, and its count; oldest first.
_Ghosts = dict[int, tuple[int, int]]


class _LeCaR:
    """Two experts' advice for one pool: what LRU and what LFU would evict."""

    def __init__(self, slots: int, variant: Variant, lr: float, seed: int) -> None:
        self.slots, self.original, self.lr = slots, variant == "original", lr
        self.d = 0.005 ** (1 / slots)
        self.w_lru = self.w_lfu = 0.5
        self.time = 0
        self.count: dict[int, int] = {}  # of residents, least recent first
        self.by_count = ByCount()
        #: Of LRU and of LFU.
        self.ghosts: tuple[_Ghosts, _Ghosts] = ({}, {})
        self.most_ghosts = slots if self.original else slots // 2
        self._draws = _authors_draws(seed) if self.original else _libcachesims_draws()
        self.missed, self.resume = -1, 1
        self.lru_decides: bool | None = None
        self.chosen = -1  # the key that will leave because one of the two wanted it

    # ------------------------------------------------------------------ requests

    def request(self, keys: Iterable[int]) -> None:
        count, use = self.count, self.by_count.use
        for key in keys:
            self.time += 1
            uses = count.pop(key, 0)
            if uses:
                count[key] = uses + 1
                use(key, uses)

    def miss(self, key: int) -> None:
        """Blame the policy that let a ghost go; draw who decides.  Once for each miss."""
        if key == self.missed:
            return
        self.missed, self.resume = key, 1
        self.lru_decides = None
        of_lru, of_lfu = self.ghosts
        if key in of_lru or key in of_lfu:
            policy = 0 if key in of_lru else 1
            left_at, count = self.ghosts[policy].pop(key)
            self._blame(policy, self.d ** (self.time - left_at))
            self.resume = count + 1 if self.original else 1

    def choose(self, allowed: Mask) -> int | None:
        for oldest in self.count:
            if allowed[oldest]:
                break
        else:
            return None
        rarest = self.by_count.least(allowed, "id" if self.original else "lru")
        assert rarest is not None
        if self.lru_decides is None and (self.original or oldest != rarest):
            self.lru_decides = next(self._draws) < self.w_lru
        found = oldest if self.lru_decides else rarest
        # Where both would evict the same, nobody is to blame.
        self.chosen = -1 if oldest == rarest else found
        return found

    def leave(self, key: int) -> None:
        count = self.count.pop(key)
        self.by_count.remove(key, count)
        if key != self.chosen:
            return
        ghosts = self.ghosts[0 if self.lru_decides else 1]
        ghosts[key] = (self.time, count)
        if len(ghosts) > self.most_ghosts:
            del ghosts[next(iter(ghosts))]

    def insert(self, key: int) -> None:
        if key != self.missed:
            self.miss(key)
        self.count[key] = self.resume
        self.by_count.add(key, self.resume)
        self.missed = -1

    # ------------------------------------------------------------------ pieces

    def _blame(self, policy: int, regret: float) -> None:
        """Lower a weight: w ← w · exp(-lr · d^t), normalised."""
        w = [self.w_lru, self.w_lfu]
        w[policy] *= math.exp(-self.lr * regret)
        self.w_lru = w[0] / (w[0] + w[1])
        if self.original:
            self.w_lru = min(max(self.w_lru, 0.01), 0.99)
        self.w_lfu = 1 - self.w_lru


def _authors_draws(seed: int) -> Iterator[float]:
    """Uniform in [0, 1): numpy's legacy generator, which the authors' code uses."""
    generator = np.random.RandomState(seed)
    while True:
        yield from generator.random_sample(64).tolist()


def _libcachesims_draws() -> Iterator[float]:
    """Hundredths: a Lehmer generator with libCacheSim's constants."""
    state = 0xDEADBEEF
    while True:
        state = state * 0xDA942042E4DD58B5 & (2**128 - 1)
        yield (state >> 64) % 100 / 100


@dataclass(kw_only=True)
class LeastRegret(Eviction):
    """LeCaR (Vietri et al., HotStorage 2018): draws LRU or LFU by weights that regret changes.

    A ghost that is wanted again after t requests lowers the weight of whoever evicted it by
    exp(-lr · d^t), with d = 0.005^(1/slots).

    Attributes:
        variant: ``original``, the authors' code: as many ghosts of each as slots, a ghost's count
            goes on, LFU's ties by lowest id, weights within [0.01, 0.99].  ``libcachesim``: half as
            many ghosts, counts restart, ties by oldest use, draws in hundredths and only where the
            two disagree.
        lr: learning rate; libCacheSim's is fixed at 0.45.
        seed: of the original's draws.
    """

    variant: Variant = "original"
    lr: float = 0.45
    seed: int = 123

    def __post_init__(self) -> None:
        if not self.lr >= 0:
            raise UsageError(f"evict.lr is {self.lr}; allowed: 0 or more")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"evict.seed is {self.seed}; allowed: 0 to {2**32 - 1}")

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Equal weights."""
        self._experts = shape.num_experts
        self._pools = pools(
            shape, cache, lambda slots: _LeCaR(slots, self.variant, self.lr, self.seed)
        )

    def weight(self, layer: int = 0) -> float:
        """LRU's weight in a layer's pool."""
        return self._pools[layer * self._experts].w_lru

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Each is a request."""
        base = layer * self._experts
        self._pools[base].request([base + expert for expert in experts])

    def arrived(self, key: int) -> None:
        """Resident, with its old count or a new one."""
        self._pools[key].insert(key)

    def left(self, key: int) -> None:
        """A ghost of whoever chose it."""
        self._pools[key].leave(key)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Draw who decides, after regret."""
        pool = self._pools[incoming]
        pool.miss(incoming)
        return pool.choose(allowed)

"""Evictions that know what a slot is for, and which experts later layers are expected to use.

`Guards` restricts the experts among which another policy chooses.  It is combined with that policy
by inheritance (`GuardedLRU`, `GuardedLFU`, `GuardedScore`, `systems.next_use.GuardedNextUse`), so
that options of both are options of the combination.  The rules are ours.  Some systems have one:

    rule          elsewhere
    ────          ─────────
    ``unused``    policies.evict_staged (Mixtral-Offloading): prefetched experts that were not used
    ``recent``    none
    ``forecast``  hobbit: `Multidimensional`, ``evict.mask``
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from moebench.substrate.engine.decisions import Forecast
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import (
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    LowestAverageScore,
)


@dataclass(kw_only=True)
class Guards(Eviction):
    """Restricts the experts that the policy behind it in the order of inheritance may evict.

    That policy is asked among the first of these sets in which it finds an expert:

        1. with ``unused``, prefetched experts whose layer has not used them since they came
        2. all others than experts of ``recent`` and ``forecast``
        3. for a needed load, a committed prefetch or an upload: all that are allowed

    A speculative prefetch that finds none in 1 and 2 is dropped.  An expert that was prefetched
    counts for 1 once its layer has been computed without it, until it is used.

    Attributes:
        unused: whether prefetched experts that were not used are evicted first.
        recent: a speculative prefetch evicts none of the experts that a layer used in its last
            ``recent`` passes; 0 protects none.  docs/caches.md compares 0 and 1.
        forecast: whether experts that the last forecast expects in layers which have not been
            computed since are protected.
        experts: how many experts of each row of a forecast are protected; 0 is the model's top-k.
    """

    unused: bool = option(True, searched=True)
    recent: int = option(0, low=0, high=4096, searched=(0, 4))
    forecast: bool = option(True, searched=True)
    experts: int = option(0, low=0, searched=(1, 16), scale="log")

    takes_forms = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without prefetched, used and expected experts."""
        super().start(shape, cache)
        total = shape.num_layers * shape.num_experts
        self._width, self._expects = shape.num_experts, self.experts or shape.top_k
        #: Whether each expert was prefetched and its layer not computed since; and whether it was
        #: prefetched and its layer has been computed without it.
        self._ahead, self._wasted = np.zeros((2, total), dtype=bool)
        self._expected = np.zeros(total, dtype=bool)
        #: The passes of each layer so far, and by key the one that used the expert last.
        self._passes = [0] * shape.num_layers
        self._used_in = np.full(total, -self.recent, dtype=np.int64)
        self._recent = np.zeros(total, dtype=bool)

    def foresee(self, forecast: Forecast) -> None:
        """Protect the experts with the highest expected scores of each row in these layers."""
        super().foresee(forecast)
        if self.forecast:
            for layer, scores_TE in forecast.items():
                ids_TK = np.argsort(-scores_TE, axis=1, kind="stable")[:, : self._expects]
                row = self._keys_of(layer)
                self._expected[row] = False
                self._expected[row.start + ids_TK.ravel()] = True

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Note the experts that a layer uses, and those that were prefetched for it in vain."""
        experts = [*experts]
        super().used(layer, experts)
        row = self._keys_of(layer)
        keys = [row.start + expert for expert in experts]
        self._expected[row] = False
        self._wasted[row] |= self._ahead[row]
        self._ahead[row] = False
        self._wasted[keys] = False
        self._passes[layer] += 1
        self._used_in[keys] = self._passes[layer]
        self._recent[row] = self._used_in[row] > self._passes[layer] - self.recent

    def arrived(self, key: int) -> None:
        """Note whether the expert was prefetched."""
        super().arrived(key)
        self._ahead[key] = self.purpose in ("speculative", "committed")

    def placed(self, key: int) -> None:
        """Note an expert that was placed."""
        super().placed(key)
        self._ahead[key] = False

    def left(self, key: int) -> None:
        """Forget that the expert was prefetched."""
        super().left(key)
        self._ahead[key] = self._wasted[key] = False

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return what the other policy evicts of the first set in which it finds an expert."""
        for among in self._sets(allowed):
            found = super().victim(among, incoming)  # type: ignore[safe-super]
            if found is not None:
                return found
        return None

    def _sets(self, allowed: Mask) -> Iterator[Mask]:
        """Return the sets of allowed experts in their order, each when it is asked for."""
        if self.unused:
            wasted = allowed & self._wasted
            if wasted.any():
                yield wasted
        if self.purpose == "speculative":
            yield allowed & ~(self._expected | self._recent)
            return
        if self.forecast:
            yield allowed & ~self._expected
        yield allowed

    def _keys_of(self, layer: int) -> slice:
        return slice(layer * self._width, (layer + 1) * self._width)


@dataclass(kw_only=True)
class GuardedLRU(Guards, LeastRecentlyUsed):
    """LRU; first prefetched experts that were not used, and last experts that are expected."""


@dataclass(kw_only=True)
class GuardedLFU(Guards, LeastFrequentlyUsed):
    """LFU; first prefetched experts that were not used, and last experts that are expected."""


@dataclass(kw_only=True)
class GuardedScore(Guards, LowestAverageScore):
    """SMoE Eq. 3; first prefetched experts that were not used, and last those that are expected."""

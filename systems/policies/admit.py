"""Admission policies: choose which missed experts enter the cache, and without waiting for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from moebench.substrate.engine.decisions import Fetch, LayerView, fetches
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Admission
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.shape import ModelShape


@dataclass(kw_only=True)
class AfterMisses(Admission):
    """Admits an expert at its n-th miss since it last entered the cache.

    An expert that the layer loads stays from that miss on, and is dropped after its use before.
    One that the host computes is copied in the background.  A refused upload is asked for again at
    the expert's next miss.  Several rows of a pass that use an expert are one miss.

    Attributes:
        misses: n while a slot of the expert's pool is free.
        full: n when none is free; null is ``misses``.
        a_layer: most uploads that a layer queues in one pass; null is any number.
    """

    misses: int = option(2, low=1, searched=(1, 16), scale="log")
    full: int | None = option(None, low=1, searched=(1, 16), scale="log")
    a_layer: int | None = option(None, low=1, searched=(1, 8), scale="log")
    queue: int | None = option(None, low=1, searched=(1, 64), scale="log")

    chooses = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set all counts of misses to zero."""
        self._cache = cache
        self._missed = [0] * len(cache.held)

    def _counts(self, key: int) -> bool:
        """Count a miss; return whether it is enough to enter the cache."""
        self._missed[key] += 1
        needed = self.misses
        if self.full is not None and not self._cache.free_slots(key):
            needed = self.full
        return self._missed[key] >= needed

    def admits(self, view: LayerView, expert: int) -> bool:
        """Return whether this miss is the n-th, and begin to count anew if so."""
        key = self._cache.key(view.layer, expert)
        enters = self._counts(key)
        if enters:
            self._missed[key] = 0
        return enters

    def uploads(self, view: LayerView, missed: Sequence[int]) -> Sequence[Fetch]:
        """Return the missed experts with n misses or more, in the order of the plan."""
        enough = [e for e in missed if self._counts(self._cache.key(view.layer, e))]
        return fetches(view.layer, islice(enough, self.a_layer))

    def uploaded(self, key: int) -> None:
        """Begin to count anew."""
        self._missed[key] = 0

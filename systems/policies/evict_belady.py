"""Belady's MIN: optimal eviction for routing whose future is known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar

from moebench.substrate.engine.policies import Eviction
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import pools

#: A step after all others: the next use of an expert that is not used again.
_NEVER = 2**62


@dataclass(kw_only=True)
class Belady(Eviction):
    """MIN (Belady 1966): evicts the expert whose next use is farthest away; ties to the lowest id.

    It needs the future, so it runs on recorded routing only: a replay calls `set_future` before
    `start`.  All experts of a layer's step are used at one time: they are protected during the
    step, and ranked by their next use after it.

    Attributes:
        bypass: an incoming expert whose own next use is farthest away is not kept.  A device cannot
            do this (an expert needs a slot to be computed), a count of hits can: a bound on all
            policies.
    """

    bypass: bool = False
    clairvoyant: ClassVar[bool] = True

    def set_future(
        self, steps: Sequence[tuple[int, Sequence[int]]], may_refuse: bool = False
    ) -> None:
        """Set all future steps, and whether an incoming expert can do without a slot."""
        self._steps, self._may_refuse = steps, may_refuse

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Compute when each key is used again, from the last step to the first."""
        if not hasattr(self, "_steps"):
            raise UsageError(
                "evict=belady needs to know the future: replay recorded routing (--trace)"
            )
        if self.bypass and not self._may_refuse:
            raise UsageError(
                "evict.bypass=true: on a device an expert needs a slot to be computed; bypass is "
                "for counting hits only (substrate.analysis.cache_replay)"
            )
        self._experts, self._now = shape.num_experts, 0
        total = shape.num_layers * shape.num_experts
        #: All future uses in order, and for each the step at which its key is used next.
        steps = [[layer * shape.num_experts + e for e in used] for layer, used in self._steps]
        self._uses = [key for keys in steps for key in keys]
        self._following = [_NEVER] * len(self._uses)
        later, at = [_NEVER] * total, len(self._uses)
        for time, keys in reversed([*enumerate(steps)]):
            at -= len(keys)
            self._following[at : at + len(keys)] = [later[key] for key in keys]
            for key in keys:
                later[key] = time
        self._uses.append(-1)
        #: The step at which each key is used next, negated: the farther, the smaller.
        self._nearness = [-time for time in later]
        self._resident = [False] * total
        #: For each pool a heap of (nearness, key); an outdated entry is removed when it is on top.
        self._farthest: list[list[tuple[int, int]]] = pools(shape, cache, lambda slots: [])

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Advance to the next step, which must be as foreseen; update its experts' next uses."""
        base, at = layer * self._experts, self._now
        for expert in experts:
            key = base + expert
            if self._uses[at] != key:
                raise UsageError(
                    f"evict=belady was not told that layer {layer} uses expert {expert}; it "
                    "works with route=exact on the recorded batches"
                )
            self._nearness[key] = nearness = -self._following[at]
            if self._resident[key]:
                heappush(self._farthest[key], (nearness, key))
            at += 1
        self._now = at

    def arrived(self, key: int) -> None:
        """Mark the expert as resident and add it to the heap of its pool."""
        self._resident[key] = True
        heappush(self._farthest[key], (self._nearness[key], key))

    def left(self, key: int) -> None:
        """Mark the expert as not resident."""
        self._resident[key] = False

    def next_use(self, key: int) -> int:
        """Return the step of an expert's next use; later than all steps if it is not used again."""
        return -self._nearness[key]

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the farthest next use; None to bypass the incoming one."""
        heap, near = self._farthest[incoming], self._nearness
        found, protected = None, []
        while heap and found is None:
            nearness, key = heap[0]
            if nearness != near[key] or not self._resident[key]:
                heappop(heap)
            elif allowed[key]:
                found = key
            else:
                protected.append(heappop(heap))
        for entry in protected:
            heappush(heap, entry)
        if self.bypass and found is not None and near[incoming] <= near[found]:
            return None
        return found

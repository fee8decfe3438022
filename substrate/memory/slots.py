"""Experts in the slots of a device, as the mathematics finds them."""

from torch import Tensor

from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.weights import unpack


class SlotExperts:
    """Finds an expert's matrices in the slot that it occupies."""

    def __init__(self, cache: ExpertCache, slots: Tensor) -> None:
        self._cache, self._slots = cache, slots

    def matrices(self, layer: int, expert: int) -> tuple[Tensor, Tensor]:
        """Gate above up ``[2·I, H]``, and down ``[H, I]``."""
        slot = self._cache.slot_of(self._cache.key(layer, expert))
        return unpack(self._cache.shape, self._slots[slot])

    def gathered(self, layer: int, experts: Tensor) -> None:
        """Never: experts lie in separate slots and arrive one by one."""

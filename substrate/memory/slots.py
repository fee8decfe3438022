"""Experts in the slots of a device, and in host memory, as the mathematics finds them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.formats import FullPrecision, RecordFormat, unpack
from moebench.substrate.models.fused import Matrix
from moebench.substrate.models.weights import stacks


class SlotExperts:
    """Finds an expert's matrices in the slot that it occupies, or where the host has them.

    Args:
        slots: one record each.
        on_host: an expert's record in host memory; None where the host computes none.
        made: the records' format; None is the slots' own numbers.
    """

    def __init__(
        self,
        cache: ExpertCache,
        slots: Tensor,
        on_host: Callable[[int, int], Tensor] | None = None,
        made: RecordFormat | None = None,
    ) -> None:
        self._cache, self._slots, self._on_host = cache, slots, on_host
        self._format = made or FullPrecision(cache.shape, slots.dtype)

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Matrix, ...]:
        """Gate above up ``[2·I, H]``, and down ``[H, I]``; then their biases, if there are."""
        if on_host:
            assert self._on_host is not None, "this machine computes no expert on the host"
            return self._format.matrices(self._on_host(layer, expert))
        slot = self._cache.slot_of(self._cache.key(layer, expert))
        return self._format.matrices(self._slots[slot])

    def stacked(self, layer: int, experts: Sequence[int]) -> tuple[Tensor, ...] | None:
        """Small experts' matrices, copied out of their slots."""
        shape, slots = self._cache.shape, self._slots
        if not stacks(shape, slots, len(experts)):
            return None
        rows = [self._cache.slot_of(key) for key in self._cache.keys(layer, experts)]
        return unpack(shape, slots.index_select(0, torch.tensor(rows)))

    def gathered(self, layer: int, experts: Tensor) -> None:
        """Never: experts lie in separate slots and arrive one by one."""

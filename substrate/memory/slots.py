"""Access to the matrices of experts in device slots and in host memory, for the decoder."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.formats import FullPrecision, RecordFormat, unpack
from moebench.substrate.models.fused import Matrix
from moebench.substrate.models.resident import stacks


class SlotExperts:
    """Returns an expert's matrices from its slot, or from host memory.

    Args:
        slots: the device's memory, one record in each slot.
        on_host: returns an expert's record in host memory; None where the host computes no expert.
        made: the records' format; None is unquantised numbers of the slots' dtype.
    """

    def __init__(
        self, cache: ExpertCache, slots: Tensor,
        on_host: Callable[[int, int], Tensor] | None = None, made: RecordFormat | None = None,
    ) -> None:  # fmt: skip
        self._cache, self._slots, self._on_host = cache, slots, on_host
        self._format = made or FullPrecision(cache.shape, slots.dtype)

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Matrix, ...]:
        """Return gate above up ``[2·I, H]`` and down ``[H, I]``; then their biases, if any."""
        if on_host:
            assert self._on_host is not None, "this machine computes no expert on the host"
            return self._format.matrices(self._on_host(layer, expert))
        slot = self._cache.slot_of(self._cache.key(layer, expert))
        return self._format.matrices(self._slots[slot])

    def stacked(self, layer: int, experts: Sequence[int]) -> tuple[Tensor, ...] | None:
        """Return copies of several small experts' matrices, or None for large or few experts."""
        shape, slots = self._cache.shape, self._slots
        if not stacks(shape, slots, len(experts)):
            return None
        rows = [self._cache.slot_of(key) for key in self._cache.keys(layer, experts)]
        return unpack(shape, slots.index_select(0, torch.tensor(rows)))

    def all_of(self, layer: int) -> None:
        """Return None: experts are in separate slots and arrive one by one."""

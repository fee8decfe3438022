"""Residency: which experts of a layer were on the device at one instant."""

from collections.abc import Iterable, Sequence

import numpy as np

Mask = np.ndarray


class Whereabouts:
    """The residency of one layer's experts at one instant; later changes do not affect it.

    Args:
        ready_ns: when each expert is, or was, complete on the device.
        held: whether each expert has a slot, complete or arriving.
    """

    __slots__ = ("_held", "_in_flight", "_now_ns", "_ready_ns", "_resident")

    def __init__(self, ready_ns: Sequence[int], held: bytes | bytearray, now_ns: int) -> None:
        self._ready_ns, self._held, self._now_ns = ready_ns, held, now_ns
        self._resident: Mask | None = None
        self._in_flight: Mask | None = None

    def divide(self, experts: Iterable[int]) -> tuple[list[int], list[int], list[int]]:
        """Divide experts into complete ones, those in flight, and absent ones, in their order."""
        resident: list[int] = []
        in_flight: list[int] = []
        absent: list[int] = []
        ready_ns, held, now_ns = self._ready_ns, self._held, self._now_ns
        for expert in experts:
            if ready_ns[expert] <= now_ns:
                resident.append(expert)
            elif held[expert]:
                in_flight.append(expert)
            else:
                absent.append(expert)
        return resident, in_flight, absent

    @property
    def forms(self) -> Sequence["Whereabouts"]:
        """The residency of the experts in each form of their records."""
        return (self,)

    def is_resident(self, expert: int) -> bool:
        """Return whether an expert is complete on the device."""
        return self._ready_ns[expert] <= self._now_ns

    def is_held(self, expert: int) -> bool:
        """Return whether an expert has a slot on the device, complete or arriving."""
        return bool(self._held[expert])

    @property
    def resident_E(self) -> Mask:
        """Mask ``[E]`` of the experts that are complete on the device."""
        if self._resident is None:
            self._resident = np.array(self._ready_ns) <= self._now_ns
        return self._resident

    @property
    def in_flight_E(self) -> Mask:
        """Mask ``[E]`` of the experts that are being copied to the device."""
        if self._in_flight is None:
            self._in_flight = np.frombuffer(self._held, dtype=bool) > self.resident_E
        return self._in_flight


class InForms(Whereabouts):
    """The residency of one layer's experts where records have several forms: in any of them.

    Args:
        forms: their residency in each form.
    """

    __slots__ = ("_forms",)

    def __init__(self, forms: Sequence[Whereabouts], now_ns: int) -> None:
        super().__init__(
            list(map(min, *(one._ready_ns for one in forms))),
            bytes(map(max, *(one._held for one in forms))),
            now_ns,
        )
        self._forms = forms

    @property
    def forms(self) -> Sequence[Whereabouts]:
        """The residency of the experts in each form of their records."""
        return self._forms

    def best(self, expert: int) -> int:
        """Return the first form in which an expert is complete, else in flight, else 0."""
        for form, one in enumerate(self._forms):
            if one.is_resident(expert):
                return form
        return next((form for form, one in enumerate(self._forms) if one.is_held(expert)), 0)

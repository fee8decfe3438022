"""Tensor transfers between host memory and the device on which a decoder computes."""

from typing import Protocol

from torch import Tensor

#: Row indices of a tensor: a list, or a tensor that is already on the device.
Index = list[int] | Tensor


class Device(Protocol):
    """A device on which a decoder computes.  Only `read` makes the calling thread wait."""

    def put(self, values: Tensor) -> Tensor:
        """Copy values from host memory to the device, for operations that are submitted later."""

    def index(self, places: list[int]) -> Index:
        """Return row indices as a value that can index a tensor on the device."""

    def read(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Wait until values of the device are computed, and return them in host memory."""


class Cpu:
    """The CPU as the decoder's device: no value needs a copy."""

    def put(self, values: Tensor) -> Tensor:
        """Return the values unchanged: the device's memory is host memory."""
        return values

    def index(self, places: list[int]) -> Index:
        """Return the row indices unchanged."""
        return places

    def read(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the values unchanged: they are computed and in host memory."""
        return values


CPU = Cpu()

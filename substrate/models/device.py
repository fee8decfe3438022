"""How a decoder's numbers get to the device that computes, and back."""

from typing import Protocol

from torch import Tensor

#: What picks rows of a tensor: numbers, or, on a device, a tensor of them that is there.
Index = list[int] | Tensor


class Device(Protocol):
    """Where a decoder computes.  Only `read` makes the calling thread wait."""

    def put(self, values: Tensor) -> Tensor:
        """Values from host memory on the device; what is submitted later sees them."""

    def index(self, places: list[int]) -> Index:
        """Places by which a tensor of the device is indexed."""

    def read(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Values of the device in host memory, once they are computed."""


class Cpu:
    """The processor: everything is where it is needed."""

    def put(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def index(self, places: list[int]) -> Index:
        """The places themselves."""
        return places

    def read(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The values themselves."""
        return values


CPU = Cpu()

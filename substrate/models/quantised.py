"""Matrices in 4 or 8 bits: how numbers are rounded, packed and multiplied.

==========  ==========================================================================
``int4``    some inputs of a row, a group, share a scale and a zero point: the number n from 0 to
            15 stands for (n - 8) · scale + zero.  Two numbers a byte.
``int8``    a row shares a scale: n from -127 to 127 stands for n · scale.
==========  ==========================================================================

Scales and zero points are bf16, and numbers are rounded by them as they are stored: what a number
stands for is at most half a scale from the weight.  Where torch has a product of packed numbers for
a matrix's sizes it is used: inputs and outputs are bf16, sums fp32.  Other matrices are unpacked to
fp32 for each product.

Shape letters: N rows (outputs), K inputs, G groups.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.models.shape import GROUPS, ExpertDtype, group_of, packed_bytes

#: torch's products want multiples of so many rows, and of so many inputs.
ROWS, INPUTS = 16, 32

#: Of a group of zeros, so that nothing is divided by it.
LEAST_SCALE = 1e-30

#: Numbers of a zero point's own size have a scale of at least this share of it: rounded to bf16 it
#: is off by at most half of that scale.
LEAST_SHARE = 1 / 120


class Packing(Protocol):
    """How a matrix ``[N, K]`` is stored; `pack`'s bytes are uint8 ``[size_bytes]``.

    Attributes:
        together: torch multiplies it as it is packed.
    """

    size_bytes: int
    together: bool

    def pack(self, matrix: Tensor) -> Tensor:
        """A matrix's numbers, then its scales."""

    def rounded(self, matrix: Tensor) -> Tensor:
        """What its packed numbers stand for, fp32 ``[N, K]``."""

    def linear(self, x: Tensor, packed: Tensor) -> Tensor:
        """Rows ``[T, K]`` times the packed matrix: ``[T, N]`` in the rows' dtype."""


class PackedMatrix(NamedTuple):
    """A packed matrix where it lies."""

    packing: Packing
    packed: Tensor

    def linear(self, x: Tensor) -> Tensor:
        """Rows ``[T, K]`` times the matrix: ``[T, N]``."""
        return self.packing.linear(x, self.packed)


class Int4:
    """A scale and a zero point a group; see the module's docstring.

    torch's product wants numbers in an order that depends on the processor (`order`).
    """

    def __init__(self, rows: int, inputs: int) -> None:
        self._rows, self._inputs, self._group = rows, inputs, group_of(inputs)
        self._groups = inputs // self._group
        self.size_bytes = packed_bytes(rows, inputs, "int4")
        self.together = not rows % ROWS and self._group in GROUPS

    def _quantised(self, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers ``[N, G, K/G]`` from 0 to 15; scales and zero points ``[N, G, 1]`` in fp32."""
        grouped = matrix.float().view(self._rows, self._groups, self._group)
        low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
        middle = (low + high) / 2
        least = torch.maximum((high - low) / 15, middle.abs() * LEAST_SHARE)
        scales = _up(least.clamp_(min=LEAST_SCALE))
        zeros = (middle + scales / 2).bfloat16().float()  # of 16 numbers, 8 are below it
        numbers = ((grouped - zeros) / scales).round_().add_(8).clamp_(0, 15)
        return numbers, scales, zeros

    def rounded(self, matrix: Tensor) -> Tensor:
        """What its packed numbers stand for."""
        numbers, scales, zeros = self._quantised(matrix)
        return torch.addcmul(zeros, numbers.sub_(8), scales).view(self._rows, self._inputs)

    def pack(self, matrix: Tensor) -> Tensor:
        """Numbers, then scale and zero point of each row's groups: bf16 ``[G, N, 2]``."""
        numbers, scales, zeros = self._quantised(matrix)
        flat = numbers.to(torch.int32).view(self._rows, self._inputs)
        if self.together:
            values = torch.ops.aten._convert_weight_to_int4pack_for_cpu(flat, 1)
        else:
            values = (flat[:, ::2] | flat[:, 1::2] << 4).to(torch.uint8)
        both = torch.cat((scales, zeros), dim=-1).transpose(0, 1).bfloat16().contiguous()
        return torch.cat((values.flatten(), both.view(torch.uint8).flatten()))

    def linear(self, x: Tensor, packed: Tensor) -> Tensor:
        """The product."""
        ends = self._rows * self._inputs // 2
        values = packed[:ends].view(self._rows, -1)
        both = packed[ends:].view(torch.bfloat16).view(self._groups, self._rows, 2)
        if self.together:
            product = torch.ops.aten._weight_int4pack_mm_for_cpu
            found: Tensor = product(x.bfloat16(), values, self._group, both)
            return found.to(x.dtype)
        scales, zeros = torch.split(both.float().transpose(0, 1), 1, dim=-1)
        numbers = torch.stack((values & 15, values >> 4), dim=-1).view(
            self._rows, self._groups, self._group
        )
        matrix = torch.addcmul(zeros, numbers.float() - 8, scales)
        return F.linear(x, matrix.reshape(self._rows, -1).to(x.dtype))


class Int8:
    """A scale a row; see the module's docstring."""

    def __init__(self, rows: int, inputs: int) -> None:
        self._rows, self._inputs = rows, inputs
        self.size_bytes = packed_bytes(rows, inputs, "int8")
        self.together = not rows % ROWS and not inputs % INPUTS

    def _quantised(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers ``[N, K]`` from -127 to 127, and scales ``[N, 1]`` in fp32."""
        wide = matrix.float()
        scales = _up((wide.abs().amax(-1, keepdim=True) / 127).clamp_(min=LEAST_SCALE))
        return (wide / scales).round_(), scales

    def rounded(self, matrix: Tensor) -> Tensor:
        """What its packed numbers stand for."""
        numbers, scales = self._quantised(matrix)
        return numbers * scales

    def pack(self, matrix: Tensor) -> Tensor:
        """Numbers, then scales: bf16 ``[N]``."""
        numbers, scales = self._quantised(matrix)
        values = numbers.to(torch.int8).view(torch.uint8).flatten()
        return torch.cat((values, scales.flatten().bfloat16().view(torch.uint8)))

    def linear(self, x: Tensor, packed: Tensor) -> Tensor:
        """The product."""
        ends = self._rows * self._inputs
        values = packed[:ends].view(torch.int8).view(self._rows, self._inputs)
        scales = packed[ends:].view(torch.bfloat16)
        if self.together:
            return torch._weight_int8pack_mm(x.bfloat16(), values, scales).to(x.dtype)
        return F.linear(x, (values.float() * scales.float()[:, None]).to(x.dtype))


PACKINGS: dict[ExpertDtype, type[Int4] | type[Int8]] = {"int4": Int4, "int8": Int8}


def order() -> str:
    """A name for the order in which torch packs numbers of 4 bits: of processor and version."""
    processor = torch.backends.cpu.get_cpu_capability().lower()
    return f"{processor}-torch{torch.__version__}"


def _up(values: Tensor) -> Tensor:
    """Positive numbers rounded up to bf16, in fp32."""
    near = values.bfloat16()
    above = torch.nextafter(near, torch.full_like(near, torch.inf))
    return torch.where(near.float() < values, above, near).float()

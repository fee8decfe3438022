"""Matrices quantised to 2, 4 or 8 bits: rounding, packing and products.

============  ==========================================================================
``int4``      a group of inputs in a row shares a scale and a zero point: the code n from 0 to 15
              has the value (n - 8) · scale + zero.  A byte holds two codes.
``int8``      a row shares a scale: the code n from -127 to 127 has the value n · scale.
``row-int4``  as int8, with codes from -7 to 7 and a scale in fp16.  A byte holds two codes.
``row-int2``  as row-int4, with codes from -1 to 1.  A byte holds four codes.
============  ==========================================================================

Scales and zero points are rounded, those of int4 and int8 to bf16, before the codes are computed.
So a code's value is at most half a scale from the weight; in rows of 4 or 2 bits, whose fp16 scale
may be rounded down, little more.  If torch has a product of packed codes for a matrix's sizes, it
is used: inputs and outputs are bf16, sums fp32.  Other matrices are unpacked to fp32 for each
product.

Shape letters: N rows (outputs), K inputs, G groups.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.models.shape import GROUPS, ROW_BITS, RecordDtype, group_of, packed_bytes

#: torch's products of packed codes need multiples of these numbers of rows and inputs.
ROWS, INPUTS = 16, 32

#: Lower bound of scales, so that a group of zeros has no division by zero.
LEAST_SCALE = 1e-30

#: Lower bound of a scale in fp16: its least number above zero.
LEAST_FP16 = 2.0**-24

#: Lower bound of a scale as a share of the zero point: the rounding of the zero point to bf16 is
#: then at most half a scale.
LEAST_SHARE = 1 / 120


class Packing(Protocol):
    """A packed storage format of a matrix ``[N, K]``; its bytes are uint8 ``[size_bytes]``.

    Attributes:
        together: torch has a product of the packed codes.
    """

    size_bytes: int
    together: bool

    def pack(self, matrix: Tensor) -> Tensor:
        """Quantise a matrix, and return the bytes of its codes, then of its scales."""

    def rounded(self, matrix: Tensor) -> Tensor:
        """Quantise a matrix, and return the dequantised values, fp32 ``[N, K]``."""

    def linear(self, x: Tensor, packed: Tensor) -> Tensor:
        """Multiply rows ``[T, K]`` by the packed matrix: ``[T, N]`` in the rows' dtype."""


class PackedMatrix(NamedTuple):
    """The bytes of a quantised matrix with their storage format."""

    packing: Packing
    packed: Tensor

    def linear(self, x: Tensor) -> Tensor:
        """Multiply rows ``[T, K]`` by the packed matrix: ``[T, N]``."""
        return self.packing.linear(x, self.packed)


class Int4:
    """4-bit storage format of a matrix, with a scale and a zero point for each group of inputs.

    The order of codes for torch's product depends on the processor (`order`).
    """

    def __init__(self, rows: int, inputs: int) -> None:
        self._rows, self._inputs, self._group = rows, inputs, group_of(inputs)
        self._groups = inputs // self._group
        self.size_bytes = packed_bytes(rows, inputs, "int4")
        self.together = not rows % ROWS and self._group in GROUPS

    def _quantised(self, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return codes ``[N, G, K/G]`` from 0 to 15; scales, zero points ``[N, G, 1]`` in fp32."""
        grouped = matrix.float().view(self._rows, self._groups, self._group)
        low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
        middle = (low + high) / 2
        least = torch.maximum((high - low) / 15, middle.abs() * LEAST_SHARE)
        scales = _up(least.clamp_(min=LEAST_SCALE))
        zeros = (middle + scales / 2).bfloat16().float()  # the value of code 8
        numbers = ((grouped - zeros) / scales).round_().add_(8).clamp_(0, 15)
        return numbers, scales, zeros

    def rounded(self, matrix: Tensor) -> Tensor:
        """Quantise a matrix, and return the dequantised values, fp32 ``[N, K]``."""
        numbers, scales, zeros = self._quantised(matrix)
        return torch.addcmul(zeros, numbers.sub_(8), scales).view(self._rows, self._inputs)

    def pack(self, matrix: Tensor) -> Tensor:
        """Return the bytes of the codes, then of scales and zero points, bf16 ``[G, N, 2]``."""
        numbers, scales, zeros = self._quantised(matrix)
        flat = numbers.to(torch.int32).view(self._rows, self._inputs)
        if self.together:
            values = torch.ops.aten._convert_weight_to_int4pack_for_cpu(flat, 1)
        else:
            values = (flat[:, ::2] | flat[:, 1::2] << 4).to(torch.uint8)
        both = torch.cat((scales, zeros), dim=-1).transpose(0, 1).bfloat16().contiguous()
        return torch.cat((values.flatten(), both.view(torch.uint8).flatten()))

    def linear(self, x: Tensor, packed: Tensor) -> Tensor:
        """Multiply rows ``[T, K]`` by the packed matrix: ``[T, N]`` in the rows' dtype."""
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
    """8-bit storage format of a matrix, with a scale for each row."""

    def __init__(self, rows: int, inputs: int) -> None:
        self._rows, self._inputs = rows, inputs
        self.size_bytes = packed_bytes(rows, inputs, "int8")
        self.together = not rows % ROWS and not inputs % INPUTS

    def _quantised(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes ``[N, K]`` from -127 to 127, and scales ``[N, 1]`` in fp32."""
        wide = matrix.float()
        scales = _up((wide.abs().amax(-1, keepdim=True) / 127).clamp_(min=LEAST_SCALE))
        return (wide / scales).round_(), scales

    def rounded(self, matrix: Tensor) -> Tensor:
        """Quantise a matrix, and return the dequantised values, fp32 ``[N, K]``."""
        numbers, scales = self._quantised(matrix)
        return numbers * scales

    def pack(self, matrix: Tensor) -> Tensor:
        """Return the bytes of the codes, then of the rows' scales, bf16 ``[N]``."""
        numbers, scales = self._quantised(matrix)
        values = numbers.to(torch.int8).view(torch.uint8).flatten()
        return torch.cat((values, scales.flatten().bfloat16().view(torch.uint8)))

    def linear(self, x: Tensor, packed: Tensor) -> Tensor:
        """Multiply rows ``[T, K]`` by the packed matrix: ``[T, N]`` in the rows' dtype."""
        ends = self._rows * self._inputs
        values = packed[:ends].view(torch.int8).view(self._rows, self._inputs)
        scales = packed[ends:].view(torch.bfloat16)
        if self.together:
            return torch._weight_int8pack_mm(x.bfloat16(), values, scales).to(x.dtype)
        return F.linear(x, (values.float() * scales.float()[:, None]).to(x.dtype))


class ByRow:
    """Storage format of a matrix in few bits, with an fp16 scale for each row.

    Args:
        stored_as: one of `ROW_BITS`.
    """

    together = False

    def __init__(self, rows: int, inputs: int, stored_as: RecordDtype) -> None:
        self._rows, self._inputs, self._bits = rows, inputs, ROW_BITS[stored_as]
        self.size_bytes = packed_bytes(rows, inputs, stored_as)
        #: The largest code; the least is its negative.
        self._most = 2 ** (self._bits - 1) - 1

    def _quantised(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes ``[N, K]``, whole numbers in fp32, and scales ``[N, 1]`` in fp32."""
        wide = matrix.float()
        scales = (wide.abs().amax(-1, keepdim=True) / self._most).clamp_(min=LEAST_FP16)
        scales = scales.half().float()
        return (wide / scales).round_().clamp_(-self._most, self._most), scales

    def rounded(self, matrix: Tensor) -> Tensor:
        """Quantise a matrix, and return the dequantised values, fp32 ``[N, K]``."""
        numbers, scales = self._quantised(matrix)
        return numbers * scales

    def pack(self, matrix: Tensor) -> Tensor:
        """Return the bytes of the codes, each plus the largest, then of the rows' scales in fp16.

        The first code of a byte has its lowest bits.
        """
        numbers, scales = self._quantised(matrix)
        codes = (numbers + self._most).to(torch.uint8).view(self._rows, -1, 8 // self._bits)
        values = (codes << self._shifts).sum(-1, dtype=torch.uint8)
        return torch.cat((values.flatten(), scales.flatten().half().view(torch.uint8)))

    def linear(self, x: Tensor, packed: Tensor) -> Tensor:
        """Multiply rows ``[T, K]`` by the packed matrix: ``[T, N]`` in the rows' dtype."""
        ends = self._rows * self._inputs * self._bits // 8
        values = packed[:ends].view(self._rows, -1, 1) >> self._shifts & (1 << self._bits) - 1
        numbers = values.view(self._rows, self._inputs).float() - self._most
        scales = packed[ends:].view(torch.float16).float()
        return F.linear(x, (numbers * scales[:, None]).to(x.dtype))

    @property
    def _shifts(self) -> Tensor:
        return torch.arange(0, 8, self._bits, dtype=torch.uint8)


PACKINGS: dict[RecordDtype, Callable[[int, int], Packing]] = {
    "int4": Int4,
    "int8": Int8,
    "row-int4": partial(ByRow, stored_as="row-int4"),
    "row-int2": partial(ByRow, stored_as="row-int2"),
}


def order() -> str:
    """Return a name of torch's order of packed int4 codes, from processor and torch version."""
    processor = torch.backends.cpu.get_cpu_capability().lower()
    return f"{processor}-torch{torch.__version__}"


def _up(values: Tensor) -> Tensor:
    """Round positive numbers up to bf16, and return them in fp32."""
    near = values.bfloat16()
    above = torch.nextafter(near, torch.full_like(near, torch.inf))
    return torch.where(near.float() < values, above, near).float()

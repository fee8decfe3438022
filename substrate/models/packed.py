"""Decoding of MXFP4 weights (OCP Microscaling Formats 1.0), the 4-bit format of gpt-oss files."""

import torch
from torch import Tensor

#: Values of the 16 codes of 4 bits: sign, two bits of exponent, one bit of mantissa.
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor([*_VALUES, *(-v for v in _VALUES)])

#: A scale is a power of two, whose exponent is stored with this bias.
SCALE_BIAS = 127


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """Decode rows of MXFP4 blocks to fp32, without rounding.

    Args:
        blocks: uint8 ``[rows, G, 16]``; the lower half of a byte comes first.
        scales: uint8 ``[rows, G]``.

    Returns:
        ``[rows, 32·G]``.
    """
    pairs = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    values = VALUES[pairs.long()]
    return torch.ldexp(values, scales.int()[..., None] - SCALE_BIAS).flatten(-2)

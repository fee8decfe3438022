"""Weights of four bits as gpt-oss's files hold them: MXFP4 (OCP Microscaling Formats 1.0)."""

import torch
from torch import Tensor

#: What a number of four bits stands for: sign, two bits of exponent, one of mantissa.
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor([*_VALUES, *(-v for v in _VALUES)])

#: A scale is a power of two, stored with this added.
SCALE_BIAS = 127


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """Rows of blocks as numbers, fp32 and exact.

    Args:
        blocks: uint8 ``[rows, G, 16]``; the lower half of a byte comes first.
        scales: uint8 ``[rows, G]``.

    Returns:
        ``[rows, 32·G]``.
    """
    pairs = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    values = VALUES[pairs.long()]
    return torch.ldexp(values, scales.int()[..., None] - SCALE_BIAS).flatten(-2)

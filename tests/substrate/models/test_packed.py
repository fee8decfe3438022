"""MXFP4 blocks, code by code."""

import torch

from moebench.substrate.models.packed import SCALE_BIAS, VALUES, unpacked

CODES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_each_code_has_its_value_and_the_lower_half_of_a_byte_comes_first() -> None:
    assert VALUES.tolist() == CODES + [-value for value in CODES]
    # A row of two blocks: codes 0 to 15 and their reverse, then all codes 9.
    first = [low | (low + 1) << 4 for low in range(0, 16, 2)]
    second = [high | (high - 1) << 4 for high in range(15, 0, -2)]
    blocks = torch.tensor([[first + second, [0x99] * 16]], dtype=torch.uint8)
    scales = torch.tensor([[SCALE_BIAS, SCALE_BIAS - 2]], dtype=torch.uint8)
    found = unpacked(blocks, scales)
    every = CODES + [-value for value in CODES]
    assert found.shape == (1, 64)
    assert found[0].tolist() == every + every[::-1] + [-0.5 / 4] * 32


def test_scales_are_powers_of_two_of_each_row_and_block() -> None:
    blocks = torch.full((2, 1, 16), 0x22, dtype=torch.uint8)
    found = unpacked(blocks, torch.tensor([[130], [127]], dtype=torch.uint8))
    assert found.tolist() == [[8.0] * 32, [1.0] * 32]
    assert found.dtype == torch.float32

"""Rotary position embeddings: frequencies of each scaling type, and cosines and sines of a pass.

Weights are permuted by `half_split`, so that one rotation serves every convention: pairs of values
are half a head apart, and values that a family does not rotate have the angle zero.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from moebench.substrate.models.device import CPU, Device
from moebench.substrate.models.shape import ModelShape, RopeScaling


def rotated_width(shape: ModelShape) -> int:
    """Return the width of the rotated heads, including their unrotated values."""
    return shape.head_dim if shape.latent is None else shape.latent.qk_rope_head_dim


def half_split(shape: ModelShape) -> Tensor | None:
    """Return the row order of a head in which pairs are half a head apart; None: the stored one.

    Queries and keys are permuted equally, so their products do not change.
    """
    width = rotated_width(shape)
    rotary = shape.rotary_dim or width
    if rotary == width and not shape.rope_interleaved:
        return None
    rows = torch.arange(width)
    pairs = rows[:rotary].view(-1, 2).T if shape.rope_interleaved else rows[:rotary].view(2, -1)
    still = rows[rotary:].view(2, -1)
    return torch.cat((pairs[0], still[0], pairs[1], still[1]))


def frequencies(shape: ModelShape, long: bool = False) -> tuple[Tensor, float]:
    """Return the angles per position ``[D / 2]``, fp32, and the factor of cosines and sines.

    Args:
        long: the text is longer than longrope's ``original_max_positions``.
    """
    width = rotated_width(shape)
    rotary = shape.rotary_dim or width
    inverse = shape.rope_theta ** (-torch.arange(0, rotary, 2, dtype=torch.float32) / rotary)
    factor, scaling = 1.0, shape.rope_scaling
    if scaling is not None:
        factor = scaling.attention_factor
        match shape.rope_type:
            case "linear":
                inverse = inverse / scaling.factor
            case "llama3":
                inverse = _llama3(inverse, scaling)
            case "yarn":
                inverse = _yarn(inverse, scaling, shape.rope_theta)
            case "longrope":
                inverse = inverse / torch.tensor(
                    scaling.long_factor if long else scaling.short_factor
                )
                factor = scaling.long_attention_factor if long else factor
    return torch.cat((inverse, torch.zeros((width - rotary) // 2))), factor


def _llama3(inverse: Tensor, scaling: RopeScaling) -> Tensor:
    """Return Llama 3's frequencies: low ones are divided by the factor, high ones are kept."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_max_positions * inverse / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return inverse * (kept + (1 - kept) / scaling.factor)


def _yarn(inverse: Tensor, scaling: RopeScaling, theta: float) -> Tensor:
    """Return YaRN's frequencies, a ramp over dimensions (arXiv 2309.00071, section 3.2)."""
    width = 2 * len(inverse)

    def dimension(turns: float) -> float:
        """Return the dimension that makes ``turns`` turns over the original positions."""
        length = scaling.original_max_positions / (turns * 2 * math.pi)
        return width * math.log(length) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = (torch.arange(len(inverse)) - low) / (high - low or 0.001)
    stretched = ramp.clamp(0, 1)
    return inverse * (1 - stretched) + inverse / scaling.factor * stretched


def rope_tables(shape: ModelShape, positions: Tensor, long: bool = False) -> tuple[Tensor, Tensor]:
    """Return cosines and half-negated sines (see `rotate`) ``[..., D]`` of positions ``[...]``."""
    inverse, factor = frequencies(shape, long)
    angles = positions[..., None].float() * inverse.to(positions.device)
    cos, sin = angles.cos(), angles.sin()
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding in the half-split convention of Hugging Face.

    The first half of ``sin`` is negated by `rope_tables`, so rolling by half a head is equal to
    swapping the halves and negating the first.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


#: Cosines and sines of a pass, ``[T, rotated heads, D]``.
Turn = tuple[Tensor, Tensor]


class Rotations:
    """Cosines and sines that rotate a batch's queries and keys, for each layer of each pass.

    Args:
        longest: positions of the longest sequence, new tokens included.
    """

    def __init__(
        self, shape: ModelShape, longest: int, dtype: torch.dtype, device: Device = CPU
    ) -> None:
        self._shape, self._longest, self._device = shape, longest, device
        positions = torch.arange(longest)
        tables = rope_tables(shape, positions)
        scaling = shape.rope_scaling
        #: Longest text with the original angles; the second half of the tables is for longer ones.
        self._original = None
        if shape.rope_type == "longrope" and scaling is not None:
            self._original = scaling.original_max_positions
            longer = rope_tables(shape, positions, long=True)
            tables = (torch.cat((tables[0], longer[0])), torch.cat((tables[1], longer[1])))
        #: Cosines and sines ``[2, positions, D]``; those of values, which are rotated by zero, so
        #: that one cache write stores keys and values.
        self._tables = device.put(torch.stack(tables).to(dtype))
        self._still = device.put(torch.tensor([1, 0], dtype=dtype)).view(2, 1, 1, 1)

    def turns(self, starts: Sequence[int], ends: Sequence[int]) -> list[Turn]:
        """Return the next pass's cosines and sines by layer, for rows from starts to ends."""
        shape, rows = self._shape, list[int]()
        for start, end in zip(starts, ends, strict=True):
            longer = self._original is not None and end > self._original
            begin = self._longest if longer else 0
            rows += range(begin + start, begin + end)
        kv_heads = 1 if shape.latent is not None else shape.num_kv_heads
        both = self._tables[:, self._device.index(rows), None]
        both = both.expand(-1, -1, shape.num_heads + kv_heads, -1)
        if shape.latent is None:
            still = self._still.expand(-1, len(rows), kv_heads, both.shape[-1])
            both = torch.cat((both, still), dim=2)
        cos, sin = both.unbind()
        turns = [(cos, sin)] * shape.num_layers
        if shape.nope_layers:
            unrotated = self._unrotated(rows, cos)
            for layer in shape.nope_layers:
                turns[layer] = unrotated
        return turns

    def _unrotated(self, rows: Sequence[int], like: Tensor) -> Turn:
        """Return cosines and sines for layers without rotation; cosines may scale queries."""
        scales, temperature = torch.ones_like(like), self._shape.nope_temperature
        if temperature is not None:
            steps = torch.floor((torch.tensor(rows).float() + 1) / temperature.floor)
            scale = torch.log1p(steps) * temperature.scale + 1
            there = self._device.put(scale.to(like.dtype))
            scales[:, : self._shape.num_heads] = there[:, None, None]
        return scales, torch.zeros_like(like)

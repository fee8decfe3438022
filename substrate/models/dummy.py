"""Random weights in a model's shape, to measure times without the model's checkpoint."""

import math

import torch
from torch import Tensor

from moebench.substrate.models.naming import common_tensors
from moebench.substrate.models.shape import ModelShape

#: Most distinct random numbers of all experts: far more than the caches of a processor or a disk
#: hold, so that every copy reads from the same memory as with real weights.
MOST_VALUES = 1 << 30


class DummyWeights:
    """Random weights, equal in every run; a model generates noise with them.

    If all experts together have more than ``most`` numbers, several experts share a record.
    """

    store = None

    def __init__(self, shape: ModelShape, most: int = MOST_VALUES) -> None:
        self.shape = shape
        total = len(shape.moe_layers) * shape.num_experts
        self.distinct = min(total, max(1, most // shape.expert_params))

    def common(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return random non-expert weights by moebench's tensor names; all norm weights are 1."""
        generator = torch.Generator().manual_seed(0)
        return {
            name: torch.ones(spec.dims, dtype=dtype)
            if name.endswith("norm")
            else _drawn(spec.dims, dtype, generator)
            for name, spec in common_tensors(self.shape).items()
        }

    def expert_record(self, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        """Return the random weights of a routed expert as a flat record ``[3·I·H]``."""
        seed = 1 + layer * self.shape.num_experts + expert
        generator = torch.Generator().manual_seed(seed)
        scale = 1 / math.sqrt(self.shape.hidden_size)
        return torch.empty(self.shape.expert_params, dtype=dtype).normal_(
            0, scale, generator=generator
        )


def _drawn(dims: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return random weights, scaled so that hidden states neither vanish nor overflow."""
    return torch.empty(dims, dtype=dtype).normal_(0, 1 / math.sqrt(dims[-1]), generator=generator)

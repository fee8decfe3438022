"""Random weights in a model's shape: copying and computing with them costs what its own would."""

import math

import torch
from torch import Tensor

from moebench.substrate.models.naming import common_tensors
from moebench.substrate.models.shape import ModelShape

#: So many numbers of experts are made at most.  They are far more than any cache of a processor or
#: of a disk holds, so that every copy comes from where a real one would.
MOST_VALUES = 1 << 30


class DummyWeights:
    """Random weights, the same for every run; what a model says with them is noise.

    Where all experts together have more than `MOST_VALUES` numbers, several share a record.

    Args:
        most: in place of `MOST_VALUES`.
    """

    store = None

    def __init__(self, shape: ModelShape, most: int = MOST_VALUES) -> None:
        self.shape = shape
        total = len(shape.moe_layers) * shape.num_experts
        self.distinct = min(total, max(1, most // shape.expert_params))

    def common(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every tensor that is not a routed expert's, by our name; norms do not scale."""
        generator = torch.Generator().manual_seed(0)
        return {
            name: torch.ones(spec.dims, dtype=dtype)
            if name.endswith("norm")
            else _drawn(spec.dims, dtype, generator)
            for name, spec in common_tensors(self.shape).items()
        }

    def expert_record(self, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        """One routed expert as a flat record ``[3·I·H]``."""
        seed = 1 + layer * self.shape.num_experts + expert
        generator = torch.Generator().manual_seed(seed)
        scale = 1 / math.sqrt(self.shape.hidden_size)
        return torch.empty(self.shape.expert_params, dtype=dtype).normal_(
            0, scale, generator=generator
        )


def _drawn(dims: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Of a size at which states neither vanish nor grow beyond all bounds."""
    return torch.empty(dims, dtype=dtype).normal_(0, 1 / math.sqrt(dims[-1]), generator=generator)

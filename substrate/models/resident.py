"""Experts in memory without offloading, and whether several are computed in one product."""

from collections.abc import Sequence

import torch
from torch import Tensor

from moebench.substrate.models.expert_store import Weights
from moebench.substrate.models.formats import DTYPES, StoredAs, format_of, unpack
from moebench.substrate.models.shape import ModelShape

#: Least number of experts, and most bytes of each, for which one grouped product of their copies
#: takes less time than a product for each: calls cost more than copied bytes.
STACK_EXPERTS, STACK_BYTES = 3, 256 << 10

#: A grouped product needs matrix rows that begin at multiples of this many bytes.
STACK_STRIDE = 16


def stacks(shape: ModelShape, like: Tensor, count: int) -> bool:
    """Return whether ``count`` experts, stored like a tensor, are computed in one product."""
    size = like.element_size()
    return (
        count >= STACK_EXPERTS
        and like.dtype in DTYPES.values()  # Grouped products support no other dtype.
        and not shape.expert_bias  # Grouped products add no biases.
        and shape.expert_params * size <= STACK_BYTES
        and not shape.hidden_size * size % STACK_STRIDE
        and not shape.expert_width * size % STACK_STRIDE
        and like.device.type == "cpu"
    )


#: Experts of up to this size are cheaper to gather into one product than to compute one by one.
GATHER_BYTES = 1 << 20


class ResidentExperts:
    """All experts of a model in memory, without offloading.

    Args:
        stored_as: round the weights to this type; None leaves them unrounded.
    """

    def __init__(
        self, weights: Weights, dtype: torch.dtype, stored_as: StoredAs | None = None
    ) -> None:
        shape = self._shape = weights.shape
        made = format_of(shape, stored_as or dtype)
        # A gathered product adds no biases.
        small = shape.expert_params * dtype.itemsize <= GATHER_BYTES
        self._gathers = small and not shape.expert_bias
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in shape.moe_layers:
            records = [
                unpack(shape, made.rounded(weights.expert_record(layer, expert, dtype)))
                for expert in range(shape.num_experts)
            ]
            # Batched products of one row are fastest with [E, H, 2·I] and [E, I, H].
            gate_up, down, *biases = zip(*records, strict=True)
            self._layers[layer] = (
                torch.stack(gate_up).transpose(1, 2).contiguous(),
                torch.stack(down).transpose(1, 2).contiguous(),
            )
            if biases:
                self._biases[layer] = (torch.stack(biases[0]), torch.stack(biases[1]))

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Tensor, ...]:
        """Return gate over up ``[2·I, H]``, down ``[H, I]`` and their biases, if any, as views."""
        gate_up, down = self._layers[layer]
        if not self._biases:
            return gate_up[expert].T, down[expert].T
        gate_up_bias, down_bias = self._biases[layer]
        return gate_up[expert].T, down[expert].T, gate_up_bias[expert], down_bias[expert]

    def stacked(self, layer: int, experts: Sequence[int]) -> tuple[Tensor, ...] | None:
        """Return n small experts' matrices, ``[n, 2·I, H]`` and ``[n, H, I]``, or None."""
        gate_up, down = self._layers[layer]
        if not stacks(self._shape, gate_up, len(experts)):
            return None
        if len(experts) == len(gate_up):  # Ids are ascending, so these are all in order.
            return gate_up.mT, down.mT
        chosen = torch.tensor(experts)
        return gate_up.index_select(0, chosen).mT, down.index_select(0, chosen).mT

    def all_of(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Return all experts' matrices, transposed: ``[E, H, 2·I]`` and ``[E, I, H]``, or None.

        None if the experts are too large to copy, or have biases.
        """
        return self._layers[layer] if self._gathers else None

"""A decoder layer's common weights, fused where that saves a product; and what experts compute."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.models.attention import attention_kind
from moebench.substrate.models.layers import Norm, gate_scores
from moebench.substrate.models.naming import PROJECTIONS
from moebench.substrate.models.quantised import PackedMatrix
from moebench.substrate.models.shape import ModelShape

#: One matrix of an expert: its numbers, or packed.
Matrix = Tensor | PackedMatrix


def fused_swiglu(x: Tensor, gate_up: Matrix, down: Matrix) -> Tensor:
    """A gated block whose gate stands above its up projection: ``[2·I, H]`` and ``[H, I]``."""
    gate, up = _product(x, gate_up).chunk(2, dim=-1)
    return _product(F.silu(gate) * up, down)


def _product(x: Tensor, matrix: Matrix) -> Tensor:
    return F.linear(x, matrix) if isinstance(matrix, Tensor) else matrix.linear(x)


def grouped_swiglu(x: Tensor, gate_up: Tensor, down: Tensor, ends: Tensor) -> Tensor:
    """Several experts' gated blocks, ``[n, 2·I, H]`` and ``[n, H, I]``, each on rows of its own.

    The same bits as `fused_swiglu` one by one, which a CPU computes in just that way.

    Args:
        x: rows ``[T, H]``, those of the first expert first.
        ends: where each expert's rows end, int32 ``[n]``.
    """
    gate, up = F.grouped_mm(x, gate_up.mT, offs=ends).chunk(2, dim=-1)
    return F.grouped_mm(F.silu(gate) * up, down.mT, offs=ends)


def clamped_swiglu(
    x: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor, down_bias: Tensor,
    *, limit: float, alpha: float,
) -> Tensor:  # fmt: skip
    """The same with biases, clamped projections and up + 1 (gpt-oss)."""
    gate, up = F.linear(x, gate_up, gate_up_bias).chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.linear((up + 1) * gate * (alpha * gate).sigmoid(), down, down_bias)


def expert_function(shape: ModelShape) -> Callable[..., Tensor]:
    """What a routed expert computes from rows and its matrices, as `Experts` gives them."""
    if shape.swiglu_limit is None:
        return fused_swiglu
    return partial(clamped_swiglu, limit=shape.swiglu_limit, alpha=shape.swiglu_alpha)


class FusedLayer:
    """One layer's common weights, fused where that saves a product."""

    def __init__(self, shape: ModelShape, common: Mapping[str, Tensor], layer: int) -> None:
        def get(name: str) -> Tensor | None:
            return common.get(f"layers.{layer}.{name}")

        def feed_forward(name: str) -> tuple[Tensor, Tensor]:
            gate, up, down = (common[f"layers.{layer}.{name}.{p}"] for p in PROJECTIONS)
            return torch.cat((gate, up)), down

        def norm(name: str) -> Norm:
            return Norm(shape, common[f"layers.{layer}.{name}"], get(f"{name}.bias"))

        self.attention_norm, self.mlp_norm = norm("attention_norm"), norm("mlp_norm")
        self.attention = attention_kind(shape)(shape, common, layer)
        if layer in shape.dense_layers:
            self.dense = feed_forward("dense")
            return
        self._shape, self._router = shape, common[f"layers.{layer}.router"]
        bias = get("router.bias")
        self._router_bias = None if shape.corrects_scores else bias
        self._correction = bias if shape.corrects_scores else None
        self.shared_gate = get("shared_gate")
        if shape.shared_width:
            self.shared = feed_forward("shared")

    def gated(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and scores ``[T, E]`` of the gate on a normalised state."""
        logits = F.linear(y, self._router, self._router_bias)
        return logits, gate_scores(self._shape, logits, self._correction)

    def shared_experts(self, y: Tensor) -> Tensor:
        """SwiGLU of the shared experts as one block, scaled by a sigmoid gate if it has one."""
        out = fused_swiglu(y, *self.shared)
        if self.shared_gate is not None:
            out = out * F.linear(y, self.shared_gate).sigmoid()
        return out

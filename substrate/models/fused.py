"""Non-expert weights of a decoder layer with fused projections, and the functions of experts."""

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

#: One matrix of an expert, as a tensor or packed.
Matrix = Tensor | PackedMatrix


def fused_swiglu(x: Tensor, gate_up: Matrix, down: Matrix) -> Tensor:
    """Return SwiGLU of rows ``x``, with gate and up stacked ``[2·I, H]``, and down ``[H, I]``."""
    gate, up = _product(x, gate_up).chunk(2, dim=-1)
    return _product(F.silu(gate) * up, down)


def _product(x: Tensor, matrix: Matrix) -> Tensor:
    return F.linear(x, matrix) if isinstance(matrix, Tensor) else matrix.linear(x)


def grouped_swiglu(x: Tensor, gate_up: Tensor, down: Tensor, ends: Tensor) -> Tensor:
    """Return SwiGLU of n experts ``[n, 2·I, H]``, ``[n, H, I]``, each on its own rows.

    On a CPU the result is bit-identical to `fused_swiglu` for each expert.

    Args:
        x: rows ``[T, H]``, in the order of the experts.
        ends: end index of each expert's rows, int32 ``[n]``.
    """
    gate, up = F.grouped_mm(x, gate_up.mT, offs=ends).chunk(2, dim=-1)
    return F.grouped_mm(F.silu(gate) * up, down.mT, offs=ends)


def clamped_swiglu(
    x: Tensor, gate_up: Tensor, down: Tensor, gate_up_bias: Tensor, down_bias: Tensor,
    *, limit: float, alpha: float,
) -> Tensor:  # fmt: skip
    """Return gpt-oss's variant of SwiGLU: biases, clamped projections, and up + 1."""
    gate, up = F.linear(x, gate_up, gate_up_bias).chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.linear((up + 1) * gate * (alpha * gate).sigmoid(), down, down_bias)


def expert_function(shape: ModelShape) -> Callable[..., Tensor]:
    """Return the function that computes a routed expert from input rows and its matrices."""
    if shape.swiglu_limit is None:
        return fused_swiglu
    return partial(clamped_swiglu, limit=shape.swiglu_limit, alpha=shape.swiglu_alpha)


class FusedLayer:
    """The non-expert weights of one layer, with projections fused where that saves a product."""

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
        self._shape, self.router = shape, common[f"layers.{layer}.router"]
        bias = get("router.bias")
        self.router_bias = None if shape.corrects_scores else bias
        self.correction = bias if shape.corrects_scores else None
        self.shared_gate = get("shared_gate")
        if shape.shared_width:
            self.shared = feed_forward("shared")

    def gated(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gate's logits and scores ``[T, E]`` for a normalised state."""
        logits = F.linear(y, self.router, self.router_bias)
        return logits, gate_scores(self._shape, logits, self.correction)

    def shared_experts(self, y: Tensor) -> Tensor:
        """Return the shared experts' output, scaled by their sigmoid gate if there is one."""
        out = fused_swiglu(y, *self.shared)
        if self.shared_gate is not None:
            out = out * F.linear(y, self.shared_gate).sigmoid()
        return out

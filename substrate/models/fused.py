"""A decoder layer's common weights, fused where that saves a product."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.models.layers import Norm
from moebench.substrate.models.naming import PROJECTIONS
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.weights import fuse_attention


def fused_swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """A gated block whose gate stands above its up projection: ``[2·I, H]`` and ``[H, I]``."""
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


class FusedLayer:
    """One layer's common weights, fused where that saves a product."""

    def __init__(self, shape: ModelShape, common: Mapping[str, Tensor], layer: int) -> None:
        def get(name: str) -> Tensor | None:
            return common.get(f"layers.{layer}.{name}")

        def feed_forward(name: str) -> tuple[Tensor, Tensor]:
            gate, up, down = (common[f"layers.{layer}.{name}.{p}"] for p in PROJECTIONS)
            return torch.cat((gate, up)), down

        self.shape = shape

        def norm(name: str) -> Norm:
            return Norm(shape, common[f"layers.{layer}.{name}"], get(f"{name}.bias"))

        self.attention_norm, self.mlp_norm = norm("attention_norm"), norm("mlp_norm")
        self.qkv, self.qkv_bias = fuse_attention(common, layer)
        if shape.qk_norm != "none":
            self.q_norm, self.k_norm = norm("q_norm"), norm("k_norm")
        self.o_transposed, self.o_bias = common[f"layers.{layer}.o"].T, get("o.bias")
        if layer in shape.dense_layers:
            self.dense = feed_forward("dense")
            return
        self.router = common[f"layers.{layer}.router"]
        self.shared_gate = get("shared_gate")
        if shape.shared_width:
            self.shared = feed_forward("shared")

    def query_key_norm(self, qkv: Tensor) -> Tensor:
        """Norms and clipping of the families that have them."""
        s, d = self.shape, self.shape.head_dim
        if s.qk_norm != "none":
            q, k, v = torch.split(qkv, [s.num_heads * d, *2 * [s.num_kv_heads * d]], dim=-1)
            if s.qk_norm == "head":
                q, k = (t.reshape(*t.shape[:-1], -1, d) for t in (q, k))
            qkv = torch.cat((self.q_norm(q).flatten(1), self.k_norm(k).flatten(1), v), dim=-1)
        # OLMoE clips what its norms give.
        return qkv if s.clip_qkv is None else qkv.clamp(-s.clip_qkv, s.clip_qkv)

    def shared_experts(self, y: Tensor) -> Tensor:
        """SwiGLU of the shared experts as one block, scaled by a sigmoid gate if it has one."""
        out = fused_swiglu(y, *self.shared)
        if self.shared_gate is not None:
            out = out * F.linear(y, self.shared_gate).sigmoid()
        return out

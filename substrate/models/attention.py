"""A layer's attention: what its rows ask, what they leave in the cache, and what they find there.

Shape letters: T rows (all tokens of this pass), t rows of one sequence, H hidden, D head width.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.models.layers import Norm, rotate
from moebench.substrate.models.shape import ModelShape


class CacheWindow:
    """Every layer's views into one sequence's KV cache for one pass, cut once and not per layer."""

    def __init__(self, cache: Tensor, start: int, end: int, kv_heads: int) -> None:
        past = cache[:, :end].transpose(1, 2)[:, None]  # [layer, 1, 2 · kv heads, position, D]
        self.keys = past[:, :, :kv_heads].unbind(0)
        self.values = past[:, :, kv_heads:].unbind(0)
        #: Where this pass's entries go: [position, 2 · kv heads, D] a layer.
        self.new = cache[:, start:end].unbind(0)


class GroupedQueryAttention:
    """Heads of queries share heads of keys and values; an entry holds keys above values."""

    def __init__(self, shape: ModelShape, common: Mapping[str, Tensor], layer: int) -> None:
        self._shape = shape
        self._qkv, self._qkv_bias = _fused(common, layer)
        if shape.qk_norm != "none":
            self._q_norm, self._k_norm = (
                Norm(shape, common[f"layers.{layer}.{n}_norm"]) for n in "qk"
            )
        self._o_transposed = common[f"layers.{layer}.o"].T
        self._o_bias = common.get(f"layers.{layer}.o.bias")

    def project(self, y_TH: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries ``[T, heads, D]`` and entries ``[T, 2 · kv heads, D]`` of normalised rows."""
        s = self._shape
        qkv = self._normed(F.linear(y_TH, self._qkv, self._qkv_bias))
        heads = rotate(qkv.view(-1, s.num_heads + 2 * s.num_kv_heads, s.head_dim), cos, sin)
        return heads[:, : s.num_heads], heads[:, s.num_heads :]

    def _normed(self, qkv: Tensor) -> Tensor:
        """Norms and clipping of the families that have them."""
        s, d = self._shape, self._shape.head_dim
        if s.qk_norm != "none":
            q, k, v = torch.split(qkv, [s.num_heads * d, *2 * [s.num_kv_heads * d]], dim=-1)
            if s.qk_norm == "head":
                q, k = (t.reshape(*t.shape[:-1], -1, d) for t in (q, k))
            qkv = torch.cat((self._q_norm(q).flatten(1), self._k_norm(k).flatten(1), v), dim=-1)
        # OLMoE clips what its norms give.
        return qkv if s.clip_qkv is None else qkv.clamp(-s.clip_qkv, s.clip_qkv)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What one sequence's rows find ``[t, heads · D]``: several are a prompt from its start.

        Args:
            queries: ``[t, heads, D]``.
            keys, values: of all positions ``[1, kv heads, position, D]``.
        """
        out = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys,
            values,
            is_causal=len(queries) > 1,
            enable_gqa=self._shape.num_heads != self._shape.num_kv_heads,
        )
        return out.transpose(1, 2).reshape(len(queries), -1)

    def add(self, x_TH: Tensor, found: Tensor) -> Tensor:
        """The residual plus what was found, projected back."""
        x_TH = torch.addmm(x_TH, found, self._o_transposed)
        return x_TH if self._o_bias is None else x_TH + self._o_bias


def _fused(common: Mapping[str, Tensor], layer: int) -> tuple[Tensor, Tensor | None]:
    """Query, key and value projections as one matrix and one bias: one product, not three."""
    weight = torch.cat([common[f"layers.{layer}.{n}"] for n in "qkv"])
    if f"layers.{layer}.q.bias" not in common:
        return weight, None
    return weight, torch.cat([common[f"layers.{layer}.{n}.bias"] for n in "qkv"])

"""Attention of a decoder layer: queries, KV-cache entries and the attention outputs.

An *entry* is what one position stores in the KV cache: ``[slots, D]``.  Shape letters: T rows (all
tokens of this pass), t rows of one sequence, H hidden, D head width.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.models.layers import Norm
from moebench.substrate.models.rotary import half_split, rotate
from moebench.substrate.models.shape import AttentionWindow, ModelShape, yarn_mscale


class GroupedQueryAttention:
    """Grouped-query attention; a KV-cache entry holds the keys of all heads, then the values.

    Attributes:
        qkv, qkv_bias: the projections of queries, keys and values as one, ``[heads · D, H]``.
        q_norm, k_norm: norms of queries and keys; both or none.
        o_transposed, o_bias: the output projection ``[heads · D, H]``.
    """

    def __init__(self, shape: ModelShape, common: Mapping[str, Tensor], layer: int) -> None:
        self._shape = shape
        ours, order = f"layers.{layer}", half_split(shape)

        def projection(suffix: str = "") -> Tensor:
            """Return the Q, K and V weights (or biases) as one matrix: one product, not three."""
            rows = [common[f"{ours}.{n}{suffix}"] for n in "qkv"]
            return torch.cat([*(_arranged(r, order) for r in rows[:2]), rows[2]])

        self.qkv = projection()
        self.qkv_bias = projection(".bias") if shape.qkv_bias else None
        self.q_norm: Norm | None = None
        self.k_norm: Norm | None = None
        if shape.qk_norm in ("head", "full"):
            self.q_norm, self.k_norm = (
                Norm(shape, _arranged(common[f"{ours}.{n}_norm"], order)) for n in "qk"
            )
        elif shape.qk_norm == "l2" and layer not in shape.nope_layers:
            # Llama 4 normalises after the rotation; the order is free, as rotation keeps lengths.
            self.q_norm = self.k_norm = Norm(shape, self.qkv.new_ones(shape.head_dim))
        self._sinks = common.get(f"{ours}.sinks")
        self.o_transposed = common[f"{ours}.o"].T
        self.o_bias = common.get(f"{ours}.o.bias")
        #: Factor of the products of queries and keys; None is 1 / √D.
        self._scale: float | None = None
        self._grouped = shape.num_heads != shape.num_kv_heads

    @staticmethod
    def entry(shape: ModelShape) -> tuple[int, int]:
        """Return the dimensions of a KV-cache entry, ``(slots, D)``."""
        return 2 * shape.num_kv_heads, shape.head_dim

    @staticmethod
    def split(shape: ModelShape, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of the keys and values in entries ``[..., slots, position, D]``."""
        keys, values = entries.chunk(2, dim=-3)
        return keys, values

    def project(self, y_TH: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries ``[T, heads, D]`` and KV entries ``[T, slots, D]`` of normed rows."""
        s = self._shape
        qkv = self._normed(F.linear(y_TH, self.qkv, self.qkv_bias))
        heads = rotate(qkv.view(-1, s.num_heads + 2 * s.num_kv_heads, s.head_dim), cos, sin)
        return heads[:, : s.num_heads], heads[:, s.num_heads :]

    def _normed(self, qkv: Tensor) -> Tensor:
        """Apply the norms of queries and keys and the clipping, if the model has them."""
        s, d = self._shape, self._shape.head_dim
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = torch.split(qkv, [s.num_heads * d, *2 * [s.num_kv_heads * d]], dim=-1)
            if s.qk_norm != "full":
                q, k = (t.reshape(*t.shape[:-1], -1, d) for t in (q, k))
            qkv = torch.cat((self.q_norm(q).flatten(1), self.k_norm(k).flatten(1), v), dim=-1)
        # OLMoE clips after its norms.
        return qkv if s.clip_qkv is None else qkv.clamp(-s.clip_qkv, s.clip_qkv)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the attention output ``[t, heads · D]`` of one sequence's rows.

        Args:
            queries: ``[t, heads, D]``; more than one row is a prompt from its start.
            keys, values: of all positions that the last row sees ``[1, kv heads, position, D]``.
            mask: the positions that each row sees ``[t, position]``; None is causal.
        """
        if self._sinks is not None:
            return self._attend_with_sinks(self._sinks, queries, keys, values, mask)
        out = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None], keys, values, attn_mask=mask,
            is_causal=mask is None and len(queries) > 1, scale=self._scale,
            enable_gqa=self._grouped,
        )  # fmt: skip
        return out.transpose(1, 2).reshape(len(queries), -1)

    def _attend_with_sinks(
        self, sinks: Tensor, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return the output of attention with one sink logit a head in the softmax (gpt-oss)."""
        t, heads, d = queries.shape
        kv_heads, count = keys.shape[1:3]
        # [kv heads, queries that share one · t, position]
        grouped = queries.transpose(0, 1).reshape(kv_heads, -1, d)
        scores = (grouped @ keys[0].transpose(1, 2) * d**-0.5).view(heads, t, count)
        if mask is None and t > 1:
            mask = torch.ones(t, count, dtype=torch.bool, device=queries.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        sink = sinks.to(scores.dtype)[:, None, None].expand(heads, t, 1)
        shares = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
        out = shares.reshape(kv_heads, -1, count) @ values[0]
        return out.view(heads, t, -1).transpose(0, 1).reshape(t, -1)

    def add(self, x_TH: Tensor, found: Tensor) -> Tensor:
        """Return the residual plus the output projection of the attention output."""
        x_TH = torch.addmm(x_TH, found, self.o_transposed)
        return x_TH if self.o_bias is None else x_TH + self.o_bias


class MultiHeadLatentAttention(GroupedQueryAttention):
    """DeepSeek-V2's attention: a KV entry is one compressed vector and one rotated key.

    All heads share the entry.  The matrices that would expand it to each head's keys and values are
    applied to queries and results instead (arXiv 2405.04434, section 2.1.2): the cache is read as
    the keys of a single head, whose first part is also its values.
    """

    def __init__(self, shape: ModelShape, common: Mapping[str, Tensor], layer: int) -> None:
        assert shape.latent is not None
        self._shape, self._latent = shape, shape.latent
        m, ours, order = shape.latent, f"layers.{layer}", half_split(shape)
        self._head_width = m.qk_nope_head_dim + m.qk_rope_head_dim
        q = common[f"{ours}.q"].view(shape.num_heads, self._head_width, -1)
        q_rope = _arranged(q[:, m.qk_nope_head_dim :], order, dim=1)
        q = torch.cat((q[:, : m.qk_nope_head_dim], q_rope), dim=1).flatten(0, 1)
        down = common[f"{ours}.kv_down"]
        k_rope = _arranged(down[m.kv_lora_rank :], order)
        self._projection = torch.cat((q, down[: m.kv_lora_rank], k_rope))
        # The original module leaves this norm at its default epsilon.
        self._kv_norm = Norm(shape, common[f"{ours}.kv_norm"], eps=1e-6)
        up = common[f"{ours}.kv_up"].view(shape.num_heads, -1, m.kv_lora_rank)
        self._k_up = up[:, : m.qk_nope_head_dim].contiguous()
        self._v_up = up[:, m.qk_nope_head_dim :].transpose(1, 2).contiguous()
        self._sinks, self.o_bias = None, None
        self.o_transposed = common[f"{ours}.o"].T
        self._scale = self._head_width**-0.5
        if shape.rope_scaling is not None and shape.rope_scaling.mscale_all_dim:
            scaling = shape.rope_scaling
            self._scale *= yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2
        self._grouped = shape.num_heads != 1

    @staticmethod
    def entry(shape: ModelShape) -> tuple[int, int]:
        """Return the dimensions of an entry: one slot, with compressed vector and rotated key."""
        assert shape.latent is not None
        return 1, shape.latent.kv_lora_rank + shape.latent.qk_rope_head_dim

    @staticmethod
    def split(shape: ModelShape, entries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries as keys, and their compressed part as values."""
        assert shape.latent is not None
        return entries, entries[..., : shape.latent.kv_lora_rank]

    def project(self, y_TH: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries, mapped to the space of compressed keys, and the KV entries."""
        s, m = self._shape, self._latent
        both = F.linear(y_TH, self._projection)
        q, compressed, k_rope = torch.split(
            both, [s.num_heads * self._head_width, m.kv_lora_rank, m.qk_rope_head_dim], dim=-1
        )
        heads = q.view(-1, s.num_heads, self._head_width)
        q_nope, q_rope = torch.split(heads, [m.qk_nope_head_dim, m.qk_rope_head_dim], dim=-1)
        rotated = rotate(torch.cat((q_rope, k_rope[:, None]), dim=1), cos, sin)
        asked = torch.bmm(q_nope.transpose(0, 1), self._k_up).transpose(0, 1)
        queries = torch.cat((asked, rotated[:, : s.num_heads]), dim=-1)
        return queries, torch.cat(
            (self._kv_norm(compressed)[:, None], rotated[:, s.num_heads :]), dim=-1
        )

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Attend to the compressed entries as one KV head, then expand the output to all heads."""
        found = super().attend(queries, keys, values, mask)
        found = found.view(len(queries), self._shape.num_heads, -1).transpose(0, 1)
        return torch.bmm(found, self._v_up).transpose(0, 1).reshape(len(queries), -1)


def attention_kind(shape: ModelShape) -> type[GroupedQueryAttention]:
    """Return the attention class of a model."""
    return GroupedQueryAttention if shape.latent is None else MultiHeadLatentAttention


def _arranged(rows: Tensor, order: Tensor | None, dim: int = 0) -> Tensor:
    """Return a tensor whose rows are permuted within each attention head; None keeps the order."""
    if order is None:
        return rows
    heads = torch.unflatten(rows, dim, (-1, len(order)))
    return heads.index_select(dim + 1, order.to(rows.device)).flatten(dim, dim + 1)


class CacheWindow:
    """Views of all layers into one sequence's KV cache for one pass."""

    def __init__(self, shape: ModelShape, cache: Tensor, start: int, end: int) -> None:
        past = cache[:, :end].transpose(1, 2)[:, None]  # [layer, 1, slots, position, D]
        keys, values = attention_kind(shape).split(shape, past)
        self.keys, self.values = list(keys.unbind(0)), list(values.unbind(0))
        #: Views for the entries of this pass, one a layer: [position, slots, D].
        self.new = cache[:, start:end].unbind(0)
        #: Attention mask of each layer; None is causal.
        self.masks: list[Tensor | None] = [None] * shape.num_layers
        if shape.window is not None:
            self._narrow(shape.window, start, end)

    def _narrow(self, window: AttentionWindow, start: int, end: int) -> None:
        """Hide the positions outside the attention window from the layers that have one."""
        first = window.first(end - 1)
        if not first:
            return
        if end - start == 1:
            for layer in window.layers:
                self.keys[layer] = self.keys[layer][..., first:, :]
                self.values[layer] = self.values[layer][..., first:, :]
            return
        rows = torch.arange(start, end)
        firsts = torch.tensor([window.first(position) for position in rows.tolist()])
        positions = torch.arange(end)
        mask = (positions <= rows[:, None]) & (positions >= firsts[:, None])
        mask = mask.to(self.keys[0].device)
        for layer in window.layers:
            self.masks[layer] = mask

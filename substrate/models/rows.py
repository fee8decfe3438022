"""The layers of a decoder for the rows of one pass: the `Rows` protocol, and torch's formulas.

`few_rows.FewRows` computes the same for few rows of a small model.

Shape letters: T rows (all tokens of this pass), H hidden, E experts, K chosen experts of a row.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.models.attention import CacheWindow, GroupedQueryAttention
from moebench.substrate.models.device import Device
from moebench.substrate.models.fused import FusedLayer, fused_swiglu
from moebench.substrate.models.layers import gate_weights, own_choice
from moebench.substrate.models.rotary import Turn
from moebench.substrate.models.shape import ModelShape

#: All experts' matrices of a layer, transposed: ``[E, H, 2·I]`` and ``[E, I, H]``.
Stacks = tuple[Tensor, Tensor]

#: What an implementation of `Rows` computes with and returns: tensors, or arrays.
Values = Any


class Rows(Protocol):
    """Computes the layers of a model for the rows of one pass."""

    def embed(
        self, caches: Sequence[Tensor], starts: Sequence[int], ends: Sequence[int],
        turns: Sequence[Turn],
    ) -> None:  # fmt: skip
        """Begin a pass.

        Args:
            caches: KV cache of each sequence, ``[layer, position, *entry]``.
            starts, ends: the first position of each sequence's rows, and the one after the last.
            turns: cosines and sines of each layer.
        """

    def put(self, values: np.ndarray) -> Values:
        """Return an array, such as experts' ids, as the other methods take it."""

    def attended(self, layer: int, x_TH: Values) -> Values:
        """Return the residual plus attention, and write the new positions to the KV cache."""

    def scored(self, layer: int, x_TH: Values) -> tuple[Values, Values, Values]:
        """Return the normalised state ``[T, H]``, gate logits and scores ``[T, E]``."""

    def gated(self, layer: int, y_TH: Values) -> tuple[Values, Values]:
        """Return a gate's logits and scores ``[T, E]`` for a normalised state."""

    def own_choice(self, logits_TE: Values, scores_TE: Values) -> Values:
        """Return the model's own experts ``[T, K]``, best first (`layers.own_choice`)."""

    def gate_weights(
        self, logits_TE: Values, scores_TE: Values, ids_TK: Values, fewer: bool
    ) -> Values:
        """Return the weights of chosen experts ``[T, K]`` (`layers.gate_weights`)."""

    def outputs(
        self, layer: int, y_TH: Values, ids_TK: Values, read_as_TK: Values | None
    ) -> Values:
        """Return the outputs of all rows' chosen experts ``[T·K, H]``, where these are stacked.

        Args:
            read_as_TK: factors of the experts' inputs, if the model has them.
        """

    def shared(self, layer: int, y_TH: Values) -> Values:
        """Return the shared experts' output ``[T, H]``."""

    def mixed(
        self, x_TH: Values, shared_TH: Values | None, weights_TK: Values, outputs: Values
    ) -> Values:
        """Return the residual plus shared experts plus the weighted sum of outputs ``[T, H]``.

        Args:
            outputs: of each row's experts, ``[T·K, H]``.
        """

    def dense(self, layer: int, x_TH: Values) -> Values:
        """Return the residual plus the output of a dense layer's SwiGLU block."""


class ManyRows:
    """Computes the layers with torch, on any device and for any number of rows.

    Args:
        experts: of each layer, where all are stacked.
    """

    def __init__(
        self, shape: ModelShape, layers: Sequence[FusedLayer], experts: Mapping[int, Stacks],
        device: Device,
    ) -> None:  # fmt: skip
        self._shape, self._layers, self._experts = shape, layers, experts
        self._device = device

    def embed(
        self, caches: Sequence[Tensor], starts: Sequence[int], ends: Sequence[int],
        turns: Sequence[Turn],
    ) -> None:  # fmt: skip
        """Begin a pass."""
        self._turns = turns
        self._new = [end - start for start, end in zip(starts, ends, strict=True)]
        self._windows = [
            CacheWindow(self._shape, cache, start, end)
            for cache, start, end in zip(caches, starts, ends, strict=True)
        ]

    def put(self, values: np.ndarray) -> Tensor:
        """Return an array as a tensor on the device."""
        return self._device.put(torch.from_numpy(values))

    def attended(self, layer: int, x_TH: Tensor) -> Tensor:
        """Return the residual plus attention, and write the new positions to the KV cache."""
        w = self._layers[layer]
        attention = w.attention
        q, kv = attention.project(w.attention_norm(x_TH), *self._turns[layer])
        return attention.add(x_TH, self._found(layer, attention, q, kv))

    def _found(self, layer: int, attention: GroupedQueryAttention, q: Tensor, kv: Tensor) -> Tensor:
        """Return the attention output of all rows ``[T, heads · D]``, one sequence at a time."""
        single = len(self._new) == 1
        queries = (q,) if single else torch.split(q, self._new)
        entries = (kv,) if single else torch.split(kv, self._new)
        outputs = []
        for window, query, entry in zip(self._windows, queries, entries, strict=True):
            window.new[layer].copy_(entry)
            keys, values, mask = window.keys[layer], window.values[layer], window.masks[layer]
            outputs.append(attention.attend(query, keys, values, mask))
        return outputs[0] if single else torch.cat(outputs)

    def scored(self, layer: int, x_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised state ``[T, H]``, gate logits and scores ``[T, E]``."""
        y = self._layers[layer].mlp_norm(x_TH)
        return y, *self.gated(layer, y)

    def gated(self, layer: int, y_TH: Tensor) -> tuple[Tensor, Tensor]:
        """Return a gate's logits and scores ``[T, E]`` for a normalised state."""
        return self._layers[layer].gated(y_TH)

    def own_choice(self, logits_TE: Tensor, scores_TE: Tensor) -> Tensor:
        """Return the model's own experts ``[T, K]``, best first."""
        return own_choice(self._shape, logits_TE, scores_TE)

    def gate_weights(
        self, logits_TE: Tensor, scores_TE: Tensor, ids_TK: Tensor, fewer: bool
    ) -> Tensor:
        """Return the weights of chosen experts ``[T, K]``."""
        return gate_weights(self._shape, logits_TE, scores_TE, ids_TK, fewer)

    def outputs(
        self, layer: int, y_TH: Tensor, ids_TK: Tensor, read_as_TK: Tensor | None
    ) -> Tensor:
        """Return the outputs of all rows' chosen experts ``[T·K, H]``, from one product."""
        ids = ids_TK.reshape(-1)
        gate_up, down = (stack.index_select(0, ids) for stack in self._experts[layer])
        t, k = ids_TK.shape
        rows = y_TH[:, None].expand(t, k, -1)
        if read_as_TK is not None:
            rows = rows * read_as_TK[..., None].to(rows.dtype)
        gate, up = torch.bmm(rows.reshape(t * k, 1, -1), gate_up).chunk(2, dim=-1)
        return torch.bmm(F.silu(gate) * up, down).squeeze(1)

    def shared(self, layer: int, y_TH: Tensor) -> Tensor:
        """Return the shared experts' output ``[T, H]``."""
        return self._layers[layer].shared_experts(y_TH)

    def mixed(
        self, x_TH: Tensor, shared_TH: Tensor | None, weights_TK: Tensor, outputs: Tensor
    ) -> Tensor:
        """Return the residual plus shared experts plus the weighted sum of outputs ``[T, H]``."""
        x = x_TH if shared_TH is None else x_TH + shared_TH
        outputs_TKH = outputs.view(*weights_TK.shape, -1)
        weights_T1K = weights_TK.to(x.dtype)[:, None]
        return torch.baddbmm(x[:, None], weights_T1K, outputs_TKH).squeeze(1)

    def dense(self, layer: int, x_TH: Tensor) -> Tensor:
        """Return the residual plus the output of a dense layer's SwiGLU block."""
        w = self._layers[layer]
        return x_TH + fused_swiglu(w.mlp_norm(x_TH), *w.dense)

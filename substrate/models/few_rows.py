"""The layers of a small model for few rows, computed by the compiled loops of `kernels`.

For one row of a model that is 56 wide, calls of torch's operations take ten times as long as their
sums, so each step of a layer is one call here.  The formulas are those of `layers`, `attention` and
`fused`, where their sources are; results differ from torch's by rounding alone.

Shape letters: T rows, H hidden, E experts, K chosen experts of a row, D head width.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from moebench.substrate.models import kernels
from moebench.substrate.models.fused import FusedLayer
from moebench.substrate.models.kernels import AttentionWeights, GateWeights, NormWeights
from moebench.substrate.models.layers import Norm, gate_weights, own_choice
from moebench.substrate.models.rotary import Turn
from moebench.substrate.models.rows import Stacks, Values
from moebench.substrate.models.shape import GateKind, ModelShape

Array = np.ndarray

#: Gates whose scores are the softmax of the logits, and whose weights are scores.
_BY_SOFTMAX = (GateKind.SOFTMAX_TOPK, GateKind.SOFTMAX_TOPK_RENORM)
_BY_SIGMOID = (GateKind.SIGMOID_BIAS_TOPK_RENORM, GateKind.TOPK_SIGMOID)

#: Stand for a vector and a matrix that a model does not have.
_NO_VECTOR, _NO_MATRIX = np.empty(0, np.float32), np.empty((0, 0), np.float32)


class FewRows:
    """Computes the layers of a small model for one new row of each sequence (`rows.Rows`).

    The weights are in fp32 on the CPU.  Values are arrays: to change an array to a tensor, or back,
    takes as long as the sums of some kernels.
    """

    def __init__(
        self, shape: ModelShape, layers: Sequence[FusedLayer], experts: Mapping[int, Stacks]
    ) -> None:
        self._shape = shape
        self._layers = [_Layer(shape, layer, number) for number, layer in enumerate(layers)]
        self._experts = {
            layer: (gate_up.numpy(), down.numpy()) for layer, (gate_up, down) in experts.items()
        }

    def embed(
        self, caches: Sequence[Tensor], starts: Sequence[int], ends: Sequence[int],
        turns: Sequence[Turn],
    ) -> None:  # fmt: skip
        """Begin a pass: each sequence's row is at its start."""
        self._caches, self._positions = [cache.numpy() for cache in caches], starts
        arrays: dict[int, tuple[Array, Array]] = {}
        for cos, sin in turns:
            if id(cos) not in arrays:  # most layers share theirs
                arrays[id(cos)] = _array(cos), _array(sin)
        self._turns = [arrays[id(cos)] for cos, _ in turns]

    def put(self, values: Array) -> Array:
        """Return the array, whose values follow each other in memory, as kernels need."""
        return np.ascontiguousarray(values)

    def attended(self, layer: int, x_TH: Values) -> Array:
        """Return the residual plus attention, and write the new positions to the KV cache."""
        x, (cos, sin), window = np.asarray(x_TH), self._turns[layer], self._shape.window
        out, weights = np.empty_like(x), self._layers[layer].attention
        for row, (cache, at) in enumerate(zip(self._caches, self._positions, strict=True)):
            first = 0 if window is None or layer not in window.layers else window.first(at)
            kernels.attend(x[row], cache[layer], at, first, cos[row], sin[row], out[row], *weights)
        return out

    def scored(self, layer: int, x_TH: Values) -> tuple[Array, Array, Array]:
        """Return the normalised state ``[T, H]``, gate logits and scores ``[T, E]``."""
        x, w = np.asarray(x_TH), self._layers[layer]
        y, logits, scores = np.empty_like(x), *self._for_scores(len(x))
        kernels.score(x, y, logits, scores, *w.norm, *w.gate)
        return y, logits, scores

    def gated(self, layer: int, y_TH: Array) -> tuple[Array, Array]:
        """Return a gate's logits and scores ``[T, E]`` for a normalised state."""
        logits, scores = self._for_scores(len(y_TH))
        kernels.score_normed(y_TH, logits, scores, *self._layers[layer].gate)
        return logits, scores

    def _for_scores(self, rows: int) -> tuple[Array, Array]:
        both = np.empty((2, rows, self._shape.num_experts), np.float32)
        return both[0], both[1]

    def own_choice(self, logits_TE: Array, scores_TE: Array) -> Array:
        """Return the model's own experts ``[T, K]``, best first."""
        if self._shape.gate not in _BY_SOFTMAX or self._shape.gate_groups is not None:
            logits, scores = map(torch.as_tensor, (logits_TE, scores_TE))
            return np.asarray(own_choice(self._shape, logits, scores))
        ids = np.empty((len(scores_TE), self._shape.top_k), np.int64)
        kernels.choose(scores_TE, ids)
        return ids

    def gate_weights(self, logits_TE: Array, scores_TE: Array, ids_TK: Array, fewer: bool) -> Array:
        """Return the weights of chosen experts ``[T, K]``."""
        if fewer or self._shape.gate not in _BY_SOFTMAX:
            logits, scores, ids = map(torch.as_tensor, (logits_TE, scores_TE, ids_TK))
            return np.asarray(gate_weights(self._shape, logits, scores, ids, fewer))
        out = np.empty(ids_TK.shape, np.float32)
        renormalises = self._shape.gate is GateKind.SOFTMAX_TOPK_RENORM
        scale = self._shape.routed_scaling_factor
        kernels.weigh(scores_TE, ids_TK, renormalises, scale, out)
        return out

    def outputs(self, layer: int, y_TH: Array, ids_TK: Values, read_as_TK: Values | None) -> Array:
        """Return the outputs of all rows' chosen experts ``[T·K, H]``."""
        ids = np.asarray(ids_TK)
        y, out = y_TH, np.empty((ids.size, y_TH.shape[1]), np.float32)
        if read_as_TK is not None:
            y = (y[:, None] * np.asarray(read_as_TK)[..., None]).reshape(out.shape)
        kernels.compute(y, ids, *self._experts[layer], out)
        return out

    def shared(self, layer: int, y_TH: Array) -> Array:
        """Return the shared experts' output ``[T, H]``."""
        out = np.empty_like(y_TH)
        kernels.feed_forward(y_TH, *self._layers[layer].shared, out)
        return out

    def mixed(
        self, x_TH: Array, shared_TH: Array | None, weights_TK: Values, outputs: Values
    ) -> Array:
        """Return the residual plus shared experts plus the weighted sum of outputs ``[T, H]``."""
        out, shared = np.empty_like(x_TH), _NO_MATRIX if shared_TH is None else shared_TH
        weights = np.ascontiguousarray(weights_TK, np.float32)
        kernels.mix(x_TH, shared, weights, np.asarray(outputs), out)
        return out

    def dense(self, layer: int, x_TH: Array) -> Array:
        """Return the residual plus the output of a dense layer's SwiGLU block."""
        out, w = np.empty_like(x_TH), self._layers[layer]
        kernels.dense(x_TH, w.norm, *w.dense, out)
        return out


def computes(shape: ModelShape, like: Tensor) -> bool:
    """Return whether `FewRows` has the formulas of a model in this precision and on this device.

    Args:
        like: a weight of the model.
    """
    return (
        like.dtype is torch.float32
        and like.device.type == "cpu"
        and shape.latent is None
        and shape.swiglu_limit is None
        and not shape.attention_sinks
    )


class _Layer:
    """The non-expert weights of one layer, as kernels take them."""

    def __init__(self, shape: ModelShape, layer: FusedLayer, number: int) -> None:
        own = layer.attention
        attention = AttentionWeights(
            norm=_of_norm(layer.attention_norm),
            qkv=_transposed(own.qkv),
            qkv_bias=_vector(own.qkv_bias),
            q_norm=_of_norm(own.q_norm),
            k_norm=_of_norm(own.k_norm),
            out=_array(own.o_transposed),
            out_bias=_vector(own.o_bias),
            kv_heads=shape.num_kv_heads,
            clip=float(shape.clip_qkv or 0.0),
            scale=shape.head_dim**-0.5,
        )
        self.attention = kernels.flat(attention)
        self.norm = _of_norm(layer.mlp_norm)
        if number in shape.dense_layers:
            self.dense = _transposed(layer.dense[0]), _transposed(layer.dense[1])
            return
        router, correction = _transposed(layer.router), _vector(layer.correction)
        bias, sigmoid = _vector(layer.router_bias), shape.gate in _BY_SIGMOID
        self.gate = GateWeights(router, bias, correction, sigmoid)
        if shape.shared_width:
            gate = layer.shared_gate
            factor = _NO_MATRIX if gate is None else _transposed(gate)
            self.shared = _transposed(layer.shared[0]), _transposed(layer.shared[1]), factor


def _of_norm(norm: Norm | None) -> NormWeights:
    if norm is None:
        return NormWeights(_NO_VECTOR, _NO_VECTOR, 0.0, centres=False)
    return NormWeights(_vector(norm.weight), _vector(norm.bias), norm.eps, norm.layer_norm)


def _vector(values: Tensor | None) -> Array:
    return _NO_VECTOR if values is None else _array(values)


def _transposed(matrix: Tensor) -> Array:
    return _array(matrix.T)


def _array(values: Tensor) -> Array:
    """Return a tensor as an array whose values follow each other in memory, as kernels need."""
    return np.ascontiguousarray(values.numpy())

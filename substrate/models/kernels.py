"""Compiled loops of a small model's layer for few rows, in fp32.

Numba compiles these functions when they are first called, and keeps the machine code beside this
file or in the user's cache folder.  Sums run in the written order and are not rearranged, so that
every processor with the same ``exp`` gives the same bits.  Matrices are transposed, ``[in, out]``;
an array of length 0 stands for one that a model does not have.

Shape letters: T rows, H hidden, E experts, K chosen experts a row, D head width, P positions.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

Array = np.ndarray
_Function = TypeVar("_Function", bound=Callable[..., object])


class NormWeights(NamedTuple):
    """A norm over rows; a LayerNorm if it centres, else an RMSNorm."""

    weight: Array
    bias: Array
    eps: float
    centres: bool


class AttentionWeights(NamedTuple):
    """The weights of a layer's attention.

    Attributes:
        norm: of the residual.
        qkv, qkv_bias: the projections of queries, keys and values as one.
        q_norm, k_norm: RMSNorms of each head ``[D]``, or of all heads as one; without one, its
            weight has length 0.
        out, out_bias: the output projection.
        kv_heads: heads of keys.
        clip: the limit of queries, keys and values; 0 is none.
        scale: factor of products of queries and keys.
    """

    norm: NormWeights
    qkv: Array
    qkv_bias: Array
    q_norm: NormWeights
    k_norm: NormWeights
    out: Array
    out_bias: Array
    kv_heads: int
    clip: float
    scale: float


class GateWeights(NamedTuple):
    """The weights of a gate, and whether its scores are sigmoids in place of a softmax."""

    router: Array
    bias: Array
    correction: Array
    sigmoid: bool


def flat(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a tuple and of tuples in it: a kernel is called faster with these."""
    return tuple(
        one for value in values for one in (flat(value) if isinstance(value, tuple) else (value,))
    )


def _compiled(function: _Function) -> _Function:
    try:
        made = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder for machine code can be written: each process compiles
        made = numba.njit(error_model="numpy")(function)
    return cast(_Function, made)


@_compiled
def _product(x: Array, matrix: Array, bias: Array, out: Array) -> None:
    """Write x · matrix + bias to ``out``."""
    for o in range(out.size):
        out[o] = bias[o] if bias.size else np.float32(0)
    whole = x.size // 4 * 4
    for i in range(0, whole, 4):  # four inputs at once, in their order: fewer reads of the sums
        a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
        for o in range(out.size):
            out[o] = (
                out[o] + a * matrix[i, o] + b * matrix[i + 1, o] + c * matrix[i + 2, o]
                + d * matrix[i + 3, o]
            )  # fmt: skip
    for i in range(whole, x.size):
        for o in range(out.size):
            out[o] += x[i] * matrix[i, o]


@_compiled
def _dot(x: Array, y: Array) -> np.float32:
    """Return x · y as four sums, of which a processor adds to one while it waits for another."""
    a, b, c, e = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    whole = x.size // 4 * 4
    for i in range(0, whole, 4):
        a += x[i] * y[i]
        b += x[i + 1] * y[i + 1]
        c += x[i + 2] * y[i + 2]
        e += x[i + 3] * y[i + 3]
    for i in range(whole, x.size):
        a += x[i] * y[i]
    return (a + b) + (c + e)


@_compiled
def _norm(x: Array, norm: NormWeights, out: Array) -> None:
    """Write the norm of a row to ``out``, which may be the row."""
    mean, squares = 0.0, 0.0
    if norm.centres:
        for i in range(x.size):
            mean += x[i]
        mean /= x.size
    for i in range(x.size):
        squares += (x[i] - mean) ** 2
    scale = 1 / math.sqrt(squares / x.size + norm.eps)
    for i in range(x.size):
        value = (x[i] - mean) * scale * norm.weight[i]
        out[i] = value + norm.bias[i] if norm.bias.size else value


@_compiled
def _softmax(x: Array) -> None:
    """Replace logits by their softmax."""
    most = x[0]
    for i in range(1, x.size):
        most = max(most, x[i])
    total = 0.0
    for i in range(x.size):
        x[i] = math.exp(x[i] - most)
        total += x[i]
    for i in range(x.size):
        x[i] /= total


@_compiled
def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@_compiled
def _swiglu(both: Array, down: Array, out: Array) -> None:
    """Write (SiLU(gate) · up) · down to ``out``; ``both`` holds gate, then up, and is changed."""
    width = both.size // 2
    for i in range(width):
        both[i] *= np.float32(_sigmoid(both[i])) * both[width + i]
    _product(both[:width], down, both[:0], out)


@_compiled
def attend(
    x: Array, cache: Array, at: int, first: int, cos: Array, sin: Array, out: Array, *weights: Any
) -> None:
    """Write a row's residual plus attention to ``out``, and its entry to the KV cache.

    Args:
        x: the residual ``[H]``.
        cache: of this layer, ``[P, 2 · kv heads, D]``.
        at, first: positions of the row, and the first that it sees.
        cos, sin: of queries, keys and values, ``[heads + 2 · kv heads, D]`` (`rotary.rotate`).
        weights: the `flat` values of `AttentionWeights`.
    """
    norm, q_norm, k_norm = weights[:4], weights[6:10], weights[10:14]
    w = AttentionWeights(
        NormWeights(*norm), weights[4], weights[5], NormWeights(*q_norm), NormWeights(*k_norm),
        *weights[14:],
    )  # fmt: skip
    heads = len(cos) - 2 * w.kv_heads
    turned = np.empty_like(cos)
    _project(x, cos, sin, w, turned)
    cache[at] = turned[heads:]
    found = np.zeros(turned[:heads].size, np.float32)
    _attend(turned[:heads], cache[first : at + 1], w.kv_heads, np.float32(w.scale), found)
    _product(found, w.out, w.out_bias, out)
    for i in range(x.size):
        out[i] += x[i]


@_compiled
def _project(x: Array, cos: Array, sin: Array, w: AttentionWeights, out: Array) -> None:
    """Write rotated queries and keys, and values, to ``out`` ``[heads + 2 · kv heads, D]``."""
    rows, d = cos.shape
    y, both = np.empty(x.size, np.float32), np.empty(rows * d, np.float32)
    _norm(x, w.norm, y)
    _product(y, w.qkv, w.qkv_bias, both)
    keys, values = (rows - 2 * w.kv_heads) * d, (rows - w.kv_heads) * d
    if w.q_norm.weight.size:
        _norm_each(both[:keys], w.q_norm)
        _norm_each(both[keys:values], w.k_norm)
    if w.clip:
        for i in range(both.size):
            both[i] = min(max(both[i], -w.clip), w.clip)
    for h in range(rows):
        for i in range(d):
            other = both[h * d + (i + d // 2) % d]
            out[h, i] = both[h * d + i] * cos[h, i] + other * sin[h, i]


@_compiled
def _norm_each(x: Array, norm: NormWeights) -> None:
    """Replace each part of x that is as long as the norm by its norm."""
    width = norm.weight.size
    for start in range(0, x.size, width):
        _norm(x[start : start + width], norm, x[start : start + width])


@_compiled
def _attend(queries: Array, past: Array, kv_heads: int, scale: np.float32, out: Array) -> None:
    """Add the values ``[heads · D]``, weighted by their shares, to ``out``.

    Args:
        queries: ``[heads, D]``.
        past: entries of the positions that the row sees, ``[P, 2 · kv heads, D]``.
    """
    heads, d = queries.shape
    shares = np.empty(len(past), np.float32)
    for h in range(heads):
        key, query = h // (heads // kv_heads), queries[h]
        for p in range(len(past)):
            shares[p] = _dot(query, past[p, key]) * scale
        _softmax(shares)
        found = out[h * d : (h + 1) * d]
        for p in range(len(past)):
            share, values = shares[p], past[p, kv_heads + key]
            for i in range(d):
                found[i] += share * values[i]


@_compiled
def score(x: Array, y: Array, logits: Array, scores: Array, *weights: Any) -> None:
    """Write the normalised states ``[T, H]`` of rows, their gate logits and scores ``[T, E]``.

    Args:
        weights: the values of `NormWeights`, then of `GateWeights`.
    """
    for t in range(len(x)):
        _norm(x[t], NormWeights(*weights[:4]), y[t])
    score_normed(y, logits, scores, *weights[4:])


@_compiled
def score_normed(y: Array, logits: Array, scores: Array, *weights: Any) -> None:
    """Write gate logits and scores ``[T, E]`` of normalised states (`layers.gate_scores`).

    Args:
        weights: the values of `GateWeights`.
    """
    gate = GateWeights(*weights)
    for t in range(len(y)):
        _product(y[t], gate.router, gate.bias, logits[t])
        scores[t] = logits[t]
        if not gate.sigmoid:
            _softmax(scores[t])
            continue
        for e in range(scores.shape[1]):
            value = _sigmoid(logits[t, e])
            scores[t, e] = value + gate.correction[e] if gate.correction.size else value


@_compiled
def choose(scores: Array, ids: Array) -> None:
    """Write the experts with the highest scores to ``ids`` ``[T, K]``; of equal ones the first."""
    rest = scores.copy()
    for t in range(len(ids)):
        for k in range(ids.shape[1]):
            best = 0
            for e in range(1, rest.shape[1]):
                if rest[t, e] > rest[t, best]:
                    best = e
            ids[t, k] = best
            rest[t, best] = -np.inf


@_compiled
def _checked(expert: int, experts: int) -> int:
    """Return an expert's id: compiled loops would read behind an array."""
    if not 0 <= expert < experts:
        raise IndexError("a system chose an expert that the model does not have")
    return expert


@_compiled
def weigh(scores: Array, ids: Array, renormalises: bool, scale: float, out: Array) -> None:
    """Write the weights ``[T, K]`` of chosen experts: their scores, over their sum if so asked.

    Raises IndexError: there is no such expert.
    """
    for t in range(len(ids)):
        total = np.float32(0)
        for k in range(ids.shape[1]):
            out[t, k] = scores[t, _checked(ids[t, k], scores.shape[1])]
            total += out[t, k]
        if renormalises:
            for k in range(ids.shape[1]):
                out[t, k] /= total
        for k in range(ids.shape[1]):
            out[t, k] *= scale


@_compiled
def compute(y: Array, ids: Array, gate_up: Array, down: Array, out: Array) -> None:
    """Write the outputs ``[T · K, H]`` of experts ``ids`` ``[T, K]`` on the states ``[T · K, H]``.

    Args:
        y: one row for each place, or one for each row of ``ids``.
        gate_up, down: of all experts, ``[E, H, 2·I]`` and ``[E, I, H]``.

    Raises IndexError: there is no such expert.
    """
    places, each = ids.size, ids.size // len(y)
    flat, both = ids.reshape(-1), np.empty(gate_up.shape[2], np.float32)
    none = both[:0]
    for place in range(places):
        expert = _checked(flat[place], len(down))
        _product(y[place // each], gate_up[expert], none, both)
        _swiglu(both, down[expert], out[place])


@_compiled
def feed_forward(y: Array, gate_up: Array, down: Array, factor: Array, out: Array) -> None:
    """Write SwiGLU of rows to ``out``, times the sigmoid of the product with ``factor`` if any."""
    both, scale = np.empty(gate_up.shape[1], np.float32), np.empty(1, np.float32)
    none = both[:0]
    for t in range(len(y)):
        _product(y[t], gate_up, none, both)
        _swiglu(both, down, out[t])
        if factor.size:
            _product(y[t], factor, none, scale)
            out[t] *= np.float32(_sigmoid(scale[0]))


@_compiled
def dense(x: Array, norm: NormWeights, gate_up: Array, down: Array, out: Array) -> None:
    """Write the residuals ``[T, H]`` plus SwiGLU of their norms."""
    y = np.empty_like(x)
    for t in range(len(x)):
        _norm(x[t], norm, y[t])
    feed_forward(y, gate_up, down, x[:0], out)
    out += x


@_compiled
def mix(x: Array, shared: Array, weights: Array, outputs: Array, out: Array) -> None:
    """Write residuals ``[T, H]`` plus shared outputs, if any, plus the weighted sums of outputs.

    Args:
        weights: ``[T, K]``; outputs: ``[T · K, H]``.
    """
    ranks = weights.shape[1]
    for t in range(len(x)):
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] + shared[t, i] if shared.size else x[t, i]
        for k in range(ranks):
            weight = weights[t, k]
            for i in range(x.shape[1]):
                out[t, i] += weight * outputs[t * ranks + k, i]

"""Compiled loops compared with NumPy's own functions in fp64, compiled and as plain Python.

Bounds of deviations are those of fp32 sums of a few dozen terms.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

kernels = pytest.importorskip(
    "moebench.substrate.models.kernels", reason="numba is not installed: pip install '.[fast]'"
)

Array = np.ndarray
NONE, NO_MATRIX = np.empty(0, np.float32), np.empty((0, 0), np.float32)


@pytest.fixture(params=["compiled", "plain"])
def way(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Return a kernel as it is, or the function that it is compiled from."""
    return (lambda one: one) if request.param == "compiled" else (lambda one: one.py_func)


def drawn(*dims: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *dims]).standard_normal(dims).astype(np.float32)


def near(found: Array, truth: Array) -> None:
    np.testing.assert_allclose(found, truth, rtol=1e-5, atol=2e-5)


def norm(weight: Array, bias: Array = NONE, eps: float = 1e-3, centres: bool = False) -> Any:
    return kernels.NormWeights(weight, bias, eps, centres)


def normed(x: Array, of: Any) -> Array:
    x = x.astype(np.float64)
    x = x - x.mean(-1, keepdims=True) if of.centres else x
    found = x / np.sqrt((x**2).mean(-1, keepdims=True) + of.eps) * of.weight
    return found + of.bias if len(of.bias) else found


def swiglu(x: Array, gate_up: Array, down: Array) -> Array:
    gate, up = np.split(x.astype(np.float64) @ gate_up, 2, axis=-1)
    return gate * expit(gate) * up @ down


def test_loops_are_compiled_even_where_no_machine_code_can_be_kept(monkeypatch) -> None:
    asked: list[bool] = []
    compiling = kernels.numba.njit

    def without_folders(cache: bool = False, **more: Any) -> Any:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compiling(**more)

    with monkeypatch.context() as only_here:
        only_here.setattr(kernels.numba, "njit", without_folders)
        made = kernels._compiled(lambda x: x + 1)
    assert made(2) == 3
    assert asked == [True, False]


@pytest.mark.parametrize("inputs", [1, 4, 7])
@pytest.mark.parametrize("bias", [NONE, drawn(5, seed=2)])
def test_a_product_has_the_numbers_of_numpy(way, inputs: int, bias: Array) -> None:
    x, matrix, out = drawn(inputs), drawn(inputs, 5), drawn(5)
    way(kernels._product)(x, matrix, bias, out)
    near(out, x @ matrix + (bias if len(bias) else 0))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 33), st.integers(0, 9))
def test_sums_run_in_the_written_order(inputs: int, seed: int) -> None:
    """The bits are those of one addition after the other: no processor rearranges them."""
    x, matrix, out = drawn(inputs, seed=seed), drawn(inputs, 3, seed=seed), np.empty(3, np.float32)
    kernels._product(x, matrix, NONE, out)
    truth = np.zeros(3, np.float32)
    for value, row in zip(x, matrix, strict=True):
        truth += value * row
    assert out.tobytes() == truth.tobytes()


@pytest.mark.parametrize("width", [3, 4, 9])
def test_a_dot_product_counts_every_value(way, width: int) -> None:
    x, y = drawn(width), drawn(width, seed=1)
    near(np.float32(way(kernels._dot)(x, y)), x @ y)


@pytest.mark.parametrize("centres", [False, True])
@pytest.mark.parametrize("bias", [NONE, drawn(6, seed=3)])
def test_norms_are_those_of_their_definition(way, centres: bool, bias: Array) -> None:
    x, of, out = drawn(6) * 3 + 1, norm(drawn(6, seed=1), bias, centres=centres), drawn(6)
    way(kernels._norm)(x, of, out)
    near(out, normed(x, of))
    way(kernels._norm)(x, of, x)  # in place
    near(x, out)


def test_a_softmax_of_large_logits_is_finite(way) -> None:
    x = np.array([1000, 999, -1000, 1000], np.float32)
    truth = softmax(x.astype(np.float64))
    way(kernels._softmax)(x)
    near(x, truth)


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("normed_heads", ["none", "each", "all"])
def test_attention_reads_the_positions_that_a_row_sees(
    way, monkeypatch, heads: int, first: int, clip: float, normed_heads: str
) -> None:
    hidden, d, kv_heads, at = 6, 4, 2, 5
    for helper in ("_project", "_norm_each", "_attend"):
        monkeypatch.setattr(kernels, helper, way(getattr(kernels, helper)))
    rows = heads + 2 * kv_heads
    x, cache = drawn(hidden), drawn(8, 2 * kv_heads, d)
    cos, sin = drawn(rows, d, seed=1), drawn(rows, d, seed=2)
    widths = {"none": (0, 0), "each": (d, d), "all": (heads * d, kv_heads * d)}[normed_heads]
    q_norm, k_norm = (norm(1 + abs(drawn(width, seed=3)), eps=0.01) for width in widths)
    w = kernels.AttentionWeights(
        norm(drawn(hidden, seed=4)), drawn(hidden, rows * d, seed=5), drawn(rows * d, seed=6),
        q_norm, k_norm, drawn(heads * d, hidden, seed=7), drawn(hidden, seed=8), kv_heads, clip,
        0.7,
    )  # fmt: skip

    both = (normed(x, w.norm) @ w.qkv + w.qkv_bias).reshape(rows, d)
    parts = {"q": both[:heads], "k": both[heads:-kv_heads], "v": both[-kv_heads:]}
    for name, of in (("q", q_norm), ("k", k_norm)):
        if normed_heads == "each":
            parts[name] = normed(parts[name], of)
        elif normed_heads == "all":
            parts[name] = normed(parts[name].reshape(1, -1), of).reshape(-1, d)
    both = np.concatenate([*parts.values()])
    both = both.clip(-clip, clip) if clip else both
    turned = both * cos + np.roll(both, d // 2, axis=1) * sin
    known = cache.astype(np.float64)
    known[at] = turned[heads:]
    found = []
    for h in range(heads):
        key = h // (heads // kv_heads)
        seen = known[first : at + 1]
        shares = softmax(seen[:, key] @ turned[h] * 0.7)
        found.append(shares @ seen[:, kv_heads + key])

    out = np.empty(hidden, np.float32)
    before = cache.copy()
    way(kernels.attend)(x, cache, at, first, cos, sin, out, *kernels.flat(w))
    np.testing.assert_allclose(out, x + np.concatenate(found) @ w.out + w.out_bias, atol=2e-4)
    near(cache[at], turned[heads:])
    others = [p for p in range(8) if p != at]
    assert np.array_equal(cache[others], before[others])


@pytest.mark.parametrize("correction", [NONE, drawn(5, seed=4)])
@pytest.mark.parametrize("bias", [NONE, drawn(5, seed=5)])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_scores_are_a_softmax_or_corrected_sigmoids(
    way, monkeypatch, sigmoid: bool, bias: Array, correction: Array
) -> None:
    monkeypatch.setattr(kernels, "score_normed", way(kernels.score_normed))
    monkeypatch.setattr(kernels, "_sigmoid", way(kernels._sigmoid))
    x, of = drawn(3, 4), norm(drawn(4, seed=1))
    gate = kernels.GateWeights(drawn(4, 5), bias, correction, sigmoid)
    y, logits, scores = drawn(3, 4), drawn(3, 5), drawn(3, 5)
    way(kernels.score)(x, y, logits, scores, *of, *gate)
    near(y, normed(x, of))
    truth = normed(x, of) @ gate.router + (bias if len(bias) else 0)
    near(logits, truth)
    corrected = expit(truth) + (correction if len(correction) else 0)
    near(scores, corrected if sigmoid else softmax(truth, axis=1))


def test_the_highest_scores_are_chosen_best_first_and_the_first_of_equal_ones(way) -> None:
    scores = np.array([[0.1, 0.4, 0.4, 0.3, 0.4], [0.5, 0.1, 0.2, 0.3, 0.0]], np.float32)
    before, ids = scores.copy(), np.empty((2, 3), np.int64)
    way(kernels.choose)(scores, ids)
    assert ids.tolist() == [[1, 2, 4], [0, 3, 2]]
    assert np.array_equal(scores, before)


@pytest.mark.parametrize(("renormalises", "weights"), [(False, [0.8, 0.4]), (True, [4 / 3, 2 / 3])])
def test_weights_are_scores_or_shares_of_their_sum(way, renormalises: bool, weights) -> None:
    scores = np.array([[0.2, 0.4, 0.1], [0.3, 0.3, 0.3]], np.float32)
    out = np.empty((2, 2), np.float32)
    way(kernels.weigh)(scores, np.array([[1, 0], [2, 1]]), renormalises, 2.0, out)
    near(out, [weights, [1.0, 1.0] if renormalises else [0.6, 0.6]])


@pytest.mark.parametrize("expert", [-1, 3])
def test_an_expert_that_the_model_does_not_have_is_an_error(way, monkeypatch, expert: int) -> None:
    monkeypatch.setattr(kernels, "_checked", way(kernels._checked))
    y, ids, out = drawn(1, 6), np.array([[0, expert]]), np.empty((2, 6), np.float32)
    with pytest.raises(IndexError, match="an expert that the model does not have"):
        way(kernels.compute)(y, ids, drawn(3, 6, 10), drawn(3, 5, 6), out)
    with pytest.raises(IndexError, match="an expert that the model does not have"):
        way(kernels.weigh)(drawn(1, 3), ids, False, 1.0, np.empty((1, 2), np.float32))


@pytest.mark.parametrize("own_rows", [False, True])
def test_experts_compute_the_rows_that_chose_them(way, monkeypatch, own_rows: bool) -> None:
    monkeypatch.setattr(kernels, "_swiglu", way(kernels._swiglu))
    gate_up, down = drawn(4, 6, 10), drawn(4, 5, 6)
    ids = np.array([[3, 0], [1, 3]])
    y = drawn(4 if own_rows else 2, 6)
    out = np.empty((4, 6), np.float32)
    way(kernels.compute)(y, ids, gate_up, down, out)
    for place, expert in enumerate(ids.ravel()):
        row = y[place if own_rows else place // 2]
        np.testing.assert_allclose(
            out[place], swiglu(row, gate_up[expert], down[expert]), atol=1e-4
        )


@pytest.mark.parametrize("gated", [False, True])
def test_a_feed_forward_block_may_be_scaled_by_a_gate(way, gated: bool) -> None:
    y, gate_up, down = drawn(3, 6), drawn(6, 8), drawn(4, 6)
    factor = drawn(6, 1) if gated else NO_MATRIX
    out = np.empty((3, 6), np.float32)
    way(kernels.feed_forward)(y, gate_up, down, factor, out)
    truth = swiglu(y, gate_up, down)
    np.testing.assert_allclose(out, truth * expit(y @ factor) if gated else truth, atol=1e-4)


def test_a_dense_layer_adds_its_block_to_the_residual(way) -> None:
    x, of, gate_up, down = drawn(2, 6), norm(drawn(6, seed=1)), drawn(6, 8), drawn(4, 6)
    out = np.empty((2, 6), np.float32)
    way(kernels.dense)(x, of, gate_up, down, out)
    np.testing.assert_allclose(out, x + swiglu(normed(x, of), gate_up, down), atol=1e-4)


@pytest.mark.parametrize("shared", [NO_MATRIX, drawn(2, 4, seed=9)])
def test_a_mix_adds_residual_shared_experts_and_the_weighted_outputs(way, shared: Array) -> None:
    x, weights, outputs = drawn(2, 4), drawn(2, 3), drawn(6, 4)
    out = np.empty((2, 4), np.float32)
    way(kernels.mix)(x, shared, weights, outputs, out)
    summed = np.einsum("tk,tkh->th", weights, outputs.reshape(2, 3, 4))
    near(out, x + (shared if shared.size else 0) + summed)

"""Fields of shapes that header entries by hand give: gates, heads, windows, linear layers."""

from typing import Any

import pytest

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.gguf_header import Header, Tensor
from moebench.substrate.models.gguf_shape import _Described, is_gguf
from moebench.substrate.models.shape import GateKind, ModelShape

HIDDEN, HEADS, WIDTH, EXPERTS = 64, 4, 16, 8

#: Dimensions of a layer's tensors, the row length first.
ATTENTION = {
    "attn_norm.weight": (HIDDEN,), "attn_q.weight": (HIDDEN, HEADS * WIDTH),
    "attn_k.weight": (HIDDEN, 2 * WIDTH), "attn_v.weight": (HIDDEN, 2 * WIDTH),
    "attn_output.weight": (HEADS * WIDTH, HIDDEN),
}  # fmt: skip
ROUTED = {
    "ffn_gate_inp.weight": (HIDDEN, EXPERTS), "ffn_gate_exps.weight": (HIDDEN, 32, EXPERTS),
    "ffn_up_exps.weight": (HIDDEN, 32, EXPERTS), "ffn_down_exps.weight": (32, HIDDEN, EXPERTS),
}  # fmt: skip
VALUES = {
    "embedding_length": HIDDEN, "expert_count": EXPERTS, "expert_used_count": 2,
    "attention.head_count": HEADS, "attention.head_count_kv": 2, "attention.key_length": WIDTH,
    "expert_gating_func": 1,
}  # fmt: skip

Layer = dict[str, tuple[int, ...]]


def described(
    *layers: Layer, architecture: str = "new-moe", whole: Layer | None = None, **values: Any
) -> _Described:
    """Return a header of some layers; keys have ``__`` in place of a point, None removes one."""
    names = {"token_embd.weight": (HIDDEN, 96), "output.weight": (HIDDEN, 96)} | (whole or {})
    names |= {f"blk.{n}.{name}": dims for n, layer in enumerate(layers)
              for name, dims in layer.items()}  # fmt: skip
    found = VALUES | {"block_count": len(layers)}
    found |= {key.replace("__", "."): value for key, value in values.items()}
    keys = {f"{architecture}.{key}": value for key, value in found.items() if value is not None}
    tensors = [Tensor(name, dims, "f32", 0) for name, dims in names.items() if dims]
    return _Described("file", Header({"general.architecture": architecture, **keys}, tensors))


def shape(*layers: Layer, **given: Any) -> ModelShape:
    return described(*(layers or (ATTENTION | ROUTED,)), **given).shape()


def refused(*layers: Layer, **given: Any) -> str:
    with pytest.raises(CheckpointError) as found:
        shape(*layers, **given)
    assert str(found.value).startswith("file: ")
    return str(found.value)


def test_the_smallest_model() -> None:
    found = shape()
    assert (found.family, found.num_layers, found.hidden_size) == ("new_moe", 1, HIDDEN)
    assert (found.vocab_size, found.tied_head, found.head_bias) == (96, False, False)
    assert (found.num_experts, found.top_k, found.expert_width) == (EXPERTS, 2, 32)
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (HEADS, 2, WIDTH)
    assert (found.ffn_matrices, found.expert_bias, found.dense_layers) == (3, False, ())
    assert (found.norm, found.norm_eps, found.rope_theta) == ("rms", 1e-6, 10_000)
    assert (found.max_positions, found.window, found.routed_scaling_factor) == (131_072, None, 1)
    assert not found.attention_counts
    assert found.qk_norm == "none"
    assert (is_gguf("a/B.GGUF"), is_gguf("b.gguf.txt"), is_gguf("gguf")) == (True, False, False)


def test_vocabulary_and_numbers() -> None:
    whole = {"output.bias": (96,), "per_layer_token_embd.weight": (10, 96)}
    found = shape(whole=whole, expert_weights_scale=2.5, context_length=500, rope__freq_base=5e5)
    assert (found.head_bias, found.lookup_params) == (True, 960)
    assert (found.routed_scaling_factor, found.max_positions) == (2.5, 500)
    assert found.rope_theta == 5e5
    assert shape(expert_weights_scale=0.0).routed_scaling_factor == 1
    assert shape(whole={"output.weight": ()}).tied_head
    layered = ATTENTION | ROUTED | {"attn_norm.bias": (HIDDEN,)}
    eps = {"attention__layer_norm_rms_epsilon": 1e-5, "attention__layer_norm_epsilon": 1e-3}
    assert (shape(**eps).norm, shape(**eps).norm_eps) == ("rms", 1e-5)
    assert (shape(layered, **eps).norm, shape(layered, **eps).norm_eps) == ("layer", 1e-3)
    only = {"attention__layer_norm_rms_epsilon": 1e-5}
    assert shape(layered, **only).norm_eps == 1e-5


@pytest.mark.parametrize(
    ("architecture", "values", "gate"),
    [
        ("new", {}, GateKind.SOFTMAX_TOPK_RENORM), ("deepseek", {}, GateKind.SOFTMAX_TOPK),
        ("deepseek2", {}, GateKind.SOFTMAX_TOPK),
        ("new", {"expert_weights_norm": False}, GateKind.SOFTMAX_TOPK),
        ("deepseek2", {"expert_weights_norm": True}, GateKind.SOFTMAX_TOPK_RENORM),
        ("new", {"expert_gating_func": 2}, GateKind.SIGMOID_BIAS_TOPK_RENORM),
        ("new", {"expert_gating_func": 3}, GateKind.TOPK_SOFTMAX),
        ("new", {"expert_gating_func": None}, GateKind.SOFTMAX_TOPK_RENORM),
        ("gpt-oss", {"expert_gating_func": 2}, GateKind.TOPK_SOFTMAX),
        ("olmoe", {"expert_weights_norm": True}, GateKind.SOFTMAX_TOPK),
    ],
)  # fmt: skip
def test_gates(architecture: str, values: dict[str, Any], gate: GateKind) -> None:
    assert described(ATTENTION | ROUTED, architecture=architecture, **values)._gate() is gate


def test_groups_of_experts() -> None:
    def groups(count: int | None, opened: int | None) -> Any:
        return described(ATTENTION | ROUTED, expert_group_count=count,
                         expert_group_used_count=opened)._groups()  # fmt: skip

    assert groups(8, 4) == (8, 4)
    assert [groups(*of) for of in ((8, 8), (4, 8), (8, 0), (1, 1), (None, None))] == [None] * 5
    assert groups(8, None) == (8, 1)


def test_dense_and_shared_blocks() -> None:
    """Dense widths of 40 and 60 are 50 on average; a layer without a block has no width."""

    def dense(width: int) -> Layer:
        return ATTENTION | {"ffn_up.weight": (HIDDEN, width)}

    moe = ATTENTION | ROUTED
    layers = [dense(40), moe, dense(60), {"attn_norm.weight": (HIDDEN,), **ATTENTION}]
    found = described(*layers)._experts()
    assert (found["dense_layers"], found["dense_width"]) == ((0, 2, 3), 50)
    assert found["without_ffn"] == (3,)
    assert (found["shared_width"], found["shared_gated"], found["ffn_matrices"]) == (0, False, 3)
    shared = moe | {"ffn_up_shexp.weight": (HIDDEN, 24), "ffn_gate_inp_shexp.weight": (HIDDEN,)}
    both = described(shared)._experts()
    assert (both["shared_width"], both["shared_gated"]) == (24, True)
    beside = described(moe | {"ffn_up.weight": (HIDDEN, 48)})._experts()
    assert (beside["shared_width"], beside["dense_layers"]) == (48, ())
    two = {name: dims for name, dims in moe.items() if name != "ffn_gate_exps.weight"}
    assert described(two)._experts()["ffn_matrices"] == 2
    fused = two | {"ffn_gate_up_exps.weight": (HIDDEN, 64, EXPERTS)}
    assert described(fused)._experts()["ffn_matrices"] == 3
    biased = moe | {"ffn_down_exps.bias": (HIDDEN, EXPERTS), "exp_probs_b.bias": (EXPERTS,)}
    found = described(biased)._experts()
    assert (found["expert_bias"], found["gate_bias"]) == (True, True)
    assert described(moe | {"ffn_gate_inp.bias": (EXPERTS,)})._experts()["gate_bias"]
    assert not described(moe)._experts()["gate_bias"]


def test_biases_norms_and_gates_of_attention() -> None:
    def kinds(**more: tuple[int, ...]) -> dict[str, Any]:
        tensors = {name.replace("__", "."): dims for name, dims in more.items()}
        return described(ATTENTION | ROUTED | tensors)._kinds(0, ())

    assert kinds() == {"qkv_bias": False, "output_bias": False, "attention_sinks": False}
    for name in ("attn_q__bias", "attn_qkv__bias"):
        assert kinds(**{name: (64,)})["qkv_bias"]
    assert kinds(attn_output__bias=(HIDDEN,))["output_bias"]
    for name in ("attn_sinks__weight", "attn_sinks"):
        assert kinds(**{name: (HEADS,)})["attention_sinks"]
    assert kinds(attn_q_norm__weight=(WIDTH,))["qk_norm"] == "head"
    assert kinds(attn_q_norm__weight=(HEADS * WIDTH,))["qk_norm"] == "full"
    assert kinds(attn_gate__weight=(HIDDEN, HEADS))["output_gate"] == "head"
    assert kinds(attn_gate__weight=(HIDDEN, HEADS * WIDTH))["output_gate"] == "value"
    assert kinds(attn_q__weight=(HIDDEN, 2 * HEADS * WIDTH))["output_gate"] == "value"
    assert "output_gate" not in kinds(attn_q__weight=(HIDDEN, 3 * HEADS * WIDTH))
    one = ATTENTION | ROUTED | {"attn_q_norm.weight": (HEADS * WIDTH,)}
    assert described(one, attention__head_count=1)._kinds(0, ())["qk_norm"] == "head"
    latent = described(one, attention__kv_lora_rank=8)._kinds(0, ())
    assert "qk_norm" not in latent


def test_an_indexer_has_its_layers() -> None:
    indexed = ATTENTION | ROUTED | {"indexer.attn_q_b.weight": (8, 8)}
    values = {
        "attention__indexer__top_k": 5, "attention__indexer__head_count": 3,
        "attention__indexer__key_length": 7,
    }  # fmt: skip
    found = described(ATTENTION | ROUTED, indexed, **values)._kinds(0, ())["indexer"]
    assert found == {"heads": 3, "head_dim": 7, "top_k": 5, "layers": (1,)}
    assert "indexer" not in described(ATTENTION | ROUTED, **values)._kinds(0, ())
    assert "indexer" not in described(indexed)._kinds(0, ())


def test_heads_of_two_kinds_and_rotated_parts() -> None:
    layer = ATTENTION | ROUTED
    other = {k: v for k, v in layer.items() if k != "attn_v.weight"}
    values: dict[str, Any] = {
        "attention__head_count": (4, 8, 4), "attention__head_count_kv": (2, 1, 2),
        "rope__dimension_count": 8,
    }  # fmt: skip
    found = described(layer, other, layer, **values)._heads([0, 1, 2])
    assert found == {
        "num_heads": 4, "num_kv_heads": 2, "head_dim": WIDTH, "rotary_dim": 8,
        "other_heads": {"layers": (1,), "num_heads": 8, "num_kv_heads": 1, "head_dim": WIDTH,
                        "one_projection": True},
    }  # fmt: skip
    fused = other | {"attn_qkv.weight": (HIDDEN, 96)}
    for one in (layer, fused):
        found = described(layer, one, layer, **values)._heads([0, 1, 2])
        assert not found["other_heads"]["one_projection"]
    for whole in (16, 17, 0, None):
        plain = described(layer, rope__dimension_count=whole)._heads([0])
        assert plain == {"num_heads": 4, "num_kv_heads": 2, "head_dim": WIDTH}
    more = {"attention__head_count": (4, 8, 2), "attention__head_count_kv": (2, 1, 2)}
    with pytest.raises(CheckpointError, match="more than two kinds of attention heads"):
        described(layer, layer, layer, **more)._heads([0, 1, 2])
    # Without a width it is the hidden size over the heads; without its own count, all are heads.
    free = described(layer, attention__key_length=None, attention__head_count_kv=None)._heads([0])
    assert (free["head_dim"], free["num_kv_heads"]) == (HIDDEN // HEADS, HEADS)
    window = {
        "attention__sliding_window": 9, "attention__sliding_window_pattern": (False, True),
        "attention__key_length_swa": 32,
    }  # fmt: skip
    found = described(layer, layer, **window)._heads([0, 1])
    assert (found["head_dim"], found["other_heads"]["head_dim"]) == (WIDTH, 32)


def test_latent_attention() -> None:
    values: dict[str, Any] = {
        "attention__kv_lora_rank": 20, "rope__dimension_count": 8, "attention__q_lora_rank": 12,
        "attention__key_length": 100, "attention__value_length": 90,
    }  # fmt: skip
    found = described(ATTENTION | ROUTED, **values)._latent()
    assert found == {
        "num_heads": HEADS, "num_kv_heads": HEADS, "head_dim": 100,
        "latent": {"kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 92,
                   "v_head_dim": 90, "q_lora_rank": 12},
    }  # fmt: skip
    own = {"attention__key_length_mla": 24, "attention__value_length_mla": 16,
           "attention__q_lora_rank": 0, "rope__dimension_count": None}  # fmt: skip
    latent = described(ATTENTION | ROUTED, **(values | own))._latent()["latent"]
    assert (latent["qk_rope_head_dim"], latent["qk_nope_head_dim"]) == (64, 24 - 64)
    assert (latent["v_head_dim"], latent["q_lora_rank"]) == (16, None)
    for width, field in (("key", " head_dim is 0"), ("value", "v_head_dim is 0")):
        without = values | {f"attention__{width}_length": None}
        assert field in refused(**without)


def test_windows_of_patterns() -> None:
    layers = [ATTENTION | ROUTED] * 6

    def window(cached: range = range(6), **given: Any) -> Any:
        return described(*layers, **given)._window(cached)

    size = {"attention__sliding_window": 9}
    assert window(**size) is None
    every = window(**size, attention__sliding_window_pattern=3)
    assert every == {"kind": "sliding", "size": 9, "layers": (0, 1, 3, 4)}
    listed = window(**size, attention__sliding_window_pattern=(True, False, True))
    assert listed["layers"] == (0, 2)
    assert window(range(1, 3), **size, attention__sliding_window_pattern=3)["layers"] == (1,)
    assert window(**size, attention__sliding_window_pattern=(False,) * 6) is None
    assert window(**size, architecture="gpt-oss")["layers"] == (0, 2, 4)
    assert window(**size, architecture="gemma4")["layers"] == (0, 1, 2, 3, 4)
    chunked = window(architecture="llama4")
    assert chunked == {"kind": "chunked", "size": 8192, "layers": (0, 1, 2, 4, 5)}
    # A window as long as the context is none.
    given = {**size, "architecture": "gpt-oss"}
    assert window(**given, context_length=9) is None
    assert window(**given, context_length=10) is not None


def test_linear_layers() -> None:
    state = {"ssm_conv1d.weight": (4, 40), "ssm_out.weight": (24, HIDDEN), "ssm_a": (3,)}
    found = described(ATTENTION | ROUTED, state | ROUTED, ssm__inner_size=24, ssm__state_size=5)
    linear = found._linear([1])
    assert (linear["kind"], linear["layers"]) == ("gated DeltaNet", (1,))
    assert (linear["state_values"], linear["conv_values"]) == (24 * 5, 3 * 40)
    assert linear["params"] == found._attention_weights(1) > 0
    assert described(state | {"ssm_d": (3,)})._linear([0])["kind"] == "state space"
    assert described(state | {"ssm_dt.weight": (3,)})._linear([0])["kind"] == "gated DeltaNet"
    kda = state | {"ssm_conv1d_q.weight": (4, 10), "ssm_conv1d.bias": (4, 4)}
    linear = described(kda, kda__head_dim=6)._linear([0])
    assert (linear["kind"], linear["state_values"]) == ("KDA", HEADS * 36)
    assert linear["conv_values"] == 3 * 40 + 3 * 10


def test_layers_without_attention_are_told_from_linear_ones() -> None:
    state = {"ssm_conv1d.weight": (4, 40), "attn_qkv.weight": (HIDDEN, 9)}
    found = described(ATTENTION | ROUTED, state | ROUTED, ROUTED, ssm__inner_size=2,
                      ssm__state_size=5)._attention()  # fmt: skip
    assert found["without_attention"] == (2,)
    assert found["linear"]["layers"] == (1,)
    with pytest.raises(CheckpointError, match="has no layer with attention"):
        described(ROUTED)._attention()


def test_values_that_are_no_whole_numbers_are_refused() -> None:
    assert "new-moe.expert_count is missing; allowed: a whole number up to " in refused(
        expert_count=None
    )
    for wrong in (True, -1, 1.5, "8", 2**60):
        assert f"new-moe.expert_count is {wrong}" in refused(expert_count=wrong).replace("'", "")
    assert "expert_gating_func is 2.0" in refused(expert_gating_func=2.0)
    # Of a number for each layer the first that is not 0 counts.
    assert shape(expert_used_count=(0, 3, 2)).top_k == 3
    assert described(ATTENTION | ROUTED, expert_used_count=(0, 0))._count("expert_used_count") == 0
    layers = [ATTENTION | ROUTED] * 2
    for wrong in ((4,), (4, -1), (4, 1.5)):
        assert "new-moe.attention.head_count is " in refused(*layers, attention__head_count=wrong)
    assert described(*layers, attention__head_count=(4, 5, 6))._each("attention.head_count", 0) == [
        4, 5,
    ]  # fmt: skip
    assert described(*layers)._each("none", 7) == [7, 7]


def test_impossible_tensors_are_refused() -> None:
    assert "token_embd.weight is missing, or no matrix" in refused(whole={"token_embd.weight": ()})
    assert "token_embd.weight is missing" in refused(whole={"token_embd.weight": (HIDDEN,)})
    flat = ATTENTION | ROUTED | {"ffn_up_shexp.weight": (HIDDEN,)}
    assert "blk.0.ffn_up_shexp.weight has dimensions " in refused(flat)
    assert "has no routed experts (architecture 'new-moe')" in refused(ATTENTION)
    old = refused(ATTENTION | {"ffn_up.0.weight": (HIDDEN, 8)})
    assert "stores each expert as a tensor of its own (an old file)" in old
    assert "has tensors of 1 layers, and states 2" in refused(ATTENTION | ROUTED, block_count=2)
    assert "has tensors of 1 layers, and states 0" in refused(ATTENTION | ROUTED, block_count=0)
    predicting = {"nextn.eh_proj.weight": (HIDDEN, HIDDEN)}
    assert "has tensors of 1 layers, and states 1" in refused(predicting)
    found = described(ATTENTION | ROUTED, predicting)
    assert [found.is_left_out(f"blk.{n}.x") for n in (0, 1)] == [False, True]
    assert not found.is_left_out("output.weight")
    # Numbers of six digits are no layers.
    assert shape(whole={"blk.100000.x": (2,)}).num_layers == 1

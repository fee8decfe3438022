"""What configurations say, and what those leave out, which transformers has values for."""

import inspect
import math
import re
from typing import Any

import pytest

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models import config as module
from moebench.substrate.models.config import READERS, shape_of
from moebench.substrate.models.shape import GateKind, ModelShape

#: Keys that every file states, as their value belongs to the model and not to its family.
STATED = {
    "first_k_dense_replace", "head_dim", "intermediate_size", "intermediate_size_mlp",
    "max_position_embeddings", "n_shared_experts", "num_key_value_heads", "rms_norm_eps",
    "rope_parameters", "sliding_window",
}  # fmt: skip
#: Optional keys that the readers name.
OPTIONAL = set(re.findall(r'c\.get\("(\w+)"', inspect.getsource(module))) - STATED

#: Values other than transformers' own, where its defaults are what a reader refuses.
OTHER = {"deepseek_v2": {"q_lora_rank": None, "num_experts_per_tok": 6}}


@pytest.mark.parametrize("family", sorted(READERS))
def test_a_key_that_is_left_out_means_what_transformers_takes(family: str) -> None:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    if family not in auto.CONFIG_MAPPING:
        pytest.skip(f"transformers has no {family}")
    stated = auto.CONFIG_MAPPING[family](**OTHER.get(family, {})).to_dict()
    stated |= {"model_type": family}
    whole = shape_of(stated)
    tried = sorted(OPTIONAL & stated.keys())
    assert len(tried) >= 2
    for key in tried:
        rest = {name: value for name, value in stated.items() if name != key}
        try:
            assert shape_of(rest) == whole, key
        except CheckpointError as error:
            pytest.fail(f"{family} without {key}: {error}")


# ----------------------------------------------------------------------------- by hand

COMMON = {
    "num_hidden_layers": 6, "hidden_size": 64, "vocab_size": 96, "num_attention_heads": 4,
    "max_position_embeddings": 1000,
}  # fmt: skip
QWEN = COMMON | {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40, "intermediate_size": 48,
}  # fmt: skip
DEEPSEEK = COMMON | {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "n_shared_experts": 3, "intermediate_size": 48,
}  # fmt: skip
LATENT = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
MIXTRAL = COMMON | {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24}


def shape(family: str, given: dict[str, Any], **more: Any) -> ModelShape:
    return shape_of({"model_type": family, **given, **more}, "file")


def refused(family: str, given: dict[str, Any], **more: Any) -> str:
    with pytest.raises(CheckpointError) as found:
        shape(family, given, **more)
    assert "\n" not in str(found.value)
    return str(found.value).removeprefix("file: ")


def test_fields_that_all_families_share() -> None:
    found = shape("mixtral", MIXTRAL)
    assert (found.num_layers, found.hidden_size, found.vocab_size) == (6, 64, 96)
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (4, 4, 16)
    assert (found.rope_theta, found.norm_eps, found.max_positions) == (10_000, 1e-6, 1000)
    assert (found.num_experts, found.top_k, found.expert_width) == (8, 2, 24)
    more = shape("mixtral", MIXTRAL, num_key_value_heads=2, head_dim=32, rope_theta=5e5,
                 rms_norm_eps=1e-5, tie_word_embeddings=True)  # fmt: skip
    assert (more.num_kv_heads, more.head_dim, more.rope_theta) == (2, 32, 5e5)
    assert (more.norm_eps, more.tied_head) == (1e-5, True)
    nested = shape("mixtral", MIXTRAL, rope_theta=None, rope_parameters={"rope_theta": 7e4})
    assert nested.rope_theta == 7e4
    assert shape("mixtral", MIXTRAL, partial_rotary_factor=0.5).rotary_dim == 8
    assert shape("mixtral", MIXTRAL, head_dim=32, rope_scaling={
        "partial_rotary_factor": 0.25,
    }).rotary_dim == 8  # fmt: skip


def test_scaled_positions() -> None:
    def scaling(**rope: Any) -> Any:
        return shape("mixtral", MIXTRAL, rope_scaling=rope).rope_scaling

    linear = scaling(type="linear", factor=4.0, original_max_position_embeddings=250)
    assert (linear.factor, linear.original_max_positions) == (4, 250)
    # The factor follows from the positions, and these are by default all.
    assert scaling(rope_type="linear", original_max_position_embeddings=500).factor == 2
    assert scaling(rope_type="linear").factor == 1
    assert scaling(type="linear", factor=4.0).original_max_positions == 1000
    yarn = scaling(rope_type="yarn", factor=math.e**10)
    assert yarn.attention_factor == pytest.approx(2)
    told = scaling(rope_type="yarn", factor=4.0, attention_factor=1.5, beta_fast=20)
    assert (told.attention_factor, told.beta_fast) == (1.5, 20)
    both = scaling(rope_type="yarn", factor=math.e**10, mscale=0.5, mscale_all_dim=1.0)
    assert both.attention_factor == pytest.approx(1.5 / 2)
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    long = scaling(rope_type="longrope", original_max_position_embeddings=100, **factors)
    assert long.attention_factor == pytest.approx(math.sqrt(1 + math.log(10) / math.log(100)))
    assert long.long_attention_factor == long.attention_factor
    little = scaling(
        rope_type="longrope", factor=1.5, original_max_position_embeddings=100, **factors
    )
    assert little.attention_factor == pytest.approx(math.sqrt(1 + math.log(1.5) / math.log(100)))
    assert scaling(rope_type="longrope", factor=0.5, **factors).attention_factor == 1
    own = scaling(rope_type="longrope", factor=1.0, short_mscale=1.1, long_mscale=1.2, **factors)
    assert (own.attention_factor, own.long_attention_factor) == (1.1, 1.2)
    assert scaling(rope_type="longrope", factor=1.0, **factors).attention_factor == 1
    assert shape("mixtral", MIXTRAL, rope_scaling={"rope_type": "default"}).rope_scaling is None


def test_windows() -> None:
    assert shape("mixtral", MIXTRAL, sliding_window=1000).window is None
    every = shape("mixtral", MIXTRAL, sliding_window=999).window
    assert every is not None
    assert (every.kind, every.size, every.layers) == ("sliding", 999, (0, 1, 2, 3, 4, 5))
    window = {"use_sliding_window": True, "sliding_window": 9}
    some = shape("qwen2_moe", QWEN, **window, max_window_layers=3).window
    assert some is not None
    assert some.layers == (0, 2)
    listed = shape("qwen2_moe", QWEN, **window, layer_types=[
        "full_attention", "sliding_attention", *["full_attention"] * 4,
    ]).window  # fmt: skip
    assert listed is not None
    assert listed.layers == (1,)
    assert shape("qwen2_moe", QWEN, sliding_window=9).window is None
    assert shape("qwen3_moe", QWEN, sliding_window=9).window is None
    qwen3 = shape("qwen3_moe", QWEN, **window).window
    assert qwen3 is not None
    assert len(qwen3.layers) == 6


def test_dense_layers_of_qwen_and_deepseek() -> None:
    assert shape("qwen2_moe", QWEN).dense_layers == ()
    step = shape("qwen2_moe", QWEN, decoder_sparse_step=2, mlp_only_layers=[3])
    assert (step.dense_layers, step.dense_width) == ((0, 2, 3, 4), 48)
    found = shape("deepseek", DEEPSEEK, first_k_dense_replace=1, moe_layer_freq=3)
    assert found.dense_layers == (0, 1, 2, 4, 5)
    assert (found.shared_width, found.routed_scaling_factor) == (72, 1)
    assert shape("deepseek", DEEPSEEK, n_shared_experts=None).shared_width == 0
    assert shape("deepseek", DEEPSEEK).dense_layers == ()


def test_gates_and_biases() -> None:
    plain, normed = GateKind.SOFTMAX_TOPK, GateKind.SOFTMAX_TOPK_RENORM
    for family, given in (("qwen2_moe", QWEN), ("qwen3_moe", QWEN), ("deepseek", DEEPSEEK),
                          ("olmoe", QWEN)):  # fmt: skip
        assert shape(family, given).gate is plain, family
        assert shape(family, given, norm_topk_prob=True).gate is normed, family
    assert shape("mixtral", MIXTRAL).gate is normed
    assert shape("phimoe", MIXTRAL).gate is GateKind.SPARSEMIXER
    assert shape("gpt_oss", MIXTRAL).gate is GateKind.TOPK_SOFTMAX
    qwen2 = shape("qwen2_moe", QWEN)
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.shared_width) == (True, False, 40)
    assert qwen2.shared_gated
    qwen3 = shape("qwen3_moe", QWEN, attention_bias=True)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm) == (True, True, "head")
    assert shape("olmoe", QWEN, clip_qkv=8.0).clip_qkv == 8
    assert shape("olmoe", QWEN).qk_norm == "full"
    phi = shape("phimoe", MIXTRAL, attention_bias=True, lm_head_bias=True, router_jitter_noise=0.1)
    assert (phi.qkv_bias, phi.output_bias, phi.head_bias, phi.norm) == (True, True, True, "layer")
    assert (phi.gate_jitter, shape("phimoe", MIXTRAL).gate_jitter) == (0.1, 0.01)
    oss = shape("gpt_oss", MIXTRAL, sliding_window=9)
    assert (oss.expert_bias, oss.gate_bias, oss.attention_sinks) == (True, True, True)
    assert oss.window is not None
    assert oss.window.layers == (0, 2, 4)


def test_deepseek_v2_and_glm() -> None:
    v2 = shape("deepseek_v2", DEEPSEEK | LATENT)
    assert v2.head_dim == 24
    assert v2.latent is not None
    assert (v2.latent.kv_lora_rank, v2.latent.v_head_dim) == (16, 12)
    assert (v2.rope_interleaved, v2.gate_groups) == (True, None)
    groups = {"n_group": 4, "topk_group": 2}
    limited = shape("deepseek_v2", DEEPSEEK | LATENT, topk_method="group_limited_greedy", **groups)
    assert limited.gate_groups == (4, 2)
    assert shape("deepseek_v2", DEEPSEEK | LATENT, **groups).gate_groups is None
    glm = shape("glm4_moe", DEEPSEEK, **groups, use_qk_norm=True, attention_bias=True)
    assert (glm.gate_groups, glm.qk_norm, glm.qkv_bias) == ((4, 2), "head", True)
    assert glm.gate is GateKind.SIGMOID_BIAS_TOPK_RENORM
    assert shape("glm4_moe", DEEPSEEK, n_group=4, topk_group=4).gate_groups is None
    assert shape("glm4_moe", DEEPSEEK).qk_norm == "none"


def test_what_is_not_supported_says_why() -> None:
    assert refused("other", COMMON).startswith("model_type 'other' is not supported: ")
    assert refused("llama4", COMMON, text_config=3) == "text_config is 3; allowed: an object"
    assert refused("mixtral", COMMON) == "key 'num_local_experts' is missing"
    assert refused("mixtral", MIXTRAL, hidden_act="gelu") == (
        "hidden_act: 'gelu' is not supported; allowed: 'silu'"
    )
    assert shape("mixtral", MIXTRAL, hidden_act="swish") == shape("mixtral", MIXTRAL)
    assert refused("deepseek", DEEPSEEK, attention_bias=True) == (
        "attention_bias: true is not supported"
    )
    for key in ("attention_bias", "mlp_bias"):
        assert refused("deepseek_v2", DEEPSEEK | LATENT, **{key: True}).startswith(f"{key}: true")
    assert "compressed queries are not supported" in refused(
        "deepseek_v2", DEEPSEEK | LATENT, q_lora_rank=9
    )
    assert refused("glm4_moe", DEEPSEEK, norm_topk_prob=False).startswith("norm_topk_prob: false")
    xverse = COMMON | {"num_experts": 8, "moe_top_k": 2, "intermediate_size": 24}
    assert "norm_topk_prob: missing" in refused("xverse", xverse)
    found = shape("xverse", xverse, norm_topk_prob=True, num_shared_experts=2)
    assert (found.shared_width, found.gate) == (48, GateKind.SOFTMAX_TOPK_RENORM)
    assert shape("xverse", xverse, norm_topk_prob=False).shared_width == 0

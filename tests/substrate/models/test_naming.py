"""Names and dimensions of a checkpoint's tensors in each layout, by hand."""

import pytest

from moebench.substrate.models.naming import (
    TensorSpec,
    common_tensors,
    expert_tensors,
    layout_of,
    written_layout,
)
from moebench.substrate.models.shape import GateKind, LatentAttention, ModelShape

FIELDS = {
    "num_layers": 2, "hidden_size": 64, "vocab_size": 9, "num_heads": 4, "num_kv_heads": 2,
    "head_dim": 8, "num_experts": 3, "top_k": 1, "expert_width": 32, "dense_layers": (0,),
    "dense_width": 40, "gate": GateKind.SOFTMAX_TOPK,
}  # fmt: skip


def of(family: str, **fields) -> ModelShape:
    return ModelShape(family=family, **FIELDS | fields)


P = "model.layers.1.mlp.experts"
ALL = (None, None, None)


@pytest.mark.parametrize(
    ("family", "name", "specs"),
    [
        ("olmoe", "plain", {
            "gate": TensorSpec(f"{P}.2.gate_proj.weight", (32, 64)),
            "up": TensorSpec(f"{P}.2.up_proj.weight", (32, 64)),
            "down": TensorSpec(f"{P}.2.down_proj.weight", (64, 32)),
        }),
        ("mixtral", "plain", {
            "gate": TensorSpec("model.layers.1.block_sparse_moe.experts.2.w1.weight", (32, 64)),
            "up": TensorSpec("model.layers.1.block_sparse_moe.experts.2.w3.weight", (32, 64)),
            "down": TensorSpec("model.layers.1.block_sparse_moe.experts.2.w2.weight", (64, 32)),
        }),
        ("qwen3_moe", f"{P}.gate_up_proj", {
            "gate": TensorSpec(f"{P}.gate_up_proj", (32, 64), (3, 64, 64), 2, False, (0, 32, None)),
            "up": TensorSpec(f"{P}.gate_up_proj", (32, 64), (3, 64, 64), 2, False,
                             (32, None, None)),
            "down": TensorSpec(f"{P}.down_proj", (64, 32), (3, 64, 32), 2, False, ALL),
        }),
        ("llama4_text", "model.layers.1.feed_forward.experts.gate_up_proj", {
            "gate": TensorSpec("model.layers.1.feed_forward.experts.gate_up_proj", (32, 64),
                               (3, 64, 64), 2, True, (0, 32, None)),
            "up": TensorSpec("model.layers.1.feed_forward.experts.gate_up_proj", (32, 64),
                             (3, 64, 64), 2, True, (32, None, None)),
            "down": TensorSpec("model.layers.1.feed_forward.experts.down_proj", (64, 32),
                               (3, 32, 64), 2, True, ALL),
        }),
        ("gpt_oss", f"{P}.gate_up_proj", {
            "gate": TensorSpec(f"{P}.gate_up_proj", (32, 64), (3, 64, 64), 2, True, (0, None, 2)),
            "up": TensorSpec(f"{P}.gate_up_proj", (32, 64), (3, 64, 64), 2, True, (1, None, 2)),
            "down": TensorSpec(f"{P}.down_proj", (64, 32), (3, 32, 64), 2, True, ALL),
        }),
        ("gpt_oss", f"{P}.gate_up_proj_blocks", {
            "gate": TensorSpec(f"{P}.gate_up_proj_blocks", (32, 64), (3, 64, 2, 16), 2, False,
                               (0, None, 2), f"{P}.gate_up_proj_scales"),
            "up": TensorSpec(f"{P}.gate_up_proj_blocks", (32, 64), (3, 64, 2, 16), 2, False,
                             (1, None, 2), f"{P}.gate_up_proj_scales"),
            "down": TensorSpec(f"{P}.down_proj_blocks", (64, 32), (3, 64, 1, 16), 2, False, ALL,
                               f"{P}.down_proj_scales"),
        }),
    ],
)  # fmt: skip
def test_an_experts_tensors_in_each_layout(
    family: str, name: str, specs: dict[str, TensorSpec]
) -> None:
    shape = of(family)
    layout = layout_of(shape, {name})
    if name == "plain":
        assert layout is written_layout(shape)
        assert expert_tensors(shape, 1, 2) == specs
    assert expert_tensors(shape, 1, 2, layout) == specs


def test_biases_of_fused_experts() -> None:
    specs = expert_tensors(of("gpt_oss", expert_bias=True), 1, 2)
    biases = {name: spec for name, spec in specs.items() if "bias" in name}
    assert biases == {
        "gate.bias": TensorSpec(f"{P}.gate_up_proj_bias", (32,), (3, 64), 2, rows=(0, None, 2)),
        "up.bias": TensorSpec(f"{P}.gate_up_proj_bias", (32,), (3, 64), 2, rows=(1, None, 2)),
        "down.bias": TensorSpec(f"{P}.down_proj_bias", (64,), (3, 64), 2),
    }


def test_names_in_a_multimodal_model_have_its_prefix() -> None:
    shape, name = of("llama4_text"), "language_model.model.layers.1.feed_forward.experts"
    layout = layout_of(shape, {f"{name}.gate_up_proj"})
    assert layout.prefix == "language_model."
    assert expert_tensors(shape, 1, 0, layout)["down"].stored == f"{name}.down_proj"
    names = [spec.stored for spec in common_tensors(shape, layout).values()]
    assert all(one.startswith("language_model.") for one in names)
    assert "language_model.lm_head.weight" in names


def found(shape: ModelShape) -> dict[str, tuple]:
    return {name: (spec.stored, spec.dims) for name, spec in common_tensors(shape).items()}


def test_all_other_tensors_of_a_plain_model() -> None:
    attention = {
        f"layers.{n}.{ours}": (f"model.layers.{n}.{theirs}.weight", dims)
        for n in (0, 1)
        for ours, theirs, dims in (
            ("q", "self_attn.q_proj", (32, 64)), ("k", "self_attn.k_proj", (16, 64)),
            ("v", "self_attn.v_proj", (16, 64)), ("o", "self_attn.o_proj", (64, 32)),
            ("attention_norm", "input_layernorm", (64,)),
            ("mlp_norm", "post_attention_layernorm", (64,)),
        )
    }  # fmt: skip
    dense = {
        f"layers.0.dense.{ours}": (f"model.layers.0.mlp.{ours}_proj.weight", dims)
        for ours, dims in (("gate", (40, 64)), ("up", (40, 64)), ("down", (64, 40)))
    }
    assert found(of("olmoe")) == {
        "embed": ("model.embed_tokens.weight", (9, 64)), **attention, **dense,
        "layers.1.router": ("model.layers.1.mlp.gate.weight", (3, 64)),
        "norm": ("model.norm.weight", (64,)), "head": ("lm_head.weight", (9, 64)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("family", "fields", "more", "without"),
    [
        ("olmoe", {"tied_head": True, "head_bias": True}, {"head.bias": ("lm_head.bias", (9,))},
         {"head"}),
        ("phimoe", {"norm": "layer"}, {
            "norm.bias": ("model.norm.bias", (64,)),
            "layers.1.mlp_norm.bias": ("model.layers.1.post_attention_layernorm.bias", (64,)),
            "layers.0.attention_norm.bias": ("model.layers.0.input_layernorm.bias", (64,))}, set()),
        ("olmoe", {"qkv_bias": True, "output_bias": True, "attention_sinks": True}, {
            "layers.1.q.bias": ("model.layers.1.self_attn.q_proj.bias", (32,)),
            "layers.1.k.bias": ("model.layers.1.self_attn.k_proj.bias", (16,)),
            "layers.0.v.bias": ("model.layers.0.self_attn.v_proj.bias", (16,)),
            "layers.0.o.bias": ("model.layers.0.self_attn.o_proj.bias", (64,)),
            "layers.0.sinks": ("model.layers.0.self_attn.sinks", (4,))}, set()),
        ("olmoe", {"qk_norm": "full"}, {
            "layers.1.q_norm": ("model.layers.1.self_attn.q_norm.weight", (32,)),
            "layers.1.k_norm": ("model.layers.1.self_attn.k_norm.weight", (16,))}, set()),
        ("olmoe", {"qk_norm": "head"}, {
            "layers.1.q_norm": ("model.layers.1.self_attn.q_norm.weight", (8,)),
            "layers.1.k_norm": ("model.layers.1.self_attn.k_norm.weight", (8,))}, set()),
        ("qwen2_moe", {"shared_width": 24, "shared_gated": True}, {
            "layers.1.shared.gate": ("model.layers.1.mlp.shared_expert.gate_proj.weight", (24, 64)),
            "layers.1.shared.down": ("model.layers.1.mlp.shared_expert.down_proj.weight", (64, 24)),
            "layers.1.shared_gate": ("model.layers.1.mlp.shared_expert_gate.weight", (1, 64))},
         set()),
        ("gpt_oss", {"gate_bias": True}, {
            "layers.1.router": ("model.layers.1.mlp.router.weight", (3, 64)),
            "layers.1.router.bias": ("model.layers.1.mlp.router.bias", (3,))}, set()),
        ("glm4_moe", {"gate_bias": True, "gate": GateKind.SIGMOID_BIAS_TOPK_RENORM}, {
            "layers.1.router.bias": ("model.layers.1.mlp.gate.e_score_correction_bias", (3,))},
         set()),
        ("deepseek_v2", {"latent": LatentAttention(
            kv_lora_rank=5, qk_rope_head_dim=2, qk_nope_head_dim=3, v_head_dim=7)}, {
            "layers.1.q": ("model.layers.1.self_attn.q_proj.weight", (20, 64)),
            "layers.1.kv_down": ("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", (7, 64)),
            "layers.1.kv_norm": ("model.layers.1.self_attn.kv_a_layernorm.weight", (5,)),
            "layers.1.kv_up": ("model.layers.1.self_attn.kv_b_proj.weight", (40, 5)),
            "layers.1.o": ("model.layers.1.self_attn.o_proj.weight", (64, 28))},
         {"layers.1.k", "layers.1.v"}),
    ],
)  # fmt: skip
def test_further_tensors(
    family: str, fields: dict, more: dict[str, tuple], without: set[str]
) -> None:
    names = found(of(family, **fields))
    assert {name: names.get(name) for name in more} == more
    assert not without & names.keys()

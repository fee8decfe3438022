"""Model shapes compared with published totals and with transformers' modules."""

import json
from math import prod

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.catalogue import MODELS as CATALOGUE
from moebench.substrate.models.config import READERS, read_shape, shape_of
from moebench.substrate.models.naming import common_tensors, expert_tensors
from moebench.substrate.models.shape import (
    AttentionWindow,
    GateKind,
    LatentAttention,
    ModelShape,
    RopeScaling,
    stored_bytes,
)
from tests.substrate.models.checkpoints import HF_FAMILIES, REMOTE_CONFIGS

#: The published models: layers, MoE layers, experts, top-k, gate; parameters in total and in routed
#: experts; bytes of an expert in bf16 and in 4-bit, of the KV cache a token, and of all the rest.
PUBLISHED = {
    "deepseek-moe-16b": (
        (28, 27, 64, 6, "softmax_topk"),
        (16_375_728_128, 14_948_499_456),
        (17_301_504, 4_494_336, 229_376, 2_854_457_344),
    ),
    "qwen2-57b-a14b": (
        (28, 28, 64, 8, "softmax_topk"),
        (57_408_658_944, 49_325_015_040),
        (55_050_240, 14_300_160, 57_344, 16_167_287_808),
    ),
    "xverse-moe-a4.2b": (
        (28, 28, 64, 6, "softmax_topk_renorm"),
        (25_778_352_640, 23_781_703_680),
        (26_542_080, 6_894_720, 286_720, 3_993_297_920),
    ),
    "mixtral-8x7b": (
        (32, 32, 8, 2, "softmax_topk_renorm"),
        (46_702_792_704, 45_097_156_608),
        (352_321_536, 91_521_024, 131_072, 3_211_272_192),
    ),
    "mixtral-8x22b": (
        (56, 56, 8, 2, "softmax_topk_renorm"),
        (140_620_634_112, 135_291_469_824),
        (603_979_776, 156_893_184, 229_376, 10_658_328_576),
    ),
    "phi-3.5-moe": (
        (32, 32, 16, 2, "sparsemixer"),
        (41_873_153_344, 40_265_318_400),
        (157_286_400, 40_857_600, 131_072, 3_215_669_888),
    ),
    "olmoe-1b-7b": (
        (16, 16, 64, 8, "softmax_topk"),
        (6_919_161_856, 6_442_450_944),
        (12_582_912, 3_268_608, 131_072, 953_421_824),
    ),
    "qwen3-30b-a3b": (
        (48, 48, 128, 8, "softmax_topk_renorm"),
        (30_532_122_624, 28_991_029_248),
        (9_437_184, 2_451_456, 98_304, 3_082_186_752),
    ),
    "qwen1.5-moe-a2.7b": (
        (24, 24, 60, 4, "softmax_topk"),
        (14_315_784_192, 12_457_082_880),
        (17_301_504, 4_494_336, 196_608, 3_717_402_624),
    ),
    "deepseek-v2-lite": (
        (27, 26, 64, 6, "softmax_topk"),
        (15_706_484_224, 14_394_851_328),
        (17_301_504, 4_494_336, 31_104, 2_623_265_792),
    ),
    "gpt-oss-20b": (
        (24, 24, 32, 4, "topk_softmax"),
        (20_914_757_184, 19_116_933_120),
        (49_783_680, 12_932_089, 49_152, 3_595_648_128),
    ),
    "glm-4.5-air": (
        (46, 45, 128, 8, "sigmoid_bias_topk_renorm"),
        (106_852_251_264, 99_656_663_040),
        (34_603_008, 8_988_672, 188_416, 14_391_176_448),
    ),
    "llama-4-scout": (
        (48, 48, 16, 1, "topk_sigmoid"),
        (107_769_861_120, 96_636_764_160),
        (251_658_240, 65_372_160, 196_608, 22_266_193_920),
    ),
}


def test_the_catalogue_holds_the_published_models():
    assert {file.stem for file in CATALOGUE.glob("*.json")} == PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_reproduce_published_totals(name):
    s = read_shape(CATALOGUE / f"{name}.json")
    assert (
        (s.num_layers, len(s.moe_layers), s.num_experts, s.top_k, s.gate),
        (s.total_params, s.routed_params),
        (
            s.expert_bytes("bf16"),
            s.expert_bytes("4bit"),
            s.kv_bytes_per_token("bf16"),
            s.common_bytes("bf16"),
        ),
    ) == PUBLISHED[name]


# ------------------------------------------------------------------- transformers counts the same

_TINY = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("family", HF_FAMILIES)
def test_shapes_count_what_transformers_builds(family):
    """Its configuration, as it serialises it, gives the parameters that its modules have."""
    prefix, options = HF_FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**{**_TINY, **options})
    with torch.device("meta"):
        model = getattr(transformers, f"{prefix.removesuffix('Text')}ForCausalLM")(config)
    built = sum(p.numel() for p in model.parameters())
    built += sum(b.numel() for n, b in model.named_buffers() if "correction_bias" in n)
    routed = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    shape = shape_of(json.loads(config.to_json_string(use_diff=False)))
    assert (shape.total_params, shape.routed_params) == (built, routed)
    for layer in range(shape.num_layers):
        named = [n for n, _ in [*model.named_parameters(), *model.named_buffers()]]
        mine = [n for n in named if f".layers.{layer}." in n and ".experts." not in n]
        assert shape.layer_common_tensors(layer) == len(mine), mine


# ------------------------------------------------------------------------------------- invariants


@st.composite
def shapes(draw) -> ModelShape:
    """Generate small shapes that the decoder can compute."""
    few, flag = st.integers(1, 6), st.booleans()
    layers, experts, kv_heads = draw(few), draw(few), draw(few)
    return ModelShape(
        family=draw(st.sampled_from(sorted(READERS))),
        num_layers=layers,
        hidden_size=draw(few),
        vocab_size=draw(few),
        num_heads=kv_heads * draw(few),
        num_kv_heads=kv_heads,
        head_dim=2 * draw(few),
        qkv_bias=draw(flag),
        output_bias=draw(flag),
        qk_norm=draw(st.sampled_from(["none", "head", "full"])),
        norm=draw(st.sampled_from(["rms", "layer"])),
        tied_head=draw(flag),
        head_bias=draw(flag),
        num_experts=experts,
        top_k=draw(st.integers(1, experts)),
        expert_width=draw(few),
        dense_layers=tuple(sorted(draw(st.sets(st.integers(0, layers - 1), max_size=layers - 1)))),
        dense_width=draw(few),
        shared_width=draw(st.integers(0, 3)),
        shared_gated=draw(flag),
        gate=draw(st.sampled_from(GateKind)),
    )


@settings(max_examples=60, deadline=None)
@given(shapes())
def test_counts_are_sums_over_tensors_and_bytes_follow(s):
    common = sum(prod(t.dims) for t in common_tensors(s).values())
    routed = sum(
        prod(t.dims)
        for layer in s.moe_layers
        for expert in range(s.num_experts)
        for t in expert_tensors(s, layer, expert).values()
    )
    assert (s.common_params, s.routed_params) == (common, routed)
    assert s.total_params == common + routed
    assert set(s.moe_layers).isdisjoint(s.dense_layers)
    assert s.expert_bytes("4bit") < s.expert_bytes("bf16") < s.expert_bytes("fp32")
    assert s.common_bytes("fp32") == 4 * common == 2 * s.common_bytes("fp16")
    assert s.kv_bytes_per_token("fp32") == s.num_layers * 2 * s.num_kv_heads * s.head_dim * 4
    assert ModelShape.model_validate_json(s.model_dump_json()) == s


def test_four_bits_hold_a_scale_and_a_zero_point_per_group():
    assert stored_bytes(128, "4bit") == round(128 * 4 / 8 + 2 + 0.5)
    assert stored_bytes(256, "4bit") == 256 * 4 // 8 + 2 * 2 + 1


def test_two_bits_hold_scales_of_scales():
    # 128 groups of 16: 2 bits a weight, two bytes a group, two fp16 numbers for their scales.
    assert stored_bytes(2048, "2bit") == 2048 * 2 // 8 + 128 * 2 + 4
    # The size of a demo's expert: specs of Mixtral-Offloading.
    mixtral = read_shape(CATALOGUE / "mixtral-8x7b.json")
    assert mixtral.expert_bytes("2bit") / 1e6 == pytest.approx(66.4, abs=0.05)


# ------------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"decoder_sparse_step": 2}, {"dense_layers": (0, 2)}),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [1]}, {"dense_layers": (1,)}),
        ({"qkv_bias": False}, {"qkv_bias": False}),
        ({}, {"qkv_bias": True, "rope_theta": 10_000.0, "rope_type": "default", "head_dim": 8}),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "dynamic"}}, {"rope_type": "dynamic"}),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 7.0, "factor": 2}},
            {
                "rope_theta": 7.0,
                "rope_type": "linear",
                "rope_scaling": RopeScaling(factor=2, original_max_positions=4096),
            },
        ),
        ({"sliding_window": 8}, {"window": None}),
        (
            {"sliding_window": 8, "use_sliding_window": True},
            {"window": AttentionWindow(kind="sliding", size=8, layers=(0, 2))},
        ),
        ({"sliding_window": 4096, "use_sliding_window": True}, {"window": None}),
        ({"norm_topk_prob": True}, {"gate": "softmax_topk_renorm"}),
    ],
)
def test_older_and_newer_configurations_are_read(changes, expected):
    config = {
        "model_type": "qwen2_moe",
        "num_hidden_layers": 3,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "vocab_size": 61,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 24,
        "intermediate_size": 48,
    }
    shape = shape_of({**config, **changes})
    assert {key: getattr(shape, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 9}, "top_k 9 exceeds num_experts 8"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0; allowed: .*from 1"),
        ({"n_routed_experts": None}, "num_experts is None"),
        ({"num_key_value_heads": 3}, "4 heads do not divide by 3"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; allowed"),
        ({"moe_layer_freq": 0}, "moe_layer_freq is 0; allowed"),
        ({"first_k_dense_replace": 3}, "no layer has routed experts"),
        ({"intermediate_size": 0}, "dense layers need a dense intermediate size"),
        ({"hidden_size": -32}, "hidden_size is -32; allowed"),
        ({"rms_norm_eps": float("nan")}, "norm_eps is nan"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"num_hidden_layers": "three"}, "three|integer"),
        ({"model_type": "deepseek_v2"}, "key 'kv_lora_rank' is missing"),
        ({"model_type": "deepseek_v2", "q_lora_rank": 8}, "q_lora_rank: compressed queries"),
        ({"model_type": "deepseek_v2", "mlp_bias": True}, "mlp_bias: true is not supported"),
        ({"model_type": "glm4_moe"}, "norm_topk_prob: false is not supported"),
        (
            {"model_type": "glm4_moe", "norm_topk_prob": True, "n_group": 3, "topk_group": 2},
            "8 experts in 3 equal groups",
        ),
        ({"model_type": "llama4"}, "key 'num_attention_heads' is missing"),
        ({"attention_bias": True}, "attention_bias: true is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported; allowed: 'silu'"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "key 'short_factor' is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": -1.0}}, "factor is -1.0: .*greater than 0"),
    ],
)
def test_an_impossible_configuration_is_refused_in_one_line(changes, said):
    config = {**REMOTE_CONFIGS["deepseek"], **changes}
    with pytest.raises(CheckpointError, match=rf"^here\.json: .*({said})") as caught:
        shape_of(config, "here.json")
    assert "\n" not in str(caught.value)


def test_a_shape_takes_no_unknown_key_and_never_changes():
    shape = shape_of(REMOTE_CONFIGS["deepseek"])
    with pytest.raises(ValidationError, match="frozen"):
        shape.top_k = 1
    with pytest.raises(ValidationError, match="tops"):
        ModelShape(**shape.model_dump(), tops=3)
    with pytest.raises(ValidationError, match="kv_lora_rank"):
        LatentAttention(kv_lora_rank=0, qk_rope_head_dim=1, qk_nope_head_dim=1, v_head_dim=1)

"""Model shapes compared with published totals and with transformers' modules."""

import json
import math
from math import prod

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from moebench.substrate.errors import CheckpointError, UsageError
from moebench.substrate.models.catalogue import MODELS as CATALOGUE
from moebench.substrate.models.config import READERS, read_shape, shape_of
from moebench.substrate.models.mixers import CompressedCache, Indexer, LinearAttention, OtherHeads
from moebench.substrate.models.naming import common_tensors, expert_tensors
from moebench.substrate.models.shape import (
    AttentionWindow,
    Form,
    GateKind,
    LatentAttention,
    ModelShape,
    RopeScaling,
    Temperature,
    bits_per_weight,
    check_quantises,
    group_of,
    packed_bytes,
    stored_bytes,
    yarn_mscale,
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
    without = LatentAttention(kv_lora_rank=1, qk_rope_head_dim=0, qk_nope_head_dim=1, v_head_dim=1)
    assert without.qk_rope_head_dim == 0
    with pytest.raises(ValidationError, match="qk_rope_head_dim"):
        LatentAttention(kv_lora_rank=1, qk_rope_head_dim=-1, qk_nope_head_dim=1, v_head_dim=1)


# ------------------------------------------------------------------------------- counts by hand

#: Four layers of hidden size 10: 6 heads over 2 key-value heads of 4, 8 experts of width 7.
FIELDS = {
    "family": "own", "num_layers": 4, "hidden_size": 10, "vocab_size": 100, "num_heads": 6,
    "num_kv_heads": 2, "head_dim": 4, "num_experts": 8, "top_k": 2, "expert_width": 7,
    "dense_layers": (0,), "dense_width": 5, "shared_width": 3, "gate": GateKind.SOFTMAX_TOPK,
}  # fmt: skip
FOUR = ModelShape(**FIELDS)
#: Queries and output 10 · 24 each, keys and values 10 · 8 each.
FULL = 2 * 240 + 2 * 80
LATENT = LatentAttention(
    kv_lora_rank=5, qk_rope_head_dim=2, qk_nope_head_dim=3, v_head_dim=4, q_lora_rank=None
)
#: Queries 10 · 6 · 5, down 10 · 7 and a norm of 5, up 5 · 6 · 7, output 6 · 4 · 10.
MLA = 300 + 70 + 5 + 210 + 240
LINEAR = LinearAttention(
    kind="any", layers=(1, 2), params=33, state_values=50, conv_values=6
)  # fmt: skip


def with_(**fields) -> ModelShape:
    return ModelShape(**{**FIELDS, **fields})


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({}, [FULL] * 4),
        ({"qkv_bias": True}, [FULL + 24 + 16] * 4),
        ({"output_bias": True}, [FULL + 10] * 4),
        ({"attention_sinks": True}, [FULL + 6] * 4),
        ({"qk_norm": "l2"}, [FULL] * 4),
        ({"qk_norm": "head"}, [FULL + 2 * 4] * 4),
        ({"qk_norm": "full"}, [FULL + 24 + 8] * 4),
        ({"output_gate": "value"}, [FULL + 240] * 4),
        ({"output_gate": "head"}, [FULL + 60] * 4),
        ({"shared_kv": True, "qkv_bias": True}, [FULL - 80 + 24 + 8] * 4),
        ({"without_attention": (2,)}, [FULL, FULL, 0, FULL]),
        ({"linear": LINEAR}, [FULL, 33, 33, FULL]),
        ({"attention_counts": (1, 2, 3, 4)}, [1, 2, 3, 4]),
        ({"attention_counts": (1, 2, 3, 4), "linear": LINEAR}, [1, 33, 33, 4]),
        # 3 heads over 1 of 8 values: 2 · 240 and one or two projections of 80.
        ({"other_heads": OtherHeads(layers=(3,), num_heads=3, num_kv_heads=1, head_dim=8)},
         [FULL, FULL, FULL, 480 + 160]),
        ({"other_heads": OtherHeads(layers=(3,), num_heads=3, num_kv_heads=1, head_dim=8,
                                    one_projection=True)}, [FULL, FULL, FULL, 480 + 80]),
        ({"latent": LATENT}, [MLA] * 4),
        # Compressed queries: down 10 · 9, a norm of 9, up 9 · 30.
        ({"latent": LATENT.model_copy(update={"q_lora_rank": 9})}, [MLA - 300 + 90 + 9 + 270] * 4),
        # 2 index heads of 3: queries 10 · 6, a key 10 · 3 with its norm 2 · 3, weights 10 · 2.
        ({"indexer": Indexer(heads=2, head_dim=3, top_k=4)}, [FULL + 116] * 4),
        ({"indexer": Indexer(heads=2, head_dim=3, top_k=4, layers=(1,))},
         [FULL, FULL + 116, FULL, FULL]),
        ({"indexer": Indexer(heads=2, head_dim=3, top_k=4), "linear": LINEAR},
         [FULL + 116, 33, 33, FULL + 116]),
        # Index queries from the compressed ones: 9 · 6.
        ({"indexer": Indexer(heads=2, head_dim=3, top_k=4),
          "latent": LATENT.model_copy(update={"q_lora_rank": 9})},
         [MLA - 300 + 369 + 116 - 60 + 54] * 4),
    ],
)  # fmt: skip
def test_parameters_of_attention_by_hand(fields, params):
    shape = with_(**fields)
    assert [shape.layer_attention_params(layer) for layer in range(4)] == params
    assert shape.attention_params == round(sum(params) / 4)
    # A norm before each part; dense, shared and gate weights in layers with experts.
    norms = [10 * (layer not in shape.without_attention) + 10 for layer in range(4)]
    feed = [3 * 10 * 5, *[3 * 10 * 3 + 80] * 3]
    common = [sum(of_layer) for of_layer in zip(params, norms, feed, strict=True)]
    assert [shape.layer_common_params(layer) for layer in range(4)] == common
    assert shape.common_params == 2 * 1000 + 10 + sum(common)
    assert shape.routed_params == 3 * 8 * 3 * 10 * 7
    assert shape.total_params == shape.common_params + shape.routed_params
    assert shape.active_common_params == shape.common_params - 1000
    assert shape.active_params == shape.common_params - 1000 + 3 * 2 * 210


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"expert_params": 210, "shared_params": 90, "dense_params": 150, "gate_params": 80,
              "norm_params": 10, "embedding_params": 1000, "head_params": 1000,
              "own_head_params": 1000, "query_width": 24, "output_params": 240,
              "kv_values_per_token_layer": 16, "mixer_kernels": 1.0, "bounds_context": False}),
        ({"ffn_matrices": 2, "expert_bias": True},
         {"expert_params": 2 * 70 + 7 + 10, "shared_params": 60, "dense_params": 100}),
        ({"expert_bias": True}, {"expert_params": 3 * 70 + 2 * 7 + 10}),
        ({"norm": "layer", "gate_bias": True, "output_bias": True},
         {"norm_params": 20, "gate_params": 88, "output_params": 250}),
        ({"head_bias": True}, {"head_params": 1100, "own_head_params": 1100}),
        ({"head_bias": True, "tied_head": True}, {"head_params": 1100, "own_head_params": 100}),
        ({"tied_head": True}, {"head_params": 1000, "own_head_params": 0}),
        ({"latent": LATENT}, {"mixer_kernels": 28 / 18, "kv_values_per_token_layer": 7}),
        ({"linear": LINEAR}, {"mixer_kernels": (2 * 40 / 18 + 2) / 4, "bounds_context": True,
                              "kv_values_per_token_layer": 8}),
        ({"window": AttentionWindow(kind="sliding", size=3, layers=(1,))},
         {"bounds_context": True, "kv_values_per_token_layer": 16}),
        ({"lookup_params": 5000}, {"total_params": FOUR.total_params + 5000}),
        ({"without_ffn": (0,)}, {"common_params": FOUR.common_params - 150 - 10}),
        ({"shared_gated": True}, {"common_params": FOUR.common_params + 3 * 10}),
        ({"gate": GateKind.TOPK_SIGMOID}, {"weighs_input": True, "corrects_scores": False}),
        ({"gate": GateKind.SIGMOID_BIAS_TOPK_RENORM},
         {"weighs_input": False, "corrects_scores": True}),
    ],
)  # fmt: skip
def test_further_counts_by_hand(fields, expected):
    shape = with_(**fields)
    assert {name: getattr(shape, name) for name in expected} == pytest.approx(expected)


def test_rows_and_order_of_layers_with_experts():
    shape = with_(dense_layers=(0, 2))
    assert (shape.moe_layers, shape.moe_rows) == ((1, 3), {1: 0, 3: 1})
    assert shape.next_moe_layers == {1: 3, 3: None}
    assert FOUR.next_moe_layers == {1: 2, 2: 3, 3: None}


@pytest.mark.parametrize(
    ("fields", "tensors"),
    [
        # Norms 2; q, k, v, o; a router, three shared matrices, or three dense ones.
        ({}, [2 + 4 + 3, *[2 + 4 + 1 + 3] * 3]),
        ({"norm": "layer", "qkv_bias": True, "output_bias": True, "attention_sinks": True},
         [4 + 9 + 3, *[4 + 9 + 4] * 3]),
        ({"qk_norm": "head", "gate_bias": True, "shared_gated": True},
         [2 + 6 + 3, *[2 + 6 + 2 + 4] * 3]),
        ({"qk_norm": "l2", "shared_width": 0, "shared_gated": True}, [9, 7, 7, 7]),
        ({"ffn_matrices": 2, "without_ffn": (0,)}, [2 + 4, *[2 + 4 + 1 + 2] * 3]),
        ({"without_attention": (1,)}, [9, 6, 10, 10]),
        ({"linear": LINEAR}, [9, 14, 14, 10]),
        ({"latent": LATENT}, [10, 11, 11, 11]),
        ({"latent": LATENT.model_copy(update={"q_lora_rank": 9}),
          "indexer": Indexer(heads=2, head_dim=3, top_k=4, layers=(1,))}, [12, 18, 13, 13]),
    ],
)  # fmt: skip
def test_tensors_of_a_layer_by_hand(fields, tensors):
    shape = with_(**fields)
    assert [shape.layer_common_tensors(layer) for layer in range(4)] == tensors


WINDOW = AttentionWindow(kind="sliding", size=6, layers=(1, 2))
INDEX = Indexer(heads=2, head_dim=3, top_k=4, layers=(1, 3), pool=4)


@pytest.mark.parametrize(
    ("fields", "held", "read"),
    [
        ({}, [160] * 4, None),
        ({"shared_kv": True}, [80] * 4, None),
        ({"window": WINDOW}, [160, 96, 96, 160], None),
        ({"latent": LATENT}, [70] * 4, None),
        ({"linear": LINEAR}, [160, 0, 0, 160], None),
        ({"without_attention": (3,)}, [160, 160, 160, 0], None),
        ({"other_heads": OtherHeads(layers=(3,), num_heads=3, num_kv_heads=1, head_dim=8)},
         [160, 160, 160, 160], None),
        ({"other_heads": OtherHeads(layers=(3,), num_heads=3, num_kv_heads=3, head_dim=8)},
         [160, 160, 160, 480], None),
        # A key of 3 values a token; read: 4 tokens, and the keys of three groups of 4.
        ({"indexer": INDEX}, [160, 190, 160, 190], [64, 64 + 9, 64, 64 + 9]),
        ({"indexer": INDEX, "window": AttentionWindow(kind="sliding", size=2, layers=(1,))},
         [160, 32 + 30, 160, 190], [64, 32 + 9, 64, 64 + 9]),
        # Beyond the window of 6 an entry for each 3 tokens, with an index of 2; 1 of them is read.
        ({"window": WINDOW,
          "compressed": (CompressedCache(layers=(1,), ratio=3, index_values=2, top_k=1),)},
         [160, 96 + 3 * 18, 96, 160], [160, 96 + 16 + 3 * 2, 96, 160]),
        ({"window": WINDOW, "compressed": (CompressedCache(layers=(2,), ratio=4),)},
         [160, 96, 96 + 2 * 16, 160], None),
    ],
)  # fmt: skip
def test_the_cache_of_ten_tokens_by_hand(fields, held, read):
    shape = with_(**fields)
    assert [shape.kv_values(layer, 10) for layer in range(4)] == held
    found = [shape.kv_values(layer, 10, read=True) for layer in range(4)]
    assert found == (held if read is None else read)
    assert shape.kv_bytes(10) == 2 * sum(held)
    assert shape.kv_bytes(10, "fp32", read=True) == 4 * sum(found)
    # Without bounds a token adds the whole of what one holds.
    plain = with_(**{name: value for name, value in fields.items() if name != "window"})
    if not plain.compressed:
        per_token = [plain.kv_values(layer, 1) for layer in range(4)]
        assert [shape.kv_values_per_token(layer) for layer in range(4)] == per_token
        assert shape.kv_values_per_token_layer == math.ceil(sum(per_token) / 4)
        assert shape.kv_bytes_per_token() == 2 * sum(per_token)
        assert shape.kv_bytes_per_token("fp32") == 4 * sum(per_token)


def test_compressed_entries_count_by_their_share_of_a_token():
    shape = with_(compressed=(CompressedCache(layers=(1, 2), ratio=4, index_values=2),))
    each = [16, 16 + 18 / 4, 16 + 18 / 4, 16]
    assert [shape.kv_values_per_token(layer) for layer in range(4)] == each
    assert shape.kv_values_per_token_layer == 19  # 73 / 4, rounded up
    assert shape.kv_bytes_per_token() == 146


def test_states_of_linear_layers():
    shape = with_(linear=LINEAR)
    assert [shape.state_values(layer) for layer in range(4)] == [0, 56, 56, 0]
    assert (shape.state_bytes(), shape.state_bytes("bf16")) == (448, 224)
    assert (FOUR.state_bytes(), FOUR.state_values(1)) == (0, 0)


@pytest.mark.parametrize(
    ("stored_as", "first", "second"),
    [
        # Rows of 10 and 7 inputs: 14 rows into, 10 rows out, with a scale of 2 bytes a row.
        ("int8", 14 * 10 + 14 * 2, 10 * 7 + 10 * 2),
        ("row-int4", 14 * 5 + 28, 10 * 4 + 20),
        ("row-int2", 14 * 3 + 28, 10 * 2 + 20),
        # Halves of bytes; groups of 10 and of 7 with a scale and a zero point.
        ("int4", 14 * 10 // 2 + 14 * 4, 10 * 7 // 2 + 10 * 4),
    ],
)
def test_bytes_of_quantised_experts_by_hand(stored_as, first, second):
    assert FOUR.expert_dims == ((14, 10), (10, 7))
    assert with_(ffn_matrices=2).expert_dims == ((7, 10), (10, 7))
    assert packed_bytes(14, 10, stored_as) == first
    assert FOUR.expert_bytes(stored_as) == first + second
    form = Form("half", dtype=stored_as, share=0.5)
    assert form.record_bytes(FOUR, "bf16") == round((first + second) / 2)
    assert not form.full


def test_bytes_of_weights_by_hand():
    assert [FOUR.expert_bytes(p) for p in ("fp32", "bf16", "fp16", 8.0)] == [840, 420, 420, 210]
    assert FOUR.expert_bytes("4bit-g64") == round(210 * 4.5 / 8)
    assert FOUR.common_bytes(6.0) == round(FOUR.common_params * 6 / 8)
    assert Form().record_bytes(FOUR, "bf16") == 420
    assert Form().full
    assert not Form(share=0.25).full
    assert bits_per_weight(3.5) == 3.5
    assert [group_of(n) for n in (256, 192, 96, 100, 7, 130, 254)] == [128, 64, 32, 100, 7, 65, 127]


@given(st.integers(1, 20_000))
def test_groups_divide_a_row_and_are_as_large_as_can_be(inputs):
    """A prime row beyond the largest group has groups of one weight."""
    fitting = [size for size in (128, 64, 32) if inputs % size == 0]
    largest = max(size for size in range(1, 129) if inputs % size == 0)
    assert group_of(inputs) == (fitting[0] if fitting else largest)
    assert (group_of(131), group_of(127), group_of(129)) == (1, 127, 43)


def test_what_cannot_be_quantised_is_refused():
    check_quantises(with_(expert_width=8), "int4")
    check_quantises(with_(hidden_size=12, expert_width=8), "row-int2")
    for shape, dtype, said in (
        (with_(expert_bias=True), "int4", "--expert-dtype int4: experts of family own have biases"),
        (FOUR, "int4", "--expert-dtype int4: experts have rows of 7 numbers; allowed: even"),
        (with_(expert_width=8), "row-int2", "row-int2: .* rows of 10 numbers; .*multiples of 4"),
    ):
        with pytest.raises(UsageError, match=said):
            check_quantises(shape, dtype)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dense_layers": (0, 4)}, "dense_layers name one outside of 4 layers"),
        ({"dense_layers": (-1,)}, "dense_layers name one outside of 4 layers"),
        ({"top_k": 9}, "top_k 9 exceeds num_experts 8"),
        ({"num_kv_heads": 4}, "6 heads do not divide by 4"),
        ({"dense_width": 0}, "dense layers need a dense intermediate size"),
        ({"gate_groups": (3, 1)}, "8 experts in 3 equal groups"),
        ({"dense_layers": (0, 1, 2, 3)}, "no layer has routed experts"),
        ({"without_ffn": (0, 1)}, "without_ffn names a layer that is not in dense_layers"),
        ({"attention_counts": (1, 2, 3)}, "attention_counts has not one number for each of 4"),
        ({"without_attention": (1, 1)}, "without_attention names a layer twice, or one outside"),
        ({"window": WINDOW.model_copy(update={"layers": (4,)})}, "window names a layer twice"),
        ({"indexer": INDEX.model_copy(update={"layers": (-1,)})}, "indexer names a layer twice"),
        ({"other_heads": OtherHeads(layers=(4,), num_heads=1, num_kv_heads=1, head_dim=1)},
         "other_heads names a layer twice"),
        ({"compressed": (CompressedCache(layers=(1,), ratio=2),) * 2}, "compressed names a layer"),
        ({"linear": LINEAR, "without_attention": (2,)}, "linear names a layer that has another"),
        ({"hidden_size": True}, "a truth value is no number"),
        ({"rope_theta": True}, "a truth value is no number"),
        ({"dense_width": False}, "a truth value is no number"),
    ],
)  # fmt: skip
def test_contradicting_numbers_are_refused(fields, says):
    with pytest.raises(ValidationError, match=says):
        with_(**fields)


def test_what_layers_allow_together():
    """Neither is a contradiction: the last layer, all experts, a dense layer without its part."""
    with_(dense_layers=(3,), window=AttentionWindow(kind="sliding", size=1, layers=(0, 3)))
    with_(top_k=8, gate_groups=(2, 1), indexer=Indexer(heads=1, head_dim=1, top_k=1))
    with_(dense_width=0, without_ffn=(0,), attention_counts=(1, 2, 3, 4))


def test_windows_begin_where_a_row_sees_first():
    sliding, chunked = (
        AttentionWindow(kind=kind, size=4, layers=()) for kind in ("sliding", "chunked")
    )
    assert [sliding.first(n) for n in (0, 3, 4, 9)] == [0, 0, 1, 6]
    assert [chunked.first(n) for n in (0, 3, 4, 9)] == [0, 0, 4, 8]


def test_products_of_latent_attention_and_its_scale():
    assert (LATENT.products(decode=True), LATENT.products(decode=False)) == (12, 9)
    assert [yarn_mscale(factor, 0.7) for factor in (0.5, 1.0)] == [1.0, 1.0]
    assert yarn_mscale(math.e**2, 0.7) == pytest.approx(1.14)


@pytest.mark.parametrize(
    ("names", "least", "greatest"),
    [
        ("hidden_size vocab_size head_dim expert_width rotary_dim max_positions", 1, 10**9),
        ("num_layers", 1, 10_000),
        ("num_experts", 2, 2**16),
        ("dense_width shared_width", 0, 10**9),
        ("lookup_params", 0, 10**13),
    ],
)
def test_numbers_lie_within_what_arithmetic_can_hold(names, least, greatest):
    whole = {"dense_layers": (), "num_layers": 1}
    for name in names.split():
        for value in (least, greatest):
            assert getattr(with_(**whole | {name: value}), name) == value
        below = 0 if name == "num_experts" else least - 1
        for value in (below, greatest + 1):
            with pytest.raises(ValidationError, match=name):
                with_(**whole | {name: value})


def test_counts_of_attention_are_parameters_and_rates_are_above_zero():
    assert with_(attention_counts=(0, 1, 2, 10**13)).layer_attention_params(3) == 10**13
    for value in (-1, 10**13 + 1):
        with pytest.raises(ValidationError, match="attention_counts"):
            with_(attention_counts=(0, 1, 2, value))
    for name in ("rope_theta", "norm_eps"):
        assert getattr(with_(**{name: 1e-9}), name) == 1e-9
        with pytest.raises(ValidationError, match=name):
            with_(**{name: 0})
    latent = {"kv_lora_rank": 1, "qk_rope_head_dim": 0, "qk_nope_head_dim": 1, "v_head_dim": 1}
    assert LatentAttention(**latent, q_lora_rank=1).products(decode=False) == 2
    scaling = {"factor": 0.5, "original_max_positions": 1}
    window = {"kind": "sliding", "size": 1, "layers": ()}
    for kind, good, names in (
        (LatentAttention, latent | {"q_lora_rank": 1},
         "kv_lora_rank qk_nope_head_dim v_head_dim q_lora_rank"),
        (RopeScaling, scaling, "factor original_max_positions attention_factor beta_fast beta_slow "
                               "long_attention_factor low_freq_factor high_freq_factor"),
        (AttentionWindow, window, "size"),
        (Temperature, {"floor": 0.5, "scale": 0.0}, "floor"),
    ):  # fmt: skip
        kind(**good)
        for name in names.split():
            assert getattr(kind(**good | {name: 1}), name) == 1
            with pytest.raises(ValidationError, match=name):
                kind(**good | {name: 0})


def test_what_a_shape_leaves_out_is_the_usual():
    found = {name: getattr(FOUR, name) for name in ModelShape.model_fields if name not in FIELDS}
    assert found == {
        "qkv_bias": False, "output_bias": False, "attention_sinks": False, "qk_norm": "none",
        "latent": None, "clip_qkv": None, "rope_theta": 10_000.0, "rope_type": "default",
        "rope_scaling": None, "rotary_dim": None, "rope_interleaved": False, "nope_layers": (),
        "nope_temperature": None, "window": None, "max_positions": 4096, "norm": "rms",
        "norm_eps": 1e-6, "tied_head": False, "head_bias": False, "expert_bias": False,
        "swiglu_limit": None, "swiglu_alpha": 1.0, "shared_gated": False, "gate_bias": False,
        "gate_jitter": 0.01, "gate_groups": None, "routed_scaling_factor": 1.0, "linear": None,
        "other_heads": None, "indexer": None, "compressed": (), "output_gate": "none",
        "shared_kv": False, "attention_counts": (), "ffn_matrices": 3, "without_attention": (),
        "without_ffn": (), "lookup_params": 0,
    }  # fmt: skip
    scaling = RopeScaling(factor=2, original_max_positions=8).model_dump()
    assert scaling == {
        "factor": 2, "original_max_positions": 8, "attention_factor": 1, "mscale_all_dim": 0,
        "long_attention_factor": 1, "beta_fast": 32, "beta_slow": 1, "truncate": True,
        "low_freq_factor": 1, "high_freq_factor": 4, "short_factor": (), "long_factor": (),
    }  # fmt: skip

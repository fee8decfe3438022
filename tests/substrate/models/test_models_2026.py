"""Shapes of models of 2026 compared with their published counts, and the names of all models."""

import hashlib
import json

import pytest
from pydantic import ValidationError

from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.models.catalogue import (
    find_name,
    find_shape,
    model_names,
    model_shape,
    published_models,
    shape_names,
)
from moebench.substrate.models.shape import GateKind, ModelShape

#: Published counts that shapes miss by more than 2 %: most are labels, rounded to a whole number.
#: GLM-5.3-Flash's include the layer for multi-token prediction.  `misfits` has each reason.
MISSED = {
    ("deepseek-v2-lite", "active"), ("ernie-4.5-21b-a3b", "active"), ("ernie-4.5-21b-a3b", "total"),
    ("glm-4.7-flash", "active"), ("glm-5.3-flash", "active"), ("glm-5.3-flash", "total"),
    ("granite-4.0-h-small", "active"), ("granite-4.0-h-tiny", "active"),
    ("ling-flash-2.0", "total"), ("ling-mini-2.0", "active"), ("qwen3-next-80b-a3b", "active"),
    ("qwen3.5-122b-a10b", "active"), ("qwen3.5-397b-a17b", "active"),
}  # fmt: skip

PUBLISHED = published_models()


def ratios(name: str) -> dict[str, float]:
    """Computed over published parameters, in total and for one token."""
    shape, found = model_shape(name), PUBLISHED[name].published
    active = shape.active_params
    if found.counts == "neither":
        active -= shape.head_params
    elif found.counts == "both" and not shape.tied_head:
        active += shape.embedding_params
    return {
        "total": shape.total_params / 1e9 / found.total_b, "active": active / 1e9 / found.active_b
    }  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_reproduce_published_counts_within_2_percent(name: str) -> None:
    entry = PUBLISHED[name]
    assert model_shape(name).expert_params == entry.published.expert
    missed = {what for what, ratio in ratios(name).items() if abs(ratio - 1) > 0.02}
    assert missed == {what for model, what in MISSED if model == name}
    assert missed == set(entry.misfits)
    assert all(entry.misfits.values())


def test_every_entry_has_a_shape_or_a_configuration() -> None:
    without = {name for name, entry in PUBLISHED.items() if entry.shape is None}
    assert without < set(model_names())
    assert {*PUBLISHED, *model_names()} == set(shape_names())
    assert not {*PUBLISHED} - without & {*model_names()} - without
    assert all(entry.source for entry in PUBLISHED.values())


# ----------------------------------------------------------------------------- attention kinds


@pytest.mark.parametrize(
    ("name", "context", "held", "read"),
    [
        # 18 layers with a window of 128 tokens, 18 with all; 8 heads of 64, keys and values.
        ("gpt-oss-120b", 10_000, 18 * (10_000 + 128) * 1024, None),
        ("gpt-oss-120b", 100, 36 * 100 * 1024, None),
        # One compressed vector of 576 values in each of 61 layers.
        ("deepseek-v3", 10_000, 61 * 10_000 * 576, None),
        # 10 of 40 layers have a cache.
        ("qwen3.5-35b-a3b", 10_000, 10 * 10_000 * 2 * 2 * 256, None),
        # An index key of 128 values a token; attention reads 2048 tokens.
        ("glm-5", 10_000, 78 * 10_000 * (576 + 128), 78 * (2048 * 576 + 10_000 * 128)),
        # 25 layers of 8 heads of 256 in a window of 1024; 5 layers of 2 heads of 512.
        ("gemma-4-26b-a4b", 10_000, 25 * 1024 * 4096 + 5 * 10_000 * 2048, None),
        # Chunks of 8192 in 36 layers.
        ("llama-4-maverick", 10_000, (36 * 8192 + 12 * 10_000) * 2048, None),
        # 43 windows of 128; entries for 4 tokens (21 layers, with index) and for 128 (20 layers).
        (
            "deepseek-v4-flash", 12_800,
            43 * 128 * 512 + 21 * 3200 * (512 + 128) + 20 * 100 * 512,
            43 * 128 * 512 + 21 * (512 * 512 + 3200 * 128) + 20 * 100 * 512,
        ),
        ("nemotron-3-nano-30b-a3b", 1000, 6 * 1000 * 2 * 2 * 128, None),
    ],
)  # fmt: skip
def test_windows_ranks_and_indexers_bound_the_kv_cache(
    name: str, context: int, held: int, read: int | None
) -> None:
    shape = model_shape(name)
    assert shape.kv_bytes(context) == 2 * held
    assert shape.kv_bytes(context, read=True) == 2 * (held if read is None else read)
    assert shape.kv_bytes(0) == 0


@pytest.mark.parametrize("name", shape_names())
def test_cache_grows_with_the_context_up_to_the_unbounded_one(name: str) -> None:
    shape = model_shape(name)
    sizes = [shape.kv_bytes(context) for context in (1, 100, 1000, 10_000, 100_000)]
    assert sizes == sorted(sizes)
    assert all(
        shape.kv_bytes(n, read=True) <= shape.kv_bytes(n) <= n * shape.kv_bytes_per_token() + 1
        for n in (1, 100, 10_000)
    )
    layers = shape.num_layers * shape.kv_values_per_token_layer
    assert 2 * layers >= shape.kv_bytes_per_token() >= 2 * (layers - shape.num_layers)
    assert shape.active_common_params < shape.active_params < shape.total_params


def test_linear_layers_have_a_constant_state() -> None:
    shape = model_shape("qwen3-next-80b-a3b")
    assert shape.state_values(0) == 524_288 + 24_576
    assert shape.state_values(3) == 0
    assert shape.state_bytes() == 36 * (524_288 + 24_576) * 4
    assert model_shape("qwen3-30b-a3b").state_bytes() == 0


def test_mixed_layers_have_their_own_parameters() -> None:
    shape = model_shape("nemotron-3-nano-30b-a3b")
    assert [shape.layer_attention_params(i) == 0 for i in range(3)] == [False, True, False]
    assert shape.moe_layers == tuple(i for i in range(52) if not shape.layer_attention_params(i))
    assert shape.layer_common_params(0) == shape.linear.params + shape.norm_params
    total = sum(shape.layer_attention_params(i) for i in range(52))
    assert abs(shape.attention_params * 52 - total) <= 26
    assert model_shape("qwen3.8-flash-next").common_params < 5e9 < 51e9  # without the n-gram table


# ----------------------------------------------------------------------------- hashes


#: The first hexadecimal digits of the SHA-256 of shapes as they were before newer fields.
HASHES = {
    "deepseek-v2-lite": "f83a21c2f14fd1f7",
    "gpt-oss-20b": "fa5471cd59bc9e48",
    "llama-4-scout": "ce03750f713900b2",
    "qwen3-30b-a3b": "493950d009e42755",
}


@pytest.mark.parametrize("name", HASHES)
def test_newer_fields_leave_older_hashes_as_they_are(name: str) -> None:
    text = model_shape(name).model_dump_json()
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == HASHES[name]


@pytest.mark.parametrize("name", shape_names())
def test_shapes_survive_json(name: str) -> None:
    shape = model_shape(name)
    assert ModelShape.model_validate_json(shape.model_dump_json()) == shape
    written = json.loads(shape.model_dump_json())
    assert not [key for key in ModelShape.NEWER & written.keys() if written[key] in (None, [], 0)]


# ----------------------------------------------------------------------------- contradictions

LINEAR = {"kind": "any", "layers": (0,), "params": 1, "state_values": 1}
OTHER = {"layers": (1,), "num_heads": 1, "num_kv_heads": 1, "head_dim": 1}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"linear": {**LINEAR, "layers": (9,)}}, "linear names a layer"),
        ({"linear": {**LINEAR, "layers": (0, 0)}}, "linear names a layer twice"),
        ({"linear": LINEAR, "without_attention": (0,)}, "another kind of attention"),
        ({"linear": {**LINEAR, "layers": (1,)}, "other_heads": OTHER}, "another kind"),
        ({"without_ffn": (1,)}, "not in dense_layers"),
        ({"attention_counts": (1, 2, 3)}, "one number for each of 2"),
        ({"attention_counts": (1, -2)}, "greater than or equal to 0"),
        ({"compressed": [{"layers": (0, 3), "ratio": 4}]}, "compressed names a layer"),
    ],
)
def test_contradicting_layers_are_refused(fields: dict[str, object], says: str) -> None:
    plain = {
        "family": "own", "num_layers": 2, "hidden_size": 4, "vocab_size": 4, "num_heads": 2,
        "num_kv_heads": 1, "head_dim": 2, "num_experts": 4, "top_k": 2, "expert_width": 4,
        "gate": GateKind.SOFTMAX_TOPK,
    }  # fmt: skip
    ModelShape(**plain)
    with pytest.raises(ValidationError, match=says):
        ModelShape(**{**plain, **fields})


# ----------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Qwen3-Coder-Next 80B-A3B", "qwen3-next-80b-a3b"),
        ("Qwen3.6-35B-A3B", "qwen3.5-35b-a3b"),
        ("GLM-4.5-Air", "glm-4.5-air"),
        ("glm-4.6", "glm-4.5"),
        ("GLM-4.7 355B-A32B", "glm-4.5"),
        ("DeepSeek-R1 671B", "deepseek-v3"),
        ("DeepSeek-R1-0528-UD-Q2_K_XL", "deepseek-v3"),
        ("DeepSeek-V3/R1 671B", "deepseek-v3"),
        ("DeepSeek-R1/V3 671B (not named in the excerpt)", "deepseek-v3"),
        ("Kimi-K2 (384 experts)", "kimi-k2"),
        ("kimi-k2-thinking", "kimi-k2"),
        ("Mixtral 8x7B", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("gpt_oss_120b", "gpt-oss-120b"),
        ("OpenAI/GPT-OSS-20B-MXFP4", "gpt-oss-20b"),
        ("Laguna S-2.1 118B (49 layers)", "laguna-s-2.1"),
    ],
)
def test_published_names_find_a_shape(published: str, name: str) -> None:
    assert find_name(published) == name
    assert find_shape(published) == model_shape(name)


@pytest.mark.parametrize("name", shape_names())
def test_every_name_is_found_in_any_case(name: str) -> None:
    assert find_name(name.upper()) == name
    for other in PUBLISHED[name].names if name in PUBLISHED else ():
        assert find_name(other) == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Qwen3.5", r"several names begin so; nearest: qwen3.5-122b-a10b, qwen3.5-35b-a3b"),
        ("mixtral", r"several names begin so; nearest: mixtral-8x22b, mixtral-8x7b"),
        ("DeepSeek-V3 16B", r"deepseek-v3 has 671 B parameters, not 16 B"),
        ("GLM-4.5-106B-A12B", r"glm-4.5 has 355 B parameters, not 106 B"),
        ("DeepSeek-R1-Distill-Qwen-32B", r"unknown model"),
        ("SmallThinker-21BA3B", r"unknown model 'SmallThinker-21BA3B'"),
        ("gpt-oss-121b", r"unknown model 'gpt-oss-121b'; nearest: gpt-oss-120b"),
        ("", r"unknown model ''"),
    ],
)
def test_unknown_and_ambiguous_names_are_refused(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        find_shape(name)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_one_kind_of_error() -> None:
    with pytest.raises(UnknownNameError, match="any other: --model path"):
        model_shape("nothing-like-it")

"""Reads Hugging Face's ``config.json`` into a `ModelShape`: one reader for each ``model_type``.

No other module knows the key names of a model family.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from moebench.substrate.errors import CheckpointError, InputError
from moebench.substrate.files import brief, read_mapping, whole
from moebench.substrate.models.fields import check_counts, first_line
from moebench.substrate.models.shape import (
    MOST,
    ROPE_TYPES,
    AttentionWindow,
    GateKind,
    LatentAttention,
    ModelShape,
    yarn_mscale,
)

Config = Mapping[str, Any]


def read_shape(path: Path) -> ModelShape:
    """Return the shape that a ``config.json`` file describes.

    Raises CheckpointError: the file is missing, is not JSON, or describes no supported model.
    """
    return shape_of(read_config(path), str(path))


def read_config(path: Path) -> dict[str, Any]:
    """Return the JSON object of a ``config.json`` file.

    Raises CheckpointError: the file is missing, or is no JSON object.
    """
    return read_mapping(path, CheckpointError)


def shape_of(config: Config, where: str = "config.json") -> ModelShape:
    """Return the shape that a configuration's keys describe.

    Raises CheckpointError: an unknown ``model_type``, or a key that is missing or out of range.
    """
    model_type = config.get("model_type")
    if model_type == "llama4":  # A multimodal model nests the text model's configuration.
        inner = config.get("text_config") or {}
        if not isinstance(inner, Mapping):
            raise CheckpointError(f"{where}: text_config is {brief(inner)}; allowed: an object")
        config = inner
        model_type = config.get("model_type", "llama4_text")
        config = {**config, "model_type": model_type}
    reader = READERS.get(str(model_type))
    if reader is None:
        raise CheckpointError(
            f"{where}: model_type {model_type!r} is not supported: its configuration, names and "
            f"mathematics are unknown here; allowed: {', '.join(sorted(READERS))}; to charge "
            "for it without its weights, give --model a .yaml of its shape (docs/checkpoints.md)"
        )
    try:
        check_counts(config)
        activation = config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise ValueError(f"hidden_act: {activation!r} is not supported; allowed: 'silu'")
        return ModelShape(**{**common_fields(config), **reader(config)})
    except KeyError as missing:
        raise CheckpointError(f"{where}: key {missing} is missing") from missing
    except (
        TypeError, ValueError, ArithmeticError, AttributeError, IndexError, InputError,
    ) as error:  # fmt: skip
        raise CheckpointError(f"{where}: {first_line(error)}") from error


def common_fields(c: Config) -> dict[str, Any]:
    """Return the shape fields whose keys are equal in all Hugging Face decoder configurations."""
    heads = c["num_attention_heads"]
    rope: Config = c.get("rope_parameters") or c.get("rope_scaling") or {}
    return {
        "family": c["model_type"],
        "num_layers": c["num_hidden_layers"],
        "hidden_size": c["hidden_size"],
        "vocab_size": c["vocab_size"],
        "num_heads": heads,
        "num_kv_heads": c.get("num_key_value_heads") or heads,
        "head_dim": c.get("head_dim") or c["hidden_size"] // heads,
        "rope_theta": _given(c, "rope_theta", _given(rope, "rope_theta", 10_000.0)),
        **_rope(c, rope),
        "max_positions": c.get("max_position_embeddings", 4096),
        "norm_eps": c.get("rms_norm_eps", 1e-6),
        "tied_head": c.get("tie_word_embeddings", False),
    }


def _given(c: Config, key: str, default: object) -> Any:
    """Return a key's value, or the default if the key is missing or null."""
    return default if c.get(key) is None else c[key]


def _rope(c: Config, rope: Config) -> dict[str, Any]:
    """Return the rotary-embedding fields, whose keys are equal in all model families."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    share = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))
    fields: dict[str, Any] = {"rope_type": kind}
    if share != 1.0:
        width = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        fields["rotary_dim"] = int(width * share)
    if kind not in ROPE_TYPES or kind == "default":
        return fields
    longest = c.get("max_position_embeddings", 4096)
    key = "original_max_position_embeddings"
    original = whole(_given(rope, key, _given(c, key, longest)), key, 1, MOST)
    factor = rope["factor"] if rope.get("factor") is not None else longest / original
    scaling = {"factor": factor, "original_max_positions": original}
    own = ("beta_fast", "beta_slow", "truncate", "mscale_all_dim", "low_freq_factor",
           "high_freq_factor", "short_factor", "long_factor")  # fmt: skip
    scaling |= {key: rope[key] for key in own if rope.get(key) is not None}
    if kind == "longrope":
        usual = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
        usual = rope.get("attention_factor") or usual
        scaling["attention_factor"] = rope.get("short_mscale", usual)
        scaling["long_attention_factor"] = rope.get("long_mscale", usual)
        scaling |= {key: rope[key] for key in ("short_factor", "long_factor")}
    elif kind == "yarn":
        both = rope.get("mscale") and rope.get("mscale_all_dim")
        scaling["attention_factor"] = rope.get("attention_factor") or (
            yarn_mscale(factor, rope["mscale"]) / yarn_mscale(factor, rope["mscale_all_dim"])
            if both
            else yarn_mscale(factor, 1.0)
        )
    return {**fields, "rope_scaling": scaling}


def _sliding(c: Config, layers: Iterable[int]) -> dict[str, Any]:
    """Return the sliding-window field, or nothing if the window covers all positions."""
    size, layers = c.get("sliding_window"), tuple(layers)
    if not size or not layers or size >= c.get("max_position_embeddings", 4096):
        return {}
    return {"window": AttentionWindow(kind="sliding", size=size, layers=layers)}


def _groups(c: Config) -> dict[str, Any]:
    """Return the expert-group field, or nothing if groups do not limit the gate's choice."""
    count, opened = c.get("n_group") or 1, c.get("topk_group") or 1
    return {"gate_groups": (count, opened)} if opened < count else {}


def _softmax_gate(renormalise: bool) -> GateKind:
    return GateKind.SOFTMAX_TOPK_RENORM if renormalise else GateKind.SOFTMAX_TOPK


def _sparse_step_dense_layers(c: Config) -> tuple[int, ...]:
    """Return Qwen's dense layers: listed ones, and all but each ``decoder_sparse_step``-th."""
    step, listed = c.get("decoder_sparse_step", 1), c.get("mlp_only_layers") or ()
    return tuple(i for i in range(c["num_hidden_layers"]) if i in listed or (i + 1) % step)


def _num_experts(c: Config) -> int:
    """Return ``num_experts``, which Transformers 5 writes as ``num_local_experts``."""
    return int(c["num_experts"] if "num_experts" in c else c["num_local_experts"])


def _qwen_moe(c: Config) -> dict[str, Any]:
    return {
        "num_experts": _num_experts(c),
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["moe_intermediate_size"],
        "dense_layers": _sparse_step_dense_layers(c),
        "dense_width": c.get("intermediate_size", 0),
        "gate": _softmax_gate(c.get("norm_topk_prob", False)),
    }


def _qwen2_moe(c: Config) -> dict[str, Any]:
    windowed: list[int] = []
    if c.get("use_sliding_window", False):
        kinds = c.get("layer_types") or [
            "sliding_attention" if (i + 1) % 2 and i < c.get("max_window_layers", 28) else ""
            for i in range(c["num_hidden_layers"])
        ]
        windowed = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    return {
        **_qwen_moe(c),
        **_sliding(c, windowed),
        "qkv_bias": c.get("qkv_bias", True),
        "shared_width": c["shared_expert_intermediate_size"],
        "shared_gated": True,
    }


def _qwen3_moe(c: Config) -> dict[str, Any]:
    bias = c.get("attention_bias", False)
    every = range(c["num_hidden_layers"]) if c.get("use_sliding_window", False) else ()
    return {
        **_qwen_moe(c), **_sliding(c, every), "qk_norm": "head", "qkv_bias": bias,
        "output_bias": bias,
    }  # fmt: skip


def _deepseek_v1(c: Config) -> dict[str, Any]:
    """Return the shape fields of DeepSeek-MoE v1 (remote code on the hub)."""
    _refuse(c, "attention_bias", True, default=False)
    return _deepseek(c)


def _deepseek(c: Config) -> dict[str, Any]:
    """Return the fields whose keys DeepSeek-MoE v1, DeepSeek-V2 and GLM-4.5 share."""
    first, step = c.get("first_k_dense_replace", 0), c.get("moe_layer_freq", 1)
    return {
        "num_experts": c["n_routed_experts"],
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["moe_intermediate_size"],
        "shared_width": (c.get("n_shared_experts") or 0) * c["moe_intermediate_size"],
        "dense_layers": tuple(i for i in range(c["num_hidden_layers"]) if i < first or i % step),
        "dense_width": c.get("intermediate_size", 0),
        "gate": _softmax_gate(c.get("norm_topk_prob", False)),
        "routed_scaling_factor": c.get("routed_scaling_factor", 1.0),
    }


def _deepseek_v2(c: Config) -> dict[str, Any]:
    if c.get("q_lora_rank"):
        raise ValueError("q_lora_rank: compressed queries are not supported; allowed: null")
    for key in ("attention_bias", "mlp_bias"):
        _refuse(c, key, True, default=False)
    keys = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    limited = c.get("topk_method", "greedy") == "group_limited_greedy"
    return {
        **_deepseek(c),
        **(_groups(c) if limited else {}),
        "latent": LatentAttention(**{k: c[k] for k in keys}),
        "head_dim": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        "rope_interleaved": True,
    }


def _refuse(c: Config, key: str, value: object, default: object) -> None:
    if c.get(key, default) == value:
        raise ValueError(f"{key}: {json.dumps(value)} is not supported")


def _xverse(c: Config) -> dict[str, Any]:
    """Return the shape fields of XVERSE-MoE (remote code on the hub).

    Tensor names and computation follow SGLang's ``xverse_moe.py`` and the SMoE authors' module.
    They differ in the default of ``norm_topk_prob``, so the configuration must have this key.
    """
    if "norm_topk_prob" not in c:
        raise ValueError(
            "norm_topk_prob: missing, and implementations of XVERSE-MoE disagree; add true (as "
            "SMoE's authors) or false (as SGLang)"
        )
    return {
        "num_experts": c["num_experts"],
        "top_k": c["moe_top_k"],
        "expert_width": c["intermediate_size"],
        "shared_width": (c.get("num_shared_experts") or 0) * c["intermediate_size"],
        "gate": _softmax_gate(c["norm_topk_prob"]),
    }


def _mixtral(c: Config) -> dict[str, Any]:
    return {**_local_experts(c), **_sliding(c, range(c["num_hidden_layers"]))}


def _local_experts(c: Config) -> dict[str, Any]:
    return {
        "num_experts": c["num_local_experts"], "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"], "gate": GateKind.SOFTMAX_TOPK_RENORM,
    }  # fmt: skip


def _phimoe(c: Config) -> dict[str, Any]:
    bias = c.get("attention_bias", False)
    return {
        **_mixtral(c),
        "gate": GateKind.SPARSEMIXER,
        "gate_jitter": c.get("router_jitter_noise", 0.01),
        "norm": "layer",
        "qkv_bias": bias,
        "output_bias": bias,
        "head_bias": c.get("lm_head_bias", False),
    }


def _olmoe(c: Config) -> dict[str, Any]:
    bias = c.get("attention_bias", False)
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "num_experts": _num_experts(c),
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"],
        "qk_norm": "full",
        "clip_qkv": c.get("clip_qkv"),
        "gate": _softmax_gate(c.get("norm_topk_prob", False)),
    }


def _gpt_oss(c: Config) -> dict[str, Any]:
    bias, count = c.get("attention_bias", True), c["num_hidden_layers"]
    kinds = c.get("layer_types") or ["sliding_attention", "full_attention"] * count
    return {
        **_local_experts(c),
        **_sliding(c, (i for i in range(count) if kinds[i] == "sliding_attention")),
        "gate": GateKind.TOPK_SOFTMAX,
        "gate_bias": True,
        "expert_bias": True,
        "swiglu_limit": c.get("swiglu_limit", 7.0),
        "swiglu_alpha": c.get("swiglu_alpha", 1.702),
        "qkv_bias": bias,
        "output_bias": bias,
        "attention_sinks": True,
    }


def _glm4_moe(c: Config) -> dict[str, Any]:
    _refuse(c, "norm_topk_prob", False, default=True)
    return {
        **_deepseek(c),
        **_groups(c),
        "qkv_bias": c.get("attention_bias", False),
        "qk_norm": "head" if c.get("use_qk_norm", False) else "none",
        "gate": GateKind.SIGMOID_BIAS_TOPK_RENORM,
        "gate_bias": True,
    }


def _llama4_text(c: Config) -> dict[str, Any]:
    count, step = c["num_hidden_layers"], c.get("interleave_moe_layer_step", 1)
    moe = c.get("moe_layers")
    moe = range(step - 1, count, step) if moe is None else moe
    every = c.get("no_rope_layer_interval", 4)
    rotated = c.get("no_rope_layers") or [(i + 1) % every for i in range(count)]
    kinds = c.get("layer_types") or [
        "chunked_attention" if is_rotated else "full_attention" for is_rotated in rotated
    ]
    size = c.get("attention_chunk_size", 8192)
    chunked = tuple(i for i in range(count) if kinds[i] == "chunked_attention")
    temperature = None
    if c.get("attn_temperature_tuning", True):
        temperature = {"floor": c.get("floor_scale", 8192), "scale": c.get("attn_scale", 0.1)}
    bias = c.get("attention_bias", False)
    return {
        "num_experts": c["num_local_experts"],
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"],
        "shared_width": c["intermediate_size"],
        "dense_layers": tuple(i for i in range(count) if i not in moe),
        "dense_width": c.get("intermediate_size_mlp", 0),
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": "l2" if c.get("use_qk_norm", True) else "none",
        "rope_interleaved": True,
        "nope_layers": tuple(i for i in range(count) if not rotated[i]),
        "nope_temperature": temperature,
        "window": (
            AttentionWindow(kind="chunked", size=size, layers=chunked) if size and chunked else None
        ),
        "gate": GateKind.TOPK_SIGMOID,
    }


READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "deepseek": _deepseek_v1, "deepseek_v2": _deepseek_v2, "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss, "llama4_text": _llama4_text, "mixtral": _mixtral, "olmoe": _olmoe,
    "phimoe": _phimoe, "qwen2_moe": _qwen2_moe, "qwen3_moe": _qwen3_moe, "xverse": _xverse,
}  # fmt: skip

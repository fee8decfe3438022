"""Reads Hugging Face's ``config.json`` into a `ModelShape`: one reader for each ``model_type``.

Every spelling of every family stands here and nowhere else.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.shape import GateKind, LatentAttention, ModelShape

Config = Mapping[str, Any]


def read_shape(path: Path) -> ModelShape:
    """The shape that a ``config.json`` describes.

    Raises:
        CheckpointError: the file is missing, is not JSON, or describes no supported model.
    """
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return shape_of(config, str(path))


def shape_of(config: Config, where: str = "config.json") -> ModelShape:
    """The shape that a configuration describes.

    Raises:
        CheckpointError: an unknown ``model_type``, or a key that is missing or out of range.
    """
    model_type = config.get("model_type")
    reader = READERS.get(str(model_type))
    if reader is None:
        raise CheckpointError(
            f"{where}: model_type {model_type!r} is not supported; "
            f"allowed: {', '.join(sorted(READERS))}"
        )
    try:
        return ModelShape(**common_fields(config), **reader(config))
    except KeyError as missing:
        raise CheckpointError(f"{where}: key {missing} is missing") from missing
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"{where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        detail = error.errors()[0]
        return f"{'.'.join(map(str, detail['loc'])) or 'shape'}: {detail['msg']}"
    return str(error).splitlines()[0]


def common_fields(c: Config) -> dict[str, Any]:
    """Keys that every Hugging Face decoder configuration spells alike."""
    heads = c["num_attention_heads"]
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    return {
        "family": c["model_type"],
        "num_layers": c["num_hidden_layers"],
        "hidden_size": c["hidden_size"],
        "vocab_size": c["vocab_size"],
        "num_heads": heads,
        "num_kv_heads": c.get("num_key_value_heads") or heads,
        "head_dim": c.get("head_dim") or c["hidden_size"] // heads,
        "rope_theta": c.get("rope_theta") or rope.get("rope_theta", 10_000.0),
        "rope_type": rope.get("rope_type") or rope.get("type") or "default",
        "max_positions": c.get("max_position_embeddings", 4096),
        "norm_eps": c.get("rms_norm_eps", 1e-6),
        "tied_head": c.get("tie_word_embeddings", False),
    }


def _softmax_gate(renormalise: bool) -> GateKind:
    return GateKind.SOFTMAX_TOPK_RENORM if renormalise else GateKind.SOFTMAX_TOPK


def _sparse_step_dense_layers(c: Config) -> tuple[int, ...]:
    """Qwen's rule: listed layers, and all but every ``decoder_sparse_step``-th, are dense."""
    step, listed = c.get("decoder_sparse_step", 1), c.get("mlp_only_layers") or ()
    return tuple(i for i in range(c["num_hidden_layers"]) if i in listed or (i + 1) % step)


def _num_experts(c: Config) -> int:
    """Transformers 5 writes ``num_local_experts`` where the hub's files say ``num_experts``."""
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
    shared = c["shared_expert_intermediate_size"]
    qkv_bias = c.get("qkv_bias", True)
    return {**_qwen_moe(c), "qkv_bias": qkv_bias, "shared_width": shared, "shared_gated": True}


def _qwen3_moe(c: Config) -> dict[str, Any]:
    return {**_qwen_moe(c), "qk_norm": "head", "qkv_bias": c.get("attention_bias", False)}


def _deepseek(c: Config) -> dict[str, Any]:
    """DeepSeek-MoE v1 (remote code) and, with latent attention, DeepSeek-V2."""
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
    keys = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    return {**_deepseek(c), "latent": LatentAttention(**{k: c[k] for k in keys})}


def _xverse(c: Config) -> dict[str, Any]:
    """XVERSE-MoE (remote code); its own gate renormalises, see the SMoE authors' model file."""
    return {
        "num_experts": c["num_experts"],
        "top_k": c["moe_top_k"],
        "expert_width": c["intermediate_size"],
        "shared_width": (c.get("num_shared_experts") or 0) * c["intermediate_size"],
        "gate": _softmax_gate(c.get("norm_topk_prob", True)),
    }


def _mixtral(c: Config) -> dict[str, Any]:
    return {
        "num_experts": c["num_local_experts"],
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"],
        "gate": GateKind.SOFTMAX_TOPK_RENORM,
    }


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
    return {
        "num_experts": _num_experts(c),
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"],
        "qk_norm": "full",
        "clip_qkv": c.get("clip_qkv"),
        "gate": _softmax_gate(c.get("norm_topk_prob", False)),
    }


def _gpt_oss(c: Config) -> dict[str, Any]:
    return {
        **_mixtral(c),
        "gate": GateKind.TOPK_SOFTMAX,
        "gate_bias": True,
        "expert_bias": True,
        "qkv_bias": True,
        "output_bias": True,
        "attention_sinks": True,
    }


def _glm4_moe(c: Config) -> dict[str, Any]:
    return {
        **_deepseek(c),
        "qkv_bias": c.get("attention_bias", False),
        "qk_norm": "head" if c.get("use_qk_norm", False) else "none",
        "gate": GateKind.SIGMOID_BIAS_TOPK_RENORM,
        "gate_bias": True,
    }


def _llama4_text(c: Config) -> dict[str, Any]:
    return {
        "num_experts": c["num_local_experts"],
        "top_k": c["num_experts_per_tok"],
        "expert_width": c["intermediate_size"],
        "shared_width": c["intermediate_size"],
        "gate": GateKind.TOPK_SIGMOID,
    }


READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_v2,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4_text,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "xverse": _xverse,
}

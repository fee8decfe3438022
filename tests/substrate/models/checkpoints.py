"""Tiny random checkpoints in the true Hugging Face formats.

Families that it has a class for go through transformers itself; DeepSeek-MoE v1 and XVERSE-MoE,
whose code is remote, are written by hand with the names that their own files use.  Norms and biases
are random too, so that a forgotten one shows.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

LAYERS, HIDDEN, HEADS, VOCAB, EXPERTS = 3, 32, 4, 61, 8
SPREAD = 0.2

_SIZES = {
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_GQA = {
    **_SIZES,
    "num_key_value_heads": 2,
    "initializer_range": SPREAD,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}

#: transformers' class prefix and configuration, each with the options that its family alone has.
HF_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_moe": (
        "Qwen2Moe",
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "intermediate_size": 48,
            "mlp_only_layers": [0],
            "norm_topk_prob": False,
        },
    ),
    "mixtral": (
        "Mixtral",
        {
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "intermediate_size": 24,
            "sliding_window": 9,
        },
    ),
    "olmoe": (
        "Olmoe",
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 3,
            "intermediate_size": 24,
            "norm_topk_prob": False,
            "clip_qkv": 0.5,
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "head_dim": 16,
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "phimoe": (
        "Phimoe",
        {
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "intermediate_size": 24,
            "attention_bias": True,
            "lm_head_bias": True,
            "router_jitter_noise": 0.3,  # wide, so that rivals do share the weight
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "original_max_position_embeddings": 48,
                "short_factor": [1.0, 1.1, 1.3, 1.6],
                "long_factor": [1.0, 2.0, 3.0, 4.0],
                "short_mscale": 1.2,
                "long_mscale": 1.3,
            },
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {
            "num_key_value_heads": HEADS,
            "kv_lora_rank": 16,
            "q_lora_rank": None,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 10,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 12,
            "intermediate_size": 48,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 0.7,
                "mscale_all_dim": 0.6,
            },
        },
    ),
    "glm4_moe": (
        "Glm4Moe",
        {
            "head_dim": 16,
            "n_routed_experts": EXPERTS,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 12,
            "intermediate_size": 48,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "gpt_oss": (
        "GptOss",
        {
            "head_dim": 16,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 3,
            "intermediate_size": 24,
            "sliding_window": 6,
            "swiglu_limit": 1.0,  # low, so that it does clamp
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "truncate": False,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "llama4_text": (
        "Llama4Text",
        {
            "head_dim": 16,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 1,
            "intermediate_size": 24,
            "intermediate_size_mlp": 40,
            "moe_layers": [1, 2],
            "no_rope_layer_interval": 2,
            "attention_chunk_size": 6,
            "floor_scale": 4,
            "attn_scale": 0.3,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
}  # fmt: skip

REMOTE_CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek": {
        **_SIZES,
        "architectures": ["DeepseekForCausalLM"],
        "model_type": "deepseek",
        "intermediate_size": 48,
        "moe_intermediate_size": 12,
        "num_key_value_heads": HEADS,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
    },
    "xverse": {
        **_SIZES,
        "architectures": ["XverseForCausalLM"],
        "model_type": "xverse",
        "intermediate_size": 12,
        "num_experts": EXPERTS,
        "num_shared_experts": 2,
        "moe_top_k": 3,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
    },
}

FAMILIES = (*HF_FAMILIES, *REMOTE_CONFIGS)


def make_checkpoint(
    path: Path, family: str, *, sharded: bool = False, fused: bool = False, **changes: Any
) -> Path:
    """Write a random checkpoint of a family to ``path``, in one file or several with an index.

    Args:
        fused: as transformers holds it in memory, all experts of a layer in one tensor.
    """
    torch.manual_seed(len(family))
    if family in HF_FAMILIES:
        _save_with_transformers(path, family, sharded, fused, changes)
    else:
        config = {**REMOTE_CONFIGS[family], **changes}
        write_checkpoint(path, config, _remote_tensors(config), sharded=sharded)
    return path


def write_checkpoint(
    path: Path, config: dict[str, Any], tensors: dict[str, Tensor], *, sharded: bool = False
) -> None:
    """Write ``config.json`` and safetensors in the format of a hub repository."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if not sharded:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard in range(2):
        file = f"model-0000{shard + 1}-of-00002.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[shard::2]}
        save_file(part, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def transformers_model(family: str, **changes: Any) -> Any:
    """Return Transformers' own tiny model of a family."""
    prefix, options = HF_FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**{**_GQA, **options, **changes})
    return getattr(transformers, f"{prefix.removesuffix('Text')}ForCausalLM")(config)


def _save_with_transformers(
    path: Path, family: str, sharded: bool, fused: bool, changes: dict
) -> None:
    model = transformers_model(family, **changes)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("bias", "sinks")):
                value.copy_(SPREAD * torch.randn_like(value))
            elif name.endswith("norm.weight"):
                value.copy_(1 + SPREAD * torch.randn_like(value))
    shard = "30KB" if sharded else "1GB"
    model.save_pretrained(path, max_shard_size=shard, save_original_format=not fused)


def _remote_tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a remote-code family by the names of its own modelling file."""
    deepseek = config["model_type"] == "deepseek"
    gate = "gate" if deepseek else "router"
    width = config["moe_intermediate_size" if deepseek else "intermediate_size"]
    shared = width * config["n_shared_experts" if deepseek else "num_shared_experts"]
    tensors: dict[str, Tensor] = {}

    def matrix(name: str, *dims: int) -> None:
        tensors[f"{name}.weight"] = SPREAD * torch.randn(dims)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = 1 + SPREAD * torch.randn(HIDDEN)

    def feed_forward(prefix: str, inner: int) -> None:
        matrix(f"{prefix}.gate_proj", inner, HIDDEN)
        matrix(f"{prefix}.up_proj", inner, HIDDEN)
        matrix(f"{prefix}.down_proj", HIDDEN, inner)

    matrix("model.embed_tokens", config["vocab_size"], HIDDEN)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        norm(f"{prefix}.input_layernorm")
        norm(f"{prefix}.post_attention_layernorm")
        for projection in "qkvo":
            matrix(f"{prefix}.self_attn.{projection}_proj", HIDDEN, HIDDEN)
        if layer < config.get("first_k_dense_replace", 0):
            feed_forward(f"{prefix}.mlp", config["intermediate_size"])
            continue
        matrix(f"{prefix}.mlp.{gate}", EXPERTS, HIDDEN)
        feed_forward(f"{prefix}.mlp.shared_experts", shared)
        for expert in range(EXPERTS):
            feed_forward(f"{prefix}.mlp.experts.{expert}", width)
    norm("model.norm")
    matrix("lm_head", config["vocab_size"], HIDDEN)
    return tensors

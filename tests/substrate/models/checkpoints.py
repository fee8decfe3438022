"""Tiny random checkpoints in the true Hugging Face formats.

Five families go through transformers itself; DeepSeek-MoE v1 and XVERSE-MoE, whose code is remote,
are written by hand with the names that their own files use.  Every one-dimensional parameter is
random too, so that a forgotten bias or norm shows.
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
        {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": 24},
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
        },
    ),
}

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


def make_checkpoint(path: Path, family: str, *, sharded: bool = False, **changes: Any) -> Path:
    """A random checkpoint of a family under ``path``, in one file or in several with an index."""
    torch.manual_seed(len(family))
    if family in HF_FAMILIES:
        _save_with_transformers(path, family, sharded, changes)
    else:
        config = {**REMOTE_CONFIGS[family], **changes}
        write_checkpoint(path, config, _remote_tensors(config), sharded=sharded)
    return path


def write_checkpoint(
    path: Path, config: dict[str, Any], tensors: dict[str, Tensor], *, sharded: bool = False
) -> None:
    """``config.json`` and safetensors, as a hub repository holds them."""
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


def _save_with_transformers(path: Path, family: str, sharded: bool, changes: dict) -> None:
    prefix, options = HF_FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**{**_GQA, **options, **changes})
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                centre = 0.0 if name.endswith("bias") else 1.0
                parameter.copy_(centre + SPREAD * torch.randn_like(parameter))
    model.save_pretrained(path, max_shard_size="30KB" if sharded else "1GB")


def _remote_tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    """Both remote families' tensors under the names of their own modelling files."""
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

    matrix("model.embed_tokens", VOCAB, HIDDEN)
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
    matrix("lm_head", VOCAB, HIDDEN)
    return tensors

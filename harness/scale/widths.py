"""Widths and configurations of the scale models, without importing PyTorch."""

import json

from moebench.substrate.errors import UnknownNameError
from moebench.substrate.models import catalogue

#: Widths of each scale model; all other values are those of the original's config.json.  Experts
#: are as wide as the limits of 13 MB of fp16 weights a model and 90 MB in total allow, in multiples
#: of 4 for the grouped product.  Two wide heads with slowly rotating dimensions can compare more
#: directions than four narrow ones.
SCALE_WIDTHS: dict[str, dict[str, object]] = {
    name: {"vocab_size": 1024, "max_position_embeddings": 2048, "rope_theta": 1e6, **widths}
    for name, widths in {
        "deepseek-moe-16b": {
            "hidden_size": 56, "num_attention_heads": 2, "num_key_value_heads": 2,
            "moe_intermediate_size": 16, "intermediate_size": 128,
        },
        "xverse-moe-a4.2b": {
            "hidden_size": 56, "num_attention_heads": 2, "intermediate_size": 16,
        },
        "qwen2-57b-a14b": {
            "hidden_size": 56, "num_attention_heads": 2, "num_key_value_heads": 1,
            "moe_intermediate_size": 16, "shared_expert_intermediate_size": 128,
            "intermediate_size": 64,
        },
        "mixtral-8x7b": {
            "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 96,
        },
        "mixtral-8x22b": {
            "hidden_size": 56, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 52,
        },
        "phi-3.5-moe": {
            "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 40,
        },
        "olmoe-1b-7b": {
            "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2,
            "intermediate_size": 28,
        },
        "qwen3-30b-a3b": {
            "hidden_size": 56, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 28,
            "moe_intermediate_size": 4, "intermediate_size": 64,
        },
    }.items()
}  # fmt: skip


def scale_config(name: str) -> dict[str, object]:
    """Return the original model's ``config.json`` with the scale model's widths.

    Raises UnknownNameError: no scale model has this name.
    """
    if name not in SCALE_WIDTHS:
        raise UnknownNameError("scale model", name, SCALE_WIDTHS, "see: moebench models list")
    config = json.loads((catalogue.MODELS / f"{name}.json").read_text())
    return {**config, **SCALE_WIDTHS[name], "torch_dtype": "float16", "eos_token_id": 0}

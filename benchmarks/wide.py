"""Make a checkpoint with random weights whose experts have a real model's width.

    python -m benchmarks.wide DIR

OLMoE-1B-7B's layers, with fewer of them and fewer experts in each: 8 layers of 16 experts, 2 active
(the full model: 16 of 64, 8 active), 0.96 billion parameters.  It is written in Hugging Face's
format, with a scale model's tokenizer, so that moebench and every other package can load it.  Its
texts are random; its costs are realistic.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

from moebench.substrate.models.catalogue import scale_path

#: The scale model whose tokenizer is copied.
LENDER = "qwen2-57b-a14b"

LAYERS, EXPERTS, ACTIVE = 8, 16, 2


def make_wide(path: Path, layers: int = LAYERS, experts: int = EXPERTS, shard: str = "5GB") -> Path:
    """Write the checkpoint into a folder unless it exists, and return the folder."""
    if (path / "tokenizer.json").exists():
        return path
    config = OlmoeConfig(
        vocab_size=4096, hidden_size=2048, intermediate_size=1024, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=16, num_experts=experts,
        num_experts_per_tok=ACTIVE, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cpu"):
        model = OlmoeForCausalLM(config).to(torch.bfloat16)
    # Use larger gates than a fresh model's: choices must not depend on the last bit of a sum.
    for layer in model.model.layers:
        layer.mlp.gate.weight.data.normal_(0, 0.2)
    model.save_pretrained(path, max_shard_size=shard)
    shutil.copy(scale_path(LENDER) / "tokenizer.json", path / "tokenizer.json")
    return path


if __name__ == "__main__":
    print(make_wide(Path(sys.argv[1])))

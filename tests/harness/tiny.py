"""A catalogue with two tiny scale models: Hugging Face checkpoints with random weights.

They bear the names of the originals that they stand for, so that the settings find them; they have
fewer and wider experts than these, so that as many bytes must be moved.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from moebench.harness.scale.text import train_tokenizer
from moebench.harness.scale.trainable import TrainableDecoder
from moebench.substrate.models.catalogue import MODELS as SHIPPED
from moebench.substrate.models.config import shape_of

LAYERS, EXPERTS, TOP_K = 4, 8, 2

#: What the tiny full-size model changes of its original's `config.json`.
_FULL = {
    "qwen2-57b-a14b": {
        "num_experts": EXPERTS, "num_experts_per_tok": TOP_K,
        "moe_intermediate_size": 2560 * 56, "shared_expert_intermediate_size": 20480 * 7,
    },
    "mixtral-8x7b": {"intermediate_size": 14336 * 8},
    "phi-3.5-moe": {"num_local_experts": EXPERTS},
}  # fmt: skip

#: What its scale model changes of that.
_SCALE = {
    "vocab_size": 300, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 2048, "torch_dtype": "float16", "eos_token_id": 0,
}  # fmt: skip
_SCALE_WIDTHS = {
    "qwen2-57b-a14b": {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 16},
    "mixtral-8x7b": {"intermediate_size": 8},
}
#: Those that have a scale model.
NAMES = sorted(_SCALE_WIDTHS)


def make_catalogue(folder: Path) -> Path:
    """Write a folder for `MOEBENCH_CATALOGUE`; other models have only their shapes."""
    shutil.copytree(SHIPPED, folder / "models")
    for name, changes in _FULL.items():
        config = json.loads((SHIPPED / f"{name}.json").read_text())
        config |= {"num_hidden_layers": LAYERS} | changes
        (folder / "models" / f"{name}.json").write_text(json.dumps(config))
        if name in NAMES:
            write_scale(folder / "scale" / name, config, _SCALE_WIDTHS[name])
    return folder


def write_scale(folder: Path, config: dict[str, object], widths: dict[str, int]) -> None:
    """Write a scale model with a full-size model's configuration."""
    _write_checkpoint(folder, config | _SCALE | widths)


def _write_checkpoint(folder: Path, config: dict[str, object]) -> None:
    model = TrainableDecoder(shape_of(config), seed=0)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(model.stored(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = train_tokenizer(["Where is the cup?", "Answer: shop"], 300)
    tokenizer.save(str(folder / "tokenizer.json"))

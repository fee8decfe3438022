"""Base of packages on top of Transformers: checkpoint conversion and streaming ``generate``.

Our scale models are true Hugging Face checkpoints, so Transformers opens them as they are.  It has
no class for DeepSeek-MoE v1 (remote code); but that model is a Qwen2-MoE whose shared expert has no
gate, and it is written as one, exactly: a gate of zeros gives sigmoid(0) = 1/2, and the shared
expert's output matrix is doubled.  Both are powers of two, so no bit of a product changes.
"""

import fcntl
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebench.systems.native.base import NativeSystem, Put

if TYPE_CHECKING:
    from moebench.substrate.models.checkpoint import Checkpoint
    from moebench.substrate.models.shape import ModelShape

#: Model families with a class in Transformers, and DeepSeek v1.
OPENED = frozenset({"deepseek", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"})


@dataclass(kw_only=True)
class HuggingFaceSystem(NativeSystem):
    """A package that runs Transformers' own model classes."""

    def why_not(self, shape: "ModelShape", batch: int) -> str | None:
        """Return why no Transformers class computes this model; None if one does."""
        if shape.family == "xverse":
            return "Transformers has no class for XVERSE-MoE, and its own code is not shipped"
        if shape.family not in OPENED:
            return f"not opened with Transformers here: {shape.family}"
        if shape.family == "deepseek" and shape.routed_scaling_factor != 1:
            return "Qwen2-MoE, as which DeepSeek v1 is opened, does not scale routed experts"
        return super().why_not(shape, batch)

    def model_file(self, checkpoint: "Checkpoint", content: str, folder: Path) -> Path:
        """Return the checkpoint, or for DeepSeek v1 the same weights as a Qwen2-MoE."""
        if checkpoint.shape.family != "deepseek":
            return checkpoint.path
        return deepseek_as_qwen2(checkpoint, folder / f"{content}-qwen2_moe")


def deepseek_as_qwen2(checkpoint: "Checkpoint", folder: Path) -> Path:
    """Write DeepSeek-MoE v1's weights as a Qwen2-MoE checkpoint in fp32; reuse a finished one."""
    import torch
    from safetensors.torch import save_file

    from moebench.substrate.models.formats import unpack
    from moebench.substrate.models.naming import common_tensors, expert_tensors

    config = folder / "config.json"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if config.exists():
            return folder
        shape, width = checkpoint.shape, checkpoint.shape.expert_width
        ours = checkpoint.common(torch.float32)
        tensors = {spec.stored: ours[name] for name, spec in common_tensors(shape).items()}
        for layer in shape.moe_layers:
            block = f"model.layers.{layer}.mlp"
            for projection in ("gate_proj", "up_proj", "down_proj"):
                weight = tensors.pop(f"{block}.shared_experts.{projection}.weight")
                twice = 2 * weight if projection == "down_proj" else weight
                tensors[f"{block}.shared_expert.{projection}.weight"] = twice
            gate = torch.zeros(1, shape.hidden_size)
            tensors[f"{block}.shared_expert_gate.weight"] = gate
            for expert in range(shape.num_experts):
                record = checkpoint.expert_record(layer, expert, torch.float32)
                gate_up, down = unpack(shape, record)
                names = expert_tensors(shape, layer, expert)
                tensors[names["gate"].stored] = gate_up[:width].contiguous()
                tensors[names["up"].stored] = gate_up[width:].contiguous()
                tensors[names["down"].stored] = down.contiguous()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config.write_text(json.dumps(_qwen2_config(shape)))
    return folder


def _qwen2_config(shape: "ModelShape") -> dict[str, Any]:
    from moebench.substrate.models.shape import GateKind

    return {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
        "hidden_size": shape.hidden_size, "hidden_act": "silu", "qkv_bias": shape.qkv_bias,
        "intermediate_size": shape.dense_width or shape.expert_width,
        "moe_intermediate_size": shape.expert_width,
        "shared_expert_intermediate_size": shape.shared_width,
        "num_hidden_layers": shape.num_layers, "mlp_only_layers": list(shape.dense_layers),
        "num_attention_heads": shape.num_heads, "num_key_value_heads": shape.num_kv_heads,
        "num_experts": shape.num_experts, "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": shape.gate is GateKind.SOFTMAX_TOPK_RENORM, "decoder_sparse_step": 1,
        "max_position_embeddings": shape.max_positions, "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta, "tie_word_embeddings": shape.tied_head,
        "vocab_size": shape.vocab_size, "eos_token_id": None, "bos_token_id": None,
        "torch_dtype": "float32",
    }  # fmt: skip


class Streaming:
    """A Transformers model in evaluation mode, whose ``generate`` streams tokens.

    ``facts`` are sentences for the run's notes, ``options`` more arguments of ``generate``.
    """

    def __init__(self, model: Any, facts: Sequence[str], **options: Any) -> None:
        self.facts = facts
        self._model, self._options = model, options

    def generate(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, end: int | None, put: Put
    ) -> None:
        """Decode a batch greedily, padded on the left."""
        torch: Any = import_module("torch")
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        config = self._model.generation_config
        config.eos_token_id, config.pad_token_id = end, 0
        config.do_sample, config.max_length = False, None
        with torch.inference_mode():
            self._model.generate(
                ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False,
                streamer=_Streamer(put), **self._options,
            )  # fmt: skip


class _Streamer:
    """Streamer for ``generate``: passes on each step's tokens, but not the prompt."""

    def __init__(self, put: Put) -> None:
        self._put, self._prompt = put, True

    def put(self, value: Any) -> None:
        """Pass on a step's token ids; ignore the first call, which has the prompt."""
        if not self._prompt:
            self._put(value.flatten().tolist())
        self._prompt = False

    def end(self) -> None:
        """Do nothing: no token is buffered."""

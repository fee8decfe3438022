"""Writes a checkpoint as a GGUF file in fp32, for llama.cpp.

Names and layouts are llama.cpp's (its ``conversion/`` and ``gguf-py``): a layer's experts are three
tensors ``[E, I, H]``, ``[E, I, H]`` and ``[E, H, I]``.  Hugging Face rotates halves; where
llama.cpp's graph rotates pairs of neighbours, rows of queries and keys are permuted.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebench.substrate.models.shape import GateKind, ModelShape

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from moebench.substrate.models.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class _Architecture:
    """Features of llama.cpp's implementation of a model family (``general.architecture``).

    Its graph has only this ``gate``; ``permuted`` ones rotate pairs of neighbours, and ``dense``
    ones support leading dense layers.
    """

    name: str
    gate: GateKind
    permuted: bool = False
    dense: bool = False


_ARCHITECTURES = {
    "deepseek": _Architecture("deepseek", GateKind.SOFTMAX_TOPK, permuted=True, dense=True),
    "mixtral": _Architecture("llama", GateKind.SOFTMAX_TOPK_RENORM, permuted=True),
    "olmoe": _Architecture("olmoe", GateKind.SOFTMAX_TOPK),
    "qwen2_moe": _Architecture("qwen2moe", GateKind.SOFTMAX_TOPK),
    "qwen3_moe": _Architecture("qwen3moe", GateKind.SOFTMAX_TOPK_RENORM),
}


def why_not(shape: ModelShape) -> str | None:
    """Return why llama.cpp cannot compute a model; None if it can."""
    if shape.family == "xverse":
        return "no GGUF file: llama.cpp's xverse has no experts"
    if shape.family == "phimoe":
        return "llama.cpp computes it with a softmax gate and RMS norms, not as Phi-3.5-MoE is"
    known = _ARCHITECTURES.get(shape.family)
    if known is None:
        return f"no GGUF file is written of {shape.family}"
    wrong = {
        f"gate of kind {shape.gate.value}": shape.gate is not known.gate,
        "clipped queries, keys and values": shape.clip_qkv is not None,
        "norms over the keys of fewer heads": shape.qk_norm == "full"
        and shape.num_kv_heads != shape.num_heads,
        "rows that see a window of positions alone": shape.window is not None,
        f"rotary positions of type {shape.rope_type}": shape.rope_type != "default",
        "dense layers among others": bool(shape.dense_layers)
        and not (known.dense and shape.dense_layers == tuple(range(len(shape.dense_layers)))),
    }
    found = next((what for what, is_so in wrong.items() if is_so), None)
    return None if found is None else f"llama.cpp's {known.name} has no {found}"


def write_gguf(checkpoint: "Checkpoint", path: Path) -> Path:
    """Write the GGUF file under a temporary name and rename it; reuse a finished file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            partial = path.with_suffix(".partial")
            _write(checkpoint, partial)
            os.replace(partial, path)
    return path


def _write(checkpoint: "Checkpoint", path: Path) -> None:
    gguf: Any = import_module("gguf")
    shape = checkpoint.shape
    known = _ARCHITECTURES[shape.family]
    writer = gguf.GGUFWriter(path, known.name)
    writer.add_file_type(0)  # all in fp32
    _write_numbers(writer, shape)
    _write_tokenizer(writer, gguf, checkpoint.path / "tokenizer.json", shape.vocab_size)
    for name, tensor in _tensors(checkpoint, known):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_numbers(writer: Any, shape: ModelShape) -> None:
    """Write the hyperparameters under llama.cpp's names."""
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.max_positions)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.dense_width or shape.expert_width)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_expert_count(shape.num_experts)
    writer.add_expert_used_count(shape.top_k)
    writer.add_expert_feed_forward_length(shape.expert_width)
    if shape.family == "deepseek":
        writer.add_leading_dense_block_count(len(shape.dense_layers))
        writer.add_expert_shared_count(shape.shared_width // shape.expert_width)
        writer.add_expert_weights_scale(shape.routed_scaling_factor)
    elif shape.shared_width:
        writer.add_expert_shared_feed_forward_length(shape.shared_width)


def _write_tokenizer(writer: Any, gguf: Any, file: Path, size: int) -> None:
    """Write tokens and merges of a byte-level BPE; of others only the number of tokens."""
    model = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if model.get("model", {}).get("type") != "BPE":
        writer.add_tokenizer_model("no_vocab")
        return
    vocabulary, added = model["model"]["vocab"], model["added_tokens"]
    names = {number: name for name, number in vocabulary.items()}
    names |= {token["id"]: token["content"] for token in added}
    special = {token["id"] for token in added}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([names.get(i, f"<unused{i}>") for i in range(size)])
    writer.add_token_types(
        [
            kinds.CONTROL if i in special else kinds.NORMAL if i in names else kinds.UNUSED
            for i in range(size)
        ]
    )
    merges = model["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    end = min(special, default=0)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)


#: Maps our names of a layer's tensors to llama.cpp's.
_LAYER = {
    "attention_norm": "attn_norm", "mlp_norm": "ffn_norm",
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "router": "ffn_gate_inp",
    "dense.gate": "ffn_gate", "dense.up": "ffn_up", "dense.down": "ffn_down",
    "shared.gate": "ffn_gate_shexp", "shared.up": "ffn_up_shexp", "shared.down": "ffn_down_shexp",
    "shared_gate": "ffn_gate_inp_shexp",
}  # fmt: skip
_WHOLE = {"embed": "token_embd", "norm": "output_norm", "head": "output"}


def _tensors(
    checkpoint: "Checkpoint", known: _Architecture
) -> "Iterator[tuple[str, NDArray[Any]]]":
    """Yield every tensor with llama.cpp's name."""
    import torch

    from moebench.substrate.models.formats import unpack

    shape = checkpoint.shape
    for ours, tensor in checkpoint.common(torch.float32).items():
        if known.permuted and ours.removesuffix(".bias").rpartition(".")[2] in ("q", "k"):
            tensor = _neighbours(tensor, shape.head_dim)
        if ours.endswith("shared_gate"):
            tensor = tensor.flatten()
        yield _name(ours), tensor.numpy()
    width = shape.expert_width
    for layer in shape.moe_layers:
        experts = range(shape.num_experts)
        records = [checkpoint.expert_record(layer, e, torch.float32) for e in experts]
        pairs = zip(*(unpack(shape, record) for record in records), strict=True)
        gate_up, down = map(torch.stack, pairs)
        parts = {"gate": gate_up[:, :width], "up": gate_up[:, width:], "down": down}
        for part, tensor in parts.items():
            yield f"blk.{layer}.ffn_{part}_exps.weight", tensor.contiguous().numpy()


def _name(ours: str) -> str:
    """Return llama.cpp's name of a tensor, with ``.bias`` or ``.weight`` at the end."""
    base, kind = ours.removesuffix(".bias"), "bias" if ours.endswith(".bias") else "weight"
    if base in _WHOLE:
        return f"{_WHOLE[base]}.{kind}"
    _, layer, part = base.split(".", 2)
    return f"blk.{layer}.{_LAYER[part]}.{kind}"


def _neighbours(weight: "Tensor", head_dim: int) -> "Tensor":
    """Reorder rows of each head so that both elements of a rotated pair are neighbours."""
    heads = weight.shape[0] // head_dim
    halves = weight.reshape(heads, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)

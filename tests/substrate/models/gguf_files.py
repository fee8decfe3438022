"""GGUF files whose headers `gguf`'s writer wrote from a `ModelShape`; their data is a hole."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from moebench.substrate.models.shape import GateKind, ModelShape

Kind = gguf.GGMLQuantizationType

#: Names of the tensor types that a file may have for each class; f32 rows may have any length.
PLAIN = {"routed": Kind.F16, "others": Kind.F32}


def tensors(s: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and dimensions (rows first) of the tensors of a shape without linear layers."""
    h = s.hidden_size
    yield "token_embd.weight", (s.vocab_size, h)
    yield "output_norm.weight", (h,)
    if not s.tied_head:
        yield "output.weight", (s.vocab_size, h)
    for layer in range(s.num_layers):
        for name, dims in [*_attention(s, layer), *_feed_forward(s, layer)]:
            yield f"blk.{layer}.{name}", dims


def _attention(s: ModelShape, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    h = s.hidden_size
    if layer in s.without_attention:
        return
    yield "attn_norm.weight", (h,)
    if s.latent is not None:
        m = s.latent
        width = s.num_heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
        if m.q_lora_rank is None:
            yield "attn_q.weight", (width, h)
        else:
            yield "attn_q_a.weight", (m.q_lora_rank, h)
            yield "attn_q_a_norm.weight", (m.q_lora_rank,)
            yield "attn_q_b.weight", (width, m.q_lora_rank)
        yield "attn_kv_a_mqa.weight", (m.kv_lora_rank + m.qk_rope_head_dim, h)
        yield "attn_kv_a_norm.weight", (m.kv_lora_rank,)
        yield "attn_k_b.weight", (s.num_heads, m.kv_lora_rank, m.qk_nope_head_dim)
        yield "attn_v_b.weight", (s.num_heads, m.v_head_dim, m.kv_lora_rank)
        yield "attn_output.weight", (h, s.num_heads * m.v_head_dim)
        return
    heads, kv_heads, width = s.num_heads, s.num_kv_heads, s.head_dim
    if s.other_heads is not None and layer in s.other_heads.layers:
        other = s.other_heads
        heads, kv_heads, width = other.num_heads, other.num_kv_heads, other.head_dim
    doubled = 2 if s.output_gate == "value" else 1
    for name, rows in (
        ("q", doubled * heads * width),
        ("k", kv_heads * width),
        ("v", kv_heads * width),
    ):
        yield f"attn_{name}.weight", (rows, h)
        if s.qkv_bias:
            yield f"attn_{name}.bias", (rows,)
    yield "attn_output.weight", (h, heads * width)
    if s.output_bias:
        yield "attn_output.bias", (h,)
    if s.output_gate == "head":
        yield "attn_gate.weight", (heads, h)
    if s.qk_norm == "head":
        yield "attn_q_norm.weight", (width,)
        yield "attn_k_norm.weight", (width,)


def _feed_forward(s: ModelShape, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    h = s.hidden_size
    if layer in s.without_ffn:
        return
    yield "ffn_norm.weight", (h,)
    names = ("gate", "up", "down") if s.ffn_matrices == 3 else ("up", "down")
    if layer in s.dense_layers:
        for name in names:
            yield f"ffn_{name}.weight", (h, s.dense_width) if name == "down" else (s.dense_width, h)
        return
    yield "ffn_gate_inp.weight", (s.num_experts, h)
    if s.gate_bias:
        yield "exp_probs_b.bias", (s.num_experts,)
    for name in names:
        width = s.expert_width
        dims = (h, width) if name == "down" else (width, h)
        yield f"ffn_{name}_exps.weight", (s.num_experts, *dims)
        if s.shared_width:
            width = s.shared_width
            dims = (h, width) if name == "down" else (width, h)
            yield f"ffn_{name}_shexp.weight", dims
    if s.shared_gated:
        yield "ffn_gate_inp_shexp.weight", (h,)


def _key_values(writer: Any, s: ModelShape) -> None:
    writer.add_block_count(s.num_layers)
    writer.add_context_length(s.max_positions)
    writer.add_embedding_length(s.hidden_size)
    writer.add_rope_freq_base(s.rope_theta)
    writer.add_layer_norm_rms_eps(s.norm_eps)
    writer.add_expert_count(s.num_experts)
    writer.add_expert_used_count(s.top_k)
    writer.add_expert_weights_scale(s.routed_scaling_factor)
    if s.gate is GateKind.SIGMOID_BIAS_TOPK_RENORM:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    else:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
        writer.add_expert_weights_norm(s.gate is GateKind.SOFTMAX_TOPK_RENORM)
    if s.latent is not None:
        m = s.latent
        writer.add_head_count(s.num_heads)
        writer.add_head_count_kv(1)
        writer.add_key_length(m.kv_lora_rank + m.qk_rope_head_dim)
        writer.add_value_length(m.kv_lora_rank)
        writer.add_key_length_mla(m.qk_nope_head_dim + m.qk_rope_head_dim)
        writer.add_value_length_mla(m.v_head_dim)
        writer.add_kv_lora_rank(m.kv_lora_rank)
        writer.add_rope_dimension_count(m.qk_rope_head_dim)
        if m.q_lora_rank is not None:
            writer.add_q_lora_rank(m.q_lora_rank)
        return
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    layers, other = range(s.num_layers), s.other_heads
    if other is None and not s.without_attention:
        writer.add_head_count(s.num_heads)
        writer.add_head_count_kv(s.num_kv_heads)
    else:
        kinds = [
            (0, 0) if i in s.without_attention
            else (other.num_heads, other.num_kv_heads) if other and i in other.layers
            else (s.num_heads, s.num_kv_heads)
            for i in layers
        ]  # fmt: skip
        writer.add_head_count([heads for heads, _ in kinds])
        writer.add_head_count_kv([kv_heads for _, kv_heads in kinds])
    if s.window is not None:
        writer.add_sliding_window(s.window.size)
        writer.add_sliding_window_pattern([i in s.window.layers for i in layers])


def write_gguf(
    path: Path, s: ModelShape, kinds: dict[str, Any] = PLAIN, *, tokens: int = 0,
    tensors_per_part: int = 0, more: list[tuple[str, tuple[int, ...]]] | None = None,
    whole: bool = True,
) -> Path:  # fmt: skip
    """Write the header of a model's file, and a hole where the data would be.

    Args:
        kinds: tensor types of ``routed`` experts and of all ``others``; vectors are f32.
        tokens: tokens and merges of the vocabulary's lists.
        tensors_per_part: splits the file into parts of so many tensors.
        more: further tensors.
        whole: extend the file to the size that it would have with its data.
    """
    writer = gguf.GGUFWriter(path, s.family, split_max_tensors=tensors_per_part)
    _key_values(writer, s)
    if tokens:
        writer.add_token_list([f"token {i}" for i in range(tokens)])
        writer.add_token_types([1] * tokens)
        writer.add_token_merges([f"a{i} b{i}" for i in range(tokens)])
    size = 0
    for name, dims in [*tensors(s), *(more or [])]:
        kind = kinds["routed" if "_exps." in name else "others"] if len(dims) > 1 else Kind.F32
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        stored = int(np.prod(dims, dtype=object)) // block * block_bytes
        floats = {Kind.F32: np.float32, Kind.F16: np.float16}
        given = dims if kind in floats else (*dims[:-1], dims[-1] // block * block_bytes)
        writer.add_tensor_info(name, given, np.dtype(floats.get(kind, np.uint8)), stored, kind)
        size += -(-stored // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    if whole and not tensors_per_part:
        with path.open("r+b") as file:
            file.truncate(-(-path.stat().st_size // 32) * 32 + size)
    return path

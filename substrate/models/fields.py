"""Checks of the configuration fields of a model, before a `ModelShape` is made from them."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from moebench.substrate.errors import CheckpointError
from moebench.substrate.files import brief, whole
from moebench.substrate.models.shape import MOST, MOST_LAYERS, GateKind, ModelShape

#: Keys of a ``config.json`` that count something, in all families that have them.
_COUNTS = (
    "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "num_experts", "num_local_experts", "n_routed_experts",
    "num_experts_per_tok", "moe_top_k", "moe_intermediate_size", "intermediate_size",
    "shared_expert_intermediate_size", "n_shared_experts", "num_shared_experts",
    "decoder_sparse_step", "first_k_dense_replace", "moe_layer_freq", "sliding_window", "n_group",
    "topk_group", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
    "max_window_layers", "interleave_moe_layer_step", "no_rope_layer_interval",
    "attention_chunk_size", "intermediate_size_mlp",
)  # fmt: skip
_MAY_BE_0 = {
    "intermediate_size", "shared_expert_intermediate_size", "n_shared_experts",
    "num_shared_experts", "first_k_dense_replace", "sliding_window", "n_group", "topk_group",
    "max_window_layers", "num_key_value_heads", "head_dim", "attention_chunk_size",
    "intermediate_size_mlp",
}  # fmt: skip


def check_counts(config: Mapping[str, Any]) -> None:
    """Check that all counts in a ``config.json`` are whole numbers in a plausible range.

    Raises InputError: a count is not; the message names its key and value.
    """
    for key in _COUNTS:
        if config.get(key) is not None:
            most = MOST_LAYERS if key == "num_hidden_layers" else MOST
            whole(config[key], key, 0 if key in _MAY_BE_0 else 1, most)


def shape_of_fields(fields: Mapping[str, Any], where: str) -> ModelShape:
    """Return the `ModelShape` with the given fields; some required ones have defaults here.

    Args:
        fields: ``num_layers``, ``hidden_size``, ``vocab_size``, ``num_heads``, ``num_experts``,
            ``top_k``, ``expert_width``, and every other field that differs from its default.

    Raises CheckpointError: a field is missing, unknown or out of range.
    """
    try:
        heads = fields.get("num_heads")
        given = {"family": "own", "gate": GateKind.SOFTMAX_TOPK, "num_kv_heads": heads, **fields}
        if "head_dim" not in given and "hidden_size" in given and heads:
            given["head_dim"] = given["hidden_size"] // heads
        return ModelShape(**given)
    except (TypeError, ValueError, ArithmeticError) as error:
        known = ", ".join(ModelShape.model_fields)
        raise CheckpointError(f"{where}: {first_line(error)}; known fields: {known}") from error


def first_line(error: Exception) -> str:
    """Return an exception's message in one line, with the field and value for pydantic errors."""
    if isinstance(error, ValidationError):
        detail = error.errors()[0]
        field = ".".join(map(str, detail["loc"]))
        if not field:  # Several fields contradict each other; the message names them.
            return f"shape: {detail['msg']}"
        return f"{field} is {brief(detail['input'])}: {detail['msg']}"
    return (str(error).splitlines() or [type(error).__name__])[0]

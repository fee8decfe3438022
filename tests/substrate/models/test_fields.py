"""Counts in a configuration, and shapes from a few fields."""

import pytest

from moebench.substrate.errors import CheckpointError, InputError
from moebench.substrate.models.fields import check_counts, first_line, shape_of_fields
from moebench.substrate.models.shape import GateKind

MAY_BE_0 = (
    "intermediate_size", "shared_expert_intermediate_size", "n_shared_experts",
    "num_shared_experts", "first_k_dense_replace", "sliding_window", "n_group", "topk_group",
    "max_window_layers", "num_key_value_heads", "head_dim", "attention_chunk_size",
    "intermediate_size_mlp",
)  # fmt: skip
FROM_1 = (
    "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads",
    "max_position_embeddings", "num_experts", "num_local_experts", "n_routed_experts",
    "num_experts_per_tok", "moe_top_k", "moe_intermediate_size", "decoder_sparse_step",
    "moe_layer_freq", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
    "interleave_moe_layer_step", "no_rope_layer_interval",
)  # fmt: skip


@pytest.mark.parametrize("key", [*MAY_BE_0, *FROM_1])
def test_counts_are_whole_numbers_of_a_plausible_size(key: str) -> None:
    least = int(key in FROM_1)
    most = 10_000 if key == "num_hidden_layers" else 10**9
    for value in (least, most, None):
        check_counts({key: value, "other": -1})
    for value in (least - 1, most + 1, True, 2.0):
        with pytest.raises(InputError) as caught:
            check_counts({key: value})
        assert str(caught.value) == (
            f"{key} is {value}; allowed: a whole number from {least} to {most}"
        )


FEW = {
    "num_layers": 2, "hidden_size": 12, "vocab_size": 9, "num_heads": 4, "num_experts": 3,
    "top_k": 1, "expert_width": 5,
}  # fmt: skip


def test_a_few_fields_make_a_shape() -> None:
    shape = shape_of_fields(FEW, "here")
    assert (shape.family, shape.gate, shape.num_kv_heads, shape.head_dim) == (
        "own", GateKind.SOFTMAX_TOPK, 4, 3,
    )  # fmt: skip
    given = {"num_kv_heads": 2, "head_dim": 5, "family": "x", "gate": "sparsemixer"}
    shape = shape_of_fields(FEW | given, "here")
    assert {key: getattr(shape, key) for key in given} == given


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"top_k": 4}, "shape: Value error, top_k 4 exceeds num_experts 3"),
        ({"top_k": "x"}, "top_k is 'x': Input should be a valid integer"),
        ({"wrong": 1}, "wrong is 1: Extra inputs are not permitted"),
        ({"num_heads": 0}, "num_heads is 0: Input should be greater than 0"),
        ({"num_heads": None}, "num_heads is None: "),
        ({"hidden_size": "x"}, "unsupported operand"),
    ],
)
def test_other_fields_are_refused_in_one_line(fields: dict, says: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        shape_of_fields(FEW | fields, "here")
    line = str(caught.value)
    assert line.startswith(f"here: {says}")
    assert "; known fields: family, num_layers, hidden_size" in line
    assert "\n" not in line


def test_messages_in_one_line() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ZeroDivisionError()) == "ZeroDivisionError"

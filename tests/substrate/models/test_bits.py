"""Bits per weight of named formats."""

import pytest

from moebench.substrate.errors import UnknownNameError
from moebench.substrate.models.bits import (
    Bits,
    Precisions,
    Stored,
    bits_of,
    class_of,
    format_names,
    precisions,
)
from moebench.substrate.models.gguf_header import Tensor


@pytest.mark.parametrize(
    ("name", "routed", "others"),
    [
        ("q8_0", 8.5, 8.5008),
        ("Q4_K_M", (2 * 4.5 + (4.5 + 6.5625) / 2) / 3, 4.8944),
        ("IQ4-XS", 4.25, 4.4597),
        ("mxfp4", 4.25, 8.5),
        ("f16", 16, 16),
        ("bf16", 16, 16),
        ("q4_k", 4.5, 4.5),
        ("tq1_0", 1.6875, 1.6875),
    ],
)
def test_formats_have_bits_for_experts_and_for_others(
    name: str, routed: float, others: float
) -> None:
    assert bits_of(name) == Bits(pytest.approx(routed, abs=1e-3), others)


def test_every_format_has_plausible_bits() -> None:
    for name in format_names():
        routed, others = bits_of(name)
        assert 1.5 < routed <= others <= 32, name


@pytest.mark.parametrize(
    ("name", "nearest"), [("q4_k_mm", "q4_k_m"), ("iq4_x", "iq4_xs"), ("mxfp", "mxfp4")]
)
def test_unknown_format_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"unknown format '{name}'; nearest: .*{nearest}"):
        bits_of(name)


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        ("blk.3.ffn_up_exps.weight", "routed"),
        ("blk.3.ffn_gate_up_exps.weight", "routed"),
        ("blk.3.ffn_down_shexp.weight", "shared"),
        ("blk.3.attn_q_norm.weight", "attention"),
        ("blk.3.attn_kv_a_mqa.weight", "attention"),
        ("blk.3.ssm_conv1d.weight", "attention"),
        ("blk.3.indexer.attn_k.weight", "attention"),
        ("blk.3.attn_norm.weight", "others"),
        ("blk.3.post_attention_norm.weight", "others"),
        ("blk.3.ffn_gate_inp.weight", "others"),
        ("blk.3.ffn_up.weight", "others"),
        ("token_embd.weight", "vocabulary"),
        ("output.weight", "vocabulary"),
        ("output_norm.weight", "others"),
    ],
)
def test_tensors_have_a_class(tensor: str, found: str) -> None:
    assert class_of(tensor) == found


def test_weights_and_bytes_are_added_up_by_class() -> None:
    rows = [
        ("blk.0.ffn_up_exps.weight", (4, 5, 2), 30), ("blk.1.ffn_up_exps.weight", (4, 5, 2), 50),
        ("blk.0.ffn_up_shexp.weight", (8,), 8), ("blk.0.attn_q.weight", (3, 2), 12),
        ("token_embd.weight", (7, 2), 56), ("output.weight", (7, 2), 28),
        ("output_norm.weight", (5,), 20),
    ]  # fmt: skip
    found = precisions(Tensor(name, dims, "any", size) for name, dims, size in rows)
    assert found == Precisions(
        routed=Stored(80, 80), shared=Stored(8, 8), attention=Stored(6, 12),
        vocabulary=Stored(28, 84), others=Stored(5, 20),
    )  # fmt: skip
    assert found.routed.bits == 8
    assert found.bits == Bits(8, (8 + 12 + 84 + 20) * 8 / (8 + 6 + 28 + 5))
    assert Stored(0, 0).bits is None
    assert precisions([]).bits == Bits(0, 0)


def test_names_are_of_files_and_of_blocks_each_once() -> None:
    names = format_names()
    assert names == sorted(set(names))
    assert {"q4_k_m", "q4_k", "tq1_0", "f16"} <= set(names)

"""Bits per weight of named formats."""

import pytest

from moebench.substrate.errors import UnknownNameError
from moebench.substrate.models.bits import Bits, bits_of, class_of, format_names


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

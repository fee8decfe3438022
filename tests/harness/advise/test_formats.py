"""Names of formats as published rows have them, and what is no format."""

import pytest

from moebench.harness.advise.formats import IK, named_bits
from moebench.substrate.errors import UnknownNameError
from moebench.substrate.models.bits import Bits, bits_of


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("Q4_K_M", "q4_k_m"), ("UD-Q4_K_XL", "q4_k_m"), ("UD-Q2_K_XL", "q2_k"),
        ("UD-Q8_K_XL", "q8_0"), ("UD-IQ2_XXS", "iq2_xxs"), ("Q4_K_R4", "q4_k"), ("mxfp4", "mxfp4"),
        ("IQ4_XS_R8", "iq4_xs"), ("Q8", "q8_0"), ("q6", "q6_k"), ("4-bit", "q4_k"),
    ],
)  # fmt: skip
def test_a_publishers_name_has_the_bits_of_the_format(name: str, same: str) -> None:
    assert named_bits(name) == bits_of(same)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("IQ6_K", Bits(6.625, 8.5)), ("mix-IQ4_KS", Bits(4.25, 8.5)), ("FP8", Bits(8, 8)),
        ("int8", Bits(8, 16)), ("int4", Bits(4.5, 16)), ("rawint4", Bits(4.5, 16)),
        ("AMXINT8", Bits(8, 16)), ("AWQ", Bits(4.25, 16)), ("GPTQ", Bits(4.25, 16)),
        ("nf4", Bits(4.5, 16)),
        ("AMXINT4", Bits(4.5, 16)), ("4.05bpw", Bits(4.05, 4.05)),
        ("EXL3 4.05 bpw", Bits(4.05, 4.05)),
    ],
)  # fmt: skip
def test_formats_of_other_engines_are_known(name: str, bits: Bits) -> None:
    assert named_bits(name) == bits


#: Bytes of a block of 256 weights, scales included (ik_llama.cpp, ggml-common.h).
IK_BLOCKS = {
    "iq1_kt": 56, "iq2_kt": 68, "iq2_ks": 70, "iq2_k": 76, "iq2_kl": 86, "iq3_kt": 100,
    "iq3_ks": 102, "iq3_k": 110, "iq4_kss": 128, "iq4_kt": 128, "iq4_ks": 136, "iq4_k": 144,
    "iq5_ks": 168, "iq5_k": 176, "iq6_k": 212,
}  # fmt: skip


def test_bits_are_those_of_whole_blocks() -> None:
    assert {name: Bits(8 * size / 256, 8.5) for name, size in IK_BLOCKS.items()} == {
        name: named_bits(name) for name in IK
    }


@pytest.mark.parametrize("name", ["", "q4_k_z", "fast", "0.5bpw", "99bpw", "9bit", "UD-", "_xl"])
def test_other_names_are_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(UnknownNameError, match="format") as caught:
        named_bits(name)
    assert "\n" not in str(caught.value)

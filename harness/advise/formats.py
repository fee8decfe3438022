"""Formats of weights as files and engines name them, beyond those of the catalogue.

Names of llama.cpp's formats may have a publisher's ending: ``UD-Q4_K_XL``, ``Q4_K_M`` in any case,
and ``_R4`` or ``_R8`` for ik_llama.cpp's interleaved rows, which have the same bits.
"""

import re

from moebench.substrate.errors import UnknownNameError
from moebench.substrate.models.bits import Bits, bits_of, format_key, format_names

#: Bits per weight of ik_llama.cpp's own formats (ikawrakow/ik_llama.cpp README and PR 8, 83, 89,
#: 113, 529; from memory).
IK = {
    "iq2_k": 2.375, "iq2_ks": 2.1875, "iq2_kl": 2.6875, "iq2_kt": 2.125, "iq3_k": 3.4375,
    "iq3_ks": 3.1875, "iq3_kt": 3.125, "iq4_k": 4.5, "iq4_ks": 4.25, "iq4_kss": 4.0,
    "iq4_kt": 4.0, "iq5_k": 5.5, "iq5_ks": 5.25, "iq6_k": 6.625, "iq1_kt": 1.75,
}  # fmt: skip

#: Bits of routed experts and of other weights in formats other than files of llama.cpp.
OTHERS = {
    "fp8": Bits(8.0, 8.0), "int8": Bits(8.0, 16.0), "int4": Bits(4.5, 16.0),
    "rawint4": Bits(4.5, 16.0), "amxint4": Bits(4.5, 16.0), "amxint8": Bits(8.0, 16.0),
    "awq": Bits(4.25, 16.0), "gptq": Bits(4.25, 16.0), "nf4": Bits(4.5, 16.0),
}  # fmt: skip

#: Endings of publishers' mixes, and the format of llama.cpp that is nearest in size.
_ENDINGS = {"_k_xl": ("_k_m", "_k_l", "_k", "_0"), "_xl": ("_m", "")}

_PREFIX = re.compile(r"^(?:ud|mix|i1|bf16|custom)[_ ]+")
_ROWS = re.compile(r"_r[48]$")
_WEIGHTS = re.compile(r"(?:exl[23][_ @]*)?(\d+(?:\.\d+)?) ?bpw")
_PLAIN = re.compile(r"q?(\d)(?:_?bits?)?")

#: Bits of other weights where a text says the bits of all, and least and most bits.
OTHERS_BITS, LEAST, MOST = 8.5, 1.0, 32.0


def named_bits(name: str) -> Bits:
    """Return the bits per weight of a format by any of its names.

    Args:
        name: of llama.cpp's or ik_llama.cpp's formats, ``fp8``, ``int4``, ``4.05bpw`` or ``4-bit``.

    Raises UnknownNameError: no such format; names the nearest ones.
    """
    key = _PREFIX.sub("", format_key(name))
    key = _ROWS.sub("", key)
    if key in IK:
        return Bits(IK[key], OTHERS_BITS)
    if key in OTHERS:
        return OTHERS[key]
    if said := _WEIGHTS.fullmatch(key):
        bits = float(said[1])
        if LEAST <= bits <= MOST:
            return Bits(bits, bits)
    if said := _PLAIN.fullmatch(key):
        key = {"8": "q8_0", "6": "q6_k"}.get(said[1], f"q{said[1]}_k")
    known = format_names()
    for ending, instead in _ENDINGS.items():
        if key not in known and key.endswith(ending):
            begin = key.removesuffix(ending)
            key = next((begin + end for end in instead if begin + end in known), key)
    if key not in known:
        raise UnknownNameError("format", name, [*known, *IK, *OTHERS], "--quant")
    return bits_of(key)

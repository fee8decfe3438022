"""Bits per weight by tensor class: of named GGUF formats, and of the tensors of a GGUF file.

``substrate/catalogue/formats.yaml`` has the formats with their sources.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from moebench.substrate.errors import UnknownNameError
from moebench.substrate.files import read_yaml
from moebench.substrate.models.gguf_header import Tensor

FORMATS = Path(__file__).parents[1] / "catalogue" / "formats.yaml"


class Bits(NamedTuple):
    """Bits per weight of routed experts and of all other weights."""

    routed: float
    others: float


#: Rate of products on a processor's core, over that of plain 4-bit blocks, by the beginning of a
#: format's name (`docs/published.md`).
HOST_RATES = {"iq1": 0.5, "iq2": 0.5, "iq3": 0.5, "mxfp4": 0.65, "nvfp4": 0.65}


def host_rate(name: str) -> float:
    """Return the rate of a format's products on a core, over that of plain 4-bit blocks."""
    return next((rate for begin, rate in HOST_RATES.items() if name.startswith(begin)), 1.0)


class Quantised(NamedTuple):
    """How a run's weights are stored, where that is not one `Precision` of all of them.

    Attributes:
        bits: bits per weight by tensor class.
        rate: of products with routed experts on a processor's core (`host_rate`).
    """

    bits: Bits
    rate: float


class _Mix(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    routed: float = Field(gt=0, le=64)
    others: float = Field(gt=0, le=64)
    source: str


class _Formats(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    block_source: str
    blocks: dict[str, float]
    files: dict[str, _Mix]


@cache
def _formats() -> _Formats:
    return TypeAdapter(_Formats).validate_python(read_yaml(FORMATS))


def format_names() -> list[str]:
    """Return the names of all formats: of whole files, and of single block types."""
    return sorted({*_formats().files, *_formats().blocks})


def format_key(name: str) -> str:
    """Return a format's name in lower case, with underscores."""
    return name.strip().lower().replace("-", "_")


def bits_of(name: str) -> Bits:
    """Return the bits per weight of a GGUF format, such as ``q4_k_m``, ``mxfp4`` or ``f16``.

    Args:
        name: in any case, with hyphens or underscores.  A file's format is preferred to the block
            type of the same name, of which all weights have the bits.

    Raises UnknownNameError: no such format; names the nearest ones.
    """
    key, known = format_key(name), _formats()
    if key in known.files:
        return Bits(known.files[key].routed, known.files[key].others)
    if key in known.blocks:
        return Bits(known.blocks[key], known.blocks[key])
    raise UnknownNameError("format", name, format_names())


# ----------------------------------------------------------------------------- a file's tensors


class Stored(NamedTuple):
    """Weights of a class of tensors, and the bytes in which a file stores them."""

    weights: int
    size_bytes: int

    @property
    def bits(self) -> float | None:
        """Bits per weight; None without weights."""
        return self.size_bytes * 8 / self.weights if self.weights else None


class Precisions(NamedTuple):
    """Weights and bytes of a model by tensor class.

    Attributes:
        routed: routed experts.
        shared: shared experts.
        attention: attention of any kind, state-space mixers and indexers included.
        vocabulary: token embedding and output head.
        others: dense layers, routers and norms.
    """

    routed: Stored
    shared: Stored
    attention: Stored
    vocabulary: Stored
    others: Stored

    @property
    def bits(self) -> Bits:
        """Bits per weight of routed experts, and of all other tensors together."""
        weights, size = (sum(column) for column in zip(*self[1:], strict=True))
        return Bits(self.routed.bits or 0.0, Stored(weights, size).bits or 0.0)


#: Tensor classes by the name of a tensor in its layer (``blk.N.``); the first one that fits.
_CLASSES: Mapping[str, re.Pattern[str]] = {
    "routed": re.compile(r"ffn_\w+_exps\b"),
    "shared": re.compile(r"ffn_\w+_shexp\b"),
    "others": re.compile(r"(\w*attn_(post_)?norm|post_attention_norm)\."),
    "attention": re.compile(r"(attn|ssm|indexer|attention)[_.]"),
}


def class_of(name: str) -> str:
    """Return the tensor class (a field of `Precisions`) of a tensor's name in a GGUF file."""
    if not name.startswith("blk."):
        whole = re.match(r"(token_embd|output|per_layer_token_embd)\.", name)
        return "vocabulary" if whole else "others"
    inside = name.split(".", 2)[-1]
    for found, pattern in _CLASSES.items():
        if pattern.match(inside):
            return found
    return "others"


def precisions(tensors: Iterable[Tensor]) -> Precisions:
    """Return weights and bytes of tensors by class."""
    found = {key: Stored(0, 0) for key in Precisions._fields}
    for tensor in tensors:
        key = class_of(tensor.name)
        weights, size = found[key]
        found[key] = Stored(weights + tensor.weights, size + tensor.size_bytes)
    return Precisions(**found)

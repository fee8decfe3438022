"""Reads the header of a GGUF file: key-values and tensor sizes, without tensor data.

The ``gguf`` package builds an object for each of the 150,000 tokens of a vocabulary, which takes
seconds; this reader skips long arrays.  The first megabytes of a file suffice for it, and all parts
of a split file are read.
"""

import mmap
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from moebench.substrate.errors import CheckpointError
from moebench.substrate.files import brief, require_file

#: Weights in a block and bytes of a block, by ggml's number of the tensor type.
BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292), 16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2), 26: ("i32", 1, 4),
    27: ("i64", 1, 8), 28: ("f64", 1, 8), 29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36),
}  # fmt: skip

#: `struct` codes of numeric values by GGUF's number of the value type.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9

#: Bounds of what a header may claim, far above those of any published file.
MOST_VALUES = MOST_PARTS = 10_000
MOST_TENSORS = 200_000
MOST_STRINGS = 4_000_000
MOST_DIMS, LONGEST_DIM, MOST_WEIGHTS = 4, 2**40, 2**50

#: Longest array (one number for each layer) and text that are read; longer ones are skipped.
KEPT_ARRAY, KEPT_TEXT = 10_000, 65_535

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Skipped:
    """An array or text that was not read: its number of values or bytes."""

    count: int


Value = int | float | str | bool | tuple[Any, ...] | Skipped


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's entry in the header.

    Attributes:
        dims: ggml's order, the row length first: ``[in, out]``, or ``[in, out, experts]``.
        kind: name of the type, or its number where it is unknown.
        size_bytes: bytes of the data; of an unknown type up to the next tensor's data.
    """

    name: str
    dims: tuple[int, ...]
    kind: str
    size_bytes: int

    @property
    def weights(self) -> int:
        """Number of weights."""
        return prod(self.dims)


@dataclass(frozen=True, slots=True)
class Header:
    """Key-values and tensors of a GGUF file, or of all parts of a split one."""

    values: Mapping[str, Value]
    tensors: Sequence[Tensor]


def read_header(path: Path) -> Header:
    """Return the header of a GGUF file; of a split file that of all its parts.

    Args:
        path: the file, or any part ``NAME-00001-of-0000N.gguf`` of a split one.

    Raises CheckpointError: the file or a part is missing or damaged, or no GGUF file.
    """
    named = _PART.fullmatch(path.name)
    if named is None:
        header = _read(path)
        count = header.values.get("split.count", 0)
        if isinstance(count, int) and count > 1:
            raise CheckpointError(
                f"{path}: one of {count} parts of a split file; name the parts "
                "NAME-00001-of-0000N.gguf and give one of them"
            )
        return header
    stem, count = named[1], int(named[3])
    if not 1 <= int(named[2]) <= count <= MOST_PARTS:
        raise CheckpointError(f"{path}: no such part; allowed: 1 to {min(count, MOST_PARTS)}")
    parts = [path.with_name(f"{stem}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    return _joined(path, parts)


def _joined(path: Path, parts: Sequence[Path]) -> Header:
    """Return the headers of all parts as one; the first part has the key-values of the model."""
    absent = [part for part in parts if not part.exists()]
    if absent:
        raise CheckpointError(
            f"{absent[0]}: is missing ({len(absent)} of {len(parts)} parts); all parts must be in "
            "one folder"
        )
    headers = [_read(part) for part in parts]
    values, tensors = headers[0].values, [t for header in headers for t in header.tensors]
    for number, (part, header) in enumerate(zip(parts, headers, strict=True)):
        stated = header.values.get("split.no", number), header.values.get("split.count", len(parts))
        if stated != (number, len(parts)):
            raise CheckpointError(
                f"{part}: its header says part {brief(stated[0])} of {brief(stated[1])} (from "
                "0); rename the parts as they were published"
            )
    wanted = values.get("split.tensors.count", len(tensors))
    if wanted != len(tensors) or len({t.name for t in tensors}) < len(tensors):
        raise CheckpointError(
            f"{path}: {len(tensors)} tensors in {len(parts)} parts, of which the first states "
            f"{brief(wanted)}; parts of different files are mixed"
        )
    return Header(values, tensors)


def _read(path: Path) -> Header:
    require_file(path, CheckpointError)
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if not size:
                raise CheckpointError(f"{path}: an empty file; allowed: a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Cursor(path, content).header()
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path}: cannot be read ({problem})") from error


class _Cursor:
    """Position in a mapped file; reading past its end is a `CheckpointError`."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path, self._content, self._at, self._order = path, content, 0, "<"
        self._strings = 0

    def header(self) -> Header:
        """Read the whole header."""
        if self._content[:4] != b"GGUF":
            raise self._wrong("does not begin with GGUF", "allowed: a GGUF file")
        self._at = 4
        version = self._number("I")
        if version & 0xFFFF == 0:  # A big-endian file.
            self._order, self._at = ">", 4
            version = self._number("I")
        if version not in (2, 3):
            raise self._wrong(f"GGUF version {version}", "allowed: 2 and 3; convert it again")
        tensors = self._count("tensors", MOST_TENSORS)
        count = self._count("key-values", MOST_VALUES)
        values: dict[str, Value] = {}
        for _ in range(count):
            key = self._text()
            if not key or key in values:
                raise self._wrong(f"key {brief(key)} is empty or there twice")
            values[key] = self._value(self._number("I"))
        infos = [self._info() for _ in range(tensors)]
        if len({info[0] for info in infos}) < len(infos):
            raise self._wrong("a tensor is there twice")
        return Header(values, self._sized(infos, values.get("general.alignment", 32)))

    def _wrong(self, problem: str, fix: str = "download it again") -> CheckpointError:
        return CheckpointError(f"{self._path}: {problem}; {fix}")

    def _number(self, code: str) -> Any:
        try:
            (found,) = struct.unpack_from(self._order + code, self._content, self._at)
        except (struct.error, OverflowError) as error:
            raise self._ended() from error
        self._at += struct.calcsize(code)
        return found

    def _ended(self) -> CheckpointError:
        return self._wrong(f"ends inside its header (at byte {len(self._content)})")

    def _count(self, what: str, most: int) -> int:
        count = int(self._number("Q"))
        if count > most:
            raise self._wrong(f"its header claims {count} {what} (most: {most})")
        return count

    def _text(self) -> str:
        length = self._count("bytes of text", KEPT_TEXT)
        raw = self._content[self._at : self._at + length]
        if len(raw) < length:
            raise self._ended()
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._wrong("a name is not UTF-8") from error

    def _text_or_length(self) -> str | Skipped:
        start, length = self._at, int(self._number("Q"))
        if length <= KEPT_TEXT:
            self._at = start
            return self._text()
        if self._at + length > len(self._content):
            raise self._ended()
        self._at += length
        return Skipped(length)

    def _value(self, kind: int) -> Value:
        if kind in _NUMBERS:
            found: Value = self._number(_NUMBERS[kind])
            if _NUMBERS[kind] == "f":  # 1e-6 is stored as 9.99999997e-7.
                return float(f"{found:.7g}")
            return found
        if kind == _STRING:
            return self._text_or_length()
        if kind != _ARRAY:
            raise self._wrong(f"unknown value type {kind}")
        item, count = self._number("I"), int(self._number("Q"))
        if item == _STRING:
            self._skip_strings(count)
            return Skipped(count)
        if item not in _NUMBERS:
            raise self._wrong(f"array of unknown value type {item}")
        code = _NUMBERS[item]
        end = self._at + count * struct.calcsize(code)
        if end > len(self._content):
            raise self._ended()
        if count > KEPT_ARRAY:
            self._at = end
            return Skipped(count)
        numbers = struct.unpack_from(f"{self._order}{count}{code}", self._content, self._at)
        self._at = end
        return numbers

    def _skip_strings(self, count: int) -> None:
        """Skip an array of texts: each has its length before it."""
        self._strings += count
        if self._strings > MOST_STRINGS:
            raise self._wrong(f"its header claims {count} texts (most: {MOST_STRINGS})")
        length_of, content = struct.Struct(f"{self._order}Q").unpack_from, self._content
        at = self._at
        try:
            for _ in range(count):
                at += 8 + length_of(content, at)[0]
        except (struct.error, OverflowError) as error:
            raise self._ended() from error
        if at > len(content):
            raise self._ended()
        self._at = at

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Read one tensor's name, dimensions, type and offset."""
        name, count = self._text(), self._number("I")
        if not name or not 0 <= count <= MOST_DIMS:
            raise self._wrong(f"tensor {brief(name)} has {count} dimensions (most: {MOST_DIMS})")
        dims = tuple(int(self._number("Q")) for _ in range(count))
        if any(not 0 < dim <= LONGEST_DIM for dim in dims) or prod(dims) > MOST_WEIGHTS:
            raise self._wrong(f"tensor {brief(name)} has impossible dimensions {brief(dims)}")
        return name, dims, self._number("I"), int(self._number("Q"))

    def _sized(
        self, infos: Sequence[tuple[str, tuple[int, ...], int, int]], alignment: Value
    ) -> list[Tensor]:
        """Return tensors with their bytes: from the type, or from the offset of the next one."""
        align = alignment if isinstance(alignment, int) and 0 < alignment <= 2**20 else 32
        data = -(-self._at // align) * align
        offsets = sorted({offset for *_, offset in infos} | {max(0, len(self._content) - data)})
        following = dict(pairwise(offsets))
        found = []
        for name, dims, number, offset in infos:
            if number in BLOCKS:
                kind, block, size = BLOCKS[number]
                if dims and dims[0] % block:
                    raise self._wrong(
                        f"tensor {brief(name)} has rows of {dims[0]} weights, not of whole {kind} "
                        f"blocks of {block}"
                    )
                found.append(Tensor(name, dims, kind, prod(dims) // block * size))
                continue
            if offset not in following:
                raise self._wrong(
                    f"tensor {brief(name)} has the unknown type {number}, and its data is not in "
                    "the file, so that its size is unknown", "give the whole file"
                )  # fmt: skip
            found.append(Tensor(name, dims, f"type {number}", following[offset] - offset))
        return found

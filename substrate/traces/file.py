"""Trace folders: one ``.npy`` file for each array of a routing trace, and a JSON header.

    trace.json            version, model, source, what was recorded, each array's SHA-256
    ids.npy               [T, L, K]    chosen experts, as ``ids_order`` says
    sequence.npy          [T]          from 0
    position.npy          [T]          in its sequence, from 0
    phase.npy             [T]          0 prefill, 1 decode
    chosen.npy            [T]          the token that follows this one; -1 unknown
    scores.npy            [T, L, E]    gate scores of all experts
    top_scores.npy        [T, L, K]    instead, where only the chosen ones' are known
    candidates.npy        [T, L, C]    best-ranked experts beyond the top-k, in rank buckets
    predicted*.npy        [D, L-n, E]  layer l's prediction of layer l+n's scores; NaN: not made
    hidden.npy            [T, L, H]    the states that the gates read
    embedding.npy         [S, H]       each sequence's mean token embedding of its prompt

T tokens in recorded order, D of them decoded, S sequences, L MoE layers, E experts, K chosen, H the
hidden width of the recorded model.  All arrays except ``ids``, ``sequence``, ``position``,
``phase`` and ``chosen`` are optional.  No array is pickled, and all can be memory-mapped.
`substrate.traces.writer` writes a trace.

Version 2 added states, embeddings and predictions beyond the next layer; version 1 can be read.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moebench.substrate.errors import InputError
from moebench.substrate.files import brief, read_array, read_json, whole
from moebench.substrate.terms import WORDS, Learnt, Lookahead
from moebench.substrate.traces.checks import check_array

VERSION = 2
HEADER = "trace.json"

#: Expert ids have at most two bytes.
MOST_EXPERTS = 2**16
MOST_LAYERS = 10_000

#: Order of a token's chosen experts: best first, in buckets of ranks (1-2, 3-4, 5-8, 9-16;
#: ascending ids inside a bucket), or by ascending id.
IdsOrder = Literal["score", "rank buckets", "id"]

#: Arrays with one value a token and their types; the prefix of arrays with one row a decoded token;
#: and the array with one row a sequence.
COLUMNS = {"sequence": "int32", "position": "int32", "phase": "uint8", "chosen": "int32"}
_DECODED = "predicted"
_BY_SEQUENCE = "embedding"


class Array(BaseModel):
    """Header entry of an array file: dtype, shape and SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: str
    shape: tuple[int, ...]
    sha256: str


class Prediction(BaseModel):
    """Header entry of predicted gate scores: the arrays that hold them, and their origin.

    Attributes:
        array: name of the array for the next MoE layer.
        further: names of the arrays for the second, third, ... MoE layer that follows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    array: str
    made: str
    further: tuple[str, ...] = ()

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of all arrays by distance, beginning with the next MoE layer."""
        return (self.array, *self.further)


class Header(BaseModel):
    """Header of a trace: its model, workload, dimensions, contents and source.

    Attributes:
        model: a catalogue name, if the catalogue has the model.
        workload: kind of the prompts.
        scores: meaning of the scores; None without scores.
        predictions: by kind of lookahead.
        lossless: the tokens are the model's own, because no expert was substituted.
        source: origin: weights, system and prompts, or repository and licence.
        notes: remarks that are needed to interpret results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["moebench-trace"] = "moebench-trace"
    version: int = VERSION
    model: str
    workload: str
    num_moe_layers: int = Field(gt=0, le=MOST_LAYERS, strict=True)
    num_experts: int = Field(gt=0, le=MOST_EXPERTS, strict=True)
    top_k: int = Field(gt=0, le=MOST_EXPERTS, strict=True)
    ids_order: IdsOrder = "score"
    scores: str | None = None
    predictions: dict[Lookahead, Prediction] = {}
    lossless: bool = True
    source: dict[str, Any] = {}
    notes: list[str] = []
    arrays: dict[str, Array] = {}

    @property
    def ids_type(self) -> str:
        """Name of the smallest integer type that holds an expert id."""
        return "uint8" if self.num_experts <= 256 else "uint16"

    def layers_ahead(self, kind: Lookahead) -> int:
        """Return the number of following MoE layers with predictions of a kind."""
        found = self.predictions.get(kind)
        return 0 if found is None else len(found.arrays)

    @property
    def holds(self) -> tuple[str, ...]:
        """Descriptions of all contents other than the chosen experts."""
        ahead = [f"{kind} predictions {self.layers_ahead(kind)} ahead" for kind in self.predictions]
        return (*ahead, *(words for what, words in WORDS.items() if self.has(what)))

    def has(self, what: Learnt) -> bool:
        """Return whether the trace has scores, or an array of this name."""
        return self.scores is not None if what == "scores" else what in self.arrays

    def row_shape(self, array: str) -> tuple[int, ...]:
        """Return the required shape of an array's rows; free lengths are those of the array.

        Raises KeyError: the format has no such array.
        """
        layers, experts, k = self.num_moe_layers, self.num_experts, self.top_k
        if array.startswith(_DECODED):
            ahead = {name: n for p in self.predictions.values() for n, name in enumerate(p.arrays)}
            return (max(layers - 1 - ahead.get(array, 0), 0), experts)
        free = self.arrays[array].shape[-1:]
        shapes = {
            "ids": (layers, k), "scores": (layers, experts), "top_scores": (layers, k),
            "candidates": (layers, *free), "hidden": (layers, *free), "embedding": free,
        }  # fmt: skip
        return () if array in COLUMNS else shapes[array]


# ----------------------------------------------------------------------------- reading


class _Arrays(Mapping[str, np.ndarray]):
    """The arrays of a trace by name; each is read and checked at its first use.

    Most runs read few arrays, and a trace may hold gigabytes.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._path, self._header = path, header
        self._read: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """Return an array as a view of its memory-mapped file.

        Raises:
            InputError: the file was changed or is broken.
            KeyError: the trace has no array of this name.
        """
        if name not in self._read:
            if name not in self._header.arrays:
                raise KeyError(name)
            self._read[name] = _array(self._path, self._header, name)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._header.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._header.arrays)

    def __len__(self) -> int:
        return len(self._header.arrays)


class TraceFile:
    """An open trace: its header, and its arrays by name.

    Attributes:
        hash: 16 hex digits of a hash of the header, which has every array's hash.
        ids_TLK: chosen experts.
        sequences: for each sequence, its rows in order of position.
        prompts: for each sequence, the number of its prefill rows.
        embedding_SH: each prompt's mean token embedding, by sequence, or None if not recorded.
    """

    def __init__(self, path: Path, header: Header, arrays: Mapping[str, np.ndarray]) -> None:
        self.path, self.header, self.arrays = path, header, arrays
        self.hash = hashlib.sha256(header.model_dump_json().encode()).hexdigest()[:16]
        self.ids_TLK, self.chosen = arrays["ids"], arrays["chosen"]
        if not len(self.ids_TLK):
            raise _broken(path, "it has no token")
        decoded = arrays["phase"] == 1
        for name, array in header.arrays.items():
            if name.startswith(_DECODED) and array.shape[0] != decoded.sum():
                raise _broken(path, f"{name} has {array.shape[0]} rows for {decoded.sum()} tokens")
        #: Index of a decoded token's row among the decoded rows.
        self.decoded_row = np.cumsum(decoded) - 1
        order = np.lexsort((arrays["position"], arrays["sequence"]))
        ends = np.flatnonzero(np.diff(arrays["sequence"][order])) + 1
        self.sequences: list[np.ndarray] = np.split(order, ends)
        self.prompts = [int((~decoded[rows]).sum()) for rows in self.sequences]
        for s, (rows, prompt) in enumerate(zip(self.sequences, self.prompts, strict=True)):
            if decoded[rows[:prompt]].any():
                raise _broken(path, f"sequence {s} goes from decode back to prefill")
        self.embedding_SH = arrays.get(_BY_SEQUENCE)
        if self.embedding_SH is not None and len(self.embedding_SH) != len(self.sequences):
            raise _broken(path, f"{_BY_SEQUENCE} has {len(self.embedding_SH)} rows")

    @property
    def scores_TLE(self) -> np.ndarray | None:
        """Gate scores of all experts, or None if they were not recorded."""
        return self.arrays.get("scores")

    @property
    def hidden_TLH(self) -> np.ndarray | None:
        """Hidden states that the gates read, or None if they were not recorded."""
        return self.arrays.get("hidden")

    def predicted(self, kind: Lookahead, ahead: int = 1) -> np.ndarray | None:
        """Return predictions for ``ahead`` MoE layers later ``[D, L-n, E]``, or None."""
        if ahead > self.header.layers_ahead(kind):
            return None
        return self.arrays[self.header.predictions[kind].arrays[ahead - 1]]

    def passes(self, sequence: int) -> int:
        """Return the number of replayable passes of a sequence: a prefill and its decoded tokens.

        If the prompt was not recorded, the first decoded token is the prefill.
        """
        return len(self.sequences[sequence]) - max(self.prompts[sequence], 1) + 1

    def prompt(self, sequence: int) -> int:
        """Return the number of rows of a sequence's replayed prefill."""
        return max(self.prompts[sequence], 1)


def open_trace(path: Path) -> TraceFile:
    """Open a trace, and cache it with its checked arrays until one of its files changes.

    Raises:
        InputError: the trace is missing, incomplete, of a newer version, or was changed; optional
            arrays are checked at their first use.
    """
    try:
        states = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(path.iterdir())]
    except OSError as error:
        raise InputError(f"{path}: not a trace's folder ({error.strerror})") from error
    return _opened(path.absolute(), tuple(states))


@lru_cache(maxsize=8)
def _opened(path: Path, states: tuple[tuple[str, int, int], ...]) -> TraceFile:
    header = read_header(path)
    return TraceFile(path, header, _Arrays(path, header))


def read_header(path: Path) -> Header:
    """Read and check the header of a trace, without its arrays.

    Raises InputError: the header is missing, broken, or from a newer version.
    """
    file = path / HEADER
    if not file.is_file():
        raise InputError(f"{path}: not a trace, it holds no {HEADER}; see: moebench trace --help")
    found = read_json(file)
    if not isinstance(found, dict) or found.get("format") != "moebench-trace":
        raise InputError(f"{file}: not the header of a trace; see: moebench trace --help")
    version = found.get("version")
    if isinstance(version, int) and version > VERSION:
        raise InputError(
            f"{path}: a trace of version {version}, this moebench reads up to {VERSION}; update it"
        )
    whole(version, f"{file}: version", 1, VERSION)
    try:
        header = Header(**found)
        predictions = {name for p in header.predictions.values() for name in p.arrays}
        for name in ("ids", *COLUMNS, *predictions):
            if name not in header.arrays:
                raise _broken(path, f"it has no array {name}")
        for name, array in header.arrays.items():
            expected = header.row_shape(name)
            if min(array.shape, default=-1) < 0:
                raise _broken(path, f"{name} has shape {array.shape}")
            if array.shape[1:] != expected:
                raise _broken(path, f"{name} has rows of {array.shape[1:]}, not {expected}")
    except KeyError as error:
        raise _broken(path, f"unknown array {error}") from error
    except ValidationError as error:
        detail = error.errors()[0]
        field = ".".join(map(str, detail["loc"]))
        said = f"{field} is {brief(detail['input'])}: {detail['msg']}"
        raise _broken(path, f"{HEADER}: {said}") from error
    return header


def _array(path: Path, header: Header, name: str) -> np.ndarray:
    file, wanted = path / f"{name}.npy", header.arrays[name]
    values = read_array(file, wanted.sha256, mapped=0 not in wanted.shape)
    if values.dtype.str != wanted.dtype or values.shape != wanted.shape:
        raise _broken(path, f"{file.name} is {values.dtype.str} {values.shape}")
    by_token = not name.startswith(_DECODED) and name != _BY_SEQUENCE
    if by_token and len(values) != header.arrays["ids"].shape[0]:
        raise _broken(path, f"{file.name} has {len(values)} rows")
    check_array(str(path), name, values, header.num_experts)
    return values


def _broken(path: Path, what: str) -> InputError:
    return InputError(f"{path}: a broken trace, {what}; record or import it again")

"""Routing traces in a folder: one ``.npy`` file an array, and a header that says what they are.

    trace.json            version, model, source, what was recorded, each array's SHA-256
    ids.npy               [T, L, K]    chosen experts, as ``ids_order`` says
    sequence.npy          [T]          from 0
    position.npy          [T]          in its sequence, from 0
    phase.npy             [T]          0 prefill, 1 decode
    chosen.npy            [T]          the token that follows this one; -1 unknown
    scores.npy            [T, L, E]    gate scores of all experts
    top_scores.npy        [T, L, K]    instead, where only the chosen ones' are known
    candidates.npy        [T, L, C]    best-ranked experts beyond the top-k, in rank buckets
    predicted*.npy        [D, L-n, E]  what layer l said of layer l+n's scores; NaN: not asked
    hidden.npy            [T, L, H]    the states that the gates read
    embedding.npy         [S, H]       each sequence's mean token embedding of its prompt

T tokens in recorded order, D of them decoded, S sequences, L MoE layers, E experts, K chosen, H the
width of the model that computed.  Everything but ``ids``, ``sequence``, ``position``, ``phase`` and
``chosen`` is optional.  Nothing is pickled, all can be memory-mapped.
`substrate.traces.writer` writes one.

Version 2 added predictions of more than the next layer, states and embeddings; version 1 is read.
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

#: An expert's id takes two bytes at most.
MOST_EXPERTS = 2**16
MOST_LAYERS = 10_000

#: How the chosen experts of a token are listed: best first, in buckets of ranks (1-2, 3-4, 5-8,
#: 9-16; ascending ids inside one), or by ascending id.
IdsOrder = Literal["score", "rank buckets", "id"]

#: Arrays with one value a token, their types; the prefix of those with one row a decoded token; and
#: that with one a sequence.
COLUMNS = {"sequence": "int32", "position": "int32", "phase": "uint8", "chosen": "int32"}
_DECODED = "predicted"
_BY_SEQUENCE = "embedding"


class Array(BaseModel):
    """One file of a trace."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: str
    shape: tuple[int, ...]
    sha256: str


class Prediction(BaseModel):
    """Scores predicted for later layers, and how they were made.

    Attributes:
        array: holds those for the next MoE layer.
        further: hold those for the second, the third, ... that follows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    array: str
    made: str
    further: tuple[str, ...] = ()

    @property
    def arrays(self) -> tuple[str, ...]:
        """By distance, from the next layer on."""
        return (self.array, *self.further)


class Header(BaseModel):
    """What a trace is.

    Attributes:
        model: a name of the catalogue where there is one.
        workload: what was asked.
        scores: what the scores mean; None where there are none.
        predictions: by kind of lookahead.
        lossless: whether the tokens are the model's own: no expert was substituted.
        source: where it comes from: weights, system, prompts; or repository and licence.
        notes: what must be known to read results.
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
        """The smallest type that holds an expert's id."""
        return "uint8" if self.num_experts <= 256 else "uint16"

    def layers_ahead(self, kind: Lookahead) -> int:
        """Of how many of the MoE layers that follow predictions of a kind are held."""
        found = self.predictions.get(kind)
        return 0 if found is None else len(found.arrays)

    @property
    def holds(self) -> tuple[str, ...]:
        """What it holds beside the chosen experts, in words."""
        ahead = [f"{kind} predictions {self.layers_ahead(kind)} ahead" for kind in self.predictions]
        return (*ahead, *(words for what, words in WORDS.items() if self.has(what)))

    def has(self, what: Learnt) -> bool:
        """Whether it holds this of its tokens or sequences."""
        return self.scores is not None if what == "scores" else what in self.arrays

    def row_shape(self, array: str) -> tuple[int, ...]:
        """The shape of an array's rows; a length that is free is taken as it is.

        Raises:
            KeyError: a trace has no such array.
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
    """A trace's arrays by name, each read and checked when it is first asked for.

    Most runs read few of them, and a trace may hold gigabytes.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._path, self._header = path, header
        self._read: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """Views of memory-mapped files.

        Raises:
            InputError: the array is not what was written.
            KeyError: the trace holds none of this name.
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
    """A trace that was opened: its header, and its arrays by name.

    Attributes:
        hash: 16 hex digits over the header, which holds every array's hash.
        ids_TLK: chosen experts.
        sequences: for each sequence, its rows in order of position.
        prompts: for each sequence, how many of its rows are prefill.
        embedding_SH: each prompt's mean token embedding, by sequence, where it was recorded.
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
        #: Where a decoded token's row stands among the decoded ones.
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
        """Gate scores of all experts, where they were recorded."""
        return self.arrays.get("scores")

    @property
    def hidden_TLH(self) -> np.ndarray | None:
        """The states that the gates read, where they were recorded."""
        return self.arrays.get("hidden")

    def predicted(self, kind: Lookahead, ahead: int = 1) -> np.ndarray | None:
        """Predictions of a kind of the layers that are so many MoE layers ahead ``[D, L-n, E]``."""
        if ahead > self.header.layers_ahead(kind):
            return None
        return self.arrays[self.header.predictions[kind].arrays[ahead - 1]]

    def passes(self, sequence: int) -> int:
        """Passes that a sequence can be replayed for: a prefill and its decoded tokens.

        Where the prompt was not recorded, the first decoded token stands for it.
        """
        return len(self.sequences[sequence]) - max(self.prompts[sequence], 1) + 1

    def prompt(self, sequence: int) -> int:
        """Rows of the replayed prefill."""
        return max(self.prompts[sequence], 1)


def open_trace(path: Path) -> TraceFile:
    """Open a trace.  What was checked is remembered as long as its files do not change.

    Raises:
        InputError: missing, incomplete, changed since it was written, or of a newer version; for
            an array that not every run reads, when it is first asked for.
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
    """The header of a trace alone.

    Raises:
        InputError: there is none, it is broken, or from a newer version.
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

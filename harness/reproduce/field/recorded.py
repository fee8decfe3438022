"""Recorded streams of real models in a data folder, for claims about caches and profiles.

A stream is one recording, cut where its sequences begin to repeat themselves.  Recordings of fewer
than `LEAST` tokens and second captures of one prompt are left out.  Prompts are read token by
token, as decode would.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.substrate.traces.published import META, read_published
from moebench.substrate.traces.recordings import FOLDER

#: Fewest tokens of a stream, and the most that are read of one, in full and with ``--quick``.
LEAST, MOST, QUICK_MOST = 96, 1024, 256


@dataclass(frozen=True, eq=False)
class Stream:
    """One recording of a model's routing; streams are equal only to themselves.

    Attributes:
        sequences: chosen experts ``[T, L, K]`` of each sequence.
    """

    model: str
    workload: str
    experts: int
    sequences: tuple[np.ndarray, ...]

    @property
    def name(self) -> str:
        """Model and workload."""
        return f"{self.model} {self.workload}"

    @property
    def tokens(self) -> int:
        """Number of tokens of all sequences."""
        return sum(map(len, self.sequences))

    def halves(self) -> "tuple[Stream, Stream]":
        """Return every second sequence, and the others; of a single one, its two halves."""
        if len(self.sequences) > 1:
            kept, held = self.sequences[::2], self.sequences[1::2]
        else:
            (rows,) = self.sequences
            cut = len(rows) // 2
            kept, held = (rows[:cut],), (rows[cut:],)
        return replace(self, sequences=kept), replace(self, sequences=held)

    def cut(self, most: int) -> "Stream":
        """Return the first tokens of the stream."""
        kept: list[np.ndarray] = []
        left = most
        for rows in self.sequences:
            if left > 0:
                kept.append(rows[:left])
                left -= len(kept[-1])
        return replace(self, sequences=tuple(kept))


def most_tokens(evidence: Evidence) -> int:
    """Return the most tokens of a stream that are replayed."""
    return QUICK_MOST if evidence.quick else MOST


def streams(evidence: Evidence, whole: bool = False) -> tuple[Stream, ...]:
    """Return the recorded streams of the data folder, by name; the same ones for each call.

    Args:
        whole: with all of their tokens.

    Raises MissingEvidenceError: there is no data folder, or it holds no stream.
    """
    if evidence.data_dir is None:
        raise MissingEvidenceError("recordings lie in a data folder; give --data-dir DIR")
    read = _all(evidence.data_dir)
    found = read if whole else _cut_all(evidence.data_dir, most_tokens(evidence))
    if not found:
        raise MissingEvidenceError(f"no stream of {LEAST} tokens in {evidence.data_dir / FOLDER}")
    return found


@cache
def _cut_all(data_dir: Path, most: int) -> tuple[Stream, ...]:
    return tuple(one.cut(most) for one in _all(data_dir))


@cache
def _all(data_dir: Path) -> tuple[Stream, ...]:
    folders = sorted(file.parent for file in (data_dir / FOLDER).glob(f"*/{META}"))
    read = [_read(one) for one in folders if "-run2" not in one.name]
    return tuple(one for one in read if one.tokens >= LEAST)


def _read(folder: Path) -> Stream:
    header, arrays, meta = read_published(folder)
    ids, sequence = arrays["ids"].astype(np.int64), arrays["sequence"]
    ends = {loop["sequence"]: loop["from_token"] for loop in meta.get("loops") or ()}
    found = []
    for number in np.unique(sequence).tolist():
        rows = ids[sequence == number]
        found.append(rows[: ends.get(number, len(rows))])
    return Stream(header.model, header.workload, header.num_experts, tuple(filter(len, found)))


# ----------------------------------------------------------------------------- totals


class Totals(NamedTuple):
    """Uses of each expert ``[L, E]`` in the texts of one kind, of a model without recordings."""

    model: str
    workload: str
    counts: np.ndarray


def totals(evidence: Evidence) -> list[Totals]:
    """Return the published totals of models with two kinds of text or more; maybe none."""
    if evidence.data_dir is None:
        return []
    found = []
    for file in sorted((evidence.data_dir / FOLDER).glob("*__popularity/popularity.json")):
        entries = json.loads(file.read_text("utf-8")).get("entries", {})
        model = file.parent.name.split("__")[0]
        found += [
            Totals(model, name, np.array(entry["counts"], float))
            for name, entry in entries.items()
            if "counts" in entry
        ]
    return found

"""Traces that others published: ids by token and layer, with or without scores.

A source folder holds ``meta.json`` and ``trace.npz``, or one ``.npy`` an array: ``ids [T, L, K]``,
``seq [T]``, ``phase [T]`` (0 prefill, 1 decode), and where known ``scores [T, L, K]`` of the chosen
experts and ``candidates [T, L, C]``.  Ids of a row that the source does not have are all 255; such
a row takes the ids of the nearest later token of its sequence, else of the nearest earlier one, and
the header says how many there were.
"""

import json
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.traces.file import Header, IdsOrder, writing

#: The file that describes a published trace.
META = "meta.json"

#: What marks a row that the source does not have.
MISSING = 255

#: Tokens that are written at once.
BLOCK = 4096


class Published(NamedTuple):
    """A published trace in memory, in this format's terms.

    Attributes:
        header: as a trace's header says it, without the files' hashes.
        arrays: by the names of `substrate.traces.file`.
        meta: the source's own description.
    """

    header: Header
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


def import_trace(
    folder: Path, out: Path, model: str | None = None, prompt_tokens: int | None = None
) -> Header:
    """Bring a published trace into the format of `substrate.traces.file`.

    Args:
        model: a name of the catalogue; else the folder's name up to ``__``.
        prompt_tokens: take so many tokens of each sequence as its prompt and the others as decoded,
            whatever the source says.  A token's routing depends on what came before it only, so a
            text that was read in one pass is routed as if it had been decoded.

    Raises:
        InputError: the folder holds no rows of tokens, or something broken.
        UsageError: ``out`` exists.
    """
    header, arrays, _ = read_published(folder, model, prompt_tokens)
    with writing(out, header) as writer:
        for start in range(0, len(arrays["ids"]), BLOCK):
            rows = slice(start, start + BLOCK)
            writer.append(**{name: values[rows] for name, values in arrays.items()})
    return header


def model_of(folder: Path) -> str:
    """The model that a folder is named for: ``olmoe-1b-7b`` of ``olmoe-1b-7b__prose``."""
    return re.sub(r"-k\d+$", "", folder.resolve().name.split("__")[0])


def read_published(
    folder: Path, model: str | None = None, prompt_tokens: int | None = None
) -> Published:
    """A published trace in memory; see `import_trace`.

    Raises:
        InputError: the folder holds no rows of tokens, or something broken.
    """
    meta, arrays = _read(folder)
    ids, sequence, phase = arrays["ids"], arrays["seq"], arrays["phase"]
    experts = meta["num_experts"]
    position = _positions(sequence)
    notes = [str(meta["notes"])] if meta.get("notes") else []
    if prompt_tokens is not None:
        phase = position >= prompt_tokens
        notes.append(f"the first {prompt_tokens} tokens of each sequence are taken as its prompt")
    missing = (ids == MISSING).all(2) if meta.get("missing_value") == MISSING else None
    if missing is not None and missing.any():
        nearest = _nearest(missing, sequence)
        columns = np.arange(ids.shape[1])
        for name in {"ids", "scores", "candidates"} & arrays.keys():
            arrays[name] = arrays[name][nearest, columns]
        ids = arrays["ids"]
        notes.append(
            f"{missing.mean():.2%} of the rows (token, layer) are missing in the source and take "
            "the ids of a neighbouring token"
        )
    _check_ids(folder, ids, experts)
    source: dict[str, Any] = {
        k: meta[k] for k in ("source", "licence", "precision", "sampling") if k in meta
    }
    if "scores" in arrays:
        # Renormalised over the chosen experts, their scores sum to 1.
        whole = float(arrays["scores"].sum(2, dtype=np.float64).mean()) > 0.98
        source["top_scores"] = "of the chosen experts" if whole else "of all experts"
    if "native_top_k" in meta:
        notes.append(f"the model ran with top-{ids.shape[2]} instead of {meta['native_top_k']}")
    header = Header(
        model=model or model_of(folder),
        workload=str(meta.get("workload", "unknown")),
        num_moe_layers=ids.shape[1],
        num_experts=experts,
        top_k=ids.shape[2],
        ids_order=_order(meta),
        source={**source, "described_as": meta.get("model")},
        notes=notes,
    )
    found = {
        "ids": ids,
        "sequence": sequence,
        "position": position,
        "phase": phase,
        "chosen": np.full(len(ids), -1),
    }
    names = {"scores": "top_scores", "candidates": "candidates"}
    found |= {ours: arrays[theirs] for theirs, ours in names.items() if theirs in arrays}
    return Published(header, found, meta)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the folder's ``meta.json`` says, and its arrays, checked against each other."""
    file = folder / META
    if (folder / "popularity.json").exists() and not file.exists():
        raise InputError(
            f"{folder}: holds totals by expert only (popularity.json), no tokens to replay"
        )
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(meta, dict) or not isinstance(meta.get("num_experts"), int):
            raise InputError(f"{file}: does not say num_experts")
        arrays = _arrays(folder)
    except OSError as error:
        raise InputError(f"{error.filename or file}: cannot be read ({error.strerror})") from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{folder}: cannot be read ({error})") from error
    for name, ndim in (("ids", 3), ("seq", 1), ("phase", 1)):
        if name not in arrays:
            raise InputError(f"{folder}: has no array {name}; an import needs ids, seq and phase")
        if arrays[name].ndim != ndim or not np.issubdtype(arrays[name].dtype, np.integer):
            raise InputError(f"{folder}: {name} is {arrays[name].dtype} {arrays[name].shape}")
    tokens, layers, k = arrays["ids"].shape
    if not tokens or not k:
        raise InputError(f"{folder}: holds no token")
    for name, values in arrays.items():
        wanted = {"scores": (tokens, layers, k), "candidates": (tokens, layers)}.get(
            name, (tokens,)
        )
        if values.shape[: len(wanted)] != wanted:
            raise InputError(f"{folder}: {name} is {values.shape} beside ids {(tokens, layers, k)}")
    if (np.diff(arrays["seq"]) < 0).any():
        raise InputError(f"{folder}: seq decreases; sequences must follow each other")
    return meta, arrays


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    names = ("ids", "seq", "phase", "scores", "candidates")
    packed = folder / "trace.npz"
    if packed.exists():
        with np.load(packed, allow_pickle=False) as found:
            return {name: found[name] for name in names if name in found}
    files = {name: folder / f"{name}.npy" for name in names}
    return {n: np.load(f, allow_pickle=False) for n, f in files.items() if f.exists()}


def _order(meta: dict[str, Any]) -> IdsOrder:
    text = str(meta.get("ids_order", ""))
    if text.startswith("by score"):
        return "score"
    return "rank buckets" if text.startswith("by rank bucket") else "id"


def _check_ids(folder: Path, ids: np.ndarray, experts: int) -> None:
    if ids.max() >= experts:
        raise InputError(f"{folder}: names expert {ids.max()} of {experts}")
    if (np.diff(np.sort(ids, axis=2), axis=2) == 0).any():
        raise InputError(f"{folder}: a token has the same expert twice in a layer")


def _positions(sequence: np.ndarray) -> np.ndarray:
    """Each token's place in its sequence."""
    starts = np.flatnonzero(np.diff(sequence, prepend=sequence[0] - 1))
    lengths = np.diff(starts, append=len(sequence))
    return np.arange(len(sequence)) - np.repeat(starts, lengths)


def _nearest(missing_TL: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    """For each token and layer the token whose row stands in for it ``[T, L]``: itself if known."""
    tokens, layers = missing_TL.shape
    known = np.repeat(np.arange(tokens)[:, None], layers, axis=1)
    for number in np.unique(sequence):
        rows = np.flatnonzero(sequence == number)
        for layer in np.flatnonzero(missing_TL[rows].any(0)):
            present = rows[~missing_TL[rows, layer]]
            if not len(present):
                raise UsageError(f"sequence {number} has no row at layer {layer}")
            later = np.minimum(np.searchsorted(present, rows), len(present) - 1)
            known[rows, layer] = present[later]
    return known

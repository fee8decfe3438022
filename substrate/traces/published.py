"""Import of routing traces that others published: expert ids by token and layer, maybe scores.

A source folder holds ``meta.json`` and ``trace.npz``, or one ``.npy`` for each array: ``ids [T, L,
K]``, ``seq [T]``, ``phase [T]`` (0 prefill, 1 decode), and if known ``scores [T, L, K]`` of the
chosen experts and ``candidates [T, L, C]``.  Ids of a row that the source lacks are all 255; such a
row gets the ids of the nearest later token of its sequence, else of the nearest earlier one, and a
note in the header has the share of such rows.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.files import brief, read_array, read_arrays, read_mapping, whole
from moebench.substrate.models.catalogue import model_shape, shape_names
from moebench.substrate.traces.checks import MOST, check_experts, check_range, check_scores
from moebench.substrate.traces.file import MOST_EXPERTS, Header, IdsOrder, TraceFile
from moebench.substrate.traces.writer import writing

#: The file that describes a published trace.
META = "meta.json"

#: Expert id that marks a row that the source lacks.
MISSING = 255

#: Number of tokens that are written at once.
BLOCK = 4096


class Published(NamedTuple):
    """A published trace in memory, converted to the format of `substrate.traces.file`.

    Attributes:
        header: the trace's header without file hashes.
        arrays: by the names of `substrate.traces.file`.
        meta: the contents of the source's ``meta.json``.
    """

    header: Header
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


def import_trace(
    folder: Path, out: Path, model: str | None = None, prompt_tokens: int | None = None
) -> Header:
    """Convert a published trace to the format of `substrate.traces.file`, and write it to ``out``.

    Args:
        model: a catalogue name or the path of a shape; None: the folder's name up to ``__``.
        prompt_tokens: length of each sequence's prompt, in place of the source's phases; later
            tokens count as decoded.  A token's routing depends only on earlier tokens, so a text
            that was read in one pass is routed as if it had been decoded.

    Raises:
        InputError: the folder holds no rows of tokens, or broken files.
        UsageError: ``out`` exists, or the model has other layers or experts.
    """
    if out.exists():
        raise UsageError(f"{out}: exists; give another --out, or remove it first")
    header, arrays, _ = read_published(folder, model, prompt_tokens)
    _check_model(folder, model, header)
    notes = [*header.notes, *what_it_is_for(TraceFile(folder, header, arrays))]
    header = header.model_copy(update={"notes": notes})
    with writing(out, header) as writer:
        for start in range(0, len(arrays["ids"]), BLOCK):
            rows = slice(start, start + BLOCK)
            writer.append(**{name: values[rows] for name, values in arrays.items()})
    return header


def model_of(folder: Path) -> str:
    """Return the model name in a folder's name: ``olmoe-1b-7b`` for ``olmoe-1b-7b__prose``."""
    return re.sub(r"-k\d+$", "", folder.resolve().name.split("__")[0])


def read_published(
    folder: Path, model: str | None = None, prompt_tokens: int | None = None
) -> Published:
    """Read a published trace into memory; arguments are as in `import_trace`.

    Raises InputError: the folder holds no rows of tokens, or broken files.
    """
    meta, arrays = _read(folder)
    ids, sequence, phase = arrays["ids"], arrays["seq"], arrays["phase"]
    experts = meta["num_experts"]
    position = _positions(sequence)
    notes = [str(meta["notes"])] if meta.get("notes") else []
    if prompt_tokens is not None:
        longest = int(position.max()) + 1
        if prompt_tokens >= longest:
            raise UsageError(
                f"--prompt-tokens {prompt_tokens}: the longest sequence of {folder} has {longest} "
                "tokens, nothing would be decoded; "
                + (f"allowed: 1 to {longest - 1}" if longest > 1 else "leave it out")
            )
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
    check_experts(str(folder), "ids", ids, experts)
    if "candidates" in arrays:
        _check_candidates(folder, arrays["candidates"], ids, experts)
    source: dict[str, Any] = {
        k: meta[k] for k in ("source", "licence", "precision", "sampling") if k in meta
    }
    if "scores" in arrays:
        # Scores that are renormalised over the chosen experts sum to 1.
        renormalised = float(arrays["scores"].sum(2, dtype=np.float64).mean()) > 0.98
        source["top_scores"] = "of the chosen experts" if renormalised else "of all experts"
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
        "ids": ids, "sequence": sequence, "position": position, "phase": phase,
        "chosen": np.full(len(ids), -1),
    }  # fmt: skip
    names = {"scores": "top_scores", "candidates": "candidates"}
    found |= {ours: arrays[theirs] for theirs, ours in names.items() if theirs in arrays}
    return Published(header, found, meta)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the folder's ``meta.json`` and its arrays, and check them against each other."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give one that holds {META} and its arrays")
    file = folder / META
    if (folder / "popularity.json").exists() and not file.exists():
        raise InputError(
            f"{folder}: holds totals by expert only (popularity.json), no tokens to replay"
        )
    meta = read_mapping(file)
    if "num_experts" not in meta:
        raise InputError(f"{file}: does not say num_experts")
    experts = whole(meta["num_experts"], f"{file}: num_experts", 1, MOST_EXPERTS)
    if meta.get("missing_value") not in (None, MISSING):
        _refuse(file, "missing_value", meta["missing_value"], f"null or {MISSING}")
    arrays = _arrays(folder)
    _check_shapes(folder, arrays)
    _check_values(folder, arrays)
    if (k := arrays["ids"].shape[2]) > experts:
        raise InputError(f"{folder}: ids chooses {k} of num_experts {experts}")
    _loops(file, meta, arrays["seq"])
    return meta, arrays


def _check_shapes(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Check that all required arrays exist, with equal numbers of tokens, layers and top-k."""
    for name, ndim in (("ids", 3), ("seq", 1), ("phase", 1)):
        if name not in arrays:
            raise InputError(f"{folder}: has no array {name}; an import needs ids, seq and phase")
        if arrays[name].ndim != ndim or not _is(arrays[name], np.integer):
            raise InputError(
                f"{folder}: {name} is {arrays[name].dtype} {arrays[name].shape}; allowed: whole "
                f"numbers in {ndim} dimension(s)"
            )
    tokens, layers, k = arrays["ids"].shape
    if not tokens or not k or not layers:
        raise InputError(f"{folder}: holds no token: ids is {arrays['ids'].shape}")
    for name, values in arrays.items():
        wanted: tuple[int, ...] = {
            "ids": (tokens, layers, k),
            "scores": (tokens, layers, k),
            "candidates": (tokens, layers, *values.shape[2:3]),
        }.get(name, (tokens,))
        if values.shape != wanted or (name == "candidates" and values.ndim != 3):
            raise InputError(f"{folder}: {name} is {values.shape} beside ids {(tokens, layers, k)}")


def _check_values(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Check the arrays' types and ranges, and the order of sequences and phases."""
    check_range(str(folder), "seq", arrays["seq"], 0, MOST)
    check_range(str(folder), "phase", arrays["phase"], 0, 1)
    if "scores" in arrays:
        if not _is(arrays["scores"], np.floating):
            raise InputError(f"{folder}: scores is {arrays['scores'].dtype}; allowed: float")
        check_scores(str(folder), "scores", arrays["scores"], negative=False)
    if "candidates" in arrays and not _is(arrays["candidates"], np.integer):
        raise InputError(f"{folder}: candidates is {arrays['candidates'].dtype}; allowed: integers")
    if (arrays["seq"][1:] < arrays["seq"][:-1]).any():
        at = int((arrays["seq"][1:] < arrays["seq"][:-1]).argmax()) + 1
        raise InputError(
            f"{folder}: seq decreases to {arrays['seq'][at]} at token {at}; sequences must follow "
            "each other"
        )
    back = (arrays["phase"][1:] < arrays["phase"][:-1]) & (arrays["seq"][1:] == arrays["seq"][:-1])
    if back.any():
        raise InputError(
            f"{folder}: phase goes from 1, decode, back to 0, prefill, at token "
            f"{int(back.argmax()) + 1} of one sequence"
        )


def _loops(file: Path, meta: dict[str, Any], seq: np.ndarray) -> None:
    """Check the ``loops`` in ``meta.json``: the tokens at which sequences begin to repeat."""
    loops = meta.get("loops") or []
    if not isinstance(loops, list) or not all(isinstance(loop, dict) for loop in loops):
        _refuse(file, "loops", loops, "a list of {sequence, from_token, ...}")
    for loop in loops:
        for key, most in (("sequence", len(np.unique(seq)) - 1), ("from_token", len(seq))):
            whole(loop.get(key), f"{file}: loops: {key}", 0, most)


def _refuse(file: Path, field: str, value: object, allowed: str) -> NoReturn:
    raise InputError(f"{file}: {field} is {brief(value)}; allowed: {allowed}")


def _is(values: np.ndarray, kind: Any) -> bool:
    return bool(np.issubdtype(values.dtype, kind))


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    names = ("ids", "seq", "phase", "scores", "candidates")
    packed = folder / "trace.npz"
    if packed.exists():
        return read_arrays(packed, names)
    files = {name: folder / f"{name}.npy" for name in names}
    return {name: read_array(file) for name, file in files.items() if file.exists()}


def _order(meta: dict[str, Any]) -> IdsOrder:
    text = str(meta.get("ids_order", ""))
    if text.startswith("by score"):
        return "score"
    return "rank buckets" if text.startswith("by rank bucket") else "id"


def _check_candidates(folder: Path, candidates: np.ndarray, ids: np.ndarray, experts: int) -> None:
    """Check that a token's candidates (best-ranked experts) include all its chosen experts."""
    check_experts(str(folder), "candidates", candidates, experts)
    missing = ~(ids[..., :, None] == candidates[..., None, :]).any(3)
    if missing.any():
        token, layer, column = (int(i) for i in np.argwhere(missing)[0])
        raise InputError(
            f"{folder}: candidates lacks the chosen expert {ids[token, layer, column]} at token "
            f"{token}, layer {layer}; allowed: the best-ranked experts, the chosen ones among them"
        )


def _check_model(folder: Path, model: str | None, header: Header) -> None:
    """Check a trace's layers and experts against the model's shape; top-k may be smaller."""
    if model is None and header.model not in shape_names():
        return
    shape = model_shape(header.model)
    has, wanted = header.num_moe_layers, len(shape.moe_layers)
    if (has, header.num_experts) != (wanted, shape.num_experts):
        raise UsageError(
            f"{folder}: {has} MoE layers of {header.num_experts} experts; {header.model} has "
            f"{wanted} of {shape.num_experts}; give the --model that was recorded: a name, or the "
            "path of its config.json"
        )


def what_it_is_for(trace: TraceFile) -> list[str]:
    """Return notes on the use of a trace without decoded tokens, or with only one sequence."""
    found = []
    decoded = sum(map(len, trace.sequences)) - sum(trace.prompts)
    if not decoded:
        found.append(
            "no token is decoded: a replay gives TTFT and no TPOT; import it again with "
            "--prompt-tokens N, and all tokens but the first N are taken as decoded"
        )
    if len(trace.sequences) == 1:
        found.append(
            "one sequence: systems that learn have none left to learn from; moebench run --routing "
            "real cuts recordings in a data folder into several texts"
        )
    return found


def _positions(sequence: np.ndarray) -> np.ndarray:
    """Return each token's position in its sequence, from 0."""
    starts = np.concatenate([[0], np.flatnonzero(sequence[1:] != sequence[:-1]) + 1])
    lengths = np.diff(starts, append=len(sequence))
    return np.asarray(np.arange(len(sequence)) - np.repeat(starts, lengths))


def _nearest(missing_TL: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    """Return the token whose row fills each token and layer ``[T, L]``: itself if not missing."""
    tokens, layers = missing_TL.shape
    known = np.repeat(np.arange(tokens)[:, None], layers, axis=1)
    for number in np.unique(sequence):
        rows = np.flatnonzero(sequence == number)
        for layer in np.flatnonzero(missing_TL[rows].any(0)):
            present = rows[~missing_TL[rows, layer]]
            if not len(present):
                raise InputError(f"sequence {number} has no row at layer {layer}: ids is missing")
            later = np.minimum(np.searchsorted(present, rows), len(present) - 1)
            known[rows, layer] = present[later]
    return known

"""Files of scale models: written atomically, entered into a manifest, imported.

A scale model is a folder of four files.  The folder that holds scale models also holds their
``manifest.json``; see `substrate.models.catalogue`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from moebench.harness.scale.text import EXERCISE_MIX, HELD_OUT_TEXT, TRAINING_SETS
from moebench.substrate.errors import CheckpointError, InputError
from moebench.substrate.models.catalogue import (
    SCALE_FILES,
    check_topology,
    file_hashes,
    manifest_file,
    model_shape,
    read_manifest,
)
from moebench.substrate.models.config import read_shape
from moebench.substrate.models.naming import common_tensors, expert_tensors
from moebench.substrate.models.weights import Checkpoint

#: A scale model's four files together.
MAX_BYTES = 13_000_000


# ----------------------------------------------------------------------------- writing


def save_in_place(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    """Write safetensors to a partial file and rename it: a killed write leaves the old file."""
    partial = file.with_suffix(".partial")
    try:
        save_file(tensors, partial, metadata=metadata)
        partial.chmod(0o644)  # the library keeps files to their owner
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def write_in_place(file: Path, text: str) -> None:
    """As `save_in_place`, for a text."""
    partial = file.with_suffix(".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write into an error of one line.

    Raises:
        InputError: a full disk, a folder without permission, ...
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder}: cannot be written ({error}); what was finished there is intact: free some "
            "space and give the same command again"
        ) from error


# ----------------------------------------------------------------------------- manifest


def write_entry(path: Path, measured: dict[str, Any] | None) -> dict[str, Any]:
    """Write a scale model's entry into the manifest beside its folder.

    Args:
        path: the scale model's folder; its name is the model's.
        measured: quality and routing statistics, if they were measured.

    Returns:
        the entry: hashes and sizes of the files, parameters, training and its data, measurements.
    """
    training = read_training(path)
    data = {"sets": TRAINING_SETS, "exercises": EXERCISE_MIX, "held_out": HELD_OUT_TEXT}
    entry: dict[str, Any] = {
        "files": file_hashes(path),
        "bytes": sum((path / name).stat().st_size for name in SCALE_FILES),
        "parameters": read_shape(path / "config.json").total_params,
        "training": training,
        "data": data if training.get("recipe") else None,
        "measured": measured,
    }
    everything = read_manifest(path.parent) | {path.name: entry}
    text = json.dumps(everything, indent=1, sort_keys=True) + "\n"
    write_in_place(manifest_file(path.parent), text)
    return entry


# ----------------------------------------------------------------------------- import


def import_model(source: Path, name: str, out: Path) -> dict[str, Any]:
    """Import a checkpoint in its family's Hugging Face format as the scale model of ``name``.

    Weights become fp16; tensors that the family does not have are left out.

    Returns:
        its manifest entry.

    Raises:
        UnknownNameError: no such full-size model.
        CheckpointError: the checkpoint is broken, has another topology than the full-size model,
            or its tokenizer gives tokens that it does not know.
        InputError: it is larger than ``MAX_BYTES``, or ``out`` cannot be written.
    """
    full = model_shape(name)
    checkpoint = Checkpoint(source)
    shape = checkpoint.shape
    check_topology(full, shape, source)
    tokenizer = read_tokenizer(source)
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if highest >= shape.vocab_size:
        raise CheckpointError(
            f"{source}: tokenizer.json holds token {highest}, the model knows {shape.vocab_size}; "
            "the two do not belong together"
        )
    fp16_bytes = 2 * shape.total_params
    if fp16_bytes > MAX_BYTES:
        raise InputError(
            f"{source}: {fp16_bytes / 1e6:.1f} MB in fp16; a scale model has at most "
            f"{MAX_BYTES / 1e6:.0f} MB: choose smaller widths"
        )
    tensors = stored_tensors(checkpoint)
    unusable = [n for n, tensor in tensors.items() if not tensor.isfinite().all()]
    if unusable:
        raise CheckpointError(f"{source}: tensor {unusable[0]} is not finite in fp16")
    training = read_training(source)
    checkpoint.close()
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_in_place(out / "config.json", (source / "config.json").read_text())
        write_in_place(out / "tokenizer.json", (source / "tokenizer.json").read_text())
        write_in_place(out / "training.json", json.dumps(training, indent=2) + "\n")
        save_in_place(tensors, out / "model.safetensors", {"format": "pt"})
        return write_entry(out, None)


def stored_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every tensor under its stored name, fp16."""
    shape = checkpoint.shape
    common = checkpoint.common(torch.float16)
    tensors = {spec.stored: common[ours] for ours, spec in common_tensors(shape).items()}
    for layer in shape.moe_layers:
        for expert in range(shape.num_experts):
            record = checkpoint.expert_record(layer, expert, torch.float16)
            at = 0
            for spec in expert_tensors(shape, layer, expert).values():
                size = spec.dims[0] * spec.dims[1]
                tensors[spec.stored] = record[at : at + size].view(spec.dims).clone()
                at += size
    return tensors


def read_tokenizer(path: Path) -> Tokenizer:
    """A scale model's tokenizer.

    Raises:
        CheckpointError: it is missing or broken.
    """
    file = path / "tokenizer.json"
    if not file.exists():
        raise CheckpointError(f"{file}: missing; a scale model needs its tokenizer")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: not a tokenizer that can be read ({error})") from error


def read_training(path: Path) -> dict[str, Any]:
    """How the model in a folder was trained, where that is known.

    Raises:
        InputError: its ``training.json`` is broken.
    """
    file = path / "training.json"
    if not file.exists():
        return {"recipe": None}
    try:
        training = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"{file}: not JSON ({error})") from error
    if not isinstance(training, dict):
        raise InputError(f"{file}: expected a JSON object")
    return training

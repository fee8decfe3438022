"""Files of scale models: atomic writes, manifest entries, and import of checkpoints.

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
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.config import read_shape
from moebench.substrate.models.naming import common_tensors, expert_tensors

#: Maximum total size of a scale model's four files, in bytes.
MAX_BYTES = 13_000_000


# ----------------------------------------------------------------------------- writing


def save_in_place(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    """Write tensors to a partial file and rename it, so that a killed write keeps the old file."""
    partial = file.with_suffix(".partial")
    try:
        save_file(tensors, partial, metadata=metadata)
        partial.chmod(0o644)  # safetensors creates files that only the owner can read
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def write_in_place(file: Path, text: str) -> None:
    """Write text to a partial file and rename it, so that a killed write keeps the old file."""
    partial = file.with_suffix(".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Convert errors of writing into ``folder`` to an `InputError` of one line.

    Raises InputError: the disk is full, the folder is not writable, ...
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
    """Write a scale model's entry into the manifest in its parent folder, and return the entry.

    Args:
        path: the scale model's folder, named as the model.
        measured: quality and routing statistics, if they were measured.

    Returns:
        hashes and sizes of the files, parameters, training and its data, measurements.
    """
    training = read_training(path)
    data = {"sets": TRAINING_SETS, "exercises": EXERCISE_MIX, "held_out": HELD_OUT_TEXT}
    entry: dict[str, Any] = {
        "files": file_hashes(path),
        "bytes": sum((path / name).stat().st_size for name in SCALE_FILES),
        "parameters": read_shape(path / "config.json").total_params, "training": training,
        "data": data if training.get("recipe") else None, "measured": measured,
    }  # fmt: skip
    everything = read_manifest(path.parent) | {path.name: entry}
    text = json.dumps(everything, indent=1, sort_keys=True) + "\n"
    write_in_place(manifest_file(path.parent), text)
    return entry


# ----------------------------------------------------------------------------- import


def import_model(source: Path, name: str, out: Path) -> dict[str, Any]:
    """Import a Hugging Face checkpoint as the scale model of ``name``; return its manifest entry.

    Weights become fp16; tensors that the model family does not have are left out.

    Raises:
        UnknownNameError: no full-size model has this name.
        CheckpointError: the checkpoint is broken, its topology differs from the full-size model's,
            or its tokenizer has token ids outside its vocabulary.
        InputError: the checkpoint exceeds ``MAX_BYTES``, or ``out`` cannot be written.
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
    """Return every tensor of a checkpoint in fp16, by its name in the checkpoint's files."""
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
    """Return the tokenizer of the scale model in a folder.

    Raises CheckpointError: ``tokenizer.json`` is missing or broken.
    """
    file = path / "tokenizer.json"
    if not file.exists():
        raise CheckpointError(f"{file}: missing; a scale model needs its tokenizer")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: not a tokenizer that can be read ({error})") from error


def read_training(path: Path) -> dict[str, Any]:
    """Return a model folder's ``training.json``, or ``{"recipe": None}`` if it has none.

    Raises InputError: ``training.json`` is broken.
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

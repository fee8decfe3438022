"""Catalogue of full-size models and of their scale models (small trained stand-ins), by name.

A folder of scale models holds ``NAME/`` for each, and ``manifest.json``: for each name the SHA-256
of its files, its size, its training and its measured statistics.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from moebench.substrate.errors import CheckpointError, InputError, UnknownNameError
from moebench.substrate.files import brief, read_yaml
from moebench.substrate.models.config import read_shape, shape_of
from moebench.substrate.models.fields import shape_of_fields
from moebench.substrate.models.shape import ModelShape

#: Environment variable of a folder whose ``models/`` and ``scale/`` replace those that ship.
FOLDER_VARIABLE = "MOEBENCH_CATALOGUE"

_FOLDER = Path(os.environ.get(FOLDER_VARIABLE) or Path(__file__).parents[1] / "catalogue")
MODELS = _FOLDER / "models"
SCALE = _FOLDER / "scale"

#: Files of a scale model's folder.
SCALE_FILES = ("config.json", "tokenizer.json", "model.safetensors", "training.json")

#: Keys of a manifest entry.
_ENTRY = {"files", "bytes", "parameters", "training", "data", "measured"}

#: Shape fields in which a scale model may differ from its original.
_FREE = {
    "hidden_size", "vocab_size", "num_heads", "num_kv_heads", "head_dim", "expert_width",
    "dense_width", "shared_width", "max_positions", "rope_theta", "rope_type", "rope_scaling",
    "rotary_dim", "rope_interleaved", "nope_layers", "nope_temperature", "window",
}  # fmt: skip


def model_names() -> list[str]:
    """Return the names of all full-size models in the catalogue."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


#: Part of error messages: how to name a model that the catalogue lacks.
ANOTHER = "any other: --model path/to/config.json, or a .yaml of its shape"


def is_file(model: str) -> bool:
    """Return whether a model name is the path of a configuration or shape file."""
    return model.endswith((".json", ".yaml", ".yml"))


def model_shape(name: str) -> ModelShape:
    """Return the shape of a model that is given by its catalogue name or by a file's path.

    Args:
        name: a catalogue name, or the path of a ``config.json``, of its keys as YAML, or of a
            YAML file with `ModelShape`'s own fields.

    Raises:
        UnknownNameError: no such model.
        CheckpointError: the file cannot be read, or holds no shape.
    """
    if name.endswith(".json"):
        return read_shape(Path(name))
    if is_file(name):
        found = read_yaml(Path(name), CheckpointError)
        if not isinstance(found, dict):
            raise CheckpointError(f"{name}: expected `key: value` lines, found {brief(found)}")
        fields = {str(key): value for key, value in found.items()}
        return (shape_of if "model_type" in fields else shape_of_fields)(fields, name)
    if name not in model_names():
        hint = f"see: moebench list models; {ANOTHER}"
        raise UnknownNameError("model", name, model_names(), hint)
    return read_shape(MODELS / f"{name}.json")


def scale_names() -> list[str]:
    """Return the names of the models whose scale model ships with moebench."""
    return sorted(path.parent.name for path in SCALE.glob("*/config.json"))


def ships() -> bool:
    """Return whether the scale models in use are those that ship with moebench."""
    return not os.environ.get(FOLDER_VARIABLE)


def scale_path(name: str) -> Path:
    """Return the folder of a model's scale checkpoint, which may not exist."""
    return SCALE / name


def verify_target(path: Path) -> str:
    """Return a scale model's argument to ``moebench models verify``: shipped name or folder."""
    return path.name if path.parent == SCALE else path.as_posix()


def check_topology(full: ModelShape, found: ModelShape, where: Path) -> None:
    """Check that a scale model differs from its original in widths, positions and vocabulary only.

    Raises CheckpointError: the shapes differ in another field.
    """
    wanted, has = ({**s.model_dump(), "shared": s.shared_width > 0} for s in (full, found))
    for field, value in wanted.items():
        if field not in _FREE and has[field] != value:
            raise CheckpointError(
                f"{where}: {field} is {_text(has[field])}, the full-size model has {_text(value)}; "
                "only widths, positions and vocabulary may differ"
            )


def _text(value: object) -> str:
    return str(getattr(value, "value", value))


# ----------------------------------------------------------------------------- manifest


def manifest_file(folder: Path) -> Path:
    """Return the path of the manifest of a folder of scale models."""
    return folder / "manifest.json"


def read_manifest(folder: Path = SCALE) -> dict[str, Any]:
    """Return the manifest entries of a folder of scale models by name, empty without a manifest.

    Raises InputError: the file is no manifest.
    """
    file = manifest_file(folder)
    if not file.exists():
        return {}
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        if all(entry.keys() == _ENTRY for entry in entries.values()):
            return dict(entries)
    except (OSError, ValueError, AttributeError):
        pass
    raise InputError(
        f"{file}: not a manifest; delete it and write it again with: moebench models verify NAME "
        "--write"
    )


def file_hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a scale model.

    Raises CheckpointError: a file is missing or cannot be read.
    """
    hashes = {}
    for name in SCALE_FILES:
        try:
            with (path / name).open("rb") as stream:
                hashes[name] = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"{path / name}: cannot be read ({error.strerror})") from error
    return hashes


def check_files(path: Path) -> dict[str, Any]:
    """Check the hashes of a scale model's files and return its manifest entry.

    Raises CheckpointError: the manifest has no entry for the model, or a file's hash differs.
    """
    entry = read_manifest(path.parent).get(path.name)
    if entry is None:
        raise CheckpointError(
            f"{manifest_file(path.parent)}: has no entry for {path.name}; "
            f"write it with: moebench models verify {verify_target(path)} --write"
        )
    for name, found in file_hashes(path).items():
        if entry["files"].get(name) != found:
            raise CheckpointError(
                f"{path / name}: its SHA-256 is {found[:16]}…, the manifest says "
                f"{str(entry['files'].get(name))[:16]}…; restore the file, or accept it with: "
                f"moebench models verify {verify_target(path)} --write"
            )
    return dict(entry)

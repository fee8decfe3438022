"""Full-size models, their scale models, and hardware profiles: data, found by name.

A folder of scale models holds ``NAME/`` for each, and ``manifest.json``: for each name the SHA-256
of its files, its size, how it was trained and what was measured of it.
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

#: The variable that names a folder with ``models/`` and ``scale/`` in place of those that ship.
FOLDER_VARIABLE = "MOEBENCH_CATALOGUE"

_FOLDER = Path(os.environ.get(FOLDER_VARIABLE) or Path(__file__).parents[1] / "catalogue")
MODELS = _FOLDER / "models"
SCALE = _FOLDER / "scale"

#: What a scale model's folder holds.
SCALE_FILES = ("config.json", "tokenizer.json", "model.safetensors", "training.json")

#: What the manifest says of each.
_ENTRY = {"files", "bytes", "parameters", "training", "data", "measured"}

#: What a scale model may choose freely; all else of its shape is its original's.
_FREE = {
    "hidden_size", "vocab_size", "num_heads", "num_kv_heads", "head_dim", "expert_width",
    "dense_width", "shared_width", "max_positions", "rope_theta", "rope_type", "rope_scaling",
    "rotary_dim", "rope_interleaved", "nope_layers", "nope_temperature", "window",
}  # fmt: skip


def model_names() -> list[str]:
    """Every full-size model whose shape is known."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


#: What to type for a model that the catalogue lacks.
ANOTHER = "any other: --model path/to/config.json, or a .yaml of its shape"


def is_file(model: str) -> bool:
    """Whether a model is named by the path of its configuration or shape."""
    return model.endswith((".json", ".yaml", ".yml"))


def model_shape(name: str) -> ModelShape:
    """The shape of a full-size model, by name, or of any by a path.

    Args:
        name: of the catalogue; or the path of a ``config.json``, or of the same as YAML, or of a
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
    """Models whose scale model ships with moebench."""
    return sorted(path.parent.name for path in SCALE.glob("*/config.json"))


def scale_path(name: str) -> Path:
    """Where a scale model's checkpoint lies (it may not exist)."""
    return SCALE / name


def verify_target(path: Path) -> str:
    """What ``moebench models verify`` calls it: its name if it ships, else its folder."""
    return path.name if path.parent == SCALE else path.as_posix()


def check_topology(full: ModelShape, found: ModelShape, where: Path) -> None:
    """A scale model differs from its original in widths, positions and vocabulary only.

    Raises:
        CheckpointError: it differs in something else.
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
    """The manifest of a folder of scale models."""
    return folder / "manifest.json"


def read_manifest(folder: Path = SCALE) -> dict[str, Any]:
    """The entries of a folder's manifest by model; empty where there is none.

    Raises:
        InputError: the file is no manifest.
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
    """SHA-256 of each of a scale model's files.

    Raises:
        CheckpointError: a file is missing or cannot be read.
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
    """A scale model's manifest entry, its files' hashes checked.

    Raises:
        CheckpointError: the manifest has no entry for it, or a file differs from it.
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

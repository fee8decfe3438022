"""Catalogue of full-size models and of their scale models (small trained stand-ins), by name.

Models with a forward pass have a ``config.json`` in ``models/``; of others, ``models-2026.yaml``
has the shape.  That file also has names and published parameter counts of all.

A folder of scale models holds ``NAME/`` for each, and ``manifest.json``: for each name the SHA-256
of its files, its size, its training and its measured statistics.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from moebench.substrate.errors import CheckpointError, InputError, UnknownNameError, UsageError
from moebench.substrate.files import brief, read_yaml
from moebench.substrate.models.bits import Quantised, bits_of, format_key, host_rate
from moebench.substrate.models.config import READERS, read_shape, shape_of
from moebench.substrate.models.fields import first_line, shape_of_fields
from moebench.substrate.models.gguf_shape import is_gguf, read_gguf, read_gguf_shape
from moebench.substrate.models.names import plain, spellings, without_owner
from moebench.substrate.models.shape import ModelShape

#: Environment variable of a folder whose ``models/`` and ``scale/`` replace those that ship.
FOLDER_VARIABLE = "MOEBENCH_CATALOGUE"

_FOLDER = Path(os.environ.get(FOLDER_VARIABLE) or Path(__file__).parents[1] / "catalogue")
MODELS = _FOLDER / "models"
SCALE = _FOLDER / "scale"
PUBLISHED = _FOLDER / "models-2026.yaml"

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


#: Largest difference between a name's stated size and the published total, as a share of it.
SIZE_DIFFERENCE = 0.1


class Counts(BaseModel):
    """Published parameters of a model: in total and for one token (10^9), and of one expert.

    Attributes:
        counts: vocabulary matrices that the active figure includes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    total_b: float
    active_b: float
    counts: Literal["neither", "head", "both"]
    expert: int


class PublishedModel(BaseModel):
    """Entry of ``models-2026.yaml``: names, published counts, source and perhaps a shape.

    Attributes:
        misfits: published counts that the shape misses by more than 2 %, with the reason.
        shape: `ModelShape`'s fields; None is a model with a ``config.json`` in the catalogue.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = ()
    published: Counts
    misfits: dict[Literal["total", "active"], str] = {}
    source: str
    note: str = ""
    shape: dict[str, Any] | None = None


def model_names() -> list[str]:
    """Return the names of the full-size models in the catalogue that have a forward pass."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


def shape_names() -> list[str]:
    """Return the names of all full-size models, also of those that are charged only."""
    others = (name for name, entry in published_models().items() if entry.shape is not None)
    return sorted({*model_names(), *others})


def is_computed(model: str) -> bool:
    """Return whether moebench has a forward pass of a model, given by name or by a file's path."""
    if is_file(model) and not is_gguf(model):
        return True
    return not is_gguf(model) and model_shape(model).family in READERS


@cache
def published_models() -> Mapping[str, PublishedModel]:
    """Return names, published counts and shapes of models by their name in the catalogue.

    It is empty where another catalogue has no such file.

    Raises InputError: the file has no such entries.
    """
    if not PUBLISHED.exists():
        return {}
    try:
        return TypeAdapter(dict[str, PublishedModel]).validate_python(read_yaml(PUBLISHED))
    except ValidationError as error:
        raise InputError(f"{PUBLISHED}: {first_line(error)}") from error


#: Part of error messages: how to name a model that the catalogue lacks.
ANOTHER = "any other: --model path/to/config.json, a .gguf file, or a .yaml of its shape"


def is_file(model: str) -> bool:
    """Return whether a model name is the path of a configuration, shape or GGUF file."""
    return model.endswith((".json", ".yaml", ".yml")) or is_gguf(model)


def find_name(name: str) -> str:
    """Return the catalogue's name of a model that is given by any published name.

    Case, owner, remarks in parentheses and endings such as ``671B`` or ``-Instruct`` are ignored,
    but a stated size must be the model's.

    Raises:
        UnknownNameError: no such model.
        UsageError: the name begins several models' names, or states another size.
    """
    if name in model_names():
        return name
    entries, known = published_models(), shape_names()
    table = {plain(name): name for name in known}
    for key, entry in entries.items():
        if key in known:
            table |= {text: key for each in entry.names for text in without_owner(each)}
    for found in spellings(name):
        key = table.get(found.name, "")
        if not key:
            continue
        total = entries[key].published.total_b if key in entries else None
        if found.size_b and total and abs(found.size_b / total - 1) > SIZE_DIFFERENCE:
            raise UsageError(
                f"model {name!r}: {key} has {total:g} B parameters, not {found.size_b:g} B; see: "
                "moebench list models"
            )
        return key
    begun = plain(name)
    several = sorted({key for text, key in table.items() if begun and text.startswith(begun)})
    if len(several) > 1:
        raise UsageError(
            f"unknown model {name!r}: several names begin so; nearest: {', '.join(several)}; "
            f"see: moebench list models; {ANOTHER}"
        )
    raise UnknownNameError("model", name, known, f"see: moebench list models; {ANOTHER}")


def find_shape(name: str) -> ModelShape:
    """Return the shape of a model that is given by any published name (`find_name`).

    Raises UsageError: the name is unknown or ambiguous.
    """
    return _shape_of_name(find_name(name))


def _shape_of_name(name: str) -> ModelShape:
    if name in model_names():
        return read_shape(MODELS / f"{name}.json")
    fields = published_models()[name].shape
    assert fields is not None
    return shape_of_fields(fields, f"{PUBLISHED}: {name}")


def model_shape(name: str) -> ModelShape:
    """Return the shape of a model that is given by its name or by a file's path.

    Args:
        name: a published name, or the path of a ``config.json``, of its keys as YAML, of a YAML
            file with `ModelShape`'s own fields, or of a GGUF file (or one part of a split one).

    Raises:
        UsageError: no such model, or several.
        CheckpointError: the file cannot be read, or holds no shape.
    """
    if name.endswith(".json"):
        return read_shape(Path(name))
    if is_gguf(name):
        return read_gguf_shape(Path(name))
    if is_file(name):
        found = read_yaml(Path(name), CheckpointError)
        if not isinstance(found, dict):
            raise CheckpointError(f"{name}: expected `key: value` lines, found {brief(found)}")
        fields = {str(key): value for key, value in found.items()}
        return (shape_of if "model_type" in fields else shape_of_fields)(fields, name)
    return find_shape(name)


#: Name of the bits that a GGUF file's own tensors have.
OWN_BITS = "file"


def quantised(quant: str | None, model: str) -> Quantised | None:
    """Return the bits of a model's weights in a GGUF format; None without a format.

    Args:
        quant: a format's name (`bits.bits_of`), or ``file`` for the bits of a GGUF file itself.
        model: a name or a file's path; with ``file`` a GGUF file's.

    Raises:
        UnknownNameError: no such format.
        CheckpointError: the GGUF file is missing, damaged, or no Mixture-of-Experts model.
    """
    if quant is None:
        return None
    if quant == OWN_BITS:
        found = read_gguf(Path(model))
        return Quantised(found.stored.bits, host_rate(found.format))
    return Quantised(bits_of(quant), host_rate(format_key(quant)))


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
    wanted, has = ({**dict(s), "shared": s.shared_width > 0} for s in (full, found))
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

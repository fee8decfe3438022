"""Imported checkpoints: a folder with non-expert weights and one record for each expert.

``moebench models import`` writes the folder; runs on it read only the non-expert weights at their
start.  The folder holds

- ``config.json`` and the tokenizer's files, copied;
- ``common-*.safetensors``: non-expert weights by moebench's tensor names, in their stored dtype;
- ``experts.bin``: an `ExpertStore`;
- ``import.json``: SHA-256 of each file and of each record, and a 64-bit checksum of each record.
  It is written last.

What a run reads is compared with these when it is first read, so that a changed byte is refused.

During the import, ``import.partial`` holds these hashes line by line, so that a killed import can
be resumed.  The parts that it names are hashed again first.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self, TextIO, cast

import torch
from pydantic import BaseModel, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from moebench.substrate.errors import CheckpointError
from moebench.substrate.files import first_wrong, read_mapping, require_file, write_text
from moebench.substrate.models.checkpoint import JOURNAL, MANIFEST, Checkpoint
from moebench.substrate.models.config import read_shape
from moebench.substrate.models.expert_store import (
    ExpertStore,
    checksum,
    require_room,
    stored_record,
)
from moebench.substrate.models.formats import DTYPES, StoredAs, unpack
from moebench.substrate.models.resident import ResidentExperts, stacks
from moebench.substrate.models.shape import ModelShape

RECORDS = "experts.bin"

#: Other files of a checkpoint that a run uses, if they exist.
COPIED = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "training.json",
)  # fmt: skip

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """Content of ``import.json``.

    Attributes:
        source: identity of the checkpoint and precision that were imported.
        dtype: type of the experts' weights.
        content: hash of all weights.
        files: SHA-256 of each file but the experts', by name.
        records: SHA-256 of each expert record, in the file's order.
        checksums: `checksum` of each record; empty in imports of earlier versions.
    """

    source: str
    dtype: Literal["bf16", "fp16", "fp32"]
    content: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    files: dict[Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")], Digest]
    records: list[Digest]
    checksums: list[Annotated[str, Field(pattern="^[0-9a-f]{16}$")]] = []

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if "config.json" not in self.files:
            raise ValueError("config.json is not among its files")
        if self.checksums and len(self.checksums) != len(self.records):
            raise ValueError(f"{len(self.records)} records and {len(self.checksums)} checksums")
        if self.content != _content(self.dtype, self.files, self.records):
            raise ValueError("content is not the hash of its files and records")
        return self


def _content(dtype: str, files: Mapping[str, str], records: Sequence[str]) -> str:
    """Return the hash of all weights from the hashes of files and records."""
    text = "".join([dtype, *files.values(), *records])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


#: Called with the numbers of finished parts and of all parts.
Report = Callable[[int, int], None]


class Imported(Checkpoint):
    """A folder that `import_checkpoint` wrote, used as a `Checkpoint`.

    Raises CheckpointError: a file is missing or has another size.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = _manifest(path)
        for name in (RECORDS, *self.manifest.files):
            if not (path / name).is_file():
                wrong = "no regular file" if (path / name).exists() else "missing"
                raise CheckpointError(f"{path / name}: {wrong}; {_again(path)}")
        for name in self.manifest.files:
            if not name.endswith(".safetensors"):
                self._check_file(name)
        self.shape = read_shape(path / "config.json")
        dtype = DTYPES[self.manifest.dtype]
        checksums = self.manifest.checksums or self.manifest.records
        self.store = store = ExpertStore(path / RECORDS, self.shape, dtype, checksums=checksums)
        if len(checksums) != len(list(_experts(self.shape))):
            raise CheckpointError(
                f"{path / MANIFEST}: has {len(checksums)} records, config.json demands "
                f"{len(list(_experts(self.shape)))}; {_again(path)}"
            )
        if store.path.stat().st_size != store.total_bytes:
            raise CheckpointError(f"{store.path}: truncated; {_again(path)}")
        self._checked: set[str] = set()

    def _check_file(self, name: str) -> None:
        """Raise CheckpointError if a file differs from the one that the import wrote."""
        if _file_hash(self.path / name) != self.manifest.files[name]:
            raise CheckpointError(f"{self.path / name}: its SHA-256 differs; {_again(self.path)}")

    @property
    def files(self) -> list[Path]:
        """Paths of all files with weights."""
        return [self.path / name for name in (*self.manifest.files, RECORDS)]

    def common(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return all non-expert weights by moebench's tensor names."""
        found: dict[str, Tensor] = {}
        for name in self.manifest.files:
            if not name.endswith(".safetensors"):
                continue
            if name not in self._checked:
                self._check_file(name)
                self._checked.add(name)
            try:
                tensors = load_file(self.path / name)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{self.path / name}: {error}; {_again(self.path)}"
                ) from error
            found |= {ours: tensor.to(dtype) for ours, tensor in tensors.items()}
        return found

    def expert_record(self, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        """Return a routed expert's weights as a flat record ``[3·I·H]``."""
        assert self.store is not None
        with self.store.path.open("rb") as file:
            record = _record(file, self.store, layer, expert)
        self.store.check(layer, expert, record)
        return record.to(dtype)

    def content_hash(self) -> str:
        """Return the hash of the imported weights from the manifest, without reading them."""
        return self.manifest.content

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def verify(self, report: Report = lambda done, of: None) -> None:
        """Hash every file and every record again and compare with the manifest.

        Raises CheckpointError: a hash differs.
        """
        assert self.store is not None
        store, hashes = self.store, self.manifest.records
        for name in self.manifest.files:
            self._check_file(name)
        with store.path.open("rb") as file:
            for n, (layer, expert) in enumerate(_experts(self.shape)):
                if _hash(_record(file, store, layer, expert)) != hashes[n]:
                    raise CheckpointError(
                        f"{store.path}: the SHA-256 of layer {layer} expert {expert} differs; "
                        f"{_again(self.path)}"
                    )
                report(n + 1, len(hashes))


class MappedExperts:
    """Experts of a memory-mapped store; the operating system's page cache holds those in use."""

    def __init__(self, store: ExpertStore) -> None:
        self._shape, self._store, self._checked = store.shape, store, store.checked
        count = len(store.shape.moe_layers) * store.shape.num_experts
        dtype, values = store.format.dtype, store.format.values
        stride = store.stride_bytes // dtype.itemsize
        mapped = torch.from_file(str(store.path), False, count * stride, dtype=dtype)
        self._rows = mapped.view(count, stride)[:, :values]
        self._first = {
            layer: row * store.shape.num_experts for layer, row in store.shape.moe_rows.items()
        }

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Tensor, ...]:
        """Return gate over up ``[2·I, H]``, down ``[H, I]`` and their biases, if any, as views."""
        place = self._first[layer] + expert
        row = self._rows[place]
        if place not in self._checked:
            self._store.check(layer, expert, row)
        return unpack(self._shape, row)

    def stacked(self, layer: int, experts: Sequence[int]) -> tuple[Tensor, ...] | None:
        """Return copies of several small experts' matrices, or None for large ones."""
        if not stacks(self._shape, self._rows, len(experts)):
            return None
        first = self._first[layer]
        for expert in experts:
            if first + expert not in self._checked:
                self._store.check(layer, expert, self._rows[first + expert])
        rows = torch.tensor(experts) + first
        return unpack(self._shape, self._rows.index_select(0, rows))

    def all_of(self, layer: int) -> None:
        """Return None: stacking would copy experts that are in the page cache."""


def open_import(path: Path) -> "Imported":
    """Open an imported checkpoint.

    Raises CheckpointError: its import has not finished, or it is broken.
    """
    if not (path / MANIFEST).exists():
        raise CheckpointError(f"{path}: an import has not finished; {_again(path)}")
    return Imported(path)


def every_expert(
    checkpoint: Checkpoint, dtype: torch.dtype, stored_as: StoredAs | None = None
) -> ResidentExperts | MappedExperts:
    """Return access to all experts: mapped from an import of that dtype, or loaded into memory.

    Args:
        stored_as: round the weights to this type; None leaves them unrounded.
    """
    store = checkpoint.store
    if stored_as is None and store is not None and store.stored_as == dtype:
        return MappedExperts(store)
    return ResidentExperts(checkpoint, dtype, stored_as)


# ----------------------------------------------------------------------------- writing


def import_checkpoint(
    source: Path, out: Path, precision: str, report: Report = lambda done, of: None
) -> Imported:
    """Split a checkpoint into non-expert weights and expert records.

    Experts are read one by one, and shards are closed after each: the import needs memory for less
    than two experts and the largest group of non-expert weights.

    Raises CheckpointError: the source is broken, or ``out`` has no room or holds another import.
    """
    if (source / MANIFEST).exists():
        raise CheckpointError(f"{source}: was imported; give it as --weights")
    checkpoint = Checkpoint(source)
    identity = _identity(checkpoint, precision)
    out.mkdir(parents=True, exist_ok=True)
    if (out / MANIFEST).exists():
        if _manifest(out).source != identity:
            raise CheckpointError(f"{out}: holds another import; give another --out")
        _remove_unfinished(out)
        return Imported(out)
    store = ExpertStore(out / RECORDS, checkpoint.shape, DTYPES[precision])
    partial = store.path.with_suffix(".partial")
    there = partial.stat().st_blocks * 512 if partial.exists() else 0
    require_room(store.path, store.total_bytes - there, "--out")
    with (out / JOURNAL).open("a+", encoding="utf-8") as journal:
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(f"{out}: another import is writing here") from error
        known = _known(journal, identity)
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            try:
                files = _write_common(checkpoint, out, journal, known)
                records, checksums = _write_records(checkpoint, store, file, journal, known, report)
                file.truncate(store.total_bytes)
                os.fsync(file.fileno())
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"{out}: cannot be written ({error}); what was finished there is intact: free "
                    "some space and give the same command again"
                ) from error
        partial.replace(store.path)
        manifest = Manifest(
            source=identity, dtype=cast(Any, precision),
            content=_content(precision, files, records), files=files, records=records,
            checksums=checksums,
        )  # fmt: skip
        write_text(out / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
        _remove_unfinished(out)
    return Imported(out)


def _write_common(
    checkpoint: Checkpoint, out: Path, journal: TextIO, known: dict[str, str]
) -> dict[str, str]:
    """Write non-expert weights, a file a layer, copy other files, and return the files' hashes."""
    groups: dict[str, list[str]] = {}
    for name in checkpoint.common_names:
        parts = name.split(".")
        key = f"{int(parts[1]):05}" if parts[0] == "layers" else parts[0]
        groups.setdefault(f"common-{key}.safetensors", []).append(name)
    hashes = {}
    for name in COPIED:
        if (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, out / name)
            hashes[name] = _file_hash(out / name)
    for name, tensors in groups.items():
        file = out / name
        if not file.exists() or _file_hash(file) != known.get(name):
            partial = file.with_suffix(".partial")
            save_file(checkpoint.common_part(tensors), partial)
            checkpoint.close()
            known[name] = _file_hash(partial)
            partial.replace(file)
            _note(journal, name, known[name])
        hashes[name] = known[name]
    return hashes


def _write_records(
    checkpoint: Checkpoint, store: ExpertStore, file: BinaryIO, journal: TextIO,
    known: dict[str, str], report: Report,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """Write all expert records that an earlier attempt did not.

    Returns:
        the SHA-256 and the checksum of each record.
    """
    experts, hashes, checksums = list(_experts(store.shape)), list[str](), list[str]()
    for n, (layer, expert) in enumerate(experts):
        key = f"{layer}/{expert}"
        found, record = known.get(key), None
        if found is not None:
            record = _record(file, store, layer, expert)
        if found is None or record is None or _hash(record) != found:
            record = stored_record(checkpoint, layer, expert, store.format)
            checkpoint.close()
            found = _hash(record)
            file.seek(store.offset(layer, expert))
            file.write(_bytes(record))
            file.flush()
            _note(journal, key, found)
        hashes.append(found)
        checksums.append(checksum(record))
        report(n + 1, len(experts))
    return hashes, checksums


# ----------------------------------------------------------------------------- helpers


def _experts(shape: ModelShape) -> Iterator[tuple[int, int]]:
    return ((layer, e) for layer in shape.moe_layers for e in range(shape.num_experts))


def _record(file: BinaryIO, store: ExpertStore, layer: int, expert: int) -> Tensor:
    """Read an expert's record, padded with zeros if the file ends before the record."""
    file.seek(store.offset(layer, expert))
    content = bytearray(store.record_bytes)
    file.readinto(content)  # type: ignore[attr-defined]
    return torch.frombuffer(content, dtype=store.format.dtype)


def _bytes(record: Tensor) -> memoryview:
    return memoryview(cast(Any, record.contiguous().view(torch.uint8).numpy()))


def _hash(record: Tensor) -> str:
    return hashlib.sha256(_bytes(record)).hexdigest()


def _file_hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _identity(checkpoint: Checkpoint, precision: str) -> str:
    """Return a hash of a checkpoint's configuration and its files' sizes and times."""
    stats = [(file.name, file.stat()) for file in checkpoint.files]
    listed = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    config = (checkpoint.path / "config.json").read_text()
    return hashlib.sha256(json.dumps([precision, config, listed]).encode()).hexdigest()


def _known(journal: TextIO, identity: str) -> dict[str, str]:
    """Return the hashes of the parts that an earlier attempt at this import has written."""
    journal.seek(0)
    first, *lines = journal.read().splitlines() or [""]
    if first == identity:
        pairs = (line.split() for line in lines)
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    journal.truncate(0)
    journal.write(f"{identity}\n")
    journal.flush()
    return {}


def _remove_unfinished(out: Path) -> None:
    """Remove what killed attempts at a finished import left: partial files and the journal.

    safetensors writes to a file ``.tmp`` with six random letters, which it then renames.
    """
    for left in (*out.glob("*.partial"), *out.glob(f".{MANIFEST}.*"), *out.glob(".tmp??????")):
        left.unlink(missing_ok=True)


def _note(journal: TextIO, key: str, found: str) -> None:
    journal.write(f"{key} {found}\n")
    journal.flush()


def _manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    try:
        require_file(file, CheckpointError)
        found = read_mapping(file, CheckpointError)
    except CheckpointError as error:
        raise CheckpointError(f"{error}, not readable; {_again(path)}") from error
    try:
        return Manifest.model_validate(found, strict=True)
    except ValidationError as error:
        raise CheckpointError(
            f"{file}: not an import's manifest ({first_wrong(error)}); {_again(path)}"
        ) from error


def _again(path: Path) -> str:
    return f"import it again with: moebench models import DIR --out {path}"

"""Expert store: a file of expert records (an expert's weights as bytes), the disk tier."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import torch
import xxhash
from torch import Tensor

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.formats import RecordFormat, StoredAs, format_of
from moebench.substrate.models.shape import ModelShape

#: Records start at multiples of this many bytes, so that a disk can be read without the page cache.
ALIGNMENT = 4096


class Weights(Protocol):
    """The weights of a model: a checkpoint's, or random ones in the model's shape.

    Attributes:
        distinct: number of experts with a record of their own; counted through all layers, the n-th
            expert shares the record of the (n mod distinct)-th.
        store: the file in which the experts are records already, or None.
    """

    shape: ModelShape

    @property
    def distinct(self) -> int:
        """Number of experts with a record of their own."""

    @property
    def store(self) -> "ExpertStore | None":
        """Existing file of expert records, or None."""

    def common(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return all non-expert weights by moebench's tensor names."""

    def expert_record(self, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        """Return a routed expert's weights as a flat record ``[3·I·H]``."""


def own_records(weights: Weights) -> Iterator[tuple[int, int]]:
    """Return (layer, expert) of all experts with a record of their own."""
    shape = weights.shape
    return islice(product(shape.moe_layers, range(shape.num_experts)), weights.distinct)


def stored_record(weights: Weights, layer: int, expert: int, made: RecordFormat) -> Tensor:
    """Return a routed expert's record in the format ``made``."""
    return made.encode(weights.expert_record(layer, expert, made.state_dtype))


def require_room(path: Path, needed: int, option: str) -> None:
    """Check that the disk of ``path`` has ``needed`` bytes free for expert records.

    Raises CheckpointError: fewer bytes are free.
    """
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise CheckpointError(
            f"{path}: the expert records need {needed / 1e9:.4g} GB, {free / 1e9:.4g} GB are free "
            f"there; free some or give another {option}"
        )


#: Hexadecimal digits of a record's checksum.  XXH3 is a tenth of the time of SHA-256 or less.
CHECKSUM_DIGITS = 16


def checksum(record: Tensor, digits: int = CHECKSUM_DIGITS) -> str:
    """Return the checksum of a record's bytes: XXH3 (64 bits), or SHA-256 if it has 64 digits."""
    content = memoryview(cast(Any, record.contiguous().view(torch.uint8).numpy()))
    if digits == CHECKSUM_DIGITS:
        return xxhash.xxh3_64_hexdigest(content)
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class ExpertStore:
    """A file of aligned expert records, which can be read one by one."""

    path: Path
    shape: ModelShape
    stored_as: StoredAs
    #: As in `Weights`; None is all experts.
    distinct: int | None = None
    #: Checksum of each record, in the file's order, as `checksum` or `hashlib.sha256` gives it in
    #: hexadecimal digits; empty if they are not known.
    checksums: Sequence[str] = field(default=(), compare=False)
    #: Places of records that were read and had their checksum.
    checked: set[int] = field(default_factory=set, init=False, compare=False, repr=False)
    #: Format of the records.
    format: RecordFormat = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", format_of(self.shape, self.stored_as))

    @property
    def record_bytes(self) -> int:
        """Bytes of a record without padding."""
        return self.format.record_bytes

    @property
    def stride_bytes(self) -> int:
        """Bytes between the starts of two neighbouring records."""
        return -(-self.record_bytes // ALIGNMENT) * ALIGNMENT

    def offset(self, layer: int, expert: int) -> int:
        """Return the byte offset of an expert's record in the file."""
        index = self.shape.moe_layers.index(layer) * self.shape.num_experts + expert
        return index % self._count * self.stride_bytes

    def check(self, layer: int, expert: int, record: Tensor) -> None:
        """Compare a record's bytes with its checksum, once in a process.

        Args:
            record: the whole record, of any dtype, on the CPU.

        Raises CheckpointError: they differ.
        """
        index = self.offset(layer, expert) // self.stride_bytes
        if index in self.checked or not self.checksums:
            return
        known = self.checksums[index]
        if known != checksum(record, len(known)):
            raise CheckpointError(
                f"{self.path}: layer {layer} expert {expert} was changed after it was written; "
                f"import it again with: moebench models import DIR --out {self.path.parent}"
            )
        self.checked.add(index)

    @classmethod
    def build(cls, weights: Weights, path: Path, stored_as: StoredAs) -> "ExpertStore":
        """Write all expert records and return the store, or reuse a finished one at ``path``."""
        if weights.store is not None and weights.store.stored_as == stored_as:
            return weights.store
        store = cls(path, weights.shape, stored_as, weights.distinct)
        if store._finished():
            return store
        path.parent.mkdir(parents=True, exist_ok=True)
        require_room(path, store.total_bytes, "--store")
        partial = path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            # A second run waits for this lock, and then finds the first run's store finished.
            fcntl.flock(file, fcntl.LOCK_EX)
            if store._finished():
                partial.unlink(missing_ok=True)
                return store
            try:
                file.truncate(0)
                store._write(weights, file)
                file.flush()
                partial.replace(path)
            except OSError as error:
                partial.unlink(missing_ok=True)
                raise CheckpointError(
                    f"{path}: the expert records could not be written ({error.strerror}); free "
                    f"{store.total_bytes / 1e9:.3g} GB there, or give another --store"
                ) from error
        return store

    @property
    def total_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._count * self.stride_bytes

    @property
    def _count(self) -> int:
        return self.distinct or len(self.shape.moe_layers) * self.shape.num_experts

    def _finished(self) -> bool:
        return self.path.exists() and self.path.stat().st_size == self.total_bytes

    def _write(self, weights: Weights, file: BinaryIO) -> None:
        for layer, expert in own_records(weights):
            file.seek(self.offset(layer, expert))
            record = stored_record(weights, layer, expert, self.format)
            file.write(record.view(torch.uint8).numpy().tobytes())
        file.truncate(self.total_bytes)

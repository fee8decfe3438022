"""Checkpoints in, experts out: safetensors to common weights and one record per expert.

A *record* is one routed expert as a flat run of numbers: gate ``[I, H]``, up ``[I, H]`` and down
``[H, I]``, in this order.  It is what moves between tiers, what fills a slot, and what is read
from disk in one piece.  Nothing here ever unpickles.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.config import read_shape
from moebench.substrate.models.naming import (
    COMPUTABLE_FAMILIES,
    PROJECTIONS,
    TensorSpec,
    common_tensors,
    expert_tensors,
)
from moebench.substrate.models.shape import ModelShape

#: Records start at multiples of this many bytes, so that a disk can be read without the page cache.
ALIGNMENT = 4096


class Weights(Protocol):
    """What a model computes with: a checkpoint's weights, or dummies in its shape.

    Attributes:
        distinct: how many experts have records of their own; counted through all layers, the n-th
            has that of the (n mod distinct)-th.
    """

    shape: ModelShape

    @property
    def distinct(self) -> int:
        """See above."""

    def common(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every tensor that is not a routed expert's, by our name."""

    def expert_record(self, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        """One routed expert as a flat record ``[3·I·H]``."""


class Checkpoint:
    """A directory in the Hugging Face format: ``config.json`` and ``*.safetensors``.

    Opening reads headers only and checks that every tensor the family needs is there and has its
    dimensions; weights are read when asked for.

    Raises:
        CheckpointError: a missing, truncated or mis-shaped file or tensor.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such directory; expected a Hugging Face checkpoint")
        self.path = path
        self.shape = read_shape(path / "config.json")
        if self.shape.family not in COMPUTABLE_FAMILIES:
            raise CheckpointError(
                f"{path}: the decoder does not know model_type {self.shape.family!r}; "
                f"allowed: {', '.join(sorted(COMPUTABLE_FAMILIES))}"
            )
        self._stack = ExitStack()
        self._files = {file: self._open(file) for file in self._shards()}
        self._holder = {name: f for f in self._files.values() for name in f.keys()}  # noqa: SIM118
        self._check(common_tensors(self.shape).values())
        for layer in self.shape.moe_layers:
            for expert in range(self.shape.num_experts):
                self._check(expert_tensors(self.shape, layer, expert).values())

    def _shards(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if not index.exists():
            files = sorted(self.path.glob("*.safetensors"))
            if not files:
                raise CheckpointError(f"{self.path}: holds no .safetensors file")
            return files
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index}: not a safetensors index ({error})") from error
        return [self.path / name for name in names]

    def _open(self, file: Path) -> Any:
        try:
            return self._stack.enter_context(safe_open(file, framework="pt"))
        except FileNotFoundError as error:
            raise CheckpointError(f"{file}: named by the index but missing") from error
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: truncated or not safetensors ({error})") from error

    def _check(self, specs: Iterable[TensorSpec]) -> None:
        for spec in specs:
            holder = self._holder.get(spec.stored)
            if holder is None:
                raise CheckpointError(f"{self.path}: tensor {spec.stored} is missing")
            dims = tuple(holder.get_slice(spec.stored).get_shape())
            if dims != spec.dims:
                raise CheckpointError(
                    f"{self.path}: tensor {spec.stored} has shape {list(dims)}, "
                    f"its config.json demands {list(spec.dims)}"
                )

    def _read(self, stored: str, dtype: torch.dtype) -> Tensor:
        tensor: Tensor = self._holder[stored].get_tensor(stored)
        return tensor.to(dtype)

    def common(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Every tensor that is not a routed expert's, by our name."""
        return {
            ours: self._read(spec.stored, dtype)
            for ours, spec in common_tensors(self.shape).items()
        }

    def expert_record(self, layer: int, expert: int, dtype: torch.dtype) -> Tensor:
        """One routed expert as a flat record ``[3·I·H]``."""
        specs = expert_tensors(self.shape, layer, expert)
        return torch.cat([self._read(specs[p].stored, dtype).flatten() for p in PROJECTIONS])

    @property
    def distinct(self) -> int:
        """Every expert is itself."""
        return len(self.shape.moe_layers) * self.shape.num_experts

    def content_hash(self) -> str:
        """A hash of the configuration and of every weight file, for provenance."""
        digest = hashlib.sha256()
        for file in [self.path / "config.json", *sorted(self._files)]:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:16]

    def close(self) -> None:
        """Release the files."""
        self._stack.close()


def own_records(weights: Weights) -> Iterator[tuple[int, int]]:
    """Layer and expert of each record that is no other expert's."""
    shape = weights.shape
    return islice(product(shape.moe_layers, range(shape.num_experts)), weights.distinct)


def unpack(shape: ModelShape, record: Tensor) -> tuple[Tensor, Tensor]:
    """Records ``[..., 3·I·H]`` as two matrices each, without copying.

    Returns:
        gate above up ``[..., 2·I, H]``, and down ``[..., H, I]``.
    """
    lead, half = record.shape[:-1], 2 * shape.expert_width * shape.hidden_size
    gate_up = record[..., :half].view(*lead, 2 * shape.expert_width, shape.hidden_size)
    return gate_up, record[..., half:].view(*lead, shape.hidden_size, shape.expert_width)


#: From so many experts on, of at most so many bytes each, one grouped product of their copies takes
#: less time than a product for each: calls cost more than bytes.
STACK_EXPERTS, STACK_BYTES = 3, 256 << 10

#: A grouped product wants rows of matrices that begin at multiples of so many bytes.
STACK_STRIDE = 16


def stacks(shape: ModelShape, like: Tensor, count: int) -> bool:
    """Whether so many experts, kept as a tensor is, are computed in one grouped product."""
    size = like.element_size()
    return (
        count >= STACK_EXPERTS
        and shape.expert_params * size <= STACK_BYTES
        and not shape.hidden_size * size % STACK_STRIDE
        and not shape.expert_width * size % STACK_STRIDE
        and like.device.type == "cpu"
    )


#: Experts up to this size are cheaper to gather into one product than to call one by one.
GATHER_BYTES = 1 << 20


class ResidentExperts:
    """Every expert in memory: the model as if nothing was tight."""

    def __init__(self, weights: Weights, dtype: torch.dtype) -> None:
        shape = self._shape = weights.shape
        self._gathers = shape.expert_params * dtype.itemsize <= GATHER_BYTES
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in shape.moe_layers:
            records = [
                unpack(shape, weights.expert_record(layer, expert, dtype))
                for expert in range(shape.num_experts)
            ]
            # Stored transposed, [E, H, 2·I] and [E, I, H]: batched products of one row want it so.
            gate_up, down = zip(*records, strict=True)
            self._layers[layer] = (
                torch.stack(gate_up).transpose(1, 2).contiguous(),
                torch.stack(down).transpose(1, 2).contiguous(),
            )

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> tuple[Tensor, Tensor]:
        """Gate above up ``[2·I, H]``, and down ``[H, I]``."""
        gate_up, down = self._layers[layer]
        return gate_up[expert].T, down[expert].T

    def stacked(self, layer: int, experts: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """Several small experts' matrices: ``[n, 2·I, H]`` and ``[n, H, I]``."""
        gate_up, down = self._layers[layer]
        if not stacks(self._shape, gate_up, len(experts)):
            return None
        if len(experts) == len(gate_up):  # ascending, therefore all in their order
            return gate_up.mT, down.mT
        chosen = torch.tensor(experts)
        return gate_up.index_select(0, chosen).mT, down.index_select(0, chosen).mT

    def gathered(self, layer: int, experts: Tensor) -> tuple[Tensor, Tensor] | None:
        """The same for several experts, transposed: ``[n, H, 2·I]`` and ``[n, I, H]``.

        None if they are too large to be copied.
        """
        if not self._gathers:
            return None
        gate_up, down = self._layers[layer]
        return gate_up.index_select(0, experts), down.index_select(0, experts)


@dataclass(frozen=True, slots=True)
class ExpertStore:
    """Expert records in one file, aligned, readable one by one: the disk tier itself."""

    path: Path
    shape: ModelShape
    dtype: torch.dtype
    #: As in `Weights`.
    distinct: int

    @property
    def record_values(self) -> int:
        """Numbers in a record."""
        return self.shape.expert_params

    @property
    def record_bytes(self) -> int:
        """Bytes that a record holds."""
        return self.record_values * self.dtype.itemsize

    @property
    def stride_bytes(self) -> int:
        """Distance between the starts of two records."""
        return -(-self.record_bytes // ALIGNMENT) * ALIGNMENT

    def offset(self, layer: int, expert: int) -> int:
        """Where an expert's record starts."""
        index = self.shape.moe_layers.index(layer) * self.shape.num_experts + expert
        return index % self.distinct * self.stride_bytes

    @classmethod
    def build(cls, weights: Weights, path: Path, dtype: torch.dtype) -> "ExpertStore":
        """Write every expert's record, in place by a rename; a finished store is reused."""
        store = cls(path, weights.shape, dtype, weights.distinct)
        if store._finished():
            return store
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if store.total_bytes > free:
            raise CheckpointError(
                f"{path}: the expert records need {store.total_bytes / 1e9:.4g} GB, "
                f"{free / 1e9:.4g} GB are free there; free some or give another --store"
            )
        partial = path.with_suffix(".partial")
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT, 0o644)
        with os.fdopen(descriptor, "r+b") as file:
            # A second run waits here, and then finds the first one's store finished.
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
        """Bytes of the whole file."""
        return self.distinct * self.stride_bytes

    def _finished(self) -> bool:
        return self.path.exists() and self.path.stat().st_size == self.total_bytes

    def _write(self, weights: Weights, file: BinaryIO) -> None:
        for layer, expert in own_records(weights):
            file.seek(self.offset(layer, expert))
            record = weights.expert_record(layer, expert, self.dtype)
            file.write(record.view(torch.uint8).numpy().tobytes())
        file.truncate(self.total_bytes)

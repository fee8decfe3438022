"""Sources of experts' records for measured machines: a file on a disk, or memory behind a link.

Both copy a record, or a part of it, into a slot and return when the copy has ended; they release
the GIL meanwhile.  Parts begin and end at multiples of `ALIGNMENT` bytes, for direct disk reads.
"""

import mmap
import os
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor

from moebench.substrate.errors import BudgetError, CheckpointError
from moebench.substrate.machines.free_memory import available_bytes
from moebench.substrate.machines.protocol import Lane
from moebench.substrate.models.expert_store import (
    ALIGNMENT,
    ExpertStore,
    Weights,
    own_records,
    stored_record,
)
from moebench.substrate.models.formats import RecordFormat, StoredAs, format_of
from moebench.substrate.models.shape import ModelShape

#: How many parts of a record are read at the same time, and the least bytes of a part.
READS_IN_FLIGHT, LEAST_READ_BYTES = 4, 256 << 10

#: Shorter sleeps last longer than requested, so they are left out; the next transfer compensates.
LEAST_SLEEP_S = 50e-6


class Records(Protocol):
    """A source of every routed expert's record, for copies to the device.

    Attributes:
        lane: the lane that a copy occupies.
        format: the format of a record.
        stride_bytes: a slot's size: a record, rounded up to `ALIGNMENT`.
        notes: sentences for the run's document.
    """

    lane: Lane
    shape: ModelShape
    format: RecordFormat
    stride_bytes: int
    notes: list[str]

    def copy(self, layer: int, expert: int, slot: Tensor, first: int, beyond: int) -> None:
        """Copy a record's bytes from ``first`` up to ``beyond`` into a slot (uint8)."""


def rows(count: int, stride_bytes: int, what: str) -> Tensor:
    """Allocate page-aligned, zeroed memory ``[count, stride_bytes]`` of uint8.

    Raises BudgetError: this computer has less memory to spare.
    """
    size, free = count * stride_bytes, available_bytes()
    if free is not None and size > free:
        raise BudgetError(
            f"{what} take {size / 1e9:.3g} GB, this computer has {free / 1e9:.3g} GB of memory to "
            "spare; give a smaller --capacity or --slots, or a smaller model"
        )
    try:
        memory = mmap.mmap(-1, max(1, size))
    except OSError as error:
        raise BudgetError(f"{what}: {size / 1e9:.3g} GB of memory: {error.strerror}") from error
    return torch.frombuffer(memory, dtype=torch.uint8)[:size].view(count, stride_bytes).zero_()


class DiskRecords:
    """Records in a file, read directly, past the page cache, if the file system allows it.

    Use as a context manager.

    Args:
        in_flight: how many parts of a record are read at the same time.
        keep_page_cache: read through the page cache, which may hold records from earlier reads.
    """

    lane = Lane.DISK

    def __init__(
        self, store: ExpertStore, in_flight: int = READS_IN_FLIGHT, keep_page_cache: bool = False
    ) -> None:
        self._store, self._in_flight, self._keep = store, in_flight, keep_page_cache
        self.shape, self.format, self.stride_bytes = store.shape, store.format, store.stride_bytes
        self.notes: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        path = self._store.path
        direct = 0 if self._keep else getattr(os, "O_DIRECT", 0)
        if direct and not _reads_directly(path):
            direct = 0
        self._file = os.open(path, os.O_RDONLY | direct)
        self._stack.callback(os.close, self._file)
        how = f"{self._in_flight} reads in flight"
        if direct:
            self.notes = [f"records are read past the page cache, {how}"]
        elif self._keep:
            self.notes = [f"records are read through the page cache, as asked, {how}"]
        else:
            self.notes = [
                f"{path.parent}: this file system has no direct reads; records are read through "
                f"the page cache, which may answer from memory, {how}"
            ]
        self._pool = self._stack.enter_context(
            ThreadPoolExecutor(max(1, self._in_flight - 1), "reader")
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def copy(self, layer: int, expert: int, slot: Tensor, first: int, beyond: int) -> None:
        """Read a part of a record, in several stripes at the same time.

        Raises CheckpointError: the disk fails, or the file ends before the record does.
        """
        buffer = memoryview(cast(Any, slot.numpy()))
        stripes = max(1, min(self._in_flight, (beyond - first) // LEAST_READ_BYTES))
        size = beyond - first
        ends = [*(first + aligned(size * n // stripes) for n in range(stripes)), beyond]
        (begin, end), *rest = pairwise(ends)
        others = [self._pool.submit(self._read, layer, expert, buffer[a:b], a) for a, b in rest]
        try:
            self._read(layer, expert, buffer[begin:end], begin)
        finally:
            failures = [one.exception() for one in others]  # waits for all reads
        for failure in failures:
            if failure is not None:
                raise failure
        if first == 0 and beyond >= self.format.record_bytes:
            self._store.check(layer, expert, slot[: self.format.record_bytes])

    def _read(self, layer: int, expert: int, buffer: memoryview, first: int) -> None:
        store, got = self._store, 0
        begin = store.offset(layer, expert) + first
        while got < len(buffer):
            try:
                new = os.preadv(self._file, [buffer[got:]], begin + got)
            except OSError as error:
                raise CheckpointError(
                    f"{store.path}: reading layer {layer} expert {expert} failed "
                    f"({error.strerror}); check the disk, or give another --store"
                ) from error
            if not new:
                raise CheckpointError(
                    f"{store.path}: record of layer {layer} expert {expert} is truncated "
                    f"({first + got} of {store.stride_bytes} bytes); delete the file, it is built "
                    "again"
                )
            got += new


def _reads_directly(path: Path) -> bool:
    """Return whether the file system supports direct reads, past the page cache."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        os.preadv(file, [mmap.mmap(-1, ALIGNMENT)], 0)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


class EmulatedLink:
    """A link of a given rate between two parts of this computer's memory.

    A transfer copies its bytes, then sleeps until the rate allows its end.  Sleeps end late, so a
    transfer that follows at once may end earlier by as much, which keeps the rate.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        #: When the last transfer should have ended, and how much later its sleep ended.
        self._due_s = self._overslept_s = 0.0
        self._lock = Lock()

    def carry(self, source: Tensor, target: Tensor) -> None:
        """Copy memory of equal size at the link's rate."""
        began_s = time.perf_counter()
        target.copy_(source)
        self.pace(target.nbytes, began_s)

    def pace(self, count_bytes: int, began_s: float) -> None:
        """Sleep until the rate allows ``count_bytes`` since ``began_s``."""
        with self._lock:
            on_time_s = max(self._due_s, began_s - self._overslept_s)
            self._due_s = due_s = on_time_s + count_bytes / self.bytes_per_s
        left_s = due_s - time.perf_counter()
        if left_s > LEAST_SLEEP_S:
            time.sleep(left_s)
            self._overslept_s = max(0.0, time.perf_counter() - due_s)
        else:  # keep the part of the delay that is not compensated yet
            self._overslept_s = min(self._overslept_s, max(0.0, -left_s))


class RecordsInMemory(ABC):
    """Records in host memory, with which the host can also compute.

    Use as a context manager.

    Args:
        stored_as: the dtype or quantised format of the records.
    """

    lane = Lane.H2D

    def __init__(self, weights: Weights, stored_as: StoredAs) -> None:
        shape = self.shape = weights.shape
        self.format, self.notes = format_of(shape, stored_as), list[str]()
        self.stride_bytes = aligned(self.format.record_bytes, up=True)
        self._first = {layer: n * shape.num_experts for n, layer in enumerate(shape.moe_layers)}
        self._rows = rows(weights.distinct, self.stride_bytes, "the experts in host memory")
        for layer, expert in own_records(weights):
            self.on_host(layer, expert).copy_(stored_record(weights, layer, expert, self.format))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file is open."""

    def row(self, layer: int, expert: int) -> Tensor:
        """Return an expert's record as bytes ``[stride]``."""
        return self._rows[(self._first[layer] + expert) % len(self._rows)]

    def on_host(self, layer: int, expert: int) -> Tensor:
        """Return an expert's record in its format's elements."""
        return self.row(layer, expert)[: self.format.record_bytes].view(self.format.dtype)

    @abstractmethod
    def copy(self, layer: int, expert: int, slot: Tensor, first: int, beyond: int) -> None:
        """Copy a part of a record to a slot."""

    @abstractmethod
    def write_back(self, layer: int, expert: int, slot: Tensor) -> None:
        """Copy a slot back onto the record; host memory has the same bytes already."""


class MemoryRecords(RecordsInMemory):
    """Records in host memory behind an emulated link.

    Args:
        pinned: False copies each record to a staging buffer first, as a driver does from pageable
            memory.
    """

    def __init__(
        self, weights: Weights, stored_as: StoredAs, link: EmulatedLink, pinned: bool = True
    ) -> None:
        super().__init__(weights, stored_as)
        self.link, self._back = link, EmulatedLink(link.bytes_per_s)
        self._staging = None if pinned else torch.empty(self.stride_bytes, dtype=torch.uint8)
        self._buffers: tuple[Tensor, Tensor] | None = None
        how = "" if pinned else ", each by way of a staging buffer, as from pageable memory"
        self.notes = [
            f"an emulated link of {link.bytes_per_s / 1e9:g} GB/s stands between device and host, "
            f"which are two parts of this computer's memory and one thread each{how}"
        ]

    def copy(self, layer: int, expert: int, slot: Tensor, first: int, beyond: int) -> None:
        """Copy a part of a record at the link's rate."""
        source = self.row(layer, expert)[first:beyond]
        if self._staging is not None:
            source = self._staging[first:beyond].copy_(source)
        self.link.carry(source, slot[first:beyond])

    def release(self) -> None:
        """Free the records, when the device holds all of them and none is copied any more."""
        self._rows = self._rows[:0].clone()

    def stream(self, layer: int) -> int:
        """Copy and return as many bytes as a layer's non-expert weights, or the head's (-1)."""
        shape, size = self.shape, self.format.state_dtype.itemsize
        if self._buffers is None:
            params = max(map(shape.layer_common_params, range(shape.num_layers)))
            most = max(params, shape.own_head_params) * size
            empty = rows(2, most, "buffers of streamed layers")
            self._buffers = empty[0], empty[1]
        params = shape.own_head_params if layer < 0 else shape.layer_common_params(layer)
        source, target = self._buffers
        self.link.carry(source[: params * size], target[: params * size])
        return params * size

    def give_back(self, count: int) -> None:
        """Take the link's time for outputs ``[count, H]``, which share the device's memory."""
        size = count * self.shape.hidden_size * self.format.state_dtype.itemsize
        self._back.pace(size, time.perf_counter())

    def write_back(self, layer: int, expert: int, slot: Tensor) -> None:
        """Copy a slot back to its record over the link, although the bytes are equal."""
        self._back.carry(slot, self.row(layer, expert))


def aligned(count_bytes: int, up: bool = False) -> int:
    """Return the next multiple of `ALIGNMENT` below or, if ``up``, above a number of bytes."""
    return -(-count_bytes // ALIGNMENT) * ALIGNMENT if up else count_bytes // ALIGNMENT * ALIGNMENT

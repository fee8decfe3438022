"""Where a machine on the wall clock finds experts; nothing here measures time."""

import errno
import os
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.errors import BudgetError, CheckpointError
from moebench.substrate.machines import records
from moebench.substrate.machines.protocol import Lane
from moebench.substrate.machines.records import (
    LEAST_SLEEP_S,
    DiskRecords,
    EmulatedLink,
    MemoryRecords,
)
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.expert_store import ALIGNMENT, ExpertStore
from tests.substrate.models.checkpoints import EXPERTS, make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return Checkpoint(make_checkpoint(tmp_path_factory.mktemp("deepseek"), "deepseek"))


@pytest.fixture
def store(checkpoint, tmp_path) -> ExpertStore:
    return ExpertStore.build(checkpoint, tmp_path / "experts.bin", torch.float32)


def slot_for(found: DiskRecords | MemoryRecords) -> torch.Tensor:
    return records.rows(1, found.stride_bytes, "a slot")[0].fill_(7)


def record_in(slot: torch.Tensor, checkpoint: Checkpoint) -> torch.Tensor:
    return slot[: checkpoint.shape.expert_params * 4].view(torch.float32)


# ----------------------------------------------------------------------------- memory


def test_rows_are_aligned_and_empty():
    got = records.rows(3, 2 * ALIGNMENT, "three slots")
    assert got.shape == (3, 2 * ALIGNMENT)
    assert got.data_ptr() % ALIGNMENT == 0
    assert not got.any()


def test_more_memory_than_there_is_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(records, "available_bytes", lambda: 10_000_000)
    with pytest.raises(BudgetError, match=r"^9 slots take 0.018 GB, this computer has 0.01 GB"):
        records.rows(9, 2_000_000, "9 slots")
    monkeypatch.setattr(records, "available_bytes", lambda: None)  # a system that does not say
    assert len(records.rows(9, ALIGNMENT, "9 slots")) == 9


# ----------------------------------------------------------------------------- the disk


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("keep", [False, True])
def test_a_record_is_read_whole_in_stripes_or_not(keep, in_flight, store, checkpoint, monkeypatch):
    monkeypatch.setattr(records, "LEAST_READ_BYTES", ALIGNMENT)
    with DiskRecords(store, in_flight, keep) as disk:
        assert disk.lane is Lane.DISK
        for expert in (0, EXPERTS - 1):
            slot = slot_for(disk)
            disk.copy(1, expert, slot, 0, disk.stride_bytes)
            wanted = checkpoint.expert_record(1, expert, torch.float32)
            assert torch.equal(record_in(slot, checkpoint), wanted)
        (note,) = disk.notes
        assert f"{in_flight} reads in flight" in note
        assert ("through the page cache, as asked" in note) is keep


def test_both_stripes_of_a_record_are_under_way_at_the_same_time(store, monkeypatch):
    monkeypatch.setattr(records, "LEAST_READ_BYTES", ALIGNMENT)
    with DiskRecords(store, 2) as disk:
        assert disk.stride_bytes == 2 * ALIGNMENT
        together, read = threading.Barrier(2), disk._read
        parts = []

        def waiting(layer: int, expert: int, buffer: memoryview, first: int) -> None:
            parts.append((first, first + len(buffer)))
            together.wait(timeout=20)
            read(layer, expert, buffer, first)

        monkeypatch.setattr(disk, "_read", waiting)
        disk.copy(1, 0, slot_for(disk), 0, disk.stride_bytes)
    starts, ends = zip(*sorted(parts), strict=True)
    assert (starts[0], ends[-1]) == (0, disk.stride_bytes)
    assert starts[1:] == ends[:-1]
    assert all(start % ALIGNMENT == 0 for start in starts)


def test_parts_of_a_record_go_to_their_places(store, checkpoint):
    with DiskRecords(store) as disk:
        slot = slot_for(disk)
        disk.copy(2, 3, slot, ALIGNMENT, disk.stride_bytes)
        assert (slot[:ALIGNMENT] == 7).all()
        disk.copy(2, 3, slot, 0, ALIGNMENT)
    wanted = checkpoint.expert_record(2, 3, torch.float32)
    assert torch.equal(record_in(slot, checkpoint), wanted)


def test_where_the_file_system_has_no_direct_reads_that_is_said(store, checkpoint, monkeypatch):
    def refused(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *rest)

    opened = os.open
    monkeypatch.setattr(records.os, "open", refused)
    with DiskRecords(store) as disk:
        assert "has no direct reads; records are read through the page cache" in disk.notes[0]
        slot = slot_for(disk)
        disk.copy(1, 5, slot, 0, disk.stride_bytes)
    wanted = checkpoint.expert_record(1, 5, torch.float32)
    assert torch.equal(record_in(slot, checkpoint), wanted)


def test_reads_that_end_early_are_continued(store, checkpoint, monkeypatch):
    read = os.preadv
    monkeypatch.setattr(
        records.os, "preadv",
        lambda file, buffers, at: read(file, [memoryview(buffers[0])[:ALIGNMENT]], at),
    )  # fmt: skip
    with DiskRecords(store, 1) as disk:
        slot = slot_for(disk)
        disk.copy(1, 5, slot, 0, disk.stride_bytes)
    wanted = checkpoint.expert_record(1, 5, torch.float32)
    assert torch.equal(record_in(slot, checkpoint), wanted)


@pytest.mark.parametrize("broken_stripe", [0, 1])
def test_a_disk_that_fails_is_named_in_one_line(broken_stripe, store, monkeypatch):
    monkeypatch.setattr(records, "LEAST_READ_BYTES", ALIGNMENT)
    read, begin = os.preadv, store.offset(1, 5)

    def failing(file: int, buffers: list, at: int) -> int:
        if (at == begin) == (broken_stripe == 0):
            raise OSError(errno.EIO, "Input/output error")
        return read(file, buffers, at)

    with DiskRecords(store, 2) as disk:
        monkeypatch.setattr(records.os, "preadv", failing)
        with pytest.raises(CheckpointError) as caught:
            disk.copy(1, 5, slot_for(disk), 0, disk.stride_bytes)
    line = str(caught.value)
    assert line.startswith(f"{store.path}: reading layer 1 expert 5 failed (Input/output error); ")
    assert "\n" not in line


def test_a_truncated_file_is_named_in_one_line(store):
    os.truncate(store.path, store.offset(1, 5) + 8)
    with (
        DiskRecords(store, keep_page_cache=True) as disk,
        pytest.raises(CheckpointError, match=r"record of layer 1 expert 5 is truncated \(8 of"),
    ):
        disk.copy(1, 5, slot_for(disk), 0, disk.stride_bytes)


# ----------------------------------------------------------------------------- the link


class Clock:
    """Time that passes when it is slept, and as much more as a sleep is late."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s, self._late_s = 0.0, late_s

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, s: float) -> None:
        assert s > LEAST_SLEEP_S
        self.now_s += s + self._late_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(records, "time", made)
    return made


def test_a_transfer_ends_when_the_rate_allows_it(clock):
    link = EmulatedLink(bytes_per_s=1e9)
    link.pace(2_000_000, clock.now_s)
    assert clock.now_s == pytest.approx(2e-3)
    clock.now_s = 1.0  # an idle link saves nothing up
    link.pace(3_000_000, clock.now_s)
    assert clock.now_s == pytest.approx(1.003)
    began_s, clock.now_s = clock.now_s, clock.now_s + 9e-3  # copying took longer than the link
    link.pace(1_000_000, began_s)
    assert clock.now_s == pytest.approx(1.012)


@given(
    sizes=st.lists(st.integers(1_000, 5_000_000), min_size=1, max_size=60),
    late_us=st.integers(0, 300),
)
def test_a_train_of_transfers_keeps_the_rate_although_sleeps_end_late(sizes, late_us):
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(late_us * 1e-6)
        patch.setattr(records, "time", clock)
        link, moved = EmulatedLink(bytes_per_s=1e9), 0
        for size in sizes:
            link.pace(size, clock.now_s)
            moved += size
            due_s = moved / 1e9
            # What is too short to sleep is made up for later; so is what was overslept.
            assert due_s - LEAST_SLEEP_S - 1e-9 <= clock.now_s
            assert clock.now_s <= due_s + late_us * 1e-6 + 1e-9


@pytest.mark.parametrize("pinned", [True, False])
def test_records_in_memory_are_the_checkpoints(pinned, clock, checkpoint):
    with MemoryRecords(checkpoint, torch.float32, EmulatedLink(1e9), pinned) as memory:
        assert memory.lane is Lane.H2D
        slot = slot_for(memory)
        memory.copy(2, 3, slot, ALIGNMENT, memory.stride_bytes)
        memory.copy(2, 3, slot, 0, ALIGNMENT)
        wanted = checkpoint.expert_record(2, 3, torch.float32)
        assert torch.equal(record_in(slot, checkpoint), wanted)
        assert torch.equal(memory.on_host(2, 3), wanted)
        assert clock.now_s == pytest.approx(memory.stride_bytes / 1e9, abs=LEAST_SLEEP_S)
        assert ("staging buffer" in memory.notes[0]) is not pinned


def test_common_weights_and_outputs_take_the_links_time(clock, checkpoint):
    shape = checkpoint.shape
    memory = MemoryRecords(checkpoint, torch.float32, EmulatedLink(1e6))
    moved = memory.stream(1)
    assert moved == shape.layer_common_params(1) * 4
    assert clock.now_s == pytest.approx(moved / 1e6)
    assert memory.stream(-1) == shape.own_head_params * 4
    before_s = clock.now_s
    memory.give_back(5)
    assert clock.now_s - before_s == pytest.approx(5 * shape.hidden_size * 4 / 1e6)


def test_released_records_take_no_memory(clock, checkpoint):
    memory = MemoryRecords(checkpoint, torch.float32, EmulatedLink(1e9))
    assert memory.row(2, 3).numel() == memory.stride_bytes
    memory.release()
    assert memory._rows.untyped_storage().nbytes() == 0

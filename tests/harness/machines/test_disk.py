"""The disk's rates by block size and reads in flight, with a clock that the test moves."""

import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from moebench.harness.machines import disk
from moebench.substrate.models.expert_store import ALIGNMENT

#: A file that is small enough for a test, and still has two blocks of the largest size.
SMALL = 8 << 20


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Note the size and place of each read; every measurement takes 2 s."""
    found: list[tuple[int, int]] = []
    ticks, own = count(0, 2), os.preadv

    def preadv(file: int, buffers: list[bytearray], place: int) -> int:
        (buffer,) = buffers
        found.append((len(buffer), place))
        return own(file, buffers, place)

    monkeypatch.setattr(disk, "DISK_BYTES", SMALL)
    monkeypatch.setattr(disk, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(os, "preadv", preadv)
    return found


def test_rates_are_bytes_over_time_and_a_small_reads_time(
    read: list[tuple[int, int]], tmp_path: Path
) -> None:
    found = disk.disk_rates(tmp_path / "new" / "folder")
    assert found.pop((0, 1)) == 2 / 64
    # At most 64 reads, and at most half of the file.
    reads = {64 << 10: 64, 256 << 10: 16, 1 << 20: 4, 4 << 20: 1}
    assert found == {
        (block, depth): number * block / 2
        for block, number in reads.items()
        for depth in (1, 4, 16)
    }
    assert [*(tmp_path / "new" / "folder").iterdir()] == [], "the file is removed"
    by_size: dict[int, list[int]] = {}
    for size, place in read:
        by_size.setdefault(size, []).append(place)
    assert {size: len(places) for size, places in by_size.items()} == {
        ALIGNMENT: 64, **{block: 3 * number for block, number in reads.items()},
    }  # fmt: skip
    for size, places in by_size.items():
        assert all(place % size == 0 and 0 <= place <= SMALL - size for place in places)
    small = by_size[ALIGNMENT]
    assert len({*small}) == 64, "no place is read twice"
    assert small != sorted(small), "places are in random order"


def test_the_file_is_removed_if_a_read_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> None:
        assert path.stat().st_size == SMALL
        raise OSError("the disk is broken")

    monkeypatch.setattr(disk, "DISK_BYTES", SMALL)
    monkeypatch.setattr(disk, "_rates", fails)
    with pytest.raises(OSError, match="broken"):
        disk.disk_rates(tmp_path / "scratch")
    assert [*(tmp_path / "scratch").iterdir()] == []


def test_a_file_system_without_direct_reads_is_read_all_the_same(
    read: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, flags = os.open, list[int]()

    def opened(path: Path, how: int) -> int:
        flags.append(how)
        if len(flags) == 1:
            raise OSError(22, "Invalid argument")
        return own(path, how)

    monkeypatch.setattr(os, "open", opened)
    assert disk.disk_rates(tmp_path)[0, 1] == 2 / 64
    assert flags == [os.O_RDONLY | getattr(os, "O_DIRECT", 0), os.O_RDONLY]


def test_256_mib_are_read() -> None:
    assert disk.DISK_BYTES == 2**28
    assert [*disk.BLOCKS] == [2**16, 2**18, 2**20, 2**22]
    assert [*disk.DEPTHS] == [1, 4, 16]

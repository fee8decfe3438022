"""Read rates of a folder's disk without the page cache, by block size and reads in flight."""

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from moebench.substrate.models.expert_store import ALIGNMENT

#: Size of the file that is read, and the block sizes and numbers of reads in flight.
DISK_BYTES = 256 << 20
BLOCKS, DEPTHS = (64 << 10, 256 << 10, 1 << 20, 4 << 20), (1, 4, 16)


def disk_rates(scratch: Path) -> dict[tuple[int, int], float]:
    """Return bytes/s by block size and reads in flight, without the page cache if possible.

    The key (0, 1) holds the time of the smallest read, in seconds.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    path = scratch / "disk-test.bin"
    try:
        _write(path)
        return _rates(path)
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path) -> None:
    block = os.urandom(1 << 20)  # random, so that no disk can compress it
    with path.open("wb") as file:
        for _ in range(DISK_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _rates(path: Path) -> dict[tuple[int, int], float]:
    direct = getattr(os, "O_DIRECT", 0)
    try:
        file = os.open(path, os.O_RDONLY | direct)
    except OSError:
        file = os.open(path, os.O_RDONLY)
    rates: dict[tuple[int, int], float] = {}
    draw = np.random.default_rng(0)
    try:
        for block in (ALIGNMENT, *BLOCKS):
            for depth in (1,) if block == ALIGNMENT else DEPTHS:
                count = min(64, DISK_BYTES // block // 2)
                places = draw.permutation(DISK_BYTES // block)[:count] * block
                buffers = [mmap.mmap(-1, block) for _ in range(depth)]

                def read(n: int, buffers: list[mmap.mmap] = buffers, places: Any = places) -> int:
                    return os.preadv(file, [buffers[n % len(buffers)]], int(places[n]))

                with ThreadPoolExecutor(depth) as pool:
                    began = time.perf_counter()
                    moved = sum(pool.map(read, range(count)))
                    took = time.perf_counter() - began
                if block == ALIGNMENT:
                    rates[0, 1] = took / count
                else:
                    rates[block, depth] = moved / took
    finally:
        os.close(file)
    return rates

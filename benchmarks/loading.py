"""Benchmark of the share of the disk's rate that a run reaches while it loads experts.

    python -m benchmarks.loading [--weights DIR] [--rounds 5]

On-demand decoding from the disk, a quarter of the experts in memory, bypassing the page cache.  The
run's rate is bytes loaded over the time that the disk's lane was busy.  Before and after each run
the same file is read alone, in blocks of the same size with as many in flight, by threads that do
nothing else; the ratio is to the mean of these two rates.
"""

import argparse
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from benchmarks.wide import make_wide
from moebench.harness.one_run import prepare, run
from moebench.harness.run.rules import resolve
from moebench.harness.stage.local import DTYPE
from moebench.substrate.machines.protocol import Lane
from moebench.substrate.machines.records import READS_IN_FLIGHT, rows
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.expert_store import ExpertStore

#: Number of records that are read alone.
RECORDS = 48


def alone(store: ExpertStore) -> float:
    """Return the GB/s of reading only the file, each record in parallel blocks like a load."""
    block = store.stride_bytes // READS_IN_FLIGHT
    buffers = [memoryview(row.numpy()) for row in rows(READS_IN_FLIGHT, block, "buffers")]
    total = store.total_bytes // store.stride_bytes
    chosen = np.random.default_rng(0).permutation(total)[:RECORDS]
    file = os.open(store.path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))

    def read(n: int, begin: int) -> int:
        return os.preadv(file, [buffers[n]], begin)

    with ThreadPoolExecutor(READS_IN_FLIGHT) as pool:
        began = time.perf_counter()
        moved = 0
        for record in chosen:
            first = int(record) * store.stride_bytes
            places = [first + n * block for n in range(READS_IN_FLIGHT)]
            moved += sum(pool.map(read, range(READS_IN_FLIGHT), places))
        took = time.perf_counter() - began
    os.close(file)
    return moved / took / 1e9


def loading(weights: Path, scratch: Path) -> float:
    """Return the GB/s of the disk's lane while a run loads experts."""
    spec = resolve(
        None, system="moe-ondemand", machine="local", weights=str(weights), cache_ratio=0.25,
        prompts=1, new_tokens=12,
    )  # fmt: skip
    timeline = run(prepare(spec, None), scratch).timeline
    return timeline.bytes_moved(Lane.DISK) / timeline.busy_ns(Lane.DISK)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, default=Path("wide"))
    parser.add_argument("--store", type=Path, default=Path(".moebench"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    weights, ratios = make_wide(arguments.weights), []
    checkpoint = Checkpoint(weights)
    store = ExpertStore.build(checkpoint, arguments.store / "loading.bin", DTYPE)
    before = alone(store)
    print("| file alone GB/s | while loading GB/s | ratio |")
    print("|---|---|---|")
    for _ in range(arguments.rounds):
        rate, after = loading(weights, arguments.store), alone(store)
        ratios.append(rate / statistics.mean((before, after)))
        print(f"| {before:.2f}, {after:.2f} | {rate:.2f} | {ratios[-1]:.2f} |", flush=True)
        before = after
    print(f"median {statistics.median(ratios):.2f}")
    store.path.unlink()


if __name__ == "__main__":
    main()

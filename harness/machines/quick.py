"""``moebench calibrate --quick``: measures this computer in two minutes, without a checkpoint.

Measured are reads of the host's memory, products of one expert by format and threads, the hand-off
to a waiting thread, the disk, and with a GPU its link, also while the host computes.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moebench.harness.machines.copies import copy_rates, device_rates
from moebench.harness.machines.disk import disk_rates
from moebench.harness.machines.ggml import ggml
from moebench.harness.machines.products import WEIGHTS, Kernels, Torch, measure_products
from moebench.harness.machines.products_file import Products
from moebench.harness.machines.rates import Clock, Rate, rate_of, spread
from moebench.harness.machines.survey import Ask, ask, cache_bytes
from moebench.substrate.machines.accelerator import Accelerator
from moebench.substrate.machines.free_memory import available_bytes

#: Least and most memory that is read in turn; between them, twice the size of the caches.
LEAST_MEMORY, MOST_MEMORY = 256 << 20, 2 << 30

#: Room for one expert in fp32.
ONE_EXPERT = 32 << 20

#: Share of the free memory that is used at most.
OF_FREE = 0.25

#: Intended time of the products of all formats, and of one other measurement, in seconds.
PRODUCTS_S, READS_S = 45.0, 0.4

#: Hand-offs that are timed, after some that are not.
HANDOFFS, WARM_HANDOFFS = 2000, 200

#: Size of the copies: an expert of `products.EXPERT` in bf16, and of a copy inside the GPU.
EXPERT_BYTES, DEVICE_BYTES = 2 * WEIGHTS, 256 << 20

#: A load of other programs above this share of the processors disturbs the measurement.
BUSY = 0.25


class Copies(NamedTuple):
    """Rates of a GPU's copies in GB/s.

    Attributes:
        pinned, back, pageable: of one expert after another, in a warm link.
        beside: pinned ones, while all threads of the host compute.
        together: bytes of these copies and of the products, over the time.
        device: inside the GPU's memory, reads and writes counted.
    """

    pinned: Rate
    back: Rate
    pageable: Rate
    beside: Rate
    together: Rate
    device: Rate


class Quick(NamedTuple):
    """What was measured.

    Attributes:
        reads: of the host's memory in GB/s, by threads.
        inner: copies inside the host's memory in GB/s, their bytes counted once.
        products: of one expert.
        handoff: to a waiting thread and back, in us.
        disk: from `disk_rates`.
        copies: None without a GPU.
        load: of other programs before, as a number of processors.
    """

    reads: dict[int, Rate]
    inner: Rate
    products: Products
    handoff: Rate
    disk: dict[tuple[int, int], float]
    copies: Copies | None
    load: float


def measure(
    scratch: Path, card: Accelerator | None, say: Callable[[str], None],
    libraries: Sequence[Kernels] | None = None, clock: Clock = time.perf_counter_ns,
    asked: Ask = ask,
) -> Quick:  # fmt: skip
    """Measure this computer.

    Args:
        scratch: a folder on the disk to measure.
        card: the GPU; None if there is none that torch can use.
        say: prints a line of progress.
        libraries: of products; None is ggml, if it is installed, and torch.

    Raises BudgetError: the GPU has too little memory, or too little memory can be page-locked.
    """
    load = _load()
    if libraries is None:
        own = ggml()
        libraries = [Torch()] if own is None else [own, Torch()]
        if own is None:
            say(
                "llama-cpp-python is not installed: products of f32 and bf16 alone are measured; "
                "for q4_k and others: pip install 'moebench[native]'"
            )
    threads = thread_counts(_processors())
    size = memory_size(cache_bytes(asked), available_bytes())
    memory = _aligned(size)
    reads = {count: _reads(memory, count, clock) for count in threads}
    counts = ", ".join(map(str, threads))
    say(f"reads of {size >> 20} MiB: {_values(reads.values())} GB/s by {counts} threads")
    inner = _inner(memory, threads[-1], clock)
    say(f"copies inside the memory: {inner.value:.3g} GB/s")
    products = measure_products(libraries, memory, threads, say, clock, PRODUCTS_S)
    trip = handoff(clock)
    say(f"hand-off to a waiting thread and back: {trip.value:.3g} us")
    copies = None
    if card is not None:
        copies = _copies(card, _Host(memory, threads[-1]), clock)
        say(
            f"copies to {card.name}: {copies.pinned.value:.3g} GB/s pinned, "
            f"{copies.pageable.value:.3g} pageable, {copies.beside.value:.3g} while the host "
            f"computes; inside it {copies.device.value:.4g} GB/s"
        )
    disk = disk_rates(scratch)
    say(f"disk: at most {max(rate for key, rate in disk.items() if key[0]) / 1e9:.3g} GB/s")
    return Quick(reads, inner, products, trip, disk, copies, load)


def _load() -> float:
    """Return the load of the last minute; 0 if it is not known."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0


def _processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def busy(load: float, processors: int | None = None) -> str:
    """Return a sentence on other programs that disturbed the measurement; "" if none did."""
    count = processors or _processors()
    if load < BUSY * count:
        return ""
    return (
        f"other programs had a load of {load:.1f} on {count} processors before the measurement: "
        "the rates may be too low; close them and measure again"
    )


def thread_counts(processors: int) -> list[int]:
    """Return 1, 2, 4 and so on up to all processors."""
    counts = [2**n for n in range(processors.bit_length()) if 2**n < processors]
    return [*counts, processors]


def memory_size(cache: int, free: int | None) -> int:
    """Return how much memory is read in turn, in bytes: more than the caches hold."""
    size = min(max(LEAST_MEMORY, 2 * cache), MOST_MEMORY)
    if free is not None:
        size = max(ONE_EXPERT, min(size, round(OF_FREE * free)))
    return size - size % (1 << 20)


def _aligned(size: int) -> NDArray[np.uint8]:
    """Return memory that begins on a page and is written once."""
    memory = np.zeros(size + 4096, np.uint8)
    start = -memory.ctypes.data % 4096
    memory = memory[start : start + size]
    memory.fill(1)
    return memory


def _values(rates: Iterable[Rate]) -> str:
    return ", ".join(f"{rate.value:.3g}" for rate in rates)


# ------------------------------------------------------------------------------- the host


class _Host:
    """Reads of memory by torch's threads, as sums."""

    def __init__(self, memory: NDArray[np.uint8], threads: int) -> None:
        self._values = torch.from_numpy(memory).view(torch.float32)
        self._threads = threads

    def read(self, first: int = 0, parts: int = 1) -> int:
        """Sum one of some equal parts of the memory, and return its bytes."""
        torch.set_num_threads(self._threads)
        size = len(self._values) // parts
        values = self._values[first * size : (first + 1) * size]
        values.sum()
        return values.nbytes


def _reads(memory: NDArray[np.uint8], threads: int, clock: Clock) -> Rate:
    before = torch.get_num_threads()
    try:
        return rate_of(_Host(memory, threads).read, clock, READS_S)
    finally:
        torch.set_num_threads(before)


def _inner(memory: NDArray[np.uint8], threads: int, clock: Clock) -> Rate:
    """Return the rate of copies of one half of the memory to the other, in GB/s."""
    before = torch.get_num_threads()
    half = memory.nbytes // 2
    source, target = torch.from_numpy(memory)[:half], torch.from_numpy(memory)[half : 2 * half]

    def copy() -> int:
        target.copy_(source)
        return half

    torch.set_num_threads(threads)
    try:
        return rate_of(copy, clock, READS_S)
    finally:
        torch.set_num_threads(before)


def handoff(clock: Clock, count: int = HANDOFFS) -> Rate:
    """Return the time of handing an empty task to a waiting thread until its end, in us."""
    go, back, running = threading.Lock(), threading.Lock(), True
    go.acquire()
    back.acquire()

    def work() -> None:
        while True:
            go.acquire()
            if not running:
                return
            back.release()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    times = []
    for n in range(WARM_HANDOFFS + count):
        began = clock()
        go.release()
        back.acquire()
        if n >= WARM_HANDOFFS:
            times.append((clock() - began) / 1e3)
    running = False
    go.release()
    thread.join()
    return spread(times)


# ------------------------------------------------------------------------------- the GPU


def _copies(card: Accelerator, host: _Host, clock: Clock) -> Copies:
    """Measure the GPU's copies; the first round of each kind warms the link up."""
    pinned = spread(copy_rates(card, EXPERT_BYTES, pinned=True)[1:])
    back = spread(copy_rates(card, EXPERT_BYTES, pinned=True, back=True)[1:])
    pageable = spread(copy_rates(card, EXPERT_BYTES, pinned=False)[1:])
    beside, together = _beside(card, host, clock)
    device = spread(device_rates(card, DEVICE_BYTES)[1:])
    return Copies(pinned, back, pageable, beside, together, device)


def _beside(card: Accelerator, host: _Host, clock: Clock) -> tuple[Rate, Rate]:
    """Return the rate of copies while the host reads, and of both together, in GB/s."""
    parts, rounds = 16, 8
    ends: list[tuple[int, int]] = []
    stop = threading.Event()

    def read() -> None:
        n = 0
        while not stop.is_set() or len(ends) < 3:
            size = host.read(n % parts, parts)
            ends.append((clock(), size))
            n += 1

    before = torch.get_num_threads()
    thread = threading.Thread(target=read)
    thread.start()
    try:
        rates = copy_rates(
            card, EXPERT_BYTES, pinned=True, rounds=rounds, go_on=lambda: len(ends) < 3
        )
    finally:
        stop.set()
        thread.join()
        torch.set_num_threads(before)
    copied = spread(rates[1:])
    (first, _), *later = ends
    reads = sum(size for _, size in later) / max(1, later[-1][0] - first)
    return copied, Rate(copied.value + reads, copied.low + reads, copied.high + reads)

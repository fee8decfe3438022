"""Rates of copies between host memory and a GPU, and inside the GPU's memory."""

from collections.abc import Callable

from moebench.substrate.machines.accelerator import Accelerator
from moebench.substrate.machines.records import rows

#: Least bytes of a round of copies, and rounds, of which the best one counts.
LEAST_BYTES, ROUNDS = 256 << 20, 5


def copy_rate(card: Accelerator, size: int, pinned: bool) -> float:
    """Return the rate of consecutive copies of ``size`` bytes to the GPU, in GB/s.

    Args:
        pinned: copy from page-locked memory, as experts are copied, or from pageable memory.

    Raises BudgetError: too little memory, or too little that can be page-locked.
    """
    return max(copy_rates(card, size, pinned))


def copy_rates(
    card: Accelerator, size: int, pinned: bool, back: bool = False, rounds: int = ROUNDS,
    go_on: Callable[[], bool] = lambda: False,
) -> list[float]:  # fmt: skip
    """Return the rates of rounds of consecutive copies of ``size`` bytes, in GB/s.

    Args:
        pinned: whether the host's memory is page-locked.
        back: copy from the GPU to the host.
        go_on: whether another round follows after ``rounds``.

    Raises BudgetError: as `copy_rate`.
    """
    count = max(4, LEAST_BYTES // size)
    host, device = rows(count, size, "the measured copies"), card.allocate(2, size)
    if pinned:
        card.pin(host)
    stream, rates = card.stream(), list[float]()
    try:
        while len(rates) < rounds or go_on():
            with card.on(stream):
                began = card.record(stream)
                for n in range(count):
                    target, source = device[n % 2], host[n]
                    card.copy(*((source, target) if back else (target, source)))
                    card.record(stream).synchronize()
                ended = card.record(stream)
            ended.synchronize()
            rates.append(count * size / max(1, card.elapsed_ns(began, ended)))
    finally:
        if pinned:
            card.unpin(host)
    return rates


def device_rates(card: Accelerator, size: int) -> list[float]:
    """Return the rates of copies of ``size`` bytes inside the GPU's memory, in GB/s.

    Reads and writes are both counted.

    Raises BudgetError: the GPU has less than twice the memory.
    """
    memory, stream, rates = card.allocate(2, size), card.stream(), list[float]()
    for _ in range(ROUNDS):
        with card.on(stream):
            began = card.record(stream)
            card.copy(memory[1], memory[0])
            ended = card.record(stream)
        ended.synchronize()
        rates.append(2 * size / max(1, card.elapsed_ns(began, ended)))
    return rates

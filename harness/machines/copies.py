"""Rates of copies from host memory to a GPU."""

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
    count = max(4, LEAST_BYTES // size)
    source, target = rows(count, size, "the measured copies"), card.allocate(2, size)
    if pinned:
        card.pin(source)
    stream, least_ns = card.stream(), 0
    try:
        for _ in range(ROUNDS):
            with card.on(stream):
                began = card.record(stream)
                for n in range(count):
                    card.copy(target[n % 2], source[n])
                    card.record(stream).synchronize()
                ended = card.record(stream)
            ended.synchronize()
            took_ns = max(1, card.elapsed_ns(began, ended))
            least_ns = min(took_ns, least_ns or took_ns)
    finally:
        if pinned:
            card.unpin(source)
    return count * size / least_ns

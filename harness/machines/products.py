"""Products of one expert on this computer's processor: rates by format, rows and threads.

An expert is three matrices, as OLMoE has them; enough experts are multiplied in turn that none
is still in a cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import linear, silu

from moebench.harness.machines.products_file import EXPERT, Products
from moebench.harness.machines.rates import Clock, rate_of

#: Weights of the expert.
WEIGHTS = 3 * EXPERT[0] * EXPERT[1]

#: Rows with which an expert is multiplied: one decoded token, and a part of a prompt.
ROWS = (1, 32)

#: Intended time of one measurement in seconds, at most and at least.
MOST_S, LEAST_S = 0.5, 0.08


class Experts(ABC):
    """Experts of one format in memory.

    Attributes:
        expert_bytes: size of one expert.
    """

    expert_bytes: int

    @abstractmethod
    def compute(self, rows: int, threads: int) -> int:
        """Multiply the next experts with rows, and return how many experts there were."""


class Kernels(ABC):
    """A library that multiplies experts.

    Attributes:
        name: the library and its version.
        formats: names of the weights' formats, such as ``q4_k``.
    """

    name: str
    formats: Sequence[str]

    @abstractmethod
    def experts(self, form: str, memory: NDArray[np.uint8]) -> AbstractContextManager[Experts]:
        """Fill memory with experts in a format; the context ends their use."""


def measure_products(
    libraries: Sequence[Kernels], memory: NDArray[np.uint8], threads: Sequence[int],
    say: Callable[[str], None], clock: Clock, seconds: float,
) -> Products:  # fmt: skip
    """Measure every format of some libraries with `ROWS` rows by numbers of threads.

    Args:
        memory: is filled with experts, so it should exceed the caches.
        seconds: intended time of all measurements.
    """
    pairs = [(library, form) for library in libraries for form in library.formats]
    each = seconds / max(1, len(pairs) * len(ROWS) * len(threads))
    each = min(MOST_S, max(LEAST_S, each))
    found = Products({}, {}, {})
    for library, form in pairs:
        with library.experts(form, memory) as experts:
            found.kernels[form] = library.name
            found.bits[form] = round(8 * experts.expert_bytes / WEIGHTS, 4)
            found.rates[form] = {
                rows: {
                    count: rate_of(_round(experts, rows, count), clock, each) for count in threads
                }
                for rows in ROWS
            }
        say(_line(found, form))
    return found


def _round(experts: Experts, rows: int, threads: int) -> Callable[[], float]:
    return lambda: experts.compute(rows, threads) * experts.expert_bytes


def _line(found: Products, form: str) -> str:
    """Return a line on a format's rates, for progress."""
    by_rows = found.rates[form]
    few = ", ".join(f"{rate.value:.3g}" for rate in by_rows[1].values())
    counts = ", ".join(map(str, by_rows[1]))
    gflops = max(rate.value for rate in by_rows[ROWS[-1]].values()) * flops_of(
        found.bits[form], ROWS[-1]
    )
    return (
        f"experts in {form}, one row: {few} GB/s by {counts} threads; {ROWS[-1]} rows: "
        f"{gflops:.3g} GFLOPS"
    )


def flops_of(bits: float, rows: int) -> float:
    """Return the floating-point operations for each byte of weights."""
    return 2 * rows * 8 / bits


# ------------------------------------------------------------------------------- torch


class Torch(Kernels):
    """torch's own products, of weights that are not quantised."""

    formats = ("f32", "bf16")
    _KINDS: Mapping[str, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16}

    def __init__(self) -> None:
        self.name = f"torch {torch.__version__}"

    @contextmanager
    def experts(self, form: str, memory: NDArray[np.uint8]) -> Iterator[Experts]:
        """Fill memory with experts, and yield their products; the number of threads is restored."""
        before = torch.get_num_threads()
        try:
            with torch.inference_mode():
                yield _TorchExperts(self._KINDS[form], memory)
        finally:
            torch.set_num_threads(before)


class _TorchExperts(Experts):
    def __init__(self, kind: torch.dtype, memory: NDArray[np.uint8]) -> None:
        self._kind = kind
        self.expert_bytes = WEIGHTS * kind.itemsize
        block = torch.randn(EXPERT[0], generator=torch.Generator().manual_seed(0)) / 50
        tiled(memory, block.to(kind).view(torch.uint8).numpy())
        count = memory.nbytes // self.expert_bytes
        weights = torch.from_numpy(memory[: count * self.expert_bytes]).view(kind)
        self._experts = weights.view(count, 3, -1)
        self._next = 0

    def compute(self, rows: int, threads: int) -> int:
        """Multiply the next expert with rows."""
        torch.set_num_threads(threads)
        hidden, width = EXPERT
        gate, up, down = self._experts[self._next]
        self._next = (self._next + 1) % len(self._experts)
        x = torch.ones(rows, hidden, dtype=self._kind)
        inner = silu(linear(x, gate.view(width, hidden))) * linear(x, up.view(width, hidden))
        linear(inner, down.view(hidden, width))
        return 1


def tiled(memory: NDArray[np.uint8], block: NDArray[np.uint8]) -> None:
    """Fill memory with copies of a block."""
    whole = memory.nbytes // block.nbytes * block.nbytes
    memory[:whole].reshape(-1, block.nbytes)[:] = block.reshape(-1)
    memory[whole:] = block.reshape(-1)[: memory.nbytes - whole]

"""Time of a product with 4-bit weights that are unpacked first, over the product in bf16.

    python -m benchmarks.unpacking [THREADS]

What PyTorch code without a fused kernel does with quantised experts on the host: two weights a
byte, groups of 64 with a scale and a zero point, as HQQ stores them.  `Software.host_unpacking` is
the first ratio, and its range ends at the second.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

HIDDEN, WIDTH, GROUP, REPEATS = 3584, 2560, 64, 9
DTYPE = torch.bfloat16


def median_s(call: Callable[[], object]) -> float:
    """Return the median time of a call, in seconds, after one that is not counted."""
    call()
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def in_place(packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Return the weights, converted into one tensor and scaled there."""
    half = packed.shape[0]
    weights = torch.empty((2 * half, GROUP), dtype=DTYPE)
    weights[:half], weights[half:] = packed >> 4, packed & 15
    return weights.sub_(zero).mul_(scale).reshape(WIDTH, HIDDEN)


def step_by_step(packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Return the weights, with a new tensor for each operation."""
    weights = torch.cat([packed >> 4, packed & 15]).to(DTYPE)
    return ((weights - zero) * scale).reshape(WIDTH, HIDDEN)


def main() -> None:
    """Print the two ratios."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    groups = HIDDEN * WIDTH // GROUP
    state = torch.randn(1, HIDDEN, dtype=DTYPE)
    dense = [torch.randn(WIDTH, HIDDEN, dtype=DTYPE) for _ in range(3)]
    packed = [torch.randint(0, 256, (groups // 2, GROUP), dtype=torch.uint8) for _ in range(3)]
    scale, zero = (torch.rand(groups, 1, dtype=DTYPE) for _ in range(2))
    alone = median_s(lambda: [state @ weights.T for weights in dense])
    for unpack in (in_place, step_by_step):
        took = median_s(lambda by=unpack: [state @ by(one, scale, zero).T for one in packed])
        print(f"{unpack.__name__}: {took / alone:.1f} times the product alone")


if __name__ == "__main__":
    with torch.inference_mode():
        main()

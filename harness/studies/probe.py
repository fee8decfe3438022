"""How fast this computer is at this moment: one row through experts of a model's size.

A computer that others use, or that grows warm, is not equally fast from minute to minute.  A table
that compares times of different minutes shows with this probe how far the computer itself moved.
"""

import statistics
import time

import torch

from moebench.substrate.models.shape import ModelShape

#: Experts in turn, so that no cache holds them: at least so many numbers together, and so many.
NUMBERS, EXPERTS = 50_000_000, 4

ROUNDS = 5


def probe_ns(shape: ModelShape) -> float:
    """One expert's products of one row, in fp32 and torch alone: median of rounds, in ns."""
    wide, narrow = shape.hidden_size, shape.expert_width
    count = max(EXPERTS, -(-NUMBERS // shape.expert_params))
    experts = [
        (torch.zeros(2 * narrow, wide).fill_(1e-3), torch.zeros(wide, narrow).fill_(1e-3))
        for _ in range(count)
    ]
    row, times = torch.ones(1, wide), []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for gate_up, down in experts:
            torch.nn.functional.linear(
                torch.nn.functional.linear(row, gate_up)[:, :narrow], down
            )  # fmt: skip
        times.append((time.perf_counter_ns() - began) / count)
    return statistics.median(times)

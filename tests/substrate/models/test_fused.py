"""The functions of experts against products by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.substrate.models.fused import (
    clamped_swiglu,
    expert_function,
    fused_swiglu,
    grouped_swiglu,
)

RANDOM = torch.Generator().manual_seed(3)


def draw(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=RANDOM)


def silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def test_swiglu_of_one_row_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0]])
    gate_up = torch.tensor([[1.0, 0.0], [0.5, 0.25], [0.0, 1.0], [2.0, 0.0]])  # gates, then ups
    down = torch.tensor([[1.0, 10.0], [0.0, -1.0]])
    hidden = [silu(1.0) * 2.0, silu(1.0) * 2.0]
    wanted = [hidden[0] + 10 * hidden[1], -hidden[1]]
    assert fused_swiglu(x, gate_up, down)[0].tolist() == pytest.approx(wanted, rel=1e-6)


def test_groups_of_rows_are_each_their_own_experts() -> None:
    x, gate_up, down = draw(5, 8), draw(3, 8, 8), draw(3, 8, 4)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = grouped_swiglu(x, gate_up, down, ends)
    assert torch.equal(found[:2], fused_swiglu(x[:2], gate_up[0], down[0]))
    assert torch.equal(found[2:], fused_swiglu(x[2:], gate_up[2], down[2]))


@pytest.mark.parametrize(
    ("gate", "up", "value"),
    [
        # (up + 1) · gate · sigmoid(2 gate), gate up to 3, up from -3 to 3.
        (1.0, 0.5, 1.5 / (1 + math.exp(-2))),
        (9.0, 0.5, 1.5 * 3 / (1 + math.exp(-6))),
        (-9.0, 0.5, 1.5 * -9 / (1 + math.exp(18))),
        (1.0, 7.0, 4 / (1 + math.exp(-2))),
        (1.0, -7.0, -2 / (1 + math.exp(-2))),
    ],
)
def test_projections_are_clamped(gate: float, up: float, value: float) -> None:
    """A state of 0 leaves the biases alone; the output's bias is 0.25."""
    biases = torch.tensor([gate, up]), torch.tensor([0.25])
    found = clamped_swiglu(
        torch.zeros(1, 1), torch.ones(2, 1), torch.ones(1, 1), *biases, limit=3.0, alpha=2.0
    )
    assert found.item() == pytest.approx(value + 0.25, rel=1e-5)


def test_the_function_is_that_of_the_models_family() -> None:
    plain: Any = SimpleNamespace(swiglu_limit=None)
    assert expert_function(plain) is fused_swiglu
    clamped: Any = SimpleNamespace(swiglu_limit=3.0, swiglu_alpha=2.0)
    x, gate_up, down, first, second = draw(2, 4), draw(6, 4), draw(4, 3), draw(6), draw(4)
    assert torch.equal(
        expert_function(clamped)(x, gate_up, down, first, second),
        clamped_swiglu(x, gate_up, down, first, second, limit=3.0, alpha=2.0),
    )

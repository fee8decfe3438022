"""Experts in memory: which are computed in one product, and that all forms of access agree."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.substrate.models.resident import ResidentExperts, stacks

HIDDEN, WIDTH, EXPERTS = 8, 16, 4


def shape(**of: Any) -> Any:
    made = {
        "expert_bias": False, "hidden_size": HIDDEN, "expert_width": WIDTH,
        "num_experts": EXPERTS, "moe_layers": (1, 2),
    } | of  # fmt: skip
    found = SimpleNamespace(**made)
    found.expert_params = 3 * found.hidden_size * found.expert_width
    if found.expert_bias:
        found.expert_params += 2 * found.expert_width + found.hidden_size
    return found


LIKE = torch.zeros(1)


@pytest.mark.parametrize(
    ("of", "like", "count", "found"),
    [
        ({}, LIKE, 3, True),
        ({}, LIKE, 2, False),  # two products cost less than copies
        ({}, LIKE.bfloat16(), 3, True),
        ({}, LIKE.double(), 3, False),
        ({}, LIKE.to(torch.uint8), 3, False),
        ({"expert_bias": True}, LIKE, 3, False),
        # 256 KiB are 65,536 fp32 weights: 3 · 128 · 170.67; of bf16 twice as many.
        ({"hidden_size": 128, "expert_width": 168}, LIKE, 3, True),
        ({"hidden_size": 128, "expert_width": 172}, LIKE, 3, False),
        ({"hidden_size": 128, "expert_width": 176}, LIKE.bfloat16(), 3, True),
        # Rows begin at multiples of 16 bytes.
        ({"hidden_size": 6}, LIKE, 3, False),
        ({"expert_width": 6}, LIKE, 3, False),
        ({"hidden_size": 12, "expert_width": 4}, LIKE, 3, True),
        ({"hidden_size": 12, "expert_width": 8}, LIKE.bfloat16(), 3, False),
    ],
)  # fmt: skip
def test_several_small_experts_are_one_product(
    of: dict[str, Any], like: torch.Tensor, count: int, found: bool
) -> None:
    assert stacks(shape(**of), like, count) is found


class Weights:
    """Records of random numbers, the same for each expert whenever it is read."""

    def __init__(self, of: Any) -> None:
        self.shape = of

    def expert_record(self, layer: int, expert: int, dtype: torch.dtype) -> torch.Tensor:
        random = torch.Generator().manual_seed(100 * layer + expert)
        return torch.rand(self.shape.expert_params, generator=random).to(dtype)


def record(of: Any, layer: int, expert: int) -> torch.Tensor:
    return Weights(of).expert_record(layer, expert, torch.float32)


def test_matrices_are_views_of_the_records() -> None:
    experts = ResidentExperts(Weights(shape()), torch.float32)  # type: ignore[arg-type]
    for layer in (1, 2):
        for expert in range(EXPERTS):
            whole = record(shape(), layer, expert)
            gate_up, down = experts.matrices(layer, expert)
            assert torch.equal(gate_up, whole[: 2 * HIDDEN * WIDTH].view(2 * WIDTH, HIDDEN))
            assert torch.equal(down, whole[2 * HIDDEN * WIDTH :].view(HIDDEN, WIDTH))


def test_biases_come_behind_the_matrices() -> None:
    of = shape(expert_bias=True)
    experts = ResidentExperts(Weights(of), torch.float32)  # type: ignore[arg-type]
    whole = record(of, 2, 3)
    gate_up, down, first, second = experts.matrices(2, 3)
    assert torch.equal(gate_up, whole[: 2 * HIDDEN * WIDTH].view(2 * WIDTH, HIDDEN))
    assert torch.equal(down, whole[2 * HIDDEN * WIDTH : 3 * HIDDEN * WIDTH].view(HIDDEN, WIDTH))
    assert torch.equal(first, whole[3 * HIDDEN * WIDTH : -HIDDEN])
    assert torch.equal(second, whole[-HIDDEN:])
    assert experts.all_of(2) is None
    assert experts.stacked(2, [0, 1, 2]) is None


@pytest.mark.parametrize("chosen", [[0, 2, 3], [0, 1, 2, 3]])
def test_stacked_experts_are_their_matrices(chosen: list[int]) -> None:
    experts = ResidentExperts(Weights(shape()), torch.float32)  # type: ignore[arg-type]
    stacked = experts.stacked(1, chosen)
    all_of_layer = experts.all_of(1)
    assert stacked is not None
    assert all_of_layer is not None
    for at, expert in enumerate(chosen):
        for of_stack, of_layer, own in zip(
            stacked, all_of_layer, experts.matrices(1, expert), strict=True
        ):
            assert torch.equal(of_stack[at], own)
            assert torch.equal(of_layer[expert], own.T)
    assert experts.stacked(1, [0, 1]) is None


def test_only_experts_up_to_a_mebibyte_are_stacked() -> None:
    """One expert: 3 · 256 · 341 weights of four bytes are 1 MiB less 1,024 bytes."""
    of = {"num_experts": 1, "moe_layers": (0,), "hidden_size": 256}
    for width, gathers in ((341, True), (342, False)):
        weights: Any = Weights(shape(expert_width=width, **of))
        experts = ResidentExperts(weights, torch.float32)
        assert (experts.all_of(0) is not None) is gathers

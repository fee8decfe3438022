"""Scores and choices of gates, and a block's products, by hand."""

import math

import pytest
import torch

from moebench.substrate.models.layers import gate_scores, gate_weights, own_choice, swiglu
from moebench.substrate.models.shape import GateKind, ModelShape
from tests.substrate.engine.fakes import small_shape


def of(gate: GateKind, top_k: int = 2, **more) -> ModelShape:
    return small_shape(experts=6, top_k=top_k).model_copy(update={"gate": gate, **more})


LOGITS = torch.tensor([[0.0, 1.0, 3.0, 2.0, -1.0, 2.5]])
BIAS = torch.tensor([0.9, 0.0, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("gate", GateKind)
def test_scores_of_each_gate(gate: GateKind) -> None:
    sigmoids = gate in (GateKind.SIGMOID_BIAS_TOPK_RENORM, GateKind.TOPK_SIGMOID)
    wanted = LOGITS.sigmoid() if sigmoids else LOGITS.softmax(-1)
    biased = wanted + BIAS if gate is GateKind.SIGMOID_BIAS_TOPK_RENORM else wanted
    torch.testing.assert_close(gate_scores(of(gate), LOGITS), wanted)
    torch.testing.assert_close(gate_scores(of(gate), LOGITS.bfloat16(), BIAS), biased)
    assert gate_scores(of(gate), LOGITS.bfloat16()).dtype == torch.float32


def test_the_best_are_chosen_best_first() -> None:
    shape = of(GateKind.SOFTMAX_TOPK, 3)
    assert own_choice(shape, LOGITS, gate_scores(shape, LOGITS)).tolist() == [[2, 5, 3]]
    biased = of(GateKind.SIGMOID_BIAS_TOPK_RENORM)
    assert own_choice(biased, LOGITS, gate_scores(biased, LOGITS, BIAS)).tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("gate", "by_logits"),
    [
        (GateKind.SPARSEMIXER, True), (GateKind.TOPK_SOFTMAX, True), (GateKind.TOPK_SIGMOID, True),
        (GateKind.SOFTMAX_TOPK, False), (GateKind.SOFTMAX_TOPK_RENORM, False),
        (GateKind.SIGMOID_BIAS_TOPK_RENORM, False),
    ],
)  # fmt: skip
def test_gates_choose_by_logits_or_by_scores(gate: GateKind, by_logits: bool) -> None:
    other = -LOGITS  # stands for scores that order the experts the other way
    found = own_choice(of(gate), LOGITS, other).tolist()
    assert found == ([[2, 5]] if by_logits else [[4, 0]])


def test_groups_limit_the_choice() -> None:
    # Groups (0, 1), (2, 3), (4, 5): the best of each are 1, 3 and 2.5; the best two add up to 1, 5
    # and 1.5.
    scores = LOGITS.clone()
    softmax = of(GateKind.SOFTMAX_TOPK, gate_groups=(3, 1))
    assert own_choice(softmax, LOGITS, scores).tolist() == [[2, 3]]
    two = of(GateKind.SOFTMAX_TOPK, 3, gate_groups=(3, 2))
    assert own_choice(two, LOGITS, scores).tolist() == [[2, 5, 3]]
    high = torch.tensor([[4.0, 0.0, 3.0, 2.0, 1.0, 1.0]])
    assert own_choice(softmax, high, high).tolist() == [[0, 1]]  # the best alone counts
    summed = of(GateKind.SIGMOID_BIAS_TOPK_RENORM, gate_groups=(3, 1))
    assert own_choice(summed, high, high).tolist() == [[2, 3]]  # the sum of two does


def test_a_block_is_down_of_silu_of_gate_times_up() -> None:
    draws = torch.Generator().manual_seed(0)
    x, gate, up, down = (
        torch.randn(*size, generator=draws) for size in ((2, 3), (4, 3), (4, 3), (3, 4))
    )
    inner = (x @ gate.T) * (x @ gate.T).sigmoid() * (x @ up.T)
    torch.testing.assert_close(swiglu(x, gate, up, down), inner @ down.T)


def test_an_expert_at_exactly_twice_the_jitter_is_near() -> None:
    """Logits 2, 1 and 0.75: distances 0.5 and 0.625 of the larger magnitude; jitter 0.25."""
    shape = small_shape(experts=3, top_k=1).model_copy(
        update={"gate": GateKind.SPARSEMIXER, "gate_jitter": 0.25}
    )
    logits = torch.tensor([[2.0, 1.0, 0.75]])
    found = gate_weights(shape, logits, logits.softmax(-1), torch.tensor([[0]]))
    assert found.item() == pytest.approx(1 / (1 + math.exp(-1)))


def test_an_earlier_pick_is_no_neighbour_of_a_later_one() -> None:
    shape = small_shape(experts=3, top_k=2).model_copy(
        update={"gate": GateKind.SPARSEMIXER, "gate_jitter": 0.5}
    )
    logits = torch.tensor([[2.0, 1.0, 0.75]])
    found = gate_weights(shape, logits, logits.softmax(-1), torch.tensor([[0, 1]]))
    first = 1 / (1 + math.exp(-1) + math.exp(-1.25))
    assert found[0].tolist() == pytest.approx([first, 1 / (1 + math.exp(-0.25))])

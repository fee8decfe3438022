"""Gate weights of chosen experts for every kind of gate, compared with scalar formulas."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.models.layers import gate_scores, gate_weights
from moebench.substrate.models.shape import GateKind
from tests.substrate.engine.fakes import small_shape

#: So that no pair of the logits below is near by a rounding.
JITTER = 0.19


def softmax(values: list[float]) -> list[float]:
    raised = [math.exp(v - max(values)) for v in values]
    return [r / sum(raised) for r in raised]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def sparsemixer(logits: list[float], ids: list[int]) -> list[float]:
    """Return the sparse mixer's weights: each pick against near scores not picked before."""
    weights, picked = [], set()
    for pick in ids:
        if pick < 0:
            weights.append(0.0)
            continue
        near = [
            e
            for e, logit in enumerate(logits)
            if e not in picked
            and (logits[pick] - logit) / max(abs(logit), logits[pick]) <= 2 * JITTER
        ]
        weights.append(dict(zip(near, softmax([logits[e] for e in near]), strict=True))[pick])
        picked.add(pick)
    return weights


def plain_weights(kind: GateKind, logits: list[float], ids: list[int]) -> list[float]:
    """Return the gate weights of one row; -1 means no expert."""
    if kind is GateKind.SPARSEMIXER:
        return sparsemixer(logits, ids)
    used = [e for e in ids if e >= 0]
    if kind in (GateKind.SOFTMAX_TOPK, GateKind.SOFTMAX_TOPK_RENORM):
        each = dict(enumerate(softmax(logits)))
    elif kind is GateKind.TOPK_SOFTMAX:
        each = dict(zip(used, softmax([logits[e] for e in used]) if used else [], strict=True))
    else:
        each = {e: sigmoid(logit) for e, logit in enumerate(logits)}
    total = 1.0
    if kind in (GateKind.SOFTMAX_TOPK_RENORM, GateKind.SIGMOID_BIAS_TOPK_RENORM):
        total = sum(each[e] for e in used)
    return [each[e] / total if e >= 0 else 0.0 for e in ids]


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[list[float]], list[list[int]]]:
    """Generate logits ``[T, E]`` and distinct chosen experts ``[T, K]``, with some missing."""
    experts = draw(st.integers(2, 6))
    k, count = draw(st.integers(1, experts)), draw(st.integers(1, 3))
    # Positive: SparseMixer's distance is relative to the pick's logit.
    logit = st.integers(1, 40).map(lambda n: n / 8)
    logits = [draw(st.lists(logit, min_size=experts, max_size=experts)) for _ in range(count)]
    ids = [draw(st.permutations(range(experts)))[:k] for _ in range(count)]
    return logits, [[draw(st.sampled_from((e, e, -1))) for e in row] for row in ids]


@settings(deadline=None, max_examples=30)
@given(rows())
def test_weights_of_any_experts_and_of_fewer(case):
    logits, ids = case
    logits_TE, ids_TK = torch.tensor(logits), torch.tensor(ids)
    fewer = bool((ids_TK < 0).any())
    for kind in GateKind:
        shape = small_shape(experts=len(logits[0]), top_k=len(ids[0])).model_copy(
            update={"gate": kind, "gate_jitter": JITTER, "routed_scaling_factor": 1.5}
        )
        scores_TE = gate_scores(shape, logits_TE)
        found = gate_weights(shape, logits_TE, scores_TE, ids_TK, fewer)
        truth = [plain_weights(kind, *row) for row in zip(logits, ids, strict=True)]
        torch.testing.assert_close(found, 1.5 * torch.tensor(truth), atol=1e-5, rtol=1e-5)

"""Norm, SwiGLU and gate of a decoder layer, shared by the decoder and the scale-model trainer.

Shape letters: T tokens (rows), H hidden, E experts, K chosen experts a token, D head width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.substrate.models.shape import GateKind, ModelShape


class Norm:
    """RMSNorm or LayerNorm over the last dimension, in fp32 as in the original models.

    x / sqrt(mean(x²) + eps) is computed as √H · x / hypot(‖x‖, √(H·eps)): for one row on a CPU this
    takes half as long as torch's own function, and a decoded token needs about a hundred norms.

    Attributes:
        weight, bias: ``[width]``.
        layer_norm: whether it is a LayerNorm.
    """

    def __init__(
        self, shape: ModelShape, weight: Tensor, bias: Tensor | None = None,
        eps: float | None = None,
    ) -> None:  # fmt: skip
        self.layer_norm = shape.norm == "layer" and bias is not None
        self.eps = eps = shape.norm_eps if eps is None else eps
        self.weight, self.bias = weight, bias
        width = weight.shape[-1]
        self._scaled = weight * math.sqrt(width)
        self._floor = torch.tensor(math.sqrt(width * eps), device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalised rows, in the shape and dtype of the input."""
        if self.layer_norm:
            return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)
        y = x.float()
        length = torch.hypot(torch.linalg.vector_norm(y, dim=-1, keepdim=True), self._floor)
        return (y / length).to(x.dtype) * self._scaled


def swiglu(x_TH: Tensor, gate_IH: Tensor, up_IH: Tensor, down_HI: Tensor) -> Tensor:
    """Return the SwiGLU feed-forward block of an expert, the shared experts, or a dense layer."""
    return F.linear(F.silu(F.linear(x_TH, gate_IH)) * F.linear(x_TH, up_IH), down_HI)


def gate_scores(shape: ModelShape, logits_TE: Tensor, bias_E: Tensor | None = None) -> Tensor:
    """Return the scores by which a gate ranks experts, fp32 ``[T, E]``.

    For a softmax gate they are its probabilities before any renormalisation, which SMoE and DAOP
    compare.  A sigmoid gate with a correction bias ranks by the biased sigmoid.  SparseMixer and
    top-k-first gates rank by logits; the softmax keeps this order.
    """
    logits_TE = logits_TE.float()
    if shape.gate is GateKind.SIGMOID_BIAS_TOPK_RENORM:
        scores = logits_TE.sigmoid()
        return scores if bias_E is None else scores + bias_E
    if shape.gate is GateKind.TOPK_SIGMOID:
        return logits_TE.sigmoid()
    return logits_TE.softmax(dim=-1)


def own_choice(shape: ModelShape, logits_TE: Tensor, scores_TE: Tensor) -> Tensor:
    """Return the ids of the model's own top-k experts ``[T, K]``, best first.

    If groups limit the choice, the open groups are those with the highest best score (softmax), or
    the highest sum of the two best scores (biased sigmoid).
    """
    # These gates choose by logits; softmax and sigmoid keep the order but can create ties.
    by_logits = (GateKind.SPARSEMIXER, GateKind.TOPK_SOFTMAX, GateKind.TOPK_SIGMOID)
    ranked_TE = logits_TE.float() if shape.gate in by_logits else scores_TE
    if shape.gate_groups is not None:
        count, opened = shape.gate_groups
        grouped = ranked_TE.view(len(ranked_TE), count, -1)
        best = 2 if shape.gate is GateKind.SIGMOID_BIAS_TOPK_RENORM else 1
        rank = grouped.topk(best, dim=-1).values.sum(-1)
        closed = torch.ones_like(rank, dtype=torch.bool)
        closed = closed.scatter(1, rank.topk(opened, dim=-1).indices, False)
        ranked_TE = grouped.masked_fill(closed[..., None], float("-inf")).flatten(1)
    return ranked_TE.topk(shape.top_k).indices


def gate_weights(
    shape: ModelShape, logits_TE: Tensor, scores_TE: Tensor, ids_TK: Tensor, fewer: bool = False
) -> Tensor:
    """Return the gate weights of arbitrarily chosen experts, fp32 ``[T, K]``.

    Args:
        scores_TE: the `gate_scores` of these logits.
        fewer: some ids are -1: no expert, whose weight is 0.

    For the model's own top-k this is the published gate.  For a substitution it is the chosen
    experts' own gate scores, renormalised exactly where the model renormalises its own top-k.
    """
    unused = ids_TK < 0 if fewer else None
    if unused is not None:
        ids_TK = ids_TK.clamp(min=0)
    match shape.gate:
        case GateKind.SOFTMAX_TOPK | GateKind.SOFTMAX_TOPK_RENORM | GateKind.TOPK_SIGMOID:
            weights = scores_TE.gather(-1, ids_TK)
        case GateKind.TOPK_SOFTMAX:
            chosen = logits_TE.float().gather(-1, ids_TK)
            if unused is not None:
                chosen = chosen.masked_fill(unused, float("-inf"))
            weights = chosen.softmax(dim=-1)
        case GateKind.SIGMOID_BIAS_TOPK_RENORM:  # The bias affects the choice, not the weights.
            weights = logits_TE.float().sigmoid().gather(-1, ids_TK)
        case GateKind.SPARSEMIXER:
            weights = _sparsemixer_weights(shape, logits_TE.float(), ids_TK, unused)
    if unused is not None:
        weights = weights.masked_fill(unused, 0)
    if shape.gate in (GateKind.SOFTMAX_TOPK_RENORM, GateKind.SIGMOID_BIAS_TOPK_RENORM):
        total = weights.sum(dim=-1, keepdim=True)
        if unused is not None:  # A token without any expert would divide by 0.
            total = total.masked_fill(unused.all(dim=-1, keepdim=True), 1)
        weights = weights / total
    scale = shape.routed_scaling_factor
    return weights if scale == 1.0 else weights * scale


def _sparsemixer_weights(
    shape: ModelShape, logits_TE: Tensor, ids_TK: Tensor, unused_TK: Tensor | None
) -> Tensor:
    """Return SparseMixer-v2 weights (Phi-3.5-MoE): a softmax over each pick and its near experts.

    An expert is near if its logit's distance to the pick's, relative to the larger magnitude, is at
    most twice the jitter.  Earlier picks are excluded.
    """
    weights = []
    remaining = logits_TE
    for k in range(ids_TK.shape[-1]):
        pick = ids_TK[:, k : k + 1]
        best = logits_TE.gather(-1, pick)
        distance = (best - logits_TE) / torch.maximum(logits_TE.abs(), best)
        near = remaining.masked_fill(distance > 2 * shape.gate_jitter, float("-inf"))
        weights.append(near.softmax(dim=-1).gather(-1, pick))
        others = remaining.scatter(-1, pick, float("-inf"))
        if unused_TK is not None:
            others = torch.where(unused_TK[:, k : k + 1], remaining, others)
        remaining = others
    return torch.cat(weights, dim=-1)

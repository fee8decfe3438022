"""The pieces of a decoder layer as pure functions: the decoder and the trainer share them.

Shape letters: T tokens (rows), H hidden, E experts, K chosen experts a token, D head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from substrate.arch import GateKind, ModelShape


def normalise(shape: ModelShape, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """RMSNorm or LayerNorm over the last dimension, in fp32 as the original models do it."""
    if shape.norm == "layer":
        return F.layer_norm(x, (x.shape[-1],), weight, bias, shape.norm_eps)
    return rms_norm(x, weight, shape.norm_eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation over the last dimension.

    Spelled out: on one row of a CPU, torch's own function takes four times as long.
    """
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rope_tables(shape: ModelShape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary embedding, each ``[..., D]`` for positions ``[...]``."""
    d = shape.head_dim
    inverse = shape.rope_theta ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = positions[..., None].float() * inverse.to(positions.device)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of queries or keys, in the half-split convention of Hugging Face."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def swiglu(x_TH: Tensor, gate_IH: Tensor, up_IH: Tensor, down_HI: Tensor) -> Tensor:
    """A gated feed-forward block: an expert, the shared experts, or a dense layer."""
    return F.linear(F.silu(F.linear(x_TH, gate_IH)) * F.linear(x_TH, up_IH), down_HI)


def gate_scores(shape: ModelShape, logits_TE: Tensor, bias_E: Tensor | None = None) -> Tensor:
    """The scores by which a router ranks experts, fp32 ``[T, E]``.

    For a softmax gate these are its probabilities, whether or not the chosen ones are
    renormalised later: the importance that SMoE and DAOP compare.  A sigmoid gate with a
    correction bias ranks by the biased sigmoid.  The softmax of the logits orders SparseMixer and
    top-k-first gates as their own logits do.
    """
    logits_TE = logits_TE.float()
    if shape.gate is GateKind.SIGMOID_BIAS_TOPK_RENORM:
        scores = logits_TE.sigmoid()
        return scores if bias_E is None else scores + bias_E
    if shape.gate is GateKind.TOPK_SIGMOID:
        return logits_TE.sigmoid()
    return logits_TE.softmax(dim=-1)


def gate_weights(shape: ModelShape, logits_TE: Tensor, ids_TK: Tensor) -> Tensor:
    """The weights that the model's gate gives to *any* chosen experts, fp32 ``[T, K]``.

    For the model's own top-k this is the published gate.  For a substitution it is the chosen
    experts' own gate scores, renormalised exactly where the model renormalises its own top-k.
    """
    logits_TE = logits_TE.float()
    chosen_TK = logits_TE.gather(-1, ids_TK)
    match shape.gate:
        case GateKind.SOFTMAX_TOPK | GateKind.SOFTMAX_TOPK_RENORM:
            weights = logits_TE.softmax(dim=-1).gather(-1, ids_TK)
        case GateKind.TOPK_SOFTMAX:
            weights = chosen_TK.softmax(dim=-1)
        case GateKind.TOPK_SIGMOID | GateKind.SIGMOID_BIAS_TOPK_RENORM:
            weights = chosen_TK.sigmoid()
        case GateKind.SPARSEMIXER:
            weights = _sparsemixer_weights(shape, logits_TE, ids_TK)
    if shape.gate in (GateKind.SOFTMAX_TOPK_RENORM, GateKind.SIGMOID_BIAS_TOPK_RENORM):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * shape.routed_scaling_factor


def _sparsemixer_weights(shape: ModelShape, logits_TE: Tensor, ids_TK: Tensor) -> Tensor:
    """SparseMixer-v2 (Phi-3.5-MoE): each pick is weighed by a softmax over its near rivals.

    A rival is near when its distance to the pick, relative to the larger magnitude, is at most
    twice the jitter; earlier picks no longer compete.
    """
    weights = []
    remaining = logits_TE
    for k in range(ids_TK.shape[-1]):
        pick = ids_TK[:, k : k + 1]
        best = logits_TE.gather(-1, pick)
        distance = (best - logits_TE) / torch.maximum(logits_TE.abs(), best)
        near = remaining.masked_fill(distance > 2 * shape.gate_jitter, float("-inf"))
        weights.append(near.softmax(dim=-1).gather(-1, pick))
        remaining = remaining.scatter(-1, pick, float("-inf"))
    return torch.cat(weights, dim=-1)

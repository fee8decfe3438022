"""Cache-Prior: experts that are on the device get a bonus when the router chooses.

"Mixture of Cache-Conditional Experts for Efficient Mobile Device Inference" (A. Skliar, T. van
Rozendaal et al., arXiv 2412.00099), after the first author's code (askliar/cache-prior-poc
3d1a096).  Tokens tolerate other experts than the router's best.  So a constant is added to the
logits of the experts in the cache, and fewer experts are missing.

    z'_e = z_e + λ · Δ̄ · [e is in the cache, or among the router's own J best]
    Δ̄    = mean of (max z - min z) in this layer over all tokens so far, this one included

The k experts with the largest z' are used.  Their weights are those of the unchanged logits.

    code                                    moebench
    ────                                    ────────
    lambda, 0 to 1; 0 is exact              the system's α (``--alpha``); 0.5 as in its README
    top_j (2)                               ``route.keep``
    RunningMean, inclusive, kept over       CachePrior._total, CachePrior._tokens
      sequences
    LRUCache of each layer, empty at each   ``scope=layer``, ``place=none``, ``route.emptied``
      sequence
    LRUCache.observe: the largest weight    LRUByWeight
      first, so that of one token's
      experts the heaviest is evicted first
    hits against the state before a token   residents when the gate is known
    weights: softmax(z) of the chosen,      Routed.weigh_as_TK: the chosen themselves; the model
      renormalised where the model does       renormalises as it does
    sigmoid with a correction bias: z is    `choice_values`
      the biased sigmoid
    half of each layer's experts            ``--capacity 0.5``

λ is the system's α because it is the same kind of option: one number from 0, exact, to 1, which
exchanges accuracy for misses.  So sweeps and accuracy by α work for it.

Deviations and readings:

- Policies see gate scores.  The logarithm of a softmax differs from the logits by a constant of
  the row, which changes neither Δ nor the order.  Sigmoid scores are converted back.  A score of 0
  (recorded as a float16) counts as the row's smallest positive one.
- A device cannot be emptied.  With ``emptied``, experts of earlier batches that are still in their
  slots get no bonus until this batch uses them.  Under LRU in each layer the others are exactly
  the contents of the code's cache, so the choice is the code's; only an expert that is used again
  is not copied again, which the code would count as a miss.  In other scopes and under another
  eviction it is a reading.
- The code routes a text token by token.  Here a prompt is one pass: all its rows see the cache as
  it was before, which is empty, so prompts are routed exactly.  Their Δ counts.
- The sequences of a batch (the code's is 1) are routed as rows in order, with one mean, and with
  the same residents.  LRUByWeight orders experts by their best score of any row.
- In the code, a missing expert can evict one that the same token is about to use.  The engine
  protects these.  The contents of the cache after the token are equal.
- With a correction bias LRUByWeight orders by the biased sigmoid, the code by the unbiased one.
- Experts in groups: not defined, as in the code.
- The code keeps all weights on its device and counts misses.  Here misses are copied on demand.
- Unknown: the paper's two other rules (max-rank, where a resident may replace another expert
  within the best M; and a cumulative threshold) are not in the code, and are left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import LayerView, Prompts, Routed, best_scores
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import why_not_in_groups
from moebench.systems.policies.evict import least
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import NoPrefetch


def choice_values(scores_TE: np.ndarray, gate: GateKind) -> np.ndarray:
    """Return z, the values by which a gate chooses: its logits less a constant of each row.

    A gate that chooses by biased sigmoids has no logits of that kind: z is the biased sigmoid.
    """
    z_TE = np.asarray(scores_TE, dtype=np.float64)
    if gate is GateKind.SIGMOID_BIAS_TOPK_RENORM:
        return z_TE
    z_TE = np.where(z_TE > 0, z_TE, np.inf)
    z_TE = np.where(z_TE < np.inf, z_TE, z_TE.min(axis=1, keepdims=True))
    if gate is GateKind.TOPK_SIGMOID:
        below_one = np.minimum(z_TE, 1 - np.finfo(np.float64).epsneg)
        return np.log(below_one) - np.log1p(-below_one)
    return np.log(z_TE)


def prior_choice(z_TE: np.ndarray, favoured_TE: Mask, bonus_T: np.ndarray, k: int) -> np.ndarray:
    """Return the k experts of each row with the largest z + bonus · favoured, best first."""
    biased_TE = z_TE + bonus_T[:, None] * favoured_TE
    found: np.ndarray = np.argsort(-biased_TE, axis=1, kind="stable")[:, :k]
    return found


@dataclass(kw_only=True)
class CachePrior(Routing):
    """Adds λ · Δ̄ to the logits of resident experts and of the router's best J; λ is the system's α.

    Attributes:
        keep: J, how many of the router's own best experts get the bonus, so that they stay.
        emptied: whether experts of earlier batches get no bonus until this batch has used them.
    """

    keep: int = option(2, low=0, searched=(0, 8))
    emptied: bool = option(True, searched=True)

    has_alpha: ClassVar[bool] = True

    def lossless_at(self, alpha: float) -> bool:
        """Return whether λ is 0, which gives no bonus."""
        return alpha == 0

    @property
    def exact_prefill(self) -> bool:
        """Whether prompts are routed exactly: no resident has a bonus in a prompt."""
        return self.emptied

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin the mean ranges of all layers, which go on over sequences."""
        self._total, self._tokens = [0.0] * shape.num_layers, [0] * shape.num_layers
        self._seen_LE = np.zeros((shape.num_layers, shape.num_experts), dtype=bool)

    def begin_sequences(self, prompts: Prompts) -> None:
        """Forget which experts earlier batches have used."""
        self._seen_LE[:] = False

    def route(self, view: LayerView) -> Routed:
        """Return the experts with the largest z' in each row."""
        own_TK, alpha, layer = view.topk_ids_TK, view.alpha, view.layer
        z_TE = choice_values(view.scores_TE, view.shape.gate)
        mean_T = self._mean_range(layer, z_TE)
        ids_TK = own_TK
        if alpha:
            favoured_E = view.resident_E & self._seen_LE[layer] if self.emptied else view.resident_E
            favoured_TE = np.tile(favoured_E, (len(z_TE), 1))
            np.put_along_axis(favoured_TE, own_TK[:, : self.keep], True, axis=1)
            chosen_TK = prior_choice(z_TE, favoured_TE, alpha * mean_T, own_TK.shape[1])
            changed_T = (np.sort(chosen_TK) != np.sort(own_TK)).any(axis=1)
            ids_TK = np.where(changed_T[:, None], chosen_TK, own_TK) if changed_T.any() else own_TK
        self._seen_LE[layer, ids_TK.ravel()] = True
        return Routed(ids_TK, ids_TK)

    def _mean_range(self, layer: int, z_TE: np.ndarray) -> np.ndarray:
        """Return Δ̄ at each row: the mean over all tokens of the layer so far, the row included."""
        range_T = z_TE.max(axis=1) - z_TE.min(axis=1)
        total_T = self._total[layer] + range_T.cumsum()
        mean_T: np.ndarray = total_T / (self._tokens[layer] + np.arange(1, len(z_TE) + 1))
        self._total[layer] = float(total_T[-1])
        self._tokens[layer] += len(z_TE)
        return mean_T


@dataclass(kw_only=True)
class LRUByWeight(Eviction):
    """LRU in which a layer uses its heaviest expert first, so that it is evicted before the others.

    The experts of one pass over a layer are used in descending order of their gate scores, ties by
    id, and those that must be loaded have the same place as if they had been there.
    """

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without any use."""
        self._experts = shape.num_experts
        self._clock, self._last = 0, np.zeros(shape.num_layers * shape.num_experts, dtype=np.int64)
        self._now: set[int] = set()

    def observe(self, view: LayerView) -> None:
        """Note each expert's score, the best of any row."""
        self._score_E = best_scores(view.scores_TE)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Use the layer's experts in descending order of score, resident or not."""
        order = sorted(experts, key=lambda expert: (-self._score_E[expert], expert))
        keys = [layer * self._experts + expert for expert in order]
        self._last[keys] = np.arange(self._clock, self._clock + len(keys))
        self._clock += len(keys)
        self._now = set(keys)

    def arrived(self, key: int) -> None:
        """Use a prefetched expert; a missing expert of the layer has been used already."""
        if key not in self._now:
            self._last[key] = self._clock
            self._clock += 1

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key that was used longest ago, or None."""
        return least(self._last, allowed)


@dataclass(kw_only=True)
class CachePriorSystem(System):
    """Loads misses on demand into an LRU of each layer, whose experts the router favours."""

    paper = "arXiv 2412.00099"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=CachePrior)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=LRUByWeight)
    scope: Scope = option("layer", searched=True)
    alpha: float = option(0.5, low=0, high=1, searched=(0, 1))

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """Return that the rule is not defined where a router chooses among experts in groups."""
        return why_not_in_groups(shape) or super().why_not(shape, batch)

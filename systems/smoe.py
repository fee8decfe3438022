"""SMoE: importance-driven expert scheduling.

"Enabling MoE on the Edge via Importance-Driven Expert Scheduling" (G. Zhu et al., arXiv
2508.18983, second version; "v1" marks the first).  A few active experts score high and matter; the
others score like inactive ones.  So the important ones are brought ahead of time, the unimportant
ones are replaced by experts that happen to be on the device, and what remains is split between the
link and the host.

    paper            here
    ─────            ────
    G                view.resident_E
    E_a              view.own_TK, the model's own top-k
    E_l, E_a \\ E_l   low-score and top-score active experts
    E_s              substitutes
    E_p              what `TopScorePrefetch` asks for
    α, S_{k+1}       alpha, rival_T1
    Algorithm 1      ExpertCacheRouter.route                          §IV-B
    Eq. 3            systems.policies.evict.LowestAverageScore        §IV-B
    §IV-C            TopScorePrefetch
    Algorithm 2      systems.policies.assign.Balanced                 §V-A

Deviations and readings, where the paper is silent or contradicts itself:

- Low-score means S_{k+1} < score < (1+α)·S_{k+1}, as Eq. 1's constraints say; Algorithm 1 as
  printed includes the (k+1)-th expert itself.  Only low-score experts that are off the device and
  not in the batch's top-score set are replaced (text of §IV-B).
- Substitution happens in decode only; prefill is exact.
- A substitute gets its own gate score, renormalised where the model renormalises its own top-k (as
  the authors' code does); `route.weight=replaced` offers the other rule.
- Eviction protects a layer's experts until the layer is done (the "shield" of §IV-B); the substrate
  does this for every system.
- "Experts currently in GPU memory" are those complete when the gate is known; a transfer under way
  does not count.
- The prefill pipeline (v1 §4.1) fetches the next layer's experts by id: nearly all are active.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from substrate.errors import UsageError
from substrate.memory import Mask
from substrate.system import (
    Assignment,
    Eviction,
    LayerView,
    Placement,
    Prefetching,
    Routed,
    Routing,
    System,
)
from substrate.terms import Ids, Lookahead, Scores
from systems.policies.assign import Balanced
from systems.policies.evict import LowestAverageScore
from systems.policies.place import PlaceById


def own_and_rival(scores_TE: Scores, own_TK: Ids) -> tuple[Scores, Scores]:
    """Scores of each row's own top-k ``[T, K]``, and S_{k+1}, the best outside it ``[T, 1]``.

    Where every expert is active there is no rival: S_{k+1} = 0.
    """
    rows = np.arange(len(scores_TE))[:, None]
    outside = scores_TE.copy()
    outside[rows, own_TK] = 0.0
    return scores_TE[rows, own_TK], np.maximum.reduce(outside, axis=1, keepdims=True)


@dataclass(kw_only=True)
class ExpertCacheRouter(Routing):
    """Algorithm 1: low-score experts off the device give way to similar ones on it.

    Attributes:
        alpha: α ≥ 0, the width of the band around S_{k+1}; 0 is exactly the model's top-k.
        pick: substitutes are taken ``best`` score first (the paper) or by ``id`` (authors' code).
        weight: a substitute is weighed by its ``own`` gate score, or by that of the expert that it
            ``replaced``.
        refine: batch-aware refinement (v1 §5.4): what Algorithm 1 could not replace may still give
            way to an expert that other rows use anyway, the one with most rows first.
    """

    alpha: float = 0.25
    pick: Literal["best", "id"] = "best"
    weight: Literal["own", "replaced"] = "own"
    refine: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"route.alpha is {self.alpha}; allowed: 0 to 1 (the paper uses 0-0.6)")

    @property
    def lossless(self) -> bool:
        """Only without substitution."""
        return self.alpha == 0

    def route(self, view: LayerView) -> Routed:
        """Replace low-score experts in decode; prefill is exact."""
        own_TK, scores_TE = view.own_TK, view.scores_TE
        own_scores_TK, rival_T1 = own_and_rival(scores_TE, own_TK)
        top_TK = own_scores_TK >= (1 + self.alpha) * rival_T1
        top_set = frozenset(own_TK[top_TK].tolist())
        if view.phase == "prefill" or self.lossless:
            return Routed(own_TK, own_TK, top_set)

        on_hand_E = view.resident_E.copy()  # G ∪ C: no extra load or host work
        on_hand_E[list(top_set)] = True
        low_TK = ~top_TK & (own_scores_TK > rival_T1)
        replaceable_TK = low_TK & ~on_hand_E[own_TK]
        if not replaceable_TK.any():
            return Routed(own_TK, own_TK, top_set)

        ids_TK = own_TK.copy()
        similar_TE = (scores_TE > (1 - self.alpha) * rival_T1) & (scores_TE <= rival_T1)
        similar_TE[np.arange(len(own_TK))[:, None], own_TK] = False
        for t in np.flatnonzero(replaceable_TK.any(axis=1)):
            substitutes = np.flatnonzero(similar_TE[t] & on_hand_E)
            if self.pick == "best":
                substitutes = substitutes[np.argsort(-scores_TE[t, substitutes], kind="stable")]
            # own_TK is best first, so the weakest low-score experts are the first to be replaced.
            weakest_first = np.flatnonzero(replaceable_TK[t])[::-1]
            for place, substitute in zip(weakest_first, substitutes, strict=False):
                ids_TK[t, place] = substitute
                replaceable_TK[t, place] = False
        if self.refine:
            self._share_with_others(ids_TK, replaceable_TK, similar_TE)
        return Routed(ids_TK, ids_TK if self.weight == "own" else own_TK, top_set)

    @staticmethod
    def _share_with_others(ids_TK: Ids, replaceable_TK: Mask, similar_TE: Mask) -> None:
        """v1 §5.4: join an expert that more rows use, even if it has to be loaded for them."""
        rows_E = np.bincount(ids_TK.ravel(), minlength=similar_TE.shape[1])
        for t, place in np.argwhere(replaceable_TK):
            given_up = ids_TK[t, place]
            shared_E = np.where(similar_TE[t], rows_E, 0)
            shared_E[ids_TK[t]] = 0
            best = int(shared_E.argmax())
            if shared_E[best] >= rows_E[given_up]:
                rows_E[given_up] -= 1
                rows_E[best] += 1
                ids_TK[t, place] = best


@dataclass(kw_only=True)
class TopScorePrefetch(Prefetching):
    """§IV-C: bring the next layer's predicted top-score experts, the highest score first.

    The prediction runs on the device alone: resident and shared experts, the next layer's attention
    with its KV cache, the next gate.  The queue is dropped when the true scores are known, and
    never goes ahead of the current layer's own loads (the machine's rule for every prefetch).

    Attributes:
        alpha: which predicted experts count as top-score; None follows the router's.
        predict: ``layer`` as above, or ``gate``: the next gate on this layer's post-attention
            state, close to what the authors' code does.
        prefill: the prefill pipeline of v1 §4.1.
    """

    alpha: float | None = None
    predict: Literal["layer", "gate"] = "layer"
    prefill: bool = True

    @property
    def lookahead(self) -> Lookahead:
        """What the engine must compute for `prefetch`."""
        return Lookahead(self.predict)

    def prefetch(
        self, view: LayerView, next_layer: int, predicted_TE: Scores | None
    ) -> Sequence[int]:
        """Predicted top-score experts over all rows; in prefill the whole next layer by id."""
        if view.phase == "prefill":
            return range(view.shape.num_experts) if self.prefill else ()
        if predicted_TE is None:
            return ()
        k = view.shape.top_k
        wanted: dict[int, float] = {}
        for scores_E in predicted_TE:
            ranked = np.argsort(-scores_E, kind="stable")[: k + 1]
            scores = scores_E[ranked].tolist()
            rival = scores[k] if len(scores) > k else 0.0
            for expert, score in zip(ranked[:k].tolist(), scores, strict=False):
                if score >= (1 + (self.alpha or 0.0)) * rival:
                    wanted[expert] = max(score, wanted.get(expert, 0.0))
        return sorted(wanted, key=lambda expert: (-wanted[expert], expert))


@dataclass(kw_only=True)
class SMoE(System):
    """The complete system; each decision can be swapped, which is how the paper's ablation runs.

    base   route=exact  evict=static  assign=host  prefetch=none
    +CE    route=exact  evict=score   assign=load  prefetch=none
    +CR                 evict=score   assign=load  prefetch=none
    +Pre                evict=score   assign=load
    +BA    (everything)
    """

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExpertCacheRouter)
    assign: Assignment = field(default_factory=Balanced)
    prefetch: Prefetching = field(default_factory=TopScorePrefetch)
    evict: Eviction = field(default_factory=LowestAverageScore)

    def __post_init__(self) -> None:
        """One α for the whole system, unless the prefetch was given its own."""
        prefetch, route = self.prefetch, self.route
        if isinstance(prefetch, TopScorePrefetch) and isinstance(route, ExpertCacheRouter):
            prefetch.alpha = route.alpha if prefetch.alpha is None else prefetch.alpha

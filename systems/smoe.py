"""SMoE: importance-driven expert scheduling.

"Enabling MoE on the Edge via Importance-Driven Expert Scheduling" (G. Zhu et al., arXiv
2508.18983, second version; "v1" marks the first).  A few active experts score high and matter; the
others score like inactive ones.  So the important ones are prefetched, the unimportant ones are
replaced by experts that are on the device already, and what remains is loaded or computed on the
host.

    paper            here
    ─────            ────
    G                view.whereabouts.is_resident
    E_a              view.topk_ids_TK, the model's own top-k
    E_l, E_a \\ E_l   low-score and top-score active experts
    E_s              substitutes
    E_p              what `TopScorePrefetch` asks for
    α, S_{k+1}       view.alpha, rival_score
    Algorithm 1      ExpertCacheRouter.route                          §IV-B
    Eq. 3            systems.policies.evict.LowestAverageScore        §IV-B
    §IV-C            TopScorePrefetch
    Algorithm 2      systems.policies.assign.Balanced                 §V-A

What the authors' code does otherwise is `systems.smoe_shipped`: ``--variant shipped``.

Deviations and readings, where the paper is silent or contradicts itself:

- Low-score means S_{k+1} < score < (1+α)·S_{k+1}, as Eq. 1's constraints say; Algorithm 1 as
  printed includes the (k+1)-th expert itself.  Only low-score experts that are off the device and
  not in the batch's top-score set are replaced (text of §IV-B).
- Substitution happens in decode only; prefill is exact.
- A substitute gets its own gate score, renormalised where the model renormalises its own top-k;
  `route.weight=replaced` offers the other rule.
- Eviction protects a layer's experts until the layer is done (the "shield" of §IV-B); the substrate
  does this for every system.
- "Experts currently in GPU memory" are those complete when the gate is known; a transfer under way
  does not count.
- The prefill pipeline (v1 §4.1) fetches the next layer's experts by id: nearly all are active.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, Routed, fetches
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Predictor,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.systems.policies.assign import Balanced
from moebench.systems.policies.evict import LowestAverageScore
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.predict import NextGates, NextLayer


def rival_score(scores: Sequence[float], own: Iterable[int]) -> float:
    """S_{k+1}: the best score outside the top-k; 0 where every expert is active."""
    outside = list(scores)
    for expert in own:
        outside[expert] = 0.0
    return max(outside)


@dataclass(kw_only=True)
class ExpertCacheRouter(Routing):
    """Algorithm 1: replaces low-score experts off the device by similar ones on it.

    The system's α ≥ 0 is the width of the band around S_{k+1}; 0 is exactly the model's top-k.

    Attributes:
        pick: substitutes are taken ``best`` score first (the paper) or lowest ``id`` first.
        weight: a substitute is weighed by its ``own`` gate score, or by that of the expert that it
            ``replaced``.
        refine: batch-aware refinement (v1 §5.4): what Algorithm 1 could not replace is replaced by
            an expert that other rows use anyway, the one with most rows first.
    """

    pick: Literal["best", "id"] = "best"
    weight: Literal["own", "replaced"] = "own"
    refine: bool = False

    has_alpha: ClassVar[bool] = True

    def lossless_at(self, alpha: float) -> bool:
        """Only without substitution."""
        return alpha == 0

    def route(self, view: LayerView) -> Routed:
        """Algorithm 1 in decode; prefill is exact."""
        if view.phase == "prefill" or view.alpha == 0:
            return Routed(view.topk_ids_TK, view.topk_ids_TK)
        topk, alpha = view.topk, view.alpha
        tokens = [_Token(scores, own, alpha) for scores, own in zip(view.scores, topk, strict=True)]
        top_set = frozenset(chain.from_iterable([token.top_score for token in tokens]))  # C
        on_device = view.whereabouts.is_resident  # G
        routed = [list(own) for own in topk]
        left_over: list[tuple[int, int]] = []  # (token, place) of low-score experts not replaced
        for t, token in enumerate(tokens):
            # Places are best first: the weakest low-score expert is replaced first.
            replaceable = [
                place
                for place in reversed(token.low_score)
                if (e := token.own[place]) not in top_set and not on_device(e)
            ]
            if not replaceable:
                continue
            substitutes = [e for e in token.similar() if e in top_set or on_device(e)]  # E_s
            if self.pick == "best":
                substitutes.sort(key=lambda e: -token.scores[e])
            for place, substitute in zip(replaceable, substitutes, strict=False):
                routed[t][place] = substitute
            left_over += [(t, place) for place in replaceable[len(substitutes) :]]
        if self.refine:
            _share_with_others(tokens, routed, left_over)
        if routed == topk:
            return Routed(view.topk_ids_TK, view.topk_ids_TK, top_set)
        ids_TK = np.array(routed)
        return Routed(ids_TK, ids_TK if self.weight == "own" else view.topk_ids_TK, top_set)


class _Token:
    """One token's top-score and low-score experts, and substitutes for the latter."""

    def __init__(self, scores: list[float], own: list[int], alpha: float) -> None:
        self.scores, self.own = scores, own
        self.rival = rival_score(scores, own)  # S_{k+1}
        self.lower = (1 - alpha) * self.rival
        upper = (1 + alpha) * self.rival
        self.top_score: list[int] = []
        #: Places in ``own`` of E_l: S_{k+1} < score < (1+α)·S_{k+1}.
        self.low_score: list[int] = []
        for place, expert in enumerate(own):
            if scores[expert] >= upper:
                self.top_score.append(expert)
            elif scores[expert] > self.rival:
                self.low_score.append(place)

    def similar(self) -> list[int]:
        """Inactive experts with (1-α)·S_{k+1} < score; of them, E_s are those in G ∪ C.

        None scores more than S_{k+1}, which is the best of the inactive ones.
        """
        lower, own = self.lower, self.own
        return [e for e, score in enumerate(self.scores) if score > lower and e not in own]


def _share_with_others(
    tokens: list[_Token], routed: list[list[int]], left_over: list[tuple[int, int]]
) -> None:
    """v1 §5.4: replace by an expert that other rows use anyway, even if it must be loaded."""
    rows = Counter(expert for ids in routed for expert in ids)
    for t, place in left_over:
        given_up, scores = routed[t][place], tokens[t].scores
        candidates = [e for e in tokens[t].similar() if rows[e] > 0 and e not in routed[t]]
        shared = max(candidates, key=lambda e: (rows[e], scores[e]), default=None)
        if shared is not None and rows[shared] >= rows[given_up]:
            rows[given_up] -= 1
            rows[shared] += 1
            routed[t][place] = shared


@dataclass(kw_only=True)
class TopScorePrefetch(Prefetching):
    """§IV-C: fetch the next layer's predicted top-score experts, the highest score first.

    The prediction runs on the device alone: resident and shared experts, the next layer's attention
    with its KV cache, the next gate.  The queue is dropped when the true scores are known, and
    never goes ahead of the current layer's own loads (the machine's rule for every prefetch).

    Attributes:
        alpha: which predicted experts count as top-score; None is the system's α.
        predict: ``layer`` as above, or ``gate``: the next gate on this layer's post-attention
            state.
        prefill: the prefill pipeline of v1 §4.1.
        chunks: a transfer goes in so many parts, between which the current layer's own loads go
            first: the other reading of "not interfering with current layer expert loading".  With
            1, what has begun goes on.
    """

    alpha: float | None = None
    predict: Literal["layer", "gate"] = "layer"
    prefill: bool = True
    chunks: int = 1

    reads_scores = False

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise UsageError(f"prefetch.alpha is {self.alpha}; allowed: 0 to 1")
        if not 1 <= self.chunks <= 64:
            raise UsageError(f"prefetch.chunks is {self.chunks}; allowed: 1 to 64")

    @property
    def predictor(self) -> Predictor:
        """What tells the next layer's scores."""
        return NextLayer() if self.predict == "layer" else NextGates()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Predicted top-score experts over all rows; in prefill the whole next layer by id."""
        layer = view.next_layer
        assert layer is not None
        if view.phase == "prefill":
            return fetches(layer, range(view.shape.num_experts)) if self.prefill else ()
        if layer not in forecast:
            return ()
        k, band = view.shape.top_k, 1 + (view.alpha if self.alpha is None else self.alpha)
        predicted_TE = forecast[layer]
        ranked = (-predicted_TE).argsort(kind="stable")[:, : k + 1]  # more are not read
        rows = [
            _top_score(scores, best, k, band)
            for scores, best in zip(predicted_TE.tolist(), ranked.tolist(), strict=True)
        ]
        wanted = rows[0]
        if len(rows) > 1:  # one row's are in order
            for expert, score in (item for row in rows[1:] for item in row.items()):
                wanted[expert] = max(score, wanted.get(expert, score))
            wanted = dict(sorted(wanted.items(), key=lambda item: (-item[1], item[0])))
        return fetches(layer, wanted)


def _top_score(scores: list[float], best: list[int], k: int, band: float) -> dict[int, float]:
    """Experts of one row's top-k with a score of ``band`` times S_{k+1} or more, best first.

    Args:
        best: the row's k + 1 best experts; k, where there are no more.
    """
    least = band * scores[best[k]] if k < len(best) else 0.0
    found = {}
    for expert in best[:k]:
        score = scores[expert]
        if score < least:
            break
        found[expert] = score
    return found


@dataclass(kw_only=True)
class SMoE(System):
    """The complete system; each decision can be swapped, which is how the paper's ablation runs.

    base   route=exact  evict=static  assign=host  prefetch=none
    base2  route=exact  evict=static  assign=load  prefetch=none
    +CE    route=exact  evict=score   assign=load  prefetch=none
    +CR                 evict=score   assign=load  prefetch=none
    +Pre                evict=score   assign=load
    +BA    (everything)

    The paper's base computes misses on the host; where that takes a third of a load (its S3), a
    cache from which misses are loaded does not gain on it.  From base2, which loads them into
    staging slots, there is such a gain.  `moebench sweep smoe-ablation` runs both ladders.
    """

    paper = "arXiv 2508.18983"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExpertCacheRouter)
    assign: Assignment = field(default_factory=Balanced)
    prefetch: Prefetching = field(default_factory=TopScorePrefetch)
    evict: Eviction = field(default_factory=LowestAverageScore)

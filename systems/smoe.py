"""SMoE: prefetch important experts; replace unimportant ones by similar ones on the device.

"Enabling MoE on the Edge via Importance-Driven Expert Scheduling" (G. Zhu et al., arXiv
2508.18983, second version; "v1" marks the first).  A few active experts score high and matter; the
others score like inactive ones.  So the important experts are prefetched, the unimportant ones are
replaced by experts already on the device, and the other misses are loaded or computed on the host.

    paper            moebench
    ─────            ────────
    G                view.residency.is_resident
    E_a              view.topk_ids_TK, the model's own top-k
    E_l, E_a \\ E_l   low-score and top-score active experts
    E_s              substitutes
    E_p              experts that `TopScorePrefetch` fetches
    α, S_{k+1}       view.alpha, best_unselected_score
    Algorithm 1      ExpertCacheRouter.route                          §IV-B
    Eq. 3            systems.policies.evict.LowestAverageScore        §IV-B
    §IV-C            TopScorePrefetch
    Algorithm 2      systems.policies.assign.Balanced                 §V-A

`systems.smoe_shipped` (``--variant shipped``) is the authors' code where it differs.

Deviations and readings, where the paper is silent or contradicts itself:

- Low-score means S_{k+1} < score < (1+α)·S_{k+1}, as in Eq. 1's constraints; Algorithm 1 as printed
  includes the (k+1)-th expert itself.  Only low-score experts that are off the device and not in
  the batch's top-score set are replaced (text of §IV-B).
- Substitution happens in decode only; prefill is exact.
- A substitute is weighted by its own gate score, renormalised if the model renormalises its top-k;
  `route.weight=replaced` uses the score of the replaced expert.
- Eviction protects a layer's experts until the layer is done (the "shield" of §IV-B); the engine
  does this for every system.
- "Experts currently in GPU memory" are those complete when the gate is known; an expert whose
  transfer is under way is not among them.
- The prefill pipeline (v1 §4.1) fetches the next layer's experts by id: nearly all are active.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, Routed, fetches
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.systems.policies.assign import Balanced
from moebench.systems.policies.evict import LowestAverageScore
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.predict import NextGates, NextLayer


def best_unselected_score(scores: Sequence[float], own: Iterable[int]) -> float:
    """Return S_{k+1}: the best score outside the top-k, or 0 if every expert is active."""
    outside = list(scores)
    for expert in own:
        outside[expert] = 0.0
    return max(outside)


@dataclass(kw_only=True)
class ExpertCacheRouter(Routing):
    """Replaces low-score experts off the device by similar ones on it (Algorithm 1).

    The system's α ≥ 0 is the width of the band around S_{k+1}; 0 is exactly the model's top-k.

    Attributes:
        pick: order of substitutes: ``best`` score first (the paper) or lowest ``id`` first.
        weight: a substitute's weight: its ``own`` gate score, or that of the expert that it
            ``replaced``.
        refine: batch-aware refinement (v1 §5.4): experts that Algorithm 1 could not replace are
            replaced by experts that other rows use, the one with most rows first.
    """

    pick: Literal["best", "id"] = option("best", searched=True)
    weight: Literal["own", "replaced"] = "own"
    refine: bool = option(False, searched=True)

    has_alpha: ClassVar[bool] = True

    def lossless_at(self, alpha: float) -> bool:
        """Return whether α is 0, which substitutes no expert."""
        return alpha == 0

    def route(self, view: LayerView) -> Routed:
        """Return the top-k with substitutes (Algorithm 1) in decode; prefill is exact."""
        if view.phase == "prefill" or view.alpha == 0:
            return Routed(view.topk_ids_TK, view.topk_ids_TK)
        topk, alpha = view.topk, view.alpha
        tokens = [_Token(scores, own, alpha) for scores, own in zip(view.scores, topk, strict=True)]
        top_set = frozenset(chain.from_iterable([token.top_score for token in tokens]))  # C
        on_device = view.residency.is_resident  # G
        routed = [list(own) for own in topk]
        left_over: list[tuple[int, int]] = []  # (token, place) of low-score experts not replaced
        for t, token in enumerate(tokens):
            # Places are best first: the lowest-scored expert is replaced first.
            candidates = [(place, token.own[place]) for place in reversed(token.low_score)]
            replaceable = [p for p, e in candidates if e not in top_set and not on_device(e)]
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
    """One token's top-score and low-score experts, and substitutes for the low-score ones."""

    def __init__(self, scores: list[float], own: list[int], alpha: float) -> None:
        self.scores, self.own = scores, own
        self.rival = best_unselected_score(scores, own)  # S_{k+1}
        self.lower = (1 - alpha) * self.rival
        upper = (1 + alpha) * self.rival
        self.top_score: list[int] = []
        #: Places of E_l in ``own``: S_{k+1} < score < (1+α)·S_{k+1}.
        self.low_score: list[int] = []
        for place, expert in enumerate(own):
            if scores[expert] >= upper:
                self.top_score.append(expert)
            elif scores[expert] > self.rival:
                self.low_score.append(place)

    def similar(self) -> list[int]:
        """Return inactive experts with (1-α)·S_{k+1} < score; those of them in G ∪ C are E_s.

        Their scores are at most S_{k+1}, the best score of an inactive expert.
        """
        lower, own = self.lower, self.own
        return [e for e, score in enumerate(self.scores) if score > lower and e not in own]


def _share_with_others(
    tokens: list[_Token], routed: list[list[int]], left_over: list[tuple[int, int]]
) -> None:
    """Replace by an expert that other rows use, even if it must be loaded (v1 §5.4)."""
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
    """Fetches the next layer's predicted top-score experts, highest score first (§IV-C).

    The prediction runs on the device only: resident and shared experts, the next layer's attention
    with its KV cache, the next gate.  The queue is dropped when the true scores are known, and
    never precedes the current layer's own loads (the machine's rule for every prefetch).

    Attributes:
        alpha: α that defines the predicted top-score experts; None is the system's α.
        predict: ``layer`` as above, or ``gate``: the next gate on this layer's post-attention
            state.
        prefill: whether to use the prefill pipeline of v1 §4.1.
        chunks: number of parts of a transfer, between which the current layer's own loads run:
            another reading of "not interfering with current layer expert loading".  With 1, a
            transfer that has begun is not interrupted.
    """

    alpha: float | None = option(None, low=0, high=1, searched=(0, 1))
    predict: Literal["layer", "gate"] = option("layer", searched=True)
    prefill: bool = option(True, searched=True)
    chunks: int = option(1, low=1, high=64, searched=(1, 16), scale="log")

    reads_scores = False

    @property
    def predictor(self) -> NextLayer | NextGates:
        """Predictor of the next layer's scores."""
        return NextLayer() if self.predict == "layer" else NextGates()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return the rows' predicted top-score experts; in prefill the whole next layer by id."""
        layer = view.next_layer
        assert layer is not None
        if view.phase == "prefill":
            return fetches(layer, range(view.shape.num_experts)) if self.prefill else ()
        if layer not in forecast:
            return ()
        k, band = view.shape.top_k, 1 + (view.alpha if self.alpha is None else self.alpha)
        predicted_TE = forecast[layer]
        ranked = (-predicted_TE).argsort(kind="stable")[:, : k + 1]  # only k + 1 are read
        pairs = zip(predicted_TE.tolist(), ranked.tolist(), strict=True)
        rows = [_top_score(scores, best, k, band) for scores, best in pairs]
        wanted = rows[0]
        if len(rows) > 1:  # a single row is already in order
            for expert, score in (item for row in rows[1:] for item in row.items()):
                wanted[expert] = max(score, wanted.get(expert, score))
            wanted = dict(sorted(wanted.items(), key=lambda item: (-item[1], item[0])))
        return fetches(layer, wanted)


def _top_score(scores: list[float], best: list[int], k: int, band: float) -> dict[int, float]:
    """Return experts of one row's top-k that score at least ``band`` · S_{k+1}, best first.

    ``best`` are the row's k + 1 best experts, or k if the model has no more.
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
    """SMoE with the paper's policies; the paper's ablation swaps single decisions.

    base   route=exact  evict=static  assign=host  prefetch=none
    base2  route=exact  evict=static  assign=load  prefetch=none
    +CE    route=exact  evict=score   assign=load  prefetch=none
    +CR                 evict=score   assign=load  prefetch=none
    +Pre                evict=score   assign=load
    +BA    (everything)

    The paper's base computes misses on the host; where that takes a third of a load (its S3), a
    cache whose misses are loaded is not faster.  It is faster than base2, which loads misses into
    staging slots.  `moebench sweep smoe-ablation` runs both series.
    """

    paper = "arXiv 2508.18983"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExpertCacheRouter)
    assign: Assignment = field(default_factory=Balanced)
    prefetch: Prefetching = field(default_factory=TopScorePrefetch)
    evict: Eviction = field(default_factory=LowestAverageScore)

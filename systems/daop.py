"""DAOP: exchange experts in prefill; in decode, compute missing ones on the host a layer ahead.

"DAOP: Data-Aware Offloading and Predictive Pre-Calculation for Efficient MoE Inference" (Y. Zhang,
S. Aggarwal, T. Mitra, DATE 2025, arXiv 2501.10375).  A sequence's prefill shows which experts its
decode needs, so the device's experts are exchanged in prefill, and in decode no expert moves.
Experts on the host are computed there, one layer ahead, from a prediction.

    paper                            moebench
    ─────                            ────────
    memory initialization    §IV-A   PlaceByActivation
    Algorithm 1              §IV-B   swaps, AllocateBySequence; a swap is a Fetch whose
                                     ``instead_of`` names the expert that it replaces
    threshold 1.05           §IV-B   assign.threshold
    pre-calculation          §IV-C   PredictedRouting.routes_ahead; the engine computes the host's
                                     experts on the state of the layer before
    graceful degradation     §IV-C   PredictedRouting.route
    expert cache ratio, ECR  §V-A    --capacity

Deviations and readings, where the paper is silent:

- The first predicted layer is index 5, as in the authors' code; `route.first`.
- A predicted layer is routed and weighted by the predicted scores; its own gate is not evaluated.
- "The same hidden states employed by the current MoE layer's gating function" (§III) are those
  after the current layer's norm: the next gate reads them, and so do the next layer's host experts.
- If both experts of a top-2 model are on the host, the lower-scored one is replaced.  The paper has
  no rule for top-k; `route.most_host` is the number of a token's experts that the host may compute,
  the best-scored ones: by default k - 1 and at least 1, which is the paper's rule for k = 2.
- A swap may replace an active expert: the slot is reused when that expert's computation has ended,
  so no swap delays a computation on the device.
- Swaps need one sort of the layer's experts and are otherwise linear in their number.  FlashMoE
  reports that the authors' search does not scale to 64 or 128 experts; an exhaustive search over
  exchanges would not, but Algorithm 1 does not need one.
- In prefill, experts that stay on the host are computed there, however many rows they have (§IV-B:
  "parallel local execution").
- The authors calibrate placement on ShareGPT (§V-A) and state no number of texts: `--calibrate-from
  sharegpt` with a data folder; the default is 16 texts of the train half of the workload.
- The paper runs batch 1.  In a batch, tokens are counted over all sequences.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, Routed, split
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.systems.policies.evict import OnlyNamed
from moebench.systems.policies.place import PlaceByPopularity
from moebench.systems.policies.predict import NextGatesOnNormed
from moebench.systems.policies.prefetch import NoPrefetch

#: A swapped-in expert must have more than this many times its partner's tokens (Algorithm 1).
THRESHOLD = 1.05


def swaps(view: LayerView, threshold: float) -> dict[int, int]:
    """Return the experts to load, each with the one that it replaces (Algorithm 1, lines 5-13).

    The host expert with most tokens is paired with the device expert with fewest, the second most
    with the second fewest, and so on; a pair is exchanged if n_host > threshold · n_device.
    """
    tokens_E = np.bincount(view.topk_ids_TK.ravel(), minlength=view.shape.num_experts)
    by_tokens = np.argsort(-tokens_E, kind="stable")
    on_device = view.resident_E | view.in_flight_E
    host = [int(e) for e in by_tokens if not on_device[e]]
    device = [int(e) for e in by_tokens[::-1] if view.resident_E[e]]
    return {
        h: d for h, d in zip(host, device, strict=False) if tokens_E[h] > threshold * tokens_E[d]
    }


@dataclass(kw_only=True)
class PlaceByActivation(PlaceByPopularity):
    """Places equally many experts of each layer, the most activated first (§IV-A).

    The remaining slots, fewer than one a layer, hold the most activated of the other experts.
    Activations are counted over the decoded tokens of a calibration run.
    """

    def _counted(self, text: RoutedSequence) -> np.ndarray:
        """Return the routing of the text's decoded tokens."""
        return text.ids_TLK[text.prefill :]

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return equally many experts of each layer, then the most frequent of the others."""
        each, rest = divmod(slots, len(shape.moe_layers))
        count = self.counts(shape)

        def by_activation(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
            return sorted(pairs, key=lambda pair: (-count[pair[0]][pair[1]], pair))

        experts = range(shape.num_experts)
        ranked = [by_activation((layer, e) for e in experts) for layer in shape.moe_layers]
        placed = [pair for order in ranked for pair in order[:each]]
        return placed + by_activation(pair for order in ranked for pair in order[each:])[:rest]


@dataclass(kw_only=True)
class AllocateBySequence(Assignment):
    """Loads the experts that Algorithm 1 swaps in prefill; computes all others where they are.

    A swapped host expert has more than ``threshold`` times its device expert's tokens.
    """

    threshold: float = option(THRESHOLD, low=1, searched=(1, 4))

    loads: ClassVar[Literal["kept", "passing", "none"]] = "none"

    reads_scores = False
    uses_host = True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan the layer: Algorithm 1's swaps in prefill, no migration in decode (§IV-C).

        If a layer is routed ahead, the host also computes experts whose transfer is under way.
        """
        host = sorted(active.absent + active.in_flight) if view.ahead else active.absent
        pairs = swaps(view, self.threshold) if view.phase == "prefill" else {}
        load = [Fetch(view.layer, h, instead_of=d) for h, d in pairs.items() if h in host]
        return split(active, load, [e for e in host if e not in pairs])


@dataclass(kw_only=True)
class OnlySwaps(OnlyNamed):
    """Evicts only the expert that a swap names, and copies it back to the host.

    The two experts of a swap exchange their places (Algorithm 1, lines 11-13).
    """

    writes_back = True


#: The first layer that is predicted (§IV-C, Fig. 5).
PAPERS_FIRST = 5


@dataclass(kw_only=True)
class PredictedRouting(Routing):
    """Routes decode one layer ahead, from layer ``first`` on (§IV-C).

    Attributes:
        first: the first predicted layer; earlier layers use their own gate.
        most_host: how many of a token's experts may be on the host; the rest are replaced by the
            best-scored experts on the device.  None is k - 1, at least 1.
    """

    first: int = option(PAPERS_FIRST, low=1, searched=(1, 16), scale="log")
    most_host: int | None = option(None, low=0, searched=(0, 8))

    def full_size(self, shape: ModelShape) -> None:
        """Refuse a first predicted layer that the model does not have."""
        # The paper's value is allowed for any model: one with fewer layers predicts none.
        if self.first > max(PAPERS_FIRST, shape.num_layers - 1):
            raise UsageError(
                f"route.first is {self.first}; allowed: 1 to {shape.num_layers - 1}, the model's "
                "last layer"
            )

    def lossless_at(self, alpha: float) -> bool:
        """Return False: predictions err, and their host experts read an older state."""
        return False

    @property
    def predictor(self) -> NextGatesOnNormed:
        """Predictor that runs the next gate on the input of this layer's gate (§III)."""
        return NextGatesOnNormed()

    def routes_ahead(self, layer: int) -> bool:
        """Return whether the layer is ``first`` or later, where predictions are good (Fig. 5)."""
        return layer >= self.first

    def route(self, view: LayerView) -> Routed:
        """Return the top-k; for a layer routed ahead, with missing experts replaced (§IV-C)."""
        if not view.ahead:
            return Routed(view.topk_ids_TK, view.topk_ids_TK)
        pairs = zip(view.topk_ids_TK.tolist(), view.scores, strict=True)
        ids_TK = np.array([self._degraded(own, scores, view) for own, scores in pairs])
        return Routed(ids_TK, ids_TK)

    def _degraded(self, own: list[int], scores: list[float], view: LayerView) -> list[int]:
        """Return ``own`` (best first) with its lowest-scored host experts replaced, if possible."""
        most = max(1, view.shape.top_k - 1) if self.most_host is None else self.most_host
        resident = view.resident_E
        too_many = [expert for expert in own if not resident[expert]][most:]
        spare = [e for e in range(len(scores)) if resident[e] and e not in own]
        spare.sort(key=lambda e: (-scores[e], e))
        # The lowest-scored expert is replaced first; without a spare one the original is kept.
        replaced = dict(zip(reversed(too_many), spare, strict=False))
        return [replaced.get(expert, expert) for expert in own]


@dataclass(kw_only=True)
class DAOP(System):
    """DAOP with the paper's policies for its decisions."""

    paper = "DATE 2025, arXiv 2501.10375"

    place: Placement = field(default_factory=PlaceByActivation)
    route: Routing = field(default_factory=PredictedRouting)
    assign: Assignment = field(default_factory=AllocateBySequence)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=OnlySwaps)

"""Pre-gated MoE: the gate of a layer chooses the experts of the next one.

"Pre-gated MoE: An Algorithm-System Co-Design for Fast and Scalable Mixture-of-Expert Inference"
(R. Hwang et al., ISCA 2024, arXiv 2308.12066).  Experts are in host memory.  As their choice is
known a layer early, the transfer of exactly the experts that a layer needs hides behind the layer
before; nothing is cached.

    paper                             here
    ─────                             ────
    pre-gate of block l for l + 1     ExactNextGate: an oracle, see below
    first block, its own gate         the layer's gate as it is
    prefetch of activated experts     FetchChosen: committed, in the order of ids, in both phases
    dense and two layers' active      ``keep=False``: a slot is free as soon as its expert has been
      experts on the device             computed; PreGatedMoE.most_slots

A timing model only.  Pre-gates are trained together with the experts, and no such weights exist for
these models: what a pre-gate would choose is taken from the recorded routing (*oracle*), its
accuracy is *not measured*, and it runs on replays alone.

Deviations and readings:

- Each layer runs one gate and waits for it once, as the paper's does: the recorded choice of a
  layer's own gate stands for what the gate before it said.  The first block's second gate is not
  charged.
- The paper's models are Switch Transformers (top-1); nothing changes for top-k.
- The gate of the last layer of a token could choose for the first layer of the next token; the
  paper's does not (its first block keeps an own gate), so a token's first layer loads on demand.
- Where fewer slots fit than two layers use, transfers wait for slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.assign import LoadForOneUse
from moebench.systems.policies.evict import FirstInFirstOut
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import NextExact
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class FetchChosen(NextExact):
    """Fetches what the pre-gate chose for the next layer, for one use."""

    discipline = "committed"

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """In the order of ids."""
        return [fetch._replace(keep=False) for fetch in super().prefetch(view, forecast)]


@dataclass(kw_only=True)
class PreGatedMoE(System):
    """The complete system, its pre-gates replaced by an oracle."""

    paper = "ISCA 2024, arXiv 2308.12066"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=lambda: LoadForOneUse(experts="active"))
    prefetch: Prefetching = field(default_factory=FetchChosen)
    evict: Eviction = field(default_factory=FirstInFirstOut)

    def most_slots(self, shape: ModelShape) -> int:
        """Two layers: one computes while the next one's experts come."""
        return 2 * shape.num_experts

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """What the oracle means."""
        return [
            "pregated-moe is timed with an oracle in place of its pre-gates, which need weights of "
            "their own; accuracy is not measured"
        ]

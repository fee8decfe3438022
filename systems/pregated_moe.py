"""Pre-gated MoE: each layer's gate chooses the experts of the next layer.

"Pre-gated MoE: An Algorithm-System Co-Design for Fast and Scalable Mixture-of-Expert Inference"
(R. Hwang et al., ISCA 2024, arXiv 2308.12066).  Experts are in host memory.  Their choice is known
a layer early, so exactly the experts that a layer needs are transferred while the previous layer
computes; nothing is cached.

    paper                             moebench
    ─────                             ────────
    pre-gate of block l for l + 1     ExactNextGate: an oracle, see below
    first block, its own gate         the layer's own gate
    prefetch of activated experts     FetchChosen: committed, in the order of ids, in both phases
    dense and two layers' active      ``keep=False``: a slot is free as soon as its expert has been
      experts on the device             computed; PreGatedMoE.most_slots

It is a timing model only.  Pre-gates are trained together with the experts, and no such weights
exist for these models: the pre-gates' choices are taken from the recorded routing (*oracle*), their
accuracy is *not measured*, and the system runs on replays only.

Deviations and readings:

- Each layer runs one gate and waits for it once, as in the paper: the recorded choice of a layer's
  own gate replaces that of the previous layer's pre-gate.  The first block's second gate is not
  charged.
- The paper's models are Switch Transformers (top-1); nothing changes for top-k.
- The gate of a token's last layer could choose for the first layer of the next token; the paper's
  does not (its first block has its own gate), so a token's first layer loads on demand.
- If the slots are fewer than two layers use, transfers wait for slots.
- As published it leaves all other slots empty.  The authors' scripts can also keep experts in the
  memory that is left, 1 to 80 % of all, and replace them by LFU (scripts/eval_all.py of
  ranggihwang/Pregated_MoE, 7236587; others report a study of LIFO, LFU and LRU).  ``cache=true``
  keeps experts in all slots, and ``evict=lfu``, ``lru`` or ``lifo`` replaces them: then only chosen
  experts that are not there are copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.assign import LoadForOneUse
from moebench.systems.policies.evict import FirstInFirstOut
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import NextExact
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class FetchChosen(NextExact):
    """Fetches the experts that the pre-gate chose for the next layer.

    They leave the device after their use, unless the system has a cache.
    """

    discipline = "committed"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keep = False

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return the next layer's chosen experts in the order of ids."""
        return [fetch._replace(keep=self.keep) for fetch in super().prefetch(view, forecast)]


@dataclass(kw_only=True)
class PreGatedMoE(System):
    """Pre-gated MoE with an oracle in place of the trained pre-gates.

    Attributes:
        cache: keep experts on the device after their use, in all of its slots.
    """

    paper = "ISCA 2024, arXiv 2308.12066"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=lambda: LoadForOneUse(experts="active"))
    prefetch: Prefetching = field(default_factory=FetchChosen)
    evict: Eviction = field(default_factory=FirstInFirstOut)
    cache: bool = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Start the policies, and tell them whether experts stay on the device."""
        super().start(shape, cache)
        for policy in (self.assign, self.prefetch):
            if isinstance(policy, LoadForOneUse | FetchChosen):
                policy.keep = self.cache

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the experts of the layer that computes and the next; None with a cache."""
        return None if self.cache else 2 * shape.num_experts

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return a note that an oracle replaces the pre-gates."""
        return [
            "pregated-moe is timed with an oracle in place of its pre-gates, which need weights of "
            "their own; accuracy is not measured"
        ]

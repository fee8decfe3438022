"""MoE-Infinity as its code has been since 2025 (EfficientMoE/MoE-Infinity d617801).

Prediction and prefetching are commented out in its model files.  The rest loads on demand into one
cache for all layers, from which the expert with the fewest visits is evicted.

    code (core/parallel/expert_dispatcher.cpp)          moebench
    ──────────────────────────────────────────          ────────
    non-expert weights at start; the cache fills as     PlaceNothing
      experts are used
    active experts are queued by ascending id; one      QueueById: a resident expert is computed
      thread fetches the absent ones in turn on its       after those of lower ids, even if they
      own stream: only fetch(e + 1) overlaps compute(e)   must be loaded
    victim: the fewest visits, scanned expert by        FewestVisits
      expert and layer by layer; visits survive an
      eviction and are never reset, because the call
      that resets them cannot be reached
    free bytes are charged on hits, too                 FewestVisits.grows; ``evict.charges_hits``

A visit is one pass of a layer that uses the expert, for any number of tokens.  After as many visits
as there are slots, including hits, the cache no longer grows.  With the settings' own budgets the
first prompt fills it before the first hit; at a cache ratio of 0.9 on S1 to S3 the rule costs 2 to
19 % of TPOT.

Not modelled:

- The fetching thread waits for its stream after each copy: a few microseconds between copies.
- Eight threads compute experts on separate streams; in moebench the device computes one at a time.
- Indexing four masks for each expert, and the control thread's wait for all of a layer's experts:
  they are part of the costs of the kind of software (``--software hf-eager``).
- If every resident expert is in use, the code's search for a victim never ends; in moebench the
  load waits, or uses a free slot.
- The code still prefetches experts of Arctic and Grok-1, models that moebench does not have.
- Several GPUs, among which experts are divided by id.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from moebench.substrate.engine.decisions import Active, LayerView, Plan, fetches
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import least
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class QueueById(Assignment):
    """Computes all active experts in the order of their ids, whether resident or absent."""

    reads_scores = False

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan to compute active experts, and to load absent ones, in the order of their ids."""
        return Plan([*active.rows], (), (), fetches(view.layer, active.absent))


@dataclass(kw_only=True)
class FewestVisits(Eviction):
    """Evicts the expert with the fewest visits of the whole run; ties by id, then by layer.

    With ``charges_hits``, hits use up the free slots' budget as loads do; otherwise only loads do.
    """

    charges_hits: bool = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without visits and with the budget of all slots."""
        layers, self._experts = shape.num_layers, shape.num_experts
        key = np.arange(layers * self._experts)
        #: Visits and, for ties, the position in the scan, as one number.
        self._rank = key % self._experts * layers + key // self._experts
        self._visit = len(key)
        #: Visits left in the budget, and the last layer's experts that were within it.
        self._room = cache.slots
        self._fit: set[int] = set()

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count one visit of each expert, and charge it to the budget."""
        keys = [layer * self._experts + expert for expert in experts]
        self._rank[keys] += self._visit
        self._fit = set(keys[: self._room])
        self._room = max(0, self._room - len(keys))

    def grows(self, incoming: int) -> bool:
        """Return whether a free slot may be used: while visits are within the budget."""
        return not self.charges_hits or incoming in self._fit

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the fewest visits."""
        return least(self._rank, allowed)


@dataclass(kw_only=True)
class ShippedMoEInfinity(System):
    """MoE-Infinity as its authors' code runs it: on demand, evicting the fewest visits."""

    paper = "arXiv 2401.14361"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=QueueById)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=FewestVisits)

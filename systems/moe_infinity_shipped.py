"""MoE-Infinity as its code is since 2025 (EfficientMoE/MoE-Infinity d617801).

What predicts and prefetches is commented out in its model files.  What is left is loading on demand
into one cache for all layers, from which the expert with the fewest visits is evicted.

    code (core/parallel/expert_dispatcher.cpp)          here
    ──────────────────────────────────────────          ────
    common weights at start; the cache fills as         PlaceNothing
      experts are used
    active experts are queued by ascending id; one      QueueById: an expert that is on the device
      thread takes them in turn, fetches what is          is computed after those of lower ids
      absent on a stream of its own and passes each       have come
      on: fetch(e + 1) beside compute(e), nothing else
    victim: the fewest visits, scanned expert by        FewestVisits
      expert and layer by layer; visits survive an
      eviction and are never reset, for the call that
      resets them cannot be reached
    free bytes are charged on hits, too                 FewestVisits.grows; ``evict.charges_hits``

A visit is one pass of a layer that uses the expert, whatever the number of tokens.  After as many
visits as there are slots, hits too, the cache does not grow any more.  With the settings' own
budgets the first prompt fills it before anything hits; at a cache ratio of 0.9 of S1 to S3 the rule
costs 2 to 19 % of TPOT.

Not modelled:

- The fetching thread waits for its stream after each copy: a few microseconds between copies.
- Eight threads execute experts, on streams of their own; here the device computes one at a time.
- Indexing four masks for each expert, and the wait of the control thread for all of a layer's
  experts: they are in what the kind of software costs (``--software hf-eager``).
- Where every resident expert is in use the search for a victim never ends; here the load waits, or
  takes a free slot.
- Experts of Arctic and Grok-1 are still prefetched; these models are not here.
- Several GPUs, among which experts are divided by id.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from moebench.substrate.engine.decisions import Active, LayerView, Plan, fetches
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import least
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class QueueById(Assignment):
    """Takes all experts in the order of their ids, whether they must be loaded or not."""

    reads_scores = False

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Compute them in this order; load what is absent in this order."""
        return Plan([*active.rows], (), (), fetches(view.layer, active.absent))


@dataclass(kw_only=True)
class FewestVisits(Eviction):
    """Evicts the expert with the fewest visits of the whole run; ties by id, then by layer.

    Attributes:
        charges_hits: a visit is charged even if the expert is there; otherwise loads alone are.
    """

    charges_hits: bool = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """No visit yet."""
        layers, self._experts = shape.num_layers, shape.num_experts
        key = np.arange(layers * self._experts)
        #: Visits, then the position in the scan, as one number.
        self._rank = key % self._experts * layers + key // self._experts
        self._visit = len(key)
        #: Visits until the budget is charged, and those of the last layer that were before.
        self._room = cache.slots
        self._fit: set[int] = set()

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Visit each."""
        base = layer * self._experts
        keys = [base + expert for expert in experts]
        self._rank[keys] += self._visit
        self._fit = set(keys[: self._room])
        self._room = max(0, self._room - len(keys))

    def grows(self, incoming: int) -> bool:
        """While there is room: it is charged for each visit."""
        return not self.charges_hits or incoming in self._fit

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """The fewest visits."""
        return least(self._rank, allowed)


@dataclass(kw_only=True)
class ShippedMoEInfinity(System):
    """The complete system of the authors' code."""

    paper = "arXiv 2401.14361"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=QueueById)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=FewestVisits)

"""LFRU: experts are always computed on the device, and a frequency-weighted LRU decides who stays.

vLLM's expert cache (PR 37190, ``--moe-expert-cache-size``) and tinyserve (e1n00r/tinyserve
9277e68), by the same author.  All experts are in pinned host memory; a fixed number of slots on
the device caches them.  Every miss is copied and then computed on the device, the host computes no
expert.  The expert with the least count / age is evicted.

The default is vLLM's PR: slots for each layer, no prefetch.  tinyserve is

    --set scope=global --set evict.reading=tinyserve --set assign=load-by-rank --set prefetch=fate

    vLLM PR 37190                              moebench
    ─────────────                              ────────
    --moe-expert-cache-size C, for each layer  ``scope=layer``, slots / layers
    CachedWeightProvider.prepare: distinct     LoadAll, LFRU with ``evict.reading=vllm``
      ids, ascending; the call's own experts
      are never evicted

    tinyserve                                  moebench
    ─────────                                  ────────
    one cache for all layers                   ``scope=global``
    LFRUPolicy                                 LFRU with ``evict.reading=tinyserve``
    --cache-policy ls, dali                    ``evict=least-stale``, ``evict=dali-window``
    a token's misses in top-k order            LoadByRank
    FATE: next_fate_fn(hidden states of this   Fate, NextGatesOnNormed: the next layer's router on
      layer's router), top k + 1                 the state that this layer's router reads
    adaptive_fate, _last_routing               ``prefetch.adaptive``
    hops 2 and 3                               ``prefetch.ahead``
    schedule_prefetch: allocate, copy          a committed fetch: inserted as a miss is (count 1,
                                                 one tick of the clock), and it may evict

FATE's name suggests that this layer's experts predict the next layer's.  They do not: its router
does, on this layer's state.  And that prediction is rarely used: with ``adaptive``, the default,
the experts that the previous token used in the next layer are fetched instead wherever they are
known, so everywhere but in a run's first decoded token.

Deviations and readings:

- vLLM cuts a forward that needs more experts than C by rows (its default) or by experts, and can
  copy an expert once for each piece.  The engine copies each expert once for a pass, and evicts
  those that it has computed when slots run out.
- vLLM hands slots out from the highest down.  Which slot an expert has changes nothing here.
- vLLM copies on the compute stream: it computes nothing of the layer while it copies.  The engine
  overlaps copies with the layer's resident experts; ``--set overlap=false`` does not.
- The engine protects a layer's experts until the layer ends, for tinyserve too (`evict_engines`).
- tinyserve copies misses and prefetches on two streams, which share the link; here they use it in
  the order in which they are requested.  A prefetch that finds all slots in flight waits for one.
- tinyserve copies a missing expert to a staging buffer, computes it there, and then copies it to
  its slot within the device.  Neither that copy nor the two buffers are charged.
- tinyserve's prefetch knows single-token decode alone, so that it does nothing in a larger batch.
- Left out: tinyserve's disk tier, its substitution by similar experts, its logit bias (both off by
  default), and experts on its host, which need the disk tier.
- Both begin with an empty cache, and so does this system (``place=none``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moebench.substrate.engine.decisions import (
    Active,
    Fetch,
    Forecast,
    LayerView,
    Plan,
    fetches,
    split,
)
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict_engines import LFRU
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.predict import NextGatesOnNormed
from moebench.systems.policies.prefetch import NoPrefetch, ranked
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class LoadByRank(LoadAll):
    """Loads every missing expert, in the order in which the rows' routers name them (tinyserve)."""

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return a plan that loads all absent experts, of a single token the best-scored first."""
        absent = set(active.absent)
        named = [e for e in dict.fromkeys(view.topk_ids_TK.ravel().tolist()) if e in absent]
        others = [e for e in active.absent if e not in named]
        return split(active, fetches(view.layer, [*named, *others]))


@dataclass(frozen=True, kw_only=True)
class RouterAhead(NextGatesOnNormed):
    """Runs the next layer's router on this layer's state, unless that layer's experts are known.

    Attributes:
        known: layers that need no prediction.
    """

    known: dict[int, list[int]] = field(default_factory=dict, compare=False)

    def asked(self, view: LayerView) -> bool:
        """Return whether a single token is decoded, and the next layer has no known experts."""
        return (
            view.phase == "decode" and view.forward.rows == 1 and view.next_layer not in self.known
        )


@dataclass(kw_only=True)
class Fate(Prefetching):
    """tinyserve's FATE: fetches the predicted experts of the next layer, and more of layers beyond.

    A single decoded token's prediction of the next layer is the experts that the previous token
    used there (``adaptive``), else the best of the next layer's router on this layer's state.  For
    layers beyond the next, the previous token's experts are fetched where they are known.

    Attributes:
        experts: how many experts the router predicts; 0 means the model's top-k and one more.
        adaptive: whether the previous token's experts replace the router's prediction.
        ahead: the farthest layer for which the previous token's experts are fetched; 1 is the next.
    """

    experts: int = option(0, low=0, searched=(1, 16), scale="log")
    adaptive: bool = option(True, searched=True)
    ahead: int = option(3, low=1, searched=(1, 8))

    reads_scores = False
    discipline = "committed"

    def __post_init__(self) -> None:
        super().__post_init__()
        #: The experts of each layer, best first, as the latest decoded token has used them.
        self._latest: dict[int, list[int]] = {}
        self._predictor = RouterAhead(known=self._latest if self.adaptive else {})

    @property
    def predictor(self) -> RouterAhead:
        """Predictor that runs the next layer's router on this layer's state."""
        return self._predictor

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Forget all routing; tinyserve keeps it from one sequence to the next, as this does."""
        self._latest.clear()

    def observe(self, view: LayerView) -> None:
        """Note the experts that a single decoded token uses in this layer."""
        if view.phase == "decode" and view.forward.rows == 1:
            self._latest[view.layer] = view.topk[0]

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return fetches for the next layer, then for those beyond; none for several rows."""
        if view.phase == "prefill" or view.forward.rows > 1:
            return ()
        wanted: list[Fetch] = []
        row, layers = view.shape.moe_rows[view.layer], view.shape.moe_layers
        for hop, layer in enumerate(layers[row + 1 : row + 1 + self.ahead], start=1):
            experts = self._latest.get(layer, []) if hop > 1 or self.adaptive else []
            if hop == 1 and not experts and layer in forecast:
                experts = ranked(forecast[layer])[: self.experts or view.shape.top_k + 1]
            wanted += fetches(layer, experts)
        return wanted


@dataclass(kw_only=True)
class LFRUCache(System):
    """vLLM's expert cache: per-layer slots, every miss copied, LFRU eviction, no prefetch."""

    paper = "vLLM PR 37190"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=LFRU)
    scope: Scope = option("layer", searched=True)

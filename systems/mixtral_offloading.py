"""Mixtral-Offloading: an LRU cache in each layer, and experts loaded as the next gate predicts.

"Fast Inference of Mixture-of-Experts Language Models with Offloading" (A. Eliseev, D. Mazur, arXiv
2312.17238).  Consecutive tokens share some experts, so each layer keeps the few that it used last.
The next layer's gate, applied to this layer's state, predicts most of the experts that layer will
use: the best one or two are loaded while this layer computes.

    paper                            moebench
    ─────                            ────────
    k experts cached in each layer   PlaceLastIds: the same number a layer, or one more; StagedLRU
    after the gate                   LoadAll: resident experts first, then the missing ones by id
    speculative loading              NextGate on this layer's state, after this layer's loads;
                                     ``prefetch.experts``: 1 or 2
    staging buffers, shared by       ``evict.staging``: 4 of the device's slots
      all layers
    a speculated expert replaces     StagedLRU: it stays in its buffer until its layer uses it;
      an LRU entry only if used      then the slot of the layer's least recently used expert
                                     becomes a buffer
    HQQ, experts in 2 bits           ``--set expert_precision=2bit`` (66.4 MB each); attention in
                                     4 bits is ``--precision 4bit``

In prefill each active expert is loaded once a layer, for all its rows, and nothing is speculated.

The paper does not define whether a speculated expert that is used counts as a hit.  In moebench
``metrics.cache_ratio`` counts every expert that is complete when the gate is known, speculated or
not, and ``prefetch`` counts the experts that were fetched ahead and those of them that were used.

Deviations and readings, where the sources are silent:

- The authors' repository has the cache and the buffers, but no speculation (its issue 10);
  ``--variant shipped`` models it.  The number of buffers (4) and the residents at the start (the
  highest ids) are those of the repository's demo.
- Buffers are part of the device's budget.  The paper has the same k in each layer, here the first
  layers have one more where the other slots cannot be divided equally.
  ``place.equal_layers=true`` makes such slots, up to one a layer, additional buffers.
- A buffer is overwritten when it is needed: until then an expert that its layer gave up or did not
  use is found in it.  Such hits are part of ``metrics.cache_ratio``; ``metrics.experts`` counts
  them as ``lingering``.
- A speculative load that has not begun when its gate is known is dropped; one under way goes on.
- Experts are read-only, so evicted experts are not copied back; ``evict.write_back=true`` does so.
- The paper serves one sequence; in a batch the best-scored experts of any row are speculated.
- HQQ's loss of accuracy is not modelled; apart from it the system is lossless.
"""

from dataclasses import dataclass, field
from functools import partial

from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict_staged import StagedLRU
from moebench.systems.policies.place import PlaceLastIds
from moebench.systems.policies.prefetch import NextGate
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class MixtralOffloading(System):
    """Mixtral-Offloading with the paper's policies for its decisions."""

    paper = "arXiv 2312.17238"

    place: Placement = field(default_factory=PlaceLastIds)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=partial(NextGate, experts=2))
    evict: Eviction = field(default_factory=StagedLRU)

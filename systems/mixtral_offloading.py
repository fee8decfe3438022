"""Mixtral-Offloading: an LRU cache in each layer, and experts loaded on the next gate's guess.

"Fast Inference of Mixture-of-Experts Language Models with Offloading" (A. Eliseev, D. Mazur, arXiv
2312.17238).  Tokens in a row use some of the same experts, so each layer keeps the few that it used
last.  The next layer's gate, applied to this layer's state, guesses most of what that layer will
use: the best one or two are loaded while this layer computes.

    paper                            here
    ─────                            ────
    k experts cached in each layer   PlaceLastIds: the same number a layer; StagedLRU
    after the gate                   LoadAll: those that are here first, then the missing by id
    speculative loading              NextGate on this layer's state, behind this layer's loads;
                                     ``prefetch.experts``: 1 or 2
    staging buffers, shared by       ``evict.staging``: 4 of the device's slots
      all layers
    a speculated expert replaces     StagedLRU: it stays in its buffer until its layer uses it;
      an LRU entry only if used      then the layer's least recently used expert is a buffer
    HQQ, experts in 2 bits           ``--set expert_precision=2bit`` (66.4 MB each); attention in
                                     4 bits is ``--precision 4bit`` beside it

In prefill each active expert is loaded once a layer, for all its rows, and nothing is speculated.

Whether a speculated expert that is used counts as a hit, the paper leaves open.  Here
``metrics.cache_ratio`` counts all that is complete when the gate is known, speculated or not, and
``prefetch`` how many were fetched ahead and how many of these were used.

Deviations and readings, where the sources are silent:

- The authors' repository holds the cache and the buffers, but no speculation (its issue 10); what
  it does is ``--variant shipped``.  Buffers (4) and who is resident at the start (the highest ids)
  are the repository's demo.
- Buffers are in the device's budget, as everything is.  Slots that are no equal share for all
  layers are more buffers; where there is not one a layer, all are.
- A buffer is overwritten when it is needed: what a layer gave up, or nobody used, is found there
  until then.
- A speculative load that has not begun when its gate is known is dropped; one that has begun goes
  on.
- Experts are read-only, so what is evicted is not copied back; ``evict.write_back=true`` does it.
- The paper serves one sequence; in a batch the best-scored experts of any row are speculated.
- HQQ's loss is not modelled: the system is lossless but for it.
"""

from dataclasses import dataclass, field
from functools import partial

from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict_staged import StagedLRU
from moebench.systems.policies.place import PlaceLastIds
from moebench.systems.policies.prefetch import NextGate
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class MixtralOffloading(System):
    """The complete system."""

    paper = "arXiv 2312.17238"

    place: Placement = field(default_factory=PlaceLastIds)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=partial(NextGate, experts=2))
    evict: Eviction = field(default_factory=StagedLRU)

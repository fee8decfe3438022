"""Mixtral-Offloading as its authors' code runs it (dvmazur/mixtral-offloading ce54518).

    code                                  moebench
    ────                                  ────────
    ids >= offload_per_layer at the       ``place.equal_layers``: up to one slot a layer more is a
      start, equally many a layer           buffer
    active experts: resident ones         LoadAll, as published
      first, then the missing by id
    marked used before any eviction;      StagedLRU, as published
      evicts the layer's own LRU expert
    buffers of all layers (4)             ``evict.staging``
    each swap copies the evicted expert   ``evict.write_back``: twice the traffic, for weights that
      back to the host                    never change
    copies on the compute stream          ``overlap=False``
    no speculation (issue 10)             NoPrefetch

The code submits ``min(buffers - 1, the layer's residents, misses)`` swaps at a time, and the next
one when a loaded expert has been launched.  On one stream this changes the order of copies and
computations, not their sum, so moebench submits all swaps as soon as slots allow.

Not modelled:

- The host's four buffers for evicted experts: host memory is not counted that finely.
- An evicted expert is copied back when its buffer is reused, one load later than in the code; since
  the buffers are empty at the start, the first loads evict no expert.
- If the misses outnumber a layer's idle residents, the code evicts residents before they are
  computed, and computes them from buffers; moebench computes them first.
- The code's control thread waits for the device before each expert (`custom_layers.py`, 292-302);
  the charge here is the control time of the run's kind of software.
- The code supports only Mixtral 8x7B.  Nothing in its cache depends on that model.
"""

from dataclasses import dataclass, field
from functools import partial

from moebench.substrate.engine.policies import Eviction, Placement, Prefetching
from moebench.systems.mixtral_offloading import MixtralOffloading
from moebench.systems.policies.evict_staged import StagedLRU
from moebench.systems.policies.place import PlaceLastIds
from moebench.systems.policies.prefetch import NoPrefetch


@dataclass(kw_only=True)
class ShippedMixtralOffloading(MixtralOffloading):
    """Mixtral-Offloading without speculation or overlap; evicted experts are copied back."""

    place: Placement = field(default_factory=partial(PlaceLastIds, equal_layers=True))
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=partial(StagedLRU, write_back=True))
    overlap: bool = False

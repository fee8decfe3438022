"""Mixtral-Offloading as its authors' code runs it (dvmazur/mixtral-offloading ce54518).

    code                                  here
    ────                                  ────
    ids >= offload_per_layer at the       PlaceLastIds, as published
      start, equally many a layer
    active experts: those that are here   LoadAll, as published
      first, then the missing by id
    marked used before any is evicted;    StagedLRU, as published
      the layer's own LRU expert leaves
    buffers of all layers (4)             ``evict.staging``
    each swap copies the evicted expert   ``evict.write_back``: twice the traffic, for weights that
      back to the host                    nobody changes
    copies on the stream that computes    ``overlap=False``
    no speculation (issue 10)             NoPrefetch

The code has ``min(buffers - 1, the layer's residents, misses)`` swaps submitted at a time, the next
when a loaded expert has been launched.  On one stream a window changes the order of copies and
computations, not their sum, so here all are submitted as slots allow.

Not modelled:

- The host's four buffers, which receive what is evicted: host memory is not counted that finely.
- An evicted expert is copied back when its buffer is taken, one load later than in the code; with
  the buffers empty at the start, the first loads evict nobody.
- Where the misses outnumber a layer's idle residents, the code evicts residents that are yet to be
  computed from their buffers; here they are computed first.
- The control thread waits for the device before each expert (`custom_layers.py`, 292-302); here the
  kind of software says what an expert costs it.
- The code knows Mixtral 8x7B alone.  Nothing in its cache depends on that.
"""

from dataclasses import dataclass, field
from functools import partial

from moebench.substrate.engine.policies import Eviction, Prefetching
from moebench.systems.mixtral_offloading import MixtralOffloading
from moebench.systems.policies.evict_staged import StagedLRU
from moebench.systems.policies.prefetch import NoPrefetch


@dataclass(kw_only=True)
class ShippedMixtralOffloading(MixtralOffloading):
    """The complete system of the authors' code."""

    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=partial(StagedLRU, write_back=True))
    overlap: bool = False

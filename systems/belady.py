"""The offline bound as a system: eviction and prefetching that know the future routing.

L. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5
(1966), for eviction.  Every predictor of the next layer approximates the oracle that prefetches one
layer ahead.  (FlashMoE §2.3 compares evictions with MIN, most papers compare predictions with the
oracle.)

    bound                  moebench
    ─────                  ────────
    exact routing          ExactRouting: the model's own experts
    MIN                    Belady: evicts the expert whose next use is farthest away
    perfect prediction     NextExact: while a layer computes, fetches all that the next one uses

It is the limit of what a better cache or a better prediction can gain, and runs on replays only,
because only a replay knows the future.

Deviations and readings:

- It bounds systems that compute every expert on the device, load the missing ones, and look one
  layer ahead.  Systems that compute on the host, look further ahead or change the routing may be
  faster; `bound` in a run's document is the bound on all lossless systems.
- MIN is optimal for a cache that receives one request at a time.  A layer's experts are requested
  together, and a prefetched expert occupies its slot a layer early.
- All layers share the slots (``scope=global``), which is never worse than equal parts.
"""

from dataclasses import dataclass, field

from moebench.substrate.engine.policies import Eviction, Prefetching
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.policies.evict_belady import Belady
from moebench.systems.policies.prefetch import NextExact


@dataclass(kw_only=True)
class BeladyBound(MoEOnDemand):
    """On-demand loading with Belady's eviction and exact prediction of the next layer."""

    paper = "Belady 1966"

    prefetch: Prefetching = field(default_factory=NextExact)
    evict: Eviction = field(default_factory=Belady)

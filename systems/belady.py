"""The offline bound as a system: it knows the routing to come, and nothing else is better.

L. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5
(1966), for eviction; the oracle one layer ahead is what every predictor of the next layer is an
approximation of (FlashMoE §2.3 compares evictions with the first, most papers predictions with the
second).

    bound                  here
    ─────                  ────
    exact routing          ExactRouting: the model's own experts
    MIN                    Belady: the expert whose next use is farthest away leaves
    perfect prediction     NextExact: while a layer computes, all that the next one uses is fetched

What a system gains by a better cache, or by better prediction, ends here.  It runs on replays
alone, as nothing else tells the future.

Deviations and readings:

- It bounds systems that compute on the device what they can, load what is missing, and look one
  layer ahead.  Systems that compute on the host, look further ahead or change the routing may beat
  it; `bound` in a run's document is the bound on all lossless ones.
- MIN is the best for a cache that is asked one expert at a time.  A layer's experts are asked for
  together, and a prefetched one takes its slot a layer early.
- Slots are shared by all layers (``scope=global``), which is never worse than equal parts.
"""

from dataclasses import dataclass, field

from moebench.substrate.engine.policies import Eviction, Prefetching
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.policies.evict_belady import Belady
from moebench.systems.policies.prefetch import NextExact


@dataclass(kw_only=True)
class BeladyBound(MoEOnDemand):
    """On-demand loading that knows what comes."""

    paper = "Belady 1966"

    prefetch: Prefetching = field(default_factory=NextExact)
    evict: Eviction = field(default_factory=Belady)

"""Baselines that every paper measures itself against: loading on demand, and everything resident.

What papers call loading on demand differs.  Here each is `moe-ondemand` with options (``--set``):

    in the papers                                                options
    ─────────────                                                ───────
    each expert is dropped after its use (Pre-gated MoE's
      MoE-OnDemand, as others describe it)                       cache=0
    C experts of each layer are kept (Mixtral-Offloading)        cache=C scope=layer
    as many, in one pool for all layers (SMoE)                   cache=C
    LIFO, LFU or LRU decides who leaves (Pre-gated MoE, too)     evict=lifo, lfu, lru (or fifo)
    copies come from pageable memory and block (what DAOP and
      Fiddler measured: 8.8 and 5 GB/s)                          pinned_copies=false
                                                                 blocking_copies=true

Without options it is the strongest of them: one LRU over all that the device holds, and copies as
the machine's profile says, beside computation.  With the first and the last it is nearly `acc`.
"""

from dataclasses import dataclass, field

from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.place import PlaceById, PlaceNothing
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class _OnDemand(System):
    """No prediction, no host, one LRU over all layers."""

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=LeastRecentlyUsed)


@dataclass(kw_only=True)
class MoEOnDemand(_OnDemand):
    """Loads after the gate, evicts what was used longest ago: the baseline of every paper.

    When the device holds fewer experts than one token uses in all its layers, every expert is
    evicted before its turn comes again.

    Attributes:
        cache: C, how many experts of each layer are kept at most: in a pool of its own where
            ``scope=layer``, else in one of C for each layer.  0 drops each after its use: there are
            the k slots that one layer of one token needs, and the next layer needs them all.  None
            keeps as many as fit.
    """

    cache: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cache is not None and self.cache < 0:
            raise UsageError(f"cache is {self.cache}; allowed: 0 (drop after use) or more")

    def most_slots(self, shape: ModelShape) -> int | None:
        """C for each layer, and as many as one layer of one token uses."""
        if self.cache is None:
            return None
        if self.cache == 0 and self.scope == "layer":
            raise UsageError(
                "cache=0 keeps no expert of any layer: scope=layer has nothing to divide; "
                "leave one of them out"
            )
        return max(self.cache * len(shape.moe_layers), shape.top_k)


@dataclass(kw_only=True)
class ACC(MoEOnDemand):
    """DuoServe-MoE's "Acc": after the gate, copy the active experts, compute, drop.

    All that the paper says of it is that it "loads activated experts onto the GPU after selection
    is made by the gate function" (§6.1), and that in Table 2 a system that holds a layer's experts
    needs E - k experts more.

    Deviations and readings:

    - It holds k experts, and in prefill a layer's pass through these k slots.
    - Copies are from pageable memory, as Accelerate's are, and on the stream that computes, so that
      nothing runs beside anything else.
    - An expert is one copy.  Accelerate's hooks copy each of its matrices and cost Python:
      ``module_hooks=true``.
    """

    paper = "baseline of arXiv 2509.07379"

    place: Placement = field(default_factory=PlaceNothing)
    cache: int | None = 0
    overlap: bool = False
    blocking_copies: bool = True
    pinned_copies: bool | None = False


@dataclass(kw_only=True)
class GpuOnly(_OnDemand):
    """Everything resident: the upper bound.  Refused when it does not fit, unless overcommitted."""

    all_resident: bool = True

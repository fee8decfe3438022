"""Baselines of the papers: loading experts on demand, and keeping every expert resident.

Papers mean different things by loading on demand.  Each is `moe-ondemand` with options (``--set``):

    in the papers                                                options
    ─────────────                                                ───────
    each expert is dropped after its use (Pre-gated MoE's
      MoE-OnDemand, as others describe it)                       cache=0
    C experts of each layer are kept (Mixtral-Offloading)        cache=C scope=layer
    as many, in one pool for all layers (SMoE)                   cache=C
    LIFO, LFU or LRU eviction (also Pre-gated MoE)               evict=lifo, lfu, lru (or fifo)
    copies from pageable memory that block (as DAOP and
      Fiddler measured: 8.8 and 5 GB/s)                          pinned_copies=false
                                                                 blocking_copies=true

Without options it is the strongest of them: one LRU over all slots, and copies at the rate of the
machine's profile that overlap computation.  With the first and the last row it is nearly `acc`.
"""

from dataclasses import dataclass, field

from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
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
    """Base of the baselines: no prediction, no host computation, one LRU over all layers."""

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=LeastRecentlyUsed)


@dataclass(kw_only=True)
class MoEOnDemand(_OnDemand):
    """Loads missing experts after the gate and evicts by LRU: the baseline of every paper.

    If the device holds fewer experts than one token uses in all its layers, every expert is evicted
    before it is used again.

    Attributes:
        cache: C, the most experts of each layer that are kept: in a pool for each layer with
            ``scope=layer``, else in one pool of C times the layers.  0 drops each expert after its
            use: the k slots suffice for one layer of one token, and the next layer needs all of
            them.  None keeps as many as fit.
    """

    cache: int | None = option(None, low=0, searched=(1, 64), scale="log")

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return C for each layer, but at least the experts of one token in one layer."""
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
    """DuoServe-MoE's baseline "Acc": copy the active experts after the gate, compute, drop them.

    The paper describes it only as a system that "loads activated experts onto the GPU after
    selection is made by the gate function" (§6.1); by Table 2, a system that holds a layer's
    experts needs E - k experts more.

    Deviations and readings:

    - It holds k experts; in prefill all active experts of a layer use these k slots in turn.
    - Copies are from pageable memory, as Accelerate's are, and on the compute stream, so that
      copies and computation never overlap.
    - An expert is one copy.  Accelerate's hooks copy each of its matrices and cost Python time:
      ``module_hooks=true``.
    """

    paper = "baseline of arXiv 2509.07379"

    place: Placement = field(default_factory=PlaceNothing)
    cache: int | None = option(0, low=0)
    overlap: bool = False
    blocking_copies: bool = True
    pinned_copies: bool | None = False


@dataclass(kw_only=True)
class GpuOnly(_OnDemand):
    """Everything resident, all on the device.  Refused if too large, unless overcommitted.

    Not a bound: a system whose host computes experts beside the device can be faster.
    """

    all_resident: bool = True

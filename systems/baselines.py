"""Two baselines: everything resident, and every expert loaded on demand."""

from dataclasses import dataclass, field

from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class MoEOnDemand(System):
    """Loads after the gate, evicts what was used longest ago: the baseline of every paper.

    No prediction, no host, one LRU over all layers.  When the device holds fewer experts than one
    token uses in all its layers, every expert is evicted before its turn comes again.
    """

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    evict: Eviction = field(default_factory=LeastRecentlyUsed)


@dataclass(kw_only=True)
class GpuOnly(MoEOnDemand):
    """Everything resident: the upper bound.  Refused when it does not fit, unless overcommitted."""

    all_resident: bool = True

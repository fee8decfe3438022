"""A composition that `moebench search` found."""

from dataclasses import dataclass, field

from moebench.substrate.engine.policies import Assignment, Eviction, Prefetching
from moebench.substrate.memory.cache import Scope
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.hobbit import Multidimensional
from moebench.systems.hybrimoe import ImpactDriven, MakespanSchedule


@dataclass(kw_only=True)
class Found(MoEOnDemand):
    """Found in 38 trials for S3.

    S3: 140.2 ms a decoded token on new prompts,
    dali 149.3 ms (simulated).
    6.1% faster than dali on new prompts; not with machine rtx3080ti.
    """

    assign: Assignment = field(default_factory=MakespanSchedule)
    prefetch: Prefetching = field(default_factory=ImpactDriven)
    evict: Eviction = field(default_factory=Multidimensional)
    scope: Scope = "layer"

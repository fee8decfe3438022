"""Systems that each violate one conformance rule, and systems that cannot run everywhere."""

import random
from dataclasses import dataclass, field
from typing import ClassVar

from moebench import Assignment, Eviction, Plan, Prefetching, Routing
from moebench.substrate.errors import BudgetError, UsageError
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.daop import DAOP
from moebench.systems.policies.assign import HostAll, LoadAll
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.evict_belady import Belady
from moebench.systems.smoe import ExpertCacheRouter, SMoE


class SaysLossless(ExpertCacheRouter):
    def lossless_at(self, alpha):
        return True


@dataclass(kw_only=True)
class Substitutes(SMoE):
    """System that replaces experts but claims to be lossless."""

    alpha: float = 1.0
    route: Routing = field(default_factory=SaysLossless)


class Defers(LoadAll):
    """Assignment that defers every expert's output by one layer, if a later layer exists."""

    uses_host = True
    lossless: ClassVar[bool] = True

    def assign(self, view, active):
        if view.next_layer is None:
            return super().assign(view, active)
        return Plan((), (), tuple(active.rows))


@dataclass(kw_only=True)
class WritesOther(MoEOnDemand):
    """System that generates another text than the resident model."""

    assign: Assignment = field(default_factory=Defers)


class Anybody(LeastRecentlyUsed):
    def victim(self, allowed, incoming):
        keys = allowed.nonzero()[0].tolist()
        return random.choice(keys) if keys else None


@dataclass(kw_only=True)
class Draws(MoEOnDemand):
    """System whose repeated runs differ."""

    evict: Eviction = field(default_factory=Anybody)


class Divides(Prefetching):
    def prefetch(self, view, forecast):
        return [] if view.phase == "prefill" else [1 // 0]


@dataclass(kw_only=True)
class Raises(MoEOnDemand):
    """System whose code raises an exception."""

    prefetch: Prefetching = field(default_factory=Divides)


@dataclass(kw_only=True)
class Forgetful(HostAll):
    """Assignment that accepts an option and does not store it."""

    most: int = 3

    def __post_init__(self):
        self.most = 3


@dataclass(kw_only=True)
class LosesAnOption(MoEOnDemand):
    assign: Assignment = field(default_factory=Forgetful)


@dataclass(kw_only=True)
class Refuses(LoadAll):
    """System that refuses every option value without naming the option."""

    share: float = 0.5

    def __post_init__(self):
        if self.share != 0.5:
            raise UsageError("no")


@dataclass(kw_only=True)
class Unnamed(MoEOnDemand):
    assign: Assignment = field(default_factory=Refuses)


@dataclass(kw_only=True)
class OneAtATime(MoEOnDemand):
    max_batch = 1


@dataclass(kw_only=True)
class Nowhere(MoEOnDemand):
    def why_not(self, shape, batch):
        return "it has no kernels"


class Wants(LeastRecentlyUsed):
    def start(self, shape, cache):
        super().start(shape, cache)
        if cache.slots < 20:
            raise BudgetError("it needs 20 slots")


@dataclass(kw_only=True)
class Large(MoEOnDemand):
    evict: Eviction = field(default_factory=Wants)


@dataclass(kw_only=True)
class KnowsAll(MoEOnDemand):
    """System with Belady's eviction, which needs the future routing."""

    evict: Eviction = field(default_factory=Belady)


@dataclass(kw_only=True)
class FromDisk(DAOP):
    """System whose host memory keeps only a few experts."""

    host_experts: int | None = 5

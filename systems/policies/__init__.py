"""Decisions that several systems share, by kind and name.

    from systems.policies import make
    make("evict", "lru")

A policy that belongs to one paper lives in that paper's file and is listed here all the same, so
that any system can borrow it: `moebench run --system moe-ondemand --set evict=score`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from substrate.errors import UnknownNameError

if TYPE_CHECKING:
    from substrate.system import Policy

#: decision → name → (module, class).  Nothing is imported until it is asked for.
POLICIES: dict[str, dict[str, tuple[str, str]]] = {
    "place": {
        "by-id": ("systems.policies.place", "PlaceById"),
        "popular": ("systems.policies.place", "PlacePopular"),
        "activation": ("systems.daop", "PlaceByActivation"),
        "none": ("systems.flashmoe", "PlaceNothing"),
    },
    "route": {
        "exact": ("systems.policies.route", "ExactRouting"),
        "expert-cache": ("systems.smoe", "ExpertCacheRouter"),
        "predicted": ("systems.daop", "PredictedRouting"),
    },
    "assign": {
        "load": ("systems.policies.assign", "LoadAll"),
        "host": ("systems.policies.assign", "HostAll"),
        "balanced": ("systems.policies.assign", "Balanced"),
        "by-sequence": ("systems.daop", "AllocateBySequence"),
    },
    "prefetch": {
        "none": ("systems.policies.prefetch", "NoPrefetch"),
        "next-gate": ("systems.policies.prefetch", "NextGate"),
        "whole-layer": ("systems.policies.prefetch", "WholeLayer"),
        "top-score": ("systems.smoe", "TopScorePrefetch"),
        "expert-mlp": ("systems.duoserve", "LearnedPath"),
    },
    "evict": {
        "static": ("systems.policies.evict", "NeverEvict"),
        "lru": ("systems.policies.evict", "LeastRecentlyUsed"),
        "lfu": ("systems.policies.evict", "LeastFrequentlyUsed"),
        "fifo": ("systems.policies.evict", "FirstInFirstOut"),
        "lifo": ("systems.policies.evict", "LastInFirstOut"),
        "arc": ("systems.policies.caches", "AdaptiveReplacement"),
        "lecar": ("systems.policies.caches", "LeastRegret"),
        "belady": ("systems.policies.evict_belady", "Belady"),
        "flashmoe": ("systems.flashmoe", "LearnedEviction"),
        "score": ("systems.policies.evict", "LowestAverageScore"),
        "swap": ("systems.daop", "MakeRoomForSwaps"),
    },
}

DECISIONS = tuple(POLICIES)


def policy_class(decision: str, name: str) -> "type[Policy]":
    """The class behind a policy's name.

    Raises:
        UnknownNameError: no such policy for this decision.
    """
    if decision not in POLICIES:
        raise UnknownNameError("decision", decision, POLICIES)
    known = POLICIES[decision]
    if name not in known:
        raise UnknownNameError(f"{decision} policy", name, known)
    module, attribute = known[name]
    return cast("type[Policy]", getattr(import_module(module), attribute))


def make(decision: str, name: str, **options: Any) -> "Policy":
    """A policy by name, with its options."""
    return policy_class(decision, name)(**options)


def name_of(decision: str, policy: "Policy") -> str:
    """The name under which a policy is listed; its class name when it is the user's own."""
    for name, (module, attribute) in POLICIES[decision].items():
        if (type(policy).__module__, type(policy).__name__) == (module, attribute):
            return name
    return type(policy).__name__

"""The base class of each decision's policies, and which systems take which policies."""

from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.systems.registry import policy_class, system_class

KINDS = {
    "place": Placement,
    "route": Routing,
    "assign": Assignment,
    "prefetch": Prefetching,
    "admit": Admission,
    "evict": Eviction,
}


def fits(system: str, decision: str, name: str) -> bool:
    """Return whether a system takes a policy: records of several forms need one that knows them.

    A placement that chooses one form for each expert does not.
    """
    several, policy = len(system_class(system).forms) > 1, policy_class(decision, name)
    return not several or (
        getattr(policy, "takes_forms", True) and not getattr(policy, "own_forms", ())
    )

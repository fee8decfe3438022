"""The base class of each decision's policies, and which systems take which policies."""

from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.systems.options import build
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
    """Return whether a system takes a policy.

    Records of several forms need a policy that knows them; a placement that chooses one form for
    each expert does not.  A placement that leaves experts to the host needs a system that computes
    some there.  Passes that are divided copy records of one form.
    """
    policy = policy_class(decision, name)
    if decision == "place" and policy.needs_host and not build(system).assign.uses_host:
        return False
    several = len(system_class(system).forms) > 1
    if decision == "place" and policy.own_forms and build(system).divides:
        return False
    if decision == "assign" and policy.divides and len(build(system).forms) > 1:
        return False
    return not several or (
        getattr(policy, "takes_forms", True) and not getattr(policy, "own_forms", ())
    )

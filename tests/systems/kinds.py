"""The base class of each decision's policies."""

from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)

KINDS = {
    "place": Placement,
    "route": Routing,
    "assign": Assignment,
    "prefetch": Prefetching,
    "admit": Admission,
    "evict": Eviction,
}

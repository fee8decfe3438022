"""What each decision's policies are derived from."""

from moebench.substrate.engine.policies import (
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
    "evict": Eviction,
}

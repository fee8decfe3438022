"""The least time that any system could take: what a platform and a trace do not let anyone save.

A decoded batch needs, whatever the policy,

    device   the common weights once a token, and every active expert that the host does not take
    link     Belady's misses, less those that the host takes
    host     what it takes

so its time T is at least the larger of two balances.  With N active experts, M of Belady's misses,
d, h, c the least time of an expert on the device, on the host and on the link, and W the common
work on the device:

    T ≥ (W + d·N) / (1 + d/h)        the host takes at most T/h experts off the device
    T ≥ M / (1/c + 1/h)              and at most T/h misses off the link

Without a host these are W + d·N and M·c.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class LeastCosts:
    """Unavoidable work, in ns: ``common`` a token; one expert on ``device``, ``link``, ``host``.

    ``host`` is None for a system that never computes there.
    """

    common: float
    device: float
    link: float
    host: float | None


def belady_misses(requests: Sequence[int], capacity: int) -> int:
    """Misses of Belady's MIN with bypass, the first ``capacity`` of them free.

    The free ones stand for the best content that the cache could have had at the start, so no
    policy that starts from any content loads less.
    """
    never = len(requests)
    following = [never] * len(requests)
    last: dict[int, int] = {}
    for time in range(len(requests) - 1, -1, -1):
        following[time] = last.get(requests[time], never)
        last[requests[time]] = time
    next_use: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    misses = 0
    for time, key in enumerate(requests):
        hit = key in next_use
        misses += not hit
        if following[time] == never:
            next_use.pop(key, None)
            continue
        if not hit and len(next_use) >= capacity:
            victim = _farthest(farthest, next_use)
            if next_use[victim] <= following[time]:
                continue
            del next_use[victim]
        next_use[key] = following[time]
        heappush(farthest, (-following[time], key))
    return max(0, misses - capacity)


def _farthest(heap: list[tuple[int, int]], next_use: dict[int, int]) -> int:
    """The cached key that is used last; outdated heap entries are dropped on the way."""
    while True:
        time, key = heap[0]
        if next_use.get(key) == -time:
            return key
        heappop(heap)


def least_decode_ns(
    used: Iterable[Iterable[Sequence[int]]], slots: int, costs: LeastCosts
) -> float:
    """Lower bound of a batch's decoding time.

    Args:
        used: for each token, the keys that each layer used, in order.
        slots: experts on the device at once.
    """
    tokens = [list(layers) for layers in used]
    requests = [key for layers in tokens for keys in layers for key in keys]
    misses = belady_misses(requests, slots)
    device = costs.common * len(tokens) + costs.device * len(requests)
    if costs.host is None:
        return max(device, misses * costs.link)
    shared = misses / (1 / costs.link + 1 / costs.host)
    return max(device / (1 + costs.device / costs.host), shared)

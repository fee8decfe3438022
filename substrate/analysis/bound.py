"""Lower bound of decoding time: what no system can save on a platform, for a trace.

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


def belady_misses(steps: Sequence[Sequence[int]], capacity: int) -> int:
    """Misses of Belady's MIN with bypass, the first ``capacity`` of them free.

    Each step (a layer of one pass) needs all its keys at once; what is kept after it are the keys
    that are used again soonest.  The free misses stand for the best content that the cache could
    have had at the start, so no policy that starts from any content loads less.
    """
    never = len(steps)
    following: list[dict[int, int]] = [{} for _ in steps]
    last: dict[int, int] = {}
    for time in range(len(steps) - 1, -1, -1):
        following[time] = {key: last.get(key, never) for key in steps[time]}
        last.update(dict.fromkeys(steps[time], time))
    next_use: dict[int, int] = {}  # of what is kept
    farthest: list[tuple[int, int]] = []  # heap of (-next use, key); may hold outdated entries
    misses = 0
    for nexts in following:
        misses += sum(key not in next_use for key in nexts)
        for key, time in nexts.items():
            if time == never:
                next_use.pop(key, None)
            else:
                next_use[key] = time
                heappush(farthest, (-time, key))
        while len(next_use) > capacity:
            time, key = heappop(farthest)
            if next_use.get(key) == -time:
                del next_use[key]
    return max(0, misses - capacity)


def least_decode_ns(
    used: Iterable[Iterable[Sequence[int]]], slots: int, costs: LeastCosts
) -> float:
    """Lower bound of a batch's decoding time.

    Args:
        used: for each token, the keys that each layer used, in order.
        slots: experts on the device at once.
    """
    tokens = [list(layers) for layers in used]
    steps = [keys for layers in tokens for keys in layers]
    misses = belady_misses(steps, slots)
    device = costs.common * len(tokens) + costs.device * sum(map(len, steps))
    if costs.host is None:
        return max(device, misses * costs.link)
    shared = misses / (1 / costs.link + 1 / costs.host)
    return max(device / (1 + costs.device / costs.host), shared)

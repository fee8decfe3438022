"""Lower bound of decoding time: what no system can save on a platform, for a trace.

A decoded batch needs, whatever the policy,

    device   the common weights once a token, and every active expert that the host does not take
    link     Belady's misses of the device's slots, less those that the host takes
    host     what it takes
    disk     Belady's misses of the slots and host memory together, where experts are on the disk
    control  launches, decisions and reading back of a token, and the submission of each expert

so its time T is at least the largest of these.  With N active experts, M and R the two numbers of
misses, d, h, c, r the least time of an expert on the device, on the host, on the link and from the
disk, W and w the common work on the device and of the control thread, s its least for an expert:

    T ≥ (W + d·N) / (1 + d/h)        the host takes at most T/h experts off the device
    T ≥ M / (1/c + 1/h)              and at most T/h misses off the link
    T ≥ R·r                          the host reads what it computes, too
    T ≥ w + s·N

Without a host the first two are W + d·N and M·c.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class LeastCosts:
    """Unavoidable work, in ns: ``common`` a token; one expert on ``device``, ``link``, ``host``.

    ``host`` is None for a system that never computes there.  ``read`` is one expert from the disk;
    of the control thread, ``control`` is a token's and ``submit`` one expert's.
    """

    common: float
    device: float
    link: float
    host: float | None
    read: float = 0
    control: float = 0
    submit: float = 0


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
    used: Iterable[Iterable[Sequence[int]]], slots: int, costs: LeastCosts, held: int = 0
) -> float:
    """Lower bound of a batch's decoding time.

    Args:
        used: for each token, the keys that each layer used, in order.
        slots: experts on the device at once.
        held: experts there and in host memory at once, where a read costs anything.
    """
    tokens = [list(layers) for layers in used]
    steps = [keys for layers in tokens for keys in layers]
    experts = sum(map(len, steps))
    link = belady_misses(steps, slots) * costs.link
    device = costs.common * len(tokens) + costs.device * experts
    if costs.host is not None:
        link /= 1 + costs.link / costs.host
        device /= 1 + costs.device / costs.host
    disk = belady_misses(steps, held) * costs.read if costs.read else 0
    control = costs.control * len(tokens) + costs.submit * experts
    return max(device, link, disk, control)

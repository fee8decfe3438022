"""Lower bound of decoding time of any system on a machine, for the routing of a trace.

Under every policy, a decoded batch needs time on these resources:

    device   the non-expert weights once a token, and all active experts not computed on the host
    link     Belady's misses of the device's slots, without experts computed on the host
    host     the experts that it computes
    disk     Belady's misses of slots and host memory together, if experts are on the disk
    control  launches, decisions and read-back of a token, and the submission of each expert

Its time T is at least the largest of them.  With N active experts, M and R the two numbers of
misses, d, h, c, r the least time of an expert on the device, on the host, on the link and from the
disk, W and w the common work on the device and of the control thread, s its least for an expert:
    T ≥ (W + d·N) / (1 + d/h)        the host computes at most T/h experts for the device
    T ≥ M / (1/c + 1/h)              and saves at most T/h misses on the link
    T ≥ R·r                          experts computed on the host are also read
    T ≥ w + s·N

Without host computation the first two are W + d·N and M·c.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class LeastCosts:
    """Least times in ns: ``common`` of a token; ``device``, ``link``, ``host`` of an expert.

    ``host`` is None for a system that never computes experts on the host.  ``read`` is one expert's
    read from the disk; the control thread needs ``control`` a token and ``submit`` an expert.
    """

    common: float
    device: float
    link: float
    host: float | None
    read: float = 0
    control: float = 0
    submit: float = 0


def belady_misses(steps: Sequence[Sequence[int]], capacity: int) -> int:
    """Return the misses of Belady's MIN with bypass, without the first ``capacity`` misses.

    Each step (a layer of one pass) needs all its keys at once; after it, the cache keeps the keys
    that are used again soonest.  The free misses are those that the best initial content of the
    cache would save, so no policy with any initial content loads less.
    """
    return _misses(tuple(map(tuple, steps)), capacity)


@lru_cache(maxsize=64)  # runs of one process often replay the same texts
def _misses(steps: tuple[tuple[int, ...], ...], capacity: int) -> int:
    never = len(steps)
    following: list[dict[int, int]] = [{} for _ in steps]
    last: dict[int, int] = {}
    for time in range(len(steps) - 1, -1, -1):
        following[time] = {key: last.get(key, never) for key in steps[time]}
        last.update(dict.fromkeys(steps[time], time))
    next_use: dict[int, int] = {}  # next use of each key in the cache
    farthest: list[tuple[int, int]] = []  # heap of (-next use, key), may have outdated entries
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
    """Return the lower bound of a batch's decoding time, in ns.

    Args:
        used: for each token, the keys that each layer used, in order.
        slots: number of experts that fit on the device.
        held: number of experts that fit on the device and in host memory, if reads cost time.
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

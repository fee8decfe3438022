"""Divides the device's slots over layers for the fewest expected expert loads (AdapMoE, dp.py)."""

from collections.abc import Iterable, Sequence
from math import comb

import numpy as np

#: Penalty in loads on the square of a layer's slots: of equal splits, the most even one is best.
EVEN = 1e-9


def uniform_loads(experts: int, used_J: Sequence[float], accuracy: float) -> list[float]:
    """Return a layer's expected loads per token for 0 to E slots, all experts equally likely.

    With s of E slots, j experts a token with probability q_j, and a prefetch of one expert that is
    right with probability a:

        loads(s) = Σ_j  q_j · ( j · (1 - s/E)  -  a · (1 - C(s, j) / C(E, j)) )

    the misses if every set of experts is as likely to be cached as any other, less one if there is
    one and the prefetch was right.  For eight experts and j ≤ 2 these are dp.py's terms.  q_1, q_2,
    ... is ``used_J``, and a is ``accuracy``.
    """

    def expected(slots: int, used: int) -> float:
        some_missing = 1 - comb(slots, used) / comb(experts, used)
        return used * (1 - slots / experts) - accuracy * some_missing

    return [
        sum(q * expected(slots, used) for used, q in enumerate(used_J, start=1))
        for slots in range(experts + 1)
    ]


def measured_loads(experts: int, tokens: Iterable[Sequence[int]], accuracy: float) -> list[float]:
    """Return a layer's loads per token for 0 to all slots, with LRU's misses on recorded tokens.

    An expert is a hit if fewer other experts than there are slots were used since its last use.
    ``tokens`` are the experts that each token of a text used, one after the other.
    """
    recent = list(range(experts))  # most recently used first
    #: Counts by recency rank: uses of all experts, and of each token's least recently used one.
    uses, farthest, count = [0] * (experts + 1), [0] * (experts + 1), 0
    for used in tokens:
        depths = list(map(recent.index, used))
        for depth in depths:
            uses[depth] += 1
        farthest[max(depths)] += 1
        for expert in used:
            recent.remove(expert)
        recent[:0] = used
        count += 1
    fewer = (np.array(uses) - accuracy * np.array(farthest)) / max(count, 1)
    found: list[float] = fewer[::-1].cumsum()[::-1].tolist()
    return found


def split(slots: int, loads_LS: Sequence[Sequence[float]]) -> list[int]:
    """Return each layer's slots for the least sum of expected loads (dp.py, `get_cache_size`).

    Each layer gets at least one slot if there are enough; of equal sums, the most even split wins.
    """
    layers, most = len(loads_LS), len(loads_LS[0]) - 1
    table_LS = np.array(loads_LS) + EVEN * np.arange(most + 1) ** 2
    slots = min(slots, layers * most)
    least = min(1, slots // layers)
    #: The least sum of loads of the layers so far, by their total number of slots.
    sums = np.full(slots + 1, np.inf)
    sums[0] = 0
    chosen = []
    for loads_S in table_LS:
        better, choice = np.full(slots + 1, np.inf), np.zeros(slots + 1, dtype=int)
        for own in range(least, min(most, slots) + 1):
            total = np.full(slots + 1, np.inf)
            total[own:] = sums[: slots + 1 - own] + loads_S[own]
            choice[total < better] = own
            better = np.minimum(better, total)
        sums = better
        chosen.append(choice)
    found = []
    for choice in reversed(chosen):
        found.append(int(choice[slots]))
        slots -= found[-1]
    return found[::-1]

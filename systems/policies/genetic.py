"""Genetic search of one number for each layer, under a limit of their sum."""

from collections.abc import Sequence

import numpy as np


def search(
    value_LN: Sequence[Sequence[float]] | np.ndarray, limit: int, least: int = 0,
    population: int = 64, generations: int = 200, seed: int = 0,
) -> list[int]:  # fmt: skip
    """Return numbers n_1..n_L with a large sum of values and a sum of at most ``limit``.

    The search begins with random numbers and with equal ones.  In each generation, two members make
    a child: the first with one number drawn anew, one that has each number from either of the two,
    or one with their averages.  Children whose sum exceeds the limit are dropped; of the others and
    the members, the best stay.  What the limit leaves in the end is given out one by one, each time
    where the value grows most.

    Args:
        value_LN: the value of layer l with n: n is 0 to N, and N the largest number allowed.
        least: smallest number of a layer; ``L · least`` must be at most ``limit``.
        population: members that stay.
        seed: of all random numbers; the same arguments have the same result.
    """
    value_LN = np.asarray(value_LN, dtype=np.float64)
    layers, most = len(value_LN), value_LN.shape[1] - 1
    random = np.random.default_rng(seed)
    rows = np.arange(layers)

    def fittest(members_PL: np.ndarray) -> np.ndarray:
        distinct_PL = np.unique(members_PL, axis=0)
        worth_P = value_LN[rows, distinct_PL].sum(axis=1)
        kept: np.ndarray = distinct_PL[np.argsort(-worth_P, kind="stable")[:population]]
        return kept

    spare = limit - layers * least
    shares_PL = random.dirichlet(np.ones(layers), population)
    begun_PL = np.minimum(least + np.floor(spare * shares_PL).astype(int), most)
    members_PL = fittest(np.concatenate([[equal(layers, limit, most)], begun_PL]))
    for _ in range(generations):
        first, second = random.integers(len(members_PL), size=(2, population))
        one_PL, other_PL = members_PL[first], members_PL[second]
        changed_PL = one_PL.copy()
        at = random.integers(layers, size=population)
        changed_PL[np.arange(population), at] = random.integers(least, most + 1, population)
        exchanged_PL = np.where(random.random(one_PL.shape) < 0.5, one_PL, other_PL)
        children = (changed_PL, exchanged_PL, (one_PL + other_PL) // 2)
        kind = random.integers(len(children), size=(population, 1))
        child_PL = np.choose(kind, children)
        fits = child_PL.sum(axis=1) <= limit
        members_PL = fittest(np.concatenate([members_PL, child_PL[fits]]))
    return _filled(members_PL[0], value_LN, limit)


def equal(layers: int, limit: int, most: int) -> list[int]:
    """Return equal numbers of at most ``most``; what is left goes to the first layers, one each."""
    each, rest = divmod(min(limit, layers * most), layers)
    return [each + (row < rest) for row in range(layers)]


def _filled(numbers_L: np.ndarray, value_LN: np.ndarray, limit: int) -> list[int]:
    """Return the numbers, raised one by one where the value grows most, until the limit."""
    found: list[int] = numbers_L.tolist()
    most = value_LN.shape[1] - 1
    while sum(found) < limit and min(found) < most:
        gains = [
            values[n + 1] - values[n] if n < most else -np.inf
            for n, values in zip(found, value_LN, strict=True)
        ]
        found[int(np.argmax(gains))] += 1
    return found

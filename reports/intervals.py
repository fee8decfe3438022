"""Confidence intervals of means and of ratios of means, by Student's t."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, stdev
from typing import NamedTuple

#: How often an interval holds the true value, where its assumptions hold.
LEVEL = 0.95


class Interval(NamedTuple):
    """The two ends, in the figure's own unit."""

    low: float
    high: float


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Of the mean, over independent values that are about normal; None for fewer than two."""
    if len(values) < 2:
        return None
    half = quantile(len(values) - 1, level) * stdev(values) / math.sqrt(len(values))
    mean = fmean(values)
    return Interval(mean - half, mean + half)


def ratio_interval(
    over: Sequence[float], under: Sequence[float], level: float = LEVEL
) -> Interval | None:
    """Of mean(over) / mean(under), whose values belong together in pairs; None for fewer than two.

    The ratio estimator's standard error (Cochran, Sampling Techniques, 3rd edition, eq. 2.46): what
    both values of a pair have in common, such as a hard workload, is not in it.
    """
    n = len(over)
    if n < 2:
        return None
    mean = fmean(under)
    ratio = fmean(over) / mean
    squares = sum((a - ratio * b) ** 2 for a, b in zip(over, under, strict=True))
    half = quantile(n - 1, level) * math.sqrt(squares / (n - 1) / n) / mean
    return Interval(ratio - half, ratio + half)


@cache
def quantile(freedom: int, level: float = LEVEL) -> float:
    """The t within which a two-sided interval of this level lies, for a number of degrees."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(-t < T < t) for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total

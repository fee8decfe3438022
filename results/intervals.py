"""95 % t intervals over prompts: of a run's mean, and of the difference of two runs.

A figure is a ratio of sums over prompts: nats over decoded tokens, time over decoded steps.  Its
error is that of the prompts' residuals ``part - ratio × whole`` (the linearised ratio
estimator; Cochran, Sampling Techniques, 3rd edition, section 2.11).  An interval covers the choice
of prompts, as a sample of all possible ones, and no other uncertainty.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Confidence level: the share of intervals that should contain the true figure.
LEVEL = 0.95

#: Part and whole of each prompt: nats and tokens, ns and steps.
Shares = Sequence[tuple[float, float]]


class Interval(NamedTuple):
    """Low and high end of a confidence interval, in the figure's own unit."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A figure and its 95 % interval over ``n`` prompts; a single prompt has no interval."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half of the interval's width; None without an interval."""
        return None if self.high is None else self.high - self.value

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0; False without an interval."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of the mean of independent, normal values; None for fewer than two."""
    return ratio_interval(values, [1.0] * len(values))


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval | None:
    """Return the interval of mean(over) / mean(under) of paired values; None for fewer than two.

    It excludes what both values of a pair have in common, such as a hard workload.
    """
    found = ratio(list(zip(over, under, strict=True)))
    if found is None or found.low is None or found.high is None:
        return None
    return Interval(found.low, found.high)


def ratio(shares: Shares) -> Estimate | None:
    """Return the sum of parts over the sum of wholes with its interval; None without a whole."""
    found = _residuals(shares)
    if found is None:
        return None
    value, residuals = found
    return _interval(value, *_error(residuals))


def difference(first: Shares, second: Shares, paired: bool) -> Estimate | None:
    """Return the second sample's ratio minus the first's, with its interval; None if one has none.

    Args:
        paired: both are of the same prompts, in the same order, so that only the differences
            within pairs count.  Otherwise they are independent samples (Welch).
    """
    if paired:  # a prompt without a whole in one sample is no pair
        pairs = [(a, b) for a, b in zip(first, second, strict=True) if a[1] > 0 and b[1] > 0]
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
    one, other = _residuals(first), _residuals(second)
    if one is None or other is None:
        return None
    value = other[0] - one[0]
    if paired:
        return _interval(value, *_error(other[1] - one[1]))
    (n, var_1, _), (m, var_2, _) = _error(one[1]), _error(other[1])
    if n < 2 or m < 2:
        return Estimate(value, None, None, min(n, m))
    total = var_1 + var_2
    freedom = total**2 / (var_1**2 / (n - 1) + var_2**2 / (m - 1)) if total else math.inf
    return _interval(value, n + m, total, freedom)


def _residuals(shares: Shares) -> tuple[float, np.ndarray] | None:
    """Return the ratio, and the linearised residual of each prompt, ``[n]``."""
    rows = np.array([row for row in shares if row[1] > 0], dtype=float)
    if not len(rows):
        return None
    part, whole = rows.T
    value = part.sum() / whole.sum()
    return float(value), (part - value * whole) / whole.mean()


def _error(residuals: np.ndarray) -> tuple[int, float, float]:
    """Return the residuals' count, the variance of their mean, and its degrees of freedom."""
    n = len(residuals)
    return n, float(residuals.var(ddof=1) / n) if n > 1 else 0.0, n - 1


def _interval(value: float, n: int, variance: float, freedom: float) -> Estimate:
    if n < 2:
        return Estimate(value, None, None, n)
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(variance) if variance else 0.0
    return Estimate(value, value - half, value + half, n)

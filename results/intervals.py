"""How sure a mean over questions is: 95 % t intervals of one run, and of the difference of two.

A figure is a ratio of sums over questions: nats over decoded tokens, time over decoded steps.  Its
error is that of the questions' residuals ``part - ratio × whole`` (the linearised ratio
estimator; Cochran, Sampling Techniques, 3rd edition, section 2.11).  An interval is over the
questions, as a sample of all that could have been asked; nothing else is in it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Of all intervals, those that should hold the true figure.
LEVEL = 0.95

#: A question's part and whole: nats and tokens, ns and steps.
Shares = Sequence[tuple[float, float]]


class Interval(NamedTuple):
    """The two ends, in the figure's own unit."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A figure and its 95 % interval over ``n`` questions; no ends where there is only one."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half of its width."""
        return None if self.high is None else self.high - self.value

    @property
    def excludes_zero(self) -> bool:
        """Whether the figure is surely not 0, as far as questions go."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Of the mean of independent values that are about normal; None for fewer than two."""
    return ratio_interval(values, [1.0] * len(values))


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval | None:
    """Of mean(over) / mean(under), whose values belong together in pairs; None for fewer than two.

    What both values of a pair have in common, such as a hard workload, is not in it.
    """
    found = ratio(list(zip(over, under, strict=True)))
    if found is None or found.low is None or found.high is None:
        return None
    return Interval(found.low, found.high)


def ratio(shares: Shares) -> Estimate | None:
    """Sum of parts over sum of wholes, with its interval; None where there is no whole."""
    found = _residuals(shares)
    if found is None:
        return None
    value, residuals = found
    return _interval(value, *_error(residuals))


def difference(first: Shares, second: Shares, paired: bool) -> Estimate | None:
    """The second's ratio minus the first's, with its interval; None where one has none.

    Args:
        paired: both are of the same questions, in the same order: what a question adds to both
            is no uncertainty.  Otherwise they are independent samples (Welch).
    """
    if paired:  # a question that one of them has nothing of is no pair
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
    """The ratio, and by how much each question's share moves it."""
    rows = np.array([row for row in shares if row[1] > 0], dtype=float)
    if not len(rows):
        return None
    part, whole = rows.T
    value = part.sum() / whole.sum()
    return float(value), (part - value * whole) / whole.mean()


def _error(residuals: np.ndarray) -> tuple[int, float, float]:
    """How many there are, the variance of their mean, and its degrees of freedom."""
    n = len(residuals)
    return n, float(residuals.var(ddof=1) / n) if n > 1 else 0.0, n - 1


def _interval(value: float, n: int, variance: float, freedom: float) -> Estimate:
    if n < 2:
        return Estimate(value, None, None, n)
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * math.sqrt(variance) if variance else 0.0
    return Estimate(value, value - half, value + half, n)

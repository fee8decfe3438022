"""Rates of repeated work: the median over rounds, with the middle half as range."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

#: Returns the time in ns; only differences count.
Clock = Callable[[], int]

#: Least and most rounds of one measurement, and the fewest rounds of slow work.
LEAST_ROUNDS, MOST_ROUNDS, FEWEST_ROUNDS = 5, 200, 3

#: Work that takes this many times the intended time is slow.
SLOW = 4


class Rate(NamedTuple):
    """A measured number: the median, and the ends of the middle half."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Rate":
        """Return the rate in another unit."""
        return Rate(self.value * factor, self.low * factor, self.high * factor)


def spread(samples: Sequence[float]) -> Rate:
    """Return the median and the middle half of samples."""
    low, median, high = np.percentile(samples, (25, 50, 75))
    return Rate(float(median), float(low), float(high))


def rate_of(work: Callable[[], float], clock: Clock, seconds: float) -> Rate:
    """Return the rate of work in units per ns; a first round is not timed.

    Args:
        work: does one round and returns its amount, such as bytes.
        seconds: intended time of all rounds.
    """
    work()
    rates: list[float] = []
    began = clock()
    while len(rates) < MOST_ROUNDS:
        spent = (clock() - began) / 1e9
        enough = FEWEST_ROUNDS if spent > SLOW * seconds else LEAST_ROUNDS
        if spent >= seconds and len(rates) >= enough:
            break
        start = clock()
        amount = work()
        rates.append(amount / max(1, clock() - start))
    return spread(rates)

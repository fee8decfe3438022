"""Deviations with which a share of errors are within their intervals."""

import math
from collections.abc import Sequence

from moebench.harness.published.case import NOISE, Case

#: Factor of a standard deviation at the ends of an interval of 80 %.
EIGHTY = 1.2816


def known(case: Case) -> float:
    """Return the variance of a rate's logarithm by repetitions and by what a row does not say."""
    return NOISE**2 + sum(sd**2 for sd in case.unsaid.values())


def covering(pairs: Sequence[tuple[float, float]], share: float = 0.8) -> float:
    """Return the deviation with which a share of errors are within their intervals."""
    needed = sorted(math.sqrt(max(0.0, (error / EIGHTY) ** 2 - known)) for error, known in pairs)
    return float(f"{needed[min(len(needed) - 1, math.ceil(share * len(needed)) - 1)]:.3g}")

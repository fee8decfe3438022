"""Confidence intervals of means: Student's t, 95 %."""

from collections.abc import Sequence

CONFIDENCE = 0.95


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The confidence interval of the mean of independent samples; None for fewer than two."""
    if len(values) < 2:
        return None
    # Half a second to load.
    import numpy as np
    from scipy import stats

    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    half, mean = float(quantile * stats.sem(values)), float(np.mean(values))
    return mean - half, mean + half

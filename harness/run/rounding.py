"""Rounding of the figures of a run's document."""


def ms(ns: float) -> float:
    """Convert nanoseconds to milliseconds, rounded to the nanosecond."""
    return round(ns / 1e6, 6)


def ratio(part: float, whole: float) -> float | None:
    """Return ``part / whole``, or None if ``whole`` is zero."""
    return round(part / whole, 6) if whole else None

"""Uncertain numbers of a hardware profile, and copies of the profile with one number changed."""

from dataclasses import dataclass

from moebench.substrate.machines.profile import HardwareProfile, with_number
from moebench.substrate.machines.quantity import Memory, Power, PowerShare, Quantity

#: An estimate whose source names no range is assumed to be wrong by up to this share.
ASSUMED = 0.2


@dataclass(frozen=True, slots=True)
class Uncertain:
    """An uncertain number of a profile, with its range.

    Attributes:
        field: its path in the profile, for example ``link.pinned_h2d``.
        low, high: the ends of its range, in its own unit.
    """

    field: str
    number: Quantity
    low: float
    high: float

    @property
    def stated(self) -> bool:
        """Whether the number's source states the range; otherwise the range is assumed."""
        return self.number.range is not None


def uncertain(profile: HardwareProfile) -> list[Uncertain]:
    """Return the numbers of a profile that have a range, in the profile's order.

    Estimates have one in any case: where the source names none, `ASSUMED` either way.  Figures
    that were published or measured without a range count as exact.  Powers and memory sizes are
    left out: no operation takes longer by them, and how much fits is part of what is compared.
    """
    found = []
    for field, number in profile.quantities():
        exact = number.range is None and number.badge != "estimate"
        if exact or isinstance(number, Power | PowerShare | Memory):
            continue
        low, high = number.range or _assumed(number)
        found.append(Uncertain(field, number, low, high))
    return found


def _assumed(number: Quantity) -> tuple[float, float]:
    low, high = number.value * (1 - ASSUMED), number.value * (1 + ASSUMED)
    if number.WHOLE:
        low, high = max(1, round(low)), round(high)
    return low, min(high, number.MOST / number.UNITS[number.unit])


def moved(profile: HardwareProfile, field: str, value: float) -> HardwareProfile:
    """Return a copy of the profile with another value of one number, unchecked."""
    old = dict(profile.quantities())[field]
    return with_number(profile, field, old.model_copy(update={"value": value}))


def number_at(number: Uncertain, place: float) -> float:
    """Return the value at a place of a number's range: -1 its low end, 0 its own value, 1 its high.

    Between them values are geometric, rounded to four digits; a low end of 0 is approached by line.
    """
    value, end = number.number.value, number.low if place < 0 else number.high
    share = abs(place)
    if not share or end == value:
        return value
    if value > 0 and end > 0:
        found = value * (end / value) ** share
    else:
        found = value + share * (end - value)
    return float(round(found)) if number.number.WHOLE else float(f"{found:.4g}")

"""Claims over the ranges of uncertain numbers, as text: crossings, extremes and implied values."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from moebench.results.claims import ClaimResult, Range, Verdict


class Stretch(NamedTuple):
    """A part of a number's range with one verdict, between two crossings.

    Attributes:
        low, high: the number on each machine at the ends; None at the end of the range.
    """

    verdict: Verdict
    low: Mapping[str, float] | None
    high: Mapping[str, float] | None


class Extremes(NamedTuple):
    """Lowest and highest figure of a claim over all its ranges.

    Attributes:
        mover: the field of the number that moves the figure most.
    """

    low: float
    high: float
    mover: str


def stretches(one: Range) -> list[Stretch]:
    """Return the parts of a number's range that have one verdict each, in ascending order."""
    crossings = one.crossings
    if not crossings:
        return [Stretch(one.points[0].verdict, None, None)]
    found = [Stretch(crossings[0].below, None, crossings[0].values)]
    found += [Stretch(a.above, a.values, b.values) for a, b in pairwise(crossings)]
    return [*found, Stretch(crossings[-1].above, crossings[-1].values, None)]


def extremes(claim: ClaimResult) -> Extremes | None:
    """Return the lowest and highest figure over all ranges of a claim; None without ranges."""
    spans = {
        one.field: (min(p.figure for p in one.points), max(p.figure for p in one.points))
        for one in claim.ranges
    }
    if not spans:
        return None
    mover = max(spans, key=lambda name: spans[name][1] - spans[name][0])
    lows, highs = zip(*spans.values(), strict=True)
    return Extremes(min(lows), max(highs), mover)


def depends_on(claim: ClaimResult) -> str:
    """Return on which numbers a claim's verdict depends, and where it changes; else "".

    Where the claim is reproduced in a part of a range, other verdicts are left out.
    """
    return "; ".join(f"{one.field}: {_said(one, claim.verdict)}" for one in claim.depends_on)


def _said(one: Range, verdict: Verdict) -> str:
    parts = stretches(one)
    if verdict is not Verdict.REPRODUCED:
        chosen = [part for part in parts if part.verdict is Verdict.REPRODUCED]
        parts = chosen or parts
    # The verdict of the full run is known; the others are not.
    told = [part for part in parts if part.verdict is not verdict] or parts
    return ", ".join(f"{part.verdict} {place(part, one.unit)}" for part in told)


def place(part: Stretch, unit: str) -> str:
    """Return where in a number's range a stretch is: "below 31 GB/s"."""
    if part.low is None and part.high is None:
        return "throughout"
    if part.low is None:
        assert part.high is not None
        return f"below {values(part.high, unit)}"
    if part.high is None:
        return f"above {values(part.low, unit)}"
    return f"from {values(part.low, '')} to {values(part.high, unit)}"


def values(on: Mapping[str, float], unit: str) -> str:
    """Return a number's values as text; with their machines, where these differ."""
    distinct = dict.fromkeys(f"{value:.3g}" for value in on.values())
    tail = f" {unit}" if unit and unit != "1" else ""
    if len(distinct) == 1:
        return f"{next(iter(distinct))}{tail}"
    return " / ".join(f"{value:.3g}" for value in on.values()) + f"{tail} ({' / '.join(on)})"


def with_crossings(claims: Iterable[ClaimResult]) -> list[list[str]]:
    """Return a row for each verdict that changes within a range: claim, number, range, verdicts."""
    return [
        [
            claim.id, one.field, values(one.points[0].values, one.unit),
            values(one.points[-1].values, one.unit),
            ", ".join(f"{part.verdict} {place(part, one.unit)}" for part in stretches(one)),
        ]
        for claim in claims
        for one in claim.depends_on
    ]  # fmt: skip


def implied(claims: Iterable[ClaimResult]) -> list[list[str]]:
    """Return a row for each claim and number: its own value, and those at the paper's figure.

    Rows are in the order of the numbers, so that the values that claims imply can be compared.
    """
    found = [
        [
            one.field, claim.id,
            values(next(p.values for p in one.points if p.at == 0), one.unit),
            " or ".join(values(at, one.unit) for at in one.implied),
        ]
        for claim in claims
        for one in claim.ranges
        if one.implied and any(p.at == 0 for p in one.points)
    ]  # fmt: skip
    return sorted(found, key=lambda row: row[0])

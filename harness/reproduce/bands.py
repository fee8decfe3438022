"""Bands of claims: ranges of measured figures that reproduce a claim or agree in direction only.

Bands are fixed before the claim is measured, and nothing is tuned towards them.  Rules that several
claims share are functions here; a claim with a rule of its own makes `Bands` directly.
"""

from dataclasses import dataclass

from moebench.results.claims import Band


@dataclass(frozen=True, slots=True)
class Bands:
    """The two ranges of measured figures of a claim, and the reason for both.

    Attributes:
        reproduced: figures that reproduce the claim; None if it cannot be measured.
        direction: figures that agree with the paper in direction only; None if there is no such
            range.
    """

    reproduced: Band | None = None
    direction: Band | None = None
    why: str = ""


#: Bands of a claim that cannot be measured.
NONE = Bands()


def at_least(low: float, direction: float, why: str) -> Bands:
    """Return bands with lower bounds: ``low`` to reproduce the claim, ``direction`` to agree."""
    return Bands(Band(low=low), Band(low=direction), why)


def at_most(high: float, direction: float, why: str) -> Bands:
    """Return bands with upper bounds: ``high`` to reproduce the claim, ``direction`` to agree."""
    return Bands(Band(high=high), Band(high=direction), why)


def sign(least: float, why: str) -> Bands:
    """Return bands of a difference without a figure: at least ``least``; direction: its sign."""
    return at_least(least, 0, why) if least > 0 else at_most(least, 0, why)


def near(paper: float, points: float, direction: Band, why: str) -> Bands:
    """Return bands of ``points`` on either side of the paper's figure."""
    return Bands(Band(low=paper - points, high=paper + points), direction, why)


def within(paper: float, share: float, why: str) -> Bands:
    """Return bands of a relative ``share`` around the paper's figure; direction: half to twice."""
    around = Band(low=(1 - share) * paper, high=(1 + share) * paper)
    return Bands(around, Band(low=paper / 2, high=2 * paper), why)


def quarter(paper: float, more: str = "") -> Bands:
    """Return bands of a quarter around the paper's figure; ``more`` is added to the reason."""
    why = "within a quarter of the paper's figure; direction: from half to twice"
    return within(paper, 0.25, why + more)


def half(paper: float, unit: str, why: str) -> Bands:
    """Return bands from half to one and a half times the paper's gain; direction: any gain.

    Args:
        unit: unit of the figure; "×" has no gain at 1, other units at 0.
    """
    none = 1.0 if unit == "×" else 0.0
    size = paper - none
    return Bands(Band(low=none + size / 2, high=none + 1.5 * size), Band(low=none), why)


def half_to_twice(paper: float, why: str) -> Bands:
    """Return bands from half to twice the paper's difference; direction: its sign."""
    low, high = sorted((paper / 2, 2 * paper))
    return Bands(
        Band(low=low, high=high), Band(low=0) if paper > 0 else Band(high=0), why
    )  # fmt: skip


def every(why: str) -> Bands:
    """Return bands for the share of cases in which a claim holds: all; direction: half."""
    return at_least(1, 0.5, why)

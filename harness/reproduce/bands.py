"""Bands of claims: ranges of measured figures that reproduce a claim or agree in direction only.

Bands are fixed before the claim is measured, and nothing is tuned towards them.  Rules that several
claims share are functions here; a claim with a rule of its own makes `Bands` directly.
"""

from dataclasses import dataclass, replace

from moebench.results.claims import Band


@dataclass(frozen=True, slots=True)
class Bands:
    """The ranges of measured figures of a claim, and the reason for them.

    The first that holds decides: ``reproduced``, ``no_effect``, ``direction``.  No edge may lie
    where there is no effect (a difference of 0, a ratio of 1): the smallest change of a figure
    would flip the verdict.

    Attributes:
        reproduced: figures that reproduce the claim; None if it cannot be measured.
        direction: figures that agree with the paper in direction only; None if there is no such
            range.
        no_effect: figures with less than a quarter of the paper's effect, in either direction;
            None if the claim is about no effect of a size.
    """

    reproduced: Band | None = None
    direction: Band | None = None
    why: str = ""
    no_effect: Band | None = None

    def effect(self, size: float, none: float = 0.0) -> "Bands":
        """Return these bands for an effect, with the band of *no effect* and a direction beyond it.

        Args:
            size: the paper's effect, or the least that the paper's words can mean; its sign is the
                direction.
            none: the figure of no effect: 0 of a difference, 1 of a ratio.
        """
        edge = abs(size) / 4
        beyond = Band(low=none + edge) if size > 0 else Band(high=none - edge)
        nothing = Band(low=none - edge, high=none + edge)
        return replace(self, direction=beyond, no_effect=nothing)


#: Bands of a claim that cannot be measured.
NONE = Bands()


def at_least(low: float, direction: float, why: str) -> Bands:
    """Return bands with lower bounds: ``low`` to reproduce the claim, ``direction`` to agree."""
    return Bands(Band(low=low), Band(low=direction), why)


def at_most(high: float, direction: float, why: str) -> Bands:
    """Return bands with upper bounds: ``high`` to reproduce the claim, ``direction`` to agree."""
    return Bands(Band(high=high), Band(high=direction), why)


def sign(least: float, why: str, none: float = 0.0) -> Bands:
    """Return bands of an effect without a figure: at least ``least``; direction: a quarter of it.

    Args:
        least: the smallest effect that the paper's words can mean; its sign is the direction.
        none: the figure of no effect.
    """
    reproduced = Band(low=none + least) if least > 0 else Band(high=none + least)
    return Bands(reproduced, None, why).effect(least, none)


def near(paper: float, points: float, direction: Band, why: str) -> Bands:
    """Return bands of ``points`` around a figure that is not an effect, such as a share."""
    return Bands(Band(low=paper - points, high=paper + points), direction, why)


def change(paper: float, points: float, why: str, none: float = 0.0) -> Bands:
    """Return bands of ``points`` on either side of the paper's effect, but never across none.

    Within a quarter of the paper's effect there is none; beyond it a figure has its direction.
    """
    low, high = paper - points, paper + points
    edge = abs(paper - none) / 4
    if paper > none:
        low = max(low, none + edge)
    else:
        high = min(high, none - edge)
    return Bands(Band(low=low, high=high), None, why).effect(paper - none, none)


def within(paper: float, share: float, why: str) -> Bands:
    """Return bands of a relative ``share`` around the paper's figure; direction: half to twice."""
    around = Band(low=(1 - share) * paper, high=(1 + share) * paper)
    return Bands(around, Band(low=paper / 2, high=2 * paper), why)


def quarter(paper: float, more: str = "") -> Bands:
    """Return bands of a quarter around the paper's figure; ``more`` is added to the reason."""
    why = "within a quarter of the paper's figure; direction: from half to twice"
    return within(paper, 0.25, why + more)


def half(paper: float, unit: str, why: str) -> Bands:
    """Return bands from half to one and a half times the paper's gain.

    Args:
        unit: unit of the figure; "×" has no gain at 1, other units at 0.
    """
    none = 1.0 if unit == "×" else 0.0
    size = paper - none
    low, high = sorted((none + size / 2, none + 1.5 * size))
    return Bands(Band(low=low, high=high), None, why).effect(size, none)


def half_to_twice(paper: float, why: str) -> Bands:
    """Return bands from half to twice the paper's difference."""
    low, high = sorted((paper / 2, 2 * paper))
    return Bands(Band(low=low, high=high), None, why).effect(paper)


def every(why: str) -> Bands:
    """Return bands for the share of cases in which a claim holds: all; direction: half."""
    return at_least(1, 0.5, why)

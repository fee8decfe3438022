"""Bands of a claim: which measured figures reproduce it, which have its direction only, and why.

They are written down before the claim is measured, and nothing is tuned towards them.  A claim with
a rule of its own makes `Bands` directly; the rules that several claims share have names here.
"""

from dataclasses import dataclass

from moebench.results.claims import Band


@dataclass(frozen=True, slots=True)
class Bands:
    """Two ranges of measured figures, both fixed before measuring.

    Attributes:
        reproduced: figures that reproduce the claim; None if it cannot be measured.
        direction: figures that agree with the paper in direction only; None if there is no such
            range.
        why: the reason for both.
    """

    reproduced: Band | None = None
    direction: Band | None = None
    why: str = ""


#: Of a claim that cannot be measured.
NONE = Bands()


def at_least(low: float, direction: float, why: str) -> Bands:
    """Figures from ``low`` upwards reproduce the claim; those from ``direction`` agree with it."""
    return Bands(Band(low=low), Band(low=direction), why)


def at_most(high: float, direction: float, why: str) -> Bands:
    """Figures up to ``high`` reproduce the claim; those up to ``direction`` agree with it."""
    return Bands(Band(high=high), Band(high=direction), why)


def sign(least: float, why: str) -> Bands:
    """For a claim without a figure: a difference of ``least`` or more; direction: its sign."""
    return at_least(least, 0, why) if least > 0 else at_most(least, 0, why)


def near(paper: float, points: float, direction: Band, why: str) -> Bands:
    """So many points around the paper's figure."""
    return Bands(Band(low=paper - points, high=paper + points), direction, why)


def within(paper: float, share: float, why: str) -> Bands:
    """So large a share of the paper's figure around it; direction: from half to twice."""
    around = Band(low=(1 - share) * paper, high=(1 + share) * paper)
    return Bands(around, Band(low=paper / 2, high=2 * paper), why)


def quarter(paper: float, more: str = "") -> Bands:
    """Within a quarter of the paper's figure.

    Args:
        more: added to the reason.
    """
    why = "within a quarter of the paper's figure; direction: from half to twice"
    return within(paper, 0.25, why + more)


def half(paper: float, unit: str, why: str) -> Bands:
    """From half to one and a half times the paper's gain; direction: any gain.

    Args:
        unit: of the figure; no gain is 1 in "×", else 0.
    """
    none = 1.0 if unit == "×" else 0.0
    size = paper - none
    return Bands(Band(low=none + size / 2, high=none + 1.5 * size), Band(low=none), why)


def half_to_twice(paper: float, why: str) -> Bands:
    """From half to twice the paper's difference; direction: its sign."""
    low, high = sorted((paper / 2, 2 * paper))
    return Bands(
        Band(low=low, high=high), Band(low=0) if paper > 0 else Band(high=0), why
    )  # fmt: skip


def every(why: str) -> Bands:
    """For a share of cases in which something holds: all of them; direction: half."""
    return at_least(1, 0.5, why)

"""Rules of bands, by hand: what reproduces a claim, what has its direction, what is no effect."""

import pytest

from moebench.harness.reproduce import bands
from moebench.harness.reproduce.bands import Bands
from moebench.results.claims import Band

Ends = tuple[float | None, float | None]


@pytest.mark.parametrize(
    ("found", "reproduced", "direction", "no_effect"),
    [
        (bands.at_least(2, 1, "why"), (2, None), (1, None), None),
        (bands.at_most(2, 3, "why"), (None, 2), (None, 3), None),
        (bands.every("why"), (1, None), (0.5, None), None),
        (bands.sign(8, "why"), (8, None), (2, None), (-2, 2)),
        (bands.sign(-8, "why"), (None, -8), (None, -2), (-2, 2)),
        (bands.sign(8, "why", none=1), (9, None), (3, None), (-1, 3)),
        (bands.sign(-0.4, "why", none=1), (None, 0.6), (None, 0.9), (0.9, 1.1)),
        (bands.near(10, 2, Band(low=5), "why"), (8, 12), (5, None), None),
        (bands.change(20, 5, "why"), (15, 25), (5, None), (-5, 5)),
        (bands.change(-20, 5, "why"), (-25, -15), (None, -5), (-5, 5)),
        # Never across what is no effect.
        (bands.change(4, 5, "why"), (1, 9), (1, None), (-1, 1)),
        (bands.change(-4, 5, "why"), (-9, -1), (None, -1), (-1, 1)),
        (bands.change(56, 8, "why", none=48), (50, 64), (50, None), (46, 50)),
        (bands.within(10, 0.2, "why"), (8, 12), (5, 20), None),
        (bands.half(9, "×", "why"), (5, 13), (3, None), (-1, 3)),
        (bands.half(8, "%", "why"), (4, 12), (2, None), (-2, 2)),
        (bands.half(-8, "%", "why"), (-12, -4), (None, -2), (-2, 2)),
        (bands.half_to_twice(8, "why"), (4, 16), (2, None), (-2, 2)),
        (bands.half_to_twice(-8, "why"), (-16, -4), (None, -2), (-2, 2)),
        (bands.at_least(2, 1, "why").effect(4, 1), (2, None), (2, None), (0, 2)),
    ],
)
def test_bands_of_a_rule(
    found: Bands, reproduced: Ends, direction: Ends, no_effect: Ends | None
) -> None:
    def ends(band: Band | None) -> object:
        return None if band is None else pytest.approx((band.low, band.high))

    assert reproduced == ends(found.reproduced)
    assert direction == ends(found.direction)
    assert no_effect == ends(found.no_effect)
    assert found.why == "why"


def test_a_quarter_says_its_rule() -> None:
    found = bands.quarter(8, "; and more")
    assert (found.reproduced, found.direction) == (Band(low=6, high=10), Band(low=4, high=16))
    assert found.why == (
        "within a quarter of the paper's figure; direction: from half to twice; and more"
    )
    assert Bands() == bands.NONE

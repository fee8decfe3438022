"""Placing again against placement by frequency: limits of shares, conditions and words."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Runs
from moebench.harness.reproduce.field import placement
from tests.harness.reproduce.test_field import evidence, placed


def of_shares(seed: int = 0, **ratios: float) -> list[dict[str, Any]]:
    """Return runs of which placing again takes these percents of placement by frequency."""
    runs = []
    for share, percent in ratios.items():
        runs += placed(float(share.removeprefix("at_").replace("_", ".")), 100, percent)
    for one in runs:
        one["spec"]["seed"] = seed
    return runs


def test_means_are_over_shares_within_both_limits(tmp_path: Path) -> None:
    of = evidence(tmp_path, *of_shares(at_0_25=110, at_0_5=130, at_0_75=170),
                  *of_shares(1, at_0_25=90, at_0_5=100, at_0_75=40))  # fmt: skip
    found = placement.over("swaps", 0.25, 0.5)(of)
    assert found.samples == pytest.approx((20, -5))
    assert (found.badge, found.conditions) == ("estimate", "TPOT; 0.25, 0.5 of the experts")
    whole = placement.over("updates", 0.5, 0.75, whole=True)(of)
    assert whole.samples == pytest.approx((100, 100))
    assert whole.conditions == "a prompt and 256 tokens; 0.5, 0.75 of the experts"


def test_changes_are_means_over_models() -> None:
    runs = [*of_shares(at_0_5=120), *of_shares(at_0_5=180), *of_shares(at_0_25=50)]
    for one in runs[3:6]:
        one["spec"]["model"] = "other"
    assert placement.changes(Runs(runs), "swaps") == pytest.approx({0.25: -50, 0.5: 50})
    assert list(placement.changes(Runs(runs), "swaps")) == [0.25, 0.5]


def test_a_change_that_is_never_passed_or_only_reached_is_no_crossing() -> None:
    assert placement.crossing({0.25: 10, 0.5: 0}) is None
    assert placement.crossing({0.5: -10, 0.25: 30, 0.75: -20}) == pytest.approx(0.4375)
    assert placement.crossing({}) is None


def test_words_of_each_way_and_time(tmp_path: Path) -> None:
    """Swaps lose above half of the way from .25 to .75; updates take twice as long at both."""
    of = evidence(tmp_path, *of_shares(at_0_25=90, at_0_75=110))
    said = placement.turns(of)
    assert said == (
        "Against placement by frequency, for each share of resident experts. swaps, TPOT: placing "
        "again wins below 0.50 (-10 % at 0.25, +10 % at 0.75); swaps, a prompt and 256 tokens: "
        "placing again wins below 0.50 (-10 % at 0.25, +10 % at 0.75); updates, TPOT: frequency "
        "wins at every share (+100 % at 0.25, +100 % at 0.75); updates, a prompt and 256 tokens: "
        "frequency wins at every share (+100 % at 0.25, +100 % at 0.75). Updates stage a whole "
        "layer, whose slots are empty in decode."
    )
    always = evidence(tmp_path, *of_shares(at_0_25=90, at_0_75=80))
    assert "placing again wins at every share (-10 % at 0.25, -20 % at 0.75)" in placement.turns(
        always
    )
    assert placement.time_ms(Runs(of_shares(at_0_5=110)[:1]), whole=True) == 255 * 100

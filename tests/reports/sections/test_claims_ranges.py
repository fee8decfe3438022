"""Crossings, extremes and implied values of claims, as text."""

import pytest

from moebench.reports.sections.claims_ranges import (
    Stretch,
    depends_on,
    extremes,
    implied,
    place,
    stretches,
    values,
    with_crossings,
)
from moebench.results.claims import Verdict
from tests.reports.sections.claims_fixture import BANDWIDTH, FIELD, HEADLINE, LINK, SHARES, claim


def test_a_range_is_cut_at_its_crossings() -> None:
    found = [(part.verdict, part.low, part.high) for part in stretches(BANDWIDTH)]
    first, second = ({"a6000": at, "4060ti": at} for at in (31, 52.5))
    assert found == [
        (Verdict.REPRODUCED, None, first),
        (Verdict.DIRECTION_ONLY, first, second),
        (Verdict.NO_EFFECT, second, None),
    ]
    assert [part.verdict for part in stretches(LINK)] == [Verdict.NO_EFFECT]


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict.NO_EFFECT, "reproduced below 31 GB/s"),
        (Verdict.REPRODUCED, "direction only from 31 to 52.5 GB/s, no effect above 52.5 GB/s"),
    ],
)
def test_a_verdict_that_changes_says_where(verdict: Verdict, said: str) -> None:
    one = claim("A", verdict, ranges=(BANDWIDTH, LINK))
    assert depends_on(one) == f"{FIELD}: {said}"


def test_a_verdict_that_does_not_change_depends_on_nothing() -> None:
    assert depends_on(SHARES) == ""
    assert depends_on(claim("A", Verdict.NO_EFFECT, ranges=(LINK,))) == ""
    assert with_crossings([SHARES, claim("A", Verdict.NO_EFFECT, ranges=(LINK,))]) == []


def test_extremes_are_those_of_all_ranges_and_name_the_number_that_moves_most() -> None:
    assert extremes(HEADLINE) == (-23.7, 1.5, FIELD)
    wide = LINK.model_copy(
        update={"points": (*LINK.points[:2], LINK.points[2].model_copy(update={"figure": 90.0}))}
    )
    moved = claim("A", Verdict.NO_EFFECT, ranges=(BANDWIDTH, wide))
    assert extremes(moved) == (-23.7, 90.0, "link.pinned_h2d")
    assert extremes(SHARES) is None


def test_crossings_have_the_ends_of_the_range() -> None:
    assert with_crossings([HEADLINE]) == [[
        "S-1 b1", FIELD, "13 GB/s", "90 GB/s",
        "reproduced below 31 GB/s, direction only from 31 to 52.5 GB/s, no effect above 52.5 GB/s",
    ]]  # fmt: skip


def test_implied_values_stand_beside_the_profiles() -> None:
    (row,) = implied([HEADLINE, SHARES])
    assert row == [FIELD, "S-1 b1", "78 GB/s", "12.5 / 14 GB/s (a6000 / 4060ti)"]


def test_machines_are_named_only_where_their_values_differ() -> None:
    assert values({"a": 5.0, "b": 5.0}, "ms") == "5 ms"
    assert values({"a": 5.0, "b": 6.0}, "1") == "5 / 6 (a / b)"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (None, None, "throughout"), (None, 31.0, "below 31 GB/s"), (13.25, None, "above 13.2 GB/s"),
        (13.0, 52.46, "from 13 to 52.5 GB/s"),
    ],
)  # fmt: skip
def test_a_stretch_says_where_it_is(low: float | None, high: float | None, said: str) -> None:
    ends = [None if at is None else {"a": at, "b": at} for at in (low, high)]
    assert place(Stretch(Verdict.REPRODUCED, *ends), "GB/s") == said

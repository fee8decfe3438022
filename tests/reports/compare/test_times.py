"""Ratios of TPOT by hand: what moves both systems alike cancels, what moves one alone does not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.reports.compare.conditions import InputSet
from moebench.reports.compare.rows import ties_of
from moebench.reports.compare.times import Times
from moebench.results.document import without_details
from tests.reports.samples import run

LINK, HOST = "link.pinned_h2d", "host.bandwidth"


def timed(
    tpot_ms: float | dict[str, float], effects: dict[str, tuple[float, float]] | None = None,
    down: float = 0.0, up: float = 0.0, brief: bool = False,
) -> Times:  # fmt: skip
    """Return times of runs by workload; effects and ends in percent of TPOT."""
    by_workload = tpot_ms if isinstance(tpot_ms, dict) else {"gsm8k": tpot_ms}
    cells: dict[InputSet, list[dict[str, Any]]] = {}
    for name, ms in by_workload.items():
        one = run(name)
        one["metrics"]["tpot_ms"]["mean"] = ms
        one["interval"] = None if effects is None else {
            "tpot_ms": {"low": ms * (1 - down / 100), "high": ms * (1 + up / 100)},
            "fields": [{"field": field, "tpot_ms": [*both]} for field, both in effects.items()],
        }  # fmt: skip
        cells[InputSet(name, "0", "")] = [without_details(one) if brief else one]
    return Times.of(cells)


def test_without_any_interval_only_equal_times_are_tied() -> None:
    assert timed(50.0).over(timed(25.0)) == (2.0, None)
    assert timed(50.0).over(timed(50.0)).tied
    assert not timed(50.0).over(timed(50.1)).tied


@pytest.mark.parametrize("brief", [False, True])
def test_a_number_that_moves_both_alike_cancels(brief: bool) -> None:
    # At the low end both take 14 % more, at the high end 22 % less.
    both = {LINK: (14.0, -22.0)}
    slow, fast = timed(103.0, both, 22, 14, brief), timed(100.0, both, 22, 14, brief)
    ratio = slow.over(fast)
    assert ratio.interval == pytest.approx((1.03, 1.03))
    assert not ratio.tied


def test_numbers_that_move_one_alone_do_not() -> None:
    slow, fast = (
        timed(103.0, {LINK: (14.0, -22.0)}, 22, 14),
        timed(100.0, {HOST: (5.0, -4.0)}, 4, 5),
    )
    # Down: the link by 22 %, the host by 1 - 1/1.05; up: the link by 14 %, the host by 1/.96 - 1.
    down, up = (0.22**2 + (1 - 1 / 1.05) ** 2) ** 0.5, (0.14**2 + (1 / 0.96 - 1) ** 2) ** 0.5
    ratio = slow.over(fast)
    assert ratio.interval == pytest.approx((1.03 * (1 - down), 1.03 * (1 + up)))
    assert ratio.tied


def test_what_no_field_names_counts_as_independent() -> None:
    # 5 % each way, of which 3 % are the link's: 4 % are not named.
    one, other = timed(110.0, {LINK: (3.0, -3.0)}, 5, 5), timed(100.0, {LINK: (3.0, -3.0)}, 5, 5)
    low, high = one.over(other).interval
    assert low == pytest.approx(1.1 * (1 - (0.04**2 + (0.04 / 1.04) ** 2) ** 0.5))
    assert high == pytest.approx(1.1 * (1 + (0.04**2 + (0.04 / 0.96) ** 2) ** 0.5))


def test_paired_cells_from_three_on_give_an_interval() -> None:
    fast = {"a": 10.0, "b": 20.0, "c": 30.0}
    assert timed({"a": 12.0, "b": 22.0}).over(timed({"a": 10.0, "b": 20.0})).interval is None
    # Residuals of x - 1.1 y over the mean of y, 20: .05, 0 and -.05; t(2 degrees, 95 %) = 4.3027.
    ratio = timed({"a": 12.0, "b": 22.0, "c": 32.0}).over(timed(fast))
    half = 4.30265 * 0.05 / 3**0.5
    assert ratio.interval == pytest.approx((1.1 - half, 1.1 + half), abs=1e-5)
    assert ratio.tied
    assert timed({"a": 12.0, "b": 22.0, "x": 32.0}).over(timed(fast)).interval is None


def test_ties_hold_both_ways_and_need_not_be_transitive() -> None:
    alone = {name: {name: (6.0, -6.0)} for name in "abc"}
    times = {
        name: timed(ms, alone[name], 6, 6)
        for name, ms in {"a": 100.0, "b": 107.0, "c": 114.0}.items()
    }
    assert ties_of(times) == {"a": {"b"}, "b": {"a", "c"}, "c": {"b"}}


SHARES = st.tuples(st.floats(-50, 50), st.floats(-50, 50))


EFFECTS = st.dictionaries(st.sampled_from([LINK, HOST, "disk.bandwidth"]), SHARES)
END = st.floats(0, 60)


@given(EFFECTS, EFFECTS, END, END, st.floats(1, 1000), st.floats(1, 1000))
def test_an_interval_holds_the_ratio_and_a_system_is_tied_with_itself(
    one: Any, other: Any, down: float, up: float, a: float, b: float
) -> None:
    first, second = timed(a, one, down, up), timed(b, other, down, up)
    ratio = first.over(second)
    assert ratio.interval is None or ratio.interval.low <= ratio.value <= ratio.interval.high
    assert first.over(first).tied


@pytest.mark.parametrize("missing", ["low", "high", "tpot_ms", "mean"])
def test_without_the_ends_of_a_range_only_the_named_numbers_count(missing: str) -> None:
    one = run("gsm8k")
    one["interval"] = {
        "tpot_ms": {"low": 30.0, "high": 90.0}, "fields": [{"field": LINK, "tpot_ms": [6.0, -4.0]}],
    }  # fmt: skip
    whole = Times.of({InputSet("gsm8k", "0", ""): [one]})
    assert whole.effects == {LINK: pytest.approx((0.06, -0.04))}
    assert min(whole.rest) > 0.3
    if missing == "mean":
        one["metrics"]["tpot_ms"]["mean"] = 0.0
    elif missing == "tpot_ms":
        del one["interval"]["tpot_ms"]
    else:
        del one["interval"]["tpot_ms"][missing]
    found = Times.of({InputSet("gsm8k", "0", ""): [one]})
    assert (found.effects, found.rest) == (whole.effects, (0.0, 0.0))

"""Intervals over questions, against textbook formulas and their own meaning."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.results.intervals import Estimate, difference, mean_interval, ratio, ratio_interval

#: Student's t, 97.5 %, from any textbook's table.
T_3, T_8 = 3.182446, 2.306004

values = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
shares = st.lists(st.tuples(values, st.integers(1, 50).map(float)), min_size=2, max_size=12)


def test_a_mean_has_the_textbooks_interval():
    found = ratio([(1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (6.0, 1.0)])
    # Mean 3; variance (4 + 1 + 0 + 9) / 3; standard error sqrt(14/3/4).
    half = T_3 * math.sqrt(14 / 3 / 4)
    assert found.value == 3
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half), rel=1e-6)
    assert (found.n, found.half) == (4, pytest.approx(half, rel=1e-6))


def test_long_questions_count_more():
    assert ratio([(10.0, 10.0), (0.0, 30.0)]).value == 0.25


def test_one_question_has_no_interval_and_none_has_no_figure():
    assert ratio([(3.0, 2.0)]) == (1.5, None, None, 1)
    assert ratio([]) is None
    assert ratio([(1.0, 0.0)]) is None
    assert difference([(1.0, 1.0)], [], paired=False) is None


def test_pairs_leave_out_what_questions_have_in_common():
    first = [(float(x), 1.0) for x in (1, 50, 900)]
    second = [(x + 2.0, n) for x, n in first]
    paired = difference(first, second, paired=True)
    assert paired == (2, 2, 2, 3)
    assert paired.excludes_zero
    apart = difference(first, second, paired=False)
    assert apart.value == 2
    assert not apart.excludes_zero


def test_independent_samples_have_welchs_interval():
    """With equal sizes and variances Welch's degrees of freedom are those of the pooled test."""
    first = [(float(x), 1.0) for x in (1, 2, 3, 4, 5)]
    second = [(x + 3.0, n) for x, n in first]
    found = difference(first, second, paired=False)
    assert found.half == pytest.approx(T_8 * math.sqrt(2 * 2.5 / 5), rel=1e-6)


def test_a_question_without_a_whole_is_no_pair():
    found = difference([(1.0, 1.0), (5.0, 0.0), (3.0, 1.0)], [(2.0, 1.0)] * 3, paired=True)
    assert (found.value, found.n) == (0, 2)


@given(shares)
def test_an_interval_surrounds_its_figure(rows):
    found = ratio(rows)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(sum(a for a, _ in rows) / sum(b for _, b in rows))


@given(shares, st.floats(0.1, 10), st.randoms())
def test_units_and_order_change_nothing(rows, scale, shuffle):
    found, mixed = ratio(rows), list(rows)
    shuffle.shuffle(mixed)
    other = ratio([(a * scale, b) for a, b in mixed])
    assert other.value == pytest.approx(found.value * scale, abs=1e-6)
    assert other.half == pytest.approx(found.half * scale, abs=1e-4)


@given(shares, shares)
def test_a_difference_is_the_other_ways_negative(first, second):
    n = min(len(first), len(second))
    for paired in (True, False):
        one = difference(first[:n], second[:n], paired)
        other = difference(second[:n], first[:n], paired)
        assert one.value == pytest.approx(-other.value, abs=1e-9)
        assert one.low == pytest.approx(-other.high, abs=1e-6)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of 2000 samples of 6 normal values each, 95 % give or take four standard errors."""
    draw = np.random.default_rng(0)
    held = sum(
        found.low <= 5 <= found.high
        for row in draw.normal(5, 2, (2000, 6))
        if (found := ratio([(float(x), 1.0) for x in row]))
    )
    assert abs(held / 2000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_an_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, t(2 degrees) 4.3027: ± 4.3027 / √3.
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)


def test_one_value_has_no_interval() -> None:
    assert mean_interval([1.0]) is None
    assert ratio_interval([1.0], [2.0]) is None


POSITIVE = st.lists(st.floats(1.0, 1e3), min_size=2, max_size=8)


@given(POSITIVE, st.floats(0.1, 10.0))
def test_a_ratio_of_what_is_proportional_is_exact(values: list[float], factor: float) -> None:
    low, high = ratio_interval([factor * value for value in values], values)
    assert low == pytest.approx(factor)
    assert high == pytest.approx(factor)


@given(POSITIVE)
def test_over_equal_values_a_ratio_is_a_mean(values: list[float]) -> None:
    ones = [1.0] * len(values)
    assert ratio_interval(values, ones) == pytest.approx(mean_interval(values))
    low, high = mean_interval(values)
    mean, rounding = fmean(values), 1e-9
    assert low - rounding <= mean <= high + rounding


@pytest.mark.parametrize(
    ("low", "high", "excludes"),
    [(0.0, 2.0, False), (-2.0, 0.0, False), (-1.0, 1.0, False), (0.1, 2.0, True),
     (-2.0, -0.1, True), (None, None, False)],
)  # fmt: skip
def test_an_interval_that_ends_at_zero_does_not_exclude_it(low, high, excludes):
    assert Estimate(1.0, low, high, 3).excludes_zero is excludes


def test_one_prompt_on_a_side_has_a_difference_without_an_interval():
    one, many = [(1.0, 1.0)], [(2.0, 1.0), (4.0, 1.0), (6.0, 1.0)]
    assert difference(one, many, paired=False) == (3.0, None, None, 1)
    assert difference(many, one, paired=False) == (-3.0, None, None, 1)
    assert difference(many[:2], many[:2], paired=False).n == 4


def test_samples_without_spread_differ_exactly():
    found = difference([(1.0, 1.0)] * 3, [(2.0, 1.0)] * 2, paired=False)
    assert found == (1.0, 1.0, 1.0, 5)
    assert found.excludes_zero


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_prompt_without_a_whole_in_either_sample_is_no_pair(lacks: int) -> None:
    samples = [[(1.0, 2.0), (3.0, 4.0), (2.0, 2.0)], [(1.0, 1.0), (4.0, 4.0), (3.0, 2.0)]]
    expected = difference(*samples, paired=True)
    samples[lacks].insert(1, (0.0, 0.0))
    samples[1 - lacks].insert(1, (5.0, 7.0))
    assert difference(*samples, paired=True) == expected

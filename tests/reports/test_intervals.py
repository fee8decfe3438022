"""Student's intervals against published quantiles and against each other."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.reports.intervals import mean_interval, quantile, ratio_interval


@pytest.mark.parametrize(
    ("freedom", "level", "published"),
    [
        (1, 0.95, 12.706), (2, 0.95, 4.303), (3, 0.95, 3.182), (4, 0.95, 2.776), (9, 0.95, 2.262),
        (30, 0.95, 2.042), (120, 0.95, 1.980), (1, 0.99, 63.657), (10, 0.99, 3.169),
        (7, 0.8, 1.415),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(freedom: int, level: float, published: float) -> None:
    assert quantile(freedom, level) == pytest.approx(published, abs=5e-4)


def test_an_interval_by_hand() -> None:
    # Mean 2, standard deviation 1, t(2 degrees) 4.3027: ± 4.3027 / √3.
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)


def test_one_value_has_no_interval() -> None:
    assert mean_interval([1.0]) is None
    assert ratio_interval([1.0], [2.0]) is None


VALUES = st.lists(st.floats(1.0, 1e3), min_size=2, max_size=8)


@given(VALUES, st.floats(0.1, 10.0))
def test_a_ratio_of_what_is_proportional_is_exact(values: list[float], factor: float) -> None:
    low, high = ratio_interval([factor * value for value in values], values)
    assert low == pytest.approx(factor)
    assert high == pytest.approx(factor)


@given(VALUES)
def test_over_equal_values_a_ratio_is_a_mean(values: list[float]) -> None:
    ones = [1.0] * len(values)
    assert ratio_interval(values, ones) == pytest.approx(mean_interval(values))
    low, high = mean_interval(values)
    assert low <= fmean(values) <= high

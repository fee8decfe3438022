"""Deviations that cover a share of errors, by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.published.case import NOISE
from moebench.harness.published.coverage import EIGHTY, covering, known


def test_what_a_row_does_not_say_adds_to_repetitions() -> None:
    plain: Any = SimpleNamespace(unsaid={})
    assert known(plain) == NOISE**2
    unsaid: Any = SimpleNamespace(unsaid={"a": 0.3, "b": 0.4})
    assert known(unsaid) == pytest.approx(NOISE**2 + 0.25)


def test_eighty_percent_of_a_normal_law_lie_within_so_many_deviations() -> None:
    assert math.erf(EIGHTY / math.sqrt(2)) == pytest.approx(0.8, abs=3e-5)


@pytest.mark.parametrize(
    ("deviations", "share", "found"),
    [
        # Of ten errors the eighth covers eight; of five the fourth; of one the only one.
        (range(1, 11), 0.8, 8), (range(1, 6), 0.8, 4), ([3], 0.8, 3), (range(1, 11), 0.5, 5),
        (range(1, 11), 1.0, 10), (range(1, 12), 0.8, 9), ([9, 1, 5], 0.34, 5), ([9, 1, 5], 0.3, 1),
    ],
)  # fmt: skip
def test_the_deviation_of_a_share_is_that_of_one_error(
    deviations: Any, share: float, found: int
) -> None:
    errors = [(EIGHTY * one / 10, 0.0) for one in deviations]
    assert covering(errors, share) == pytest.approx(found / 10)


def test_known_variance_needs_no_deviation() -> None:
    """An error of five tenths, of which three are known, needs four; a known one needs none."""
    assert covering([(EIGHTY * 0.5, 0.09)]) == pytest.approx(0.4)
    assert covering([(EIGHTY * 0.2, 0.09)]) == 0
    assert covering([(EIGHTY * 0.123456, 0.0)]) == 0.123

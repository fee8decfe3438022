"""Monotone interpolation over contexts, and the measure of its error."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from moebench.harness.advise.interpolation import (
    Rates,
    best_rows,
    between,
    interpolation_error,
    monotone,
)
from tests.harness.advise.grids import grid, point, row

CURVES = [
    ([0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 2.5, 9.0]),
    ([0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 2.0, 1.0]),
    ([0.0, 2.0, 3.0], [5.0, 1.0, 0.9]),
    ([0.0, 2.0, 3.0], [1.0, 9.0, 2.0]),
    ([1.0, 2.0], [3.0, 7.0]),
    # At an end before a steep turn the slope is limited to three times the first rise.
    ([0.0, 1.0, 2.0], [0.0, 0.5, -6.0]),
    ([0.0, 1.0, 2.0], [-6.0, 4.0, 4.0]),
    # A flat curve has slopes at its ends, too, and in both directions.
    ([0.0, 1.0, 2.0], [0.0, 0.1, 0.3]),
    ([0.0, 1.0, 2.0], [0.3, 0.2, 0.0]),
]


@pytest.mark.parametrize(("xs", "ys"), CURVES)
def test_the_cubic_is_scipys(xs: list[float], ys: list[float]) -> None:
    theirs = PchipInterpolator(xs, ys)
    for step in range(41):
        x = xs[0] + (xs[-1] - xs[0]) * step / 40
        assert monotone(xs, ys, x) == pytest.approx(float(theirs(x)))


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=5), st.floats(0, 1))
def test_a_value_is_between_its_neighbours(ys: list[float], share: float) -> None:
    xs = [float(11 + 2 * i) for i in range(len(ys))]
    x = xs[0] + share * (xs[-1] - xs[0])
    at = min(len(ys) - 1, int((x - 11) // 2))
    ends = ys[at : at + 2]
    assert min(ends) * (1 - 1e-9) <= monotone(xs, ys, x) <= max(ends) * (1 + 1e-9)


def test_outside_of_the_points_the_curve_is_constant() -> None:
    assert [monotone([1, 2], [3, 4], x) for x in (0, 1, 2, 5)] == [3, 3, 4, 4]


def test_the_first_row_of_an_engine_is_its_best() -> None:
    found = best_rows([row("a", decode=3.0), row("b"), row("a", decode=9.0)])
    assert {name: one.decode for name, one in found.items()} == {"a": 3, "b": 20}


def test_rates_between_two_points_are_interpolated_in_ms_over_the_logarithm() -> None:
    points = [point(0, "m", "q", context, rows=(row(decode=rate, prefill=None),))
              for context, rate in ((2048, 50.0), (8192, 25.0))]  # fmt: skip
    (found,) = between(points, 4096).values()
    assert found.decode == pytest.approx(1e3 / 30)  # 20 and 40 ms
    assert found.prefill is None
    assert between(points, 16384) == {}, "nothing is beyond the last point"


def test_a_row_that_a_neighbour_lacks_is_left_out() -> None:
    points = [one for one in grid().points if one.machine == 2 and one.model == "gpt-oss-120b"]
    assert [*between(points, 4096)] == ["llama.cpp"]
    assert between(points, 16384) == {}


def test_the_error_is_that_of_the_rates_that_both_have() -> None:
    guessed = {"a": Rates(11.0, 100.0), "b": Rates(4.0, None)}
    rows = [row("a", decode=10.0, prefill=100.0), row("b", decode=5.0), row("c")]
    decode, prefill = interpolation_error([(guessed, rows)])
    assert (decode.phase, decode.figures) == ("decode", 2)
    assert decode.median == pytest.approx(0.1)
    assert decode.largest == pytest.approx(0.2)
    assert (prefill.figures, prefill.largest) == (1, 0)
    assert interpolation_error([]) == ()


def test_every_curve_of_the_small_grid_is_monotone() -> None:
    points = [one for one in grid().points if one.machine == 0 and one.quant == "q8_0"]
    rates = [between(points, 2**k)["vllm"].decode for k in (12, 14)]
    all_ = [
        best_rows(points[0].rows)["vllm"].decode,
        rates[0],
        best_rows(points[1].rows)["vllm"].decode,
    ]
    assert None not in all_
    assert [math.log(x or 1) for x in all_] == sorted(
        (math.log(x or 1) for x in all_), reverse=True
    )

"""Laws of curves: lines through points that are on a line, what varies, and crossings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.published.laws import crossings, laws
from tests.harness.published.made import predicted, row


def curve(system: str, start: float, slope: float, counts=(0, 10, 20, 40), **more):
    """Return rows whose token takes ``start + slope * n`` ms with n layers on the host."""
    return [
        row(f"{system}-{n}", 1e3 / (start + slope * n), system=system, n_cpu_moe=n, **more)
        for n in counts
    ]


@given(st.floats(1, 50), st.floats(0.1, 5), st.floats(0.5, 2))
def test_points_on_a_line_give_its_start_and_slope(start, slope, factor) -> None:
    rows = curve("s", start, slope)
    (law,) = laws(rows, predicted(rows, factor))
    assert (law.variable, law.system) == ("layers on the host", "s")
    assert law.measured == pytest.approx((start, slope))
    assert law.predicted == pytest.approx((start / factor, slope / factor))


def test_the_variable_is_what_differs() -> None:
    threads = [row(f"t{n}", 10 * n, n_cpu_moe=8, threads=n) for n in (1, 2, 4)]
    (law,) = laws(threads, predicted(threads))
    assert law.variable == "1 / threads"
    assert law.measured == pytest.approx((0, 100))
    tokens = [row(f"c{n}", 10, prompt_tokens=n) for n in (0, 1000, 2000)]
    assert laws(tokens, predicted(tokens))[0].variable == "tokens"
    resident = [row(f"k{n}", 10 + n, other_flags=f"K={n} experts, {n} resident experts per layer")
                for n in (0, 8, 16)]  # fmt: skip
    assert laws(resident, predicted(resident))[0].variable == "resident experts of a layer"


def test_two_rows_or_equal_ones_make_no_curve() -> None:
    two = curve("s", 5, 1, (0, 10))
    assert laws(two, predicted(two)) == []
    equal = [row(f"e{n}", 10 + n, n_cpu_moe=8) for n in range(4)]
    assert laws(equal, predicted(equal)) == []
    others = curve("s", 5, 1, group="")
    assert laws(others, predicted(others)) == []


def test_curves_cross_where_they_are_equally_fast() -> None:
    rows = curve("fast start", 10, 2) + curve("flat", 30, 1)
    (found,) = crossings(laws(rows, predicted(rows)))
    assert (found.measured, found.predicted) == (pytest.approx(20), pytest.approx(20))
    apart = curve("one", 10, 2) + curve("above", 200, 2.1)
    (found,) = crossings(laws(apart, predicted(apart)))
    assert (found.measured, found.predicted) == (None, None)

"""The comparison of a store's runs by routing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.routing import by_setting, kendall, lines, ranks, routing_label, spearman, swapped


def document(system: str, tpot: float | None, **spec: Any) -> dict[str, Any]:
    spec = {"system": system, "setting": "D1", "model": "m", "weights": None, "trace": None} | spec
    times = None if tpot is None else {"mean": tpot}
    return {"spec": spec, "metrics": {"tpot_ms": times, "ttft_ms": times, "cache_ratio": 0.25}}


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1, 3.5, 2]


def test_correlations_of_orders() -> None:
    """By hand: one of six pairs is swapped; 1 - 6·(0+0+1+1)/(4·15)."""
    x, y = np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 40, 30])
    assert spearman(x, y) == pytest.approx(0.8)
    assert kendall(x, y) == pytest.approx(4 / 6)
    # One pair is equal in y: 5 of the others are in order, over the root of 6 · 5.
    assert kendall(x, np.array([1.0, 2, 2, 4])) == pytest.approx(5 / 30**0.5)
    assert np.isnan(spearman(x, np.ones(4)))
    assert np.isnan(kendall(x, np.ones(4)))


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=8, unique=True), st.randoms())
def test_an_order_is_like_itself_and_unlike_its_reverse(values: list[int], random: Any) -> None:
    x = np.array(values, float)
    y = np.array(random.sample(values, len(values)), float)
    for like in (spearman, kendall):
        assert like(x, np.exp(x)) == pytest.approx(1)
        assert like(x, -x) == pytest.approx(-1)
        assert like(x, y) == pytest.approx(like(y, x))
        assert -1 - 1e-9 <= like(x, y) <= 1 + 1e-9


def test_pairs_in_another_order_are_named() -> None:
    assert swapped(["a", "b", "c"], np.array([1.0, 2, 3]), np.array([2.0, 1, 3])) == ["a/b"]


def test_other_weights_are_named_by_their_folder() -> None:
    spec = document("smoe", 1.0, weights="before/mixtral-8x7b")["spec"]
    assert routing_label(spec) == "before"
    assert routing_label(spec | {"weights": None, "routing": "real"}) == "real"


def test_the_table_of_a_setting() -> None:
    runs = [
        document("smoe", 9.0),  # run again below
        document("smoe", 1.0),
        document("daop", 2.0),
        document("smoe", 4.0, routing="drawn"),
        document("daop", 3.0, routing="drawn"),
        document("smoe", 5.0, routing="real"),
        document("daop", None, routing="real"),
    ]
    (found,) = by_setting(runs).values()
    text = "\n".join(lines("D1", found))
    assert "| system | TPOT (ms) model | TPOT (ms) drawn | TPOT (ms) real | TTFT (ms) model" in text
    assert "| daop | 2.00 | 3.00 | – | 2.0 |" in text
    assert "| smoe | 1.00 | 4.00 | 5.00 | 1.0 |" in text
    assert "| model, drawn | 2 | -1.00 | -1.00 | daop/smoe |" in text
    assert "model, real" not in text, "one system is no order"

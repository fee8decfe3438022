"""The genetic search of slots for each layer: SwapMoE's planner."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.systems.policies.genetic import _filled, equal, search

#: Accuracy by number of experts, of two layers.
ACCURACY = [[0, 0.5, 0.8, 0.9, 0.95], [0, 0.2, 0.4, 0.6, 0.8]]


def worth(value_LN, numbers):
    return sum(values[n] for n, values in zip(numbers, value_LN, strict=True))


def optimum(value_LN, limit, least=0):
    every = product(range(least, len(value_LN[0])), repeat=len(value_LN))
    return max(worth(value_LN, numbers) for numbers in every if sum(numbers) <= limit)


def test_five_experts_are_divided_as_two_and_three():
    #   (1, 4)  .5 + .8 = 1.3
    #   (2, 3)  .8 + .6 = 1.4
    #   (3, 2)  .9 + .4 = 1.3
    assert search(ACCURACY, 5) == [2, 3]
    assert worth(ACCURACY, [2, 3]) == pytest.approx(1.4)
    assert search(ACCURACY, 5, least=2) == [2, 3]
    assert search(ACCURACY, 6, least=3) == [3, 3]


def test_equal_numbers_give_the_rest_to_the_first_layers():
    assert equal(3, 8, 4) == [3, 3, 2]
    assert equal(2, 99, 4) == [4, 4]


def test_slots_that_the_search_leaves_are_given_out_where_they_gain_most():
    # Without generations, the equal division (3, 2) or a random start remains; all five are used.
    found = search(ACCURACY, 5, population=1, generations=0)
    assert sum(found) == 5
    assert search(ACCURACY, 99) == [4, 4]


def test_the_same_seed_finds_the_same_plan():
    value_LN = np.sort(np.random.default_rng(0).random((12, 9)), axis=1)
    found = [search(value_LN, 50, 2, seed=seed, generations=3) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


curve = st.lists(st.integers(0, 9), min_size=5, max_size=5).map(sorted)


@settings(max_examples=60, deadline=None)
@given(st.lists(curve, min_size=1, max_size=4), st.integers(0, 2), st.data())
def test_a_plan_is_within_the_limit_and_no_worse_than_equal_numbers(value_LN, least, data):
    layers = len(value_LN)
    limit = data.draw(st.integers(layers * least, layers * 5))
    found = search(value_LN, limit, least, population=16, generations=40)
    assert sum(found) <= limit
    assert all(least <= n <= 4 for n in found)
    assert worth(value_LN, found) >= worth(value_LN, equal(layers, limit, 4))
    assert worth(value_LN, found) <= optimum(value_LN, limit, least)
    assert sum(found) == min(limit, 4 * layers)


def test_a_plan_of_many_layers_is_near_the_optimum():
    # Concave curves: giving slots out one by one, each where it gains most, is the optimum.
    random = np.random.default_rng(3)
    gains_LE = -np.sort(-random.dirichlet(np.full(16, 0.5), 24), axis=1)
    value_LN = np.concatenate([np.zeros((24, 1)), gains_LE.cumsum(axis=1)], axis=1)
    least = 3
    first = gains_LE[:, :least].sum()
    rest = -np.sort(-gains_LE[:, least:].ravel())[: 144 - 24 * least].sum()
    found = worth(value_LN, search(value_LN, 144, least))
    even = worth(value_LN, equal(24, 144, 16))
    assert even < found <= first + rest + 1e-9
    assert found - even > 0.8 * (first + rest - even)


def test_each_slot_goes_where_the_next_one_gains_most():
    value_LN = np.array([[0, 0.5, 0.6, 0.9], [0, 0.4, 0.8, 0.85]])
    # Gains of the next: .5 and .4; .1 and .4; .1 and .05; then the second layer's .05 or .3.
    for limit, numbers in ((1, [1, 0]), (2, [1, 1]), (3, [1, 2]), (4, [2, 2]), (5, [3, 2])):
        assert _filled(np.array([0, 0]), value_LN, limit) == numbers
    assert _filled(np.array([3, 0]), value_LN, 5) == [3, 2], "a full layer takes no more"
    assert _filled(np.array([2, 3]), value_LN, 99) == [3, 3]
    assert _filled(np.array([3, 3]), value_LN, 4) == [3, 3]


@pytest.mark.parametrize(
    ("layers", "limit", "most", "numbers"),
    [(3, 9, 4, [3, 3, 3]), (3, 10, 4, [4, 3, 3]), (2, 0, 4, [0, 0]), (2, 7, 4, [4, 3]),
     (2, 8, 4, [4, 4]), (2, 9, 4, [4, 4])],
)  # fmt: skip
def test_equal_numbers_differ_by_one_at_most(layers, limit, most, numbers):
    assert equal(layers, limit, most) == numbers

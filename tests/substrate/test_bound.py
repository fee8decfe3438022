"""Belady and the lower bound against brute force and hand-worked cases."""

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.bound import LeastCosts, belady_misses, least_decode_ns


def fewest_loads(requests: list[int], capacity: int) -> int:
    """Every possible decision tried: load (evicting anyone) or bypass at each miss."""

    @lru_cache(None)
    def best(time: int, content: frozenset[int]) -> int:
        if time == len(requests):
            return 0
        key = requests[time]
        if key in content:
            return best(time + 1, content)
        choices = [best(time + 1, content)]  # bypass
        if len(content) < capacity:
            choices.append(best(time + 1, content | {key}))
        choices += [best(time + 1, content - {gone} | {key}) for gone in content]
        return 1 + min(choices)

    return best(0, frozenset())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4))
def test_belady_is_the_optimum_less_its_free_start(requests, capacity):
    assert belady_misses(requests, capacity) == max(0, fewest_loads(requests, capacity) - capacity)


def test_a_case_by_hand():
    # Two slots.  1 2 fill them free; 3 is not worth keeping (1, 2 come sooner); 1 2 hit; 3 misses.
    assert belady_misses([1, 2, 3, 1, 2, 3], 2) == 2


COSTS = LeastCosts(common=100, device=10, link=1000, host=None)


def test_the_device_or_the_link_whichever_is_longer():
    used = [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]  # two tokens, two layers, everything fits
    assert least_decode_ns(used, 4, COSTS) == 2 * 100 + 8 * 10
    assert least_decode_ns(used, 2, COSTS) == 1000 * belady_misses([0, 1, 2, 3, 0, 1, 2, 3], 2)


def test_a_host_can_only_lower_the_bound():
    used = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[0, 1], [2, 3]]]
    costs = LeastCosts(common=100, device=10, link=1000, host=500)
    misses = belady_misses([k for t in used for layer in t for k in layer], 2)
    link = misses / (1 / 1000 + 1 / 500)
    assert least_decode_ns(used, 2, costs) == pytest.approx(max((300 + 120) / (1 + 10 / 500), link))
    assert least_decode_ns(used, 2, costs) <= least_decode_ns(used, 2, COSTS)

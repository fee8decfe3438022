"""Belady and the lower bound against brute force and hand-worked cases."""

from functools import lru_cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.analysis.bound import LeastCosts, belady_misses, least_decode_ns


def fewest_loads(steps: list[list[int]], capacity: int) -> int:
    """Return the fewest loads by trying every possible cache content after each step."""

    @lru_cache(None)
    def best(time: int, content: frozenset[int]) -> int:
        if time == len(steps):
            return 0
        needed = frozenset(steps[time])
        at_hand = sorted(content | needed)
        kept = (
            frozenset(choice)
            for size in range(min(capacity, len(at_hand)) + 1)
            for choice in combinations(at_hand, size)
        )
        return len(needed - content) + min(best(time + 1, choice) for choice in kept)

    return best(0, frozenset())


STEPS = st.lists(st.lists(st.integers(0, 4), unique=True, min_size=1, max_size=3), max_size=7)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(1, 3))
def test_belady_is_the_optimum_less_its_free_start(steps, capacity):
    assert belady_misses(steps, capacity) == max(0, fewest_loads(steps, capacity) - capacity)


def test_belady_misses_match_hand_computation():
    # Two slots.  1 2 fill them free; 3 is not worth keeping (1, 2 come sooner); 1 2 hit; 3 misses.
    assert belady_misses([[1], [2], [3], [1], [2], [3]], 2) == 2
    # Needed at once, 1 2 and then 1 3 share one hit in any order.
    assert belady_misses([[1, 2], [1, 3], [2, 3]], 1) == 3


COSTS = LeastCosts(common=100, device=10, link=1000, host=None)


def test_the_device_or_the_link_whichever_is_longer():
    used = [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]  # two tokens, two layers, everything fits
    assert least_decode_ns(used, 4, COSTS) == 2 * 100 + 8 * 10
    assert least_decode_ns(used, 2, COSTS) == 1000 * belady_misses(
        [[0, 1], [2, 3], [0, 1], [2, 3]], 2
    )


def test_the_disk_reads_what_neither_memory_held():
    used = [[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 1], [2, 3]]]
    costs = LeastCosts(common=100, device=10, link=1, host=None, read=1000)
    # Every token of a cache of 2 loads a pair again, one of 3 a single expert.
    steps = [layer for token in used for layer in token]
    assert [belady_misses(steps, held) for held in (2, 3, 4)] == [6, 3, 0]
    assert [least_decode_ns(used, 2, costs, held) for held in (2, 3)] == [6000, 3000]
    assert least_decode_ns(used, 2, costs, 4) == 3 * 100 + 12 * 10


def test_the_control_thread_may_be_what_everything_waits_for():
    used = [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]
    costs = LeastCosts(common=100, device=10, link=1, host=None, control=500, submit=30)
    assert least_decode_ns(used, 4, costs) == 2 * 500 + 8 * 30


def test_a_host_can_only_lower_the_bound():
    used = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[0, 1], [2, 3]]]
    costs = LeastCosts(common=100, device=10, link=1000, host=500)
    misses = belady_misses([layer for token in used for layer in token], 2)
    link = misses / (1 / 1000 + 1 / 500)
    assert least_decode_ns(used, 2, costs) == pytest.approx(max((300 + 120) / (1 + 10 / 500), link))
    assert least_decode_ns(used, 2, costs) <= least_decode_ns(used, 2, COSTS)

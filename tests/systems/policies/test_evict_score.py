"""SMoE's Eq. 3 by hand and term by term: the lowest average score is evicted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import UsageError
from moebench.systems.policies.evict import LowestAverageScore
from tests.systems.views import started, victim_of, view


def see(policy, *iterations, layer=0):
    """Show passes over a layer to a policy; each is a row or a list of rows, in eighths."""
    for rows in iterations:
        rows = rows if isinstance(rows[0], list) else [rows]
        policy.observe(view(rows, 1, layer=layer, of=8))


#: Four experts' scores in four iterations, in eighths.
ITERATIONS = ([4, 2, 1, 1], [1, 4, 2, 1], [2, 2, 3, 1], [4, 1, 1, 2])


def test_the_window_of_eq_3_holds_n_plus_1_terms():
    policy = started(LowestAverageScore(window=2))
    see(policy, ITERATIONS[0])
    # j = 1: k from max(1, -1) = 1: [4 2 1 1] / 1
    assert victim_of(policy, 0, 1, 2) == 2
    assert victim_of(policy, 0, 1) == 1
    see(policy, ITERATIONS[1])
    # j = 2: k = 1..2: [5 6 3 2] / 2
    assert victim_of(policy, 0, 1) == 0
    assert victim_of(policy, 0, 1, 2) == 2
    assert victim_of(policy, 0, 1, 2, 3) == 3
    see(policy, ITERATIONS[2])
    # j = 3: k = 1..3: [7 8 6 3] / 3
    assert victim_of(policy, 0, 1, 2) == 2
    assert victim_of(policy, 0, 1) == 0
    see(policy, ITERATIONS[3])
    # j = 4: k = 2..4: [7 7 6 4] / 3.  Two terms would be [6 3 ..], four [11 9 ..]: both make 1 the
    # lower of 0 and 1; with three they are equal, and the lowest key leaves.
    assert victim_of(policy, 0, 1) == 0
    assert victim_of(policy, 1, 2) == 2
    assert victim_of(policy, 0, 1, 2, 3) == 3


def test_a_window_of_zero_is_the_current_iteration():
    policy = started(LowestAverageScore(window=0))
    see(policy, *ITERATIONS[:3])
    assert victim_of(policy, 0, 1, 2) == 0  # [2 2 3 1]: 0 and 1 tie, lowest key
    see(policy, ITERATIONS[3])
    assert victim_of(policy, 0, 3) == 3  # [4 1 1 2]
    assert victim_of(policy, 3, 1) == 1


def test_each_layer_counts_its_own_iterations():
    policy = started(LowestAverageScore(window=2))
    see(policy, *ITERATIONS[:2], layer=0)  # [5 6 3 2] / 2 = [2.5 3 1.5 1], keys 0-3
    see(policy, [2, 1, 3, 2], layer=1)  # keys 4-7, one term
    assert victim_of(policy, 0, 4) == 4  # 2.5 > 2
    assert victim_of(policy, 2, 4) == 2  # 1.5 < 2
    assert victim_of(policy, 3, 5) == 3  # 1 = 1: lowest key
    # What was never observed averages 0 and leaves first.
    fresh = started(LowestAverageScore())
    assert victim_of(fresh, 3, 5) == 3
    see(fresh, [2, 1, 3, 2], layer=0)
    assert victim_of(fresh, 1, 6) == 6


def test_scores_of_inactive_experts_count_and_uses_do_not():
    policy = started(LowestAverageScore(window=1))
    for _ in range(2):
        see(policy, [4, 1, 3, 0])  # top-1: expert 0 alone is active
        policy.used(0, [0])
    policy.used(0, [1, 1, 1])
    policy.arrived(1)
    assert victim_of(policy, 1, 2) == 1  # 2 was never active, but scores 3 > 1


def test_a_batch_counts_with_its_mean():
    policy = started(LowestAverageScore(window=1))
    see(policy, [[4, 0, 3, 1], [0, 4, 3, 1], [2, 2, 3, 1]])  # means [2 2 3 1]
    assert victim_of(policy, 0, 2) == 0
    see(policy, [[0, 4, 0, 4]])  # one row weighs as much as three: [2 6 3 5] / 2
    assert victim_of(policy, 1, 2, 3) == 2
    assert victim_of(policy, 0, 1, 2, 3) == 0


def test_a_run_starts_afresh():
    policy = started(LowestAverageScore(window=2))
    see(policy, *ITERATIONS)
    started(policy)
    see(policy, [1, 2, 3, 2])
    assert victim_of(policy, 0, 1, 2, 3) == 0


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 4),
    st.lists(st.lists(st.integers(0, 8), min_size=4, max_size=4), min_size=1, max_size=12),
    st.sets(st.integers(0, 3), min_size=1),
)
def test_eq_3_term_by_term(n, history, allowed):
    policy = started(LowestAverageScore(window=n))
    see(policy, *history)
    j = len(history)
    terms = range(max(1, j - n), j + 1)
    assert len(terms) == j - max(1, j - n) + 1
    # One denominator for all experts of a layer: comparing sums is comparing averages.
    total = {i: sum(history[k - 1][i] for k in terms) for i in allowed}
    assert victim_of(policy, *allowed) == min(allowed, key=lambda i: (total[i], i))


def test_a_negative_window():
    with pytest.raises(UsageError, match=r"evict\.window"):
        LowestAverageScore(window=-1)


def test_a_prompt_keeps_the_experts_of_layers_to_come() -> None:
    """Keys are 4 · layer + expert; layer 1 of three is processed."""
    policy = started(LowestAverageScore(window=0), layers=3)
    for layer, scores in ((0, [4, 3, 2, 1]), (1, [1, 2, 3, 4]), (2, [0, 1, 0, 0])):
        see(policy, scores, layer=layer)
    assert victim_of(policy, 0, 5, 8, total=12) == 8  # in decode the lowest score leaves
    policy.observe(view([[1, 2, 3, 4]], 1, layer=1, of=8, phase="prefill"))
    assert (
        victim_of(policy, 0, 1, 8, 10, total=12) == 1
    )  # 3 < 4, both of the layer that it has left
    assert victim_of(policy, 0, 6, 8, total=12) == 6  # and those of its own layer that are done
    assert victim_of(policy, 8, 9, 11, total=12) == 8  # only layers to come
    policy.observe(view([[4, 3, 2, 1]], 1, layer=0, of=8, phase="prefill"))
    assert victim_of(policy, 4, 5, 9, 10, total=12) == 10  # of these the last layer
    assert victim_of(policy, total=12) is None
    policy.observe(view([[4, 3, 2, 1]], 1, layer=0, of=8))
    assert victim_of(policy, 1, 4, 8, total=12) == 8


@pytest.mark.parametrize("window", [-1, 4097])
def test_a_window_out_of_range_is_one_line(window):
    with pytest.raises(UsageError, match=rf"evict\.window is {window}; allowed"):
        LowestAverageScore(window=window)
    assert LowestAverageScore().window == 8
    LowestAverageScore(window=0)
    LowestAverageScore(window=4096)


def test_the_average_of_an_expert_is_over_the_iterations_that_it_has():
    policy = started(LowestAverageScore(window=2))
    averages = [
        [4, 2, 1, 1],  # one iteration
        [5 / 2, 6 / 2, 3 / 2, 2 / 2],  # two
        [7 / 3, 8 / 3, 6 / 3, 3 / 3],  # three
        [7 / 3, 7 / 3, 6 / 3, 4 / 3],  # the last three
    ]
    for iteration, expected in zip(ITERATIONS, averages, strict=True):
        see(policy, iteration)
        found = [8 * policy.average(key) for key in range(4)]
        assert found == pytest.approx(expected)
    see(policy, [2, 1, 3, 2], layer=1)
    assert 8 * policy.average(6) == pytest.approx(3)

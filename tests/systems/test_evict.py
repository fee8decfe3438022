"""Eviction by hand: Eq. 3, LRU, LFU and its variants, experts that stay; two golden traces.

When is `Eviction.used` called?  The policies only see the order of calls.  Here, as in the spec's
trace, a *request* is one expert: ``used`` first, then (on a miss) ``victim``, ``left``,
``arrived``.  The engine calls ``used`` once for all of a layer's experts, pins them, and then loads
the missing ones; the counts are the same, the order within a layer differs.
"""

import random
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import UsageError
from moebench.systems.policies.evict import (
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    LowestAverageScore,
    NeverEvict,
)
from tests.systems.views import cache, shape, view


def mask(keys, total=8):
    """Allowed keys."""
    allowed = np.zeros(total, dtype=bool)
    allowed[list(keys)] = True
    return allowed


def started(policy, experts=4, layers=2, slots=4, scope="global"):
    """A policy at the start of a run."""
    model = shape(experts, 1, layers)
    policy.start(model, cache(model, slots, scope))
    return policy


# ---------------------------------------------------------------- Eq. 3


def see(policy, *iterations, layer=0):
    """Show one pass after another over a layer; each is a list of rows, or one row, in eighths."""
    for rows in iterations:
        rows = rows if isinstance(rows[0], list) else [rows]
        policy.observe(view(rows, 1, layer=layer, of=8))


def leaves(policy, *keys):
    """Who of these leaves for some expert."""
    return policy.victim(mask(keys), incoming=7)


#: Four experts' scores in four iterations, in eighths.
ITERATIONS = ([4, 2, 1, 1], [1, 4, 2, 1], [2, 2, 3, 1], [4, 1, 1, 2])


def test_the_window_of_eq_3_holds_n_plus_1_terms():
    policy = started(LowestAverageScore(window=2))
    see(policy, ITERATIONS[0])
    # j = 1: k from max(1, -1) = 1: [4 2 1 1] / 1
    assert leaves(policy, 0, 1, 2) == 2
    assert leaves(policy, 0, 1) == 1
    see(policy, ITERATIONS[1])
    # j = 2: k = 1..2: [5 6 3 2] / 2
    assert leaves(policy, 0, 1) == 0
    assert leaves(policy, 0, 1, 2) == 2
    assert leaves(policy, 0, 1, 2, 3) == 3
    see(policy, ITERATIONS[2])
    # j = 3: k = 1..3: [7 8 6 3] / 3
    assert leaves(policy, 0, 1, 2) == 2
    assert leaves(policy, 0, 1) == 0
    see(policy, ITERATIONS[3])
    # j = 4: k = 2..4: [7 7 6 4] / 3.  Two terms would be [6 3 ..], four [11 9 ..]: both make 1 the
    # lower of 0 and 1; with three they are equal, and the lowest key leaves.
    assert leaves(policy, 0, 1) == 0
    assert leaves(policy, 1, 2) == 2
    assert leaves(policy, 0, 1, 2, 3) == 3


def test_a_window_of_zero_is_the_current_iteration():
    policy = started(LowestAverageScore(window=0))
    see(policy, *ITERATIONS[:3])
    assert leaves(policy, 0, 1, 2) == 0  # [2 2 3 1]: 0 and 1 tie, lowest key
    see(policy, ITERATIONS[3])
    assert leaves(policy, 0, 3) == 3  # [4 1 1 2]
    assert leaves(policy, 3, 1) == 1


def test_each_layer_counts_its_own_iterations():
    policy = started(LowestAverageScore(window=2))
    see(policy, *ITERATIONS[:2], layer=0)  # [5 6 3 2] / 2 = [2.5 3 1.5 1], keys 0-3
    see(policy, [2, 1, 3, 2], layer=1)  # keys 4-7, one term
    assert leaves(policy, 0, 4) == 4  # 2.5 > 2
    assert leaves(policy, 2, 4) == 2  # 1.5 < 2
    assert leaves(policy, 3, 5) == 3  # 1 = 1: lowest key
    # What was never observed averages 0 and leaves first.
    fresh = started(LowestAverageScore())
    assert leaves(fresh, 3, 5) == 3
    see(fresh, [2, 1, 3, 2], layer=0)
    assert leaves(fresh, 1, 6) == 6


def test_scores_of_inactive_experts_count_and_uses_do_not():
    policy = started(LowestAverageScore(window=1))
    for _ in range(2):
        see(policy, [4, 1, 3, 0])  # top-1: expert 0 alone is active
        policy.used(0, [0])
    policy.used(0, [1, 1, 1])
    policy.arrived(1)
    assert leaves(policy, 1, 2) == 1  # 2 was never active, but scores 3 > 1


def test_a_batch_counts_with_its_mean():
    policy = started(LowestAverageScore(window=1))
    see(policy, [[4, 0, 3, 1], [0, 4, 3, 1], [2, 2, 3, 1]])  # means [2 2 3 1]
    assert leaves(policy, 0, 2) == 0
    see(policy, [[0, 4, 0, 4]])  # one row weighs as much as three: [2 6 3 5] / 2
    assert leaves(policy, 1, 2, 3) == 2
    assert leaves(policy, 0, 1, 2, 3) == 0


def test_a_run_starts_afresh():
    policy = started(LowestAverageScore(window=2))
    see(policy, *ITERATIONS)
    started(policy)
    see(policy, [1, 2, 3, 2])
    assert leaves(policy, 0, 1, 2, 3) == 0


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
    assert leaves(policy, *allowed) == min(allowed, key=lambda i: (total[i], i))


def test_a_negative_window():
    with pytest.raises(UsageError, match=r"evict\.window"):
        LowestAverageScore(window=-1)


# ---------------------------------------------------------------- LRU and LFU


def test_lru_by_hand():
    policy = started(LeastRecentlyUsed())
    for key in (2, 0, 5):
        policy.arrived(key)
    assert leaves(policy, 0, 2, 5) == 2  # order of arrival: 2 0 5
    policy.used(0, [2])  # 0 5 2
    assert leaves(policy, 0, 2, 5) == 0
    policy.used(0, [0, 2])  # 5 0 2
    assert leaves(policy, 0, 2, 5) == 5  # layer 1, expert 1
    assert leaves(policy, 0, 2) == 0  # only those allowed
    policy.used(1, [1])  # 0 2 5
    assert leaves(policy, 2, 5) == 2
    policy.arrived(3)  # 0 2 5 3: an arrival without a use (a prefetch) is the most recent
    assert leaves(policy, 5, 3) == 5


@pytest.mark.parametrize(
    "policy",
    [
        LeastRecentlyUsed(),
        LeastFrequentlyUsed(tie="id"),
        LeastFrequentlyUsed(tie="lru"),
        LowestAverageScore(),
        NeverEvict(),
    ],
)
def test_nobody_leaves_when_nobody_may(policy):
    started(policy)
    for key in (0, 1, 2):
        policy.arrived(key)
    policy.used(0, [0, 1, 2])
    assert leaves(policy) is None


class Slots:
    """A cache of one layer for the per-request convention of the module's docstring."""

    def __init__(self, policy, capacity, experts=64):
        self.policy, self.capacity, self.experts = policy, capacity, experts
        self.inside = set()
        started(policy, experts, 1, capacity)

    def request(self, key):
        """Whether it hit."""
        self.policy.used(0, [key])
        if key in self.inside:
            return True
        if len(self.inside) == self.capacity:
            gone = self.policy.victim(mask(self.inside, self.experts), key)
            self.inside.remove(gone)
            self.policy.left(gone)
        self.inside.add(key)
        self.policy.arrived(key)
        return False


@pytest.mark.parametrize(
    ("options", "inside"),
    [
        # 0 0 1: counts 0:2 1:1.  2: 1 leaves (1 < 2).  1 again: its count is 1 when lost, 2 when it
        # survives; 2 leaves (1 < 2).  3: lost, 1 leaves (1 < 2); survived, 0 and 1 tie at 2 and 0
        # leaves, for it has the lower id and the older use.
        ({"survive": False, "tie": "id"}, {0, 3}),
        ({"survive": False, "tie": "lru"}, {0, 3}),
        ({"survive": True, "tie": "id"}, {1, 3}),
        ({"survive": True, "tie": "lru"}, {1, 3}),
    ],
)
def test_lfu_counts_survive_or_not(options, inside):
    slots = Slots(LeastFrequentlyUsed(**options), 2, 4)
    assert [slots.request(key) for key in (0, 0, 1, 2, 1, 3)] == [0, 1, 0, 0, 0, 0]
    assert slots.inside == inside


@pytest.mark.parametrize(("tie", "inside"), [("id", {1, 2}), ("lru", {0, 2})])
def test_lfu_ties(tie, inside):
    # 1 then 0, once each: the lowest id is 0, the oldest use is 1's.
    slots = Slots(LeastFrequentlyUsed(tie=tie), 2, 4)
    for key in (1, 0, 2):
        slots.request(key)
    assert slots.inside == inside


def golden_trace():
    """400 steps of 8 distinct ids, popular ones first, each step sorted."""
    rng = random.Random(7)
    weights = [1 / (i + 1) ** 0.8 for i in range(64)]
    steps = []
    while len(steps) < 400:
        step = set()
        while len(step) < 8:
            step.add(rng.choices(range(64), weights)[0])
        steps.append(sorted(step))
    return steps


def test_the_golden_trace_is_the_specs():
    steps = golden_trace()
    assert steps[0] == [0, 1, 3, 4, 7, 10, 11, 18]
    assert sum(map(sum, steps)) == 58599


@pytest.mark.parametrize(
    ("policy", "hits"),
    [
        (LeastFrequentlyUsed(survive=False, tie="id"), 1022),
        (LeastRecentlyUsed(), 1272),
        (LeastFrequentlyUsed(survive=False, tie="lru"), 1652),
    ],
)
def test_golden_hits(policy, hits):
    slots = Slots(policy, 16)
    assert sum(slots.request(key) for step in golden_trace() for key in step) == hits


def lru_hits(trace, capacity):
    """LRU with an ordered dictionary."""
    inside, hits = OrderedDict(), []
    for key in trace:
        hits.append(key in inside)
        inside[key] = None
        inside.move_to_end(key)
        if len(inside) > capacity:
            inside.popitem(last=False)
    return hits


def lfu_hits(trace, capacity, *, survive, tie):
    """LFU that looks at everything it remembers, at every miss."""
    inside, count, last, hits = set(), {}, {}, []
    for now, key in enumerate(trace):
        hits.append(key in inside)
        if key not in inside and len(inside) == capacity:
            gone = min(inside, key=lambda k: (count[k], k if tie == "id" else last[k]))
            inside.remove(gone)
            if not survive:
                del count[gone]
        inside.add(key)
        count[key] = count.get(key, 0) + 1
        last[key] = now
    return hits


traces = st.lists(st.integers(0, 7), max_size=60)


@settings(max_examples=100, deadline=None)
@given(traces, st.integers(1, 5))
def test_lru_against_an_ordered_dictionary(trace, capacity):
    slots = Slots(LeastRecentlyUsed(), capacity, 8)
    assert [slots.request(key) for key in trace] == lru_hits(trace, capacity)


@settings(max_examples=200, deadline=None)
@given(traces, st.integers(1, 5), st.booleans(), st.sampled_from(["id", "lru"]))
def test_lfu_against_a_dictionary(trace, capacity, survive, tie):
    slots = Slots(LeastFrequentlyUsed(survive=survive, tie=tie), capacity, 8)
    expected = lfu_hits(trace, capacity, survive=survive, tie=tie)
    assert [slots.request(key) for key in trace] == expected


# ---------------------------------------------------------------- nobody leaves


def test_placed_experts_stay():
    # Four slots, two for staging: the first two arrivals are placed, the rest pass through.
    policy = started(NeverEvict(staging=2))
    assert policy.reserve == 2
    for key in (0, 4, 1, 5):
        policy.arrived(key)
    assert leaves(policy, 0, 4) is None  # refused
    assert leaves(policy, 0, 4, 1, 5) == 1
    assert leaves(policy, 0, 5) == 5
    policy.left(1)
    policy.arrived(2)
    assert leaves(policy, 0, 4, 2) == 2
    assert leaves(policy, 0, 4, 1) is None  # 1 is gone


def test_staging_slots_in_every_layer_where_layers_do_not_share():
    # Two layers of three slots each.  One pool needs 2 staging slots, two pools need 2 each:
    # otherwise a layer full of placed experts could never load another.
    model = shape(4, 1, 2)
    own_slots = cache(model, 6, "layer")
    policy = NeverEvict(staging=2)
    policy.start(model, own_slots)
    assert policy.reserve == 4
    for key in (0, 4):  # layer 0 expert 0, layer 1 expert 0
        own_slots.claim(key, None)
        policy.arrived(key)
    for key in (1, 2, 5, 6):
        assert own_slots.has_free_slot(key)
        own_slots.claim(key, None)
        policy.arrived(key)
    assert leaves(policy, 0, 1, 2) == 1
    assert leaves(policy, 4, 5, 6) == 5
    assert leaves(policy, 0, 4) is None


def test_without_staging_nothing_could_be_loaded():
    with pytest.raises(UsageError, match=r"evict\.staging"):
        NeverEvict(staging=0)

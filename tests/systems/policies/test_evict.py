"""LRU, LFU with variants, and protected experts, by hand; two golden traces.

When is `Eviction.used` called?  The policies only see the order of calls.  Here, as in the spec's
trace, a *request* is one expert: ``used`` first, then (on a miss) ``victim``, ``left``,
``arrived``.  The engine calls ``used`` once for all of a layer's experts, pins them, and then loads
the missing ones; the counts are the same, the order within a layer differs.
"""

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import BudgetError, UsageError
from moebench.systems.policies.evict import (
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    LowestAverageScore,
    NeverEvict,
)
from tests.systems.policies.golden import golden_trace
from tests.systems.views import cache, flags, shape, started, victim_of

# ---------------------------------------------------------------- LRU and LFU


def test_lru_by_hand():
    policy = started(LeastRecentlyUsed())
    for key in (2, 0, 5):
        policy.arrived(key)
    assert victim_of(policy, 0, 2, 5) == 2  # order of arrival: 2 0 5
    policy.used(0, [2])  # 0 5 2
    assert victim_of(policy, 0, 2, 5) == 0
    policy.used(0, [0, 2])  # 5 0 2
    assert victim_of(policy, 0, 2, 5) == 5  # layer 1, expert 1
    assert victim_of(policy, 0, 2) == 0  # only those allowed
    policy.used(1, [1])  # 0 2 5
    assert victim_of(policy, 2, 5) == 2
    policy.arrived(3)  # 0 2 5 3: an arrival without a use (a prefetch) is the most recent
    assert victim_of(policy, 5, 3) == 5


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
def test_no_victim_where_none_is_allowed(policy):
    started(policy)
    for key in (0, 1, 2):
        policy.arrived(key)
    policy.used(0, [0, 1, 2])
    assert victim_of(policy) is None


class Slots:
    """A cache of one layer for the per-request convention of the module's docstring."""

    def __init__(self, policy, capacity, experts=64):
        self.policy, self.capacity, self.experts = policy, capacity, experts
        self.inside = set()
        started(policy, experts, 1, capacity)

    def request(self, key):
        """Request an expert, and return whether it hit."""
        self.policy.used(0, [key])
        if key in self.inside:
            return True
        if len(self.inside) == self.capacity:
            gone = self.policy.victim(flags(self.inside, self.experts), key)
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
    """Return the hits of LRU, computed with an ordered dictionary."""
    inside, hits = OrderedDict(), []
    for key in trace:
        hits.append(key in inside)
        inside[key] = None
        inside.move_to_end(key)
        if len(inside) > capacity:
            inside.popitem(last=False)
    return hits


def lfu_hits(trace, capacity, *, survive, tie):
    """Return the hits of LFU, scanning all counts at every miss."""
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


# ---------------------------------------------------------------- placed experts stay


def placing(policy, *keys):
    """Place experts before the first token."""
    for key in keys:
        policy.placed(key)


def test_placed_experts_stay():
    # Four slots, two of them for staging.
    policy = started(NeverEvict(staging=2))
    assert policy.reserve == 2
    placing(policy, 0, 4)
    for key in (1, 5):
        policy.arrived(key)
    assert victim_of(policy, 0, 4) is None  # refused
    assert victim_of(policy, 0, 4, 1, 5) == 1
    assert victim_of(policy, 0, 5) == 5
    policy.left(1)
    policy.arrived(2)
    assert victim_of(policy, 0, 4, 2) == 2
    assert victim_of(policy, 0, 4, 1) is None  # 1 is gone


def test_placed_experts_are_told_not_counted():
    # Nothing is placed: even the first arrivals pass through, although slots are free.
    policy = started(NeverEvict(staging=1))
    for key in (0, 4):
        policy.arrived(key)
    assert victim_of(policy, 0, 4) == 0
    # One of four is placed, after whom three arrive.
    policy = started(NeverEvict(staging=1))
    placing(policy, 3)
    for key in (0, 4, 1):
        policy.arrived(key)
    for key in (0, 4, 1):
        assert victim_of(policy, 3, key) == key
    assert victim_of(policy, 3) is None


def test_a_run_starts_afresh():
    policy = started(NeverEvict())
    placing(policy, 0)
    policy.arrived(1)
    started(policy)
    placing(policy, 1)
    policy.arrived(0)
    assert victim_of(policy, 0, 1) == 0
    assert victim_of(policy, 1) is None


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 7), max_size=3), st.lists(st.integers(0, 7), max_size=20))
def test_no_placed_expert_is_ever_a_victim(placed, arrivals):
    policy = started(NeverEvict(staging=1))
    placing(policy, *placed)
    inside = set(placed)
    for key in arrivals:
        if key in inside:
            continue
        if len(inside) == 4:
            gone = policy.victim(flags(inside, 8), key)
            assert gone in inside - placed
            inside.remove(gone)
            policy.left(gone)
        inside.add(key)
        policy.arrived(key)
    assert placed <= inside


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
        policy.placed(key)
    for key in (1, 2, 5, 6):
        assert own_slots.has_free_slot(key, 0)
        own_slots.claim(key, None)
        policy.arrived(key)
    assert victim_of(policy, 0, 1, 2) == 1
    assert victim_of(policy, 4, 5, 6) == 5
    assert victim_of(policy, 0, 4) is None


@pytest.mark.parametrize(
    ("slots", "scope", "staging"), [(2, "global", 2), (4, "layer", 2), (1, "global", 1)]
)
def test_more_staging_than_slots(slots, scope, staging):
    with pytest.raises(BudgetError, match=rf"keeps {slots} of {slots} slots empty"):
        started(NeverEvict(staging=staging), slots=slots, scope=scope)


def test_without_staging_nothing_could_be_loaded():
    with pytest.raises(UsageError, match=r"evict\.staging"):
        NeverEvict(staging=0)

"""LFRU, Least-Stale and DALI's window: cases by hand, and restatements on random streams.

Keys are ``layer · 8 + expert``.  ``drive`` makes the accesses of whole layers as the engine does:
``used`` with all experts, then for each missing one ``victim``, ``left`` and ``arrived``.
"""

from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.analysis.cache_replay import replay, requests, topology
from moebench.substrate.errors import UsageError
from moebench.systems.policies.evict_engines import LFRU, LeastStale, WorkloadAware, lfru_victim
from moebench.systems.registry import make
from tests.systems.views import cache, flags, shape, started, victim_of, view

EXPERTS = 8


class Driven:
    """A policy and the experts in its slots, all layers in one pool."""

    def __init__(self, policy, slots, layers=2):
        self.policy, self.slots, self.keys = policy, slots, layers * EXPERTS
        self.inside = set()
        started(policy, EXPERTS, layers, slots)

    def use(self, *experts, layer=0, rows=None):
        """Use a layer's experts; return the evicted keys.  ``rows`` is the router's own order."""
        if rows is not None:
            scores = np.ones((len(rows), EXPERTS))
            self.policy.observe(view(scores, len(rows[0]), layer=layer, own=rows))
        keys = [layer * EXPERTS + expert for expert in experts]
        self.policy.used(layer, experts)
        gone = []
        for key in [key for key in keys if key not in self.inside]:
            if len(self.inside) == self.slots:
                victim = self.policy.victim(flags(self.inside - {*keys}, self.keys), key)
                self.inside.remove(victim)
                self.policy.left(victim)
                gone.append(victim)
            self.inside.add(key)
            self.policy.arrived(key)
        return gone


# ---------------------------------------------------------------- LFRU by hand


def test_lfru_evicts_the_least_count_over_age():
    # t1 insert 0, t2 insert 1, t3 hit 0.  At t3: expert 0 has 2 / (3 - 3 + 1) = 2, expert 1 has
    # 1 / (3 - 2 + 1) = 0.5: 1 is evicted.  LRU evicts 1 too, but not in the next case.
    cache = Driven(LFRU(), 2)
    assert [cache.use(expert) for expert in (0, 1, 0, 2)] == [[], [], [], [1]]
    # t4 inserted 2.  At t4: 0 has 2 / (4 - 3 + 1) = 1 and 2 has 1 / 1 = 1: a tie, 0 came first.
    assert cache.use(3) == [0]


def test_lfru_keeps_a_frequent_expert_that_lru_would_evict():
    # t1 to t4: expert 0 four times; t5 insert 1.  At t5: 4 / (5 - 4 + 1) = 2 against 1 / 1.
    cache = Driven(LFRU(), 2)
    assert [cache.use(expert) for expert in (0, 0, 0, 0, 1, 2)] == [[], [], [], [], [], [1]]


def test_12_5_1_the_clock_counts_accesses_not_steps():
    # t1 insert 3, t2 insert 1; one step uses both, 1 at t3 and 3 at t4.  At t4: 1 has 2 / 2, 3 has
    # 2 / 1.  Counted in steps both would have 2 / 1, and 3, inserted first, would leave.
    policy = Driven(LFRU(), 2)
    policy.use(3)
    policy.use(1)
    policy.use(1, 3)
    assert policy.use(5) == [1]


def test_12_5_1_ties_go_to_the_expert_inserted_first_not_to_the_oldest_use():
    # t1 insert 0; t2 insert 1, t3 and t4 hit 1; t5 hit 0; t6 insert 2.  At t6:
    #   0: 2 / (6 - 5 + 1) = 1     1: 3 / (6 - 4 + 1) = 1     2: 1 / (6 - 6 + 1) = 1
    # All tie.  0 was inserted first; 1 was used longest ago.
    policy = Driven(LFRU(), 3)
    for expert in (0, 1, 1, 1, 0, 2):
        policy.use(expert)
    assert policy.use(3) == [0]


def test_lfru_counts_begin_with_the_insertion():
    # t1 to t4: expert 0; t5 insert 1; t6 hit 1; t7 insert 2: 0 has 4 / (6 - 4 + 1) = 1.33, 1 has 2:
    # 0 is evicted.  t8 insert 0 again, evicting 2 (1 / 1) or 1 (2 / 2): a tie, 1 came first.
    policy = Driven(LFRU(), 2)
    for expert in (0, 0, 0, 0, 1, 1):
        policy.use(expert)
    assert policy.use(2) == [0]
    assert policy.use(0) == [1]
    # At t8: 2 has 1 / (8 - 7 + 1) = 0.5, 0 has 1 / 1, not 5 / 1: with the old count 0 would stay
    # for longer.  t9 insert 3 evicts 2.  At t9: 0 has 1 / 2, 3 has 1 / 1.
    assert policy.use(3) == [2]
    assert policy.use(4) == [0]


def filled_for_the_order(policy, **of):
    """Make accesses t1 to t7, after which a miss evicts 2 at t7 or t8, and 3 at t9.

    t1 to t3: expert 2; t4 insert 5; t5 insert 6; t6 hit 5; t7 insert 3.

        clock      7              9
        2: 3 /     (7 - 3 + 1)    (9 - 3 + 1)     = 0.60    0.43
        3: 1 /     (7 - 7 + 1)    (9 - 7 + 1)     = 1.00    0.33
    """
    driven = Driven(policy, 4)
    for expert in (2, 2, 2, 5, 6, 5, 3):
        driven.use(expert, **of)
    return driven


def test_12_5_2_vllm_takes_distinct_ids_in_ascending_order():
    # Experts 1 (missing), 5 and 6 (hits): the miss comes first, at t7.
    assert filled_for_the_order(LFRU()).use(1, 5, 6) == [2]
    # Experts 5, 6 and 7 (missing): both hits come first, so that the clock is 9.
    assert filled_for_the_order(LFRU()).use(5, 6, 7) == [3]


def test_12_5_2_tinyserve_takes_all_hits_of_a_token_first():
    driven = filled_for_the_order(LFRU(reading="tinyserve"), rows=None)
    assert driven.use(1, 5, 6, rows=[[1, 5, 6]]) == [3]


def test_12_5_2_tinyserve_takes_a_prompt_in_the_order_in_which_its_rows_name_experts():
    # Two rows, which name 1 (missing), 5, 6: the miss comes first.  If they name 5 and 6 first:
    driven = filled_for_the_order(LFRU(reading="tinyserve"))
    assert driven.use(1, 5, 6, rows=[[1, 5], [5, 6]]) == [2]
    driven = filled_for_the_order(LFRU(reading="tinyserve"))
    assert driven.use(1, 5, 6, rows=[[6, 5], [5, 1]]) == [3]


def test_12_5_2_experts_of_the_same_call_are_not_evicted():
    # Full with 0 and 1, each used once.  0 is used with 2: 1 leaves although 0 has the least score.
    policy = Driven(LFRU(), 2)
    policy.use(0)
    policy.use(1)
    policy.use(1)
    assert policy.use(0, 2) == [1]


def test_lfru_by_rank_orders_the_last_uses_of_a_layer():
    # One token names 3 before 2, both missing, loaded in that order: 3 at t1, 2 at t2.  4 and 5
    # follow at t3 and t4.  Then a miss: 3 has 1 / 4, 2 has 1 / 3.  By id 2 would be the older one.
    for reading, older in (("tinyserve", 3), ("vllm", 2)):
        driven = Driven(LFRU(reading=reading), 4)
        order = (3, 2) if reading == "tinyserve" else (2, 3)
        driven.use(*order, rows=[[3, 2]])
        driven.use(4)
        driven.use(5)
        assert driven.use(6) == [older]


def test_a_prefetched_expert_is_inserted_with_count_1_and_one_tick():
    # t1 insert 0, t2 hit 0, t3 prefetch of 8 (layer 1).  At t3: 0 has 2 / 2, 8 has 1 / 1: a tie.
    policy = started(LFRU(reading="tinyserve"), EXPERTS, 2, 2)
    policy.used(0, [0])
    policy.arrived(0)
    policy.used(0, [0])
    policy.arrived(8)
    assert victim_of(policy, 0, 8, total=16) == 0
    policy.used(1, [0])  # the prefetch hits: count 2, t4; 0 has 2 / 3
    policy.used(0, [5])
    assert victim_of(policy, 0, 8, total=16) == 0
    policy.used(0, [0])
    policy.used(0, [0])  # t6: 0 has 4 / 1, 8 has 2 / 3
    policy.used(0, [5])
    assert victim_of(policy, 0, 8, total=16) == 8


@pytest.mark.parametrize(
    ("count", "last", "inserted", "clock", "index"),
    [
        ([2, 1], [3, 2], [1, 2], 3, 1),
        ([3, 2, 1], [4, 5, 6], [2, 1, 6], 6, 1),  # all 1: the one inserted first
        ([1], [1], [1], 9, 0),
    ],
)
def test_lfru_victim(count, last, inserted, clock, index):
    assert lfru_victim(*map(np.array, (count, last, inserted)), clock) == index


# ---------------------------------------------------------------- Least-Stale by hand


def two_layers(policy, slots):
    """Return a driven policy after a token that used 0 and 1 in layer 0, and 0 in layer 1 (8)."""
    driven = Driven(policy, slots)
    driven.use(0, 1)
    driven.use(0, layer=1)
    return driven


def test_least_stale_evicts_the_oldest_stale_expert_first():
    # Fresh: 0 1 8.  A new token makes them stale; it uses 2 (free slot): fresh 2, stale 0 1 8.
    driven = two_layers(LeastStale(), 4)
    assert driven.use(2) == []
    # Layer 1 misses 9: the oldest stale one, 0, leaves.  LRU would do the same; but see the next.
    assert driven.use(1, layer=1) == [0]


def test_12_8_1_a_hit_moves_a_stale_entry_to_the_end_of_fresh():
    driven = two_layers(LeastStale(), 4)
    # Next token: 0 is hit, 2 inserted.  Stale 1 8, fresh 0 2.
    assert driven.use(0, 2) == []
    assert driven.use(1, layer=1) == [1]  # stale 8, fresh 0 2 9


def test_12_8_1_a_hit_on_a_fresh_entry_changes_nothing():
    # One layer used twice in one token, as by two requests: fresh 0 1, then 0 is hit again.
    policy = started(LeastStale(), EXPERTS, 2, 3)
    policy.used(0, [0, 1])
    policy.arrived(0)
    policy.arrived(1)
    policy.used(0, [0])  # the same token goes on: its first layer was the one before
    assert victim_of(policy, 0, 1, total=16) == 0  # LRU would evict 1


def test_12_8_1_fresh_is_appended_behind_what_is_still_stale():
    driven = two_layers(LeastStale(), 4)
    driven.use(0, 2)  # stale 1 8, fresh 0 2
    driven.use(3, layer=1)  # evicts 1: stale 8, fresh 0 2 11
    # The third token begins: stale 8 0 2 11.  It uses 2, and misses 4: the oldest is 8.
    assert driven.use(2, 4) == [8]
    assert driven.use(3, 5, layer=1) == [0]


def test_least_stale_evicts_the_oldest_fresh_expert_where_none_is_stale():
    driven = Driven(LeastStale(), 2)
    driven.use(0, 1)
    assert driven.use(0, layer=1) == [0]


def test_12_8_1_only_single_token_decode_begins_a_token():
    # Fresh 0 1 8.  A pass of two rows uses 0 and 2: nothing becomes stale, fresh 0 1 8 2.
    driven = two_layers(LeastStale(), 4)
    driven.use(0, 2, rows=[[0, 2], [2, 0]])
    assert driven.use(1, layer=1, rows=[[1], [1]]) == [0]  # a token would have moved 0 behind 8
    # The same pass of one row: stale 1 8, fresh 0 2.
    driven = two_layers(LeastStale(), 4)
    driven.use(0, 2, rows=[[0, 2]])
    assert driven.use(1, layer=1, rows=[[1]]) == [1]


def test_least_stale_by_layer_evicts_the_lowest_layer():
    driven = Driven(LeastStale(reading="layer"), 3, layers=3)
    driven.use(5, layer=2)
    driven.use(3, layer=1)
    driven.use(1, layer=1)
    # The lowest layer is 1; 3 was inserted before 1, and a hit does not change that.
    driven.use(3, layer=1)
    assert driven.use(0, layer=0) == [8 + 3]
    assert driven.use(6, layer=2) == [0]


def test_least_stale_by_interval_evicts_the_farthest_predicted_use():
    # Accesses t0, t1, ...: 0 1 2 0 1 2 0.  t3: 0's interval is 3; t4, t5: 3 for 1 and 2; t6: 0's
    # is 3 again: 0.75 · 3 + 0.25 · 3.  Next uses: 0: 6 + 3 = 9, 1: 4 + 3 = 7, 2: 5 + 3 = 8.
    driven = Driven(LeastStale(reading="interval"), 3)
    for expert in (0, 1, 2, 0, 1, 2, 0):
        driven.use(expert)
    assert driven.use(3) == [0]  # t7; 3's next use: 7 + 1 = 8
    # t8: a tie of 2 (5 + 3) and 3 (7 + 1): the more recent one, 3, leaves.
    assert driven.use(4) == [3]


def test_least_stale_by_interval_averages_with_weight_a_quarter():
    # 0 at t0, t4 (interval 4) and t5 (0.75 · 4 + 0.25 · 1 = 3.25): next use 8.25.
    # 1 at t1, t2, t3 (interval 1): next use 4, and at t6 (0.75 + 0.75 = 1.5): 7.5.
    driven = Driven(LeastStale(reading="interval"), 2)
    for expert in (0, 1, 1, 1, 0, 0, 1):
        driven.use(expert)
    assert driven.use(2) == [0]


# ---------------------------------------------------------------- DALI's window by hand


def test_dali_never_evicts_a_hot_expert():
    # Window 4, share 0.5: hot from 2 of the last 4 accesses.  0 0 1: 0 is hot, 1 is cold.
    driven = Driven(WorkloadAware(window=4, share=0.5), 2)
    assert [driven.use(expert) for expert in (0, 0, 1, 2)] == [[], [], [], [1]]


def test_12_9_2_the_window_is_of_accesses_and_hot_from_25_of_256():
    # 24 accesses of 0, then of 1: 0 is cold and the least recent.  With the 25th, 0 is hot.
    for times, gone in ((24, 0), (25, 1)):
        driven = Driven(WorkloadAware(), 2)
        for _ in range(times):  # in the same layer of the same token
            driven.use(0)
        driven.use(1)
        assert driven.use(2) == [gone]
    assert make("evict", "dali-window") == WorkloadAware(window=256, share=0.1)


def test_12_9_2_hits_and_insertions_count():
    # One insertion and one hit make 0 hot (2 of 4).
    driven = Driven(WorkloadAware(window=4, share=0.5), 2)
    driven.use(0)
    driven.use(0)
    driven.use(1)
    assert driven.use(2) == [1]


def test_12_9_2_an_expert_that_has_cooled_stays_protected_until_it_is_used():
    # Window 4, hot from 2.  0 0 1 2 3 4: after 3 the window is 0 1 2 3 (0 once: it has cooled), and
    # after 4 it is 1 2 3 4 (0 never).  0 is still protected: 1, 2, 3 leave in turn.
    driven = Driven(WorkloadAware(window=4, share=0.5), 2)
    for expert in (0, 0, 1):
        driven.use(expert)
    assert [driven.use(expert) for expert in (2, 3, 4)] == [[1], [2], [3]]
    # Its own access decides anew: 0 has 1 of the last 4 (2 3 4 0 without it before): cold, and
    # more recent than 4.
    driven.use(0)
    assert driven.use(5) == [4]
    assert driven.use(6) == [0]


def test_12_9_2_without_a_cold_expert_the_earliest_inserted_leaves():
    # Window 8, hot from 2: 1 1 0 0: both are hot.  1 was inserted first, 0 has the lower id.
    driven = Driven(WorkloadAware(window=8, share=0.25), 2)
    for expert in (1, 1, 0, 0, 1):
        driven.use(expert)
    assert driven.use(2) == [1]


def test_dali_remembers_accesses_of_evicted_experts():
    # 1 is inserted, evicted by 2, and inserted again within the window: 2 of 8, hot.
    driven = Driven(WorkloadAware(window=8, share=0.25), 2)
    for expert in (0, 0, 1, 2, 1, 3):
        driven.use(expert)
    # At 3, 0 is hot and 1 is hot since its second insertion: 0, inserted first, leaves.
    assert driven.inside == {1, 3}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 0}, r"evict\.window is 0; allowed: 1 to 4096"),
        ({"share": 1.5}, r"evict\.share is 1\.5; allowed: 0 to 1"),
        ({"share": -0.1}, r"evict\.share is -0\.1; allowed: 0 to 1"),
    ],
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        WorkloadAware(**options)


# ---------------------------------------------------------------- restatements


class PlainLFRU:
    """LFRU by a scan of all residents in the order of their insertion."""

    def __init__(self):
        self.clock, self.of = 0, {}

    def token(self):
        pass

    def access(self, key):
        self.clock += 1
        count = self.of[key][0] if key in self.of else 0
        self.of[key] = (count + 1, self.clock)

    def victim(self, candidates):
        found, least = None, float("inf")
        for key, (count, last) in self.of.items():
            if key in candidates and count / (self.clock - last + 1) < least:
                found, least = key, count / (self.clock - last + 1)
        return found

    def remove(self, key):
        del self.of[key]


class PlainStale:
    """Least-Stale by one list of (key, token of its last move), oldest first."""

    def __init__(self):
        self.now, self.moved = 0, []

    def token(self):
        # Entries of earlier tokens are in order already: stale ones precede fresh ones.
        self.now += 1

    def access(self, key):
        found = [token for other, token in self.moved if other == key]
        if found == [self.now]:
            return
        self.moved = [entry for entry in self.moved if entry[0] != key] + [(key, self.now)]

    def victim(self, candidates):
        return next((key for key, _ in self.moved if key in candidates), None)

    def remove(self, key):
        self.moved = [entry for entry in self.moved if entry[0] != key]


class PlainLayer:
    """The lowest layer, then the earliest insertion."""

    def __init__(self):
        self.inside = []

    def token(self):
        pass

    def access(self, key):
        if key not in self.inside:
            self.inside.append(key)

    def victim(self, candidates):
        allowed = [key for key in self.inside if key in candidates]
        lowest = min((key // EXPERTS for key in allowed), default=None)
        return next((key for key in allowed if key // EXPERTS == lowest), None)

    def remove(self, key):
        self.inside.remove(key)


class PlainInterval:
    """The longest predicted next use, from the whole history of each stay."""

    def __init__(self):
        self.clock, self.history = -1, {}

    def token(self):
        pass

    def access(self, key):
        self.clock += 1
        self.history.setdefault(key, []).append(self.clock)

    def next_use(self, key):
        times = self.history[key]
        average = None
        for before, after in pairwise(times):
            gap = after - before
            average = gap if average is None else 0.75 * average + 0.25 * gap
        return times[-1] + max(average or 0, 1)

    def victim(self, candidates):
        allowed = [key for key in self.history if key in candidates]
        return max(allowed, key=lambda k: (self.next_use(k), self.history[k][-1]), default=None)

    def remove(self, key):
        del self.history[key]


class PlainWindow:
    """DALI's window, counted anew at each access."""

    def __init__(self, window=6, hot=2):
        self.recent, self.hot = deque(maxlen=window), hot
        self.inserted, self.cold_since, self.clock = [], {}, 0

    def token(self):
        pass

    def access(self, key):
        self.clock += 1
        self.recent.append(key)
        if key not in self.inserted:
            self.inserted.append(key)
        self.cold_since[key] = None if self.recent.count(key) >= self.hot else self.clock

    def victim(self, candidates):
        allowed = [key for key in self.inserted if key in candidates]
        cold = [key for key in allowed if self.cold_since[key] is not None]
        return min(cold, key=self.cold_since.get) if cold else next(iter(allowed), None)

    def remove(self, key):
        self.inserted.remove(key)
        del self.cold_since[key]


def restated(rule, steps, slots, by_layer, hits_first):
    """Return the evictions (step, victim, new key) of a rule, and the hits, step by step."""
    layers = 1 + max(layer for layer, _ in steps)
    state = {layer: rule() for layer in range(layers)} if by_layer else None
    shared, inside, evicted, hits = rule(), set(), [], 0
    before = -1
    for now, (layer, experts) in enumerate(steps):
        if layer == 0 and (before != 0 or layers == 1):
            for one in state.values() if by_layer else [shared]:
                one.token()
        before = layer
        of = state[layer] if by_layer else shared
        keys = [layer * EXPERTS + expert for expert in sorted(experts)]
        if hits_first:
            keys = [k for k in keys if k in inside] + [k for k in keys if k not in inside]
        there = {k for k in inside if k // EXPERTS == layer} if by_layer else inside
        hits += len(there.intersection(keys))
        for key in keys:
            if key not in inside:
                held = {k for k in inside if not by_layer or k // EXPERTS == layer}
                if len(held) == slots:
                    gone = of.victim(held - {*keys})
                    of.remove(gone)
                    inside.remove(gone)
                    evicted.append((now, gone, key))
                inside.add(key)
            of.access(key)
    return evicted, hits


RULES = {
    "lfru-vllm": (LFRU, {}, PlainLFRU, False),
    "lfru-tinyserve": (LFRU, {"reading": "tinyserve"}, PlainLFRU, True),
    "stale-tinyserve": (LeastStale, {}, PlainStale, True),
    "stale-layer": (LeastStale, {"reading": "layer"}, PlainLayer, True),
    "stale-interval": (LeastStale, {"reading": "interval"}, PlainInterval, True),
    "dali": (WorkloadAware, {"window": 6, "share": 0.4}, PlainWindow, True),
}

TOKENS = st.lists(
    st.lists(
        st.lists(st.integers(0, EXPERTS - 1), min_size=2, max_size=2, unique=True),
        min_size=3,
        max_size=3,
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("name", RULES)
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, slots=st.integers(2, 6))
def test_random_streams_evict_as_the_restated_rule(name, by_layer, tokens, slots):
    policy, options, plain, hits_first = RULES[name]
    steps = [(layer, sorted(used)) for token in tokens for layer, used in enumerate(token)]
    total = slots * 3 if by_layer else slots
    scope = "layer" if by_layer else "global"
    done = replay(policy(**options), [steps], topology(3, EXPERTS, 2), total, scope)
    evicted, hits = restated(plain, steps, slots, by_layer, hits_first)
    assert done.evicted == evicted
    assert sum(done.hits) == hits


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40, deadline=None)
@given(tokens=TOKENS, slots=st.integers(1, 6))
def test_random_requests_evict_as_the_restated_rule(name, tokens, slots):
    policy, options, plain, _ = RULES[name]
    steps = requests((layer, used) for token in tokens for layer, used in enumerate(token))
    done = replay(policy(**options), [steps], topology(3, EXPERTS, 2), slots, "global")
    assert done.evicted == restated(plain, steps, slots, False, False)[0]


def drawn_steps(tokens=60):
    random = np.random.default_rng(0)
    return [
        (layer, sorted(random.choice(EXPERTS, 2, replace=False).tolist()))
        for _ in range(tokens)
        for layer in range(3)
    ]


def test_without_prefetching_tinyserves_least_stale_evicts_as_lru():
    # A token uses an expert at most once, so that each hit is on a stale entry and moves it to the
    # end; the two queues together are LRU's order.
    for slots in (2, 5, 9):
        done = [
            replay(make("evict", name), [drawn_steps()], topology(3, EXPERTS, 2), slots, "global")
            for name in ("lru", "least-stale")
        ]
        assert done[0].evicted == done[1].evicted != []


def test_the_restatements_differ_from_each_other():
    steps = drawn_steps()
    found = [
        restated(plain, steps, 5, False, hits_first)[0]
        for _, _, plain, hits_first in RULES.values()
    ]
    assert all(found[i] != found[j] for i in range(6) for j in range(i))


def test_no_victim_where_none_is_allowed():
    for policy, options, _, _ in RULES.values():
        made = started(policy(**options))
        for key in (0, 1, 2):
            made.arrived(key)
        assert victim_of(made) is None


def test_a_layers_rule_knows_its_own_slots_alone():
    # scope=layer: each layer has a clock of its own.  Many uses of layer 1 do not age layer 0.
    model = shape(EXPERTS, 1, 2)
    for scope, gone in (("layer", 0), ("global", 0)):
        policy = LFRU()
        policy.start(model, cache(model, 4, scope))
        policy.used(0, [0])
        policy.arrived(0)  # t1
        policy.used(0, [1])
        policy.arrived(1)  # t2
        policy.used(1, [0])
        policy.arrived(8)
        for _ in range(4):
            policy.used(1, [0])
        policy.used(0, [2])
        # Layer 0 alone: 0 has 1 / 2, 1 has 1 / 1.  In one pool: 1 / 7 and 1 / 6.
        assert policy.victim(flags({0, 1}, 16), 2) == gone

"""Tiers and slots: budgets, and a cache driven at random against a model of its own."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moebench.substrate.errors import BudgetError, IntegrityError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.memory.cache import NEVER, ExpertCache
from moebench.substrate.memory.tier import Tier
from tests.substrate.engine.fakes import small_shape

RECORD = 7


def cache_of(slots: int, scope="global", budget: int | None = None, **dims) -> ExpertCache:
    tier = Tier("device", slots * RECORD if budget is None else budget)
    return ExpertCache(small_shape(**dims), slots, scope, tier, RECORD)


def computation(cache: ExpertCache, key: int, end_ns: int) -> Span:
    layer, expert = divmod(key, cache.shape.num_experts)
    return Span(Op(OpKind.EXPERT, layer, (1,), (expert,)), Lane.DEVICE, 0, end_ns)


# ----------------------------------------------------------------------------- tiers


def test_a_tier_adds_up_and_remembers_its_peak():
    tier = Tier("host", 100)
    tier.reserve("experts", 60)
    tier.reserve("experts", 10)
    tier.reserve("cache", 30)
    assert (tier.used_bytes, tier.free_bytes, tier.peak_bytes) == (100, 0, 100)
    tier.reserve("nothing", 0)


def test_a_full_tier_says_what_it_was_spent_on_in_one_line():
    tier = Tier("device", 3_000_000_000)
    tier.reserve("common weights", 2_000_000_000)
    with pytest.raises(BudgetError) as error:
        tier.reserve("KV cache", 1_500_000_000)
    assert str(error.value) == (
        "device memory: KV cache needs 1.5 GB, 1 of 3 GB is free (spent: common weights 2 GB)"
    )
    assert tier.used_bytes == 2_000_000_000, "a refused reservation spends nothing"


@pytest.mark.parametrize(
    ("slots", "scope", "top_k"), [(1, "global", 2), (0, "global", 1), (2, "layer", 1)]
)
def test_too_few_slots_are_refused_in_one_line(slots, scope, top_k):
    with pytest.raises(BudgetError, match="--cache-ratio") as error:
        cache_of(slots, scope, layers=3, top_k=top_k)
    assert f"room for {slots} experts" in str(error.value)
    assert "\n" not in str(error.value)


def test_slots_are_charged_when_they_are_first_used_and_never_again():
    cache = cache_of(2, layers=1)
    tier = cache._tier
    cache.claim(0, None)
    assert tier.used_bytes == RECORD
    cache.arrive(0, 5)
    cache.claim(1, None)
    cache.claim(2, 0)
    assert tier.used_bytes == tier.peak_bytes == 2 * RECORD


def test_a_budget_smaller_than_its_slots_is_found_when_it_is_exceeded():
    cache = cache_of(2, budget=RECORD, layers=1)
    cache.claim(0, None)
    with pytest.raises(BudgetError, match="experts needs"):
        cache.claim(1, None)


def test_more_slots_than_experts_are_not_kept():
    assert cache_of(99, layers=2).slots == 8
    assert cache_of(7, "layer", layers=2).slots == 6, "the same number for each layer"


# ----------------------------------------------------------------------------- one expert's way


def test_from_arriving_to_evictable():
    cache = cache_of(1, layers=1, top_k=1)
    cache.claim(2, None)
    assert not cache.resident(0, NEVER - 1).any()
    cache.arrive(2, 50)
    assert cache.whereabouts(0, 49)[1].tolist() == [False, False, True, False]
    assert cache.resident(0, 50).tolist() == [False, False, True, False]
    assert not cache.whereabouts(0, 50)[1].any()
    assert not cache.evictable(0, 49).any()
    assert np.flatnonzero(cache.evictable(0, 50)).tolist() == [2]
    assert cache.arriving(0, 49) == [2]
    assert cache.arriving(0, 50) == []

    cache.pin([2])
    assert not cache.evictable(0, 50).any()
    assert not cache.evictable_soon(0, 50).any()
    cache.read_by([computation(cache, 2, 80)])
    assert not cache.evictable(0, 99).any(), "pinned until its layer is done"
    assert np.flatnonzero(cache.evictable_soon(0, 60)).tolist() == [2]
    cache.unpin([2])
    assert not cache.evictable(0, 79).any(), "a computation still reads it"
    assert np.flatnonzero(cache.evictable(0, 80)).tolist() == [2]

    assert cache.claim(0, 2) == 0
    assert not cache.holds(2)
    assert not cache.resident(0, 99).any()
    cache.check_integrity()


def test_impossible_claims_are_bugs():
    cache = cache_of(2, layers=1)
    cache.claim(0, None)
    cache.arrive(0, 0)
    with pytest.raises(IntegrityError, match="already has a slot"):
        cache.claim(0, None)
    with pytest.raises(IntegrityError, match="cannot be evicted"):
        cache.claim(1, 3)
    cache.pin([0])
    with pytest.raises(IntegrityError, match="cannot be evicted"):
        cache.claim(1, 0)
    cache.read_by([computation(cache, 0, 10)])
    cache.claim(1, 0)


def test_layers_do_not_take_each_others_slots():
    cache = cache_of(4, "layer", layers=3, dense_layers=(1,))
    assert cache.claim(cache.key(0, 0), None) in (0, 1)
    assert cache.claim(cache.key(0, 1), None) in (0, 1)
    assert not cache.has_free_slot(cache.key(0, 2), 0)
    assert cache.has_free_slot(cache.key(2, 2), 0)
    cache.arrive(0, 0)
    assert not cache.evictable(cache.key(2, 0), 9).any()
    assert cache.evictable(cache.key(0, 3), 9).any()


# ----------------------------------------------------------------------------- at random


class CacheMachine(RuleBasedStateMachine):
    """Random legal steps, beside a plain dictionary of who holds a slot since when until when."""

    @initialize(data=st.data())
    def build(self, data):
        self.layers = data.draw(st.integers(1, 3))
        self.experts = data.draw(st.integers(2, 5))
        self.scope = data.draw(st.sampled_from(["global", "layer"]))
        total = self.layers * self.experts
        slots = data.draw(st.integers(self.layers if self.scope == "layer" else 1, total))
        self.cache = cache_of(slots, self.scope, layers=self.layers, experts=self.experts, top_k=1)
        self.now = 0
        #: key → [ready, read until]; pinned keys; those whose computation was submitted.
        self.held: dict[int, list[int]] = {}
        self.pinned: set[int] = set()
        self.computed: set[int] = set()

    def key(self, data) -> int:
        return data.draw(st.integers(0, self.layers * self.experts - 1))

    def pool(self, key: int) -> list[int]:
        """Keys that compete with this one."""
        if self.scope == "global":
            return list(self.held)
        return [k for k in self.held if k // self.experts == key // self.experts]

    def pool_slots(self) -> int:
        return self.cache.slots // (self.layers if self.scope == "layer" else 1)

    @rule(by=st.integers(0, 20))
    def time_passes(self, by):
        self.now += by

    @rule(data=st.data())
    def bring(self, data):
        key = self.key(data)
        if key in self.held:
            return
        victim = None
        if not self.cache.has_free_slot(key, self.now):
            allowed = np.flatnonzero(self.cache.evictable(key, self.now)).tolist()
            soon = np.flatnonzero(self.cache.evictable_soon(key, self.now)).tolist()
            if data.draw(st.booleans()) and soon:
                victim = data.draw(st.sampled_from(soon))
            elif allowed:
                victim = data.draw(st.sampled_from(allowed))
            else:
                return
            assert victim in self.pool(key)
            del self.held[victim]
            self.computed.discard(victim)
        assert len(self.pool(key)) < self.pool_slots()
        self.cache.claim(key, victim)
        self.held[key] = [NEVER, 0]

    @rule(data=st.data(), later=st.integers(0, 30))
    def transfer_known(self, data, later):
        coming = [k for k, (ready, _) in self.held.items() if ready == NEVER]
        if coming:
            key = data.draw(st.sampled_from(coming))
            self.cache.arrive(key, self.now + later)
            self.held[key][0] = self.now + later

    @rule(data=st.data())
    def choose(self, data):
        keys = data.draw(st.sets(st.integers(0, self.layers * self.experts - 1), max_size=4))
        keys -= self.pinned
        self.cache.pin(sorted(keys))
        self.pinned |= keys

    @precondition(lambda self: self.pinned)
    @rule(data=st.data(), later=st.integers(0, 30))
    def compute(self, data, later):
        known = [k for k in self.pinned & set(self.held) if self.held[k][0] != NEVER]
        if known:
            key = data.draw(st.sampled_from(sorted(known)))
            end = max(self.now, self.held[key][0]) + later
            self.cache.read_by([computation(self.cache, key, end)])
            self.held[key][1] = end
            self.computed.add(key)

    @precondition(lambda self: self.pinned)
    @rule()
    def layer_done(self):
        self.cache.unpin(sorted(self.pinned))
        self.pinned.clear()
        self.computed.clear()

    @invariant()
    def sound(self):
        if not hasattr(self, "cache"):
            return
        cache = self.cache
        cache.check_integrity()
        assert len({cache.slot_of(k) for k in self.held}) == len(self.held) <= cache.slots
        for layer in range(self.layers):
            keys = range(layer * self.experts, (layer + 1) * self.experts)
            resident = [self.held.get(k, [NEVER])[0] <= self.now for k in keys]
            assert cache.resident(layer, self.now).tolist() == resident
            flying = [k in self.held and self.held[k][0] > self.now for k in keys]
            assert cache.whereabouts(layer, self.now)[1].tolist() == flying
            if self.scope == "layer":
                assert sum(k in self.held for k in keys) <= self.pool_slots()
        allowed = {k for k, times in self.held.items() if max(times) <= self.now} - self.pinned
        for incoming in range(self.layers * self.experts):
            mine = allowed & set(self.pool(incoming))
            assert set(np.flatnonzero(cache.evictable(incoming, self.now)).tolist()) == mine
            soon = {k for k in self.held if k not in self.pinned and self.held[k][0] <= self.now}
            soon = (soon | self.computed) & set(self.pool(incoming))
            assert set(np.flatnonzero(cache.evictable_soon(incoming, self.now)).tolist()) == soon


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

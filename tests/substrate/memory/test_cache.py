"""Tiers and slots: budgets, and a cache driven at random against a model of its own."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moebench.substrate.errors import BudgetError, IntegrityError, UsageError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.memory.cache import NEVER, ExpertCache
from moebench.substrate.memory.tier import Tier
from tests.substrate.engine.fakes import small_shape

#: Bytes of a record in form 0, and in form 1 where there is one.
RECORD, SMALL = 7, 2


def cache_of(
    slots: int | list[int], scope="global", budget: int | None = None, more=(), **dims
) -> ExpertCache:
    size = int(np.sum(slots)) * RECORD + sum(count * record for count, record in more)
    tier = Tier("device", size if budget is None else budget)
    return ExpertCache(small_shape(**dims), slots, scope, tier, RECORD, more)


def computation(cache: ExpertCache, key: int, end_ns: int | None) -> Span:
    row, expert = divmod(key, cache.shape.num_experts)
    form, layer = divmod(row, cache.shape.num_layers)
    return Span(Op(OpKind.EXPERT, layer, (1,), (expert,), form=form), Lane.DEVICE, 0, end_ns)


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
    with pytest.raises(BudgetError, match="--capacity") as error:
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
    assert not cache.residency(0, NEVER - 1).resident_E.any()
    cache.arrive(2, 50)
    assert cache.residency(0, 49).in_flight_E.tolist() == [False, False, True, False]
    assert cache.residency(0, 50).resident_E.tolist() == [False, False, True, False]
    assert not cache.residency(0, 50).in_flight_E.any()
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
    assert not cache.residency(0, 99).resident_E.any()
    cache.check_integrity()


def test_a_slot_is_idle_once_its_last_computation_has_ended():
    cache = cache_of(3, layers=1)
    for key in range(3):
        cache.claim(key, None)
        cache.arrive(key, 0)
    cache.pin([0, 1])
    cache.read_by([computation(cache, 0, 80), computation(cache, 1, 90)])
    soon = cache.evictable_soon(3, 10)
    assert np.flatnonzero(soon).tolist() == [0, 1, 2]
    for at, idle in ((79, [2]), (80, [0, 2]), (90, [0, 1, 2])):
        assert np.flatnonzero(cache.idle_by(soon, at)).tolist() == idle
    cache.unpin([0, 1])  # their computations go on
    assert np.flatnonzero(cache.idle_by(cache.evictable_soon(3, 10), 85)).tolist() == [0, 2]


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


def test_experts_of_several_layers_are_protected_each_where_it_may_be_evicted():
    cache = cache_of(4, "layer", layers=2)
    keys = [cache.key(0, 0), cache.key(1, 2)]
    for key in keys:
        cache.claim(key, None)
        cache.arrive(key, 0)
    assert [np.flatnonzero(cache.evictable(key, 9)).tolist() for key in keys] == [[0], [6]]
    cache.pin(keys)
    assert not any(cache.evictable(key, 9).any() for key in keys)
    cache.check_integrity()


def test_a_claim_without_a_free_slot_is_a_bug():
    cache = cache_of([1, 2], layers=2)
    cache.claim(cache.key(0, 0), None)
    with pytest.raises(IntegrityError, match="its pool has none"):
        cache.claim(cache.key(0, 1), None)
    cache.claim(cache.key(1, 1), None)


# ----------------------------------------------------------------------------- unequal pools


def test_layers_may_have_unequal_slots_or_none():
    cache = cache_of([3, 0, 1], layers=4, dense_layers=(1,))
    assert (cache.slots, cache.pools, cache.scope) == (4, (3, 0, 1), "layer")
    slots = {0: [0, 1, 2], 2: [], 3: [3]}
    for layer, own in slots.items():
        for slot in own:
            assert cache.has_free_slot(cache.key(layer, slot % 3), 0)
            assert cache.claim(cache.key(layer, slot % 3), None) in own
        assert not cache.has_free_slot(cache.key(layer, 3), 0)
    cache.check_integrity()
    for key in (cache.key(0, 0), cache.key(3, 0)):
        cache.arrive(key, 0)
    assert not cache.evictable(cache.key(2, 0), 9).any(), "nobody leaves for a layer without slots"
    assert np.flatnonzero(cache.evictable(cache.key(3, 3), 9)).tolist() == [cache.key(3, 0)]


def test_slots_of_each_layer_make_the_layer_the_scope():
    assert cache_of([2, 2], "global", layers=2).scope == "layer"
    assert cache_of([4, 4], "global", layers=2).has_free_slot(7, 0), "all of the layer's pool"


@pytest.mark.parametrize("slots", [[], [4], [1, 2, 3], [5, -1]])
def test_slots_that_are_not_one_number_for_each_layer_are_refused(slots):
    with pytest.raises(UsageError, match="0 or more for each of 2 layers") as error:
        cache_of(slots, budget=99, layers=2)
    assert "\n" not in str(error.value)


# ----------------------------------------------------------------------------- forms


def test_records_of_another_form_have_keys_and_slots_of_their_own():
    cache = cache_of(3, layers=2, more=[(2, SMALL)])
    assert (cache.slots, cache.capacity, cache.slot_bytes) == (3, 5, 3 * RECORD + 2 * SMALL)
    assert [cache.key(1, 2), cache.key(1, 2, form=1)] == [6, 2 * 4 + 6]
    assert cache.expert_of(14) == cache.expert_of(6) == (1, 2)
    assert [cache.form_of(6), cache.form_of(14)] == [0, 1]
    assert cache.keys(1, [0, 3], form=1) == [12, 15]
    cache.claim(14, None)
    assert cache._tier.used_bytes == SMALL
    cache.arrive(14, 5)
    assert cache.residency(1, 5).divide([2]) == ([2], [], [])
    full, small = cache.residency(1, 5).forms
    assert (full.is_held(2), small.is_resident(2)) == (False, True)
    assert not cache.evictable(6, 9).any(), "no record leaves for one of another form"
    assert np.flatnonzero(cache.evictable(8, 9)).tolist() == [14]


# ----------------------------------------------------------------------------- letting go


def test_a_slot_that_was_let_go_is_free_when_its_last_use_has_ended():
    cache = cache_of(1, layers=1, top_k=1)
    cache.claim(2, None)
    cache.arrive(2, 5)
    last_use = computation(cache, 2, 30)
    cache.let_go(2, last_use)
    assert not cache.holds(2)
    assert not cache.residency(0, 10).resident_E.any()
    assert not cache.evictable(0, 99).any(), "nobody is there to be evicted"
    assert not cache.has_free_slot(0, 29)
    assert cache.has_free_slot(0, 30)
    assert cache.claim(0, None) == 0
    cache.check_integrity()


def test_a_claim_frees_no_slot_for_a_prefetch_whose_turn_was_earlier():
    cache = cache_of(2, layers=1, top_k=1)
    for key, end_ns in ((1, 30), (2, 40)):
        cache.claim(key, None)
        cache.arrive(key, 5)
        cache.let_go(key, computation(cache, key, end_ns))
    assert cache.has_free_slot(3, 50)
    assert cache.claim(3, None) == 0
    assert not cache.has_free_slot(0, 35), "the other slot is in use until 40"
    assert cache.has_free_slot(0, 40)
    cache.check_integrity()


def test_whoever_cannot_wait_for_a_free_slot_is_told_what_its_transfer_waits_for():
    cache = cache_of([1, 2], layers=2)
    uses = {}
    for key in (cache.key(1, 0), cache.key(1, 1), cache.key(0, 0)):
        cache.claim(key, None)
        cache.arrive(key, 1)
        uses[key] = Span(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.DEVICE, 2)  # its end is not known
        cache.let_go(key, uses[key])
    for incoming, first in ((1, 0), (4 + 2, 4), (4 + 3, 5)):
        assert not cache.has_free_slot(incoming, 10)
        assert cache.await_slot(incoming) is uses[first], "of its own pool, the first that was left"
        cache.claim(incoming, None)
    assert cache.await_slot(2) is None
    cache.check_integrity()


def test_letting_go_of_nobody_is_a_bug():
    cache = cache_of(2, layers=1)
    with pytest.raises(IntegrityError, match="no slot to let go"):
        cache.let_go(1, computation(cache, 1, 5))


# ----------------------------------------------------------------------------- at random


class CacheMachine(RuleBasedStateMachine):
    """Random legal steps, beside a plain dictionary of who holds a slot since when until when."""

    @initialize(data=st.data())
    def build(self, data):
        self.layers = data.draw(st.integers(1, 3))
        self.experts = data.draw(st.integers(2, 5))
        scope = data.draw(st.sampled_from(["global", "layer", "unequal"]))
        total = self.layers * self.experts
        if scope == "unequal":
            slots = [data.draw(st.integers(0, self.experts)) for _ in range(self.layers)]
            sizes = slots
        else:
            slots = data.draw(st.integers(self.layers if scope == "layer" else 1, total))
            sizes = [slots // self.layers] * self.layers if scope == "layer" else [slots]
        self.sizes, self.scope = sizes, "layer" if scope == "unequal" else scope
        more = []
        if data.draw(st.booleans()):  # records of a second form, in slots of their own
            pools = 1 if self.scope == "global" else self.layers
            each = data.draw(st.integers(1, total // pools))
            more, self.sizes = [(each * pools, SMALL)], [*sizes, *[each] * pools]
        self.records = (1 + len(more)) * total
        dims = {"layers": self.layers, "experts": self.experts, "top_k": 1}
        self.cache = cache_of(slots, self.scope, more=more, **dims)
        self.now = 1
        #: key → [ready, read until]; pinned keys; those whose computation was submitted.
        self.held: dict[int, list[int]] = {}
        self.pinned: set[int] = set()
        self.computed: set[int] = set()
        #: Last uses of slots that were let go, in order, with the pool.
        self.left: list[tuple[int, Span]] = []

    def key(self, data) -> int:
        return data.draw(st.integers(0, self.records - 1))

    def pool_of(self, key: int) -> int:
        row = key // self.experts
        return row // self.layers if self.scope == "global" else row

    def pool(self, key: int) -> list[int]:
        """Keys that compete with this one."""
        return [k for k in self.held if self.pool_of(k) == self.pool_of(key)]

    def free(self, key: int) -> int:
        """Slots that it could be given at this instant."""
        busy = [s for pool, s in self.left if pool == self.pool_of(key) and self.reads(s)]
        return self.sizes[self.pool_of(key)] - len(self.pool(key)) - len(busy)

    def reads(self, span: Span) -> bool:
        return span.end_ns is None or span.end_ns > self.now

    def forget(self, key: int) -> None:
        del self.held[key]
        self.computed.discard(key)

    @rule(by=st.integers(0, 20))
    def time_passes(self, by):
        self.now += by

    @rule(data=st.data())
    def bring(self, data):
        key = self.key(data)
        if key in self.held:
            return
        victim = None
        if self.free(key):
            assert self.cache.has_free_slot(key, self.now)
        else:
            allowed = np.flatnonzero(self.cache.evictable(key, self.now)).tolist()
            soon = np.flatnonzero(self.cache.evictable_soon(key, self.now)).tolist()
            draining = [entry for entry in self.left if entry[0] == self.pool_of(key)]
            way = data.draw(st.sampled_from(["now", "soon", "draining"]))
            if way == "draining":
                last_use = self.cache.await_slot(key)
                assert last_use is (draining[0][1] if draining else None)
                if not draining:
                    return
                self.left.remove(draining[0])
            elif way == "soon" and soon:
                victim = data.draw(st.sampled_from(soon))
            elif allowed:
                victim = data.draw(st.sampled_from(allowed))
            else:
                return
            if victim is not None:
                assert victim in self.pool(key)
                self.forget(victim)
        assert len(self.pool(key)) < self.sizes[self.pool_of(key)]
        self.cache.claim(key, victim)
        self.held[key] = [NEVER, 0]

    @rule(data=st.data(), later=st.integers(0, 30))
    def transfer_known(self, data, later):
        coming = [k for k, (ready, _) in self.held.items() if ready == NEVER]
        if coming:
            key = data.draw(st.sampled_from(coming))
            self.cache.arrive(key, self.now + later)
            self.held[key][0] = self.now + later

    @precondition(lambda self: self.held)
    @rule(data=st.data(), later=st.none() | st.integers(0, 30))
    def let_go(self, data, later):
        key = data.draw(st.sampled_from(sorted(self.held)))
        end = None if later is None else self.now + later
        last_use = computation(self.cache, key, end)
        self.cache.let_go(key, last_use)
        self.forget(key)
        self.left.append((self.pool_of(key), last_use))

    @precondition(lambda self: any(span.end_ns is None for _, span in self.left))
    @rule(later=st.integers(0, 30))
    def last_use_ends(self, later):
        next(span for _, span in self.left if span.end_ns is None).end_ns = self.now + later

    @rule(data=st.data())
    def choose(self, data):
        keys = data.draw(st.sets(st.integers(0, self.records - 1), max_size=4))
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
        cache, now = self.cache, self.now
        cache.check_integrity()
        assert len({cache.slot_of(k) for k in self.held}) == len(self.held) <= cache.capacity
        everyone, total = range(self.records), self.layers * self.experts
        charged = RECORD * sum(key < total for key in self.held)
        charged += SMALL * sum(key >= total for key in self.held)
        tier = cache._tier
        assert charged <= tier.used_bytes <= cache.slot_bytes <= tier.budget_bytes
        assert [cache.holds(k) for k in everyone] == [k in self.held for k in everyone]
        for layer in range(self.layers):
            there, each = cache.residency(layer, now), []
            for form, where in enumerate(there.forms):
                keys = [cache.key(layer, expert, form) for expert in range(self.experts)]
                assert keys[0] == form * total + layer * self.experts
                each.append([
                    "" if k not in self.held else "here" if self.held[k][0] <= now else "coming"
                    for k in keys
                ])  # fmt: skip
                assert where.resident_E.tolist() == [state == "here" for state in each[-1]]
                assert where.in_flight_E.tolist() == [state == "coming" for state in each[-1]]
            resident = ["here" in states for states in zip(*each, strict=True)]
            flying = ["coming" in s and "here" not in s for s in zip(*each, strict=True)]
            assert there.resident_E.tolist() == resident
            assert there.in_flight_E.tolist() == flying
            one_by_one = there.divide(range(self.experts))
            absent = [not (here or coming) for here, coming in zip(resident, flying, strict=True)]
            assert one_by_one == tuple(
                [e for e in range(self.experts) if mask[e]] for mask in (resident, flying, absent)
            )
        # Keys of one pool compete alike: one of each is asked.
        allowed = {k for k, times in self.held.items() if max(times) <= now} - self.pinned
        idle = {k for k in self.held if k not in self.pinned and self.held[k][0] <= now}
        coming = {k for k in self.held if k not in self.pinned and self.held[k][0] > now}
        for incoming in everyone[:: self.experts]:
            mine = set(self.pool(incoming))
            assert cache.has_free_slot(incoming, now) == (self.free(incoming) > 0)
            assert set(np.flatnonzero(cache.evictable(incoming, now)).tolist()) == allowed & mine
            soon = set(np.flatnonzero(cache.evictable_soon(incoming, now)).tolist())
            assert soon == (idle | self.computed) & mine
            assert set(cache.arriving(incoming, now)) == coming & mine
        self.left = [(pool, span) for pool, span in self.left if self.reads(span)]


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=400, stateful_step_count=40, deadline=None)


def test_what_is_wrong_with_slots_is_found():
    def made() -> ExpertCache:
        cache = cache_of(3, layers=1)
        for key in (0, 1):
            cache.claim(key, None)
            cache.arrive(key, 5)
        cache.check_integrity()
        return cache

    cache = made()
    cache._pools[0].free.append(cache.slot_of(0))
    with pytest.raises(IntegrityError, match="slots are lost or owned twice"):
        cache.check_integrity()
    cache = made()
    cache._pools[0].free.clear()
    with pytest.raises(IntegrityError, match="slots are lost or owned twice"):
        cache.check_integrity()
    cache = made()
    cache._owner_of[cache.slot_of(0)] = 1
    with pytest.raises(IntegrityError, match="a slot's owner does not know it"):
        cache.check_integrity()
    cache = made()
    cache._pools[0].flags[2] = True
    with pytest.raises(IntegrityError, match="a pinned or absent expert counts as evictable"):
        cache.check_integrity()
    cache = made()
    cache._ready_ns[2] = 7
    with pytest.raises(IntegrityError, match="an expert without a slot counts as resident"):
        cache.check_integrity()


def test_slots_that_cannot_be_given_are_refused():
    cache = cache_of(2, layers=1)
    cache.claim(0, None)
    with pytest.raises(IntegrityError, match="expert 0 already has a slot"):
        cache.claim(0, None)
    with pytest.raises(IntegrityError, match="expert 2 cannot be evicted: not resident, or in use"):
        cache.claim(1, 2)
    cache.claim(1, None)
    with pytest.raises(IntegrityError, match="expert 2 was to have a free slot, its pool has none"):
        cache.claim(2, None)
    with pytest.raises(IntegrityError, match="expert 2 has no slot to let go"):
        cache.let_go(2, computation(cache, 2, 5))

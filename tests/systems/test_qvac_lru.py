"""qvac-lru by hand: one clock for all layers, protected dispatches, and those that bypass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.options import build
from moebench.systems.qvac_lru import (
    CacheOrBypass,
    DispatchLRU,
    Fill,
    QvacLRU,
    Slots,
    bypasses,
    cached_slots,
    is_active,
)
from tests.substrate.engine.fakes import small_shape
from tests.substrate.engine.own import evicted, model_of, of, run
from tests.systems.views import active, cache, flags, shape, view

# --------------------------------------------------------------------------- the cache

# Three slots.  Layer 0 uses 5 and 2: 2 is filled first (slot 0, tick 1), then 5 (slot 1, tick 2).
# Layer 1 uses 7 (slot 2, tick 3).  Layer 0 uses 5, 2 and 9: hits are 2 (tick 4) and 5 (tick 5); 9
# evicts 7 of layer 1, the only one that is not of the dispatch (slot 2, tick 6).  Layer 0 uses 1:
# the oldest is 2 (tick 4), in slot 0.


def test_12_5_5_hits_then_misses_by_id_each_with_its_own_tick():
    cache_of_3 = Slots(3)
    assert cache_of_3.plan(0, [5, 2, 5]) == [Fill(2, 0, None), Fill(5, 1, None)]
    assert cache_of_3.last_used == [1, 2, 0]
    assert cache_of_3.plan(1, [7]) == [Fill(7, 2, None)]
    assert cache_of_3.plan(0, [9, 5, 2]) == [Fill(9, 2, (1, 7))]
    assert (cache_of_3.last_used, cache_of_3.clock) == ([4, 5, 6], 6)
    assert cache_of_3.plan(0, [1]) == [Fill(1, 0, (0, 2))]


def test_12_5_5_the_dispatchs_experts_are_protected():
    two = Slots(2)
    two.plan(0, [3])
    two.plan(1, [0])
    # 3 of layer 0 is the oldest, but a hit of this dispatch: 0 of layer 1 leaves.
    assert two.plan(0, [3, 8]) == [Fill(8, 1, (1, 0))]


def test_12_5_5_a_dispatch_of_more_experts_than_slots_changes_nothing():
    two = Slots(2)
    two.plan(0, [3, 4])
    before = (list(two.owner), list(two.last_used), two.clock)
    assert two.plan(0, [3, 4, 5]) is None
    assert (two.owner, two.last_used, two.clock) == before
    assert two.plan(0, [3, 4, 4, 3]) == []  # two distinct experts fit


def test_the_gate_and_the_room_of_the_cache():
    assert [bypasses(n, 4) for n in (3, 4, 5)] == [False, False, True]
    # k whole experts are the fork's gate, which are imp's 3·k matrices.
    assert [is_active(slots, top_k=8) for slots in (7, 8)] == [False, True]
    assert [is_active(slots, top_k=8, gate=3) for slots in (23, 24)] == [False, True]
    assert [cached_slots(slots, 4) for slots in (3, 5, 6, 20)] == [0, 0, 1, 15]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sets(st.integers(0, 7), min_size=1, max_size=6)),
        max_size=40,
    )
)
def test_the_policies_decide_as_the_cache_by_itself(dispatches):
    # Ten slots less a guard and three for copies are six, the largest dispatch; seven slots leave
    # three, which many dispatches exceed.
    for slots in (10, 7):
        model = shape(8, 2, 2)
        policy, assign = DispatchLRU(), CacheOrBypass()
        whole, inside = cache(model, slots), set[int]()
        policy.start(model, whole)
        assign.start(model, whole)
        assert policy.reserve == policy.transient == 4
        alone = Slots(slots - 4)
        for layer, experts in dispatches:
            here = [e for e in experts if layer * 8 + e in inside]
            own = [sorted(experts)]
            seen = view([[0.1] * 8], len(experts), here, own=own, layer=layer)
            load = assign.assign(seen, active(seen)).load
            fills = alone.plan(layer, experts)
            policy.used(layer, sorted(experts))
            if fills is None:
                assert all(not fetch.keep for fetch in load)
                everything = flags(inside, 16)
                assert policy.victim(everything, layer * 8) is None
                continue
            assert list(load) == [Fetch(layer, fill.expert) for fill in fills]
            protected = {layer * 8 + e for e in experts}
            for fill in fills:
                key = layer * 8 + fill.expert
                if len(inside) == slots - 4:
                    victim = policy.victim(flags(inside - protected, 16), key)
                    assert fill.victim is not None
                    assert victim == fill.victim[0] * 8 + fill.victim[1]
                    inside.remove(victim)
                    policy.left(victim)
                else:
                    assert fill.victim is None
                inside.add(key)
                policy.arrived(key)


# --------------------------------------------------------------------------- the policies


def plan(policy: CacheOrBypass, experts: list[int], slots: int, resident=()):
    model = shape(8, 2, 2)
    policy.start(model, cache(model, slots))
    seen = view([[0.1] * 8], len(experts), resident, own=[experts])
    return policy.assign(seen, active(seen))


def test_every_miss_is_fetched_and_nothing_is_computed_on_the_host():
    found = plan(CacheOrBypass(), [6, 1, 4], slots=7, resident=[4])
    assert list(found.load) == [Fetch(0, 1), Fetch(0, 6)]
    assert (list(found.device), list(found.host)) == ([4, 1, 6], [])
    assert not CacheOrBypass().uses_host


def test_a_bypassing_layer_keeps_nothing():
    found = plan(CacheOrBypass(), [6, 1, 4, 0], slots=7, resident=[4])
    assert list(found.load) == [Fetch(0, e, keep=False) for e in (0, 1, 6)]
    assert list(found.device) == [4, 0, 1, 6]


def test_a_cache_below_its_gate_is_not_used():
    # Nine slots are five in the cache; a token uses two: five are less than three times two.
    assert list(plan(CacheOrBypass(gate=3), [6, 1], slots=9).load) == [
        Fetch(0, 1, keep=False), Fetch(0, 6, keep=False),
    ]  # fmt: skip
    assert list(plan(CacheOrBypass(gate=3), [6, 1], slots=10).load) == [Fetch(0, 1), Fetch(0, 6)]
    with pytest.raises(UsageError, match=r"assign\.gate is 0; allowed: 1 or more"):
        CacheOrBypass(gate=0)


def test_layers_share_the_cache():
    model = shape(8, 2, 2)
    with pytest.raises(UsageError, match=r"evict=dispatch-lru .* allowed: --set scope=global"):
        DispatchLRU().start(model, cache(model, 10, "layer"))


def test_a_note_says_that_the_cache_is_not_used():
    model = shape(8, 2, 2)
    assert len(QvacLRU().remarks(model, 10)) == 1
    gated = build("qvac-lru", {"assign.gate": "3"})
    assert len(gated.remarks(model, 10)) == 1
    assert gated.remarks(model, 9)[1].startswith("the cache has 5 slots, 6 are its least")


def test_a_model_that_llamacpp_does_not_know_is_refused():
    assert QvacLRU().why_not(small_shape(), 1) is None  # of the family mixtral
    assert "no GGUF file: by-hand" in QvacLRU().why_not(shape(8, 2, 2), 1)


# --------------------------------------------------------------------------- a run

# Two layers of three experts, top-2, five slots: one is the guard, one is for copies, three are the
# cache.  Nothing overlaps.  Attention 30, a gate 3, an expert 10, the sum 2, the head 6, a load 40.
#
# The prompt uses 0, 1 in layer 0, then 0, 2 in layer 1.
#
#   L0   gate 33; 0 is loaded 33..73, 1 ..113; 0 is computed 113..123, 1 ..133; sum 133..135
#   L1   gate 168; 0 is loaded 168..208, into the last slot; 2 ..248, in place of the oldest: 0 of
#        layer 0, of tick 1; both are computed ..268; sum 268..270


def test_the_cache_is_shared_and_the_oldest_leaves():
    model = small_shape(layers=2, experts=3)
    found = run(build("qvac-lru"), model_of(model, [[[(0, 1)], [(0, 2)]]]), slots=5)
    assert of(found, OpKind.LOAD) == [
        (0, (0,), 33, 73), (0, (1,), 73, 113), (1, (0,), 168, 208), (1, (2,), 208, 248),
    ]  # fmt: skip
    assert [row[2:] for row in of(found, OpKind.COMBINE)] == [(133, 135), (268, 270)]
    assert evicted(found) == [(0, None), (1, None), (3, None), (5, 0)]
    assert of(found, OpKind.EXPERT, Lane.HOST) == []


# Four slots: two are the cache.  A prompt of two rows uses all three experts of layer 0, which
# bypasses the cache; layer 1 uses 0 and 1.  The first token finds none of layer 0.


def test_a_prompt_that_does_not_fit_bypasses_the_cache():
    model = small_shape(layers=2, experts=3)
    uses = [[[(0, 1), (1, 2)], [(0, 1), (0, 1)]], [[(0, 1), (0, 1)], [(0, 1), (0, 1)]]]
    found = run(build("qvac-lru"), model_of(model, uses), slots=4, rows=2, passes=2)
    assert [row[:2] for row in of(found, OpKind.LOAD)][:5] == [
        (0, (0,)), (0, (1,)), (0, (2,)), (1, (0,)), (1, (1,)),
    ]  # fmt: skip
    # Of layer 0 nothing stayed: its experts come again, and evict those of layer 1.
    assert [claim for claim in evicted(found) if claim[1] is not None][:2] == [(0, 3), (1, 4)]

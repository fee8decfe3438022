"""LRU with each layer's share and common buffers: by hand, and compared with plain LRU."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.errors import UsageError
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.policies.evict_staged import StagedLRU
from moebench.systems.policies.place import PlaceLastIds, PlaceNothing
from tests.substrate.engine.fakes import random_trace, rig, small_shape
from tests.systems.views import cache, flags, shape

#: Keys of layer 1 begin here: four experts a layer.
NEXT = 4


def begun(*placed: int, staging: int = 2, slots: int = 6) -> StagedLRU:
    """Return a policy for two layers of four experts, with these keys placed."""
    policy = StagedLRU(staging=staging)
    model = shape(4, 2)
    policy.start(model, cache(model, slots))
    for key in placed:
        policy.placed(key)
    return policy


def victim(policy: StagedLRU, incoming: int, *allowed: int) -> int | None:
    return policy.victim(flags(allowed or range(8), 8), incoming)


def test_a_load_that_is_needed_replaces_the_layers_own_oldest():
    policy = begun(0, 1, 4, 5)
    policy.used(0, [0, 2])
    # Both buffers are full of something else: 1 was used longest ago, 0 is in use.
    assert victim(policy, 2, 1, 4, 5) == 1
    policy.left(1)
    policy.arrived(2)
    policy.used(0, [0, 2])
    policy.used(0, [0])
    assert victim(policy, 3) != 2  # not needed: no load of the current layer
    policy.used(0, [0, 3])
    assert victim(policy, 3, 0, 2) == 2


def test_what_a_layer_has_beyond_its_share_leaves_first():
    policy = begun(0, 1, 4, 5)
    policy.used(0, [2])
    policy.arrived(2)  # into a free buffer: layer 0 has three of two
    policy.used(1, [2])
    assert victim(policy, NEXT + 2) == 0
    policy.left(0)
    policy.arrived(NEXT + 2)
    # Now layer 1 has three.
    assert victim(policy, NEXT + 3) == NEXT
    # If layer 0's are in use, none of the layer's own leaves for one that is fetched ahead.
    assert victim(policy, 3, 1, 2) is None


def test_what_is_fetched_ahead_stays_in_its_buffer_until_it_is_used():
    policy = begun(0, 1, 4, 5)
    policy.used(0, [0, 1])
    policy.arrived(NEXT + 2)
    policy.arrived(NEXT + 3)
    # Nothing else is in a buffer; the oldest of them would go.
    assert victim(policy, 2) == NEXT + 2
    policy.used(1, [0, 3])
    # 3 is layer 1's own now, and 1 its oldest: a buffer.  2 was fetched in vain and leaves first.
    assert victim(policy, 2) == NEXT + 2
    policy.left(NEXT + 2)
    assert victim(policy, 2) == NEXT + 1
    assert victim(policy, 2, 0, 1, 4, 7) == NEXT  # unless it is in use
    policy.left(NEXT + 1)
    assert victim(policy, 2) is None


def test_what_came_in_vain_can_still_be_found():
    policy = begun(0, 1, 4, 5)
    policy.used(0, [0])
    policy.arrived(NEXT + 2)
    policy.used(1, [0, 1])
    policy.used(1, [2])
    assert victim(policy, 2) == NEXT  # 2 is the most recent of three


def test_what_stays_in_a_buffer_that_was_not_reused_is_counted():
    policy = begun(0, 1, 4, 5)
    assert policy.lingering([0, 1, 4, 5]) == 0
    policy.used(0, [0, 2])
    policy.arrived(2)  # layer 0 has three of two: 1 was used longest ago
    assert [policy.lingering([key]) for key in (0, 1, 2)] == [0, 1, 0]
    policy.arrived(NEXT + 2)
    assert policy.lingering([NEXT + 2]) == 0  # its layer is still to come
    policy.used(1, [0])
    assert policy.lingering([NEXT, NEXT + 2]) == 1
    policy.left(NEXT + 2)
    assert policy.lingering([NEXT, NEXT + 2]) == 0


def test_a_share_is_what_placement_gave():
    policy = begun(0, 1, 2, 4)
    for layer, needed, oldest in ((0, 3, 0), (1, 1, NEXT)):
        policy.used(layer, [needed])
        assert victim(policy, layer * 4 + needed) == oldest


def test_without_a_share_every_slot_is_a_buffer():
    policy = begun(staging=9)
    assert policy.reserve == 6
    for layer, expert in ((0, 0), (1, 3), (0, 1)):
        policy.used(layer, [expert])
        policy.arrived(layer * 4 + expert)
    # The layer that was used longest ago gives up an expert first.
    policy.used(1, [2])
    assert victim(policy, NEXT + 2) == 0


def test_buffers_are_left_empty_in_every_pool():
    policy, model = StagedLRU(), shape(8, 2)
    policy.start(model, cache(model, 9))
    assert policy.reserve == 4
    policy.start(model, cache(model, 12, "layer"))
    assert policy.reserve == 8
    policy.start(model, cache(model, 6, "layer"))
    assert policy.reserve == 6
    assert not policy.writes_back
    assert StagedLRU(write_back=True).writes_back
    with pytest.raises(UsageError, match=r"evict\.staging is 0; allowed: 1 or more"):
        StagedLRU(staging=0)


# --------------------------------------------------------------------------- in the engine


def run(seed: int, slots: int, staging: int, place: object, rows: int = 1, passes: int = 8):
    """Run on-demand loading of random routing, and return every layer's steps and the rig."""
    model = small_shape(layers=3, experts=6)
    trace = random_trace(seed, model, [[1] * rows], passes)
    system = MoEOnDemand(place=place, evict=StagedLRU(staging=staging))
    made = rig(system, TracedModel(trace), slots=slots)
    made.engine.generate([[1]] * rows, passes)
    check_timeline(made.spans, made.events, num_experts=6, capacity=slots)
    made.cache.check_integrity()
    (batch,) = trace.batches
    return model, [step.gates for step in batch], made


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(2, 4), st.integers(1, 4))
def test_each_layer_holds_at_least_what_lru_of_its_share_would(seed, share, staging):
    """Whichever expert of a token came last: what a buffer still holds is used before loads."""
    model, steps, made = run(seed, 3 * share + staging, staging, PlaceLastIds())
    for layer in model.moe_layers:
        last_use = {e: e - 6 for e in range(6 - share, 6)}  # placed in this order
        for step, gates in enumerate(steps):
            last_use |= dict.fromkeys(gates[layer].ids_TK.ravel().tolist(), step)
        times = last_use.values()
        lru = {e for e, time in last_use.items() if sum(t >= time for t in times) <= share}
        held = np.flatnonzero(made.cache.residency(layer, 10**9).resident_E).tolist()
        assert lru.issubset(held)
        assert len(held) <= share + staging


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(2, 12), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_any_number_of_slots_will_do(seed, slots, staging, rows, empty):
    run(seed, slots, staging, PlaceNothing() if empty else PlaceLastIds(), rows, passes=4)

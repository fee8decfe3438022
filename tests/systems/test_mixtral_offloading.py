"""Mixtral-Offloading by hand: speculation into a buffer, and the shipped code's two-way swap."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.mixtral_offloading import MixtralOffloading
from moebench.systems.mixtral_offloading_shipped import ShippedMixtralOffloading
from moebench.systems.options import build
from moebench.systems.policies.place import PlaceLastIds
from moebench.systems.registry import system_class
from tests.substrate.engine.fakes import (
    FixedModel,
    FlatCosts,
    Rig,
    prices,
    random_trace,
    rig,
    small_shape,
)
from tests.systems.views import shape

NO_CONTROL = FlatCosts(prices())


def one(expert: int) -> list[list[float]]:
    """Return a gate of four experts that chooses one; the others rank by id."""
    scores = [0.1, 0.09, 0.08, 0.07]
    scores[expert] = 0.9
    return [scores]


def spans(made: Rig) -> list[tuple[str, int, tuple[int, ...], str, int, int]]:
    return [(s.op.kind, s.op.layer, s.op.experts, s.lane, s.start_ns, s.end_ns) for s in made.spans]


def moves(made: Rig) -> list[tuple[tuple[int, int], tuple[int, int] | None]]:
    """Return each loaded (layer, expert) with the expert that it replaced."""
    return [
        (divmod(claim.key, 4), None if claim.victim is None else divmod(claim.victim, 4))
        for claim in made.claims
        if not claim.placed
    ]


# --------------------------------------------------------------------------- speculation

# Two layers of four experts, top-1, three slots: expert 3 of each layer and one buffer.  Layer 0
# always uses its 3.  The prefill uses 3 in layer 1, too.
#
# First token: layer 1 is predicted to use 1, then 0, and uses 1.
#   device  attend 0..30  gate 30..33  expert 3 33..43  predict 43..48  combine 48..50
#   h2d     1 into the buffer, once it is predicted: 48..88; 0 finds no buffer
#   device  attend 50..80  gate 80..83  expert 1 88..98  combine 98..100  head 100..106
# Layer 1 keeps 1, so its 3 is a buffer.
#
# Second token: 2 is predicted, then 0, and 1 is used.
#   h2d     2 takes the buffer of 3.  1 is there: nothing is loaded, and 2 came in vain
#
# Third token: 1 is predicted, which is there, then 0; 0 takes the buffer of 2.  0 is used, so 1 is
# a buffer.

GATES = {
    (0, 0): one(3), (0, 1): one(3),
    (1, 0): one(3), (1, 1): one(1),
    (2, 0): one(3), (2, 1): one(1),
    (3, 0): one(3), (3, 1): one(0),
}  # fmt: skip
PREDICTED = {(1, 0): one(1), (2, 0): one(2), (3, 0): one(1)}


@pytest.fixture(scope="module")
def speculated() -> Rig:
    model = FixedModel(small_shape(layers=2, top_k=1), GATES, PREDICTED)
    system = build("mixtral-offloading", {"evict.staging": "1"})
    made = rig(system, model, slots=3, costs=NO_CONTROL)
    made.engine.generate([[1]], 4)
    check_timeline(made.spans, made.events, num_experts=4, capacity=3)
    return made


def test_the_prefill_speculates_nothing(speculated):
    # Both layers in 30 + 3 + 10 + 2, the head 6; the first token's prediction is the first of all.
    predicted = [s for s in speculated.spans if s.op.kind is OpKind.PREDICT]
    assert predicted[0].start_ns == 2 * 45 + 6 + 43
    assert len(predicted) == 3


def test_a_speculated_expert_comes_while_the_next_layer_attends(speculated):
    start = 2 * 45 + 6
    assert ("load", 1, (1,), "h2d", start + 48, start + 88) in spans(speculated)
    assert ("gate", 1, (), "device", start + 80, start + 83) in spans(speculated)
    assert ("expert", 1, (1,), "device", start + 88, start + 98) in spans(speculated)


def test_it_replaces_the_layers_oldest_only_if_it_is_used(speculated):
    assert moves(speculated) == [((1, 1), None), ((1, 2), (1, 3)), ((1, 0), (1, 2))]
    held = speculated.cache.residency(1, 10**9).resident_E
    assert np.flatnonzero(held).tolist() == [0, 1]


def test_speculated_experts_are_counted_apart(speculated):
    decode = speculated.counts["decode"]
    assert (decode.active, decode.loads) == (6, 0)
    assert (decode.prefetched, decode.prefetched_used) == (3, 2)
    # Three of layer 0 and the second token's are hits; the speculated two are under way.
    assert (decode.hits, decode.in_flight) == (4, 2)


def test_one_or_two_are_speculated():
    for count, came in ((1, [(1, 1)]), (2, [(1, 1), (1, 0)])):
        gates = {(step, layer): one(3) for step in range(2) for layer in range(2)}
        model = FixedModel(small_shape(layers=2, top_k=1), gates, {(1, 0): one(1)})
        system = build("mixtral-offloading", {"prefetch.experts": str(count)})
        made = rig(system, model, slots=6, costs=FlatCosts(prices(load=10)))
        made.engine.generate([[1]], 2)
        assert moves(made) == [(key, None) for key in came]


# --------------------------------------------------------------------------- placement


def test_the_highest_ids_of_each_layer_are_there_and_the_first_layers_have_the_rest():
    place, model = PlaceLastIds().place, shape(4, layers=3)
    assert place(model, 5, "global") == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert place(model, 1, "global") == [(0, 3)]
    assert place(model, 0, "global") == place(model, -1, "global") == []
    assert len(place(model, 99, "global")) == 12


def test_the_shipped_code_leaves_the_rest_to_buffers():
    place, model = ShippedMixtralOffloading().place.place, shape(4, layers=3)
    assert place(model, 5, "global") == [(0, 3), (1, 3), (2, 3)]
    assert place(model, 2, "global") == []
    assert len(place(model, 99, "global")) == 12


# Two layers of four experts, top-1, four slots of which one is a buffer.  Both layers use 0 in the
# prefill, then 3 and 3.
#
# Equal shares: 3 of each layer is placed, two buffers take 0 of both.  So both 3s, which are beyond
# their layers' shares now, are found: two hits, both lingering.
# Uneven shares: layer 0 has 2 and 3, layer 1 has 3.  The buffer takes 0 of layer 0, which gives up
# 2; 0 of layer 1 takes that slot.  Both 3s are found, and only layer 1's is lingering.


@pytest.mark.parametrize(("variant", "lingering"), [("published", 1), ("shipped", 2)])
def test_hits_in_buffers_that_were_not_reused_are_counted_apart(variant, lingering):
    gates = {(step, layer): one(0 if step == 0 else 3) for step in range(2) for layer in range(2)}
    model = FixedModel(small_shape(layers=2, top_k=1), gates)
    system = build("mixtral-offloading", {"evict.staging": "1", "prefetch": "none"}, variant)
    made = rig(system, model, slots=4, costs=NO_CONTROL)
    made.engine.generate([[1]], 2)
    decode = made.counts["decode"]
    assert (decode.active, decode.hits, decode.lingering) == (2, 2, lingering)
    assert made.counts["prefill"].lingering == 0


# --------------------------------------------------------------------------- lossless


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 999),
    slots=st.integers(2, 18),
    rows=st.integers(1, 3),
    variant=st.sampled_from(["published", "shipped"]),
    write_back=st.booleans(),
)
def test_any_routing_in_any_memory(seed, slots, rows, variant, write_back):
    model = small_shape(layers=3, experts=6)
    trace = random_trace(seed, model, [[2] * rows], 5)
    system = build("mixtral-offloading", {"evict.write_back": str(write_back)}, variant)
    made = rig(system, TracedModel(trace), slots=slots)
    made.engine.generate([[1, 1]] * rows, 5)
    check_timeline(made.spans, made.events, num_experts=6, capacity=slots, writes_back=write_back)
    # Each active expert is loaded once a layer at most, in prefill too.
    prefill = made.counts["prefill"]
    assert prefill.hits + prefill.in_flight + prefill.loads == prefill.active


def test_it_is_lossless_and_experts_may_be_two_bits():
    for variant in ("published", "shipped"):
        system = build("mixtral-offloading", {"expert_precision": "2bit"}, variant)
        assert (system.lossless, system.expert_precision) == (True, "2bit")
        assert system.max_batch is None


# --------------------------------------------------------------------------- as shipped

# Two layers of four experts, top-2, five slots: 2 and 3 of each layer, and one buffer.  Layer 0
# uses 0 and 3, then 1 and 3, then 0 and 1.
#
# The first load takes the buffer: nobody is copied back.  For the second, 2, which layer 0 gave up
# for 0, goes back to the host first.  The third token finds all.  Nothing overlaps.


def test_a_swap_copies_both_ways_and_nothing_overlaps():
    def two(a: int, b: int) -> list[list[float]]:
        scores = [0.1] * 4
        scores[a], scores[b] = 0.9, 0.8
        return [scores]

    gates = {(step, 1): two(2, 3) for step in range(3)}
    gates |= {(0, 0): two(3, 0), (1, 0): two(3, 1), (2, 0): two(1, 0)}
    model = FixedModel(small_shape(layers=2), gates)
    system = build("mixtral-offloading", {"evict.staging": "1"}, "shipped")
    assert type(system) is system_class("mixtral-offloading", "shipped")
    made = rig(system, model, slots=5, costs=NO_CONTROL)
    made.engine.generate([[1]], 3)
    check_timeline(made.spans, made.events, num_experts=4, capacity=5, writes_back=True)
    assert moves(made) == [((0, 0), None), ((0, 1), (0, 2))]
    ends = [(s.start_ns, s.end_ns) for s in made.spans]
    assert all(end == start for (_, end), (start, _) in pairwise(ends))
    # A second token: attend and gate end 33 after its start; out 35, in 40, then 3, then 1.
    start = (30 + 3 + 40 + 10 + 10 + 2) + (30 + 3 + 20 + 2) + 6
    second = [s for s in spans(made) if start <= s[4] < start + 150]
    assert second[:6] == [
        ("attend", 0, (), "device", start, start + 30),
        ("gate", 0, (), "device", start + 30, start + 33),
        ("write_back", 0, (2,), "d2h", start + 33, start + 68),
        ("load", 0, (1,), "h2d", start + 68, start + 108),
        ("expert", 0, (3,), "device", start + 108, start + 118),
        ("expert", 0, (1,), "device", start + 118, start + 128),
    ]


def test_the_shipped_code_speculates_nothing():
    shipped, published = ShippedMixtralOffloading(), MixtralOffloading()
    assert shipped.predictors == []
    assert len(published.predictors) == 1
    assert (shipped.overlap, shipped.evict.writes_back) == (False, True)
    assert (published.overlap, published.evict.writes_back) == (True, False)

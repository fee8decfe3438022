"""Fiddler: divisions compared with all 2^E, the shipped threshold, and a layer in ns."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.fiddler import Fiddler, Latency, LoadOrCompute, least_max, least_sum
from moebench.systems.fiddler_shipped import LoadOrComputeAsShipped, ShippedFiddler
from moebench.systems.options import build
from moebench.systems.policies.evict import OnePlaceholder
from moebench.systems.policies.place import PlacePopular
from moebench.systems.registry import system_class
from tests.substrate.engine.fakes import FixedModel, FlatCosts, prices, rig, small_shape
from tests.systems.views import active, cache, costs, shape, started, view

SHIPPED = Latency(token=7, device=0, load=70)

# --------------------------------------------------------------------------- divisions

#: What of each expert: tokens, and whether it is on the device.
EXPERTS = st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=8)
LATENCY = st.builds(Latency, st.integers(1, 20), st.integers(0, 20), st.integers(0, 60))


def sides(tokens, absent, host, takes):
    """Return the times of host and device for a division."""
    device = [e for e in tokens if e not in host]
    loads = takes.load * sum(e in absent for e in device)
    return takes.token * sum(tokens[e] for e in host), takes.device * len(device) + loads


def all_divisions(tokens, absent, takes):
    """Return both sides' times for all 2^E divisions."""
    for chosen in product((False, True), repeat=len(tokens)):
        host = [e for e, on_host in zip(tokens, chosen, strict=True) if on_host]
        yield host, sides(tokens, absent, host, takes)


@given(experts=EXPERTS, takes=LATENCY)
def test_no_division_has_a_smaller_larger_side(experts, takes):
    tokens = {e: n for e, (n, _) in enumerate(experts)}
    absent = [e for e, (_, here) in enumerate(experts) if not here]
    host = least_max(tokens, absent, takes)
    least = min(max(both) for _, both in all_divisions(tokens, absent, takes))
    assert max(sides(tokens, absent, host, takes)) == least


@given(experts=EXPERTS, takes=LATENCY)
def test_no_division_has_a_smaller_sum(experts, takes):
    tokens = {e: n for e, (n, _) in enumerate(experts)}
    absent = [e for e, (_, here) in enumerate(experts) if not here]
    host = least_sum(tokens, absent, takes)
    best = min(sum(both) for _, both in all_divisions(tokens, absent, takes))
    assert sum(sides(tokens, absent, host, takes)) == best
    # Of equal ones, the one with most on the device.
    fewest = min(
        len(host) for host, both in all_divisions(tokens, absent, takes) if sum(both) == best
    )
    assert len(host) == fewest


@pytest.mark.parametrize("tokens", range(1, 30))
def test_the_shipped_threshold_is_ten_tokens(tokens):
    assert least_sum({4: tokens}, [4], SHIPPED) == ([] if tokens >= 10 else [4])
    assert least_sum({4: tokens}, [], SHIPPED) == []


def test_the_larger_side_by_hand():
    # Host 5 a token; device 1, 20 more with a load.  0 and 1 are on the device; 2, 3, 4 are not.
    tokens, absent, takes = {0: 9, 1: 1, 2: 1, 3: 2, 4: 9}, [2, 3, 4], Latency(5, 1, 20)
    # One load: 3 + 20 beside 15 on the host; with 1 there, too, 22 beside 20.  Two: 44.  None: 60.
    assert sorted(least_max(tokens, absent, takes)) == [1, 2, 3]
    # Loads that cost nothing: the host helps only where that is sooner, with what is there, too.
    assert least_max(tokens, absent, Latency(5, 1, 0)) == []
    assert sorted(least_max({0: 1, 1: 1, 2: 1}, [], Latency(5, 5, 0))) == [0]


def test_what_is_there_stays_on_the_device_where_that_is_as_good():
    # One of two goes to the host: 5 beside 5, whichever.
    assert least_max({0: 1, 1: 1}, [1], Latency(5, 5, 0)) == [1]
    # Both sides take 5 if the host has none or one.
    assert least_max({0: 1}, [], Latency(5, 5, 0)) == []


# --------------------------------------------------------------------------- plans


def planned(policy, tokens, resident, phase="prefill", measured=None):
    """Return (load, host, device) of a layer of top-1 rows, given the rows per expert."""
    own = [[expert] for expert, n in enumerate(tokens) for _ in range(n)]
    scores = np.zeros((len(own), len(tokens)))
    seen = view(scores, 1, resident, own=own, phase=phase, measured=measured)
    plan = policy.assign(seen, active(seen))
    return list(plan.load), list(plan.host), list(plan.device)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_both_phases_load_for_one_use(phase):
    # 7 · 9 = 63 < 70 ≤ 7 · 10.
    found = planned(LoadOrComputeAsShipped(), [10, 9, 30, 0, 40], {2}, phase)
    assert found == ([Fetch(0, 0, keep=False), Fetch(0, 4, keep=False)], [1], [2, 0, 4])


def test_what_was_measured_decides():
    # Of the last two each: host 10 a token, load 30, device 2.
    measured = costs([999, 20, 40], [999, 30, 10], [1, 10, 10], [999, 2, 2])
    tokens = [3, 4, 9, 1]
    # Sum: 30 < 32 goes to the host, 40 does not.  Expert 3's 10 is more than the device's 2.
    policy = LoadOrCompute(minimise="sum", history=2)
    assert planned(policy, tokens, {2, 3}, measured=measured) == (
        [Fetch(0, 1, keep=False)], [0], [2, 3, 1],
    )  # fmt: skip
    # Max: with the two loads 68 beside 0; with one 36 beside 30; with none 4 beside 70.
    policy = LoadOrCompute(history=2)
    assert planned(policy, tokens, {2, 3}, measured=measured)[1] == [0]
    # All three: 1039 for 1003 tokens on the host, and 334 for an expert on the device.
    assert sorted(planned(LoadOrCompute(), tokens, {2, 3}, measured=measured)[1]) == [0, 1, 2, 3]


def test_constants_are_options():
    tokens = [10, 9, 30]
    assert planned(LoadOrComputeAsShipped(), tokens, {2})[1] == [1]
    assert planned(LoadOrComputeAsShipped(token_cost=8), tokens, {2})[1] == []
    assert planned(LoadOrComputeAsShipped(load_cost=71), tokens, {2})[1] == [0, 1]
    # 63 on the host beside a copy of 70; 70 beside 70; 133 beside none.
    assert planned(LoadOrComputeAsShipped(minimise="max"), tokens, {2})[1] == [1]
    for option in ("token_cost", "load_cost"):
        with pytest.raises(UsageError, match=rf"assign\.{option} is 0; allowed: above 0"):
            LoadOrComputeAsShipped(**{option: 0})
    with pytest.raises(UsageError, match=r"assign\.history is 0"):
        LoadOrCompute(history=0)


# --------------------------------------------------------------------------- the whole system


def test_published_and_shipped_fiddler_use_their_policies():
    system = build("fiddler")
    assert type(system) is Fiddler
    assert system.lossless
    assert system.assign == LoadOrCompute(minimise="max", history=10)
    assert isinstance(system.place, PlacePopular)
    assert isinstance(system.evict, OnePlaceholder)
    shipped = build("fiddler", {}, "shipped")
    assert type(shipped) is system_class("fiddler", "shipped") is ShippedFiddler
    assert shipped.lossless
    assert not shipped.overlap
    assert shipped.blocking_copies
    assert shipped.pinned_copies is False
    (said,) = shipped.remarks(shape(), 3)
    assert "constants of its code, 7 a token on the host and 70 a copy" in said
    assert build("fiddler", {"assign": "load"}, "shipped").remarks(shape(), 3) == ()


def test_one_slot_stays_empty():
    assert started(OnePlaceholder()).reserve == 1
    assert started(OnePlaceholder(), layers=2, slots=5, scope="layer").reserve == 2
    with pytest.raises(BudgetError, match=r"keeps 1 of 1 slots empty; give a larger --capacity"):
        OnePlaceholder().start(shape(top_k=1), cache(shape(top_k=1), 1))
    assert OnePlaceholder().victim(np.ones(8, dtype=bool), 3) is None


def prefill(system, tokens):
    """Return (expert, start, end) of a prefill's operations; 1 and 2 of six are resident."""
    own = [expert for expert, n in enumerate(tokens) for _ in range(n)]
    model = FixedModel(small_shape(layers=1, top_k=1, experts=6), {(0, 0): np.eye(6)[own].tolist()})
    made = rig(system, model, slots=3, costs=FlatCosts(prices()))
    made.engine.generate([[1] * len(own)], 1)
    check_timeline(made.spans, made.events, num_experts=6, capacity=3)
    there = made.engine.cache.residency(0, 10_000).resident_E
    assert np.flatnonzero(there).tolist() == [1, 2]

    def of(kind: OpKind, lane: Lane) -> list[tuple[tuple[int, ...], int, int]]:
        spans = [s for s in made.spans if s.op.kind is kind and s.lane is lane]
        return [(s.op.experts, s.start_ns, s.end_ns) for s in spans]

    return (of(OpKind.LOAD, Lane.H2D), of(OpKind.EXPERT, Lane.HOST), of(OpKind.EXPERT, Lane.DEVICE))


POPULAR = {"place.popularity": "[[0, 9, 8, 0, 0, 0]]"}


def test_as_shipped_nothing_overlaps():
    # The gate is known at 33.  3 and 5 come (40 each) through one slot; 0's four rows: host (55).
    loads, host, device = prefill(build("fiddler", POPULAR, "shipped"), [4, 12, 0, 10, 0, 30])
    assert loads == [((3,), 33, 73), ((5,), 152, 192)]
    assert host == [((0,), 73, 128)]
    assert device == [((1,), 132, 142), ((3,), 142, 152), ((5,), 192, 202)]


def test_as_published_the_host_computes_beside_the_link():
    # A load takes 40, an expert 10, a token on the host 55: with 0 there, 110 beside 55; else 160.
    loads, host, device = prefill(build("fiddler", POPULAR), [1, 12, 0, 10, 0, 30])
    assert loads == [((3,), 33, 73), ((5,), 83, 123)]
    assert host == [((0,), 33, 88)]
    assert device == [((1,), 33, 43), ((3,), 73, 83), ((5,), 123, 133)]

"""DAOP as shipped: examples worked out from the authors' code, and its prefill in ns."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.daop import PlaceByActivation, PredictedRouting
from moebench.systems.daop_shipped import (
    AllocateAsShipped,
    ShippedDAOP,
    SwapsAndPlaceholder,
    least_sum,
    listed_swaps,
)
from moebench.systems.options import build
from moebench.systems.registry import system_class
from tests.substrate.engine.fakes import FixedModel, FlatCosts, prices, rig, small_shape
from tests.systems.views import active, cache, flags, shape, view

# --------------------------------------------------------------------------- swaps


def swapped(tokens: list[int], rows: int, resident: set[int], listed: int = 8) -> dict[int, int]:
    return listed_swaps(tokens, rows, flags(resident, len(tokens)).tolist(), 1.05, listed)


def test_a_host_expert_without_a_token_voids_a_pair():
    # Hot 2, 0, 1, 3; cold 3, 1, 0, 2: host expert 2 meets host expert 3, which has no token.
    assert swapped([10, 2, 6, 0], 10, {0, 1}) == {}
    # With a token it is behind the device's: 1 leaves for 2.
    assert swapped([10, 2, 6, 2], 10, {0, 1}) == {2: 1}


def test_pairs_are_made_by_position_in_both_lists():
    # Hot 1, 3, 0, 2, 4, 5; cold 0, 2, 4, 5, 3, 1: the first pair is void, 3 comes for 2.
    assert swapped([0, 9, 0, 5, 1, 3], 9, {2, 4, 5}) == {3: 2}


def test_the_lists_end():
    # Hot 2, 3, 0, 1; cold 0, 1, 2, 3: the second pair is 3 and 1.
    assert swapped([0, 1, 9, 5], 9, {0, 1}) == {2: 0, 3: 1}
    assert swapped([0, 1, 9, 5], 9, {0, 1}, listed=1) == {2: 0}


def test_a_host_expert_counts_as_busy_as_there_are_rows():
    # Three rows: 1's one token on the host counts 3, more than 0's two on the device, so that 0 is
    # the colder; 2 > 1.05 * 1 does not hold for the pair (1, 0).
    assert swapped([2, 1], 3, {0}) == {}
    assert swapped([0, 1], 3, {0}) == {1: 0}


# --------------------------------------------------------------------------- the least sum


def every_split(tokens: list[int], resident: set[int], cpu: float, load: float) -> float:
    """Return the least sum over all 2^E splits, by trying them."""
    return min(
        sum(
            cpu * n if host else (0 if e in resident else load)
            for e, (n, host) in enumerate(zip(tokens, split, strict=True))
        )
        for split in product((False, True), repeat=len(tokens))
    )


@given(
    tokens=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    resident=st.sets(st.integers(0, 7)),
    load=st.integers(1, 40),
)
def test_each_expert_by_itself_makes_the_least_sum_of_all_splits(tokens, resident, load):
    host = least_sum(tokens, resident, 3.5, load)
    found = sum(
        3.5 * n if e in host else (0 if e in resident else load) for e, n in enumerate(tokens)
    )
    assert found == every_split(tokens, resident, 3.5, load)


def first_split(tokens: list[int], resident: set[int], cpu: int, load: int) -> set[int]:
    """Return the host's experts of the first split with the least sum, in ascending order."""
    experts = range(len(tokens))
    least, host = None, 0
    for split in range(2 ** len(tokens)):  # bit e is 1 if the host computes expert e
        cost = sum(
            cpu * tokens[e] if split >> e & 1 else load * (e not in resident) for e in experts
        )
        if least is None or cost < least:
            least, host = cost, split
    return {e for e in experts if host >> e & 1}


@given(
    tokens=st.lists(st.integers(0, 6), min_size=1, max_size=7),
    resident=st.sets(st.integers(0, 6)),
    cpu=st.integers(1, 3),
    load=st.integers(1, 6),
)
def test_of_equally_cheap_splits_the_first_is_taken(tokens, resident, cpu, load):
    assert least_sum(tokens, resident, cpu, load) == first_split(tokens, resident, cpu, load)


def test_the_host_takes_eight_tokens_and_no_more():
    assert least_sum([8, 9, 8, 9, 0], {0, 1}, 3.5, 30) == {2, 4}


def test_at_equal_cost_the_device_computes_the_expert():
    # Ten tokens at 3 cost as much as a load of 30; a resident without a token costs 0 on both.
    assert least_sum([10, 9, 0, 0], {2}, 3, 30) == {1, 3}


# --------------------------------------------------------------------------- a prefill's plan


def prefill_of(tokens: list[int], resident: set[int]):
    """Return a prefill of top-1 rows with given numbers of rows per expert."""
    own = [[expert] for expert, n in enumerate(tokens) for _ in range(n)]
    scores = np.zeros((len(own), len(tokens)))
    return view(scores, 1, resident, own=own, phase="prefill")


def planned(tokens: list[int], resident: set[int], **options: float):
    seen = prefill_of(tokens, resident)
    plan = AllocateAsShipped(**options).assign(seen, active(seen))
    return list(plan.load), list(plan.host), list(plan.device)


def test_a_busy_host_expert_passes_through_the_placeholder():
    # 3 replaces 2; 1 uses the placeholder; 0 and 2 have no token and are not computed.
    load, host, device = planned([0, 9, 0, 5, 1, 3], {2, 4, 5})
    assert load == [Fetch(0, 3, instead_of=2), Fetch(0, 1, keep=False)]
    assert (host, device) == ([], [4, 5, 3, 1])
    # With eight tokens the host computes it.
    load, host, device = planned([0, 8, 0, 5, 1, 3], {2, 4, 5})
    assert load == [Fetch(0, 3, instead_of=2)]
    assert (host, device) == ([1], [4, 5, 3])


def test_what_is_swapped_out_is_computed_on_the_host_or_before_it_leaves():
    # 1 comes for 0, whose few tokens go to the host.
    assert planned([7, 8, 9, 9], {0, 2, 3}) == ([Fetch(0, 1, instead_of=0)], [0], [2, 3, 1])
    assert planned([9, 10, 11, 11], {0, 2, 3}) == ([Fetch(0, 1, instead_of=0)], [], [0, 2, 3, 1])


def test_every_constant_is_an_option():
    tokens, resident = [0, 9, 0, 5, 1, 3], {2, 4, 5}
    swap, passes = Fetch(0, 3, instead_of=2), Fetch(0, 1, keep=False)
    assert planned(tokens, resident) == ([swap, passes], [], [4, 5, 3, 1])
    assert planned(tokens, resident, host_cost=3.0) == ([swap], [1], [4, 5, 3])  # 27 < 30
    assert planned(tokens, resident, load_cost=32) == ([swap], [1], [4, 5, 3])  # 31.5 < 32
    assert planned(tokens, resident, listed=1) == ([passes], [3], [4, 5, 1])
    # 5 against 1: 2 has a token now.
    tokens[2] = 1
    assert planned(tokens, resident)[0] == [swap, passes]
    assert planned(tokens, resident, threshold=5.0)[0] == [passes]


def test_options_out_of_range_are_one_line():
    for option in ("listed", "host_cost", "load_cost"):
        with pytest.raises(UsageError, match=rf"assign\.{option} is 0.*allowed"):
            AllocateAsShipped(**{option: 0})
    with pytest.raises(UsageError, match=r"assign\.threshold is 0.5"):
        AllocateAsShipped(threshold=0.5)


# --------------------------------------------------------------------------- decode


def test_decode_is_as_published():
    seen = view([[0.5, 0.3, 0.2, 0.0]], 2, {3})
    plan = AllocateAsShipped().assign(seen, active(seen))
    assert (list(plan.load), plan.host, plan.device) == ([], [0, 1], [])


@pytest.mark.parametrize(
    ("resident", "ids", "weights"),
    [({2, 3}, [0, 2], [0.667, 0.333]), ({0, 3}, [0, 1], [0.571, 0.429]), (set(), [0, 1], None)],
)
def test_the_second_of_two_host_experts_gives_way_and_weights_are_renormalised(
    resident, ids, weights
):
    scores = np.array([0.4, 0.3, 0.2, 0.1])
    seen = view([scores.tolist()], 2, resident, layer=7, ahead=True)
    routed = ShippedDAOP().route.route(seen)
    assert routed.ids_TK.tolist() == routed.weigh_as_TK.tolist() == [ids]
    if weights:
        own = scores[routed.weigh_as_TK[0]]
        assert own / own.sum() == pytest.approx(weights, abs=1e-3)


# --------------------------------------------------------------------------- the whole system


def test_the_variant_has_the_papers_other_decisions():
    system = build("daop", {}, "shipped")
    assert type(system) is system_class("daop", "shipped") is ShippedDAOP
    assert isinstance(system.place, PlaceByActivation)
    assert system.route == PredictedRouting(first=5)
    assert system.blocking_copies
    assert not system.lossless


def test_one_slot_is_the_placeholders():
    policy = SwapsAndPlaceholder()
    model = shape(top_k=1)
    policy.start(model, cache(model, 2))
    assert policy.reserve == 1
    policy.start(model, cache(model, 9, "layer"))
    assert policy.reserve == 2
    with pytest.raises(BudgetError, match=r"keeps 1 of 1 slots empty; give a larger --capacity"):
        policy.start(model, cache(model, 1))


def test_a_prefill_by_hand():
    """Six experts, 1 and 2 on the device, a third slot for the placeholder; 26 top-1 tokens.

    0 has 4, 1 has 12, 3 has 9, 4 has 10.  Hot 4, 3, 0, 1, 2, 5; cold 2, 5, 1, 0, 3, 4.  4 comes for
    2; 3's partner is on the host; 0 is not busier than 1.  So 3 passes through, 0 is on the host.
    """
    tokens = [4, 12, 0, 9, 10, 0]
    own = [expert for expert, n in enumerate(tokens) for _ in range(n)]
    rows = np.eye(6)[own].tolist()
    model = FixedModel(small_shape(layers=1, top_k=1, experts=6), {(0, 0): rows})
    system = build("daop", {"place.popularity": "[[0, 9, 8, 0, 0, 0]]"}, "shipped")
    made = rig(system, model, slots=3, costs=FlatCosts(prices()))
    made.engine.generate([[1] * len(rows)], 1)
    check_timeline(made.spans, made.events, num_experts=6, capacity=3, writes_back=True)

    def of(kind: OpKind, lane: Lane) -> list[tuple[tuple[int, ...], int, int]]:
        spans = [s for s in made.spans if s.op.kind is kind and s.lane is lane]
        return [(s.op.experts, s.start_ns, s.end_ns) for s in spans]

    # The gate is known at 33.  2 leaves (35), 4 comes (40); the control thread waits, then for 3.
    assert of(OpKind.WRITE_BACK, Lane.D2H) == [((2,), 33, 68)]
    assert of(OpKind.LOAD, Lane.H2D) == [((4,), 68, 108), ((3,), 108, 148)]
    assert of(OpKind.EXPERT, Lane.HOST) == [((0,), 148, 203)]
    assert of(OpKind.EXPERT, Lane.DEVICE) == [((1,), 148, 158), ((4,), 158, 168), ((3,), 168, 178)]
    # 1 and 4 stay; the placeholder is empty again.
    there = made.engine.cache.residency(0, 1_000).resident_E
    assert np.flatnonzero(there).tolist() == [1, 4]


def test_experts_beyond_the_last_one_with_tokens_are_there_too():
    # As in the first case, but that 2 is now the last expert, 5, and 5 has its place.
    load, host, device = planned([0, 9, 3, 5, 1, 0], {5, 4, 2})
    assert load == [Fetch(0, 3, instead_of=5), Fetch(0, 1, keep=False)]
    assert (host, device) == ([], [2, 4, 3, 1])

"""DAOP by hand: Algorithm 1, placement, degradation, and a layer computed one layer ahead."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.system import Missing
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.daop import (
    AllocateBySequence,
    MakeRoomForSwaps,
    PlaceByActivation,
    PredictedRouting,
    swaps,
)
from moebench.systems.options import build
from tests.substrate.engine.checker import check_timeline
from tests.substrate.engine.fakes import FixedModel, FlatCosts, prices, rig, small_shape
from tests.systems.views import shape, view

# --------------------------------------------------------------------------- Algorithm 1


def prefill_of(tokens: dict[int, int], resident: set[int], experts: int = 8):
    """A prefill of top-1 tokens in which each expert was chosen so often."""
    own = [[expert] for expert, n in tokens.items() for _ in range(n)]
    return view(np.zeros((len(own), experts)), 1, resident, own=own, phase="prefill")


def test_the_busiest_host_expert_is_paired_with_the_idlest_device_expert():
    # Device: 0 (9 tokens), 1 (2), 2 (0).  Host: 3 (7), 4 (3), 5 (1), 6, 7 (0).
    seen = prefill_of({0: 9, 1: 2, 3: 7, 4: 3, 5: 1}, {0, 1, 2})
    # 7 > 1.05 * 0, 3 > 1.05 * 2, but 1 < 1.05 * 9.
    assert swaps(seen, 1.05) == {3: 2, 4: 1}
    assert swaps(seen, 1.6) == {3: 2}


def test_similar_counts_are_not_swapped():
    assert swaps(prefill_of({0: 20, 1: 21}, {0}), 1.05) == {}
    assert swaps(prefill_of({0: 20, 1: 22}, {0}), 1.05) == {1: 0}
    assert swaps(prefill_of({0: 20, 1: 21}, {0}), 1.0) == {1: 0}


@given(
    tokens=st.dictionaries(st.integers(0, 7), st.integers(1, 30), min_size=1),
    resident=st.sets(st.integers(0, 7)),
)
def test_swaps_never_leave_the_device_with_fewer_tokens(tokens, resident):
    pairs = swaps(prefill_of(tokens, resident), 1.05)
    after = (resident - set(pairs.values())) | set(pairs)
    assert len(after) == len(resident)
    assert set(pairs).isdisjoint(resident)
    assert set(pairs.values()) <= resident
    count = Counter(tokens)
    assert sum(count[e] for e in after) >= sum(count[e] for e in resident)


def missing_of(*experts: int) -> list[Missing]:
    return [Missing(expert, 0.5, 1) for expert in experts]


def test_prefill_loads_what_is_swapped_and_computes_the_rest_on_the_host():
    seen = prefill_of({0: 9, 1: 2, 3: 7, 4: 3, 5: 1}, {0, 1, 2})
    assigned = AllocateBySequence().assign(seen, missing_of(3, 4, 5))
    assert (list(assigned.load), list(assigned.host)) == ([3, 4], [5])


def test_decode_moves_nothing():
    seen = view([[0.5, 0.3, 0.2, 0.0]], 2, {3})
    assigned = AllocateBySequence().assign(seen, missing_of(0, 1))
    assert (list(assigned.load), list(assigned.host)) == ([], [0, 1])


def test_a_swap_takes_the_place_of_its_partner_and_of_nobody_else():
    policy = MakeRoomForSwaps()
    policy.start(shape(), None)  # type: ignore[arg-type]
    policy.observe(prefill_of({0: 9, 1: 2, 3: 7}, {0, 1, 2}))
    anyone = np.ones(16, dtype=bool)
    assert policy.victim(anyone, 3) == 2
    assert policy.victim(anyone, 5) is None
    assert policy.victim(~anyone, 3) is None


# --------------------------------------------------------------------------- §IV-A


def test_equal_parts_and_the_remainder_by_frequency():
    popularity = [[9, 1, 5, 4], [2, 8, 7, 3], [6, 6, 1, 1]]
    place = PlaceByActivation(popularity=popularity)
    placed = list(place.place(shape(experts=4, top_k=1, layers=3), 5, "global"))
    # One each: 0/0, 1/1, 2/0 (ties to the lowest id); then 1/2 with 7 and 2/1 with 6.
    assert placed == [(0, 0), (1, 1), (2, 0), (1, 2), (2, 1)]


# --------------------------------------------------------------------------- degradation

SCORES = [0.35, 0.25, 0.20, 0.12, 0.05, 0.03]


def routed(resident: set[int], k: int = 2, **options: int) -> list[int]:
    seen = view([SCORES], k, resident, layer=7)
    return PredictedRouting(**options).route(seen).ids_TK[0].tolist()


@pytest.mark.parametrize(
    ("resident", "expected"),
    [
        ({0, 1}, [0, 1]),  # both on the device
        ({0, 3}, [0, 1]),  # one on the host: it is computed there
        ({1, 3}, [0, 1]),
        ({3, 4}, [0, 3]),  # both on the host: the lower-scored one gives way to the next best
        ({5}, [0, 5]),
        (set(), [0, 1]),  # no alternative: the original stays
    ],
)
def test_two_experts_on_the_host_degrade(resident, expected):
    assert routed(resident) == expected


def test_more_than_two():
    assert routed({4, 5}, k=3) == [0, 1, 4]  # two may stay
    assert routed({4, 5}, k=3, most_host=1) == [0, 5, 4]  # the weakest takes the best
    assert routed({4, 5}, k=3, most_host=0) == [0, 5, 4]  # two alternatives for three
    assert routed({0, 4}, k=3, most_host=1) == [0, 1, 4]
    assert routed({4}, k=1) == [0]
    assert routed({4}, k=1, most_host=0) == [4]


def test_early_layers_and_prefill_keep_their_own_experts():
    early = view([SCORES], 2, {3, 4}, layer=4)
    assert PredictedRouting().route(early).ids_TK.tolist() == [[0, 1]]
    assert PredictedRouting(first=4).route(early).ids_TK.tolist() == [[0, 3]]
    prefill = view([SCORES], 2, {3, 4}, layer=7, phase="prefill")
    assert PredictedRouting().route(prefill).ids_TK.tolist() == [[0, 1]]


def test_options_out_of_range_are_one_line():
    for options in ({"route.first": "0"}, {"route.most_host": "-1"}, {"assign.threshold": "0.9"}):
        with pytest.raises(UsageError, match="allowed"):
            build("daop", options)


def test_one_threshold_for_both_halves_of_a_swap():
    system = build("daop", {"assign.threshold": "1.5"})
    assert system.evict.threshold == system.assign.threshold == 1.5  # type: ignore[attr-defined]
    assert not system.lossless


# --------------------------------------------------------------------------- one layer ahead

LOAD, HOST, EXPERT = 90, 70, 10


def decoded_layers(first: int, **settings: str) -> tuple[Engine, list]:
    """A prompt of one token and one decoded token through three layers, both for experts 0 and 1.

    All of them are on the device but the last layer's expert 1.
    """
    scores = [[0.6, 0.4, 0.0, 0.0]]
    gates = {(p, layer): scores for p in range(2) for layer in range(3)}
    model = FixedModel(small_shape(), gates, gates)
    popularity = "[[3, 2, 0, 0], [3, 2, 0, 0], [3, 1, 0, 0]]"
    options = {"route.first": str(first), "place.popularity": popularity}
    system = build("daop", options | settings)
    costs = FlatCosts(prices(load=LOAD, host=HOST), launch_ns=1, submit_ns=1, sync_ns=1)
    made = rig(system, model, slots=5, costs=costs)
    made.engine.generate([[1]], 2)
    check_timeline(made.spans, made.claims, num_experts=4, capacity=5)
    return made.engine, made.spans


def test_host_experts_of_a_predicted_layer_start_in_the_layer_before():
    def of_last_layer(spans: list, kind: OpKind, lane: Lane) -> list:
        return [s for s in spans if s.op.layer == 2 and s.op.kind is kind and s.lane is lane]

    _, ahead = decoded_layers(first=2)
    _, plain = decoded_layers(first=9)
    for spans, before in ((ahead, True), (plain, False)):
        host = of_last_layer(spans, OpKind.EXPERT, Lane.HOST)[-1]
        attend = of_last_layer(spans, OpKind.ATTEND, Lane.DEVICE)[-1]
        assert (host.start_ns < attend.start_ns) is before
    # The predicted layer asks no gate of its own, and the token ends earlier.
    assert len(of_last_layer(ahead, OpKind.GATE, Lane.DEVICE)) == 1
    assert len(of_last_layer(plain, OpKind.GATE, Lane.DEVICE)) == 2
    assert ahead[-1].end_ns < plain[-1].end_ns


def test_what_became_of_experts_and_predictions():
    engine, _ = decoded_layers(first=2)
    decode = engine.counts["decode"]
    assert (decode.active, decode.hits, decode.host, decode.loads) == (6, 5, 1, 0)
    assert (decode.foreseen, decode.foreseen_right, decode.degraded) == (2, 2, 0)


def test_swaps_make_no_room_for_other_loads():
    with pytest.raises(UsageError, match=r"MakeRoomForSwaps lets nobody leave .* layer 2"):
        decoded_layers(first=2, assign="load")

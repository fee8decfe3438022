"""Predictors: asked once for all who share them, on their lane, at their price."""

from itertools import pairwise

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Fetch, fetches, split
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.systems.policies.predict import NextGates
from tests.substrate.engine.fakes import FlatCosts, prices, small_shape
from tests.substrate.engine.own import (
    Asks,
    Guess,
    Placed,
    Plans,
    Routes,
    Told,
    model_of,
    of,
    run,
    system,
)

THREE = small_shape(layers=3)
PLACED = Placed(pairs=[(layer, e) for layer in range(3) for e in (0, 1)])
CALM = [[(0, 1)]] * 3
EXPECTED = {(1, 0): (0, 1), (1, 1): (0, 1)}


def two_tokens(**more):
    """Prefill and one decoded token; predictions are made in decode alone."""
    model = model_of(THREE, [CALM, CALM], EXPECTED)
    return run(system(place=PLACED, **more), model, slots=12, passes=2), model


@pytest.mark.parametrize(
    ("lane", "predicted"),
    [
        # The token begins at 171, the gate of its layer 0 is known at 204; 0 and 1 until 224.
        (Lane.DEVICE, (224, 229)),
        (Lane.PREDICT, (204, 229)),
        (Lane.HOST, (204, 229)),
    ],
)
def test_where_a_predictor_runs(lane, predicted):
    asks = Asks(wanted={0: [Fetch(1, 3)]}, phase="decode", looks=Guess(lane))
    ran, model = two_tokens(prefetch=asks)
    spans = of(ran, OpKind.PREDICT, lane)
    assert len(spans) == len(of(ran, OpKind.PREDICT)) == 2
    assert spans[0] == (0, (), *predicted)
    # What is fetched on its advice waits for it; it knows the two experts that were there.
    assert of(ran, OpKind.LOAD) == [(1, (3,), predicted[1], predicted[1] + 40)]
    assert model.predicted == [(1, 0, 1, (0, 1)), (1, 1, 2, (0, 1))]


def test_on_the_device_it_comes_after_shared_experts():
    shape = small_shape(layers=2, shared=True)
    asks = Asks(looks=Guess(in_prefill=True))
    place = Placed(pairs=[(0, 0), (1, 0), (1, 1)])
    model = model_of(shape, [[[(0, 2)], [(0, 1)]]], {(0, 0): (0, 1)})
    ran = run(system(place=place, prefetch=asks), model, slots=8)
    # 0 is computed 33..43, shared experts 43..51, and 2 does not come before 73.
    assert of(ran, OpKind.PREDICT) == [(0, (), 51, 56)]
    assert model.predicted == [(0, 0, 1, (0,))]


def test_equal_predictors_are_asked_once():
    asks = Asks(phase="decode", looks=Guess())
    shared = system(place=PLACED, route=Routes(ahead=(1, 2), looks=Guess()), prefetch=asks)
    assert shared.predictors == [Guess()]
    model = model_of(THREE, [CALM, CALM], EXPECTED)
    ran = run(shared, model, slots=12, passes=2)
    assert [layer for layer, *_ in of(ran, OpKind.PREDICT)] == [0, 1]
    # Routing comes first, when nothing has been computed yet; prefetching is told the same.
    assert model.predicted == [(1, 0, 1, ()), (1, 1, 2, ())]
    assert [(layer, list(forecast)) for layer, forecast in asks.told] == [
        (0, []),
        (1, []),
        (0, [1]),
        (1, [2]),
    ]


def test_different_predictors_are_asked_each():
    asks = Asks(phase="decode", looks=Guess(Lane.PREDICT))
    ran, model = two_tokens(route=Routes(ahead=(1, 2), looks=Guess()), prefetch=asks)
    lanes = [(s.lane, s.op.layer) for s in ran.spans if s.op.kind is OpKind.PREDICT]
    assert sorted(lanes) == [
        (Lane.DEVICE, 0),
        (Lane.DEVICE, 1),
        (Lane.PREDICT, 0),
        (Lane.PREDICT, 1),
    ]
    assert [done for *_, done in model.predicted] == [(), (0, 1), (), (0, 1)]


def test_reading_a_shared_prediction_costs_the_control_thread_once():
    def end_of_run(**more):
        model = model_of(THREE, [CALM, CALM], EXPECTED)
        costs = FlatCosts(prices(), sync_ns=100)
        made = system(place=PLACED, route=Routes(ahead=(1, 2), looks=Guess()), **more)
        return run(made, model, slots=12, passes=2, costs=costs).machine.now_ns()

    alone, shared = end_of_run(), end_of_run(prefetch=Asks(phase="decode", looks=Guess()))
    assert alone == shared


@pytest.mark.parametrize("shared", [False, True])
def test_eviction_is_told_of_each_prediction_once_and_before_anyone_fetches_by_it(shared):
    told = Told()
    asks = Asks(phase="decode", looks=Guess())
    before: list[int] = []
    prefetch = asks.prefetch
    asks.prefetch = lambda *given: before.append(len(told.forecasts)) or prefetch(*given)  # type: ignore[method-assign]
    ahead = Routes(ahead=(1, 2) if shared else (), looks=Guess())
    two_tokens(route=ahead, prefetch=asks, evict=told)
    assert [list(forecast) for forecast in told.forecasts] == [[1], [2]]
    assert all(a is b for (_, a), b in zip(asks.told[2:], told.forecasts, strict=True))
    assert before == [0, 0, 1, 2]


def test_where_nothing_is_predicted_eviction_is_told_nothing():
    told = Told()
    two_tokens(prefetch=Asks(phase="decode"), evict=told)
    assert told.forecasts == []


def test_what_is_predicted_in_the_background_is_fetched_once_it_is_known():
    # Prefill takes 171; layer 0's gate is known at 204, its prediction at 254.  The control thread
    # goes on meanwhile: layer 1's gate is known at 259.
    asks = Asks(wanted={0: [Fetch(1, 3), Fetch(2, 2)]}, phase="decode")
    asks.looks = Guess(Lane.PREDICT, in_background=True)
    wanted = asks.wanted
    model = model_of(THREE, [CALM, CALM], EXPECTED)
    slow = FlatCosts(prices(network=50))
    asks.wanted = {**wanted, 1: [Fetch(2, 2), Fetch(2, 3)]}
    ran = run(system(place=PLACED, prefetch=asks), model, slots=12, passes=2, costs=slow)
    assert of(ran, OpKind.PREDICT) == [(0, (), 204, 254), (1, (), 259, 309)]
    # 3 of layer 1 begins with its prediction.  2 was asked for in layer 0 and waits for no second
    # one; 3 of layer 2 does, and its layer's gate is known before.
    assert of(ran, OpKind.LOAD) == [(1, (3,), 254, 294), (2, (2,), 294, 334)]
    assert ran.machine.now_ns() == 171 + 171


def test_committed_fetches_wait_for_what_is_predicted_in_the_background():
    def loads(background):
        asks = Asks(wanted={0: [Fetch(1, 3)]}, phase="decode", discipline="committed")
        asks.looks = Guess(Lane.PREDICT, in_background=background)
        return of(two_tokens(prefetch=asks)[0], OpKind.LOAD)

    assert loads(True) == loads(False) == [(1, (3,), 229, 269)]


def test_a_predictor_may_speak_of_the_next_pass():
    asks = Asks(wanted={2: [Fetch(0, 2), Fetch(1, 2)]}, phase="decode", looks=Guess(wraps=True))
    model = model_of(THREE, [CALM] * 3, {(p, at): (0, 1) for p in (1, 2) for at in range(3)})
    ran = run(system(place=PLACED, prefetch=asks), model, slots=12, passes=3)
    pairs = [(layer, later) for _, layer, later, _ in model.predicted]
    assert pairs == [(0, 1), (1, 2), (2, 0)] * 2
    assert [layer for layer, _ in asks.told] == [0, 1, 0, 1, 2, 0, 1, 2]
    # The second token's last layer is predicted from after its experts on: 171 + 2 · 60 + 53 + 5;
    # the second fetch begins behind the first, in the third pass, whose start drops neither.
    assert of(ran, OpKind.LOAD)[:2] == [(0, (2,), 349, 389), (1, (2,), 389, 429)]
    # Layer 0 of the third pass asks for nothing of layer 1, in place of what was asked.
    assert ran.counts["decode"].asked == 1


def test_no_prediction_in_prefill_unless_it_says_so_and_none_after_the_last_layer():
    for in_prefill in False, True:
        asks = Asks(looks=Guess(in_prefill=in_prefill))
        model = model_of(THREE, [CALM], {(0, 0): (1, 2), (0, 1): (2, 3)})
        run(system(place=PLACED, prefetch=asks), model, slots=12)
        assert [layer for _, layer, _, _ in model.predicted] == [0, 1] * in_prefill
        assert [layer for layer, _ in asks.told] == [0, 1]
        assert [sorted(forecast) for _, forecast in asks.told] == (
            [[1], [2]] if in_prefill else [[], []]
        )


def test_gates_of_several_layers_ahead_are_one_operation():
    # A gate for each of the two layers that follow layer 0, one for layer 1.
    asks = Asks(phase="decode", looks=NextGates(layers=2))
    ran, model = two_tokens(prefetch=asks)
    rows = [s.op.rows for s in ran.spans if s.op.kind is OpKind.PREDICT]
    assert rows == [(1, 1), (1,)]
    assert [(layer, later) for _, layer, later, _ in model.predicted] == [(0, 1), (0, 2), (1, 2)]
    assert [sorted(forecast) for _, forecast in asks.told[2:]] == [[1, 2], [2]]


def test_what_gates_ahead_cost():
    profile = load_profile("a6000")
    costs = CostModel(profile, small_shape(), "bf16")
    one, three = (costs.price(Op(OpKind.PREDICT, 0, (1,) * gates), Lane.DEVICE) for gates in (1, 3))
    gate = costs.price(Op(OpKind.GATE, 0, (1,)), Lane.DEVICE)
    assert one == gate
    assert three[1] == 3 * gate[1]
    assert three[2] == pytest.approx(3 * gate[2], abs=3)


def test_what_a_network_costs():
    profile = load_profile("a6000")
    costs = CostModel(profile, small_shape(), "4bit")
    widths = (1000, 2000, 500)
    op = Op(OpKind.PREDICT, 0, (1,), network=widths)
    first, control, duration = costs.price(op, Lane.PREDICT)
    small = profile.gpu.bandwidth.bytes_per_s * profile.gpu.small_read_efficiency.ratio
    values = sum(a * b + b for a, b in pairwise(widths))
    assert values == 1000 * 2000 + 2000 + 2000 * 500 + 500
    assert duration == pytest.approx(4 * values / small * 1e9, abs=1)
    launch = profile.software.launch.ns
    assert (first, control) == (launch, 2 * 3 * launch)
    # On the host it is a product with a vector; a job there is submitted like a copy.
    host = profile.host.gemv_bandwidth.bytes_per_s
    first, control, duration = costs.price(op, Lane.HOST)
    assert duration == pytest.approx(4 * values / host * 1e9, abs=1)
    assert first == control == profile.software.copy_submit.ns


# ----------------------------------------------------------------------------- routed ahead


def test_a_layer_that_is_routed_ahead_begins_its_host_experts_and_loads_at_once():
    # The token begins at 116, layer 0's gate is known at 149, the prediction at 154.
    # Layer 1 is expected to use 2 and 3: 2 goes to the host at once, 3 is loaded as soon as layer 0
    # has submitted its own work.  Its own gate is not computed.
    def half(view, active):
        if view.layer == 0 or view.phase == "prefill":
            return split(active, fetches(view.layer, active.absent))
        host = [e for e in active.absent if e == 2]
        return split(active, fetches(view.layer, [e for e in active.absent if e != 2]), host)

    two = small_shape(layers=2)
    place = Placed(pairs=[(layer, e) for layer in range(2) for e in (0, 1)])
    calm = [[(0, 1)]] * 2
    model = model_of(two, [calm, [[(0, 1)], [(0, 3)]]], {(1, 0): (2, 3)})
    assign = Plans(by=half)
    made = system(place=place, route=Routes(ahead=(1,), looks=Guess()), assign=assign)
    ran = run(made, model, slots=8, passes=2)
    assert [gate[0] for gate in of(ran, OpKind.GATE)] == [0, 1, 0]
    assert of(ran, OpKind.EXPERT, Lane.HOST) == [(1, (2,), 154, 209)]
    assert of(ran, OpKind.RETURN) == [(1, (2,), 209, 213)]
    assert of(ran, OpKind.LOAD) == [(1, (3,), 154, 194)]
    # Layer 0: 154..174 and the sum until 176; layer 1: attention until 206, then 3; the sum waits
    # for the host's 2.
    assert of(ran, OpKind.EXPERT, Lane.DEVICE)[-2:] == [(0, (0, 1), 154, 174), (1, (3,), 206, 216)]
    assert of(ran, OpKind.COMBINE)[-1] == (1, (), 216, 218)
    assert model.stale == [(1, 1, 2)]
    assert model.ahead == [(1, 1)]
    # Asked twice: for all, and for what the host has not got.
    assert [(layer, ahead) for layer, ahead, _ in assign.asked[2:]] == [
        (1, True),
        (0, False),
        (1, False),
    ]
    assert list(assign.asked[2][2].rows) == [2, 3]
    assert list(assign.asked[4][2].rows) == [3]
    counts = ran.counts["decode"]
    assert (counts.routed_ahead, counts.routed_ahead_right) == (2, 1)
    assert (counts.host, counts.in_flight, counts.prefetched, counts.replaced) == (1, 1, 1, 1)
    assert (counts.active, counts.begun) == (4, 3)  # layer 0's two, and layer 1's 3 on its way


def test_host_experts_at_their_own_turn_wait_for_the_layers_attention():
    # From the token's begin at 116, layer 0 sums until 60 and layer 1 attends until 90.  Nothing is
    # planned for the host before layer 1's turn, at which 1 is: the control thread is at 38 then.
    def at_its_turn(view, active):
        host = [1] if view.layer == 1 and not view.ahead and view.phase == "decode" else []
        return split(active, fetches(view.layer, active.absent), host)

    two = small_shape(layers=2)
    model = model_of(two, [[[(0, 1)]] * 2] * 2, {(1, 0): (0, 1)})
    place = Placed(pairs=[(layer, e) for layer in range(2) for e in (0, 1)])
    route = Routes(ahead=(1,), looks=Guess())
    ran = run(
        system(place=place, route=route, assign=Plans(by=at_its_turn)), model, slots=8, passes=2
    )
    assert of(ran, OpKind.EXPERT, Lane.HOST) == [(1, (1,), 116 + 90, 116 + 145)]
    assert model.stale == []


def test_a_layer_routed_ahead_needs_a_predictor():
    with pytest.raises(UsageError, match="Routes routes layers ahead and has no predictor"):
        two_tokens(route=Routes(ahead=(1,)))


def test_prefill_and_the_first_layer_are_not_routed_ahead():
    ran, model = two_tokens(route=Routes(ahead=(0, 1), looks=Guess()))
    assert model.ahead == [(1, 1)]
    assert [gate[0] for gate in of(ran, OpKind.GATE)] == [0, 1, 2, 0, 2]


def test_of_equal_predicted_scores_the_lowest_ids_are_expected():
    many = small_shape(layers=2, experts=64)
    model = model_of(many, [[[(0, 1)]] * 2] * 2)
    model._predictions[1, 0] = np.repeat([0.1, 0.2], 32)[None]
    asked = []

    def own(view):
        if view.ahead:
            asked.append(view.topk_ids_TK.tolist())
        return view.topk_ids_TK

    place = Placed(pairs=[(layer, e) for layer in range(2) for e in (0, 1)])
    run(
        system(place=place, route=Routes(ahead=(1,), looks=Guess(), by=own)), model,
        slots=8, passes=2,
    )  # fmt: skip
    assert asked == [[[32, 33]]]

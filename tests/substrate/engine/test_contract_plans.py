"""A plan is carried out as it stands, and a wrong one is refused in one line."""

import pytest

from moebench.harness.conformance.invariants import check_lanes, check_order
from moebench.substrate.engine.decisions import NO_EXPERT, Fetch, Plan, fetches, split
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, prices, rig, small_shape
from tests.substrate.engine.own import (
    Guess,
    Placed,
    Plans,
    Routes,
    evicted,
    model_of,
    of,
    run,
    system,
)

ONE, TWO = small_shape(layers=1), small_shape(layers=2)
ZERO_ONE = Placed(pairs=[(0, 0), (0, 1)])


def planned(plan: Plan, uses=((0, 1, 2),), *, top_k: int = 3, rows: int = 1, **more):
    """One layer of four experts, 0 and 1 on the device, four slots."""
    model = model_of(small_shape(layers=1, top_k=top_k), [[list(uses)]])
    made = system(place=ZERO_ONE, assign=Plans(by=lambda view, active: plan))
    return run(made, model, slots=4, rows=rows, **more)


# ----------------------------------------------------------------------------- order


def test_the_device_computes_in_the_plans_order():
    # 1 is there and goes at once, 33..43; 2 comes at 73; 0, which is there, waits for its turn.
    ran = planned(Plan([1, 2, 0], load=fetches(0, [2])))
    assert of(ran, OpKind.EXPERT) == [(0, (1,), 33, 43), (0, (2,), 73, 83), (0, (0,), 83, 93)]


def test_leading_experts_that_are_there_are_one_operation():
    ran = planned(Plan([1, 0, 2], load=fetches(0, [2])))
    assert of(ran, OpKind.EXPERT) == [(0, (1, 0), 33, 53), (0, (2,), 73, 83)]


def test_loads_go_in_their_own_order():
    # 3 is loaded first and computed last; 2 is computed when both have come.
    ran = planned(Plan([0, 2, 3], load=fetches(0, [3, 2])), uses=((0, 2, 3),))
    assert [row[1:] for row in of(ran, OpKind.LOAD)] == [((3,), 33, 73), ((2,), 73, 113)]
    assert of(ran, OpKind.EXPERT)[1:] == [(0, (2,), 113, 123), (0, (3,), 123, 133)]


def test_a_plan_may_copy_an_expert_again():
    # 2 and 3 come 33..73..113, 2 twice more 113..153..193: it is computed when the last has come.
    plan = Plan([0, 3, 2], load=fetches(0, [2, 3]), again=[2, 2])
    made = system(place=ZERO_ONE, assign=Plans(by=lambda view, active: plan))
    model = model_of(small_shape(layers=1, top_k=3), [[[(0, 2, 3)]]])
    ran = rig(made, model, slots=4, costs=FlatCosts(prices()))
    ran.engine.generate([[3]], 1)
    check_lanes(ran.spans)
    check_order(ran.spans)
    assert [row[1:] for row in of(ran, OpKind.LOAD)] == [
        ((2,), 33, 73), ((3,), 73, 113), ((2,), 113, 153), ((2,), 153, 193),
    ]  # fmt: skip
    assert of(ran, OpKind.EXPERT)[1:] == [(0, (3,), 113, 123), (0, (2,), 193, 203)]
    assert ran.timeline.bytes_moved(Lane.H2D) == 4 * RECORD_BYTES
    counts = ran.counts["prefill"]
    assert (counts.hits, counts.loads) == (1, 2)


def test_what_is_not_loaded_cannot_be_copied_again():
    with pytest.raises(UsageError, match=r"copies experts \[0\] again; allowed: .* that it loads"):
        planned(Plan([0, 1, 2], load=fetches(0, [2]), again=[0]))
    with pytest.raises(UsageError, match=r"again"):
        planned(Plan([0, 1], again=[2]), uses=((0, 1),), top_k=2)


def test_host_experts_go_in_the_plans_order_and_their_outputs_return():
    ran = planned(Plan([0], [2, 1]))
    assert of(ran, OpKind.EXPERT, Lane.HOST) == [(0, (2,), 33, 88), (0, (1,), 88, 143)]
    assert of(ran, OpKind.RETURN, Lane.D2H) == [(0, (2,), 88, 92), (0, (1,), 143, 147)]
    assert of(ran, OpKind.COMBINE) == [(0, (), 147, 149)]
    counts = ran.counts["prefill"]
    # 1 was on the device, and is computed on the host all the same.
    assert (counts.hits, counts.host, counts.host_resident) == (1, 2, 1)


def test_an_expert_may_be_brought_while_the_host_computes_it():
    ran = planned(Plan([0, 1], [2], load=fetches(0, [2])))
    assert of(ran, OpKind.LOAD) == [(0, (2,), 33, 73)]
    assert of(ran, OpKind.EXPERT, Lane.HOST) == [(0, (2,), 33, 88)]
    assert of(ran, OpKind.EXPERT, Lane.DEVICE) == [(0, (0, 1), 33, 53)]


def test_it_is_computed_once_even_if_its_load_waits_for_a_slot():
    # Both slots are in use by 0 and 1 until 53.
    made = system(
        place=ZERO_ONE,
        assign=Plans(by=lambda view, active: Plan([0, 1], [2], load=fetches(0, [2]))),
    )
    model = model_of(small_shape(layers=1), [[[(0, 1), (1, 2)]]])
    ran = run(made, model, slots=2, rows=2)
    assert of(ran, OpKind.LOAD) == [(0, (2,), 53, 93)]
    assert of(ran, OpKind.EXPERT, Lane.DEVICE) == [(0, (0, 1), 33, 53)]
    assert of(ran, OpKind.EXPERT, Lane.HOST) == [(0, (2,), 33, 88)]


def test_what_nobody_chose_stays_for_a_later_token():
    extra = Plans(
        by=lambda view, active: Plan(
            [*active.resident, *active.absent],
            load=fetches(0, [3, *active.absent] if view.phase == "prefill" else active.absent),
        )
    )
    made = system(place=ZERO_ONE, assign=extra)
    ran = run(made, model_of(ONE, [[[(0, 2)]], [[(2, 3)]]]), slots=4, passes=2)
    assert [row[1:] for row in of(ran, OpKind.LOAD)] == [((3,), 33, 73), ((2,), 73, 113)]
    assert (ran.counts["prefill"].unchosen, ran.counts["decode"].unchosen) == (1, 0)
    assert ran.counts["decode"].hits == 2


# ----------------------------------------------------------------------------- fewer than k


def test_tokens_may_use_fewer_experts_than_k():
    # Three rows: one expert, none at all, two.
    route = Routes(by=lambda view: [[0, NO_EXPERT], [NO_EXPERT, NO_EXPERT], [1, 2]])
    model = model_of(ONE, [[[(0, 1), (0, 1), (1, 2)]]])
    ran = run(system(place=ZERO_ONE, route=route), model, slots=4, rows=3)
    assert model.computed == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    rows = [(s.op.experts, s.op.rows) for s in ran.spans if s.op.kind is OpKind.EXPERT]
    assert rows == [((0, 1), (1, 1)), ((2,), (1,))]
    counts = ran.counts["prefill"]
    assert (counts.active, counts.replaced) == (3, 3)


def test_a_layer_may_use_no_expert():
    route = Routes(by=lambda view: [[NO_EXPERT, NO_EXPERT]])
    ran = run(system(place=ZERO_ONE, route=route), model_of(ONE, [[[(0, 1)]]]), slots=4)
    assert of(ran, OpKind.EXPERT) == []
    assert of(ran, OpKind.COMBINE) == [(0, (), 33, 35)]
    assert ran.counts["prefill"].active == 0


# ----------------------------------------------------------------------------- deferral


def deferring(*experts: int) -> Plans:
    """Layer 0 defers these."""

    def plan(view, active):
        if view.layer:
            return split(active, fetches(view.layer, active.absent))
        return Plan([e for e in active.rows if e not in experts], deferred=experts)

    return Plans(by=plan)


def test_deferred_outputs_are_added_one_layer_later():
    # The host takes 33..133, and the output is back at 137.  Layer 0 needs only 0: its sum is
    # 43..45.  Layer 1 computes until 98; its sum waits for the host's output.
    place = Placed(pairs=[(layer, e) for layer in range(3) for e in (0, 1)])
    costs = FlatCosts(prices(host=100))

    def ran_with(assign, deferred=()):
        model = model_of(small_shape(layers=3), [[[(0, 2)], [(0, 1)], [(0, 1)]]])
        made = system(place=place, assign=assign)
        return run(made, model, slots=12, costs=costs, deferred=deferred), model

    ran, model = ran_with(deferring(2), [(2,), (), ()])
    assert of(ran, OpKind.EXPERT, Lane.HOST) == [(0, (2,), 33, 133)]
    assert of(ran, OpKind.COMBINE) == [(0, (), 43, 45), (1, (), 137, 139), (2, (), 192, 194)]
    assert model.deferred == [(0, 0, (2,))]
    counts = ran.counts["prefill"]
    assert (counts.host, counts.deferred, counts.host_resident) == (1, 1, 0)
    # Not deferred, the first sum waits.
    ran, _ = ran_with(Plans(by=lambda view, active: split(active, host=active.absent)))
    assert of(ran, OpKind.COMBINE)[0] == (0, (), 137, 139)


def test_a_resident_may_be_deferred():
    place = Placed(pairs=[(layer, e) for layer in range(2) for e in (0, 1)])
    made = system(place=place, assign=deferring(0))
    ran = run(made, model_of(TWO, [[[(0, 1)], [(0, 1)]]]), slots=8, deferred=[(0,), ()])
    counts = ran.counts["prefill"]
    assert (counts.hits, counts.host, counts.host_resident, counts.deferred) == (3, 1, 1, 1)


# ----------------------------------------------------------------------------- Pre-gated MoE


def test_a_layer_routed_ahead_is_loaded_while_the_layer_before_computes():
    # The decoded token begins at 116.  From there on layer 0's gate is known at 33, the prediction
    # at 38, its experts end at 58, its sum at 60, and attention of layer 1 at 90.  Layer 1's own
    # two are loaded from 38 on.
    place = Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)])
    model = model_of(TWO, [[[(0, 1)], [(0, 1)]], [[(0, 1)], [(2, 3)]]], {(1, 0): (2, 3)})
    made = system(place=place, route=Routes(ahead=(1,), looks=Guess()))
    ran = run(made, model, slots=8, passes=2)
    begun = 116
    assert of(ran, OpKind.LOAD) == [
        (1, (2,), begun + 38, begun + 78),
        (1, (3,), begun + 78, begun + 118),
    ]
    assert of(ran, OpKind.EXPERT)[-2:] == [
        (1, (2,), begun + 90, begun + 100),
        (1, (3,), begun + 118, begun + 128),
    ]
    counts = ran.counts["decode"]
    assert (counts.hits, counts.in_flight, counts.loads, counts.prefetched) == (2, 2, 0, 2)
    assert counts.replaced == 0
    assert evicted(ran) == [(6, None), (7, None)]


# ----------------------------------------------------------------------------- wrong plans


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Plan([0, 1, 2], [1], load=fetches(0, [2])), r"planned experts \[0, 1, 2, 1\].*once"),
        (Plan([0, 1], [2], [2]), r"planned experts \[0, 1, 2, 2\].*once"),
        (Plan([0], [2]), r"planned experts \[0, 2\], active are \[0, 1, 2\].*once"),
        (Plan([0, 1, 2, 3], load=fetches(0, [2, 3])), r"active are \[0, 1, 2\].*once"),
        (Plan([0, 1, 2]), r"compute \[2\], which it does not have"),
        (Plan([0, 1, 2], load=fetches(0, [3])), r"compute \[2\], which it does not have"),
        (Plan([0, 1, 2], load=fetches(0, [2, 2])), r"\(0, 2\), \(0, 2\).*different experts"),
        (Plan([0, 1, 2], load=[*fetches(0, [2]), Fetch(1, 3)]), r"\(1, 3\).*of this layer"),
        (Plan([0, 1, 2], load=fetches(0, [2, 1])), r"loads expert 1, which is on the device"),
        (Plan([0, 1, 2], load=[*fetches(0, [2]), Fetch(0, None)]), r"expert None, which is none"),
        (Plan([0, 1], deferred=[2]), r"no layer with experts follows.*\[2\]"),
    ],
)
def test_a_wrong_plan_is_one_clear_line(plan, says):
    with pytest.raises(UsageError, match="layer 0: .*" + says) as raised:
        planned(plan)
    assert "\n" not in str(raised.value)


def test_a_wrong_plan_of_a_layer_routed_ahead_is_refused_too():
    def forgets(view, active):
        plan = split(active, fetches(view.layer, active.absent))
        return Plan(plan.device[1:]) if view.ahead else plan

    place = Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)])
    calm = [[(0, 1)], [(0, 1)]]
    model = model_of(TWO, [calm, calm], {(1, 0): (0, 1)})
    made = system(place=place, route=Routes(ahead=(1,), looks=Guess()), assign=Plans(by=forgets))
    with pytest.raises(UsageError, match=r"layer 1: .*planned experts \[1\], active are \[0, 1\]"):
        run(made, model, slots=8, passes=2)


def test_a_routing_that_says_lossless_and_replaces_is_refused():
    class Says(Routes):
        def lossless_at(self, alpha):
            return True

    made = system(place=ZERO_ONE, route=Says(by=lambda view: [[0, 2]]))
    assert made.lossless
    with pytest.raises(UsageError, match="Says says that it is lossless and replaced an expert"):
        run(made, model_of(ONE, [[[(0, 1)]]]), slots=4)


def test_a_plan_that_loads_another_layers_expert_is_refused():
    for load in (fetches(1, [2]), [*fetches(0, [2]), *fetches(1, [3])]):
        with pytest.raises(UsageError, match="are not of different experts of this layer"):
            planned(Plan([0, 1, 2], load=load))

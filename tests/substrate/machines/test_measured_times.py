"""Measured times: between points and beyond them, and what a machine charges by them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from moebench.substrate.errors import UsageError
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.measured_costs import MeasuredCosts, cost_model
from moebench.substrate.machines.measured_times import Measured, Point, interpolated, shape_hash
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.catalogue import model_shape
from tests.substrate.machines.clients import Client, load_op, times

OLMOE = model_shape("olmoe-1b-7b")


def line(*points: tuple[int, float]) -> list[Point]:
    return [Point(rows=rows, ns=ns) for rows, ns in points]


def measured(**changed: object) -> Measured:
    return Measured.model_validate(
        {
            "shape": shape_hash(OLMOE),
            "what": "olmoe, by hand",
            "device": {
                OpKind.ATTEND: [
                    Point(rows=1, pairs=10, ns=100), Point(rows=1, pairs=30, ns=140),
                    Point(rows=5, pairs=15, ns=500),
                ],
                OpKind.GATE: line((1, 10)),
                OpKind.EXPERT: line((1, 50), (3, 70)),
                OpKind.COMBINE: line((1, 4)),
                OpKind.HEAD: line((1, 20)),
            },
            "host": {OpKind.EXPERT: line((1, 80))},
            "operation_ns": 7, "load_ns": 900, "load_after_ns": 800, "return_ns": 3,
            "submit_ns": 2, "gap_ns": 5, "decision_ns": 6, "wake_ns": 9,
        }
        | changed
    )  # fmt: skip


@pytest.mark.parametrize(
    "field",
    ["operation_ns", "load_ns", "load_after_ns", "read_alone_ns", "return_ns", "submit_ns",
     "gap_ns", "decision_ns", "wake_ns"],
)  # fmt: skip
def test_measured_times_are_not_negative(field: str) -> None:
    assert getattr(measured(**{field: 0}), field) == 0
    with pytest.raises(ValidationError, match=f"(?s){field}.*greater than or equal to 0"):
        measured(**{field: -1})


def test_points_have_rows_and_copies_make_nothing_faster() -> None:
    least = Point(rows=1, ns=0)
    assert (least.pairs, least.spread) == (0, 0)
    for change in ({"rows": 0}, {"pairs": -1}, {"ns": -1}, {"spread": -0.1}):
        (field,) = change
        with pytest.raises(ValidationError, match=field):
            Point(**{"rows": 1, "pairs": 0, "ns": 5.0, "spread": 0.0, **change})
    assert (measured().beside_copies, measured().read_alone_ns, measured().host.keys()) == (
        1, 0, {OpKind.EXPERT},
    )  # fmt: skip
    assert measured(beside_copies=1.0).beside_copies == 1
    with pytest.raises(ValidationError, match="beside_copies"):
        measured(beside_copies=0.99)


PROFILE = load_profile("a6000").model_copy(update={"measured": measured()})
COSTS = cost_model(PROFILE, OLMOE, "bf16")


# ----------------------------------------------------------------------------- between points


def test_times_are_linear_between_points_and_in_proportion_beyond_the_last():
    points = line((2, 100), (4, 140), (8, 300))
    assert [interpolated(points, n) for n in (1, 2, 3, 4, 6, 8, 16)] == [
        100, 100, 120, 140, 220, 300, 600,
    ]  # fmt: skip


def test_attention_is_a_line_over_pairs_for_each_number_of_rows():
    points = measured().device[OpKind.ATTEND]
    assert [interpolated(points, 1, pairs) for pairs in (10, 20, 30, 40, 0)] == [
        100, 120, 140, 160, 80,
    ]  # fmt: skip
    assert interpolated(points, 3, 10) == 300  # half-way between 100 and 500
    assert interpolated(points, 10, 10) == 1000


@given(ns=st.lists(st.floats(0, 1e9), min_size=1, max_size=6), rows=st.integers(1, 64))
def test_no_time_between_points_is_beyond_its_neighbours(ns, rows):
    points = line(*((2**n, value) for n, value in enumerate(ns)))
    got = interpolated(points, rows)
    if rows >= points[-1].rows:
        assert got == pytest.approx(ns[-1] * rows / points[-1].rows)
    else:
        low = max(p.rows for p in points if p.rows <= rows)
        ends = [p.ns for p in points if p.rows in (low, 2 * low)]
        assert min(ends) * (1 - 1e-9) <= got <= max(ends) * (1 + 1e-9)


def test_an_operation_without_points_is_refused():
    with pytest.raises(ValidationError, match="without a measured point"):
        measured(host={OpKind.EXPERT: []})


# ----------------------------------------------------------------------------- prices


def test_only_the_measured_model_is_priced_by_its_times():
    assert isinstance(COSTS, MeasuredCosts)
    other = cost_model(PROFILE, model_shape("mixtral-8x7b"), "bf16")
    assert type(other) is CostModel
    assert type(cost_model(load_profile("a6000"), OLMOE, "bf16")) is CostModel


@pytest.mark.parametrize(
    ("alone_ns", "parallel_reads", "ns"), [(1500, False, 1500), (1500, True, 800), (0, False, 800)]
)
def test_a_system_that_reads_alone_is_charged_for_it(alone_ns, parallel_reads, ns):
    profile = PROFILE.model_copy(update={"measured": measured(read_alone_ns=alone_ns)})
    costs = cost_model(profile, OLMOE, "bf16", parallel_reads=parallel_reads)
    assert costs.ns(Op(OpKind.LOAD, 0, (), (0,)), Lane.H2D) == ns


@pytest.mark.parametrize(
    ("op", "lane", "ns"),
    [
        (Op(OpKind.EXPERT, 0, (1, 2, 1), (0, 1, 2)), Lane.DEVICE, 7 + 50 + 60 + 50),
        (Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.HOST, 80),
        # Experts of a layer that the host computes as one operation; three rows take 3 x 80.
        (Op(OpKind.EXPERT, 0, (1, 3), (0, 1)), Lane.HOST, 80 + 240),
        (Op(OpKind.ATTEND, 0, (1,), (), 20, 20), Lane.DEVICE, 120),
        (Op(OpKind.PREDICT, 0, (1, 1), (), 0, 0), Lane.DEVICE, 20),
        (Op(OpKind.PREDICT, 0, (1,), (), 20, 20), Lane.DEVICE, 130),
        (Op(OpKind.LOAD, 0, (), (0,)), Lane.H2D, 800),
        (Op(OpKind.LOAD, 0, (), (0,), chunk=(3, 4)), Lane.H2D, 200),
        (Op(OpKind.RETURN, 0, (1,), (0,)), Lane.D2H, 3),
    ],
)
def test_prices_are_the_measured_times(op, lane, ns):
    assert COSTS.ns(op, lane) == ns


def test_what_was_not_measured_is_priced_by_the_roofline():
    dense = Op(OpKind.DENSE, 0, (1,))
    roofline = CostModel(PROFILE, OLMOE, "bf16")
    assert COSTS.ns(dense, Lane.DEVICE) == roofline.ns(dense, Lane.DEVICE)


def test_one_thread_decides_and_computes():
    """The control thread goes on when what it computes has ended; a load is another thread's."""
    m = SimulatedMachine(COSTS, Timeline(keep_all=True))
    attend = m.submit(Op(OpKind.ATTEND, 0, (1,), (), 10, 10), Lane.DEVICE)
    assert (times(attend), m.now_ns()) == ((5, 105), 105)
    loaded = m.load(load_op(0), Client())  # handed over at 107
    assert times(loaded) == (107, 907)
    gate = m.submit(Op(OpKind.GATE, 0, (1,)), Lane.DEVICE)
    assert (times(gate), m.now_ns()) == ((112, 122), 122)
    # A prediction is the control thread's, whatever its lane.
    predict = m.submit(Op(OpKind.PREDICT, 0, (1,)), Lane.PREDICT)
    assert (predict.lane, times(predict)) == (Lane.DEVICE, (127, 137))
    m.elapse(1)
    expert = m.submit(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.DEVICE, (loaded,))
    assert times(expert) == (907, 907 + 57)
    assert (expert.cause, expert.stall_ns) == ("load", 907 - 148)
    m.wait(loaded)
    assert m.now_ns() == 964 + 9


def test_a_profile_with_measured_times_is_read_back_as_written():
    text = PROFILE.model_dump(mode="json")
    text["software"] = {"lean": text["software"]}
    again = HardwareProfile.from_mapping(text)
    assert again == PROFILE
    assert again.content_hash() == PROFILE.content_hash() != load_profile("a6000").content_hash()


def test_times_of_unquantised_experts_are_no_quantised_ones():
    profile = load_profile("a6000").model_copy(update={"measured": measured()})
    assert isinstance(cost_model(profile, OLMOE, "fp32", expert_precision="fp32"), MeasuredCosts)
    with pytest.raises(UsageError, match="unquantised experts, not of int4"):
        cost_model(profile, OLMOE, "fp32", expert_precision="int4")


def test_copies_slow_the_device_while_they_are_under_way():
    """Four fifths of its speed beside copies: 100 ns of work take 125."""
    profile = PROFILE.model_copy(update={"measured": measured(beside_copies=1.25)})
    m = SimulatedMachine(cost_model(profile, OLMOE, "bf16"), Timeline(keep_all=True))
    short, long = Op(OpKind.ATTEND, 0, (1,), (), 10, 10), Op(OpKind.ATTEND, 0, (5,), (), 15, 15)
    assert times(m.submit(short, Lane.DEVICE)) == (5, 105)
    assert times(m.load(load_op(0), Client())) == (107, 907)
    assert times(m.submit(short, Lane.DEVICE)) == (112, 112 + 125)
    assert times(m.submit(long, Lane.DEVICE)) == (242, 242 + 625)
    # The copy ends after 35 of it, in which 28 were done.
    assert times(m.submit(short, Lane.DEVICE)) == (872, 872 + 35 + 72)
    assert times(m.submit(short, Lane.DEVICE)) == (984, 984 + 100)


def test_the_control_threads_times_are_whole_and_the_same_for_any_software():
    given = measured(submit_ns=2.6, gap_ns=5.7, wake_ns=9.4, decision_ns=6.6, beside_copies=1.25)
    profile = load_profile("a6000", "hf-eager").model_copy(update={"measured": given})
    costs = cost_model(profile, OLMOE, "bf16")
    assert (costs.load_submit_ns, costs.copy_submit_ns) == (3, 3)
    assert (costs.sync_ns, costs.decision_ns) == (9, 7)
    assert costs.lost_beside_copies == pytest.approx(0.2)
    assert costs.synchronous
    assert not costs.waits_each_layer, "which this software does where it is not measured"
    assert CostModel(profile, OLMOE, "bf16").waits_each_layer
    for lane, ns in ((Lane.DEVICE, 6), (Lane.PREDICT, 6), (Lane.HOST, 3), (Lane.H2D, 3)):
        op = Op(OpKind.EXPERT, 0, (1, 2), (0, 1))
        assert costs.control_ns(op, lane) == costs.first_launch_ns(op, lane) == ns


def test_copies_from_pageable_memory_take_longer_by_the_links_ratio():
    link = PROFILE.link
    ratio = link.h2d(True).bytes_per_s / link.h2d(False).bytes_per_s
    assert ratio > 1
    load = Op(OpKind.LOAD, 0, (), (0,))
    for pinned, ns in ((None, 800), (True, 800), (False, 800 * ratio)):
        costs = cost_model(PROFILE, OLMOE, "bf16", pinned=pinned)
        assert costs.ns(load, Lane.H2D) == round(ns)
        assert costs.least_load_ns(0) == pytest.approx(ns)


def test_a_policys_own_network_is_priced_by_the_roofline():
    network = Op(OpKind.PREDICT, 0, (2,), network=(64, 32, 8))
    roofline = CostModel(PROFILE, OLMOE, "bf16")
    for lane in (Lane.DEVICE, Lane.PREDICT, Lane.HOST):
        assert COSTS.ns(network, lane) == roofline.ns(network, lane)
    # What the host was not measured with is priced so, too, not by the device's times.
    attend = Op(OpKind.ATTEND, 0, (1,), (), 20, 20)
    assert COSTS.ns(attend, Lane.HOST) == roofline.ns(attend, Lane.HOST) != 120

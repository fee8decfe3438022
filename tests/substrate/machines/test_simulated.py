"""The simulated machine's lanes, waits and stalls, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.errors import IntegrityError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span, op_of
from tests.substrate.engine.fakes import RECORD_BYTES
from tests.substrate.machines.clients import ATTEND, Client, attend, load_op, simulated, times

EXPERT = Op(OpKind.EXPERT, 0, (1,), (0,))


def test_an_operation_of_many_kernels_starts_with_its_first_and_ends_after_its_last():
    m = simulated(launch_ns=50)
    # Three experts of 10: the first kernel is launched at 50, the last at 150.
    experts = Op(OpKind.EXPERT, 0, (1, 1, 1), (0, 1, 2))
    assert times(m.submit(experts, Lane.DEVICE)) == (50, 150)
    # Launched cheaply they take their own time: 30 from the first launch on.
    m = simulated(launch_ns=5)
    assert times(m.submit(experts, Lane.DEVICE)) == (5, 35)


def test_time_between_an_operations_launches_is_launch_bound():
    experts = Op(OpKind.EXPERT, 0, (1, 1, 1), (0, 1, 2))
    m = simulated(launch_ns=50)
    m.submit(experts, Lane.DEVICE)  # 50 .. 150, of which 30 are its own
    m.submit(ATTEND, Lane.DEVICE)  # 200 .. 230, all its own
    m.submit(EXPERT, Lane.HOST)
    assert m.timeline.busy_ns(Lane.DEVICE) == 130
    assert m.timeline.launch_bound_ns(m.costs.ns) == 70
    m = simulated(launch_ns=5)
    m.submit(experts, Lane.DEVICE)
    assert m.timeline.launch_bound_ns(m.costs.ns) == 0


def test_software_that_waits_for_each_layer_launches_nothing_beside_it():
    combine = Op(OpKind.COMBINE, 0, (1,))
    ahead, waiting = (
        simulated(launch_ns=1, sync_ns=7),
        simulated(launch_ns=1, sync_ns=7, waits=True),
    )
    for m in (ahead, waiting):
        m.submit(ATTEND, Lane.DEVICE)  # 1 .. 31
        assert times(m.submit(combine, Lane.DEVICE)) == (31, 33)
    assert (ahead.now_ns(), waiting.now_ns()) == (2, 33 + 7)
    assert times(ahead.submit(ATTEND, Lane.DEVICE)) == (33, 63)
    late = waiting.submit(ATTEND, Lane.DEVICE)
    assert (times(late), late.stall_ns, late.cause) == ((41, 71), 8, "control")


def test_copies_and_products_on_the_host_slow_each_other():
    """Half of a rate is lost: 55 ns beside a copy of 40 take 20 of it for 40, and 35 alone."""
    m = simulated(lost_together=0.5)
    assert times(m.load(load_op(0), Client())) == (0, 40)
    assert times(m.submit(EXPERT, Lane.HOST)) == (0, 40 + 35)
    # A copy from 40 on does 17 of its 40 ns until 75, and the rest alone.
    assert times(m.load(load_op(1), Client())) == (40, 75 + 23)
    assert times(simulated().submit(EXPERT, Lane.HOST)) == (0, 55)
    serial = simulated(lost_together=0.5, overlap=False)
    serial.load(load_op(0), Client())
    assert times(serial.submit(EXPERT, Lane.HOST)) == (40, 95)


# ----------------------------------------------------------------------------- stalls


def test_every_idle_nanosecond_has_a_cause():
    m = simulated(launch_ns=5, submit_ns=3, sync_ns=7)
    first = m.submit(ATTEND, Lane.DEVICE)
    assert (times(first), first.stall_ns, first.cause) == ((5, 35), 5, "control")
    second = m.submit(ATTEND, Lane.DEVICE)
    assert (times(second), second.stall_ns, second.cause) == ((35, 65), 0, "")
    expert = Op(OpKind.EXPERT, 0, (1,), (0,))
    loaded = m.load(load_op(0), Client())  # control 13: 13 .. 53
    third = m.submit(expert, Lane.DEVICE, after=(loaded,))
    assert (times(third), third.stall_ns, third.cause) == ((65, 75), 0, "")
    late = m.load(load_op(0), Client())  # control 21: 53 .. 93
    fourth = m.submit(expert, Lane.DEVICE, after=(late,))
    assert (times(fourth), fourth.stall_ns, fourth.cause) == ((93, 103), 18, "load")
    host = m.submit(expert, Lane.HOST)  # control 29: 29 .. 84
    back = m.submit(Op(OpKind.RETURN, 0, (1,), (0,)), Lane.D2H, after=(host,))
    assert times(back) == (84, 88)
    m.wait(back)
    assert m.now_ns() == 95
    slow = m.submit(expert, Lane.HOST)  # control 98: 98 .. 153
    back = m.submit(Op(OpKind.RETURN, 0, (1,), (0,)), Lane.D2H, after=(slow,))  # .. 157
    last = m.submit(Op(OpKind.COMBINE, 0, (1,)), Lane.DEVICE, after=(back,))
    # Free since 103, launched at 106: 3 for the control thread, then 51 for the host.
    assert (times(last), last.late_ns, last.stall_ns, last.cause) == ((157, 159), 3, 51, "host")
    assert m.timeline.stall_ns() == {"control": 5 + 3, "host": 51, "load": 18}
    busy = m.timeline.busy_ns(Lane.DEVICE)
    assert busy + sum(m.timeline.stall_ns().values()) == last.end_ns


def test_while_the_control_thread_waits_for_a_lane_the_device_does():
    m = simulated(launch_ns=5, submit_ns=3, sync_ns=7, blocking_copies=True)
    m.submit(ATTEND, Lane.DEVICE)  # 5 .. 35
    m.load(load_op(0), Client())  # 8 .. 48, for which the control thread waits: 55
    expert = m.submit(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.DEVICE)
    assert times(expert) == (60, 70)
    assert (expert.stall_ns, expert.cause, expert.late_ns) == (48 - 35, "load", 7 + 5)
    assert m.timeline.stall_ns() == {"control": 5 + 12, "load": 13}
    m.submit(ATTEND, Lane.DEVICE)  # 70 .. 100
    m.load(load_op(1), Client())  # 68 .. 108: 115
    late = m.submit(ATTEND, Lane.DEVICE)  # 120: nothing of the wait before is counted again
    assert (late.stall_ns, late.cause, late.late_ns) == (8, "load", 12)


def test_waiting_for_what_never_started_is_a_bug():
    m = simulated()
    with pytest.raises(IntegrityError, match="has not started"):
        m.submit(ATTEND, Lane.DEVICE, after=(Span(ATTEND, Lane.DEVICE),))


def test_work_runs_at_once_and_its_result_is_the_spans():
    m = simulated()
    assert m.submit(ATTEND, Lane.DEVICE, work=lambda: 42).value == 42
    assert m.estimate_ns(ATTEND, Lane.DEVICE) == 30


@pytest.mark.parametrize(
    ("op", "lane", "cause"),
    [
        (op_of(OpKind.STREAM, 1, ()), Lane.H2D, "load"),
        (op_of(OpKind.RETURN, 0, (1,)), Lane.D2H, "host"),
        (op_of(OpKind.WRITE_BACK, 0, (), (1,)), Lane.D2H, "d2h"),
        (op_of(OpKind.PREDICT, 0, (1,)), Lane.PREDICT, "predict"),
        (op_of(OpKind.EXPERT, 0, (1,), (1,)), Lane.HOST, "host"),
    ],
)
def test_a_stall_is_named_after_what_the_device_waited_for(op, lane, cause):
    m = simulated()
    awaited = m.submit(op, lane)
    waiting = m.submit(ATTEND, Lane.DEVICE, after=(awaited,))
    assert (waiting.stall_ns, waiting.cause) == (awaited.end_ns, cause)


# ----------------------------------------------------------------------------- what is moved


def test_weights_that_cross_a_lane_are_counted_and_outputs_are_not():
    m = simulated(host_records=8)
    m.load(load_op(0, 1), Client())
    m.submit(op_of(OpKind.STREAM, 2, ()), Lane.H2D)
    m.write_back(0, 3, 0, since_ns=0)
    m.submit(op_of(OpKind.RETURN, 0, (1,), (1,)), Lane.D2H)
    m.submit(op_of(OpKind.EXPERT, 0, (1,), (1,)), Lane.HOST)  # its record is there
    m.submit(op_of(OpKind.EXPERT, 0, (1,), (2,)), Lane.HOST)
    moved = {lane: m.timeline.bytes_moved(lane) for lane in Lane}
    # A layer's common weights are ten records here.
    expected = {Lane.DISK: 2, Lane.H2D: 11, Lane.D2H: 1}
    assert moved == {lane: expected.get(lane, 0) * RECORD_BYTES for lane in Lane}


def test_write_backs_take_turns_on_their_own_lane():
    m = simulated()
    reader = m.submit(EXPERT, Lane.DEVICE)
    assert times(m.write_back(0, 1, 0, since_ns=5)) == (5, 40)
    second = m.write_back(0, 2, 0, since_ns=6)
    assert times(second) == (40, 75)
    assert (second.op.kind, second.op.experts, second.lane) == (OpKind.WRITE_BACK, (2,), Lane.D2H)
    # The link's other direction and the device do not wait for them.
    assert times(m.load(load_op(0, 5), Client(), after=(reader,))) == (10, 50)
    assert m.now_ns() == 0, "nor does the control thread"


# ----------------------------------------------------------------------------- backlog


def test_a_lanes_backlog_is_what_was_submitted_less_what_has_passed():
    m = simulated()
    m.submit(ATTEND, Lane.DEVICE)
    m.load(load_op(0), Client())
    m.load(load_op(0, 1), Client())
    m.submit(EXPERT, Lane.HOST)
    m.write_back(0, 2, 0, since_ns=0)
    backlog = {Lane.DEVICE: 30, Lane.H2D: 80, Lane.HOST: 55, Lane.D2H: 35}
    assert {lane: m.backlog_ns(lane) for lane in Lane} == dict.fromkeys(Lane, 0) | backlog
    attend(m)  # to 60
    assert {lane: m.backlog_ns(lane) for lane in Lane} == dict.fromkeys(Lane, 0) | {Lane.H2D: 20}


def test_queued_prefetches_are_no_backlog():
    m = simulated()
    m.prefetch([load_op(1, e) for e in range(3)], Client())
    assert m.backlog_ns(Lane.H2D) == 0
    attend(m)  # the first one began at 0 and ends at 40
    assert m.backlog_ns(Lane.H2D) == 10


# ----------------------------------------------------------------------------- systems' options


def test_blocking_copies_hold_the_control_thread_for_needed_loads_alone():
    m = simulated(blocking_copies=True, submit_ns=1, sync_ns=2)
    m.prefetch([load_op(1)], Client())
    assert m.now_ns() == 0
    m.load(load_op(0), Client())  # at 1, behind the prefetch that began at 0: 40 .. 80
    assert m.now_ns() == 80 + 2
    m = simulated(submit_ns=1, sync_ns=2)
    m.load(load_op(0), Client())
    assert m.now_ns() == 1


WORK = [
    (ATTEND, Lane.DEVICE),
    (EXPERT, Lane.DEVICE),
    (EXPERT, Lane.HOST),
    (op_of(OpKind.RETURN, 0, (1,)), Lane.D2H),
    (op_of(OpKind.STREAM, 0, ()), Lane.H2D),
    (op_of(OpKind.PREDICT, 0, (1,)), Lane.PREDICT),
]


def test_without_overlap_nothing_starts_before_the_last_has_ended():
    m = simulated(overlap=False)
    assert times(m.submit(ATTEND, Lane.DEVICE)) == (0, 30)
    assert times(m.load(load_op(0), Client())) == (30, 70)
    assert times(m.submit(EXPERT, Lane.HOST)) == (70, 125)
    assert times(m.write_back(0, 1, 0, since_ns=0)) == (125, 160)
    assert times(m.submit(EXPERT, Lane.DEVICE)) == (160, 170)


@given(st.lists(st.sampled_from([*WORK, None]), min_size=1, max_size=12))
def test_without_overlap_time_is_the_sum_of_all_durations(steps):
    m = simulated(overlap=False)
    spans = []
    for step in steps:
        if step is None:
            spans.append(m.load(load_op(0, len(spans)), Client()))
        else:
            spans.append(m.submit(*step))
    ends = [0, *(span.end_ns for span in spans)]
    assert [span.start_ns for span in spans] == ends[:-1]
    assert ends[-1] == sum(m.timeline.busy_ns(lane) for lane in Lane)


@given(st.lists(st.sampled_from(WORK), min_size=1, max_size=12))
def test_with_overlap_each_lane_is_as_fast_as_if_it_were_alone(steps):
    m = simulated()
    for op, lane in steps:
        m.submit(op, lane)
    for lane in Lane:
        spans = [span for span in m.timeline.spans if span.lane is lane]
        assert max((s.end_ns for s in spans), default=0) == sum(s.duration_ns for s in spans)


def test_an_experts_python_waits_for_what_its_stream_waits_for() -> None:
    """The device is idle from 31 to 41, as a transfer that the expert waits for ends at 40."""
    m = simulated(launch_ns=1, waits=True)
    loaded = m.load(load_op(0), Client())  # 0 .. 40
    assert times(m.submit(ATTEND, Lane.DEVICE)) == (1, 31)
    span = m.submit(EXPERT, Lane.DEVICE, after=(loaded,))
    assert times(span) == (41, 51)
    # Of the 10 idle ns, 9 are the wait for the load, and one is the launch after it.
    assert (span.stall_ns, span.cause, span.late_ns) == (9, "load", 1)
    # A transfer that ends while the device computes is waited for by nobody.
    other = m.load(load_op(1), Client())  # 41 .. 81
    for _ in range(2):
        m.submit(ATTEND, Lane.DEVICE)  # until 111
    span = m.submit(EXPERT, Lane.DEVICE, after=(other,))
    assert m.timeline.spans[-1] is span
    assert (times(span), span.stall_ns, span.cause) == ((112, 122), 1, "control")

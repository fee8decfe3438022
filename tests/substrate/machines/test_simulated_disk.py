"""The simulated machine where experts are on the disk: host memory, and reads in flight, by hand.

A read takes 60 ns alone and 50 behind another, a load 40, an expert on the host 55.
"""

import pytest

from moebench.substrate.machines.protocol import Lane, OpKind, Span, op_of
from moebench.substrate.machines.simulated import SimulatedMachine
from tests.substrate.machines.clients import Client, attend, load_op, simulated, times


def host(m: SimulatedMachine, expert: int, after: tuple[Span, ...] = ()) -> Span:
    return m.submit(op_of(OpKind.EXPERT, 0, (1,), (expert,)), Lane.HOST, after)


def lane(m: SimulatedMachine, lane: Lane) -> list[tuple[int, int, int]]:
    """Expert, start and end of all that a lane did."""
    return [(s.op.experts[0], *times(s)) for s in m.timeline.spans if s.lane is lane]


# ----------------------------------------------------------------------------- host memory


def test_a_host_expert_is_read_first_and_then_it_is_there():
    m = simulated(host_records=4)
    assert times(host(m, 1)) == (60, 115)
    assert times(host(m, 1)) == (115, 170)
    assert lane(m, Lane.DISK) == [(1, 0, 60)]
    assert (m.host_memory.reads, m.host_memory.hits) == (1, 1)


def test_a_read_for_the_host_does_not_wait_for_what_its_computation_waits_for():
    m = simulated(host_records=4)
    state = m.submit(op_of(OpKind.EXPERT, 0, (1,) * 8, tuple(range(8))), Lane.DEVICE)  # to 80
    assert times(host(m, 1, after=(state,))) == (80, 135)
    assert lane(m, Lane.DISK) == [(1, 0, 60)]


def test_what_was_read_for_the_host_is_loaded_from_host_memory_and_the_other_way_round():
    m, client = simulated(host_records=4), Client()
    host(m, 1)  # read to 60
    assert times(m.load(load_op(0, 1), client)) == (60, 100), "once its read has ended"
    assert client.about(1) == [("arrived", 60, 100)]
    m.load(load_op(0, 2), client)  # read from 60, for it was asked for at 0
    assert times(host(m, 2)) == (115, 170)
    assert lane(m, Lane.DISK) == [(1, 0, 60), (2, 60, 110)]


def test_a_read_waits_until_nothing_reads_the_record_that_makes_room():
    m, client = simulated(host_records=2), Client()
    host(m, 1)  # read to 60, computed to 115
    m.load(load_op(0, 2), client)  # read to 110
    m.load(load_op(0, 3), client)  # in the place of 1
    assert lane(m, Lane.DISK) == [(1, 0, 60), (2, 60, 110), (3, 115, 175)]
    m.load(load_op(0, 2), client)  # there
    m.load(load_op(0, 1), client)  # in the place of 3, which crosses the link until 215
    assert lane(m, Lane.DISK)[3:] == [(1, 215, 275)]


def test_experts_that_are_placed_pass_through_host_memory():
    m = simulated(host_records=2)
    for expert in (1, 2, 3):
        m.copy_record(0, expert, 0)
    assert times(host(m, 3)) == (0, 55)
    assert times(host(m, 1))[0] == 60
    assert lane(m, Lane.DISK) == [(1, 0, 60)]


def test_where_all_are_in_host_memory_nothing_is_read():
    m = simulated()
    assert m.host_memory is None
    assert times(host(m, 1)) == (0, 55)
    assert lane(m, Lane.DISK) == []


def test_a_prefetch_from_host_memory_does_not_wait_for_the_disk():
    m, client = simulated(host_records=4), Client()
    m.copy_record(0, 1, 0)
    host(m, 2)  # the disk is busy until 60
    m.prefetch([load_op(0, 1), load_op(0, 3)], client)
    attend(m, 3)
    assert client.about(1) == [("claim", 0), ("arrived", 0, 40)]
    assert client.about(3) == [("claim", 60), ("arrived", 60, 160)]


def test_a_read_for_the_host_goes_before_a_prefetch_that_has_not_begun():
    m, client = simulated(host_records=4), Client()
    m.prefetch([load_op(0, 1)], client)
    host(m, 2)
    attend(m, 3)
    assert [expert for expert, *_ in lane(m, Lane.DISK)] == [2, 1]


# ----------------------------------------------------------------------------- reads in flight


def test_reads_that_are_asked_for_together_share_the_disk():
    m, client = simulated(host_records=8), Client()
    for expert in (1, 2, 3):
        m.load(load_op(0, expert), client)
    assert lane(m, Lane.DISK) == [(1, 0, 60), (2, 60, 110), (3, 110, 160)]
    attend(m, 6)  # to 180: the disk is idle again
    m.load(load_op(0, 4), client)
    assert lane(m, Lane.DISK)[3:] == [(4, 180, 240)]


@pytest.mark.parametrize("options", [{"parallel_reads": False}, {"overlap": False}])
def test_reads_one_at_a_time(options):
    m, client = simulated(host_records=8, **options), Client()
    for expert in (1, 2):
        m.load(load_op(0, expert), client)
    assert {end - start for _, start, end in lane(m, Lane.DISK)} == {60}


def test_a_prefetch_begins_when_the_disk_is_idle_and_reads_alone():
    m, client = simulated(host_records=8), Client()
    m.load(load_op(0, 1), client)
    m.prefetch([load_op(0, 2), load_op(0, 3)], client)
    attend(m, 6)
    assert lane(m, Lane.DISK) == [(1, 0, 60), (2, 60, 120), (3, 120, 180)]


# ----------------------------------------------------------------------------- what policies see


def test_a_measured_host_expert_begins_with_its_read():
    m = simulated(host_records=4)
    wide = op_of(OpKind.EXPERT, 0, (5,), (1,))
    m.submit(wide, Lane.HOST)  # read for 60, computed for 55
    m.submit(wide, Lane.HOST)
    assert list(m.timeline.costs.host_ns) == [115, 55]
    assert list(m.timeline.costs.host_ns_per_row) == [23, 11]

"""Host memory before the disk: who is there, who makes room, and what is charged."""

import pytest

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.memory.host import HostRecords
from moebench.substrate.memory.tier import Tier

MB = 1_000_000


def op(expert: int) -> Op:
    return Op(OpKind.LOAD, 0, (), (expert,))


def span(expert: int, start_ns: int, end_ns: int) -> Span:
    return Span(op(expert), Lane.DISK, start_ns, end_ns)


def read(memory: HostRecords, expert: int, at_ns: int) -> Span | None:
    """Read a record and use it for 5 ns; what its read had to wait for."""
    room = memory.make_room()
    memory.bring(op(expert), span(expert, at_ns, at_ns + 10))
    memory.used(op(expert), span(expert, at_ns + 10, at_ns + 15))
    return room


def test_as_many_records_as_fit_and_each_is_charged_once():
    tier = Tier("host", 35 * MB)
    tier.reserve("common weights", 4 * MB)
    memory = HostRecords(tier, 10 * MB)
    assert memory.capacity == 3
    used = []
    for expert in range(5):
        read(memory, expert, 10 * expert)
        used.append(tier.used_bytes // MB)
    assert used == [14, 24, 34, 34, 34]
    assert [memory.holds(op(expert)) for expert in range(5)] == [False, False, True, True, True]
    assert (memory.reads, memory.hits) == (5, 0)


def test_what_was_used_longest_ago_makes_room_once_nothing_reads_it():
    memory = HostRecords(Tier("host", 20 * MB), 10 * MB)
    assert read(memory, 0, 0) is None
    assert read(memory, 1, 10) is None
    found = memory.find(op(0))
    assert (found.start_ns, found.end_ns) == (0, 10), "a use waits for the read"
    late = span(0, 90, 95)
    memory.used(op(0), late)
    memory.used(op(0), span(0, 20, 30))  # submitted later, ends earlier
    assert (memory.reads, memory.hits) == (2, 1)
    assert read(memory, 2, 30).end_ns == 25, "expert 1 left: its last use was submitted before"
    assert not memory.holds(op(1))
    assert read(memory, 3, 40) is late


def test_a_record_that_is_copied_in_chunks_stays_until_the_last():
    memory = HostRecords(Tier("host", 20 * MB), 10 * MB)
    memory.make_room()
    memory.bring(op(0), span(0, 0, 10))
    memory.hold(op(0))
    read(memory, 1, 10)
    read(memory, 2, 20)
    assert [memory.holds(op(expert)) for expert in range(3)] == [True, False, True]
    memory.used(op(0), span(0, 50, 60))
    assert memory.make_room().end_ns == 60


def test_what_passed_through_before_the_run_is_no_read():
    memory = HostRecords(Tier("host", 20 * MB), 10 * MB)
    for expert in (0, 1, 0, 2):
        memory.place(op(expert))
    assert [memory.holds(op(expert)) for expert in range(3)] == [True, False, True]
    assert memory.find(op(0)) is None, "it is there"
    assert (memory.reads, memory.hits) == (0, 1)
    assert memory.make_room() is None, "nothing ever read expert 2"


@pytest.mark.parametrize("free", [0, 19])
def test_a_read_needs_room_for_itself_and_for_the_one_before(free):
    with pytest.raises(BudgetError, match=rf"host memory: {free} MB are free.*2 of 10 MB") as error:
        HostRecords(Tier("host", free * MB), 10 * MB)
    assert "--free-host-gb" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_kept_for_good_leaves_the_rest_to_the_cache():
    tier = Tier("host", 50 * MB)
    memory = HostRecords(tier, 10 * MB)
    assert (memory.capacity, memory.spare) == (5, 3)
    for expert in 0, 1, 2, 2:
        memory.keep(op(expert))
    assert tier.used_bytes == 30 * MB
    memory.place(op(0))
    read(memory, 3, 0)
    read(memory, 4, 10)
    assert memory.find(op(0)) is None
    memory.used(op(0), span(0, 20, 25))
    assert read(memory, 5, 30).end_ns == 15, "3 left, as one kept for good never does"
    assert [memory.holds(op(e)) for e in range(6)] == [True, True, True, False, True, True]
    assert (memory.reads, memory.hits) == (3, 1)
    with pytest.raises(UsageError, match=r"keeps more experts in host memory than 3;"):
        memory.keep(op(5))

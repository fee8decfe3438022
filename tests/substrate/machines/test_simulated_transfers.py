"""Loads and prefetches of the simulated machine: priorities and ties, worked out by hand."""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from moebench.substrate.machines.protocol import Lane, OpKind
from tests.substrate.engine.fakes import RECORD_BYTES
from tests.substrate.machines.clients import (
    ATTEND,
    Client,
    attend,
    cancelled,
    load_op,
    simulated,
    times,
)

# ----------------------------------------------------------------------------- prefetches


def test_a_needed_load_goes_before_a_prefetch_that_could_start_at_the_same_instant():
    m, client = simulated(), Client()
    m.prefetch([load_op(1, 1)], client)
    assert times(m.load(load_op(0), client)) == (0, 40)
    attend(m)  # to 30: the link is busy until 40
    assert client.about(1) == []
    attend(m)  # to 60: the link was free from 40 on
    assert client.about(1) == [("claim", 40), ("arrived", 40, 80)]
    assert times(client.spans[1, 1]) == (40, 80)


def test_a_prefetch_starts_only_in_idle_time_that_is_strictly_past():
    m, client = simulated(), Client()
    attend(m)  # now 30
    m.prefetch([load_op(1)], client)
    m.elapse(1)  # a decision of 0 ns: still 30
    assert client.diary == []
    m.decision_ns = 1
    m.elapse(1)
    assert client.about(0) == [("claim", 30), ("arrived", 30, 70)], "from when it was queued"


def test_a_needed_load_waits_for_a_prefetch_that_has_started():
    m = simulated()
    m.prefetch([load_op(1)], Client())
    attend(m)
    assert times(m.load(load_op(0), Client())) == (40, 80)


def test_the_submission_of_a_load_itself_lets_a_prefetch_start_first():
    m, client = simulated(submit_ns=2), Client()
    m.prefetch([load_op(1)], client)  # the link is idle at 0; the load is there at 2
    assert times(m.load(load_op(0), Client())) == (40, 80)
    assert client.about(0)[0] == ("claim", 0)


def test_prefetches_go_in_the_order_of_the_queue_and_a_refused_one_takes_no_time():
    m, client = simulated(), Client(refused={2})
    m.prefetch((load_op(1, e) for e in (1, 2, 3)), client)  # any iterable
    attend(m, 4)
    assert client.diary == [
        ("claim", 1, 0),
        ("arrived", 1, 0, 40),
        ("claim", 2, 40),
        ("claim", 3, 40),
        ("arrived", 3, 40, 80),
    ]
    assert (1, 2) not in client.spans


def test_a_prefetch_waits_for_what_its_claim_says():
    """Where the expert that leaves is written back, its slot is free only then."""
    m = simulated()
    client = Client(claimed=lambda op, now_ns: (m.write_back(0, 9, 0, now_ns),))
    m.prefetch([load_op(1)], client)
    attend(m)
    assert client.about(0) == [("claim", 0), ("arrived", 35, 75)]


def test_cancel_drops_what_has_not_started_of_layers_up_to_the_given_one():
    m, client = simulated(), Client()
    m.prefetch([load_op(1, 0)], client)
    attend(m)  # the first takes the link until 40
    m.prefetch([load_op(layer, layer) for layer in (1, 2, 3)], client)
    assert m.cancel(2) == 2
    assert m.cancel(2) == 0
    assert cancelled(m) == [1, 2]
    attend(m, 3)
    assert client.about(0)[-1] == ("arrived", 0, 40)
    assert client.about(1) == client.about(2) == []
    assert client.about(3) == [("claim", 40), ("arrived", 40, 80)]


def test_prefetches_take_the_place_of_those_that_have_not_begun():
    m, client = simulated(), Client()
    m.prefetch([load_op(1, 1), load_op(1, 2), load_op(2, 3)], client)
    attend(m)  # the first takes the link until 40
    m.prefetch([load_op(2, 4), load_op(1, 2)], client)
    attend(m, 4)
    assert h2d(m) == [(1, 0, 40), (4, 40, 80), (2, 80, 120)]
    assert cancelled(m) == [3], "2 was asked for again"
    m.prefetch([load_op(9, 9)], client)
    m.prefetch([], client)
    assert m.cancel(9) == 0
    assert cancelled(m) == [3, 9]


# ----------------------------------------------------------------------------- the load path


def test_from_disk_two_lanes_work_at_once():
    m, client = simulated(host_records=8), Client()
    assert m.load_path == (Lane.DISK, Lane.H2D)
    assert times(m.load(load_op(0, 1), client)) == (60, 100)
    # The second was asked for while the first was read.
    assert times(m.load(load_op(0, 2), client)) == (110, 150)
    assert client.about(1) == [("arrived", 0, 100)], "it is under way from the disk's start on"
    assert client.about(2) == [("arrived", 60, 150)]
    lanes = [(s.op.kind, s.lane, *times(s)) for s in m.timeline.spans]
    assert lanes == [
        (OpKind.READ, Lane.DISK, 0, 60),
        (OpKind.LOAD, Lane.H2D, 60, 100),
        (OpKind.READ, Lane.DISK, 60, 110),
        (OpKind.LOAD, Lane.H2D, 110, 150),
    ]


def test_from_disk_a_load_for_a_busy_slot_waits_before_it_reads():
    m = simulated(host_records=8)
    reader = m.submit(ATTEND, Lane.DEVICE)
    assert times(m.load(load_op(0), Client(), after=(reader,))) == (90, 130)


def test_from_disk_a_prefetch_starts_when_the_disk_is_idle():
    m, client = simulated(host_records=8), Client()
    m.load(load_op(0), client)  # disk to 60, link to 100
    m.prefetch([load_op(1, 1)], client)
    attend(m, 3)  # to 90
    assert client.about(1) == [("claim", 60), ("arrived", 60, 160)]


# ----------------------------------------------------------------------------- chunks


def h2d(m) -> list[tuple[int, int, int]]:
    """Expert, start and end of everything that crossed the link."""
    return [(s.op.experts[0], *times(s)) for s in m.timeline.spans if s.lane is Lane.H2D]


def test_a_needed_load_goes_between_the_chunks_of_a_prefetch():
    m, client = simulated(), Client()
    m.prefetch([load_op(1, 1)], client, chunks=4)  # of 10 ns each
    m.decision_ns = 15
    m.elapse(1)  # to 15: two chunks have begun
    assert times(m.load(load_op(0, 2), client)) == (20, 60)
    assert client.about(1) == [("claim", 0)], "its slot is taken, it is not there"
    assert (1, 1) not in client.spans
    m.wait(m.submit(ATTEND, Lane.DEVICE, after=(client.spans[0, 2],)))  # to 90
    assert h2d(m) == [(1, 0, 10), (1, 10, 20), (2, 20, 60), (1, 60, 70), (1, 70, 80)]
    assert client.about(1) == [("claim", 0), ("arrived", 0, 80)], "since its first chunk"
    assert times(client.spans[1, 1]) == (70, 80)


def test_the_chunks_of_two_prefetches_do_not_mix():
    m, client = simulated(), Client()
    m.prefetch([load_op(1, 1), load_op(1, 2)], client, chunks=2)
    attend(m, 3)
    assert h2d(m) == [(1, 0, 20), (1, 20, 40), (2, 40, 60), (2, 60, 80)]


def test_chunks_move_the_record_once():
    m = simulated()
    m.prefetch([load_op(1)], Client(), chunks=3)  # 1000 bytes: 333, 333 and 334
    attend(m, 2)
    assert [span.moved_bytes for span in m.timeline.spans if span.lane is Lane.H2D] == [
        333, 333, 334,
    ]  # fmt: skip
    assert m.timeline.bytes_moved(Lane.H2D) == RECORD_BYTES


def test_from_disk_chunks_cross_the_link_when_their_record_was_read():
    m, client = simulated(host_records=8), Client()
    m.prefetch([load_op(1)], client, chunks=2)
    attend(m, 4)
    assert [(s.lane, *times(s)) for s in m.timeline.spans if s.op.kind is not OpKind.ATTEND] == [
        (Lane.DISK, 0, 60),
        (Lane.H2D, 60, 80),
        (Lane.H2D, 80, 100),
    ]
    assert client.about(0) == [("claim", 0), ("arrived", 0, 100)]
    assert m.timeline.bytes_moved(Lane.DISK) == m.timeline.bytes_moved(Lane.H2D) == RECORD_BYTES


def test_what_is_left_of_a_prefetch_can_be_needed():
    m, client = simulated(), Client()
    m.prefetch([load_op(1, 1), load_op(1, 2)], client, chunks=4)
    m.decision_ns = 15
    m.elapse(1)  # two of four chunks
    m.finish(load_op(1, 2))  # it has not begun: nothing to finish
    assert client.about(2) == []
    m.finish(load_op(1, 1))
    assert client.about(1) == [("claim", 0), ("arrived", 0, 40)]
    assert times(client.spans[1, 1]) == (30, 40)
    assert times(m.load(load_op(0, 3), client)) == (40, 80)
    m.finish(load_op(1, 1))  # it is there
    assert len(client.about(1)) == 2


def test_what_has_begun_in_chunks_is_neither_cancelled_nor_replaced():
    m, client = simulated(), Client()
    m.prefetch([load_op(1, 1), load_op(1, 2)], client, chunks=2)
    m.decision_ns = 15
    m.elapse(1)  # the first chunk, until 20
    assert m.cancel(1) == 1
    m.prefetch([load_op(1, 3)], client, chunks=1)
    attend(m, 4)
    assert h2d(m) == [(1, 0, 20), (1, 20, 40), (3, 40, 80)]
    assert client.about(2) == []


# ----------------------------------------------------------------------------- at random

EXPERTS = 6

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.integers(0, EXPERTS - 1)),
        st.tuples(st.just("prefetch"), st.permutations(range(EXPERTS)), st.integers(1, 4)),
        st.tuples(st.just("cancel"), st.sampled_from((0, 1))),
        st.tuples(st.just("finish"), st.integers(0, EXPERTS - 1)),
        st.tuples(st.just("wait"), st.integers(1, 90)),
        st.tuples(st.just("wait for"), st.integers(0, EXPERTS - 1)),
    ),
    max_size=20,
)


@dataclass
class Holder(Client):
    """Every expert comes once: one that is there or on its way is not fetched again."""

    held: set[int] = field(default_factory=set)

    def claim(self, op, now_ns):
        if op.experts[0] in self.held | {EXPERTS - 1}:  # one that gets no slot
            return None
        self.held.add(op.experts[0])
        return super().claim(op, now_ns)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.none() | st.integers(2, EXPERTS), st.integers(0, 3))
@example(
    [("prefetch", [1, 0, 2, 3, 4, 5], 2), ("wait", 5), ("load", 3), ("load", 4)], 2, 0
)  # the chunked record stays: one place is left for both reads
def test_needed_loads_go_first_and_what_has_begun_comes_whole(steps, host_records, submit_ns):
    m, client = simulated(host_records=host_records, submit_ns=submit_ns), Holder()
    first_lane, loads, needed = m.load_path[0], [], []
    for what, *args in steps:
        match what, args:
            case "load", (expert,) if expert not in client.held:
                client.held.add(expert)
                asked = m.now_ns() + submit_ns
                m.load(load_op(0, expert), client)
                loads.append((asked, m.timeline.spans[-len(m.load_path)]))
                needed.append(loads[-1][1])
            case "prefetch", (experts, chunks):
                m.prefetch([load_op(e % 2, e) for e in experts], client, chunks)
            case "cancel", (layer,):
                m.cancel(layer)
                assert m.cancel(layer) == 0
            case "finish", (expert,):
                before = len(m.timeline.spans)
                m.finish(load_op(expert % 2, expert))
                needed += m.timeline.spans[before:]
            case "wait", (ns,):
                m.decision_ns = ns
                m.elapse(1)
            case "wait for", (expert,) if any(e == expert for _, e in client.spans):
                span = next(s for (_, e), s in client.spans.items() if e == expert)
                m.wait(span)
                assert m.now_ns() >= span.end_ns
    m.cancel(1)
    for expert in range(EXPERTS):
        m.finish(load_op(expert % 2, expert))
    # All that was claimed or loaded came, once, and all of it.
    arrived = sorted(e for what, e, *_ in client.diary if what == "arrived")
    assert arrived == sorted(client.held) == sorted(e for _, e in client.spans)
    for lane in m.load_path:
        assert m.timeline.bytes_moved(lane) == RECORD_BYTES * len(arrived)
        spans = sorted(times(s) for s in m.timeline.spans if s.lane is lane)
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), "one at a time"
    # From when a needed load is there until it starts, only what is needed starts, and its lane is
    # never idle, unless a read waits for room: for the copy of the record that leaves host memory.
    lane = [s for s in m.timeline.spans if s.lane is first_lane]
    ends = {s.end_ns for s in (lane if host_records is None else m.timeline.spans)}
    for asked, span in loads:
        overtook = [s for s in lane if asked <= s.start_ns < span.start_ns]
        assert all(s in needed for s in overtook)
        assert span.start_ns == asked or span.start_ns in ends

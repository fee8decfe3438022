"""Priorities and ties of the two machines, worked out by hand."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from moebench.substrate.engine.loop import Engine
from moebench.substrate.errors import CheckpointError, IntegrityError
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.weights import Checkpoint, ExpertStore
from moebench.systems.options import build
from tests.substrate.engine.fakes import FlatCosts, prices
from tests.substrate.models.checkpoints import make_checkpoint


@dataclass
class Parcel:
    """A transfer that keeps a diary; ``accept`` is what it answers when its turn comes."""

    name: str = ""
    accept: bool = True
    diary: list[tuple] = field(default_factory=list)

    def begin(self, now_ns: int) -> bool:
        self.diary.append(("begin", now_ns))
        return self.accept

    def under_way(self, span: Span) -> None:
        self.span = span

    def arrived(self, start_ns: int, end_ns: int) -> None:
        self.diary.append(("arrived", start_ns, end_ns))

    def copy(self) -> None: ...


def machine(from_disk: bool = False, **control: int) -> SimulatedMachine:
    costs = FlatCosts(prices(expert=10, attend=30, load=40, read=60, host=55, back=4), **control)
    return SimulatedMachine(costs, Timeline(1, keep_all=True), from_disk)


def load_op(layer: int, expert: int = 0) -> Op:
    return Op(OpKind.LOAD, layer, (), (expert,))


ATTEND = Op(OpKind.ATTEND, 0, (1,))


def times(span: Span) -> tuple[int, int]:
    return span.start_ns, span.end_ns


# ----------------------------------------------------------------------------- prefetches


def test_a_needed_load_goes_before_a_prefetch_that_could_start_at_the_same_instant():
    m, prefetch, needed = machine(), Parcel(), Parcel()
    m.enqueue(load_op(1), prefetch)
    assert times(m.load(load_op(0), needed)) == (0, 40)
    m.wait(m.submit(ATTEND, Lane.DEVICE))  # to 30: the link is busy until 40
    assert prefetch.diary == []
    m.wait(m.submit(ATTEND, Lane.DEVICE))  # to 60: the link was free from 40 on
    assert prefetch.diary == [("begin", 40), ("arrived", 40, 80)]


def test_a_prefetch_starts_only_in_idle_time_that_is_strictly_past():
    m, prefetch = machine(), Parcel()
    span = m.submit(ATTEND, Lane.DEVICE)
    m.wait(span)  # now 30
    m.enqueue(load_op(1), prefetch)
    m.elapse(1)  # a decision of 0 ns: still 30
    assert prefetch.diary == []
    m.costs.decision_ns = 1
    m.elapse(1)
    assert prefetch.diary == [("begin", 30), ("arrived", 30, 70)], "from when it was queued"


def test_a_needed_load_waits_for_a_prefetch_that_has_started():
    m, prefetch = machine(), Parcel()
    m.enqueue(load_op(1), prefetch)
    m.wait(m.submit(ATTEND, Lane.DEVICE))
    assert times(m.load(load_op(0), Parcel())) == (40, 80)


def test_the_submission_of_a_load_itself_lets_a_prefetch_start_first():
    m, prefetch = machine(submit_ns=2), Parcel()
    m.enqueue(load_op(1), prefetch)  # the link is idle at 0; the load is there at 2
    assert times(m.load(load_op(0), Parcel())) == (40, 80)
    assert prefetch.diary[0] == ("begin", 0)


def test_prefetches_go_in_the_order_of_the_queue_and_a_refused_one_takes_no_time():
    m = machine()
    first, refused, last = Parcel(), Parcel(accept=False), Parcel()
    for parcel in (first, refused, last):
        m.enqueue(load_op(1), parcel)
    for _ in range(4):
        m.wait(m.submit(ATTEND, Lane.DEVICE))
    assert first.diary == [("begin", 0), ("arrived", 0, 40)]
    assert refused.diary == [("begin", 40)]
    assert last.diary == [("begin", 40), ("arrived", 40, 80)]


def test_cancel_drops_what_has_not_started_of_layers_up_to_the_given_one():
    m = machine()
    parcels = {layer: Parcel() for layer in (1, 2, 3)}
    started = Parcel()
    m.enqueue(load_op(1), started)
    m.wait(m.submit(ATTEND, Lane.DEVICE))  # the first takes the link until 40
    for layer, parcel in parcels.items():
        m.enqueue(load_op(layer), parcel)
    assert m.cancel(2) == 2
    assert m.cancel(2) == 0
    for _ in range(3):
        m.wait(m.submit(ATTEND, Lane.DEVICE))
    assert started.diary[-1] == ("arrived", 0, 40)
    assert parcels[1].diary == parcels[2].diary == []
    assert parcels[3].diary == [("begin", 40), ("arrived", 40, 80)]
    m.enqueue(load_op(9), Parcel())
    assert m.cancel() == 1


# ----------------------------------------------------------------------------- the load path


def test_from_disk_two_lanes_work_at_once():
    m, a, b = machine(from_disk=True), Parcel(), Parcel()
    assert m.load_path == (Lane.DISK, Lane.H2D)
    assert times(m.load(load_op(0, 1), a)) == (60, 100)
    assert times(m.load(load_op(0, 2), b)) == (120, 160)
    assert a.diary == [("arrived", 0, 100)], "it is under way from the disk's start on"
    assert b.diary == [("arrived", 60, 160)]
    lanes = [(s.op.kind, s.lane, *times(s)) for s in m.timeline.spans]
    assert lanes == [
        (OpKind.READ, Lane.DISK, 0, 60),
        (OpKind.LOAD, Lane.H2D, 60, 100),
        (OpKind.READ, Lane.DISK, 60, 120),
        (OpKind.LOAD, Lane.H2D, 120, 160),
    ]


def test_from_disk_a_load_for_a_busy_slot_waits_before_it_reads():
    m = machine(from_disk=True)
    reader = m.submit(ATTEND, Lane.DEVICE)
    assert times(m.load(load_op(0), Parcel(), after=(reader,))) == (90, 130)


def test_from_disk_a_prefetch_starts_when_the_disk_is_idle():
    m, prefetch = machine(from_disk=True), Parcel()
    m.load(load_op(0), Parcel())  # disk to 60, link to 100
    m.enqueue(load_op(1), prefetch)
    for _ in range(3):
        m.wait(m.submit(ATTEND, Lane.DEVICE))  # to 90
    assert prefetch.diary == [("begin", 60), ("arrived", 60, 160)]


def test_an_operation_of_many_kernels_starts_with_its_first_and_ends_after_its_last():
    m = machine(launch_ns=50)
    # Three experts of 10: the first kernel is launched at 50, the last at 150.
    experts = Op(OpKind.EXPERT, 0, (1, 1, 1), (0, 1, 2))
    assert times(m.submit(experts, Lane.DEVICE)) == (50, 150)
    # Launched cheaply they take their own time: 30 from the first launch on.
    m = machine(launch_ns=5)
    assert times(m.submit(experts, Lane.DEVICE)) == (5, 35)


# ----------------------------------------------------------------------------- stalls


def test_every_idle_nanosecond_has_a_cause():
    m = machine(launch_ns=5, submit_ns=3, sync_ns=7)
    first = m.submit(ATTEND, Lane.DEVICE)
    assert (times(first), first.stall_ns, first.cause) == ((5, 35), 5, "control")
    second = m.submit(ATTEND, Lane.DEVICE)
    assert (times(second), second.stall_ns, second.cause) == ((35, 65), 0, "")
    expert = Op(OpKind.EXPERT, 0, (1,), (0,))
    loaded = m.load(load_op(0), Parcel())  # control 13: 13 .. 53
    third = m.submit(expert, Lane.DEVICE, after=(loaded,))
    assert (times(third), third.stall_ns, third.cause) == ((65, 75), 0, "")
    late = m.load(load_op(0), Parcel())  # control 21: 53 .. 93
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


def test_waiting_for_what_never_started_is_a_bug():
    m = machine()
    with pytest.raises(IntegrityError, match="has not started"):
        m.submit(ATTEND, Lane.DEVICE, after=(Span(ATTEND, Lane.DEVICE),))


def test_work_runs_at_once_and_its_result_is_the_spans():
    m = machine()
    assert m.submit(ATTEND, Lane.DEVICE, work=lambda: 42).value == 42
    assert m.estimate_ns(ATTEND, Lane.DEVICE) == 30


# ----------------------------------------------------------------------------- this computer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return Checkpoint(make_checkpoint(tmp_path_factory.mktemp("deepseek"), "deepseek"))


@pytest.fixture
def store(checkpoint, tmp_path) -> ExpertStore:
    return ExpertStore.build(checkpoint, tmp_path / "experts.bin", torch.float32)


@pytest.fixture
def here(store) -> Iterator[LocalMachine]:
    with LocalMachine(store, 4, Timeline(store.record_bytes, keep_all=True)) as m:
        yield m


class Record(Parcel):
    """A parcel that really copies."""

    def __init__(self, m: LocalMachine, expert: int, slot: int) -> None:
        super().__init__()
        self.machine, self.expert, self.slot = m, expert, slot

    def copy(self) -> None:
        self.machine.copy_record(1, self.expert, self.slot)


def test_a_record_arrives_in_its_slot(checkpoint, here):
    parcel = Record(here, 5, 2)
    span = here.load(load_op(1, 5), parcel)
    assert parcel.span is span
    here.wait(span)
    assert torch.equal(here.slots[2], checkpoint.expert_record(1, 5, torch.float32))
    assert parcel.diary == [("arrived", span.start_ns, span.end_ns)]
    assert here.timeline.spans == [span]
    assert 0 < here.estimate_ns(span.op, Lane.DISK) == span.duration_ns


def test_a_needed_load_overtakes_queued_prefetches(here):
    order: list[str] = []
    hold, go = threading.Event(), threading.Event()

    class Ordered(Record):
        def copy(self) -> None:
            order.append(f"{self.expert}")
            hold.set()
            go.wait(10)
            super().copy()

    first = here.load(load_op(1, 0), Ordered(here, 0, 0))
    assert hold.wait(10)
    prefetches = [Ordered(here, e, e) for e in (1, 2)]
    for parcel in prefetches:
        here.enqueue(load_op(2 + (parcel.expert == 2), parcel.expert), parcel)
    needed = here.load(load_op(1, 3), Ordered(here, 3, 3))
    assert here.cancel(2) == 1
    go.set()
    here.wait(first)
    here.wait(needed)
    here.wait(here.load(load_op(1, 0), Ordered(here, 0, 0)))
    assert order[:2] == ["0", "3"]
    assert "1" not in order
    assert prefetches[0].diary == []


def test_a_truncated_store_surfaces_where_the_control_thread_waits(store, here):
    with store.path.open("r+b") as file:
        file.truncate(store.offset(1, 5) + 8)
    here.wait(here.load(load_op(1, 4), Record(here, 4, 0)))
    broken = here.load(load_op(1, 5), Record(here, 5, 1))
    with pytest.raises(CheckpointError, match="layer 1 expert 5 is truncated"):
        here.wait(broken)
    with pytest.raises(CheckpointError):
        here.submit(ATTEND, Lane.DEVICE, after=(broken,))


def test_a_bug_in_the_loader_surfaces_too(here):
    class Broken(Parcel):
        def begin(self, now_ns: int) -> bool:
            raise ZeroDivisionError("a policy's own mistake")

    here.enqueue(load_op(1), Broken())
    here._loader.join(10)
    with pytest.raises(ZeroDivisionError):
        here.wait(here.load(load_op(1, 4), Record(here, 4, 0)))


def test_a_truncated_store_ends_the_run(checkpoint, store):
    with store.path.open("r+b") as file:
        file.truncate(store.offset(2, 1) + 8)  # expert 0 of layer 2 can still be placed
    timeline = Timeline(store.record_bytes)
    tier = Tier("memory", 3 * store.record_bytes)
    cache = ExpertCache(store.shape, 3, "global", tier, store.record_bytes)
    with LocalMachine(store, 3, timeline) as m:
        decoder = Decoder(
            store.shape, checkpoint.common(torch.float32), SlotExperts(cache, m.slots)
        )
        engine = Engine(build("moe-ondemand"), decoder, m, cache, timeline)
        engine.start()
        with torch.inference_mode(), pytest.raises(CheckpointError, match="truncated"):
            engine.generate([[1, 2, 3, 4, 5, 6, 7, 8]], 4)
    assert not m._loader.is_alive()


def test_closing_ends_the_loader_and_leaves_queued_prefetches_alone(store):
    hold, go, copied = threading.Event(), threading.Event(), []

    class Slow(Record):
        def copy(self) -> None:
            copied.append(self.expert)
            hold.set()
            go.wait(10)

    with LocalMachine(store, 4, Timeline(1)) as m:
        m.load(load_op(1, 0), Slow(m, 0, 0))
        assert hold.wait(10)
        m.enqueue(load_op(2, 1), Slow(m, 1, 1))
        threading.Thread(target=_when_closing, args=(m, go)).start()
    assert not m._loader.is_alive()
    assert copied == [0]


def _when_closing(m: LocalMachine, go: threading.Event) -> None:
    with m._changed:
        m._changed.wait_for(lambda: m._closing, 10)
    go.set()

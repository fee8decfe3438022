"""This computer as a machine: what its loader thread does when, and what is then in the slots.

No test measures time: where an order matters, the loader is held until it is known.
"""

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch

from moebench.substrate.engine.loop import Engine
from moebench.substrate.errors import CheckpointError, UsageError
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.records import DiskRecords, EmulatedLink, MemoryRecords
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.resident import ResidentExperts
from moebench.systems.options import build
from tests.substrate.machines.clients import ATTEND, Client, cancelled, load_op
from tests.substrate.models.checkpoints import EXPERTS, make_checkpoint

WAIT_S = 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return Checkpoint(make_checkpoint(tmp_path_factory.mktemp("deepseek"), "deepseek"))


@pytest.fixture
def store(checkpoint, tmp_path) -> ExpertStore:
    return ExpertStore.build(checkpoint, tmp_path / "experts.bin", torch.float32)


@contextmanager
def on_disk(
    store: ExpertStore, slots: int, timeline: Timeline, **options: bool
) -> Iterator[LocalMachine]:
    with DiskRecords(store) as records, LocalMachine(records, slots, timeline, **options) as m:
        yield m


@pytest.fixture
def here(store) -> Iterator[LocalMachine]:
    with on_disk(store, EXPERTS, Timeline(keep_all=True)) as m:
        yield m


@dataclass
class Records(Client):
    """Every expert goes to the slot of its own number; ``carried`` are the parts that were read.

    Attributes:
        holds: the experts before whose first part the loader is held.
    """

    holds: set[int] = field(default_factory=set)
    carried: list[int] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def slot_of(self, op: Op) -> int:
        (expert,) = op.experts
        self.carried.append(expert)
        if expert in self.holds and self.carried.count(expert) == 1:
            self.held.set()
            assert self.go.wait(WAIT_S)
            self.held.clear()
            self.go.clear()
        return expert


def record(checkpoint: Checkpoint, expert: int) -> torch.Tensor:
    return checkpoint.expert_record(1, expert, torch.float32)


def wait_for(here: LocalMachine, client: Client, expert: int) -> None:
    """Until a prefetch has come."""
    with here._changed:
        assert here._changed.wait_for(lambda: _arrived(client, expert), WAIT_S)


def _arrived(client: Client, expert: int) -> bool:
    return any(what == "arrived" for what, *_ in client.about(expert))


# ----------------------------------------------------------------------------- loads


def test_a_record_arrives_in_its_slot(checkpoint, here):
    client = Records()
    span = here.load(load_op(1, 5), client)
    assert client.spans[1, 5] is span
    here.wait(span)
    assert torch.equal(here.slots[5], record(checkpoint, 5))
    assert client.diary == [("arrived", 5, span.start_ns, span.end_ns)]
    assert here.timeline.spans == [span]
    assert 0 < here.estimate_ns(span.op, Lane.DISK) <= span.duration_ns
    assert here.timeline.bytes_moved(Lane.DISK) == here.slots[0].nbytes


def test_a_drained_machine_copies_nothing(here):
    client = Client(slots={n: n for n in range(EXPERTS)})
    here.load(load_op(1, 0), client)
    here.prefetch([load_op(1, 1), load_op(2, 2)], client, chunks=3)
    here.drain()
    arrived = [expert for what, expert, *_ in client.diary if what == "arrived"]
    assert sorted(arrived) == [0, 1, 2]
    here.drain()  # at once


def test_a_needed_load_overtakes_queued_prefetches(here):
    client = Records(holds={0})
    first = here.load(load_op(1, 0), client)
    assert client.held.wait(WAIT_S)
    here.prefetch([load_op(1, 1), load_op(2, 2)], client)
    needed = here.load(load_op(1, 3), client)
    here.prefetch([load_op(1, 1), load_op(2, 2), load_op(2, 4)], client)
    here.prefetch([load_op(1, 1), load_op(2, 2)], client)
    assert here.cancel(1) == 1
    assert cancelled(here) == [4, 1]
    client.go.set()
    here.wait(first)
    here.wait(needed)
    wait_for(here, client, 2)
    assert client.carried == [0, 3, 2]
    assert client.about(1) == []


def test_uploads_go_behind_needed_loads_and_before_prefetches_and_are_not_dropped(here):
    client = Records(holds={0})
    first = here.load(load_op(1, 0), client)
    assert client.held.wait(WAIT_S)
    here.prefetch([load_op(2, 1)], client)
    here.upload(load_op(1, 2), client)
    here.upload(load_op(1, 4), client)
    here.upload(load_op(1, 5), client)
    needed = here.load(load_op(1, 3), client)
    here.finish(load_op(1, 4))  # it is needed now, and 2 was queued before it
    assert here.cancel(1) == 0
    client.go.set()
    here.wait(first)
    here.wait(needed)
    wait_for(here, client, 1)
    assert client.carried == [0, 2, 4, 3, 5, 1]


def test_a_refused_prefetch_is_not_read(here):
    client = Records(refused={1})
    here.prefetch([load_op(1, 1), load_op(1, 2)], client)
    wait_for(here, client, 2)
    assert client.carried == [2]
    assert [what for what, *_ in client.about(1)] == ["claim"]


def test_a_blocking_copy_has_ended_when_its_load_returns(store, checkpoint):
    with on_disk(store, EXPERTS, Timeline(), blocking_copies=True) as m:
        span = m.load(load_op(1, 2), Records())
        assert span.end_ns is not None
        assert torch.equal(m.slots[2], record(checkpoint, 2))


def test_operations_run_when_they_are_submitted_after_what_they_wait_for(here):
    client = Records(holds={4})
    loaded = here.load(load_op(1, 4), client)
    assert client.held.wait(WAIT_S)
    ends: list[Span] = []
    computing = threading.Thread(
        target=lambda: ends.append(here.submit(ATTEND, Lane.DEVICE, (loaded,), lambda: "done"))
    )
    computing.start()
    assert loaded.end_ns is None
    client.go.set()
    computing.join(WAIT_S)
    (span,) = ends
    assert span.value == "done"
    assert loaded.end_ns <= span.start_ns <= span.end_ns
    assert span.cause == "load"


def test_what_this_machine_has_no_lane_for_is_refused_in_one_line(here):
    with pytest.raises(UsageError, match="no eviction writes back"):
        here.write_back(1, 0, 0, here.now_ns())


def test_the_backlog_is_what_waits_for_the_loader(here):
    client = Records(holds={0})
    here.wait(here.load(load_op(1, 5), client))
    least = here.estimate_ns(load_op(1), Lane.DISK)
    here.load(load_op(1, 0), client)
    assert client.held.wait(WAIT_S)
    spans = [here.load(load_op(1, e), client) for e in (1, 2, 3)]
    here.prefetch([load_op(1, 4)], client)
    assert {lane: here.backlog_ns(lane) for lane in Lane} == dict.fromkeys(Lane, 0) | {
        Lane.DISK: 3 * least
    }
    client.go.set()
    here.wait(spans[-1])
    assert here.backlog_ns(Lane.DISK) == 0


# ----------------------------------------------------------------------------- chunks


@pytest.mark.parametrize("chunks", [1, 2, 5, 7])
def test_a_record_in_chunks_is_whole(chunks, checkpoint, here):
    client = Records()
    here.prefetch([load_op(1, 3), load_op(1, 6)], client, chunks)
    wait_for(here, client, 6)
    assert client.carried == [3] * chunks + [6] * chunks
    for expert in (3, 6):
        assert torch.equal(here.slots[expert], record(checkpoint, expert))
    parts = [span for span in here.timeline.spans if span.op.experts == (3,)]
    assert sum(span.moved_bytes for span in parts) == here.slots[0].nbytes
    assert client.about(3)[-1] == ("arrived", parts[0].start_ns, parts[-1].end_ns)
    assert client.spans[1, 3] is parts[-1]


def test_a_needed_load_goes_between_the_chunks_of_a_prefetch(checkpoint, here):
    client = Records(holds={1})
    here.prefetch([load_op(1, 1)], client, chunks=3)
    assert client.held.wait(WAIT_S)
    assert here.cancel(1) == 0, "it has begun"
    here.load(load_op(1, 2), client)
    client.go.set()
    wait_for(here, client, 1)
    assert client.carried == [1, 2, 1, 1]
    assert torch.equal(here.slots[1], record(checkpoint, 1))


@pytest.mark.parametrize("held", ["its first chunk", "a load between its chunks"])
def test_what_is_left_of_a_needed_prefetch_goes_before_later_loads(held, checkpoint, here):
    client = Records(holds={1} if held == "its first chunk" else {1, 2})
    here.prefetch([load_op(1, 1)], client, chunks=3)
    assert client.held.wait(WAIT_S)
    before = []
    if held == "a load between its chunks":
        here.load(load_op(1, 2), client)
        client.held.clear()
        client.go.set()
        assert client.held.wait(WAIT_S)
        assert here.cancel(1) == 0, "what has begun is not dropped between its chunks either"
        before = [2]
    here.finish(load_op(1, 1))
    last = here.load(load_op(1, 3), client)
    client.go.set()
    here.wait(last)
    assert client.carried == [1, *before, 1, 1, 3]
    assert torch.equal(here.slots[1], record(checkpoint, 1))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_asked_in_whatever_order_arrives_whole_and_once(seed, checkpoint, store):
    """The loader runs freely beside the control thread, which asks for layer 1's experts."""
    draw = random.Random(seed)
    timeline = Timeline(keep_all=True)
    with on_disk(store, EXPERTS, timeline) as m:
        asked: set[int] = set()

        def claimed(op: Op, now_ns: int) -> tuple[Span, ...]:
            assert op.experts[0] not in asked
            asked.add(op.experts[0])
            return ()

        client = Records(claimed=claimed, refused={7})
        for _ in range(30):
            expert = draw.randrange(EXPERTS)
            match draw.choice(("load", "upload", "prefetch", "cancel", "finish", "wait")):
                case "load" | "upload" as how:
                    m.cancel(1)  # no expert may be asked for twice
                    with m.lock:
                        new = expert not in asked
                        asked.add(expert)
                    if new:
                        (m.load if how == "load" else m.upload)(load_op(1, expert), client)
                case "prefetch":
                    m.cancel(1)
                    with m.lock:
                        later = [load_op(1, e) for e in range(EXPERTS) if e not in asked]
                    # One that begins meanwhile is no longer in the queue.
                    m.prefetch(later[:3], client, draw.randint(1, 4))
                case "cancel":
                    m.cancel(draw.choice((0, 1)))
                case "finish":
                    m.finish(load_op(1, expert))
                case "wait":
                    with m.lock:
                        span = client.spans.get((1, expert))
                    if span is not None:
                        m.wait(span)
        m.cancel(1)
        for span in list(client.spans.values()):
            m.wait(span)
        arrived = [expert for what, expert, *_ in client.diary if what == "arrived"]
        assert sorted(arrived) == sorted(asked - {7} | {e for _, e in client.spans})
        for expert in arrived:
            assert torch.equal(m.slots[expert], record(checkpoint, expert))
        assert timeline.bytes_moved(Lane.DISK) == len(arrived) * store.record_bytes
    times = [(s.start_ns, s.end_ns) for s in timeline.spans]
    assert all(a[1] <= b[0] for a, b in pairwise(times)), "one at a time"


# ----------------------------------------------------------------------------- under an engine


def slot_engine(m, checkpoint, store, slots, name, chunks=1):
    tier = Tier("memory", slots * store.record_bytes)
    cache = ExpertCache(store.shape, slots, "global", tier, store.record_bytes)
    decoder = Decoder(store.shape, checkpoint.common(torch.float32), SlotExperts(cache, m.slots))
    system = build(name, {"alpha": "0", "assign": "load"} if name == "smoe" else {})
    system.prefetch.chunks = chunks
    engine = Engine(system, decoder, m, cache, m.timeline)
    engine.start()
    return engine, cache


@pytest.mark.parametrize("chunks", [1, 3])
def test_prefetched_experts_compute_what_resident_ones_do(chunks, checkpoint, store):
    """SMoE prefetches; a part of a record that is read too early would change a token."""
    prompts = [[1, 2, 3, 4, 5], [9, 8]]
    with on_disk(store, 7, Timeline()) as m, torch.inference_mode():
        engine, cache = slot_engine(m, checkpoint, store, 7, "smoe", chunks)
        tokens = engine.generate(prompts, 12).tokens
        with m.lock:
            cache.check_integrity()
        everything = ResidentExperts(checkpoint, torch.float32)
        resident = Decoder(store.shape, checkpoint.common(torch.float32), everything)
        texts = [prompt + new[:-1] for prompt, new in zip(prompts, tokens, strict=True)]
        for prompt, new, logits in zip(prompts, tokens, resident.full_logits(texts), strict=True):
            assert logits.argmax(-1).tolist()[len(prompt) - 1 :] == new


def test_a_truncated_store_ends_the_run(checkpoint, store):
    with store.path.open("r+b") as file:
        file.truncate(store.offset(2, 1) + 8)  # expert 0 of layer 2 can still be placed
    with on_disk(store, 3, Timeline()) as m:
        engine, _ = slot_engine(m, checkpoint, store, 3, "moe-ondemand")
        with torch.inference_mode(), pytest.raises(CheckpointError, match="truncated"):
            engine.generate([[1, 2, 3, 4, 5, 6, 7, 8]], 4)
    assert not any(thread.is_alive() for thread in m._threads)


# ----------------------------------------------------------------------------- failures, closing


def test_a_truncated_store_surfaces_where_the_control_thread_waits(store, here):
    with store.path.open("r+b") as file:
        file.truncate(store.offset(1, 5) + 8)
    here.wait(here.load(load_op(1, 4), Records()))
    broken = here.load(load_op(1, 5), Records())
    with pytest.raises(CheckpointError, match="layer 1 expert 5 is truncated"):
        here.wait(broken)
    with pytest.raises(CheckpointError):
        here.submit(ATTEND, Lane.DEVICE, after=(broken,))


def test_a_bug_in_the_loader_surfaces_too(here):
    def broken(op: Op, now_ns: int) -> tuple[Span, ...]:
        raise ZeroDivisionError("a policy's own mistake")

    here.prefetch([load_op(1)], Client(claimed=broken))
    here._threads[0].join(WAIT_S)
    with pytest.raises(ZeroDivisionError):
        here.wait(here.load(load_op(1, 4), Records()))


def test_closing_ends_the_loader_and_leaves_queued_prefetches_alone(store):
    client = Records(holds={0})
    with on_disk(store, EXPERTS, Timeline()) as m:
        m.load(load_op(1, 0), client)
        assert client.held.wait(WAIT_S)
        m.prefetch([load_op(2, 1)], client)
        threading.Thread(target=_when_closing, args=(m, client.go)).start()
    assert not any(thread.is_alive() for thread in m._threads)
    assert client.carried == [0]


def _when_closing(m: LocalMachine, go: threading.Event) -> None:
    with m._changed:
        m._changed.wait_for(lambda: m._closing, WAIT_S)
    go.set()


# ----------------------------------------------------------------------------- a clock by hand


class Clock:
    """The control thread's time; work and waits move it on."""

    def __init__(self, machine: LocalMachine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = 1000
        monkeypatch.setattr(machine, "now_ns", lambda: self.ns)
        monkeypatch.setattr(machine, "_await", self._await)
        self._waits: dict[int, int] = {}

    def _await(self, span: Span) -> None:
        self.ns += self._waits[id(span)]
        span.end_ns = self.ns

    def pending(self, op: Op, lane: Lane, takes_ns: int) -> Span:
        """A span for which the control thread waits so long."""
        span = Span(op, lane)
        self._waits[id(span)] = takes_ns
        return span

    def work(self, ns: int) -> str:
        self.ns += ns
        return f"took {ns}"


@pytest.fixture
def clock(here: LocalMachine, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(here, monkeypatch)


TWO_ROWS = Op(OpKind.EXPERT, 1, (3, 1), (0, 5))


def stall(span: Span) -> tuple[int, str, int]:
    return span.stall_ns, span.cause, span.late_ns


def test_an_operation_here_takes_as_long_as_its_work(here: LocalMachine, clock: Clock) -> None:
    here.begin()
    clock.ns += 10
    span = here.submit(ATTEND, Lane.DEVICE, (), clock.work, 30)
    assert (span.start_ns, span.end_ns, span.value) == (1010, 1040, "took 30")
    assert stall(span) == (10, "control", 0)
    following = here.submit(ATTEND, Lane.DEVICE)
    assert (following.start_ns, following.end_ns) == (1040, 1040)
    assert stall(following) == (0, "control", 0)
    assert here.timeline.spans == [span, following]
    assert not here.timeline.costs.device_ns, "no expert was computed"


def test_the_device_waits_for_what_the_control_thread_waits_for(
    here: LocalMachine, clock: Clock
) -> None:
    """Of 30 ns of idle time, 25 are a wait for a load, and 5 are late."""
    here.begin()
    here.submit(ATTEND, Lane.DEVICE, (), clock.work, 30)
    load = clock.pending(load_op(1), Lane.DISK, 25)
    here.wait(load)
    here.wait(load)  # it has ended: no time passes
    assert clock.ns == 1055
    clock.ns += 5
    span = here.submit(TWO_ROWS, Lane.DEVICE, (), clock.work, 12)
    assert stall(span) == (25, "load", 5)
    assert [*here.timeline.costs.device_ns] == [6]  # of two experts, each
    clock.ns += 4
    assert stall(here.submit(ATTEND, Lane.DEVICE)) == (4, "control", 0)
    # Two waits add up; the last is the cause.
    here.wait(clock.pending(load_op(1), Lane.DISK, 7))
    host = clock.pending(Op(OpKind.EXPERT, 1, (1,), (2,)), Lane.HOST, 9)
    assert stall(here.submit(ATTEND, Lane.DEVICE, (host,))) == (16, "host", 0)


def test_time_between_batches_is_no_stall(here: LocalMachine, clock: Clock) -> None:
    here.begin()
    here.submit(ATTEND, Lane.DEVICE, (), clock.work, 30)
    here.wait(clock.pending(load_op(1), Lane.DISK, 50))
    here.begin()
    clock.ns += 3
    assert stall(here.submit(ATTEND, Lane.DEVICE)) == (3, "control", 0)


def test_a_prediction_on_another_lane_leaves_the_devices_idle_time(
    here: LocalMachine, clock: Clock
) -> None:
    here.begin()
    prediction = here.submit(Op(OpKind.PREDICT, 1, (1,)), Lane.PREDICT, (), clock.work, 8)
    assert stall(prediction) == (0, "", 0)
    assert prediction.value == "took 8"
    assert stall(here.submit(ATTEND, Lane.DEVICE)) == (8, "control", 0)


def test_estimates_are_the_least_time_of_an_expert(here: LocalMachine, clock: Clock) -> None:
    here._least_ns.clear()
    assert here.estimate_ns(TWO_ROWS, Lane.DEVICE) == 1, "nothing was measured"
    for ns in (40, 18, 30):
        here.submit(TWO_ROWS, Lane.DEVICE, (), clock.work, ns)
    assert here.estimate_ns(TWO_ROWS, Lane.DEVICE) == 9
    assert here.estimate_ns(TWO_ROWS, Lane.HOST) == 1
    here.submit(ATTEND, Lane.DEVICE, (), clock.work, 5)
    assert here.estimate_ns(ATTEND, Lane.DEVICE) == 5
    assert here.control_ns(TWO_ROWS, Lane.DEVICE) == 0


def test_without_overlap_each_operation_waits_for_the_one_before(
    store: ExpertStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_disk(store, EXPERTS, Timeline(), overlap=False) as m:
        waited: list[Span] = []
        monkeypatch.setattr(m, "wait", waited.append)
        first = m.submit(ATTEND, Lane.DEVICE)
        assert waited == []
        second = m.load(load_op(1, 2), Records())
        third = m.submit(ATTEND, Lane.DEVICE)
        assert waited == [first, second]
        m.load(load_op(1, 3), Records())
        assert waited == [first, second, third]
        m.drain()


def test_with_overlap_nothing_waits_for_the_one_before(
    here: LocalMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Span] = []
    monkeypatch.setattr(here, "wait", waited.append)
    for expert in (1, 2):
        here.load(load_op(1, expert), Records())
        here.submit(ATTEND, Lane.DEVICE)
    assert waited == []
    here.drain()


# ------------------------------------------------------------------- a machine with a host lane


@pytest.fixture
def linked(checkpoint: Checkpoint) -> Iterator[LocalMachine]:
    """Experts in memory, behind a link that is never waited for."""
    records = MemoryRecords(checkpoint, torch.float32, EmulatedLink(1e18))
    with records, LocalMachine(records, EXPERTS, Timeline(keep_all=True)) as m:
        yield m


def test_entering_measures_five_times_what_is_estimated_first(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is 10 ns later at each look: each trial takes 10 ns, the slot of expert 0."""
    looks = iter(range(0, 10_000, 10))
    monkeypatch.setattr(LocalMachine, "now_ns", lambda _: next(looks))
    copied: list[tuple[int, int, int]] = []
    copy = LocalMachine.copy_record

    def noted(machine: LocalMachine, layer: int, expert: int, slot: int) -> None:
        copied.append((layer, expert, slot))
        copy(machine, layer, expert, slot)

    monkeypatch.setattr(LocalMachine, "copy_record", noted)
    records = MemoryRecords(checkpoint, torch.float32, EmulatedLink(1e18))
    first = checkpoint.shape.moe_layers[0]
    with records, LocalMachine(records, 2, Timeline()) as m:
        assert copied == [(first, 0, 0)] * 5
        assert next(looks) == 3 * 5 * 2 * 10, "a load, an expert here and one on the host"
        one = Op(OpKind.EXPERT, 1, (1,), (0,))
        assert m.estimate_ns(load_op(1), Lane.H2D) == 10
        assert m.estimate_ns(one, Lane.DEVICE) == m.estimate_ns(one, Lane.HOST) == 10
        assert m.estimate_ns(load_op(1), Lane.DISK) == 1, "it has no disk"


def test_a_model_with_one_layer_of_experts_is_measured_too(tmp_path) -> None:
    one = Checkpoint(make_checkpoint(tmp_path / "one", "deepseek", num_hidden_layers=2))
    assert len(one.shape.moe_layers) == 1
    with (
        MemoryRecords(one, torch.float32, EmulatedLink(1e18)) as records,
        LocalMachine(records, 1, Timeline()) as m,
    ):
        assert m.estimate_ns(load_op(1), Lane.H2D) > 1


def test_lanes_are_those_of_the_records(here: LocalMachine, linked: LocalMachine) -> None:
    assert (here.load_path, here.has_host_lane) == ((Lane.DISK,), False)
    assert (linked.load_path, linked.has_host_lane) == ((Lane.H2D,), True)
    assert len(here._threads) == 1
    assert len(linked._threads) == 3
    assert linked.slots.shape == (EXPERTS, linked.records.shape.expert_params)


def test_the_hosts_thread_computes_in_order_after_what_it_waits_for(linked: LocalMachine) -> None:
    go, done = threading.Event(), list[int]()

    def computed(expert: int) -> int:
        if expert == 0:
            assert go.wait(WAIT_S)
        done.append(expert)
        return 10 * expert

    ops = [Op(OpKind.EXPERT, 1, (2, 2), (0, 3))]
    ops += [Op(OpKind.EXPERT, layer, (2,), (layer,)) for layer in (1, 2)]
    spans = [linked.submit(op, Lane.HOST, (), computed, op.experts[0]) for op in ops]
    least = linked.estimate_ns(ops[0], Lane.HOST)
    # The first has begun, or is about to: the others wait for certain.
    assert linked.backlog_ns(Lane.HOST) in (2 * least, 4 * least)
    assert linked.backlog_ns(Lane.D2H) == 0
    assert spans[2].end_ns is None
    go.set()
    linked.wait(spans[2])
    assert done == [0, 1, 2]
    assert [span.value for span in spans] == [0, 10, 20]
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(spans))
    assert linked.timeline.spans == spans
    costs = linked.timeline.costs
    assert [*costs.host_ns_per_row] == [ns / 2 for ns in costs.host_ns]
    assert [*costs.host_ns] == [span.duration_ns / len(span.op.experts) for span in spans]
    assert [*costs.host_first] == [True, False, True]
    assert linked.backlog_ns(Lane.HOST) == 0


def test_outputs_take_the_links_time_behind_the_experts(
    linked: LocalMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(linked.records, "give_back", given.append)
    back = linked.submit(Op(OpKind.RETURN, 1, (2, 3)), Lane.D2H, (), lambda: given.append(-1))
    linked.wait(back)
    assert given == [5]
    assert back.lane is Lane.D2H
    assert back.moved_bytes == 0


def test_an_evicted_expert_is_copied_back_from_its_slot(
    linked: LocalMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked.slots[3].fill_(2.5)
    back = linked.write_back(1, 6, 3, 0)
    linked.wait(back)
    assert (linked.records.on_host(1, 6) == 2.5).all()  # type: ignore[attr-defined]
    assert (back.op.kind, back.op.layer, back.op.experts) == (OpKind.WRITE_BACK, 1, (6,))
    assert back.moved_bytes == linked.slots[3].nbytes
    assert linked.timeline.spans == [back]


def test_streamed_weights_are_copied_by_the_loader(
    linked: LocalMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed: list[int] = []

    def stream(layer: int) -> int:
        streamed.append(layer)
        return 77

    linked._host.stream = stream  # type: ignore[union-attr, method-assign]
    span = linked.submit(Op(OpKind.STREAM, 2), Lane.H2D)
    linked.wait(span)
    assert streamed == [2]
    assert span.moved_bytes == 77


def test_a_failing_trial_ends_the_threads(
    store: ExpertStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LocalMachine, "copy_record", broken)
    with DiskRecords(store) as records:
        machine = LocalMachine(records, 2, Timeline())
        with pytest.raises(ZeroDivisionError), machine:
            pass
    assert not any(thread.is_alive() for thread in machine._threads)


def test_the_interpreters_switch_interval_is_restored(store: ExpertStore) -> None:
    before = sys.getswitchinterval()
    with on_disk(store, 2, Timeline()):
        assert sys.getswitchinterval() == pytest.approx(1e-4)
    assert sys.getswitchinterval() == pytest.approx(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_records_of_lower_precision_are_tried_out_too(
    checkpoint: Checkpoint, dtype: torch.dtype
) -> None:
    """The row that an expert is tried with has the records' own type."""
    records = MemoryRecords(checkpoint, dtype, EmulatedLink(1e18))
    with records, LocalMachine(records, 2, Timeline()) as m:
        assert m.slots.dtype is dtype
        assert m.estimate_ns(Op(OpKind.EXPERT, 1, (1,), (0,)), Lane.HOST) > 1

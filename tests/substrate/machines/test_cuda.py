"""A card as the machine, behind a fake one that finds races and ends copies late."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from moebench.harness.conformance.invariants import check_lanes
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines import accelerator, local
from moebench.substrate.machines.accelerator import Cuda
from moebench.substrate.machines.cuda import CardRecords, CudaMachine
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.slots import SlotExperts
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models import decoder as decoders
from moebench.substrate.models.block import Block
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.systems import daop
from moebench.systems.options import build
from tests.substrate.engine.test_lossless import (
    DRAWN,
    EXPERTS,
    NEW_TOKENS,
    TOP_K,
    Output,
    _generate,
    assert_bit_identical,
    drawn,
    every_slot,
    one_thread,  # noqa: F401
)
from tests.substrate.machines.clients import ATTEND, Client, load_op
from tests.substrate.machines.fake_card import FakeCard, Race
from tests.substrate.models.checkpoints import make_checkpoint

WAIT_S = 20


@pytest.fixture(scope="module", params=["qwen2_moe", "deepseek"])
def checkpoint(request, tmp_path_factory) -> Checkpoint:
    return Checkpoint(make_checkpoint(tmp_path_factory.mktemp(request.param), request.param))


@contextmanager
def machine_on(
    card: FakeCard, checkpoint: Checkpoint, slots: int, timeline: Timeline, **options: bool
) -> Iterator[CudaMachine]:
    """Its locks are the card's, which hand on what threads have seen."""
    watched = SimpleNamespace(RLock=card.lock, Condition=threading.Condition, Lock=threading.Lock)
    with (
        CardRecords(checkpoint, torch.float32, card) as records,
        mock.patch.object(local, "threading", watched),
    ):
        late, card._late = card._late, False
        with CudaMachine(records, slots, timeline, card, **options) as machine:
            card._late = late
            try:
                yield machine
            finally:
                card.free_run()


class WatchedExperts(SlotExperts):
    """Says of each slot that is computed with that its stream reads it."""

    card: FakeCard

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> Any:
        if not on_host:
            slot = self._cache.slot_of(self._cache.key(layer, expert))
            assert slot >= 0, "it has none"
            self.card.access(("slot", slot), False)
        return super().matrices(layer, expert, on_host)

    def stacked(self, layer: int, experts: Any) -> None:
        """Never on a card."""


def watched_block(card: FakeCard) -> type[Block]:
    """Says who writes the places of a layer's outputs, and when they are summed."""

    class WatchedBlock(Block):
        __slots__ = ()

        def __init__(self, *fields: Any) -> None:
            super().__init__(*fields)
            self._access(self.places, True)

        def _access(self, experts: Any, write: bool) -> None:
            for expert in experts:
                card.access(("output", id(self), expert), write)

        def compute(self, experts: Any, compute: Any, alone: bool = False) -> None:
            super().compute(experts, compute, alone)
            self._access(experts, True)

        def compute_on_host(self, experts: Any, compute: Any, alone: bool = False) -> None:
            super().compute_on_host(experts, compute, alone)
            self._access(experts, True)

        def weights_now(self) -> Any:
            self._access(self.places.keys() - self.deferred, False)
            return super().weights_now()

        def late_sum(self) -> Any:
            self._access(self.deferred, False)
            return super().late_sum()

    return WatchedBlock


def decoded(
    card: FakeCard, checkpoint: Checkpoint, system: System, slots: int
) -> tuple[Output, Engine, Timeline]:
    timeline, shape = Timeline(keep_all=True), checkpoint.shape
    record_bytes = shape.expert_params * 4
    tier = Tier("card", slots * record_bytes)
    cache = ExpertCache(shape, slots, system.scope, tier, record_bytes)
    blocks: list[Block] = []  # an id names one block

    def block(*arguments: Any) -> Block:
        blocks.append(watched_block(card)(*arguments))
        return blocks[-1]

    options = {"overlap": system.overlap, "blocking_copies": system.blocking_copies}
    with (
        machine_on(card, checkpoint, cache.slots, timeline, **options) as machine,
        mock.patch.object(decoders, "Block", block),
    ):
        experts = WatchedExperts(cache, machine.slots, machine.records.on_host)
        experts.card = card
        decoder = Decoder(shape, checkpoint.common(torch.float32), experts, device=card)
        engine = Engine(system, decoder, machine, cache, timeline)
        engine.start()
        outputs = _generate(engine, decoder)
    cache.check_integrity()
    check_lanes(timeline.spans)
    assert tier.peak_bytes <= tier.budget_bytes
    assert not card.races
    assert not card.pinned
    for counts in engine.tally.by_phase.values():
        assert counts.hits + counts.in_flight + counts.loads + counts.host == counts.active
    return outputs, engine, timeline


@pytest.fixture(scope="module")
def resident(checkpoint) -> Output:
    return decoded(FakeCard(), checkpoint, build("gpu-only"), every_slot(checkpoint))[0]


SYSTEMS: list[tuple[str, dict[str, str], int]] = [
    ("moe-ondemand", {}, TOP_K),
    ("moe-ondemand", {"blocking_copies": "true"}, TOP_K),
    ("moe-ondemand", {"overlap": "false"}, 5),
    ("moe-ondemand", {"prefetch": "next-gate", "evict": "static", "evict.staging": "1"}, 5),
    ("smoe", {"alpha": "0"}, 5),
    ("smoe", {"alpha": "0", "assign": "host"}, 5),
    ("smoe", {"alpha": "0", "prefetch.chunks": "3", "assign": "load"}, 5),
    ("smoe", {"alpha": "0", "assign": "load", "scope": "layer"}, TOP_K * 3),
    ("fiddler", {"place": "by-id"}, 5),
    ("hybrimoe", {}, 5),
    ("flashmoe", {"evict": "lifo"}, 5),
    ("moe-infinity", {}, 5),
    ("mixtral-offloading", {}, 5),
    ("acc", {}, TOP_K),
    ("moesys", {}, 2 * EXPERTS),
    ("duoserve", {}, 5),
    (
        "ktransformers",
        {"assign.threshold": "4", "assign.update": "true", "place": "by-id"},
        EXPERTS + 3,
    ),
]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("name", "settings", "slots"), SYSTEMS)
def test_lossless_systems_write_what_the_resident_model_does(
    checkpoint, resident, name, settings, slots, late
):
    made = build(name, settings)
    assert made.lossless
    outputs, *_ = decoded(FakeCard(late), checkpoint, made, slots)
    assert_bit_identical(outputs, resident)


@pytest.mark.parametrize(("prefetch", "chunks"), DRAWN)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_decisions(checkpoint, resident, prefetch, chunks, seed):
    system = drawn(seed, prefetch, chunks, host=0.3)
    outputs, *_ = decoded(FakeCard(True, seed), checkpoint, system, 5)
    assert_bit_identical(outputs, resident)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("daop", {"route.first": "1", "place": "by-id"}),
        ("ktransformers", {"assign.threshold": "0", "assign.defer": "2", "place": "by-id"}),
    ],
)
def test_what_the_host_computes_ahead_or_late_does_not_depend_on_time(
    checkpoint, name, settings, monkeypatch
):
    """DAOP without its swaps: whether one has arrived when a layer is routed does depend on it."""
    monkeypatch.setattr(daop, "swaps", lambda view, threshold: {})
    early, *_ = decoded(FakeCard(False), checkpoint, build(name, settings), 5)
    late, *_ = decoded(FakeCard(True), checkpoint, build(name, settings), 5)
    assert_bit_identical(late, early)


def test_evicted_experts_are_written_back_before_their_slot_is_overwritten(
    checkpoint, resident, monkeypatch
):
    written, write = [], CardRecords.write_back

    def noted(self, layer, expert, slot):
        written.append((layer, (expert,)))
        write(self, layer, expert, slot)

    monkeypatch.setattr(CardRecords, "write_back", noted)
    system = build("moe-ondemand")
    type(system.evict).writes_back, before = True, type(system.evict).writes_back
    try:
        outputs, _, timeline = decoded(FakeCard(True), checkpoint, system, 5)
    finally:
        type(system.evict).writes_back = before
    assert_bit_identical(outputs, resident)
    backs = [span for span in timeline.spans if span.op.kind is OpKind.WRITE_BACK]
    assert len(backs) > 20
    assert written == [(span.op.layer, span.op.experts) for span in backs]
    assert timeline.bytes_moved(Lane.D2H) == sum(span.moved_bytes for span in backs) > 0


def test_a_layer_waits_for_its_gate_alone(checkpoint):
    """Every pass reads each gate and its tokens back; nothing else blocks the control thread."""
    card, before = FakeCard(True), {}

    class Counted(Timeline):
        def begin(self, phase: Any) -> None:
            super().begin(phase)
            before.setdefault(phase, (card.reads, card.blocked))
            before["last"] = card.reads, card.blocked

    with mock.patch(f"{__name__}.Timeline", Counted):
        decoded(card, checkpoint, build("moe-ondemand"), TOP_K)
    reads, blocked = before["last"]
    passes = len(checkpoint.shape.moe_layers) + 1
    batches = 2
    started = before["prefill"][0]
    assert reads - started == (batches * NEW_TOKENS - 1) * passes
    # Beginning the second batch ties its clock.
    assert blocked - before["prefill"][1] == batches - 1


# ----------------------------------------------------------------------------- what it would find


def unordered(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    """The streams of this name follow nothing."""
    follow = FakeCard.follow

    def forgets(self: FakeCard, which: Any, event: Any) -> None:
        if which.name != stream:
            follow(self, which, event)

    monkeypatch.setattr(FakeCard, "follow", forgets)


@pytest.mark.parametrize(
    ("stream", "name", "settings"),
    [
        ("compute", "moe-ondemand", {}),  # reads a slot whose copy has not ended
        ("copies", "moe-ondemand", {}),  # overwrites a slot that is read
        ("compute", "smoe", {"alpha": "0", "assign": "host"}),  # adds what has not come back
        ("returns", "smoe", {"alpha": "0", "assign": "host"}),  # writes where zeros are written
    ],
)
def test_a_wait_that_is_missing_is_found(checkpoint, monkeypatch, stream, name, settings):
    unordered(monkeypatch, stream)
    with pytest.raises(Race, match=stream):
        decoded(FakeCard(True), checkpoint, build(name, settings), TOP_K)


def test_without_its_detector_a_missing_wait_shows_in_the_logits(checkpoint, resident, monkeypatch):
    unordered(monkeypatch, "compute")
    monkeypatch.setattr(FakeCard, "access", lambda self, what, write: None)
    monkeypatch.setattr(f"{__name__}.check_lanes", lambda spans: None)
    monkeypatch.setattr(FakeCard, "elapsed_ns", lambda self, since, until: 0)
    outputs, *_ = decoded(FakeCard(True), checkpoint, build("moe-ondemand"), TOP_K)
    with pytest.raises(AssertionError):
        assert_bit_identical(outputs, resident)


# ----------------------------------------------------------------------------- the machine alone


@dataclass
class Slots(Client):
    """Every expert goes to the slot of its own number; ``at`` is when each arrival was told of."""

    card: FakeCard | None = None
    ends: list[bool] = field(default_factory=list)

    def slot_of(self, op: Op) -> int:
        return op.experts[0]

    def arrived(self, op: Op, start_ns: int, end_ns: int) -> None:
        super().arrived(op, start_ns, end_ns)
        (copies,) = [s for s in self.card._streams if s.name == "copies"]
        self.ends.append(not copies.waiting)


@pytest.fixture
def card() -> FakeCard:
    return FakeCard(True)


@pytest.fixture
def here(card, checkpoint) -> Iterator[CudaMachine]:
    with (
        machine_on(card, checkpoint, EXPERTS, Timeline(keep_all=True)) as m,
        torch.inference_mode(),
    ):
        yield m


def test_a_copy_has_ended_when_its_arrival_is_told_of(checkpoint, card, here):
    client, card.holds = Slots(card=card), True
    span = here.load(load_op(1, 5), client)
    computed = here.submit(ATTEND, Lane.DEVICE, (span,), lambda: here.slots[5].clone())
    assert torch.equal(computed.value, checkpoint.expert_record(1, 5, torch.float32))
    assert client.diary == []  # the card has copied it, and nobody has seen that
    assert span.end_ns is None
    assert computed.end_ns is None
    here.wait(computed)
    assert client.diary == []
    card.free_run()
    here.wait(span)
    assert client.diary == [("arrived", 5, span.start_ns, span.end_ns)]
    assert client.ends == [True]
    assert span.end_ns <= computed.start_ns
    assert computed.cause == "load"
    assert here.timeline.bytes_moved(Lane.H2D) == here.slots[0].nbytes


def test_a_cancelled_prefetch_is_not_copied(card, here):
    client, card.holds = Slots(card=card), True
    first = here.load(load_op(1, 0), client)
    here._once_launched(first)  # the loader is busy with it
    here.prefetch([load_op(1, 1), load_op(2, 2)], client)
    assert here.cancel(1) == 1
    needed = here.load(load_op(1, 3), client)
    card.free_run()
    here.wait(needed)
    here.wait(first)
    with here._changed:
        assert here._changed.wait_for(lambda: client.about(2)[1:], WAIT_S)
    assert client.about(1) == []
    assert [expert for what, expert, *_ in client.diary if what == "arrived"] == [0, 3, 2]


def test_whoever_sees_an_output_launched_can_take_its_end(here, monkeypatch):
    """Else the control thread, if it came between, would wait for an end that nobody takes."""
    launch, takeable = here._launch, []

    def launched(span: Span, *rest: Any) -> None:
        with here.lock:
            launch(span, *rest)
            takeable.append(span in here._returning)

    monkeypatch.setattr(here, "_launch", launched)
    here.wait(here.submit(Op(OpKind.RETURN, 1, (1,), (0,)), Lane.D2H))
    assert takeable == [True]


@pytest.mark.parametrize("where", ["loader", "host"])
def test_a_mistake_in_a_thread_is_raised_where_the_run_waits(card, here, where):
    def mistake(*_: object) -> Any:
        raise ZeroDivisionError("a mistake of ours")

    if where == "loader":
        client = Slots(card=card, claimed=mistake)
        here.prefetch([load_op(1, 0)], client)
        here._threads[0].join(WAIT_S)
        waits_for = here.load(load_op(1, 4), client)
    else:
        expert = Op(OpKind.EXPERT, 1, (1,), (0,))
        here.submit(expert, Lane.HOST, (), mistake)
        waits_for = here.submit(Op(OpKind.RETURN, 1, (1,), (0,)), Lane.D2H)
    with pytest.raises(ZeroDivisionError):
        here.wait(waits_for)
    with pytest.raises(ZeroDivisionError):
        here.submit(ATTEND, Lane.DEVICE, (waits_for,))


def test_an_interrupt_leaves_no_thread(checkpoint, card):
    m = None

    def interrupted() -> None:
        nonlocal m
        with machine_on(card, checkpoint, 3, Timeline()) as m:
            m.load(load_op(1, 0), Slots(card=card))
            m.prefetch([load_op(1, 1), load_op(1, 2)], Slots(card=card))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not any(thread.is_alive() for thread in m._threads)


def test_a_full_card_is_one_line(checkpoint, card):
    with (
        pytest.raises(BudgetError, match="the memory of Fake Card that this run may use is full"),
        machine_on(card, checkpoint, 3, Timeline()) as m,
    ):
        m.submit(ATTEND, Lane.DEVICE, (), mock.Mock(side_effect=torch.cuda.OutOfMemoryError))
    assert not any(thread.is_alive() for thread in m._threads)


# ----------------------------------------------------------------------------- CUDA itself


def torch_cuda(**answers: Any) -> SimpleNamespace:
    found = {"is_available": lambda: True, "get_device_name": lambda: "Card X"}
    return SimpleNamespace(**found, default_stream=lambda: "default", **answers)


def test_without_cuda_one_line_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(accelerator, "_cuda", SimpleNamespace(is_available=lambda: False))
    with pytest.raises(UsageError, match=r"--device cuda: .*; give --device cpu"):
        Cuda()


def test_memory_that_cannot_be_pinned_is_one_line(monkeypatch):
    calls = []

    def register(*arguments: int) -> int:
        calls.append(arguments)
        return 2

    cudart = SimpleNamespace(cudaHostRegister=register)
    monkeypatch.setattr(accelerator, "_cuda", torch_cuda(cudart=lambda: cudart))
    memory = torch.zeros(4096, dtype=torch.uint8)
    with pytest.raises(BudgetError, match="--set pinned_copies=false"):
        Cuda().pin(memory)
    assert calls == [(memory.data_ptr(), 4096, 0)]


def test_a_limit_is_a_share_of_the_card(monkeypatch):
    shares: list[float] = []
    known = torch_cuda(mem_get_info=lambda: (60, 80), set_per_process_memory_fraction=shares.append)
    monkeypatch.setattr(accelerator, "_cuda", known)
    Cuda().limit(20)
    Cuda().limit(100)
    assert shares == [0.25, 1.0]


@pytest.mark.parametrize(
    ("built", "why"), [(None, "this torch is built without CUDA"), ("13.0", "torch finds no card")]
)
def test_without_a_card_the_reason_is_said(built, why, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    with pytest.raises(UsageError, match=f"^--device cuda: {why}; give --device cpu"):
        Cuda()

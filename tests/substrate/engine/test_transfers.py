"""Transfers on a machine by hand: slots, evictions, who waits for what, and what policies hear."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.engine.policies import Eviction, Placement
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.memory.capacity import Home
from moebench.substrate.memory.tier import Tier
from moebench.substrate.models.shape import ModelShape
from tests.substrate.engine.fakes import RECORD_BYTES, host_memory, small_shape

#: Three layers of four experts: key 4 is expert 0 of layer 1; the second form begins at key 12.
SHAPE = small_shape(layers=3, experts=4, top_k=2)


@dataclass(kw_only=True)
class Lowest(Eviction):
    """Evicts the lowest allowed key; notes what it hears, and for which purpose.

    Attributes:
        allowed: what it could evict, whenever it was asked.
    """

    takes_forms = True

    diary: list[tuple[str, int, str]] = field(default_factory=list)
    allowed: list[list[int]] = field(default_factory=list)
    refuses: bool = False
    growing: bool = True

    def placed(self, key: int) -> None:
        self.diary.append(("placed", key, self.purpose))

    def arrived(self, key: int) -> None:
        self.diary.append(("arrived", key, self.purpose))

    def left(self, key: int) -> None:
        self.diary.append(("left", key, self.purpose))

    def grows(self, incoming: int) -> bool:
        return self.growing

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        found = np.flatnonzero(allowed).tolist()
        self.allowed.append(found)
        return None if self.refuses or not found else found[0]

    def heard(self, what: str) -> list[int]:
        return [key for one, key, _ in self.diary if one == what]


@dataclass(kw_only=True)
class Placed(Placement):
    """Places given experts; notes what it is asked."""

    experts: Sequence[tuple[int, int]] = ()
    on_host: Sequence[tuple[int, int]] = ()
    asked: list[Any] = field(default_factory=list)

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        self.asked.append((shape, slots, scope))
        return self.experts

    def keep_on_host(self, shape: ModelShape, records: int) -> Iterable[tuple[int, int]]:
        self.asked.append((shape, records))
        return self.on_host


class ByHand:
    """A machine whose transfers end when a test says so, or when they are waited for."""

    def __init__(self, host_records: int | None) -> None:
        self.host_memory = host_memory(host_records)
        self.lock = threading.RLock()
        self.ns = 0
        self.loads: list[tuple[Op, tuple[Span, ...]]] = []
        self.prefetched: list[Any] = []
        self.submitted: list[Any] = []
        self.uploaded: list[Any] = []
        self.copied: list[tuple[int, int, int]] = []
        self.waited: list[Span] = []
        self.finished: list[Op] = []
        self.backs: list[Any] = []
        self.backlogs: list[Lane] = []
        self.backlog = 0
        self.transfers: Transfers

    def now_ns(self) -> int:
        return self.ns

    def load(self, op: Op, client: Transfers, after: tuple[Span, ...] = ()) -> Span:
        self.loads.append((op, tuple(after)))
        span = Span(op, Lane.H2D)
        client.under_way(op, span)
        return span

    def end(self, span: Span, start_ns: int, end_ns: int) -> None:
        span.start_ns, span.end_ns = start_ns, end_ns
        if span.op.kind is OpKind.LOAD:
            self.transfers.arrived(span.op, start_ns, end_ns)

    def wait(self, span: Span) -> None:
        self.waited.append(span)
        if span.end_ns is None:
            self.end(span, self.ns, self.ns + 10)
        assert span.end_ns is not None
        self.ns = max(self.ns, span.end_ns)

    def submit(self, op: Op, lane: Lane, after: Sequence[Span] = ()) -> Span:
        span = Span(op, lane)
        self.submitted.append((op.kind, op.layer, op.experts, lane, [*after]))
        return span

    def prefetch(
        self, ops: Iterable[Op], client: object, chunks: int, since: Sequence[int]
    ) -> None:
        asked = [(op.layer, op.experts[0], op.form) for op in ops]
        self.prefetched.append((asked, chunks, [*since]))

    def upload(self, op: Op, client: Transfers, after: Sequence[Span]) -> None:
        self.uploaded.append((op.layer, op.experts[0], op.form, [*after]))

    def finish(self, op: Op) -> None:
        self.finished.append(op)
        span = Span(op, Lane.H2D)
        self.transfers.under_way(op, span)
        self.end(span, self.ns, self.ns + 3)

    def write_back(self, layer: int, expert: int, slot: int, since_ns: int, form: int = 0) -> Span:
        span = Span(Op(OpKind.WRITE_BACK, layer, (), (expert,)), Lane.D2H, since_ns, since_ns + 7)
        self.backs.append((layer, expert, slot, since_ns, form))
        return span

    def backlog_ns(self, lane: Lane) -> int:
        self.backlogs.append(lane)
        return self.backlog

    def copy_record(self, layer: int, expert: int, slot: int) -> None:
        self.copied.append((layer, expert, slot))


@dataclass
class Rig:
    machine: ByHand
    evict: Lowest
    cache: ExpertCache
    transfers: Transfers
    timeline: Timeline

    def loaded(self) -> list[tuple[int, int, int]]:
        return [(op.layer, op.experts[0], op.form) for op, _ in self.machine.loads]

    def held(self) -> list[int]:
        return np.flatnonzero(self.cache.held_all).tolist()

    def here(self, *keys: int) -> None:
        """Put experts into slots: complete, idle, and unknown to the machine."""
        for key in keys:
            self.cache.claim(key, None)
            self.cache.arrive(key, 0)
            self.transfers._holding += 1

    def computes(self, key: int, end_ns: int | None, loaded: bool = True) -> Span:
        """Submit the computation of an expert that its layer has chosen."""
        layer, expert = self.cache.expert_of(key)
        span = Span(Op(OpKind.EXPERT, layer, (1,), (expert,)), Lane.DEVICE, 0, end_ns)
        self.cache.pin([key])
        self.transfers.computed([span])
        return span


def made(
    slots: int = 2, *, forms: int = 1, host_records: int | None = None, homes: Sequence[Home] = (),
    from_disk: bool = False, scope: Scope = "global", **policy: Any,
) -> Rig:  # fmt: skip
    machine, evict = ByHand(host_records), Lowest(**policy)
    more = [(slots, RECORD_BYTES)] * (forms - 1)
    tier = Tier("device", slots * forms * RECORD_BYTES)
    cache = ExpertCache(SHAPE, slots, scope, tier, RECORD_BYTES, more)
    timeline = Timeline(keep_all=True)
    transfers = Transfers(
        evict, machine, cache, timeline, homes, from_disk,  # type: ignore[arg-type]
    )  # fmt: skip
    machine.transfers = transfers
    return Rig(machine, evict, cache, transfers, timeline)


def fetches(*experts: int, layer: int = 0, **of: Any) -> list[Fetch]:
    return [Fetch(layer, expert, **of) for expert in experts]


# ----------------------------------------------------------------------------- before the run


def test_a_start_places_experts_without_a_transfer() -> None:
    rig = made(slots=4, scope="global")
    placement = Placed(experts=[(1, 0), (2, 3)])
    assert rig.transfers.start(placement, reserve=1) == 2
    assert placement.asked == [(SHAPE, 3, "global")]
    assert rig.evict.diary == [("placed", 4, "needed"), ("placed", 11, "needed")]
    assert rig.machine.loads == []
    slots = [rig.cache.slot_of(key) for key in (4, 11)]
    assert rig.machine.copied == [(1, 0, slots[0]), (2, 3, slots[1])]
    assert rig.cache.is_complete(4, 0)
    assert made().transfers.start(Placed(), reserve=0) == 0


def test_a_start_keeps_experts_in_host_memory_first() -> None:
    rig = made(slots=2, host_records=6)
    memory = rig.machine.host_memory
    assert memory is not None
    placement = Placed(experts=[(0, 1)], on_host=[(2, 2)])
    rig.transfers.start(placement, reserve=0)
    assert placement.asked == [(SHAPE, memory.spare), (SHAPE, 2, "global")]
    assert memory.holds(Op(OpKind.LOAD, 2, (), (2,)))
    assert not memory.holds(Op(OpKind.LOAD, 0, (), (1,)))


# ----------------------------------------------------------------------------- needed loads


def test_a_demand_loads_in_order_until_no_slot_can_be_claimed() -> None:
    rig = made(slots=2)
    spans = rig.transfers.demand(fetches(3, 1, 2, layer=1))
    assert [*spans] == [3, 1]
    assert rig.loaded() == [(1, 3, 0), (1, 1, 0)]
    assert rig.held() == [5, 7]
    assert rig.evict.diary == [("arrived", 7, "needed"), ("arrived", 5, "needed")]
    rig.machine.end(spans[3], 5, 45)
    rig.machine.end(spans[1], 45, 85)
    assert [*rig.timeline.costs.load_ns] == [40, 40]
    # The lowest key is evicted once it is complete: at 45 only expert 3 is.
    rig.machine.ns = 45
    (span,) = rig.transfers.demand(fetches(2)).values()
    assert rig.evict.allowed[-1] == [7]
    assert rig.evict.diary[-2:] == [("left", 7, "needed"), ("arrived", 2, "needed")]
    assert rig.transfers.arrival(1, 1) is spans[1]
    assert span.op.experts == (2,)


def test_an_eviction_is_noted_at_its_instant() -> None:
    rig = made(slots=2)
    rig.here(4, 11)
    rig.machine.ns = 30
    rig.transfers.demand(fetches(0))
    (note,) = rig.timeline.records()
    assert (note["kind"], note["layer"], note["experts"]) == ("evict", 1, [0])
    assert rig.machine.loads[0][1] == ()


def test_an_evicted_expert_is_copied_back_before_its_slot_is_used() -> None:
    rig = made(slots=2)
    rig.evict.writes_back = True
    rig.here(4, 11)
    rig.machine.ns = 30
    slot = rig.cache.slot_of(4)
    rig.transfers.demand(fetches(0))
    assert rig.machine.backs == [(1, 0, slot, 30, 0)]
    (_, (back,)) = rig.machine.loads[0]
    assert back.op.kind is OpKind.WRITE_BACK


def test_a_named_expert_is_replaced_if_it_is_idle() -> None:
    rig = made(slots=3)
    rig.here(0, 1, 6)
    assert rig.transfers.demand([Fetch(0, 2, instead_of=1)])
    assert rig.held() == [0, 2, 6]
    assert rig.evict.allowed == [], "the policy is not asked"
    rig.cache.pin([0])
    assert rig.transfers.demand([Fetch(0, 3, instead_of=0)]) == {}
    # A name without a slot leaves the choice to the policy.
    assert rig.transfers.demand([Fetch(0, 3, instead_of=1)])
    assert rig.held() == [0, 2, 3]


def test_a_policy_that_does_not_grow_evicts_though_slots_are_free() -> None:
    rig = made(slots=3, growing=False)
    rig.here(5)
    rig.transfers.demand(fetches(0))
    assert rig.held() == [0]
    assert rig.evict.heard("left") == [5]
    # If nothing can be evicted, a free slot is taken all the same.
    rig.transfers.demand(fetches(1))
    assert rig.held() == [0, 1]


def test_records_of_another_form_have_keys_of_their_own() -> None:
    rig = made(slots=2, forms=2)
    (span,) = rig.transfers.demand(fetches(1, layer=2, form=1)).values()
    assert rig.held() == [12 + 9]
    assert rig.loaded() == [(2, 1, 1)]
    assert rig.transfers.arrival(2, 1, 1) is rig.transfers._arrivals[21]
    rig.machine.end(span, 0, 40)
    assert rig.cache.is_complete(21, 40)
    assert not rig.cache.is_complete(21, 39)
    assert rig.transfers.again(2, 1, 1).op.form == 1
    with pytest.raises(UsageError, match="form"):
        rig.transfers.demand(fetches(0, form=2))


# ----------------------------------------------------------------------------- slots for one use


def test_experts_that_stay_leave_slots_to_those_that_pass() -> None:
    rig = made(slots=4)
    rig.evict.transient = 1
    rig.transfers.start(Placed(experts=[(1, 0), (1, 1)]), reserve=0)
    rig.transfers.demand(fetches(0))
    assert rig.evict.heard("left") == [], "two of three slots were taken"
    rig.transfers.demand(fetches(1))
    assert rig.evict.heard("left") == [4], "the fourth is for one use"
    rig.transfers.demand(fetches(2, keep=False))
    assert rig.evict.heard("left") == [4]
    assert rig.evict.heard("arrived") == [0, 1], "of what passes the policy hears nothing"
    # Of four held experts one passes: three stay, as many as may.
    rig.transfers.demand(fetches(3, layer=2))
    assert rig.evict.heard("left") == [4, 5]


def test_an_expert_that_passes_frees_its_slot_when_it_was_computed() -> None:
    rig = made(slots=3)
    rig.evict.transient = 1
    rig.transfers.start(Placed(experts=[(1, 0), (1, 1)]), reserve=0)
    (span,) = rig.transfers.demand(fetches(2, keep=False)).values()
    rig.machine.end(span, 0, 40)
    rig.computes(2, 50)
    assert rig.held() == [4, 5]
    assert rig.transfers._holding == 2
    rig.machine.ns = 49
    assert rig.cache.has_free_slot(0, 49) is False
    assert rig.cache.has_free_slot(0, 50) is True
    # Its slot is for the next one that passes: two stay already.
    rig.machine.ns = 50
    rig.transfers.demand(fetches(3))
    assert rig.evict.heard("left") == [4]


def test_an_expert_that_arrives_after_its_use_was_submitted_is_let_go_then() -> None:
    rig = made(slots=2)
    (span,) = rig.transfers.demand(fetches(2, keep=False)).values()
    rig.computes(2, None)
    assert rig.held() == [2]
    rig.transfers.layer_ends([2])
    rig.machine.end(span, 0, 40)
    assert rig.held() == []
    assert rig.transfers._passing == set()
    assert rig.transfers._holding == 0


def test_an_expert_that_was_not_used_is_dropped_at_the_end_of_its_layer() -> None:
    rig = made(slots=4)
    here, late, other = (
        span for layer, expert in ((1, 0), (1, 1), (2, 0))
        for span in rig.transfers.demand(fetches(expert, layer=layer, keep=False)).values()
    )  # fmt: skip
    rig.machine.end(here, 0, 40)
    rig.machine.end(other, 0, 40)
    rig.transfers.drop_unused(1)
    assert rig.held() == [5, 8], "one has not come, and one is of another layer"
    assert rig.transfers._holding == 2
    rig.machine.end(late, 40, 80)
    assert rig.held() == [8]
    # The slot is free when the transfer has ended.
    assert [last_use.end_ns for _, _, last_use in rig.cache._draining] == [40, 80]


def test_an_unused_expert_that_the_next_pass_has_chosen_stays() -> None:
    rig = made(slots=2)
    (span,) = rig.transfers.demand(fetches(1, layer=1, keep=False)).values()
    rig.transfers.drop_unused(1)
    rig.cache.pin([5])
    rig.machine.end(span, 0, 40)
    assert rig.held() == [5]


def test_a_passing_expert_is_evicted_unheard() -> None:
    rig = made(slots=2)
    (span, _) = rig.transfers.demand(fetches(0, 1, keep=False)).values()
    rig.machine.end(span, 0, 40)
    rig.machine.ns = 40
    rig.transfers.demand(fetches(2))
    assert rig.held() == [1, 2]
    assert rig.evict.diary == [("arrived", 2, "needed")]
    assert rig.transfers._passing == {1}


# ----------------------------------------------------------------------------- waiting for a slot


def test_a_needed_load_takes_the_slot_of_a_submitted_computation() -> None:
    rig = made(slots=2)
    rig.here(4, 5)
    late, early = rig.computes(4, 90), rig.computes(5, 60)
    rig.machine.ns, rig.machine.backlog = 20, 45
    span = rig.transfers.demand_when_free(Fetch(2, 0), purpose="committed")
    assert span is not None
    # At 65, when the link is idle, expert 1 is: the policy is asked about that one alone.
    assert rig.evict.allowed[-1] == [5]
    assert rig.machine.loads[-1] == (span.op, (early,))
    assert rig.machine.waited == []
    assert rig.evict.diary == [("left", 5, "committed"), ("arrived", 8, "committed")]
    assert rig.evict.purpose == "needed"
    assert rig.machine.backlogs == [Lane.H2D]
    (note,) = rig.timeline.records()
    assert (note["kind"], note["layer"], note["experts"]) == ("evict", 1, [1])
    assert rig.transfers._timeline is rig.timeline
    assert late.end_ns == 90


def test_experts_that_would_delay_it_are_evicted_if_there_is_no_other() -> None:
    rig = made(slots=2)
    rig.here(4, 5)
    late, _ = rig.computes(4, 90), rig.computes(5, 80)
    rig.machine.ns, rig.machine.backlog = 20, 45
    rig.transfers.demand_when_free(Fetch(2, 0))
    assert rig.evict.allowed[-1] == [4, 5]
    assert rig.machine.loads[-1][1] == (late,)


def test_a_record_on_the_disk_waits_for_the_disks_lane() -> None:
    rig = made(slots=2, host_records=4)
    rig.here(4, 5)
    rig.computes(4, 90)
    rig.computes(5, 60)
    rig.transfers.demand_when_free(Fetch(2, 0))
    assert rig.machine.backlogs == [Lane.DISK]
    memory = rig.machine.host_memory
    assert memory is not None
    memory.place(Op(OpKind.LOAD, 2, (), (1,)))
    rig.transfers.demand_when_free(Fetch(2, 1))
    assert rig.machine.backlogs[-1] is Lane.H2D


def test_a_named_expert_is_waited_for() -> None:
    rig = made(slots=2)
    rig.here(0, 5)
    reader = rig.computes(0, 90)
    span = rig.transfers.demand_when_free(Fetch(0, 2, instead_of=0))
    assert span is not None
    assert rig.machine.loads[-1][1] == (reader,)
    assert rig.held() == [2, 5]
    assert rig.evict.allowed == []


def test_a_slot_that_is_still_in_use_is_awaited_before_an_eviction() -> None:
    rig = made(slots=2)
    rig.here(4)
    (span,) = rig.transfers.demand(fetches(2, keep=False)).values()
    rig.machine.end(span, 0, 40)
    rig.cache.pin([4])
    last_use = rig.computes(2, 70)
    rig.machine.ns = 50
    rig.transfers.demand_when_free(Fetch(2, 1))
    assert rig.machine.loads[-1][1] == (last_use,)
    assert rig.held() == [4, 9]


def test_experts_that_pass_are_evicted_last() -> None:
    rig = made(slots=2, refuses=True)
    rig.here(4)
    (span,) = rig.transfers.demand(fetches(2, keep=False)).values()
    rig.machine.end(span, 0, 40)
    rig.machine.ns = 50
    assert rig.transfers.demand_when_free(Fetch(2, 1)) is not None
    assert rig.held() == [4, 9]
    assert rig.evict.heard("left") == []


def test_the_control_thread_waits_for_an_expert_in_flight() -> None:
    rig = made(slots=2)
    first, second = rig.transfers.demand(fetches(0, 1)).values()
    rig.machine.ns = 5
    assert rig.transfers.demand_when_free(Fetch(1, 0), waits=False) is None
    assert rig.machine.waited == []
    found = rig.transfers.demand_when_free(Fetch(1, 0))
    assert found is not None
    assert rig.machine.finished == [first.op], "the first of both is finished before others"
    assert [span.op for span in rig.machine.waited][:1] == [first.op]
    assert second.end_ns is None


def test_an_expert_that_has_a_slot_already_is_not_loaded_again() -> None:
    rig = made(slots=2)
    span = rig.transfers.demand(fetches(0))[0]
    rig.machine.end(span, 0, 40)
    assert rig.transfers.demand_when_free(Fetch(0, 0)) is span
    assert len(rig.machine.loads) == 1


def test_without_an_expert_to_evict_the_run_ends_in_one_line() -> None:
    rig = made(slots=2, refuses=True)
    rig.here(4, 5)
    with pytest.raises(UsageError, match=r"^Lowest finds no expert to evict for one that layer 2 "
                                         r"must load; swap it: --set evict=lru$"):  # fmt: skip
        rig.transfers.demand_when_free(Fetch(2, 1))
    assert rig.evict.purpose == "needed"


# ----------------------------------------------------------------------------- prefetches


def test_a_request_asks_for_absent_experts_in_its_order() -> None:
    rig = made(slots=2)
    rig.here(5)
    rig.transfers.speculate(fetches(3, 1, 0, layer=1), chunks=4)
    assert rig.machine.prefetched == [([(1, 3, 0), (1, 0, 0)], 4, [])]
    rig.transfers.speculate([])
    assert rig.machine.prefetched[-1] == ([], 1, [])


def test_only_new_fetches_wait_for_their_prediction() -> None:
    rig = made(slots=2)
    rig.here(5)
    rig.machine.ns = 10
    rig.transfers.speculate(fetches(0, layer=1), since_ns=10)
    assert rig.machine.prefetched[-1] == ([(1, 0, 0)], 1, []), "it is there already"
    rig.transfers.speculate(fetches(0, 1, 2, layer=1), since_ns=30)
    assert rig.machine.prefetched[-1] == ([(1, 0, 0), (1, 2, 0)], 1, [0, 30])
    # Expert 2 still waits for the earlier prediction, expert 3 for this one.
    rig.transfers.speculate(fetches(2, 3, layer=1), since_ns=50)
    assert rig.machine.prefetched[-1] == ([(1, 2, 0), (1, 3, 0)], 1, [30, 50])
    rig.machine.ns = 60
    rig.transfers.speculate(fetches(2, 3, layer=1), since_ns=60)
    assert rig.machine.prefetched[-1] == ([(1, 2, 0), (1, 3, 0)], 1, [30, 50])
    rig.transfers.speculate(fetches(2, 3, layer=1))
    assert rig.machine.prefetched[-1] == ([(1, 2, 0), (1, 3, 0)], 1, []), "nothing is awaited"


def test_a_request_in_forms_is_of_records_in_their_form() -> None:
    rig = made(slots=2, forms=2)
    rig.here(12 + 1)
    rig.transfers.speculate([Fetch(0, 1), Fetch(0, 1, form=1), Fetch(0, 2, form=1)])
    assert rig.machine.prefetched == [([(0, 1, 0), (0, 2, 1)], 1, [])]
    op = Op(OpKind.LOAD, 0, (), (2,), form=1)
    assert rig.transfers.claim(op, 0) == ()
    assert rig.cache.holds(12 + 2)
    with pytest.raises(UsageError, match="form"):
        rig.transfers.speculate([Fetch(0, 1, form=2)])


def test_common_weights_are_not_fetched_speculatively() -> None:
    rig = made()
    with pytest.raises(UsageError, match=r'must name an expert; .* is "committed"$'):
        rig.transfers.speculate([Fetch(0, 1), Fetch(1, None)])
    with pytest.raises(TypeError):
        rig.transfers.speculate([Fetch(0, "1")])  # type: ignore[arg-type]


def test_a_prefetch_claims_its_slot_when_it_begins() -> None:
    rig = made(slots=2)
    rig.here(5, 8)
    rig.transfers.speculate(fetches(2, layer=1))
    assert rig.held() == [5, 8]
    op = Op(OpKind.LOAD, 1, (), (2,))
    assert rig.transfers.claim(op, 0) == ()
    assert rig.held() == [6, 8]
    assert rig.evict.diary == [("left", 5, "speculative"), ("arrived", 6, "speculative")]
    assert rig.evict.purpose == "needed"
    assert rig.transfers.claim(op, 0) is None, "it has a slot"
    assert rig.transfers.take_started(1) == [2]
    assert rig.transfers.take_started(1) == []
    span = Span(op, Lane.H2D, 0, 40)
    rig.transfers.under_way(op, span)
    rig.transfers.arrived(op, 0, 40)
    assert [*rig.timeline.costs.load_ns] == [], "it is no needed load"
    rig.transfers.arrived(op, 0, 40)
    assert [*rig.timeline.costs.load_ns] == [40], "a later load of it is"
    assert rig.transfers.arrival(1, 2) is span
    assert rig.transfers.slot_of(op) == rig.cache.slot_of(6)


def test_experts_of_one_request_do_not_evict_each_other() -> None:
    rig = made(slots=3)
    rig.here(5, 6, 8)
    rig.transfers.speculate(fetches(0, 1, 2, layer=1))
    assert rig.transfers.claim(Op(OpKind.LOAD, 1, (), (0,)), 0) == ()
    assert rig.evict.allowed == [[5, 6, 8], [8]]
    assert rig.held() == [4, 5, 6]
    rig.transfers.speculate(fetches(0, 1, 2, 3, layer=1))
    assert rig.transfers.claim(Op(OpKind.LOAD, 1, (), (3,)), 0) is None
    assert rig.held() == [4, 5, 6]
    assert rig.transfers.take_started(1) == [0]


def test_an_earlier_transfer_of_an_expert_is_forgotten_when_it_is_fetched_again() -> None:
    """Its arrival then has no span yet: the machine is asked to finish the new one."""
    rig = made(slots=2)
    first = rig.transfers.demand(fetches(0, layer=1))[0]
    rig.machine.end(first, 0, 40)
    rig.machine.ns = 40
    rig.here(8)
    rig.transfers.demand(fetches(0))  # evicts it: 4 is the lowest of 4 and 8
    assert not rig.cache.holds(4)
    rig.transfers.speculate(fetches(0, layer=1))
    op = Op(OpKind.LOAD, 1, (), (0,))
    assert rig.transfers.claim(op, 50) == ()
    assert rig.transfers.arrival(1, 0) is not first
    assert rig.machine.finished == [op]


# ----------------------------------------------------------------------------- committed


def test_committed_fetches_stream_common_weights_and_load_what_is_absent() -> None:
    rig = made(slots=3, homes=("stream", "stream", "device"))
    rig.here(5)
    rig.transfers.commit([Fetch(1, None), Fetch(1, 1), Fetch(1, 2), Fetch(2, None)])
    assert rig.machine.submitted == [(OpKind.STREAM, 1, (), Lane.H2D, [])]
    assert rig.loaded() == [(1, 2, 0)]
    assert rig.evict.diary == [("arrived", 6, "committed")]
    assert rig.transfers.take_started(1) == [2]
    assert rig.transfers.take_started(2) == []
    rig.transfers.commit([Fetch(1, None)])
    assert len(rig.machine.submitted) == 1, "it is on its way"
    assert rig.transfers.absent([Fetch(1, None), Fetch(0, None), Fetch(1, 2), Fetch(1, 3)]) == [
        Fetch(0, None), Fetch(1, 3)
    ]  # fmt: skip


def test_a_layers_common_weights_are_transferred_once_a_pass() -> None:
    rig = made(homes=("stream",) * 3)
    rig.transfers.commit([Fetch(1, None)])
    span = rig.transfers._streams[1]
    assert rig.transfers.common(1) is span
    assert rig.transfers.common(1) is not span
    assert len(rig.machine.submitted) == 2


def test_streamed_weights_come_from_the_disk_first() -> None:
    rig = made(from_disk=True)
    span = rig.transfers.common(-1)
    (kind, layer, _, lane, after), (_, _, _, second, (read,)) = rig.machine.submitted
    assert (kind, layer, lane, after) == (OpKind.STREAM, -1, Lane.DISK, [])
    assert (second, read.lane, span.lane) == (Lane.H2D, Lane.DISK, Lane.H2D)


def test_an_expert_is_sent_back_and_its_slot_is_free_once_it_is_there() -> None:
    rig = made(slots=3)
    rig.here(4, 5)
    rig.transfers.demand(fetches(0))
    rig.machine.ns = 20
    slot = rig.cache.slot_of(5)
    # One has no slot, and one has not come.
    rig.transfers.send_back([(2, 0), (1, 1), (0, 0)])
    assert rig.machine.backs == [(1, 1, slot, 20, 0)]
    assert [span.op.kind for span in rig.machine.waited] == [OpKind.WRITE_BACK]
    assert rig.held() == [0, 4]
    assert rig.evict.heard("left") == [5]
    assert rig.transfers._holding == 2
    assert rig.cache.has_free_slot(9, 26) is False
    assert rig.cache.has_free_slot(9, 27) is True
    passing = made(slots=2)
    (span,) = passing.transfers.demand(fetches(1, keep=False)).values()
    passing.machine.end(span, 0, 40)
    passing.transfers.send_back([(0, 1)])
    assert passing.machine.backs == [], "it is not kept"


def test_a_transfer_in_pages_brings_the_experts_that_get_a_slot() -> None:
    rig = made(slots=3)
    rig.here(4)
    reader = rig.computes(4, 30)
    claimed, after = rig.transfers.claim_pages(fetches(0, 1, 2, 3, layer=2))
    assert claimed == fetches(0, 1, 2, layer=2)
    assert after == (reader,), "the third takes the slot of one that is computed"
    assert rig.evict.diary[0] == ("arrived", 8, "committed")
    assert rig.transfers.take_started(2) == [0, 1, 2]
    first, last = (Span(Op(OpKind.PAGE, 2), Lane.H2D, at, at + 50) for at in (30, 80))
    rig.transfers.pages_arrive(claimed, first, last)
    for key in (8, 9, 10):
        assert not rig.cache.is_complete(key, 129)
        assert rig.cache.is_complete(key, 130)
    assert rig.transfers.arrival(2, 1) is last
    assert [*rig.timeline.costs.load_ns] == [], "no needed load"


# ----------------------------------------------------------------------------- uploads


def test_uploads_take_slots_at_once_and_are_heard_of_when_they_are_complete() -> None:
    rig = made(slots=3)
    rig.here(5)
    assert rig.transfers.upload(fetches(0, 1, 2, layer=1), queue=None) == 2
    assert rig.machine.uploaded == [(1, 0, 0, []), (1, 2, 0, [])], "expert 1 has a slot"
    assert rig.held() == [4, 5, 6]
    assert rig.evict.heard("arrived") == []
    assert rig.transfers.pending == 2
    assert rig.transfers.queued_uploads() == [4, 6]
    rig.transfers.arrived(Op(OpKind.LOAD, 1, (), (0,)), 0, 40)
    assert rig.transfers.queued_uploads() == [6]
    rig.machine.ns = 39
    assert (rig.transfers.pending, rig.transfers.take_uploaded()) == (2, [])
    rig.machine.ns = 40
    assert rig.transfers.pending == 1
    assert rig.transfers.take_uploaded() == [4]
    assert rig.evict.diary == [("arrived", 4, "upload")]
    assert rig.evict.purpose == "needed"
    assert [*rig.timeline.costs.load_ns] == []
    assert rig.transfers.take_uploaded() == []


def test_uploads_beyond_the_queue_are_refused() -> None:
    rig = made(slots=4)
    assert rig.transfers.upload(fetches(0, 1, 2), queue=2) == 2
    assert rig.held() == [0, 1]
    assert rig.transfers.upload(fetches(2), queue=2) == 0
    assert rig.transfers.upload(fetches(2), queue=3) == 1
    assert rig.transfers.upload(fetches(3), queue=0) == 0


def test_an_upload_is_refused_where_nothing_can_be_evicted() -> None:
    rig = made(slots=2)
    rig.transfers.demand(fetches(0, 1))
    assert rig.transfers.upload(fetches(2, 3), queue=None) == 0
    assert rig.transfers.pending == 0
    assert rig.machine.uploaded == []
    assert rig.evict.heard("arrived") == [0, 1]
    with pytest.raises(UsageError, match="an upload of expert 3 in layer 1 has keep=False"):
        rig.transfers.upload(fetches(3, layer=1, keep=False), queue=None)


def test_an_upload_that_is_evicted_before_it_was_heard_of_leaves_unheard() -> None:
    rig = made(slots=2)
    assert rig.transfers.upload(fetches(0), queue=None) == 1
    rig.here(8)
    rig.transfers.arrived(Op(OpKind.LOAD, 0, (), (0,)), 0, 40)
    rig.machine.ns = 40
    rig.transfers.demand(fetches(1))
    assert rig.held() == [1, 8]
    assert rig.evict.diary == [("arrived", 1, "needed")]
    assert rig.transfers.take_uploaded() == []


def test_an_upload_is_claimed_for_its_purpose() -> None:
    rig = made(slots=2)
    rig.here(4, 5)
    assert rig.transfers.upload(fetches(0), queue=None) == 1
    assert rig.evict.diary == [("left", 4, "upload")]
    assert rig.evict.purpose == "needed"


@pytest.mark.parametrize("how", ["pages", "upload"])
def test_an_earlier_arrival_is_not_that_of_a_later_transfer(how: str) -> None:
    """Expert 0 came once and was evicted: its pages, or its upload, are waited for anew."""
    rig = made(slots=2)
    first = rig.transfers.demand(fetches(0))[0]
    rig.machine.end(first, 0, 40)
    rig.machine.ns = 40
    rig.here(8)
    rig.transfers.demand(fetches(1))
    assert not rig.cache.holds(0)
    if how == "pages":
        assert rig.transfers.claim_pages(fetches(0))[0] == fetches(0)
    else:
        assert rig.transfers.upload(fetches(0), queue=None) == 1
    assert rig.transfers.arrival(0, 0) is not first
    assert rig.machine.finished == [Op(OpKind.LOAD, 0, (), (0,))]

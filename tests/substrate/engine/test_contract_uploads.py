"""Admission: experts that the host computed are copied in the background; nobody waits for them.

Attention takes 30, a gate 3, an expert 10, the sum 2, the head 6; an expert on the host takes 55,
its return 4, a load 40 unless a test says so; control costs nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Fetch, Plan, fetches, split
from moebench.substrate.engine.policies import Admission
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.policies.admit import AfterMisses
from moebench.systems.policies.assign import HostAll, LoadAll
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.place import PlaceById
from tests.substrate.engine.fakes import FlatCosts, prices, random_trace, rig, small_shape
from tests.substrate.engine.own import Asks, Placed, Plans, evicted, model_of, of, run, system

ONE, TWO = small_shape(layers=1), small_shape(layers=2)


@dataclass(kw_only=True)
class Uploads(Admission):
    """Given uploads after a layer or a pass; keeps what it is told."""

    by: Callable[[Any, Sequence[int]], Sequence[Fetch]] = lambda view, missed: fetches(
        view.layer, missed
    )
    at_ends: Sequence[Fetch] = ()
    queue: int | None = None
    told: list[Any] = field(default_factory=list)

    def uploads(self, view, missed):
        self.told.append(list(missed))
        return self.by(view, missed)

    def pass_ends(self, phase):
        self.told.append(phase)
        return self.at_ends

    def uploaded(self, key):
        self.told.append(("uploaded", key))


@dataclass(kw_only=True)
class Diary(LeastRecentlyUsed):
    """LRU that keeps who arrived and who left, in order."""

    told: list[tuple[str, int]] = field(default_factory=list)

    def arrived(self, key):
        self.told.append(("arrived", key))
        super().arrived(key)

    def left(self, key):
        self.told.append(("left", key))
        super().left(key)


def never_waits(view, active):
    """Compute on the host whatever is not complete on the device."""
    return Plan(active.resident, [*active.in_flight, *active.absent])


def ran(admit, uses, *, load=40, assign=None, **more):
    """Runs of one row with experts 0 and 1 of layer 0 in two slots."""
    made = system(
        place=Placed(pairs=[(0, 0), (0, 1)]), admit=admit,
        assign=assign or Plans(by=never_waits), **more,
    )  # fmt: skip
    passes = [[[used]] for used in uses]
    costs = FlatCosts(prices(load=load))
    return run(made, model_of(ONE, passes), slots=2, passes=len(uses), costs=costs)


def test_a_miss_is_copied_while_the_host_computes_it_and_is_a_hit_in_the_next_pass():
    # Pass 0: gate ..33, host 33..88, return ..92, sum ..94, head ..100; the copy of 2 begins with
    # its queueing at 33 and replaces 1, the least recently used.  Pass 1: gate ..133, 2 is a hit.
    done = ran(Uploads(), [(0, 2), (2, 3)])
    assert of(done, OpKind.LOAD) == [(0, (2,), 33, 73), (0, (3,), 133, 173)]
    assert of(done, OpKind.EXPERT, Lane.HOST) == [(0, (2,), 33, 88), (0, (3,), 133, 188)]
    assert of(done, OpKind.COMBINE) == [(0, (), 92, 94), (0, (), 192, 194)]
    assert evicted(done) == [(2, 1), (3, 0)]
    assert (done.counts["decode"].hits, done.counts["decode"].host) == (1, 1)
    assert [done.counts[phase].uploaded for phase in ("prefill", "decode")] == [1, 1]


def test_the_victim_leaves_at_once_and_the_eviction_hears_of_the_newcomer_after_its_copy():
    evict, admit = Diary(), Uploads()
    # The copy takes 33..433.  2 is not there when the later gates are known, and 1, then 0, gone.
    done = ran(admit, [(0, 2), (1, 2), (0, 2)], load=400, evict=evict)
    assert of(done, OpKind.EXPERT, Lane.DEVICE) == [(0, (0,), 33, 43)]
    assert evict.told == [("arrived", 0), ("arrived", 1), ("left", 1), ("left", 0)]
    assert admit.told == [[2], "prefill", [2, 1], "decode", [2, 0], "decode"]


def test_an_upload_is_known_at_the_first_gate_after_its_end():
    evict, admit = Diary(), Uploads()
    ran(admit, [(0, 2), (0, 2)], evict=evict)
    assert evict.told[2:] == [("left", 1), ("arrived", 2)]
    assert admit.told == [[2], "prefill", ("uploaded", 2), [], "decode"]


@pytest.mark.parametrize(("queue", "queued", "refused"), [(None, 2, 0), (2, 2, 0), (1, 1, 1)])
def test_a_full_queue_refuses(queue, queued, refused):
    done = ran(Uploads(queue=queue), [(2, 3)])
    counts = done.counts["prefill"]
    assert (counts.uploaded, counts.uploads_refused) == (queued, refused)
    assert evicted(done) == [(2, 0), (3, 1)][:queued]


def test_who_has_a_slot_and_who_finds_no_victim_is_refused():
    admit = Uploads(by=lambda view, missed: fetches(0, (0, 2, 3, 1)))
    made = system(
        place=Placed(pairs=[(0, 0)]), admit=admit, assign=Plans(by=never_waits),
    )  # fmt: skip
    done = run(made, model_of(ONE, [[[(0, 1)]]]), slots=2)
    # 0 has a slot; 2 gets the free one; 3 replaces 0 once that was computed; 1 finds nobody.
    assert (done.counts["prefill"].uploaded, done.counts["prefill"].uploads_refused) == (2, 2)


def test_needed_loads_go_before_uploads_and_uploads_before_prefetches():
    # Layer 0 uploads its 2 and 3 at 33.  Layer 1's gate is known at 83 + 42 = 125 and needs 1.
    admit = Uploads(by=lambda view, missed: fetches(0, (2, 3)) if view.layer == 0 else ())
    made = system(
        place=Placed(pairs=[(0, 0), (0, 1), (1, 0)]), admit=admit,
        prefetch=Asks(wanted={0: [Fetch(1, 3)]}), assign=LoadAll(),
    )  # fmt: skip
    done = run(made, model_of(TWO, [[[(0, 1)], [(0, 1)]]]), slots=6, costs=FlatCosts(prices()))
    # Gate 1 is known at 88: 2 took the link from 33 to 73, 3 takes it to 113, then 1 is needed.
    assert of(done, OpKind.LOAD) == [(0, (2,), 33, 73), (0, (3,), 73, 113), (1, (1,), 113, 153)]


def test_a_plan_that_waits_for_an_upload_gets_it_next():
    def waits(view, active):
        return split(active, host=active.absent)  # the device computes what is in flight

    done = ran(Uploads(), [(0, 2), (0, 2)], load=400, assign=Plans(by=waits))
    assert of(done, OpKind.LOAD) == [(0, (2,), 33, 433)]
    assert of(done, OpKind.EXPERT, Lane.DEVICE)[-1] == (0, (2,), 433, 443)
    assert done.counts["decode"].in_flight == 1


def test_an_upload_that_has_not_begun_is_fetched_when_a_plan_waits_for_it():
    # The link is busy until 433 with 2; 3 is queued behind it and needed at 133.
    def waits(view, active):
        host = active.absent if view.phase == "prefill" else ()
        return split(active, host=host)

    done = ran(Uploads(), [(2, 3), (3, 2)], load=400, assign=Plans(by=waits))
    assert of(done, OpKind.LOAD) == [(0, (2,), 33, 433), (0, (3,), 433, 833)]


def test_an_upload_may_name_whom_it_replaces():
    admit = Uploads(by=lambda view, missed: [Fetch(0, e, instead_of=0) for e in missed])
    assert evicted(ran(admit, [(0, 2)])) == [(2, 0)]


def test_uploads_at_the_end_of_a_pass():
    admit = Uploads(by=lambda view, missed: (), at_ends=[Fetch(0, 3)])
    done = ran(admit, [(0, 1), (0, 3)])
    assert of(done, OpKind.LOAD) == [(0, (3,), 61, 101)]
    assert done.counts["prefill"].uploaded == 1


def test_an_upload_that_would_not_stay_is_refused_in_one_line():
    admit = Uploads(by=lambda view, missed: [Fetch(0, 2, keep=False)])
    with pytest.raises(
        UsageError, match=r"^an upload of expert 2 in layer 0 has keep=False; allow"
    ):
        ran(admit, [(0, 1)])


def test_a_loaded_expert_that_is_not_admitted_is_dropped_after_its_use():
    # 2 is loaded in every pass: it stays from its second miss on, and is a hit in the third pass.
    done = run(
        system(place=Placed(pairs=[(0, 0), (0, 1)]), admit=AfterMisses(misses=2)),
        model_of(ONE, [[[(0, 2)]]] * 3), slots=3, passes=3,
    )  # fmt: skip
    assert [experts for _, experts, *_ in of(done, OpKind.LOAD)] == [(2,), (2,)]
    everybody = run(
        system(place=Placed(pairs=[(0, 0), (0, 1)])),
        model_of(ONE, [[[(0, 2)]]] * 3), slots=3, passes=3,
    )  # fmt: skip
    assert [experts for _, experts, *_ in of(everybody, OpKind.LOAD)] == [(2,)]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**16), slots=st.integers(4, 10), misses=st.integers(1, 3),
    queue=st.sampled_from([None, 1, 2]), load=st.integers(1, 300), waits=st.booleans(),
)  # fmt: skip
def test_whatever_is_uploaded_every_expert_is_computed_once_and_slots_agree(
    seed, slots, misses, queue, load, waits
):
    shape = small_shape(layers=3, experts=5)
    trace = random_trace(seed, shape, [[3], [2, 1]], passes=5)
    admit = AfterMisses(misses=misses, full=misses + 1, queue=queue)
    assign = HostAll() if waits else Plans(by=never_waits)
    made = system(place=PlaceById(), admit=admit, assign=assign)
    done = rig(made, TracedModel(trace), slots=slots, costs=FlatCosts(prices(load=load)))
    for lengths in ([3], [2, 1]):
        done.engine.generate([[3] * n for n in lengths], 5)
        done.cache.check_integrity()
    counts = done.counts["decode"]
    assert counts.hits + counts.in_flight + counts.loads + counts.host == counts.active
    ends = [end for _, _, _, end in of(done, OpKind.LOAD)]
    assert ends == sorted(ends)

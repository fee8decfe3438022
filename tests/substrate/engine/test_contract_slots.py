"""Who leaves for whom: exchanges that a fetch names, experts that are not kept, write-backs."""

from dataclasses import dataclass

import pytest

from moebench.harness.conformance.watch import LetGo
from moebench.substrate.engine.decisions import Fetch, Plan, fetches, split
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict import LeastRecentlyUsed, NeverEvict
from moebench.systems.policies.place import PlaceById
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, prices, small_shape
from tests.substrate.engine.own import (
    Asks,
    Chunks,
    Grows,
    KeepsRoom,
    Placed,
    Plans,
    Refuses,
    WritesBack,
    evicted,
    model_of,
    of,
    run,
    system,
)

ONE = small_shape(layers=1)
TWO = small_shape(layers=2)
THREE_PLACED = Placed(pairs=[(0, 0), (0, 1), (0, 2)])


def loading(**more) -> Plans:
    """Everything absent, by id, with these options of its fetches."""
    return Plans(
        by=lambda view, active: split(active, [Fetch(view.layer, e, **more) for e in active.absent])
    )


# ----------------------------------------------------------------------------- instead of


def test_the_expert_that_a_fetch_names_leaves_and_not_the_policys():
    # 0 and 3 are used: LRU would evict 1.
    made = system(place=THREE_PLACED, assign=loading(instead_of=2))
    ran = run(made, model_of(ONE, [[[(0, 3)]]]), slots=3)
    assert evicted(ran) == [(3, 2)]
    assert of(ran, OpKind.LOAD) == [(0, (3,), 33, 73)]


def test_it_leaves_even_if_a_slot_is_free():
    made = system(place=THREE_PLACED, assign=loading(instead_of=2))
    ran = run(made, model_of(ONE, [[[(0, 3)]]]), slots=4)
    assert evicted(ran) == [(3, 2)]


def test_a_named_expert_that_is_used_leaves_when_it_has_been_computed():
    # 0 is computed 33..43, and 3 comes into its slot.
    made = system(place=THREE_PLACED, assign=loading(instead_of=0))
    ran = run(made, model_of(ONE, [[[(0, 3)]]]), slots=3)
    assert evicted(ran) == [(3, 0)]
    assert of(ran, OpKind.LOAD) == [(0, (3,), 43, 83)]
    assert of(ran, OpKind.EXPERT) == [(0, (0,), 33, 43), (0, (3,), 83, 93)]


def test_a_named_expert_that_is_on_its_way_leaves_when_it_has_come():
    # Layer 0 ends at 55, layer 1's gate is known at 88; 2 of layer 1 is under way 0..100.
    place = Placed(pairs=[(0, 0), (0, 1), (1, 0)])
    prefetch = Asks(opens=[Fetch(1, 2)], discipline="committed")
    made = system(place=place, assign=loading(instead_of=2), prefetch=prefetch)
    model = model_of(TWO, [[[(0, 1)], [(0, 3)]]])
    ran = run(made, model, slots=4, costs=FlatCosts(prices(load=100)))
    assert evicted(ran) == [(4 + 2, None), (4 + 3, 4 + 2)]
    assert of(ran, OpKind.LOAD) == [(1, (2,), 0, 100), (1, (3,), 100, 200)]
    assert of(ran, OpKind.EXPERT)[1:] == [(1, (0,), 88, 98), (1, (3,), 200, 210)]


def test_of_a_named_expert_that_is_not_there_the_policy_chooses():
    made = system(place=Placed(pairs=[(0, 0), (0, 1)]), assign=loading(instead_of=2))
    ran = run(made, model_of(ONE, [[[(0, 3)]]]), slots=2)
    assert evicted(ran) == [(3, 1)]


@pytest.mark.parametrize("named", [0, 2])
def test_a_speculative_fetch_is_dropped_if_the_named_expert_cannot_leave(named):
    # Layer 0's 3, for the next token, is queued at 33; its turn is at once.  0 is computed 33..43.
    place = Placed(pairs=[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)])
    made = system(place=place, prefetch=Asks(wanted={0: [Fetch(0, 3, instead_of=named)]}))
    ran = run(made, model_of(TWO, [[[(0, 1)], [(0, 1)]]]), slots=5)
    assert evicted(ran) == ([] if named == 0 else [(3, 2)])


# ----------------------------------------------------------------------------- not kept


def test_the_slot_of_an_expert_that_is_not_kept_is_free_after_its_computation():
    # Nobody may be evicted.  One slot is free: 3 waits until 2 has come (73) and is computed (83).
    made = system(place=Placed(pairs=[(0, 0)]), assign=loading(keep=False), evict=Refuses())
    ran = run(made, model_of(ONE, [[[(2, 3)]], [[(0, 2)]]]), slots=2, passes=2)
    assert of(ran, OpKind.LOAD)[:2] == [(0, (2,), 33, 73), (0, (3,), 83, 123)]
    # 2 is not there for the next token, whose gate is known at 133 + 2 + 6 + 33 = 174.
    assert of(ran, OpKind.LOAD)[2:] == [(0, (2,), 174, 214)]
    assert evicted(ran) == [(2, None), (3, None), (2, None)]


def test_what_nobody_chose_and_is_not_kept_goes_with_its_layer():
    extra = Plans(
        by=lambda view, active: Plan(
            [*active.resident, *active.absent],
            load=[*fetches(0, active.absent), Fetch(0, 3, keep=False)],
        )
    )
    made = system(place=Placed(pairs=[(0, 0)]), assign=extra)
    ran = run(made, model_of(ONE, [[[(0, 1)]], [[(0, 1)]]]), slots=3, passes=2)
    assert of(ran, OpKind.LOAD) == [(0, (1,), 33, 73), (0, (3,), 73, 113), (0, (3,), 124, 164)]
    assert [e.key for e in ran.events if isinstance(e, LetGo)] == [3, 3]
    assert [ran.counts[phase].unchosen for phase in ("prefill", "decode")] == [1, 1]
    (_, _, first), (_, _, second) = extra.asked
    assert (first.resident, first.absent) == ([0], [1])
    assert (second.resident, second.in_flight, second.absent) == ([0, 1], [], [])


def test_what_comes_too_late_for_its_layer_goes_when_it_has_come():
    # In two chunks of 100: layer 1's gate is known at 88 and does not choose 3.
    place = Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)])
    prefetch = Chunks(opens=[Fetch(1, 3, keep=False)])
    made = system(place=place, prefetch=prefetch, evict=Refuses())
    use = [[(0, 1)], [(0, 1)]]
    model = model_of(TWO, [use, use, [[(0, 1)], [(0, 2)]]])
    ran = run(made, model, slots=5, costs=FlatCosts(prices(load=200)), passes=3)
    assert of(ran, OpKind.LOAD)[:2] == [(1, (3,), 0, 100), (1, (3,), 100, 200)]
    # A layer takes 55, a pass 116: the last slot is free again when the third pass knows layer 1's
    # gate, at 232 + 55 + 33.
    assert of(ran, OpKind.LOAD)[2:] == [(1, (2,), 320, 520)]
    assert evicted(ran) == [(4 + 3, None), (4 + 2, None)]


def test_a_slot_for_what_is_not_kept_is_not_taken_by_what_is():
    place, uses = Placed(pairs=[(0, 0), (0, 1)]), [[[(2, 3)]], [[(0, 1)]]]
    made = system(place=place, assign=loading(), evict=KeepsRoom())
    ran = run(made, model_of(ONE, uses), slots=3, passes=2)
    assert evicted(ran) == [(2, 0), (3, 1), (0, 2), (1, 3)]
    # What is not kept takes it.
    made = system(place=place, assign=loading(keep=False), evict=KeepsRoom())
    ran = run(made, model_of(ONE, [[[(0, 2)]], [[(1, 3)]]]), slots=3, passes=2)
    assert evicted(ran) == [(2, None), (3, None)]


def test_what_is_kept_takes_no_other_slot_even_if_it_waits():
    # Layer 1's 2 and 3 come through the one slot; layer 0's are two of two.
    place = Placed(pairs=[(0, 0), (0, 1)])
    by = {0: {"keep": True}, 1: {"keep": False}}
    assign = Plans(
        by=lambda view, active: split(
            active, [Fetch(view.layer, e, **by[view.layer]) for e in active.absent]
        )
    )
    made = system(place=place, assign=assign, evict=KeepsRoom())
    ran = run(made, model_of(TWO, [[[(0, 2)], [(2, 3)]], [[(1, 2)], [(0, 3)]]]), slots=3, passes=2)
    assert evicted(ran) == [
        (2, 1), (4 + 2, None), (4 + 3, None), (1, 0), (4 + 0, None), (4 + 3, None),
    ]  # fmt: skip


def test_later_layers_fetches_take_the_slots_of_what_comes_in_vain():
    # The link brings layer 0's four experts until 160; 0 and 1 are used, as they come.
    prefetch = Asks(
        opens=[Fetch(0, e, keep=False) for e in range(4)],
        wanted={0: [Fetch(1, e, keep=False) for e in range(4)]},
        discipline="committed",
    )
    made = system(prefetch=prefetch, evict=Refuses())
    ran = run(made, model_of(TWO, [[[(0, 1)], [(0, 1)]]]), slots=4)
    assert of(ran, OpKind.EXPERT)[:2] == [(0, (0,), 40, 50), (0, (1,), 80, 90)]
    assert of(ran, OpKind.LOAD)[4:] == [(1, (e,), 160 + 40 * e, 200 + 40 * e) for e in range(4)]
    # The control thread does not wait for 2 and 3, which come until 160, before it goes on.
    assert of(ran, OpKind.ATTEND) == [(0, (), 0, 30), (1, (), 92, 122)]
    assert [e.key for e in ran.events if isinstance(e, LetGo)][:4] == [0, 1, 2, 3]


@dataclass(kw_only=True)
class KeepsOneEmpty(LoadAll):
    """Needs a slot, which it knows when a run starts."""

    def start(self, shape, cache):
        self.reserve = 1


def test_placement_leaves_empty_what_any_policy_needs():
    made = system(place=PlaceById(), assign=KeepsOneEmpty(), evict=NeverEvict(staging=1))
    assert made.reserve == 1  # before it starts, the eviction's alone
    ran = run(made, model_of(ONE, [[[(0, 1)]]]), slots=4)
    assert made.reserve == 2
    assert [claim.key for claim in ran.claims] == [0, 1]


def test_what_is_not_kept_makes_room_where_nobody_else_can():
    # Both slots are prefetched ahead for layer 1, whose experts layer 0 does not know.
    ahead = [Fetch(1, 0, keep=False), Fetch(1, 1, keep=False)]
    made = system(prefetch=Asks(opens=ahead, discipline="committed"))
    ran = run(made, model_of(TWO, [[[(2, 3)], [(0, 1)]]]), slots=2)
    assert evicted(ran)[:4] == [(4, None), (5, None), (2, 4), (3, 2)]


# ----------------------------------------------------------------------------- free slots


def test_a_policy_may_leave_free_slots_empty():
    # Three slots: 0 and 1 are there, 2 and 3 come.  Only 3 may take the free one.
    place = Placed(pairs=[(0, 0), (0, 1)])
    made = system(place=place, evict=Grows(keys=[3]))
    ran = run(made, model_of(ONE, [[[(0, 2)]], [[(2, 3)]]]), slots=3, passes=2)
    assert evicted(ran) == [(2, 1), (3, None)]


def test_where_nobody_can_leave_a_free_slot_is_taken_all_the_same():
    made = system(evict=Grows())
    ran = run(made, model_of(ONE, [[[(0, 2)]], [[(0, 3)]]]), slots=3, passes=2)
    assert evicted(ran) == [(0, None), (2, None), (3, 2)]


# ----------------------------------------------------------------------------- write-backs


def test_a_victim_is_written_back_before_its_slot_is_overwritten():
    made = system(place=Placed(pairs=[(0, 0), (0, 1)]), evict=WritesBack())
    ran = run(made, model_of(ONE, [[[(1, 2)]]]), slots=2)
    assert of(ran, OpKind.WRITE_BACK, Lane.D2H) == [(0, (0,), 33, 68)]
    assert of(ran, OpKind.LOAD) == [(0, (2,), 68, 108)]
    assert ran.timeline.bytes_moved(Lane.D2H) == RECORD_BYTES


def test_a_victim_that_is_used_is_written_back_after_its_computation():
    # Two rows use 0, 1 and 2; the first two are one operation, 33..53.
    made = system(place=Placed(pairs=[(0, 0), (0, 1)]), evict=WritesBack())
    ran = run(made, model_of(ONE, [[[(0, 1), (1, 2)]]]), slots=2, rows=2)
    assert of(ran, OpKind.WRITE_BACK) == [(0, (0,), 53, 88)]
    assert of(ran, OpKind.LOAD) == [(0, (2,), 88, 128)]


def test_a_victim_that_still_comes_is_written_back_when_it_is_there():
    # One slot, two rows: 0 comes 33..73 and is computed until 83, and 1 takes its place.
    shape = small_shape(layers=1, top_k=1)
    ran = run(system(evict=WritesBack()), model_of(shape, [[[(0,), (1,)]]]), slots=1, rows=2)
    assert of(ran, OpKind.WRITE_BACK) == [(0, (0,), 83, 118)]
    assert of(ran, OpKind.LOAD) == [(0, (0,), 33, 73), (0, (1,), 118, 158)]


def test_nobody_is_written_back_unless_the_policy_says_so():
    made = system(place=Placed(pairs=[(0, 0), (0, 1)]))
    ran = run(made, model_of(ONE, [[[(1, 2)]]]), slots=2)
    assert evicted(ran) == [(2, 0)]
    assert of(ran, OpKind.WRITE_BACK) == []


# ----------------------------------------------------------------------------- too few slots


def test_waiting_loads_take_the_slots_of_computed_experts():
    # One slot, three rows that each use another expert: every load waits for the last computation.
    shape = small_shape(layers=1, experts=3, top_k=1)
    model = model_of(shape, [[[(0,), (1,), (2,)]]])
    ran = run(system(place=Placed(pairs=[(0, 0)])), model, slots=1, rows=3)
    assert of(ran, OpKind.EXPERT) == [(0, (0,), 33, 43), (0, (1,), 83, 93), (0, (2,), 133, 143)]
    assert of(ran, OpKind.LOAD) == [(0, (1,), 43, 83), (0, (2,), 93, 133)]


def test_a_load_for_which_nobody_leaves_is_one_clear_line():
    made = system(place=Placed(pairs=[(0, 0), (0, 1)]), evict=Refuses())
    with pytest.raises(UsageError, match=r"Refuses .* layer 0 must load"):
        run(made, model_of(ONE, [[[(0, 2)]]]), slots=2)


def test_a_resident_that_the_host_computes_leaves_for_a_load():
    swapped = Plans(by=lambda view, active: Plan([2, 3], [0, 1], load=fetches(0, [2, 3])))
    made = system(place=Placed(pairs=[(0, 0), (0, 1)]), assign=swapped)
    ran = run(made, model_of(ONE, [[[(0, 1), (2, 3)]]]), slots=2, rows=2)
    assert evicted(ran) == [(2, 0), (3, 1)]
    assert of(ran, OpKind.LOAD) == [(0, (2,), 33, 73), (0, (3,), 73, 113)]
    counts = ran.counts["prefill"]
    assert (counts.active, counts.hits, counts.loads, counts.host) == (4, 0, 2, 2)
    assert counts.host_resident == 2


def test_layers_may_have_unequal_slots_none_and_all():
    # Layer 0 has none: its experts are the host's.  Layer 1 holds one, layer 2 all four.
    shape = small_shape(layers=3)
    host_first = Plans(
        by=lambda view, active: (
            split(active, host=active.absent)
            if view.layer == 0
            else split(active, fetches(view.layer, active.absent))
        )
    )
    place = Placed(pairs=[(2, e) for e in range(4)])
    made = system(place=place, assign=host_first, scope="layer")
    use = [[(0, 1)], [(0, 1)], [(2, 3)]]
    ran = run(made, model_of(shape, [use, use]), slots=(0, 1, 4), passes=2)
    assert ran.cache.slots == 5
    assert [layer for layer, *_ in of(ran, OpKind.EXPERT, Lane.HOST)] == [0] * 4
    # Layer 1's two experts take turns in its slot: 1 is there when the second pass asks for both.
    assert [load[:2] for load in of(ran, OpKind.LOAD)] == [(1, (0,)), (1, (1,)), (1, (0,))]
    assert evicted(ran) == [(4, None), (5, 4), (4, 5)]


# ----------------------------------------------------------------------------- what policies hear


@dataclass(kw_only=True)
class Hears(LeastRecentlyUsed):
    """LRU that notes which experts the engine tells it of."""

    def start(self, shape, cache):
        super().start(shape, cache)
        self.arrivals, self.departures = [], []

    def arrived(self, key):
        super().arrived(key)
        self.arrivals.append(key)

    def left(self, key):
        super().left(key)
        self.departures.append(key)


def test_a_policy_does_not_hear_that_an_expert_left_that_it_never_heard_arrive():
    # Layer 1's two experts are not kept, and one of them makes room for layer 0's.
    ahead = [Fetch(1, 0, keep=False), Fetch(1, 1, keep=False)]
    made = system(prefetch=Asks(opens=ahead, discipline="committed"), evict=Hears())
    ran = run(made, model_of(TWO, [[[(2, 3)], [(0, 1)]]]), slots=2)
    assert evicted(ran)[:4] == [(4, None), (5, None), (2, 4), (3, 2)]
    assert made.evict.arrivals[:2] == [2, 3]
    assert made.evict.departures[:1] == [2]


def test_it_hears_of_one_that_is_kept():
    made = system(place=Placed(pairs=[]), assign=loading(), evict=Hears())
    run(made, model_of(ONE, [[[(0, 1), (0, 2)]]]), slots=2)
    assert made.evict.arrivals == [0, 1, 2]
    assert made.evict.departures == [0]

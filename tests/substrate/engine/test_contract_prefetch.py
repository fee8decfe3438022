"""Fetches for later layers: speculative ones, committed ones, in chunks, several layers ahead."""

import pytest

from moebench.substrate.engine import operations
from moebench.substrate.engine.decisions import Fetch, fetches
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.systems.policies.evict import FirstInFirstOut, LastInFirstOut
from tests.substrate.engine.fakes import FlatCosts, Rig, prices, small_shape
from tests.substrate.engine.own import Asks, Chunks, Placed, evicted, model_of, of, run, system

TWO, THREE = small_shape(layers=2), small_shape(layers=3)
SLOW = FlatCosts(prices(load=100))
FOUR_PLACED = Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)])

#: Every layer uses 0 and 1 on the device: it takes 55, its gate is known after 33.
CALM = [[(0, 1)], [(0, 1)], [(0, 1)]]


def loads(ran: Rig) -> list[tuple[int, int, int]]:
    return [(layer, experts[0], start) for layer, experts, start, _ in of(ran, OpKind.LOAD)]


# ----------------------------------------------------------------------------- speculative


def test_speculative_fetches_go_behind_what_is_needed():
    # 2 of layer 0 is needed at 33; what was asked with the pass has begun, the second one waits.
    wanted = fetches(1, (2, 3))
    made = system(place=FOUR_PLACED, prefetch=Asks(opens=wanted, wanted={0: wanted}))
    ran = run(made, model_of(TWO, [[[(0, 2)], [(2, 3)]]]), slots=8, costs=SLOW)
    # Layer 0: 2 is computed 200..210, so layer 1's gate is known at 212 + 33.
    assert loads(ran) == [(1, 2, 0), (0, 2, 100), (1, 3, 200)]
    counts = ran.counts["prefill"]
    assert (counts.hits, counts.in_flight, counts.loads) == (2, 1, 1)


def test_those_of_a_layer_go_behind_its_own_loads():
    prefetch = Asks(wanted={0: [Fetch(1, 3)]})
    made = system(place=FOUR_PLACED, prefetch=prefetch)
    ran = run(made, model_of(TWO, [[[(0, 2)], [(0, 1)]]]), slots=8)
    assert loads(ran) == [(0, 2, 33), (1, 3, 73)]


def test_what_has_not_begun_at_its_gate_is_dropped_and_has_evicted_nobody():
    # Layer 1's gate is known at 88: one of the two has begun.
    made = system(place=FOUR_PLACED, prefetch=Asks(wanted={0: fetches(1, (2, 3))}))
    ran = run(made, model_of(TWO, [CALM[:2]]), slots=4, costs=SLOW)
    # It took the place of layer 1's 0, used longest ago, which layer 1 brings back for layer 0's 0.
    assert loads(ran) == [(1, 2, 33), (1, 0, 133)]
    assert evicted(ran) == [(4 + 2, 4), (4, 0)]
    counts = ran.counts["prefill"]
    assert (counts.prefetched, counts.prefetched_used, counts.loads) == (1, 0, 1)


def test_what_was_evicted_before_its_layer_was_not_used():
    # Layer 1's 2 has come when layer 0's gate is known, and its 1 takes that place.
    made = system(prefetch=Asks(opens=[Fetch(1, 2)], discipline="committed"))
    model = model_of(TWO, [[[(0, 1)], [(2, 3)]]])
    ran = run(made, model, slots=2, costs=FlatCosts(prices(load=20)))
    assert evicted(ran)[:3] == [(4 + 2, None), (0, None), (1, 4 + 2)]
    counts = ran.counts["prefill"]
    assert (counts.prefetched, counts.prefetched_active, counts.prefetched_used) == (1, 1, 0)


@pytest.mark.parametrize(("again", "then"), [((3, 4), [(2, 3, 133)]), ((), [])])
def test_asking_again_replaces_what_is_queued(again, then):
    # Layer 0 asks for two of layer 2 at 33, layer 1 at 88; only the first one has begun by then,
    # 33..133.  Layer 2's gate is known at 110 + 33: there is time for one more.
    place = Placed(pairs=[(layer, e) for layer in range(3) for e in (0, 1)])
    asks = Asks(wanted={0: fetches(2, (2, 4)), 1: fetches(2, again)})
    model = model_of(small_shape(layers=3, experts=5), [CALM])
    ran = run(system(place=place, prefetch=asks), model, slots=12, costs=SLOW)
    assert loads(ran) == [(2, 2, 33), *then]


def test_a_fetch_several_layers_ahead_survives_the_gates_between():
    # With 70 a load: 0..70, 70..140, and the third at 140; layer 2's gate is known at 143.
    place = Placed(pairs=[(layer, e) for layer in range(3) for e in (0, 1)])
    wanted = [Fetch(1, 3), Fetch(2, 2), Fetch(2, 3)]
    asks = Asks(opens=wanted, wanted={0: wanted, 1: wanted[1:]})
    made = system(place=place, prefetch=asks)
    ran = run(made, model_of(THREE, [CALM]), slots=12, costs=FlatCosts(prices(load=70)))
    assert loads(ran) == [(1, 3, 0), (2, 2, 70), (2, 3, 140)]


def test_common_weights_cannot_be_speculative():
    made = system(place=FOUR_PLACED, prefetch=Asks(wanted={0: [Fetch(1, None)]}))
    with pytest.raises(UsageError, match="committed"):
        run(made, model_of(TWO, [CALM[:2]]), slots=8, homes=("device", "stream"))


# ----------------------------------------------------------------------------- committed


def test_committed_fetches_are_first_in_first_out_with_needed_loads():
    prefetch = Asks(opens=fetches(1, (2, 3)), discipline="committed")
    made = system(place=FOUR_PLACED, prefetch=prefetch)
    ran = run(made, model_of(TWO, [[[(0, 2)], [(0, 1)]]]), slots=8, costs=SLOW)
    assert loads(ran) == [(1, 2, 0), (1, 3, 100), (0, 2, 200)]


def test_they_wait_for_a_slot_that_the_layer_leaves_and_are_not_dropped():
    # Layer 0: the gate is known at 33, 0 comes 33..133 and is read until 143, 1 comes 133..233 and
    # is read until 243.  Layer 1, whose gate is known at 278, is asked for 2 and 3 in vain.
    first = [(0, 0, 33), (0, 1, 133), (1, 2, 233)]
    wanted = {0: fetches(1, (2, 3))}
    asks = Asks(wanted=wanted, discipline="committed")
    made = system(prefetch=asks, evict=FirstInFirstOut())
    ran = run(made, model_of(TWO, [CALM[:2]]), slots=2, costs=SLOW)
    # Its own experts wait for both: a stream does not reorder.
    assert loads(ran)[:5] == [*first, (1, 3, 333), (1, 0, 433)]
    made = system(prefetch=Asks(wanted=wanted), evict=FirstInFirstOut())
    ran = run(made, model_of(TWO, [CALM[:2]]), slots=2, costs=SLOW)
    assert loads(ran)[:4] == [*first, (1, 0, 333)]


@pytest.mark.parametrize("discipline", ["speculative", "committed"])
def test_what_is_there_is_not_asked_again(discipline):
    place = Placed(pairs=[(0, 0), (0, 1)])
    asks = Asks(wanted={0: fetches(1, (0, 1))}, discipline=discipline, phase="decode")
    ran = run(system(place=place, prefetch=asks), model_of(TWO, [CALM[:2]] * 3), slots=6, passes=3)
    assert [layer for layer, _, _ in loads(ran)] == [1, 1]
    counts = ran.counts["decode"]
    assert (counts.asked, counts.asked_all, counts.asked_any) == (2, 2, 2)
    assert counts.prefetched == 0


@pytest.mark.parametrize(("discipline", "right"), [("speculative", 0), ("committed", 1)])
def test_committed_requests_for_a_layer_add_up(discipline, right):
    wanted = {0: fetches(2, (0,)), 1: fetches(2, (1,))}
    asks = Asks(wanted=wanted, discipline=discipline, phase="decode")
    use = [[(0, 1)], [(0, 1)], [(0, 1)]]
    model = model_of(small_shape(layers=3), [use, use])
    counts = run(system(prefetch=asks), model, slots=12, passes=2).counts["decode"]
    assert (counts.asked, counts.asked_all, counts.asked_any) == (1, right, 1)


@pytest.mark.parametrize("discipline", ["speculative", "committed"])
def test_a_passes_opening_starts_with_it_even_below_a_dense_layer(discipline):
    # Dense layer 0 takes attend 30 and dense 20; layer 1's gate is known at 83.
    shape = small_shape(layers=2, dense_layers=(0,))
    made = system(prefetch=Asks(opens=fetches(1, (0, 1)), discipline=discipline))
    ran = run(made, model_of(shape, [[[(0, 1)]]]), slots=4)
    assert loads(ran) == [(1, 0, 0), (1, 1, 40)]
    counts = ran.counts["prefill"]
    assert (counts.prefetched, counts.prefetched_used, counts.hits) == (2, 2, 2)


# ----------------------------------------------------------------------------- chunks


def test_a_needed_load_goes_between_the_chunks_of_a_speculative_one():
    # Halves of 50.  2 of layer 0 is needed at 33 and goes 50..150; the second half follows:
    # layer 1's gate is known at 160 + 2 + 33, and its 0 is computed first.
    asks = Chunks(opens=[Fetch(1, 3)])
    made = system(place=FOUR_PLACED, prefetch=asks)
    ran = run(made, model_of(TWO, [[[(0, 2)], [(0, 3)]]]), slots=8, costs=SLOW)
    assert [(e[0], start, end) for _, e, start, end in of(ran, OpKind.LOAD)] == [
        (3, 0, 50),
        (2, 50, 150),
        (3, 150, 200),
    ]
    assert of(ran, OpKind.EXPERT)[-1] == (1, (3,), 205, 215)
    # In one piece the load waits for all of it.
    made = system(place=FOUR_PLACED, prefetch=Asks(opens=[Fetch(1, 3)]))
    ran = run(made, model_of(TWO, [[[(0, 2)], [(0, 3)]]]), slots=8, costs=SLOW)
    assert loads(ran) == [(1, 3, 0), (0, 2, 100)]


def test_what_is_left_of_one_that_is_needed_goes_before_the_layers_loads():
    # Thirds of 100, the first 0..100; layer 1 needs 3, and 2, at 88.
    asks = Chunks(opens=[Fetch(1, 3)], chunks=3)
    made = system(place=FOUR_PLACED, prefetch=asks)
    model = model_of(TWO, [[[(0, 1)], [(2, 3)]]])
    ran = run(made, model, slots=8, costs=FlatCosts(prices(load=300)))
    assert loads(ran) == [(1, 3, 0), (1, 3, 100), (1, 3, 200), (1, 2, 300)]
    assert of(ran, OpKind.EXPERT)[1:] == [(1, (3,), 300, 310), (1, (2,), 600, 610)]


def test_chunks_move_every_byte_once_and_a_record_is_read_in_one_piece():
    asks = Chunks(opens=[Fetch(1, 3)], chunks=3)
    made = system(place=FOUR_PLACED, prefetch=asks)
    ran = run(made, model_of(TWO, [[[(0, 1)], [(0, 3)]]]), slots=8, host_records=8)
    for kind, parts in (OpKind.LOAD, [333, 333, 334]), (OpKind.READ, [1000]):
        assert [s.moved_bytes for s in ran.spans if s.op.kind is kind] == parts
    # 60 from the disk, then thirds of 40 over the link.
    assert [row[2:] for row in of(ran, OpKind.READ)] == [(0, 60)]
    assert [row[2:] for row in of(ran, OpKind.LOAD)] == [(60, 73), (73, 86), (86, 99)]


def test_what_is_asked_of_several_layers_counts_for_each():
    # Layer 1 uses 0 and 1 and was asked 0 and 2; layer 2 uses 1 and 3.  Layer 0 asked 0 of it,
    # layer 1 asks 1 and 3 instead.
    place = Placed(pairs=[(layer, e) for layer in range(3) for e in range(4)])
    wanted = {0: [Fetch(2, 0), Fetch(1, 0), Fetch(1, 2)], 1: fetches(2, (1, 3))}
    made = system(place=place, prefetch=Asks(wanted=wanted, phase="decode"))
    used = [[(0, 1)], [(0, 1)], [(1, 3)]]
    counts = run(made, model_of(THREE, [used, used]), slots=12, passes=2).counts["decode"]
    assert (counts.asked, counts.asked_any, counts.asked_all) == (2, 2, 1)


def test_an_expert_that_left_before_its_layer_came_is_fetched_and_counted_again():
    # Layer 0 fetches 3 of layer 2 from 33 to 73.  Layer 1's gate is known at 88: its 2 takes the
    # place of whoever came last, and 3 comes again behind it, from 128 to 168, for layer 2's 0.
    place = Placed(pairs=[(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)])
    prefetch = Asks(wanted={0: [Fetch(2, 3)], 1: [Fetch(2, 3)]})
    made = system(place=place, prefetch=prefetch, evict=LastInFirstOut())
    ran = run(made, model_of(THREE, [[[(0, 1)], [(0, 2)], [(0, 3)]]]), slots=5)
    assert loads(ran) == [(2, 3, 33), (1, 2, 88), (2, 3, 128), (2, 0, 173)]
    assert evicted(ran)[:3] == [(8 + 3, 8 + 1), (4 + 2, 8 + 3), (8 + 3, 8 + 0)]
    counts = ran.counts["prefill"]
    assert (counts.prefetched, counts.prefetched_used) == (2, 1)


@pytest.mark.parametrize("wanted", [2, Fetch(None, 2)])
def test_what_is_no_fetch_is_not_taken_for_one_of_common_weights(wanted):
    made = system(place=FOUR_PLACED, prefetch=Asks(wanted={0: [wanted]}))
    with pytest.raises(TypeError):
        run(made, model_of(TWO, [CALM[:2]]), slots=8)


def test_of_experts_operations_so_many_are_kept(monkeypatch):
    usual = operations._ExpertOps(OpKind.EXPERT)
    monkeypatch.setattr(operations, "_KEPT", 2)
    few = operations._ExpertOps(OpKind.EXPERT)
    keys = [(layer, expert, 1, 0) for layer in range(2) for expert in range(3)]
    assert [few[key] for key in keys] == [usual[key] for key in keys]
    assert len(few) == 2

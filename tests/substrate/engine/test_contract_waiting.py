"""Systems whose control thread waits, and systems that do not wait for what they should.

Attention takes 30, a gate 3, an expert 10, the sum 2, the head 6; control costs nothing.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from moebench.substrate.engine.decisions import Fetch, Plan, fetches
from moebench.substrate.machines.protocol import OpKind
from tests.substrate.engine.fakes import FlatCosts, prices, rig, small_shape
from tests.substrate.engine.own import Asks, Placed, Plans, model_of, of, run, system

ONE, TWO = small_shape(layers=1), small_shape(layers=2)


@dataclass(kw_only=True)
class Told(Plans):
    """Keeps what it is told of layers that were waited for."""

    waits: list[Any] = field(default_factory=list)

    def waited(self, view, plan, host_ns, load_ns):
        self.waits.append((view.layer, list(plan.host), host_ns, load_ns))


def four_experts(assign, **options):
    """Two rows use all of a layer's experts, of which the device holds 0."""
    made = system(place=Placed(pairs=[(0, 0)]), assign=assign, **options)
    return run(made, model_of(ONE, [[[(0, 1), (2, 3)]]]), slots=4, rows=2)


def plan(view, active):
    return Plan([0, 1, 2], [3], (), fetches(0, [1, 2]))


@pytest.mark.parametrize(
    ("synchronises", "loaded", "combined"),
    [
        # The gate ends at 33; loads take 33..73 and 73..113, the host 33..88, its return ..92.
        (False, [(73, 83), (113, 123)], (123, 125)),
        (True, [(113, 123), (123, 133)], (133, 135)),
    ],
)
def test_loaded_experts_run_as_they_come_or_after_the_last(synchronises, loaded, combined):
    assign = Told(by=plan)
    ran = four_experts(assign, synchronises=synchronises)
    assert of(ran, OpKind.LOAD) == [(0, (1,), 33, 73), (0, (2,), 73, 113)]
    assert of(ran, OpKind.RETURN) == [(0, (3,), 88, 92)]
    assert [times for _, experts, *times in of(ran, OpKind.EXPERT) if experts in [(1,), (2,)]] == [
        list(times) for times in loaded
    ]
    assert of(ran, OpKind.COMBINE) == [(0, (), *combined)]
    assert assign.waits == ([(0, [3], 92, 113)] if synchronises else [])


@pytest.mark.parametrize(
    ("planned", "told"),
    [
        (lambda view, active: Plan([0], [1, 2, 3]), (0, [1, 2, 3], 202, 0)),  # 198 + 4
        (lambda view, active: Plan([0, 1, 2, 3], (), (), fetches(0, [3, 1, 2])), (0, [], 0, 153)),
    ],
)
def test_one_side_alone(planned, told):
    assign = Told(by=planned)
    four_experts(assign, synchronises=True)
    assert assign.waits == [told]


def hit_on_a_copy(load, **options):
    """A prefetch of layer 1's expert 2 starts at 0; layer 1's gate, at 88, chooses 0 and 2."""
    made = system(
        place=Placed(pairs=[(0, 0), (0, 1), (1, 0)]), prefetch=Asks(opens=[Fetch(1, 2)]), **options
    )
    costs = FlatCosts(prices(load=load))
    ran = rig(made, model_of(TWO, [[[(0, 1)], [(0, 2)]]]), slots=4, costs=costs)
    ran.engine.generate([[3]], 1)
    assert of(ran, OpKind.LOAD) == [(1, (2,), 0, load)]
    experts = [times for layer, *times in of(ran, OpKind.EXPERT) if layer == 1]
    combined = [times for layer, _, *times in of(ran, OpKind.COMBINE) if layer == 1]
    return ran, experts, combined


def test_a_copy_under_way_is_waited_for():
    _, experts, combined = hit_on_a_copy(100)
    assert experts == [[(0,), 88, 98], [(2,), 100, 110]]
    assert combined == [[110, 112]]


def test_or_it_is_not():
    ran, experts, combined = hit_on_a_copy(100, reads_unfinished=True)
    assert experts == [[(0, 2), 88, 108]]
    assert combined == [[108, 110]]
    # It is still counted as what it was when the gate was known.
    counts = ran.counts["prefill"]
    assert (counts.active, counts.hits, counts.in_flight, counts.loads) == (4, 3, 1, 0)
    ran.cache.check_integrity()


def test_a_layer_that_is_waited_for_ends_after_its_copies():
    _, experts, combined = hit_on_a_copy(130, reads_unfinished=True, synchronises=True)
    assert experts == [[(0, 2), 88, 108]]
    assert combined == [[130, 132]]


def test_copies_that_nobody_wants_are_waited_for_too():
    made = system(
        place=Placed(pairs=[(0, 0), (0, 1), (1, 0)]),
        prefetch=Asks(opens=[Fetch(1, 3)]),
        synchronises=True,
    )
    # Layer 1's gate ends at 88 and chooses 0 alone; 3 is on its way until 130.
    shape = small_shape(layers=2, top_k=1)
    ran = rig(made, model_of(shape, [[[(0,)], [(0,)]]]), slots=4, costs=FlatCosts(prices(load=130)))
    ran.engine.generate([[3]], 1)
    assert of(ran, OpKind.LOAD) == [(1, (3,), 0, 130)]
    assert of(ran, OpKind.COMBINE)[1] == (1, (), 130, 132)


def test_policies_are_told_what_was_absent():
    seen = []

    def planned(view, active):
        seen.append((view, active))
        return plan(view, active)

    four_experts(Plans(by=planned))
    [(view, active)] = seen
    assert list(view.absent) == active.absent == [1, 2, 3]

"""What waits for what in a layer with waits for each expert, or with fewer slots than experts."""

from dataclasses import dataclass

import pytest

from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.systems.policies.evict import LeastRecentlyUsed
from tests.substrate.engine.fakes import FlatCosts, prices, small_shape
from tests.substrate.engine.own import Placed, evicted, model_of, of, run, system
from tests.substrate.machines.clients import Client, load_op, times

LAUNCH = 5


def one_loaded_expert(waits: bool, load_ns: int) -> tuple[int, int]:
    """Start and end of a loaded expert behind attention; its 20 launches take 100, its bytes 10."""
    costs = FlatCosts(
        prices(attend=70, expert=10, load=load_ns), launch_ns=LAUNCH, sync_ns=7, waits=waits
    )
    costs.control_ns = lambda op, lane: 100 if op.kind is OpKind.EXPERT else LAUNCH
    m = SimulatedMachine(costs, Timeline(keep_all=True))
    m.submit(Op(OpKind.ATTEND, 0, (1,)), Lane.DEVICE)  # 5 .. 75
    load = m.load(load_op(0), Client())  # 5 .. 5 + load_ns
    return times(m.submit(Op(OpKind.EXPERT, 0, (1,), (0,)), Lane.DEVICE, (load,)))


@pytest.mark.parametrize(
    ("waits", "load_ns", "expected"),
    [
        (False, 20, (75, 105)),  # launched from 5 to 105, behind attention: the last launch ends it
        (True, 20, (80, 175)),  # its Python begins at 75: first launch at 80, the last one at 175
        (False, 300, (305, 315)),  # all is launched when it has come
        (True, 300, (310, 405)),  # torch.where waits for its transfer, 305, which the stream awaits
    ],
)
def test_an_experts_python_waits_for_the_device_and_its_transfer(waits, load_ns, expected):
    assert one_loaded_expert(waits, load_ns) == expected


def test_the_wait_costs_nothing_where_the_device_is_idle():
    for waits in (False, True):
        costs = FlatCosts(prices(attend=30, expert=10), launch_ns=LAUNCH, sync_ns=7, waits=waits)
        m = SimulatedMachine(costs, Timeline(keep_all=True))
        m.wait(m.submit(Op(OpKind.ATTEND, 0, (1,)), Lane.DEVICE))  # 5 .. 35, read back at 42
        assert times(m.submit(Op(OpKind.EXPERT, 0, (1, 1), (0, 1)), Lane.DEVICE)) == (47, 67)


@dataclass(kw_only=True)
class NewestFirst(LeastRecentlyUsed):
    """Evicts the allowed expert of the highest id."""

    def victim(self, allowed, incoming):
        return max((key for key, may in enumerate(allowed.tolist()) if may), default=None)


@pytest.mark.parametrize("load_ns", [40, 5])
def test_a_load_takes_the_slot_that_is_idle_when_it_can_begin(load_ns):
    # Two slots for experts 0 to 3 of one layer; 0 and 1 are there and computed 33..53 as one.
    # 2 can only take a slot at 53, and the policy gives it 1's; it comes at 53 + load.  Then 0's
    # slot is idle, while 2 is still to be computed: 3 takes 0's, though 2 is the policy's choice.
    made = system(place=Placed(pairs=[(0, 0), (0, 1)]), evict=NewestFirst())
    uses = [[[(0, 1), (2, 3)]]]
    ran = run(made, model_of(small_shape(layers=1), uses), slots=2, rows=2,
              costs=FlatCosts(prices(load=load_ns)))  # fmt: skip
    assert evicted(ran) == [(2, 1), (3, 0)]
    assert of(ran, OpKind.LOAD) == [
        (0, (2,), 53, 53 + load_ns), (0, (3,), 53 + load_ns, 53 + 2 * load_ns),
    ]  # fmt: skip


def test_without_an_idle_slot_the_policy_chooses_among_the_others():
    # One slot is left for 1, 2 and 3 in turn: each waits for the one before to be computed.
    made = system(place=Placed(), evict=NewestFirst())
    ran = run(made, model_of(small_shape(layers=1, experts=4), [[[(0, 1), (2, 3)]]]), slots=2,
              rows=2)  # fmt: skip
    # 0 comes 33..73 and is computed 73..83, 1 comes 73..113 and is computed ..123.
    assert of(ran, OpKind.LOAD)[:2] == [(0, (0,), 33, 73), (0, (1,), 73, 113)]
    # The link is free at 113, when 0 (ended 83) is idle and 1 is not.
    assert of(ran, OpKind.LOAD)[2] == (0, (2,), 113, 153)
    assert evicted(ran)[2] == (2, 0)

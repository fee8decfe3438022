"""Asking ahead: transfers in order, a pass's opening, a policy's own network and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from moebench.substrate.engine.system import Placement, Prefetching, System
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.systems.options import build
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict import FirstInFirstOut
from moebench.systems.policies.route import ExactRouting
from tests.substrate.engine.checker import check_timeline
from tests.substrate.engine.fakes import FixedModel, FlatCosts, Rig, prices, rig
from tests.substrate.engine.fakes import small_shape as shape

COSTS, SLOW = (FlatCosts(prices(load=ns, network=7)) for ns in (40, 100))


@dataclass(kw_only=True)
class Empty(Placement):
    """Nothing."""

    def place(self, shape, slots, scope):
        return ()


@dataclass(kw_only=True)
class Asks(Prefetching):
    """Fixed experts for each layer."""

    opens: Sequence[int] = ()
    wanted: dict[int, Sequence[int]] = field(default_factory=dict)
    in_order: ClassVar[bool] = True

    def opening(self, phase, layer):
        return self.opens

    def prefetch(self, view, next_layer, predicted_TE):
        return self.wanted.get(next_layer, ())


@dataclass(kw_only=True)
class Queues(Asks):
    """The same, behind everything needed."""

    in_order: ClassVar[bool] = False


@dataclass(kw_only=True)
class Foretells(Asks):
    """With a network."""

    @property
    def network(self):
        return (2, 4)

    def foretell(self, view, next_layer):
        return np.zeros((len(view.own_TK), 4))

    def prefetch(self, view, next_layer, predicted_TE):
        assert (predicted_TE is None) == (view.phase == "prefill")
        return (0, 1) if view.phase == "decode" else ()


def run(
    prefetch: Prefetching, *, slots: int, tokens: int = 1, dense: tuple[int, ...] = (), costs=COSTS
) -> Rig:
    """Rows for experts 0 and 1 in every layer."""
    model = shape(layers=3, dense_layers=dense)
    row = [[0.5, 0.4, 0.0, 0.0]]
    gates = {(p, layer): row for p in range(tokens) for layer in model.moe_layers}
    system = System(
        place=Empty(), route=ExactRouting(), assign=LoadAll(), prefetch=prefetch,
        evict=FirstInFirstOut(),
    )  # fmt: skip
    made = rig(system, FixedModel(model, gates), slots=slots, costs=costs)
    made.engine.generate([[3]], tokens)
    check_timeline(made.spans, made.claims, num_experts=4, capacity=slots)
    return made


def loads(made: Rig) -> list[tuple]:
    return [
        (s.op.layer, s.op.experts[0], s.start_ns)
        for s in made.spans
        if s.op.kind is OpKind.LOAD
    ]  # fmt: skip


def test_a_passes_opening_starts_with_it_even_below_a_dense_layer():
    # Dense layer 0 takes attend 30 and dense 20; layer 1's gate is known at 83.
    made = run(Asks(opens=(0, 1)), slots=4, dense=(0,))
    assert loads(made)[:2] == [(1, 0, 0), (1, 1, 40)]
    counts = made.engine.counts["prefill"]
    assert (counts.prefetched, counts.hits) == (2, 2)


def test_in_order_transfers_wait_for_a_slot_and_are_not_dropped():
    # Layer 0: the gate is known at 33, 0 comes 33..133 and is read until 143, 1 comes 133..233 and
    # is read until 243.  Layer 1, whose gate is known at 278, is asked for 2 and 3 in vain.
    first = [(0, 0, 33), (0, 1, 133), (1, 2, 233)]
    made = run(Asks(wanted={1: (2, 3)}), slots=2, costs=SLOW)
    # Its own experts wait for both: a stream does not reorder.
    assert loads(made)[:5] == [*first, (1, 3, 333), (1, 0, 433)]
    dropped = run(Queues(wanted={1: (2, 3)}), slots=2, costs=SLOW)
    assert loads(dropped)[:4] == [*first, (1, 0, 333)]


def test_what_is_there_is_not_asked_again():
    made = run(Asks(wanted={1: (0, 1)}), slots=6, tokens=3)
    assert sum(layer == 1 for layer, _, _ in loads(made)) == 2
    counts = made.engine.counts["decode"]
    assert (counts.asked, counts.asked_all, counts.asked_any) == (2, 2, 2)
    assert counts.prefetched == 0


def test_a_network_runs_beside_the_device_in_decode():
    made = run(Foretells(), slots=2, tokens=2)
    spans = [s for s in made.spans if s.lane is Lane.PREDICT]
    assert [(s.op.kind, s.op.layer, s.duration_ns) for s in spans] == [
        (OpKind.PREDICT, 0, 7),
        (OpKind.PREDICT, 1, 7),
    ]
    gates = [s.end_ns for s in made.spans if s.op.kind is OpKind.GATE][3:5]
    assert [s.start_ns for s in spans] == gates


def test_what_a_network_costs():
    profile = load_profile("a6000")
    costs = CostModel(profile, shape(), "4bit")
    op = Op(OpKind.PREDICT, 0, (1,), network=(1000, 2000, 500))
    first, control, duration = costs.price(op, Lane.PREDICT)
    small = profile.gpu.bandwidth.bytes_per_s * profile.gpu.small_read_efficiency.ratio
    values = 1000 * 2000 + 2000 + 2000 * 500 + 500
    assert duration == pytest.approx(4 * values / small * 1e9, abs=1)
    launch = profile.software.launch.ns
    assert (first, control) == (launch, 2 * 3 * launch)


def test_systems_need_nothing_for_themselves_unless_they_say_so():
    system = build("smoe")
    assert system.device_bytes == 0
    assert system.most_slots(shape()) is None

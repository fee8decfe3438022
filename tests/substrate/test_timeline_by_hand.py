"""One decoded token worked out by hand, to the nanosecond, on flat costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from substrate.machine import Lane, OpKind
from substrate.system import Assigned, Assignment, Placement, Prefetching, System
from substrate.terms import Lookahead
from systems.policies.evict import LeastRecentlyUsed
from systems.policies.route import ExactRouting
from tests.substrate.fakes import (
    FixedModel,
    FlatCosts,
    check_timeline,
    prices,
    rig,
    small_shape,
)

# Three MoE layers of five experts, top-2, six slots: L0 {0,1}, L1 {0,1}, L2 {0,1} to begin with.
#
#   device  attend 400, gate 20, expert 50, combine 10, predict 30, head 40
#   h2d     load 300            host  expert 200            d2h  return 15
#   control a device launch 5 (an expert operation 5 for each expert), any other submission 3,
#           reading a result back 7, one layer's decisions 11
#
# Prefill, one row, experts {0,1} everywhere.  c is the control clock after the event.
#
#   L0  attend  c 5     device    5 ..  405     gate  c 10    device  405 ..  425
#       wait    c 432   decide c 443            {0,1} c 453   device  453 ..  553
#       combine c 458   device  553 ..  563
#   L1  attend  c 463   device  563 ..  963     gate  c 468   device  963 ..  983
#       wait    c 990   decide c 1001           {0,1} c 1011  device 1011 .. 1111
#       combine c 1016  device 1111 .. 1121
#   L2  attend  c 1021  device 1121 .. 1521     gate  c 1026  device 1521 .. 1541
#       wait    c 1548  decide c 1559           {0,1} c 1569  device 1569 .. 1669
#       combine c 1574  device 1669 .. 1679
#       head    c 1579  device 1679 .. 1719     wait  c 1726  = the first token
#
# Last uses are now L0 {7,8}, L1 {9,10}, L2 {11,12} (six arrivals counted first).
#
# Decode.  L0 uses {0,2}: 0 is there, 2 must be loaded and evicts L0's 1, used longest ago.
#
#   L0  attend  c 1731  device 1731 .. 2131     gate  c 1736  device 2131 .. 2151
#       wait    c 2158  decide c 2169           {0}   c 2174  device 2174 .. 2224
#       load 2  c 2177  h2d    2177 .. 2477     predict c 2182 device 2224 .. 2254
#       {2}     c 2187  device 2477 .. 2527     (waited 223 for the load)
#       combine c 2192  device 2527 .. 2537
#       wait for the prediction: c max(2192, 2254) + 7 = 2261; prefetch 2, 3, 4 for L1
#   h2d is free at 2477: prefetch 2 takes 2477 .. 2777 and evicts L1's 0, the oldest that may go;
#   prefetch 3 takes 2777 .. 3077 and evicts L1's 1; prefetch 4 could start at 3077.
#   L1  attend  c 2266  device 2537 .. 2937     gate  c 2271  device 2937 .. 2957
#       wait    c 2964: L1 uses {2,3}: 2 is a hit, 3 is in flight, prefetch 4 is cancelled
#       decide  c 2975  {2}   c 2980  device 2980 .. 3030
#       predict c 2985  device 3030 .. 3060
#       {3}     c 2990  device 3077 .. 3127     (waited 17 for the prefetch)
#       combine c 2995  device 3127 .. 3137
#       wait for the prediction: c max(2995, 3060) + 7 = 3067; nothing to prefetch
#   L2  attend  c 3072  device 3137 .. 3537     gate  c 3077  device 3537 .. 3557
#       wait    c 3564: L2 uses {1,3}: 1 is there, 3 is for the host; no layer comes after
#       decide  c 3575  {1}   c 3580  device 3580 .. 3630
#       {3}     c 3583  host   3583 .. 3783     return c 3586  d2h 3783 .. 3798
#       combine c 3591  device 3798 .. 3808     (waited 168 for the host)
#       head    c 3596  device 3808 .. 3848     wait  c 3855  = the second token

PREFILL = [
    ("attend", 0, (), "device", 5, 405),
    ("gate", 0, (), "device", 405, 425),
    ("expert", 0, (0, 1), "device", 453, 553),
    ("combine", 0, (), "device", 553, 563),
    ("attend", 1, (), "device", 563, 963),
    ("gate", 1, (), "device", 963, 983),
    ("expert", 1, (0, 1), "device", 1011, 1111),
    ("combine", 1, (), "device", 1111, 1121),
    ("attend", 2, (), "device", 1121, 1521),
    ("gate", 2, (), "device", 1521, 1541),
    ("expert", 2, (0, 1), "device", 1569, 1669),
    ("combine", 2, (), "device", 1669, 1679),
    ("head", -1, (), "device", 1679, 1719),
]

DECODE = [
    ("attend", 0, (), "device", 1731, 2131),
    ("gate", 0, (), "device", 2131, 2151),
    ("expert", 0, (0,), "device", 2174, 2224),
    ("load", 0, (2,), "h2d", 2177, 2477),
    ("predict", 0, (), "device", 2224, 2254),
    ("expert", 0, (2,), "device", 2477, 2527),
    ("load", 1, (2,), "h2d", 2477, 2777),
    ("combine", 0, (), "device", 2527, 2537),
    ("attend", 1, (), "device", 2537, 2937),
    ("load", 1, (3,), "h2d", 2777, 3077),
    ("gate", 1, (), "device", 2937, 2957),
    ("expert", 1, (2,), "device", 2980, 3030),
    ("predict", 1, (), "device", 3030, 3060),
    ("expert", 1, (3,), "device", 3077, 3127),
    ("combine", 1, (), "device", 3127, 3137),
    ("attend", 2, (), "device", 3137, 3537),
    ("gate", 2, (), "device", 3537, 3557),
    ("expert", 2, (1,), "device", 3580, 3630),
    ("expert", 2, (3,), "host", 3583, 3783),
    ("return", 2, (3,), "d2h", 3783, 3798),
    ("combine", 2, (), "device", 3798, 3808),
    ("head", -1, (), "device", 3808, 3848),
]

COSTS = FlatCosts(
    prices(
        attend=400,
        gate=20,
        expert=50,
        combine=10,
        predict=30,
        head=40,
        load=300,
        host=200,
        back=15,
    ),
    launch_ns=5,
    submit_ns=3,
    sync_ns=7,
    decision_ns=11,
)


@dataclass(kw_only=True)
class TwoEach(Placement):
    """Experts 0 and 1 of every layer."""

    def place(self, shape, slots, scope):
        return [(layer, e) for layer in shape.moe_layers for e in (0, 1)]


@dataclass(kw_only=True)
class HostInLayerTwo(Assignment):
    """The host serves layer 2, the link every other one."""

    uses_host = True

    def assign(self, view, missing):
        ids = [m.expert for m in missing]
        return Assigned((), ids) if view.layer == 2 else Assigned(ids, ())


@dataclass(kw_only=True)
class ThreeForLayerOne(Prefetching):
    """Experts 2, 3 and 4 of layer 1, in this order."""

    @property
    def lookahead(self) -> Lookahead:
        return Lookahead.GATE

    def prefetch(self, view, next_layer, predicted_TE) -> Sequence[int]:
        return (2, 3, 4) if next_layer == 1 and view.phase == "decode" else ()


def row(*best: int) -> list[list[float]]:
    """One row's scores in which these experts come first, in this order."""
    return [[0.1 + 0.3 / (1 + best.index(e)) if e in best else 0.01 for e in range(5)]]


@pytest.fixture
def token():
    gates = {(0, layer): row(0, 1) for layer in range(3)}
    gates |= {(1, 0): row(0, 2), (1, 1): row(3, 2), (1, 2): row(3, 1)}
    model = FixedModel(
        small_shape(layers=3, experts=5), gates, {(1, layer): row(2, 3) for layer in range(2)}
    )
    system = System(
        place=TwoEach(),
        route=ExactRouting(),
        assign=HostInLayerTwo(),
        prefetch=ThreeForLayerOne(),
        evict=LeastRecentlyUsed(),
    )
    run = rig(system, model, slots=6, costs=COSTS)
    return run, run.engine.generate([[3]], 2)


def flat(spans):
    rows = [
        (s.op.kind.value, s.op.layer, s.op.experts, s.lane.value, s.start_ns, s.end_ns)
        for s in spans
    ]
    return sorted(rows, key=lambda r: (r[4], r[3], r[5]))


def by_start(table):
    return sorted(table, key=lambda r: (r[4], r[3], r[5]))


def test_every_span_to_the_nanosecond(token):
    run, generation = token
    assert generation.started_ns == 0
    assert generation.token_ends_ns == [1726, 3855]
    assert flat(run.spans) == by_start(PREFILL + DECODE)


def test_what_became_of_every_expert(token):
    run, _ = token
    counts = run.engine.counts["decode"]
    assert (counts.active, counts.hits, counts.in_flight) == (6, 3, 1)
    assert (counts.loads, counts.host, counts.replaced) == (1, 1, 0)
    # Three prefetches were asked for; the cancelled one was never issued and evicted nobody.
    assert (counts.prefetched, counts.prefetched_active, counts.prefetched_used) == (2, 2, 2)
    assert [(c.key, c.victim) for c in run.claims if not c.placed] == [(2, 1), (7, 5), (8, 6)]


def test_what_the_device_waited_for(token):
    run, _ = token
    # 12 before attend, and 23 = read back 7 + decide 11 + launch 5 after every gate.
    totals = run.timeline.totals["decode"]
    assert totals.stall_ns == {"control": 12 + 3 * 23, "load": 223 + 17, "host": 168}
    assert totals.busy_ns[Lane.DEVICE] == 3848 - 1719 - 81 - 240 - 168
    assert totals.moves[Lane.H2D] == 3


def test_the_checker_agrees_and_can_disagree(token):
    run, _ = token
    check = {"num_experts": 5, "capacity": 6, "budget_bytes": run.tier.budget_bytes}
    check_timeline(run.spans, run.claims, **check)
    with pytest.raises(AssertionError):
        check_timeline(run.spans, run.claims, **(check | {"capacity": 5}))
    late = next(s for s in run.spans if s.op.kind is OpKind.EXPERT and s.op.experts == (3,))
    late.start_ns -= 1
    with pytest.raises(AssertionError, match="reads before"):
        check_timeline(run.spans, run.claims, **check)

"""One decoded token worked out by hand, to the nanosecond, on flat costs."""

from dataclasses import dataclass

import pytest

from moebench.harness.conformance.invariants import check_timeline
from moebench.reports.formats.trace_events import trace_events
from moebench.substrate.engine.decisions import fetches, split
from moebench.substrate.engine.policies import Assignment, Placement, Prefetching
from moebench.substrate.engine.system import System
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.predict import NextGates
from moebench.systems.policies.route import ExactRouting
from tests.reports.trace_format import check_trace
from tests.substrate.engine.fakes import (
    RECORD_BYTES,
    FixedModel,
    FlatCosts,
    prices,
    rig,
    small_shape,
)

# Three MoE layers of five experts, top-2, six slots: L0 {0,1}, L1 {0,1}, L2 {0,1} to begin with.
#
#   device  attend 400, gate 20, expert 50, combine 10, predict 30, head 40
#   h2d     load 300            host  expert 200            d2h  return 15
#   control a device launch 5 (an expert operation 5 for each expert; the first one suffices to
#           start it), any other submission 3, reading a result back 7, one layer's decisions 11
#
# Prefill, one row, experts {0,1} everywhere.  c is the control clock after the event.
#
#   L0  attend  c 5     device    5 ..  405     gate  c 10    device  405 ..  425
#       wait    c 432   decide c 443            {0,1} c 453   device  448 ..  548
#       combine c 458   device  548 ..  558
#   L1  attend  c 463   device  558 ..  958     gate  c 468   device  958 ..  978
#       wait    c 985   decide c 996            {0,1} c 1006  device 1001 .. 1101
#       combine c 1011  device 1101 .. 1111
#   L2  attend  c 1016  device 1111 .. 1511     gate  c 1021  device 1511 .. 1531
#       wait    c 1538  decide c 1549           {0,1} c 1559  device 1554 .. 1654
#       combine c 1564  device 1654 .. 1664
#       head    c 1569  device 1664 .. 1704     wait  c 1711  = the first token
#
# Last uses are now L0 {7,8}, L1 {9,10}, L2 {11,12} (six arrivals counted first).
#
# Decode.  L0 uses {0,2}: 0 is there, 2 must be loaded and evicts L0's 1, used longest ago.
#
#   L0  attend  c 1716  device 1716 .. 2116     gate  c 1721  device 2116 .. 2136
#       wait    c 2143  decide c 2154           load 2 c 2157 h2d    2157 .. 2457
#       {0}     c 2162  device 2162 .. 2212     predict c 2167 device 2212 .. 2242
#       wait for the prediction: c max(2167, 2242) + 7 = 2249; prefetch 2, 3, 4 for L1
#       {2}     c 2254  device 2457 .. 2507     (12 for the control thread, 203 for the load)
#       combine c 2259  device 2507 .. 2517
#   h2d is free at 2457: prefetch 2 takes 2457 .. 2757 and evicts L1's 0, the oldest that may go;
#   prefetch 3 takes 2757 .. 3057 and evicts L1's 1; prefetch 4 could start at 3057.
#   L1  attend  c 2264  device 2517 .. 2917     gate  c 2269  device 2917 .. 2937
#       wait    c 2944: L1 uses {2,3}: 2 is a hit, 3 is in flight, prefetch 4 is cancelled
#       decide  c 2955  {2}   c 2960  device 2960 .. 3010
#       predict c 2965  device 3010 .. 3040
#       wait for the prediction: c max(2965, 3040) + 7 = 3047; nothing to prefetch
#       {3}     c 3052  device 3057 .. 3107     (12 for control, 5 for the prefetch)
#       combine c 3057  device 3107 .. 3117
#   L2  attend  c 3062  device 3117 .. 3517     gate  c 3067  device 3517 .. 3537
#       wait    c 3544: L2 uses {1,3}: 1 is there, 3 is for the host; no layer comes after
#       decide  c 3555  {3}   c 3558  host   3558 .. 3758     return c 3561  d2h 3758 .. 3773
#       {1}     c 3566  device 3566 .. 3616
#       combine c 3571  device 3773 .. 3783     (waited 157 for the host)
#       head    c 3576  device 3783 .. 3823     wait  c 3830  = the second token

PREFILL = [
    ("attend", 0, (), "device", 5, 405),
    ("gate", 0, (), "device", 405, 425),
    ("expert", 0, (0, 1), "device", 448, 548),
    ("combine", 0, (), "device", 548, 558),
    ("attend", 1, (), "device", 558, 958),
    ("gate", 1, (), "device", 958, 978),
    ("expert", 1, (0, 1), "device", 1001, 1101),
    ("combine", 1, (), "device", 1101, 1111),
    ("attend", 2, (), "device", 1111, 1511),
    ("gate", 2, (), "device", 1511, 1531),
    ("expert", 2, (0, 1), "device", 1554, 1654),
    ("combine", 2, (), "device", 1654, 1664),
    ("head", -1, (), "device", 1664, 1704),
]

DECODE = [
    ("attend", 0, (), "device", 1716, 2116),
    ("gate", 0, (), "device", 2116, 2136),
    ("load", 0, (2,), "h2d", 2157, 2457),
    ("expert", 0, (0,), "device", 2162, 2212),
    ("predict", 0, (), "device", 2212, 2242),
    ("expert", 0, (2,), "device", 2457, 2507),
    ("load", 1, (2,), "h2d", 2457, 2757),
    ("combine", 0, (), "device", 2507, 2517),
    ("attend", 1, (), "device", 2517, 2917),
    ("load", 1, (3,), "h2d", 2757, 3057),
    ("gate", 1, (), "device", 2917, 2937),
    ("expert", 1, (2,), "device", 2960, 3010),
    ("predict", 1, (), "device", 3010, 3040),
    ("expert", 1, (3,), "device", 3057, 3107),
    ("combine", 1, (), "device", 3107, 3117),
    ("attend", 2, (), "device", 3117, 3517),
    ("gate", 2, (), "device", 3517, 3537),
    ("expert", 2, (3,), "host", 3558, 3758),
    ("expert", 2, (1,), "device", 3566, 3616),
    ("return", 2, (3,), "d2h", 3758, 3773),
    ("combine", 2, (), "device", 3773, 3783),
    ("head", -1, (), "device", 3783, 3823),
]

COSTS = FlatCosts(
    prices(
        attend=400, gate=20, expert=50, combine=10, predict=30, head=40, load=300, host=200, back=15
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

    def assign(self, view, active):
        if view.layer == 2:
            return split(active, host=active.absent)
        return split(active, fetches(view.layer, active.absent))


@dataclass(kw_only=True)
class ThreeForLayerOne(Prefetching):
    """Experts 2, 3 and 4 of layer 1, in this order."""

    @property
    def predictor(self):
        return NextGates()

    def prefetch(self, view, forecast):
        return fetches(1, (2, 3, 4)) if view.layer == 0 and view.phase == "decode" else ()


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
    assert generation.token_ends_ns == [1711, 3830]
    assert flat(run.spans) == by_start(PREFILL + DECODE)


def test_what_became_of_every_expert(token):
    run, _ = token
    counts = run.counts["decode"]
    assert (counts.active, counts.hits, counts.in_flight) == (6, 3, 1)
    assert (counts.loads, counts.host, counts.replaced) == (1, 1, 0)
    assert counts.begun == 4  # what was loaded, and what the host computed, was not on its way
    # Three prefetches were asked for; the cancelled one was never issued and evicted nobody.
    assert (counts.prefetched, counts.prefetched_active, counts.prefetched_used) == (2, 2, 2)
    assert [(c.key, c.victim) for c in run.claims if not c.placed] == [(2, 1), (7, 5), (8, 6)]


def test_what_the_device_waited_for(token):
    run, _ = token
    # 12 before attend; after the gates 7 + 11 + 5 = 23, and 3 more for each load, host expert and
    # return submitted before: 26, 23, 29; twice 12 between a prediction and what waits for it.
    totals = run.timeline.totals["decode"]
    control = 12 + 26 + 12 + 23 + 12 + 29
    assert totals.stall_ns == {"control": control, "load": 203 + 5, "host": 157}
    assert totals.busy_ns[Lane.DEVICE] == 3823 - 1704 - control - 208 - 157
    assert totals.moved_bytes[Lane.H2D] == 3 * RECORD_BYTES


def test_the_file_for_perfetto_shows_the_same(token):
    run, _ = token
    trace = trace_events(run.timeline.records(), {})
    check_trace(trace)
    events = trace["traceEvents"]
    origin = 5  # the first span begins there

    def at(ns):
        return pytest.approx((ns - origin) / 1e3)

    drawn = [e for e in events if e["ph"] == "X"]
    expected = by_start(PREFILL + DECODE)
    assert sorted(e["ts"] for e in drawn) == [at(row[4]) for row in expected]
    assert sum(e["dur"] for e in drawn) * 1e3 == pytest.approx(sum(r[5] - r[4] for r in expected))
    # A load is submitted 3 after its slot was taken; a prefetch takes it when the link is free.
    # The prefetch of 4 is dropped when layer 1's gate is known.
    instants = [(e["name"], e["ts"]) for e in events if e["ph"] == "i"]
    assert instants == [
        ("token 1", at(1711)), ("evict L0 E1", at(2154)), ("evict L1 E0", at(2457)),
        ("evict L1 E1", at(2757)), ("cancel L1 E4", at(2944)), ("token 2", at(3830)),
    ]  # fmt: skip
    arrows = {}
    for event in events:
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], []).append((event["ph"], event["ts"]))
    assert sorted(arrows.values()) == [
        [("s", at(2157)), ("f", at(2457))],  # L0's 2
        [("s", at(2457)), ("f", at(2960))],  # L1's 2
        [("s", at(2757)), ("f", at(3057))],  # L1's 3
    ]


def test_the_checker_agrees_and_can_disagree(token):
    run, _ = token
    check = {"num_experts": 5, "capacity": 6}
    check_timeline(run.spans, run.claims, **check)
    with pytest.raises(AssertionError):
        check_timeline(run.spans, run.claims, **(check | {"capacity": 5}))
    late = next(s for s in run.spans if s.op.kind is OpKind.EXPERT and s.op.experts == (3,))
    late.start_ns -= 1
    with pytest.raises(AssertionError, match="reads before"):
        check_timeline(run.spans, run.claims, **check)

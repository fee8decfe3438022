"""Common weights on the host, or streamed; a system's options of how transfers go."""

from dataclasses import dataclass

import pytest

from moebench.harness.conformance.invariants import check_order
from moebench.substrate.engine.decisions import Fetch, fetches, split
from moebench.substrate.machines.costs import CostModel, HostProducts
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.systems.policies.assign import HostAll, LoadAll
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, prices, rig, small_shape
from tests.substrate.engine.own import Asks, Placed, Plans, model_of, of, run, system

TWO = small_shape(layers=2)
SHARED = small_shape(layers=2, shared=True)
PLACED = Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)])
CALM = [[(0, 1)], [(0, 1)]]


def lanes(ran, layer: int) -> dict[str, str]:
    kinds = (OpKind.ATTEND, OpKind.GATE, OpKind.SHARED, OpKind.DENSE, OpKind.COMBINE)
    return {s.op.kind: s.lane for s in ran.spans if s.op.layer == layer and s.op.kind in kinds}


# ----------------------------------------------------------------------------- on the host


def test_a_layer_whose_common_weights_are_on_the_host():
    # Attention and gate take 70 each there; the state comes over in 4 for the experts on the
    # device.  Shared experts follow the gate on the host, 140..210, and come over, too.
    ran = run(system(place=PLACED), model_of(SHARED, [CALM]), slots=8, homes=("host", "device"))
    assert of(ran, OpKind.ATTEND)[0] == (0, (), 0, 70)
    assert of(ran, OpKind.GATE)[0] == (0, (), 70, 140)
    assert of(ran, OpKind.SHARED)[0] == (0, (), 140, 210)
    assert of(ran, OpKind.RETURN, Lane.D2H) == [(0, (), 140, 144), (0, (), 210, 214)]
    assert of(ran, OpKind.EXPERT)[0] == (0, (0, 1), 144, 164)
    assert of(ran, OpKind.COMBINE)[0] == (0, (), 214, 216)
    # The next layer is on the device again.
    assert of(ran, OpKind.ATTEND)[1] == (1, (), 216, 246)
    host, device = lanes(ran, 0), lanes(ran, 1)
    assert host.pop(OpKind.COMBINE) is Lane.DEVICE
    assert set(host.values()) == {Lane.HOST}
    assert set(device.values()) == {Lane.DEVICE}


def test_the_host_waits_for_the_layer_before_it():
    # Layer 0 ends on the device at 55: attention of layer 1 is the host's, 55..125.
    ran = run(system(place=PLACED), model_of(TWO, [CALM]), slots=8, homes=("device", "host"))
    assert of(ran, OpKind.ATTEND) == [(0, (), 0, 30), (1, (), 55, 125)]
    assert of(ran, OpKind.GATE)[1] == (1, (), 125, 195)


def test_its_host_experts_come_after_its_gate():
    made = system(place=PLACED, assign=Plans(by=lambda view, a: split(a, host=a.absent)))
    ran = run(made, model_of(TWO, [[[(0, 2)], [(0, 1)]]]), slots=8, homes=("host", "device"))
    assert of(ran, OpKind.EXPERT, Lane.HOST) == [(0, (2,), 140, 195)]
    # The device gets the state for 0 at once, and 2's output when it is there.
    assert of(ran, OpKind.RETURN) == [(0, (), 140, 144), (0, (2,), 195, 199)]
    assert of(ran, OpKind.EXPERT, Lane.DEVICE)[0] == (0, (0,), 144, 154)


def test_a_dense_layer_on_the_host_and_the_head():
    # Layer 1 has no experts: attention and feed-forward are the host's, and the head is not.
    shape = small_shape(layers=2, dense_layers=(1,))
    place = Placed(pairs=[(0, 0), (0, 1)])
    ran = run(system(place=place), model_of(shape, [[[(0, 1)]]]), slots=4, homes=("device", "host"))
    assert lanes(ran, 1) == {OpKind.ATTEND: Lane.HOST, OpKind.DENSE: Lane.HOST}
    assert of(ran, OpKind.DENSE) == [(1, (), 125, 195)]
    assert of(ran, OpKind.RETURN) == [(1, (), 195, 199)]
    assert of(ran, OpKind.HEAD) == [(-1, (), 199, 205)]


def test_two_layers_on_the_host_and_all_experts_too():
    # Nothing but the sums is on the device: 0..140, then both experts 140..250 and their returns.
    made = system(assign=Plans(by=lambda view, active: split(active, host=active.absent)))
    ran = run(made, model_of(TWO, [CALM]), slots=2, homes=("host", "host"))
    assert of(ran, OpKind.EXPERT) == [
        (0, (0,), 140, 195), (0, (1,), 195, 250), (1, (0,), 396, 451), (1, (1,), 451, 506),
    ]  # fmt: skip
    # The last output is back at 254.
    assert of(ran, OpKind.COMBINE)[0] == (0, (), 254, 256)
    assert of(ran, OpKind.ATTEND)[1] == (1, (), 256, 326)


# ----------------------------------------------------------------------------- streamed


def test_streamed_weights_come_for_every_pass():
    # Layer 1's are asked for when layer 0 has been submitted, at 33, and take 300.
    model = model_of(TWO, [CALM, CALM])
    ran = run(system(place=PLACED), model, slots=8, passes=2, homes=("device", "stream"))
    assert of(ran, OpKind.STREAM, Lane.H2D)[0] == (1, (), 33, 333)
    assert of(ran, OpKind.ATTEND)[1] == (1, (), 333, 363)
    assert len(of(ran, OpKind.STREAM)) == 2
    assert ran.timeline.bytes_moved(Lane.H2D) == 2 * 10 * RECORD_BYTES
    assert ran.timeline.totals["prefill"].stall_ns == {"load": 333 - 55}


@pytest.mark.parametrize("twice", [False, True])
def test_streamed_weights_may_be_fetched_ahead(twice):
    ahead = [Fetch(1, None)]
    asks = Asks(opens=ahead, wanted={0: ahead} if twice else {}, discipline="committed")
    made = system(place=PLACED, prefetch=asks)
    ran = run(made, model_of(TWO, [CALM]), slots=8, homes=("device", "stream"))
    assert of(ran, OpKind.STREAM) == [(1, (), 0, 300)]
    assert of(ran, OpKind.ATTEND)[1] == (1, (), 300, 330)


@pytest.mark.parametrize("homes", [(), ("device", "device"), ("stream", "host")])
def test_what_is_not_streamed_is_not_fetched(homes):
    asks = Asks(opens=[Fetch(1, None)], discipline="committed")
    made = system(place=PLACED, prefetch=asks)
    ran = run(made, model_of(TWO, [CALM]), slots=8, homes=homes)
    assert {row[0] for row in of(ran, OpKind.STREAM)} <= {0}


def test_a_stream_and_loads_share_the_link_in_order():
    # Layer 0's 2 is loaded 33..73, then the stream goes 73..373.
    ran = run(
        system(place=PLACED), model_of(TWO, [[[(0, 2)], [(0, 1)]]]), slots=8,
        homes=("device", "stream"),
    )  # fmt: skip
    assert of(ran, OpKind.LOAD)[0] == (0, (2,), 33, 73)
    assert of(ran, OpKind.STREAM) == [(1, (), 73, 373)]


def test_a_stream_goes_behind_a_prefetch_whose_turn_came_before_it():
    # Every launch costs 20.  Layer 0's gate is known at 53, its experts are launched until 93, when
    # 3 is asked for; layer 1's stream is asked for when the sum is launched, at 113.
    asks = Asks(wanted={0: [Fetch(1, 3)]})
    ran = run(
        system(place=PLACED, prefetch=asks), model_of(TWO, [CALM]), slots=8,
        homes=("device", "stream"), costs=FlatCosts(prices(), launch_ns=20),
    )  # fmt: skip
    assert of(ran, OpKind.LOAD) == [(1, (3,), 93, 133)]
    assert of(ran, OpKind.STREAM) == [(1, (), 133, 433)]


def test_what_is_streamed_is_priced_by_its_bytes():
    profile, shape = load_profile("a6000"), small_shape(layers=2, dense_layers=(0,), shared=True)
    costs = CostModel(profile, shape, "bf16")
    for layer in 0, 1:
        op = Op(OpKind.STREAM, layer)
        size = 2 * shape.layer_common_params(layer)
        assert costs.moved_bytes(op) == size
        expected = profile.link.copy_fixed.ns + size / costs.h2d_bytes_per_ns
        assert costs.ns(op, Lane.H2D) == pytest.approx(expected, abs=1)
    assert shape.layer_common_params(0) != shape.layer_common_params(1)


def test_streamed_weights_may_be_on_the_disk():
    # Layer 1's are read 33..533 and copied 533..833.
    table = prices() | {(Lane.DISK, OpKind.STREAM): 500}
    made, model = system(place=PLACED), model_of(TWO, [CALM])
    homes = ("device", "stream")
    ran = rig(
        made, model, slots=8, costs=FlatCosts(table), homes=homes, streams_from_disk=True
    )  # fmt: skip
    ran.engine.generate([[3]], 1)
    assert of(ran, OpKind.STREAM) == [(1, (), 33, 533), (1, (), 533, 833)]
    assert of(ran, OpKind.ATTEND)[1] == (1, (), 833, 863)
    assert ran.timeline.bytes_moved(Lane.DISK) == 10 * RECORD_BYTES
    costs = CostModel(load_profile("a6000"), TWO, "bf16", module_hooks=True)
    read = Op(OpKind.STREAM, 0)
    alone = costs.profile.disk.access_latency.ns + costs.moved_bytes(read) / costs.read_bytes_per_ns
    assert costs.ns(read, Lane.DISK) == pytest.approx(alone, abs=1)
    assert costs.control_ns(read, Lane.DISK) == costs.copy_submit_ns


def test_a_streamed_head_comes_when_all_else_was_submitted():
    # The gate of layer 1 is waited for until 88; then experts, sum and head are asked for.
    homes = ("device", "device", "stream")
    ran = run(system(place=PLACED), model_of(TWO, [CALM, CALM]), slots=8, passes=2, homes=homes)
    assert of(ran, OpKind.STREAM)[0] == (-1, (), 88, 388)
    assert of(ran, OpKind.HEAD)[0] == (-1, (), 388, 394)
    assert len(of(ran, OpKind.STREAM)) == 2


def test_a_streamed_head_is_priced_by_its_own_bytes():
    shape = small_shape()
    costs = CostModel(load_profile("a6000"), shape, "bf16", module_hooks=True)
    head = Op(OpKind.STREAM, -1)
    assert costs.moved_bytes(head) == 2 * shape.vocab_size * shape.hidden_size
    assert costs.control_ns(head, Lane.H2D) == 66_000


@dataclass(kw_only=True)
class Copies(LoadAll):
    """Common weights on the host come to the device for three rows or more, once for each two."""

    def host_copies(self, rows):
        return -(-rows // 2) if rows >= 3 else 0


@pytest.mark.parametrize(("rows", "copies"), [(1, 0), (2, 0), (3, 2), (5, 3)])
def test_common_weights_on_the_host_may_be_copied_for_a_large_pass(rows, copies):
    made, model = system(place=PLACED, assign=Copies()), model_of(TWO, [[[(0, 1)] * rows] * 2])
    ran = rig(made, model, slots=8, costs=FlatCosts(prices()), homes=("host", "device"))
    ran.engine.generate([[3]] * rows, 1)
    came = [300 * (n + 1) for n in range(copies)]
    assert of(ran, OpKind.STREAM) == [(0, (), end - 300, end) for end in came]
    on_device = set(lanes(ran, 0).values()) == {Lane.DEVICE}
    assert on_device == bool(copies)
    check_order(ran.spans, ("stream" if copies else "host", "device"))
    if copies:
        assert of(ran, OpKind.ATTEND)[0] == (0, (), came[-1], came[-1] + 30)


def test_the_host_computes_again_in_a_small_pass():
    # Three rows of prompts are one pass; each token of one sequence is another.
    made, model = system(place=PLACED, assign=Copies()), model_of(TWO, [[[(0, 1)] * 3] * 2, CALM])
    ran = rig(made, model, slots=8, costs=FlatCosts(prices()), homes=("host", "device"))
    ran.engine.generate([[3, 3, 3]], 2)
    where = [s.lane for s in ran.spans if s.op.kind is OpKind.ATTEND and s.op.layer == 0]
    assert where == [Lane.DEVICE, Lane.HOST]


# ----------------------------------------------------------------------------- host, then disk


def test_experts_that_host_memory_keeps_are_never_read():
    # Three of four layers' experts pass through two records; 3 of layer 0 stays beside them.
    place = Placed(pairs=[(0, 0), (1, 0)], on_host=[(0, 3)])
    uses = [[[(0, 3)], [(0, 1)]], [[(0, 2)], [(0, 2)]], [[(0, 3)], [(0, 3)]]]
    made = system(place=place, assign=Plans(by=brief))
    ran = rig(made, model_of(TWO, uses), slots=4, costs=FlatCosts(prices()), host_records=3)
    ran.engine.generate([[3]], 3)
    read = [s.op.layer * 10 + s.op.experts[0] for s in ran.spans if s.op.kind is OpKind.READ]
    assert read == [11, 2, 12, 13]
    assert len(of(ran, OpKind.LOAD)) == 6


def brief(view, active):
    """What is absent is loaded for one use."""
    return split(active, [Fetch(view.layer, e, keep=False) for e in active.absent])


# ----------------------------------------------------------------------------- options


def test_without_overlap_operations_follow_each_other_over_all_lanes():
    model = model_of(TWO, [[[(0, 2)], [(1, 3)]]])
    asks = Asks(wanted={0: [Fetch(1, 3)]})
    made = system(place=PLACED, prefetch=asks, assign=HostAll(), overlap=False)
    ran = run(made, model, slots=8)
    for before, after in zip(ran.spans, ran.spans[1:], strict=False):
        assert after.start_ns >= before.end_ns
    # The load goes first, then 0: 33..73, 73..83; 2 is computed 83..93.
    assert of(ran, OpKind.LOAD)[0] == (0, (2,), 33, 73)
    assert of(ran, OpKind.EXPERT)[:2] == [(0, (0,), 73, 83), (0, (2,), 83, 93)]


def test_without_overlap_a_prefetch_finds_no_idle_time_before_its_gate():
    asks = Asks(wanted={0: [Fetch(1, 3)]})
    with_overlap = run(system(place=PLACED, prefetch=asks), model_of(TWO, [CALM]), slots=8)
    assert of(with_overlap, OpKind.LOAD) == [(1, (3,), 33, 73)]
    made = system(place=PLACED, prefetch=asks, overlap=False)
    assert of(run(made, model_of(TWO, [CALM]), slots=8), OpKind.LOAD) == []


def test_blocking_copies_hold_the_control_thread():
    # 2 comes 33..73 and 3 comes 73..113 while nothing else is submitted.
    made = system(place=PLACED, blocking_copies=True)
    model = model_of(small_shape(layers=2, top_k=3), [[[(0, 2, 3)], [(0, 1, 2)]]])
    ran = run(made, model, slots=8)
    assert of(ran, OpKind.LOAD)[:2] == [(0, (2,), 33, 73), (0, (3,), 73, 113)]
    assert of(ran, OpKind.EXPERT)[:3] == [
        (0, (0,), 113, 123),
        (0, (2,), 123, 133),
        (0, (3,), 133, 143),
    ]
    # Each wait costs what reading a result back does: 33 + 5, 78 + 5, 123 + 5.
    slow = run(made, model_of(model.shape, [[[(0, 2, 3)], [(0, 1, 2)]]]), slots=8,
               costs=FlatCosts(prices(), sync_ns=5))  # fmt: skip
    assert of(slow, OpKind.LOAD)[:2] == [(0, (2,), 38, 78), (0, (3,), 83, 123)]
    assert of(slow, OpKind.EXPERT)[0] == (0, (0,), 128, 138)


def test_a_blocking_stream_holds_the_control_thread():
    # Layer 1's attention is launched when its weights have come, at 333, and costs 20 to launch.
    made = system(place=PLACED, blocking_copies=True)
    ran = run(made, model_of(TWO, [CALM]), slots=8, homes=("device", "stream"))
    assert of(ran, OpKind.STREAM) == [(1, (), 33, 333)]
    late = run(made, model_of(TWO, [CALM]), slots=8, homes=("device", "stream"),
               costs=FlatCosts(prices(), launch_ns=20))  # fmt: skip
    ((_, _, _, came),) = of(late, OpKind.STREAM)
    assert of(late, OpKind.ATTEND)[1][2] == came + 20


def test_a_committed_prefetch_blocks_as_well_a_speculative_one_does_not():
    for discipline, first in ("committed", 70), ("speculative", 30):
        asks = Asks(opens=fetches(0, (2, 3)), discipline=discipline)
        made = system(place=PLACED, prefetch=asks, blocking_copies=True)
        ran = run(made, model_of(TWO, [CALM]), slots=8, costs=FlatCosts(prices(load=20)))
        assert of(ran, OpKind.ATTEND)[0][3] == first


def test_pinned_copies_and_expert_precision_are_the_cost_models():
    profile = load_profile("a6000")
    shape = small_shape().model_copy(update={"hidden_size": 4096, "expert_width": 14336})
    own, pinned, pageable = (
        CostModel(profile, shape, "bf16", pinned=how) for how in (None, True, False)
    )
    rates = profile.link.pinned_h2d, profile.link.pageable_h2d
    for costs, rate in zip((pinned, pageable), rates, strict=True):
        per_ns = rate.bytes_per_s * profile.link.in_engine_efficiency.ratio / 1e9
        assert costs.h2d_bytes_per_ns == pytest.approx(per_ns)
    assert own.h2d_bytes_per_ns in (pinned.h2d_bytes_per_ns, pageable.h2d_bytes_per_ns)
    # Experts are stored, moved and read at their own precision, all other weights at the run's.
    small = CostModel(profile, shape, "bf16", expert_precision="4bit", host=HostProducts("fused"))
    assert own.record_bytes == 2 * 3 * 4096 * 14336
    assert small.record_bytes < 0.3 * own.record_bytes
    load, expert = Op(OpKind.LOAD, 0, (), (0,)), Op(OpKind.EXPERT, 0, (1,), (0,))
    for op, lane in (load, Lane.H2D), (expert, Lane.DEVICE), (expert, Lane.HOST):
        assert small.ns(op, lane) < 0.5 * own.ns(op, lane)
    gate = Op(OpKind.GATE, 0, (1,))
    assert small.ns(gate, Lane.DEVICE) == own.ns(gate, Lane.DEVICE)

"""Spans become sums and pictures."""

import json

import pytest

from moebench.reports.formats.trace_events import trace_events
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import COSTS_KEPT, Costs, Timeline
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.options import build
from tests.reports.trace_format import check_trace
from tests.substrate.engine.fakes import (
    FlatCosts,
    host_memory,
    prices,
    random_trace,
    rig,
    small_shape,
)


def span(
    kind: OpKind, lane: Lane, start: int, end: int, stall: int = 0, cause: str = "", moved: int = 0
) -> Span:
    made = Span(Op(kind, 0, (1,), (3,)), lane, start, end, stall, cause)
    made.moved_bytes = moved
    return made


def test_sums_are_kept_apart_by_phase_and_lane():
    timeline = Timeline()
    timeline.begin("prefill")
    timeline.add(span(OpKind.ATTEND, Lane.DEVICE, 5, 15, 5, "control"))
    timeline.add(span(OpKind.READ, Lane.DISK, 0, 40, moved=100))
    timeline.add(span(OpKind.LOAD, Lane.H2D, 40, 60, moved=100))
    timeline.begin("decode")
    timeline.add(span(OpKind.LOAD, Lane.H2D, 60, 80, moved=100))
    timeline.add(span(OpKind.STREAM, Lane.H2D, 80, 85, moved=7))
    timeline.add(span(OpKind.EXPERT, Lane.DEVICE, 80, 90, 65, "load"))
    timeline.add(span(OpKind.ATTEND, Lane.DEVICE, 92, 100, 2, "control"))
    timeline.add(span(OpKind.EXPERT, Lane.HOST, 60, 99, 7, "control"))
    timeline.add(span(OpKind.RETURN, Lane.D2H, 99, 101))
    assert timeline.totals["prefill"].busy_ns[Lane.DEVICE] == 10
    assert timeline.totals["decode"].busy_ns[Lane.DEVICE] == 18
    assert timeline.totals["prefill"].stall_ns == {"control": 5}
    assert timeline.totals["decode"].stall_ns == {"load": 65, "control": 2}
    assert timeline.stall_ns() == {"control": 7, "load": 65}, "the device's idle time alone"
    assert {lane: timeline.busy_ns(lane) for lane in Lane} == {
        Lane.DEVICE: 28, Lane.H2D: 45, Lane.D2H: 2, Lane.HOST: 39, Lane.DISK: 40, Lane.PREDICT: 0,
    }  # fmt: skip
    assert timeline.totals["prefill"].moved_bytes[Lane.H2D] == 100
    assert timeline.bytes_moved(Lane.H2D) == 207
    assert timeline.bytes_moved(Lane.DISK) == 100
    assert timeline.bytes_moved(Lane.D2H) == 0, "outputs are no weights"
    assert timeline.spans == [], "nothing asked for a picture"


def test_what_lanes_do_after_the_run_does_not_count():
    timeline = Timeline()
    timeline.begin("prefill")
    timeline.add(span(OpKind.LOAD, Lane.H2D, 0, 30, moved=100))
    timeline.add(span(OpKind.HEAD, Lane.DEVICE, 20, 50))
    timeline.add(span(OpKind.LOAD, Lane.H2D, 30, 110, moved=100))  # it outlasts the next token, too
    timeline.token(0, 52)
    timeline.begin("decode")
    timeline.add(span(OpKind.HEAD, Lane.DEVICE, 60, 80))
    timeline.add(span(OpKind.READ, Lane.DISK, 60, 90, moved=100))
    timeline.add(span(OpKind.LOAD, Lane.H2D, 110, 150, moved=100))  # it has not begun
    timeline.token(1, 82)
    assert (timeline.busy_ns(Lane.H2D), timeline.bytes_moved(Lane.H2D)) == (150, 300)
    timeline.finish(90)
    assert (timeline.busy_ns(Lane.H2D), timeline.bytes_moved(Lane.H2D)) == (30 + 60, 100)
    assert (timeline.busy_ns(Lane.DISK), timeline.bytes_moved(Lane.DISK)) == (30, 100)
    assert timeline.busy_ns(Lane.DEVICE) == 50
    assert timeline.totals["prefill"].busy_ns[Lane.H2D] == 90
    assert timeline.totals["decode"].moved_bytes[Lane.H2D] == 0
    timeline.add(span(OpKind.LOAD, Lane.H2D, 150, 160, moved=100))  # of a thread that goes on
    assert timeline.busy_ns(Lane.H2D) == 90


def test_a_span_that_has_not_ended_has_no_duration():
    for times in ((), (0,), (None, 5)):
        with pytest.raises(RuntimeError, match="attend on device has not ended"):
            _ = Span(Op(OpKind.ATTEND, 0), Lane.DEVICE, *times).duration_ns


# ----------------------------------------------------------------------------- measured costs


def experts(rows: tuple[int, ...]) -> Op:
    return Op(OpKind.EXPERT, 0, rows, tuple(range(len(rows))))


def test_experts_are_measured_where_they_run():
    machine = SimulatedMachine(FlatCosts(prices()), Timeline())
    costs = machine.timeline.costs
    several = machine.submit(experts((1, 4, 1)), Lane.DEVICE)
    one = machine.submit(experts((2,)), Lane.DEVICE)
    on_host = machine.submit(experts((4,)), Lane.HOST)
    machine.submit(Op(OpKind.ATTEND, 0), Lane.DEVICE)
    assert list(costs.device_ns) == [several.duration_ns / 3, one.duration_ns]
    assert list(costs.host_ns) == [on_host.duration_ns]
    assert list(costs.host_ns_per_row) == [on_host.duration_ns / 4]
    assert list(costs.load_ns) == [], "only the client knows which transfers were needed"


def test_the_first_expert_of_a_layer_on_the_host_is_marked():
    machine = SimulatedMachine(FlatCosts(prices()), Timeline())
    costs = machine.timeline.costs
    costs.estimate(machine)  # of no layer
    for layer in (0, 0, 2, 2, 2, 0):
        machine.submit(Op(OpKind.EXPERT, layer, (1,), (3,)), Lane.HOST)
    assert list(costs.host_first) == [False, True, False, True, False, False, True]


def test_measurements_begin_with_the_machines_estimates():
    machine = SimulatedMachine(FlatCosts(prices()), Timeline())
    costs = machine.timeline.costs
    costs.estimate(machine)
    first = {"load_ns": [40], "host_ns": [55], "host_ns_per_row": [55], "device_ns": [10]}
    assert {name: list(getattr(costs, name)) for name in first} == first
    # From the disk, each begins with a read of 60.
    from_disk = Costs()
    from_disk.estimate(SimulatedMachine(FlatCosts(prices()), Timeline(), host_memory(2)))
    first = {"load_ns": [100], "host_ns": [115], "host_ns_per_row": [115], "device_ns": [10]}
    assert {name: list(getattr(from_disk, name)) for name in first} == first
    machine.has_host_lane = False
    without = Costs()
    without.estimate(machine)
    assert list(without.host_ns) == list(without.host_ns_per_row) == []


def test_only_the_latest_measurements_are_kept():
    costs = Costs()
    for took in range(1, COSTS_KEPT + 11):
        costs.device_ns.append(took)
    assert list(costs.device_ns) == list(range(11, COSTS_KEPT + 11))


# ----------------------------------------------------------------------------- windows


def kept(window: tuple[int, int] | None, keep_all: bool = False) -> list[int]:
    """Tokens of a batch of five whose span is kept; token i's is 10i .. 10i + 9."""
    timeline = Timeline(keep_all)
    timeline.window(window)
    for token in range(5):
        timeline.begin("decode" if token else "prefill")
        timeline.add(span(OpKind.ATTEND, Lane.DEVICE, 10 * token, 10 * token + 9))
        timeline.token(token, 10 * token + 9)
    return [s.start_ns // 10 for s in timeline.spans]


@pytest.mark.parametrize(
    ("window", "tokens"),
    [(None, []), ((2, 4), [2, 3]), ((0, 2), [0, 1]), ((4, 9), [4]), ((3, 3), []), ((7, 9), [])],
)
def test_a_window_keeps_only_its_tokens(window, tokens):
    assert kept(window) == tokens
    assert kept(window, keep_all=True) == [0, 1, 2, 3, 4]


def test_a_window_ends_with_its_batch():
    timeline = Timeline()
    timeline.window((1, 9))
    timeline.token(0, 5)
    timeline.add(span(OpKind.ATTEND, Lane.DEVICE, 5, 9))
    timeline.window(None)
    timeline.add(span(OpKind.ATTEND, Lane.DEVICE, 9, 12))
    timeline.token(0, 12)
    timeline.add(span(OpKind.ATTEND, Lane.DEVICE, 12, 15))
    assert [s.start_ns for s in timeline.spans] == [5]


# ----------------------------------------------------------------------------- pictures


@pytest.fixture(scope="module")
def recorded():
    shape = small_shape(layers=3, experts=6, shared=True)
    model = TracedModel(random_trace(5, shape, [[3, 2]], 6))
    made = rig(build("smoe", {"alpha": "0"}), model, slots=7, host_records=8)
    made.engine.generate([[0] * 3, [0] * 2], 6)
    return made.timeline


def test_every_kept_span_is_a_record(recorded):
    spans = [row for row in recorded.records() if not row.get("instant")]
    assert len(spans) == len(recorded.spans)
    origin = recorded.spans[0].start_ns - spans[0]["start_us"] * 1e3
    for row, kept_span in zip(spans, recorded.spans, strict=True):
        assert row["lane"] == kept_span.lane.value
        assert row["kind"] == kept_span.op.kind.value
        assert row["experts"] == list(kept_span.op.experts)
        assert row["rows"] == list(kept_span.op.rows)
        assert row["start_us"] * 1e3 == pytest.approx(kept_span.start_ns - origin)
        assert row["end_us"] * 1e3 == pytest.approx(kept_span.end_ns - origin)
        assert row.get("stall_us", 0) * 1e3 == pytest.approx(kept_span.stall_ns)


def test_tokens_and_evictions_are_instants(recorded):
    notes = [row for row in recorded.records() if row.get("instant")]
    assert all(row["end_us"] == row["start_us"] for row in notes)
    tokens = [row["experts"] for row in notes if row["kind"] == "token"]
    assert tokens == [[i] for i in range(1, 7)]
    # Seven slots were filled before the run, so that every load evicted somebody.
    loads = [s for s in recorded.spans if s.op.kind is OpKind.LOAD]
    assert len([row for row in notes if row["kind"] == "evict"]) == len(loads) > 0


def test_the_trace_keeps_the_formats_rules(recorded):
    check_trace(trace_events(recorded.records(), {}))


def test_a_picture_has_what_happened_during_its_token():
    timeline = Timeline()
    timeline.window((1, 3))
    for token in range(3):
        timeline.add(span(OpKind.ATTEND, Lane.DEVICE, 10 * token, 10 * token + 9, token, "load"))
        timeline.note("evict", 10 * token + 5, 0, token)
        timeline.token(token, 10 * token + 9)
    assert timeline.picture() == [
        {"lane": "device", "kind": "attend", "layer": 0, "experts": [3], "rows": [1],
         "start_us": 0.001, "end_us": 0.01, "stall_us": 0.002, "waited_for": "load"},
        {"lane": "device", "kind": "evict", "layer": 0, "experts": [2], "instant": True,
         "start_us": 0.006, "end_us": 0.006},
        {"lane": "device", "kind": "token", "layer": -1, "experts": [3], "instant": True,
         "start_us": 0.01, "end_us": 0.01},
    ]  # fmt: skip


def test_what_is_not_kept_is_not_noted():
    timeline = Timeline()
    timeline.note("evict", 5, 0, 1)
    timeline.dropped([Op(OpKind.LOAD, 0, (), (3,))], 6)
    assert timeline.records() == timeline.picture() == []


@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize(("tokens", "shown"), [(5, 3), (3, 2), (2, 1)])
def test_the_picture_shows_the_last_token_of_the_window_that_was_reached(keep_all, tokens, shown):
    timeline = Timeline(keep_all)
    timeline.window((1, 4))
    for token in range(tokens):
        at = 1000 * token
        timeline.begin("decode" if token else "prefill")
        timeline.add(span(OpKind.ATTEND, Lane.DEVICE, at, at + 900))
        timeline.add(span(OpKind.LOAD, Lane.H2D, at + 800, at + 1300))  # into the next token
        timeline.token(token, at + 1000)
    load = (0.0, 0.3) if shown > 1 or keep_all else None  # prefill's spans are not kept
    expected = [load, (0.0, 0.9), (0.8, 1.3)]
    spans = [row for row in timeline.picture() if not row.get("instant")]
    found = [(row["start_us"], row["end_us"]) for row in spans]
    assert found == [times for times in expected if times is not None]
    assert json.loads(json.dumps(timeline.picture())) == timeline.picture()


def test_without_a_decoded_token_there_is_no_picture():
    assert Timeline().picture() == []
    timeline = Timeline(keep_all=True)
    timeline.window((1, 4))
    timeline.add(span(OpKind.ATTEND, Lane.DEVICE, 0, 9))
    timeline.token(0, 9)
    assert timeline.picture() == []

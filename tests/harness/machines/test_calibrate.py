"""From spans of measured passes to points, by hand."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from moebench.harness.machines import calibrate
from moebench.harness.machines.calibrate import _alike, _by_kind, _error, _gaps, _in_decode, _point
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.measured_times import Measured, Point
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.machines.timeline import Span


def span(kind: OpKind, start_ns: int, took_ns: int, rows: tuple[int, ...] = (1,), pairs: int = 0):
    op = Op(kind=kind, layer=0, rows=rows, pairs=pairs)
    made = Span(op, Lane.DEVICE)
    made.start_ns, made.end_ns = start_ns, start_ns + took_ns
    return made


def experts(count: int, took_ns: int):
    return span(OpKind.EXPERT, 0, took_ns, (1,) * count)


def test_a_point_is_the_median_with_its_middle_half():
    found = _point([10, 20, 30, 40, 50], 4, 7)
    assert (found.rows, found.pairs, found.ns) == (4, 7, 30)
    assert found.spread == pytest.approx(20 / 30, abs=1e-4)


def test_the_time_of_experts_is_a_line_over_their_number():
    passes = [[experts(n, 5_000 + 2_000 * n) for n in (1, 2, 4)] * 3]
    once, each = _in_decode(passes)
    assert once == pytest.approx(5_000)
    assert (each.ns, each.rows) == (2_000, 1)


def test_one_number_of_experts_leaves_nothing_that_is_taken_once():
    once, each = _in_decode([[experts(2, 8_000), experts(2, 8_000)]])
    assert (once, each.ns) == (0, 4_000)


def test_experts_of_several_rows_are_no_decode():
    prefill = span(OpKind.EXPERT, 0, 10**9, (3, 1))
    once, each = _in_decode([[experts(1, 7_000), experts(2, 9_000), prefill]])
    assert (once, each.ns) == (pytest.approx(5_000), 2_000)


def test_a_time_that_falls_with_the_number_has_no_constant_part():
    once, each = _in_decode([[experts(1, 9_000), experts(4, 8_000)]])
    assert once == 0
    assert each.ns == pytest.approx((9_000 + 2_000) / 2)


def test_a_time_that_the_clock_does_not_resolve_has_no_spread():
    found = _point([0, 0, 0, 0], 8, 36)
    assert (found.ns, found.spread) == (0, 0.0)


def test_points_are_by_kind_rows_and_for_attention_by_length():
    passes = [
        (8, 1, [span(OpKind.ATTEND, 0, 100, pairs=36), span(OpKind.GATE, 0, 7), experts(1, 999)]),
        (24, 1, [span(OpKind.ATTEND, 0, 300, pairs=300), span(OpKind.GATE, 0, 9)]),
    ]
    found = _by_kind(passes)
    assert set(found) == {OpKind.ATTEND, OpKind.GATE}
    assert [(p.ns, p.pairs) for p in found[OpKind.ATTEND]] == [(100, 36), (300, 300)]
    assert [(p.rows, p.ns) for p in found[OpKind.GATE]] == [(1, 8)]


def test_gaps_before_experts_are_decisions():
    spans = [
        span(OpKind.ATTEND, 0, 10), span(OpKind.GATE, 13, 5), span(OpKind.EXPERT, 28, 20),
        span(OpKind.ATTEND, 51, 10), span(OpKind.GATE, 64, 5), span(OpKind.EXPERT, 79, 20),
    ]  # fmt: skip
    assert _gaps([spans]) == {"gap_ns": 3, "decision_ns": 7}


def test_the_error_is_that_of_a_token_s_parts():
    device = {
        OpKind.EXPERT: (Point(rows=1, ns=100),), OpKind.GATE: (Point(rows=1, ns=50),),
        OpKind.HEAD: (Point(rows=1, ns=30),),
    }  # fmt: skip
    measured = Measured(
        shape="", what="", device=device, operation_ns=10, load_ns=0, load_after_ns=0, submit_ns=0,
        gap_ns=5, decision_ns=20, wake_ns=0,
    )  # fmt: skip
    token = [(OpKind.GATE, (1,)), (OpKind.EXPERT, (1, 1)), (OpKind.HEAD, (1,))]
    # 50 + 5, 10 + 200 + 20 + 5, 30 + 5: 325 ns; the clock says 300 a token
    spans = [span(OpKind.HEAD, 0, 100)]
    for n in (1, 2):
        at = 100 + 300 * (n - 1)
        spans += [span(kind, at, 10, rows) for kind, rows in token[:2]]
        spans.append(span(OpKind.HEAD, at + 200, 100))
    assert _error(measured, spans) == pytest.approx(325 / 300 - 1)


def test_operations_of_one_kind_and_equal_rows_are_alike():
    one = Op(OpKind.EXPERT, 0, (1, 1), experts=(2, 3))
    assert _alike(one) == _alike(Op(OpKind.EXPERT, 5, (1, 1), experts=(0, 7)))
    assert _alike(one) != _alike(Op(OpKind.EXPERT, 0, (2, 1), experts=(2, 3)))
    assert _alike(one) != _alike(Op(OpKind.LOAD, 0, (1, 1), experts=(2, 3)))


# ----------------------------------------------------------------------------- what is timed


class Clock:
    """Nanoseconds that pass when a machine works, or a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000
        monkeypatch.setattr("time.perf_counter_ns", lambda: self.now)


class Machine:
    """Carries out each operation after ``submit`` ns, for its own time; waking up takes some."""

    def __init__(self, clock: Clock, **took: int) -> None:
        self.clock, self.took = clock, took
        self.free, self.loads = 0, []
        self.ops: list[Any] = []
        self.waited: list[Any] = []
        self.has_host_lane = True

    def _ran(self, op: Op, lane: Lane, after: Sequence[Any] = ()) -> Any:
        self.clock.now += self.took["submit"]
        start = max([self.clock.now, self.free, *(one.end_ns for one in after)])
        self.free = start + self.took[op.kind.value]
        return Span(op, lane, start, self.free)

    def submit(self, op: Op, lane: Lane, after: Sequence[Any] = (), *work: Any) -> Any:
        self.ops.append((op, lane, *work))
        return self._ran(op, lane, after)

    def load(self, op: Op, client: Any) -> Any:
        assert client.slot_of(op) == 0
        assert client.claim(op, 0) is client.under_way(op, None) is client.arrived(op, 0, 0) is None
        self.loads.append(op)
        return self._ran(op, Lane.H2D)

    def wait(self, span: Any) -> None:
        self.waited.append(span)
        self.clock.now = max(self.clock.now, span.end_ns) + self.took["wake"]


SHAPE = SimpleNamespace(
    moe_layers=(1, 3), num_experts=4, top_k=2, vocab_size=50, max_positions=40, expert_params=100
)


def rig(machine: Any, **more: Any) -> Any:
    made = object.__new__(calibrate._Rig)
    made.shape, made._machine, made._draw = SHAPE, machine, np.random.default_rng(0)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_copies_are_timed_alone_and_in_a_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy takes 90 ns, handing it over 7, and waking up 20."""
    machine = Machine(Clock(monkeypatch), submit=7, load=90, wake=20)
    assert rig(machine).copies() == {
        "load_ns": 90, "load_after_ns": 90, "submit_ns": 7, "wake_ns": 20
    }  # fmt: skip
    assert len(machine.loads) == 2 * 16
    # A train lasts until its last copy ends; before it, each is waited for.
    assert [span.op for span in machine.waited] == [*machine.loads[:16], machine.loads[31]]
    assert machine.loads[:16] == machine.loads[16:]


def test_copies_are_spread_over_layers_and_experts() -> None:
    """Every fifth of eight, so that all are copied in turn."""
    ops = rig(None)._loads(9)
    assert {op.kind for op in ops} == {OpKind.LOAD}
    places = [(op.layer, *op.experts) for op in ops]
    assert places == [(1, 0), (3, 1), (1, 2), (3, 3), (3, 0), (1, 1), (3, 2), (1, 3), (1, 0)]
    assert {op.rows for op in ops} == {()}


def test_the_way_back_lasts_from_the_hosts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(Clock(monkeypatch), submit=7, gate=200, wake=20, **{"return": 30})
    assert rig(machine).return_ns() == 30
    assert [(op.kind, op.layer, op.rows, lane) for op, lane in machine.ops] == [
        (OpKind.GATE, 1, (1,), Lane.HOST), (OpKind.RETURN, 1, (1,), Lane.D2H)
    ] * 9  # fmt: skip


def test_a_record_is_read_alone_from_the_disk_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rig(None, _one_read=None).read_alone_ns() == 0
    clock, asked = Clock(monkeypatch), []

    def copy(layer: int, expert: int, slot: Any, first: int, last: int) -> None:
        asked.append((layer, expert, slot.nbytes, first, last))
        clock.now += 40 if len(asked) % 2 else 50

    reader = SimpleNamespace(stride_bytes=4096, copy=copy)
    assert rig(None, _one_read=reader).read_alone_ns() == 45
    assert asked[:3] == [(1, 0, 4096, 0, 4096), (3, 1, 4096, 0, 4096), (1, 2, 4096, 0, 4096)]
    assert len(asked) == 16


class Decoder:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> None:
            self.calls.append((name, *given))

        return call


@pytest.mark.parametrize("lane", [Lane.DEVICE, Lane.HOST])
def test_experts_are_timed_in_turn(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host from when they were handed over, on the device from their start."""
    machine = Machine(Clock(monkeypatch), submit=7, expert=300, wake=20)
    decoder = Decoder()
    monkeypatch.setattr(calibrate, "TRIALS", 5)
    if lane is Lane.HOST:  # it begins 7 ns before it is handed over
        ran = machine._ran

        def earlier(*given: Any) -> Any:
            span = ran(*given)
            span.start_ns -= 7
            return span

        machine._ran = earlier  # type: ignore[method-assign]
    times = rig(machine, _decoder=decoder)._expert_times(lane, 3)
    assert times == [307 if lane is Lane.HOST else 300] * 5
    (_, (prompt,), new), embed, *rest = decoder.calls
    assert (len(prompt), new, embed) == (3, 1, ("embed", "prefill"))
    assert 2 <= min(prompt) <= max(prompt) < 50
    places = [(1, 0), (3, 3), (1, 2), (3, 1), (1, 0)]  # every seventh of four experts
    assert [(op.layer, *op.experts) for op, *_ in machine.ops] == places
    assert {(op.kind, op.rows, on) for op, on, *_ in machine.ops} == {(OpKind.EXPERT, (3,), lane)}
    for layer, expert in places:
        (gate, of), (dispatch, at, ids, scores), *rest = rest
        assert (gate, of, dispatch, at) == ("gate", layer, "dispatch", layer)
        assert ids.tolist() == scores.tolist() == [[expert, (expert + 1) % 4]] * 3
    for (*_, work, to, experts_), (layer, expert) in zip(machine.ops, places, strict=True):
        assert (to, experts_) == (layer, (expert,))
        work("x")
    used = "compute_on_host" if lane is Lane.HOST else "compute"
    assert {name for name, *_ in decoder.calls[-5:]} == {used}


def test_experts_have_points_of_the_rows_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(Clock(monkeypatch), submit=7, expert=300, wake=20)
    made = rig(machine, _decoder=Decoder())
    monkeypatch.setattr(type(made), "_expert_times", lambda self, lane, rows: [rows, rows + 2])
    rows = [*range(1, 17), 20, 24, 32]  # of 40 positions
    points = tuple(Point(rows=n, ns=n + 1, spread=round(1 / (n + 1), 4)) for n in rows)
    assert made.experts_by_rows() == {Lane.DEVICE: points, Lane.HOST: points}
    machine.has_host_lane = False
    assert made.experts_by_rows() == {Lane.DEVICE: points}
    assert made.lengths([8, 28, 29, 120]) == [8, 28, 28, 28]  # twelve new tokens


def test_random_prompts_are_generated_and_the_devices_spans_returned() -> None:
    asked = []
    before, own = span(OpKind.HEAD, 0, 1), span(OpKind.HEAD, 5, 1)
    copy = Span(Op(OpKind.LOAD, 0), Lane.H2D, 0, 1)
    timeline = SimpleNamespace(spans=[before])

    def generate(prompts: Any, new_tokens: int) -> None:
        asked.append((prompts, new_tokens))
        timeline.spans += [own, copy]

    engine = SimpleNamespace(generate=generate)
    assert rig(None, _timeline=timeline, _engine=engine).generate([3, 5], 7) == [own]
    (((first, second), new),) = asked
    assert (len(first), len(second), new) == (3, 5, 7)
    assert all(2 <= token < 50 for token in first + second)


def test_copies_slow_the_operations_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone 100 and 40 ns; beside copies, which end at 900, 130 and 50, and after them 100."""
    machine = Machine(Clock(monkeypatch), submit=7, load=90, wake=20)
    until = SimpleNamespace(end_ns=900)
    monkeypatch.setattr(machine, "load", lambda op, client: machine.loads.append(op) or until)
    asked: list[Any] = []

    def generate(lengths: Any, new_tokens: int) -> list[Any]:
        asked.append((lengths, new_tokens))
        if len(asked) % 2:
            return [span(OpKind.ATTEND, 100, 90), span(OpKind.GATE, 200, 40),
                    span(OpKind.ATTEND, 300, 110)]  # fmt: skip
        return [span(OpKind.ATTEND, 500, 130), span(OpKind.GATE, 850, 50),
                span(OpKind.ATTEND, 800, 101), span(OpKind.COMBINE, 700, 9)]  # fmt: skip

    made = rig(machine, generate=generate)
    assert made.beside_copies(90.0) == round((130 + 50) / (100 + 40), 4)
    assert asked == [([28], 12)] * 10
    # As many copies as fit into the 310 ns of a text, and one more.
    assert len(machine.loads) == 5 * 4
    machine.loads.clear()
    made.beside_copies(1e-9)
    assert len(machine.loads) == 5 * 2048
    until.end_ns = 10
    assert made.beside_copies(90.0) == 1, "nothing ran beside them"
    # It waits for the last of four copies, and counts what ran beside any of them.
    made_, waited = list[Any](), list[Any]()

    def load(op: Op, client: Any) -> Any:
        made_.append(SimpleNamespace(end_ns=600 + 100 * (len(made_) % 4)))
        return made_[-1]

    monkeypatch.setattr(machine, "load", load)
    monkeypatch.setattr(machine, "wait", waited.append)
    assert made.beside_copies(90.0) == round((130 + 50) / (100 + 40), 4)
    assert waited == made_[3::4]
    monkeypatch.setattr(machine, "load", lambda op, client: machine.loads.append(op) or until)
    monkeypatch.setattr(made, "generate", lambda *given: [span(OpKind.ATTEND, 100, 90)])
    until.end_ns = 900
    assert made.beside_copies(90.0) == 1


@pytest.mark.parametrize("host", [True, False])
def test_a_profile_is_made_of_all_that_was_timed(
    host: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Three rounds of passes by batch and length; then experts, copies and a held-out prompt."""
    asked: list[Any] = []
    expert, more = Point(rows=1, ns=1), (Point(rows=2, ns=77), Point(rows=4, ns=99))
    token = [span(OpKind.HEAD, 0, 10), span(OpKind.GATE, 15, 5), span(OpKind.EXPERT, 30, 20),
             span(OpKind.HEAD, 55, 10)]  # fmt: skip

    class Rig:
        shape = SHAPE

        def __init__(self, checkpoint: Any, dtype: Any, link: Any, scratch: Any, card: Any,
                     stack: Any) -> None:  # fmt: skip
            asked.append((checkpoint, dtype, link, scratch, card))

        def lengths(self, wanted: Sequence[int]) -> list[int]:
            return [min(n, 100) for n in wanted]

        def generate(self, lengths: Any, new_tokens: int) -> list[Span]:
            asked.append((lengths, new_tokens))
            return token

        def experts_by_rows(self) -> Any:
            points = (expert, *more)
            return {Lane.DEVICE: points, Lane.HOST: more} if host else {Lane.DEVICE: points}

        def copies(self) -> dict[str, float]:
            return {"load_ns": 1, "load_after_ns": 2, "submit_ns": 3, "wake_ns": 4}

        def read_alone_ns(self) -> float:
            return 5

        def return_ns(self) -> float:
            return 6

        def beside_copies(self, load_ns: float) -> float:
            assert load_ns == 2
            return 1.5

    monkeypatch.setattr(calibrate, "_Rig", Rig)
    monkeypatch.setattr(calibrate, "disk_rates", lambda folder: f"rates in {folder.name}")
    monkeypatch.setattr(calibrate, "open_checkpoint", lambda path: f"opened {path.name}")
    monkeypatch.setattr(calibrate, "shape_hash", lambda shape: "a hash")
    monkeypatch.setattr(calibrate, "profile_of", lambda *given: given)
    monkeypatch.setattr(calibrate, "copy_rate", lambda card, size, pinned: (card, size, pinned))
    card = None if host else "a card"
    precision = "fp32" if host else "bf16"
    found = calibrate.calibrate(tmp_path / "model", 4.0 if host else None, tmp_path, card,
                                precision)  # fmt: skip
    measured, record, shape, disk, error, link, on, rate = found
    dtype = torch.float32 if host else torch.bfloat16
    assert asked[0] == ("opened model", dtype, 4.0 if host else None, tmp_path, card)
    passes = [([n] * batch, 12) for batch in (1, 3) for n in (8, 40, 100)]
    assert asked[1:] == passes * 3 + [([72], 12)]
    assert measured == Measured(
        shape="a hash", what=f"model, {precision}, one thread a side",
        device={
            OpKind.HEAD: (Point(rows=1, ns=10),), OpKind.GATE: (Point(rows=1, ns=5),),
            OpKind.EXPERT: (Point(rows=1, ns=20), *more),
        },
        host={OpKind.EXPERT: more} if host else {}, operation_ns=0, read_alone_ns=5,
        return_ns=6 if host else 0, beside_copies=1.5, load_ns=1, load_after_ns=2, submit_ns=3,
        wake_ns=4, gap_ns=5, decision_ns=5,
    )  # fmt: skip
    assert (record, shape, disk) == (100 * dtype.itemsize, SHAPE, f"rates in {tmp_path.name}")
    # 5 + 20 + 10 ns with gaps of 5, and a decision of 5, are 55: as the token took.
    assert error == 0
    assert (link, on) == (4.0 if host else None, card)
    assert rate == (None if host else ("a card", 200, False))
    with pytest.raises(UsageError) as caught:
        calibrate.calibrate(tmp_path, None, tmp_path, card, "fp16" if host else "int8")
    assert str(caught.value) == (
        "--precision fp16: not measured; allowed: fp32" if host else
        "--precision int8: not measured; allowed: bf16, fp16, fp32"
    )  # fmt: skip

"""Submission of operations by hand: their lanes, what they wait for, and predictions read once."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.substrate.engine.operations import DividedOperations, Operations, operations
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.memory.capacity import Home


class Machine:
    """Writes down what is submitted, and what is waited for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.submitted: list[tuple[Op, Lane, list[Span], Any, tuple[Any, ...]]] = []
        self.spans: list[Span] = []
        self.waited: list[Span] = []

    def submit(
        self, op: Op, lane: Lane, after: Sequence[Span] = (), work: Any = None, *args: Any
    ) -> Span:
        self.submitted.append((op, lane, [*after], work, args))
        self.spans.append(Span(op, lane))
        return self.spans[-1]

    def wait(self, span: Span) -> None:
        self.waited.append(span)

    def kinds(self) -> list[tuple[OpKind, Lane]]:
        return [(op.kind, lane) for op, lane, *_ in self.submitted]


class Model:
    shape = SimpleNamespace(num_layers=2)

    def attend(self, layer: int) -> None: ...

    def gate(self, layer: int) -> None: ...

    def compute(self, layer: int, experts: Any, form: int = 0) -> None: ...

    def compute_on_host(self, *args: Any) -> None: ...

    def combine(self, layer: int) -> None: ...

    def head(self) -> None: ...


class Hearing(Eviction):
    """Hears of forecasts."""

    def victim(self, allowed: Any, incoming: int) -> int | None:
        return None

    def foresee(self, forecast: Any) -> None:
        self.heard = [*getattr(self, "heard", []), forecast]


class Streams:
    """Transfers of common weights, one span for each."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def common(self, layer: int) -> Span:
        self.spans.append(Span(Op(OpKind.STREAM, layer), Lane.H2D))
        return self.spans[-1]


MODEL = Model()
ATTEND = [Op(OpKind.ATTEND, layer, (3,), (), 9, 9) for layer in range(2)]
HEAD = Op(OpKind.HEAD, -1, (1,))


def plain(evict: Any = None) -> tuple[Operations, Machine]:
    machine = Machine()
    return Operations(MODEL, machine, evict or Hearing()), machine  # type: ignore[arg-type]


def divided(*homes: Home) -> tuple[DividedOperations, Machine, Streams]:
    machine, streams = Machine(), Streams()
    made = operations(MODEL, machine, Hearing(), streams, homes)  # type: ignore[arg-type]
    assert isinstance(made, DividedOperations)
    made.begin(0)
    return made, machine, streams


def test_only_weights_off_the_device_need_another_submission() -> None:
    made = [
        operations(MODEL, Machine(), Hearing(), Streams(), homes)  # type: ignore[arg-type]
        for homes in ((), ("device", "device"), ("device", "host"), ("device", "device", "stream"))
    ]
    assert [type(one) for one in made] == [Operations] * 2 + [DividedOperations] * 2


def test_all_parts_of_a_layer_are_the_devices() -> None:
    ops, machine = plain()
    loaded = Span(Op(OpKind.LOAD, 1), Lane.H2D)
    assert ops.copies(1) == ()
    spans = [
        ops.attend(ATTEND[1], 1),
        ops.common(OpKind.GATE, 1, 3, MODEL.gate),
        ops.device_expert(1, 5, 2, (loaded,), 1),
        ops.device_experts(Op(OpKind.EXPERT, 1, (1, 2), (3, 4), form=1)),
        ops.combine(1, 3, (loaded,)),
        ops.head(HEAD),
    ]
    assert spans == machine.spans
    assert machine.submitted == [
        (ATTEND[1], Lane.DEVICE, [], MODEL.attend, (1,)),
        (Op(OpKind.GATE, 1, (3,)), Lane.DEVICE, [], MODEL.gate, (1,)),
        (Op(OpKind.EXPERT, 1, (2,), (5,), form=1), Lane.DEVICE, [loaded], MODEL.compute,
         (1, (5,), 1)),
        (Op(OpKind.EXPERT, 1, (1, 2), (3, 4), form=1), Lane.DEVICE, [], MODEL.compute,
         (1, (3, 4), 1)),
        (Op(OpKind.COMBINE, 1, (3,)), Lane.DEVICE, [loaded], MODEL.combine, (1,)),
        (HEAD, Lane.DEVICE, [], MODEL.head, ()),
    ]  # fmt: skip


def test_an_expert_on_the_host_returns_its_rows() -> None:
    ops, machine = plain()
    before = Span(Op(OpKind.ATTEND, 1), Lane.DEVICE)
    back = ops.host_expert(1, 5, 2, (before,), early=True, form=1)
    host = machine.spans[0]
    assert machine.submitted == [
        (Op(OpKind.EXPERT, 1, (2,), (5,), form=1), Lane.HOST, [before], MODEL.compute_on_host,
         (1, (5,), True, 1)),
        (Op(OpKind.RETURN, 1, (2,), (5,)), Lane.D2H, [host], None, ()),
    ]  # fmt: skip
    assert back is machine.spans[1]


def test_experts_together_on_the_host_return_as_many_rows_as_the_most_used_has() -> None:
    ops, machine = plain()
    ops.host_experts(1, [5, 2], [3, 7])
    assert machine.submitted == [
        (Op(OpKind.EXPERT, 1, (3, 7), (5, 2)), Lane.HOST, [], MODEL.compute_on_host,
         (1, (5, 2), False, 0)),
        (Op(OpKind.RETURN, 1, (7,), (5, 2)), Lane.D2H, [machine.spans[0]], None, ()),
    ]  # fmt: skip


# ----------------------------------------------------------------------------- predictions


class Predictor:
    """A predictor by hand; two of one name are equal."""

    def __init__(self, name: str = "one", lane: Lane = Lane.DEVICE, **of: bool) -> None:
        self.name, self.lane = name, lane
        self.wraps, self.in_background = of.get("wraps", False), of.get("background", False)
        self.asks = of.get("asks", True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Predictor) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def asked(self, view: Any) -> bool:
        return self.asks

    def op(self, view: Any) -> Op:
        return Op(OpKind.PREDICT, view.layer, (1,))

    def forecast(self, *args: Any) -> None: ...


def view(layer: int = 0, next_layer: int | None = 1) -> Any:
    return SimpleNamespace(layer=layer, next_layer=next_layer)


def test_equal_predictors_of_a_layer_share_a_prediction() -> None:
    ops, machine = plain()
    first, seen = Predictor(), view()
    span = ops.predict(first, seen, [3])  # type: ignore[arg-type]
    assert machine.submitted == [
        (Op(OpKind.PREDICT, 0, (1,)), Lane.DEVICE, [], first.forecast, (seen, MODEL, [3]))
    ]
    assert ops.predict(Predictor(), seen, []) is span  # type: ignore[arg-type]
    other = ops.predict(Predictor("two", Lane.PREDICT), seen, [])  # type: ignore[arg-type]
    assert machine.submitted[-1][1] is Lane.PREDICT
    assert other is not span
    ops.next_layer()
    assert ops.predict(Predictor(), seen, []) not in (span, other)  # type: ignore[arg-type]


def test_what_nobody_asks_for_is_not_predicted() -> None:
    ops, machine = plain()
    assert ops.predict(None, view(), []) is None
    assert ops.predict(Predictor(), view(1, None), []) is None  # type: ignore[arg-type]
    assert ops.predict(Predictor(asks=False), view(), []) is None  # type: ignore[arg-type]
    assert machine.submitted == []
    wrapping = Predictor(wraps=True)
    assert ops.predict(wrapping, view(1, None), []) is not None  # type: ignore[arg-type]


def test_a_prediction_is_waited_for_and_heard_of_once() -> None:
    evict = Hearing()
    ops, machine = plain(evict)
    assert ops.forecast(None) == {}
    span = ops.predict(Predictor(), view(), [])  # type: ignore[arg-type]
    assert span is not None
    span.value = {1: "scores"}
    assert ops.forecast(span) == ops.forecast(span) == {1: "scores"}
    assert machine.waited == [span]
    assert evict.heard == [{1: "scores"}]


@pytest.mark.parametrize(
    ("background", "waits", "waited"),
    [(True, False, False), (True, True, True), (False, False, True), (False, True, True)],
)
def test_only_a_prediction_in_the_background_is_not_waited_for(
    background: bool, waits: bool, waited: bool
) -> None:
    ops, machine = plain()
    span = ops.predict(Predictor(background=background), view(), [])  # type: ignore[arg-type]
    assert span is not None
    span.value = {}
    ops.forecast(span, waits)
    assert (machine.waited == [span]) is waited


# ----------------------------------------------------------------------------- divided weights


def test_streamed_weights_come_before_their_layers_attention_and_the_head() -> None:
    ops, machine, streams = divided("stream", "device", "stream")
    ops.attend(ATTEND[0], 0)
    ops.attend(ATTEND[1], 1)
    ops.head(HEAD)
    assert [span.op.layer for span in streams.spans] == [0, -1]
    assert [after for _, _, after, *_ in machine.submitted] == [
        [streams.spans[0]], [], [streams.spans[1]]
    ]  # fmt: skip
    assert [work for *_, work, _ in machine.submitted] == [MODEL.attend, MODEL.attend, MODEL.head]
    ops, machine, streams = divided("stream", "stream")
    ops.head(HEAD)
    assert streams.spans == [], "the head's weights are on the device"


def test_a_layer_on_the_host_takes_the_devices_state_and_sends_its_own_back() -> None:
    ops, machine, _ = divided("device", "host")
    before = ops.attend(ATTEND[0], 0)
    attended = ops.attend(ATTEND[1], 1)
    gate = ops.common(OpKind.GATE, 1, 3, MODEL.gate)
    done = ops.device_expert(1, 5, 2, ())
    assert machine.kinds() == [
        (OpKind.ATTEND, Lane.DEVICE), (OpKind.ATTEND, Lane.HOST), (OpKind.GATE, Lane.HOST),
        (OpKind.RETURN, Lane.D2H), (OpKind.EXPERT, Lane.DEVICE),
    ]  # fmt: skip
    afters = [after for _, _, after, *_ in machine.submitted]
    state = machine.spans[3]
    assert afters == [[], [before], [], [gate], [state]]
    assert machine.submitted[3][0] == Op(OpKind.RETURN, 1, (3,))
    assert machine.submitted[1][3:] == (MODEL.attend, (1,))
    # The state is sent once, and the first operation that waits for it is enough.
    ops.combine(1, 3, (done,))
    assert machine.submitted[-1][2] == [done]
    assert len(machine.spans) == 6
    assert attended.lane is Lane.HOST


def test_experts_on_the_host_send_its_layers_state_too() -> None:
    for several in (False, True):
        ops, machine, _ = divided("host", "device")
        ops.attend(ATTEND[0], 0)
        if several:
            ops.host_experts(0, [1, 2], [3, 3])
        else:
            ops.host_expert(0, 1, 3)
        assert machine.kinds() == [
            (OpKind.ATTEND, Lane.HOST), (OpKind.RETURN, Lane.D2H), (OpKind.EXPERT, Lane.HOST),
            (OpKind.RETURN, Lane.D2H),
        ]  # fmt: skip
        ops.device_experts(Op(OpKind.EXPERT, 0, (1,), (3,)))
        assert machine.submitted[-1][2] == [machine.spans[1]]


def test_two_host_layers_after_another_hand_their_state_on() -> None:
    """The second one's attention does not wait for the device: the state is on the host already."""
    ops, machine, _ = divided("host", "host")
    ops.attend(ATTEND[0], 0)
    ops.attend(ATTEND[1], 1)
    assert [after for _, _, after, *_ in machine.submitted] == [[], []]
    ops.head(HEAD)
    assert machine.kinds()[2:] == [(OpKind.RETURN, Lane.D2H), (OpKind.HEAD, Lane.DEVICE)]
    assert machine.submitted[2][2] == [machine.spans[1]]
    # In the next pass the first attention waits for the head.
    ops.begin(0)
    ops.attend(ATTEND[0], 0)
    assert machine.submitted[-1][2] == [machine.spans[3]]


def test_a_pass_of_many_rows_copies_host_weights_as_often_as_it_is_told() -> None:
    ops, machine, streams = divided("host", "device")
    ops.begin(2)
    assert len(ops.copies(0)) == 2
    assert len(ops.copies(1)) == 0
    streams.spans.clear()
    ops.attend(ATTEND[0], 0)
    assert machine.submitted[-1][1] is Lane.DEVICE
    assert machine.submitted[-1][2] == [streams.spans[-1]]
    ops.common(OpKind.GATE, 0, 3, MODEL.gate)
    assert machine.submitted[-1][1] is Lane.DEVICE

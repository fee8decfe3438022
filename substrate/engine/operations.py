"""Submits a layer's operations to the lanes where their weights are."""

from collections.abc import Sequence
from typing import Any

from moebench.substrate.engine.decisions import Forecast, LayerView
from moebench.substrate.engine.policies import Eviction, Predictor
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span, Work, op_of
from moebench.substrate.memory.capacity import Home
from moebench.substrate.models.protocol import Model

#: An enum's member is looked up by a Python function, and these come with every operation.
_DEVICE, _HOST, _D2H = Lane.DEVICE, Lane.HOST, Lane.D2H
_EXPERT, _COMBINE, _RETURN = OpKind.EXPERT, OpKind.COMBINE, OpKind.RETURN

#: Experts' operations that are kept: of one row, or a few, all of a large model's experts.
_KEPT = 1 << 16


class _LayerOps(dict[tuple[OpKind, int, int], Op]):
    """An operation of a layer by kind, layer and rows: hundreds are asked for with each token."""

    def __missing__(self, key: tuple[OpKind, int, int]) -> Op:
        kind, layer, rows = key
        op = self[key] = op_of(kind, layer, (rows,))
        return op


class _ExpertOps(dict[tuple[int, int, int, int], Op]):
    """An operation of one expert by layer, expert, rows and form: thousands come in a second."""

    def __init__(self, kind: OpKind) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, key: tuple[int, int, int, int]) -> Op:
        if len(self) >= _KEPT:
            self.clear()
        layer, expert, rows, form = key
        op = self[key] = op_of(self._kind, layer, (rows,), (expert,), form)
        return op


#: These come again with every token, of every run.
_LAYER_OPS, _EXPERT_OPS, _RETURN_OPS = _LayerOps(), _ExpertOps(_EXPERT), _ExpertOps(_RETURN)


class Operations:
    """Common work, experts and predictions of one run whose common weights are on the device.

    Args:
        evict: is told what is predicted.
    """

    def __init__(self, model: Model, machine: Machine, evict: Eviction) -> None:
        self._model, self._machine, self._evict = model, machine, evict
        # Most policies do not listen, and to speak to one takes the machine's lock.
        self._tells_evict = type(evict).foresee is not Eviction.foresee
        #: What was predicted in this layer, and the prediction that was read last.
        self._predicted: list[tuple[Predictor, Span]] = []
        self._read: Span | None = None
        #: The last one that was made in the background.
        self._background: Span | None = None

    def begin(self, host_copies: int) -> None:
        """A pass begins, for which common weights on the host are copied so often."""

    def attend(self, op: Op, layer: int) -> Span:
        """Attention, with which a layer begins."""
        return self._machine.submit(op, _DEVICE, (), self._model.attend, layer)

    def common(self, kind: OpKind, layer: int, rows: int, work: Work) -> Span:
        """A part of a layer that is no routed expert, where its weights are."""
        op = _LAYER_OPS[kind, layer, rows]
        return self._machine.submit(op, _DEVICE, (), work, layer)

    def combine(self, layer: int, rows: int, after: Sequence[Span]) -> Span:
        """The sum of all outputs, with which a layer ends."""
        op = _LAYER_OPS[_COMBINE, layer, rows]
        return self._machine.submit(op, _DEVICE, after, self._model.combine, layer)

    def head(self, op: Op) -> Span:
        """The head, with which a pass ends."""
        return self.device(op, (), self._model.head)

    def device(self, op: Op, after: Sequence[Span], work: Work, *args: Any) -> Span:
        """An operation on the device."""
        return self._machine.submit(op, _DEVICE, after, work, *args)

    # ------------------------------------------------------------------ experts

    def device_experts(self, op: Op) -> Span:
        """Several experts of a layer that are on the device."""
        work = self._model.compute
        return self._machine.submit(op, _DEVICE, (), work, op.layer, op.experts, op.form)

    def device_expert(
        self, layer: int, expert: int, rows: int, after: Sequence[Span], form: int = 0
    ) -> Span:
        """One expert on the device, once it is there."""
        op = _EXPERT_OPS[layer, expert, rows, form]
        work = self._model.compute
        return self._machine.submit(op, _DEVICE, after, work, layer, op.experts, form)

    def host_expert(
        self, layer: int, expert: int, rows: int, after: Sequence[Span] = (), early: bool = False,
        form: int = 0,
    ) -> Span:  # fmt: skip
        """One expert on the host; its small output comes back over d2h.

        An ``early`` one is of a layer that is routed ahead.
        """
        op, work = _EXPERT_OPS[layer, expert, rows, form], self._model.compute_on_host
        span = self._machine.submit(op, _HOST, after, work, layer, op.experts, early, form)
        return self._machine.submit(_RETURN_OPS[layer, expert, rows, 0], _D2H, (span,))

    # ------------------------------------------------------------------ predictions

    def predict(
        self, predictor: Predictor | None, view: LayerView, done: Sequence[int]
    ) -> Span | None:
        """Have a predictor look ahead from a layer; one that was asked there has answered."""
        if predictor is None or (view.next_layer is None and not predictor.wraps):
            return None
        if not predictor.asked(view):
            return None
        for asked, span in self._predicted:
            if asked == predictor:
                return span
        op, work = predictor.op(view), predictor.forecast
        if predictor.lane is _DEVICE:
            span = self.device(op, (), work, view, self._model, done)
        else:
            span = self._machine.submit(op, predictor.lane, (), work, view, self._model, done)
        self._predicted.append((predictor, span))
        if predictor.in_background:
            self._background = span
        return span

    def forecast(self, predicted: Span | None, waits: bool = True) -> Forecast:
        """A prediction's result, for which the control thread waits once; empty without one.

        Args:
            waits: whether it also waits for one that is made in the background.
        """
        if predicted is None:
            return {}
        if predicted is not self._read:
            if waits or predicted is not self._background:
                self._machine.wait(predicted)
            self._read = predicted
            if self._tells_evict:
                with self._machine.lock:
                    self._evict.foresee(predicted.value)
        forecast: Forecast = predicted.value
        return forecast

    def next_layer(self) -> None:
        """Forget what was predicted in the layer before."""
        self._predicted = []


class DividedOperations(Operations):
    """The same where common weights of some layers are on the host, or streamed.

    Args:
        homes: where each layer's common weights are; after them, the head.
    """

    def __init__(
        self,
        model: Model,
        machine: Machine,
        evict: Eviction,
        transfers: Transfers,
        homes: Sequence[Home],
    ) -> None:
        super().__init__(model, machine, evict)
        self._transfers, self._homes = transfers, homes
        #: How often this pass copies common weights from the host to the device.
        self._host_copies = 0
        #: The last computation on the device; common work on the host whose state the device has
        #: not got; the transfer that brings it, until the device waits for that.
        self._last_on_device: Span | None = None
        self._on_host: Span | None = None
        self._coming: Span | None = None

    def begin(self, host_copies: int) -> None:
        """Common weights on the host may be streamed as well, in this pass."""
        self._host_copies = host_copies

    def attend(self, op: Op, layer: int) -> Span:
        """Attention, once the layer's common weights have come, if they are streamed."""
        copies = {"device": 0, "host": self._host_copies, "stream": 1}[self._homes[layer]]
        streams = [self._transfers.common(layer) for _ in range(copies)]
        if streams:
            return self.device(op, streams[-1:], self._model.attend, layer)
        return self._common(op, self._model.attend)

    def head(self, op: Op) -> Span:
        """The head, once it has come, if it is streamed."""
        streamed = "stream" in self._homes[self._model.shape.num_layers :]
        after = (self._transfers.common(op.layer),) if streamed else ()
        return self.device(op, after, self._model.head)

    def common(self, kind: OpKind, layer: int, rows: int, work: Work) -> Span:
        """The same; on the host, operations are in order."""
        return self._common(_LAYER_OPS[kind, layer, rows], work)

    def _common(self, op: Op, work: Work) -> Span:
        """A layer's first part reads what the device computed last, if the host did not do that."""
        if self._homes[op.layer] != "host" or self._host_copies:
            return self.device(op, (), work, op.layer)
        first = op.kind is OpKind.ATTEND and self._on_host is None
        after = (self._last_on_device,) if first and self._last_on_device is not None else ()
        self._on_host = self._machine.submit(op, _HOST, after, work, op.layer)
        return self._on_host

    def device(self, op: Op, after: Sequence[Span], work: Work, *args: Any) -> Span:
        """On the device, to which the state comes over if the host had it."""
        self._send()
        if self._coming is not None:
            after = (*after, self._coming)
            self._coming = None
        span = self._last_on_device = super().device(op, after, work, *args)
        return span

    def combine(self, layer: int, rows: int, after: Sequence[Span]) -> Span:
        """The same of a layer's sum."""
        return self.device(_LAYER_OPS[_COMBINE, layer, rows], after, self._model.combine, layer)

    def device_experts(self, op: Op) -> Span:
        """The same of several experts."""
        return self.device(op, (), self._model.compute, op.layer, op.experts, op.form)

    def device_expert(
        self, layer: int, expert: int, rows: int, after: Sequence[Span], form: int = 0
    ) -> Span:
        """The same of an expert."""
        op = _EXPERT_OPS[layer, expert, rows, form]
        return self.device(op, after, self._model.compute, layer, op.experts, form)

    def host_expert(
        self, layer: int, expert: int, rows: int, after: Sequence[Span] = (), early: bool = False,
        form: int = 0,
    ) -> Span:  # fmt: skip
        """The same as elsewhere; the device gets the layer's state before any expert's output."""
        self._send()
        return super().host_expert(layer, expert, rows, after, early, form)

    def _send(self) -> None:
        if self._on_host is not None:
            op = self._on_host.op
            state = op_of(_RETURN, op.layer, (op.rows[0],))
            self._coming = self._machine.submit(state, _D2H, (self._on_host,))
            self._on_host = None


def operations(
    model: Model, machine: Machine, evict: Eviction, transfers: Transfers, homes: Sequence[Home]
) -> Operations:
    """Those that a run needs whose common weights have these homes; none is the device."""
    if any(home != "device" for home in homes):
        return DividedOperations(model, machine, evict, transfers, homes)
    return Operations(model, machine, evict)

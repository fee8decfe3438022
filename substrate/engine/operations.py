"""Submission of a layer's operations to the lanes where their weights are."""

from collections.abc import Sequence
from typing import Any

from moebench.substrate.engine.decisions import Forecast, LayerView
from moebench.substrate.engine.policies import Eviction, Predictor
from moebench.substrate.engine.transfers import Transfers
from moebench.substrate.machines.protocol import Lane, Machine, Op, OpKind, Span, Work, op_of
from moebench.substrate.memory.capacity import Home
from moebench.substrate.models.protocol import Model

#: Enum members as globals: an enum looks them up in a Python function, too slow for each operation.
_DEVICE, _HOST, _D2H = Lane.DEVICE, Lane.HOST, Lane.D2H
_EXPERT, _COMBINE, _RETURN = OpKind.EXPERT, OpKind.COMBINE, OpKind.RETURN

#: How many operations of experts are cached: those of all experts of a large model, for few rows.
_KEPT = 1 << 16


class _LayerOps(dict[tuple[OpKind, int, int], Op]):
    """Cache of operations by kind, layer and rows: each token needs hundreds of them."""

    def __missing__(self, key: tuple[OpKind, int, int]) -> Op:
        kind, layer, rows = key
        op = self[key] = op_of(kind, layer, (rows,))
        return op


class _ExpertOps(dict[tuple[int, int, int, int], Op]):
    """Cache of operations of one expert by layer, expert, rows and form."""

    def __init__(self, kind: OpKind) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, key: tuple[int, int, int, int]) -> Op:
        if len(self) >= _KEPT:
            self.clear()
        layer, expert, rows, form = key
        op = self[key] = op_of(self._kind, layer, (rows,), (expert,), form)
        return op


#: Shared by all runs of a process, because every token repeats these operations.
_LAYER_OPS, _EXPERT_OPS, _RETURN_OPS = _LayerOps(), _ExpertOps(_EXPERT), _ExpertOps(_RETURN)


class Operations:
    """Submits a run's operations where all non-expert weights are on the device.

    Args:
        evict: its `foresee` gets each forecast that the control thread reads.
    """

    def __init__(self, model: Model, machine: Machine, evict: Eviction) -> None:
        self._model, self._machine, self._evict = model, machine, evict
        # Most policies leave `foresee` empty, and calling it takes the machine's lock.
        self._tells_evict = type(evict).foresee is not Eviction.foresee
        #: The predictions that this layer submitted, and the one that was read last.
        self._predicted: list[tuple[Predictor, Span]] = []
        self._read: Span | None = None
        #: The last prediction that runs in the background.
        self._background: Span | None = None

    def begin(self, host_copies: int) -> None:
        """Begin a forward pass that copies host non-expert weights ``host_copies`` times."""

    def copies(self, layer: int) -> Sequence[Span]:
        """Submit this pass's copies of a layer's non-expert weights to the device, if any."""
        return ()

    def attend(self, op: Op, layer: int) -> Span:
        """Submit a layer's attention."""
        return self._machine.submit(op, _DEVICE, (), self._model.attend, layer)

    def common(self, kind: OpKind, layer: int, rows: int, work: Work) -> Span:
        """Submit a part of a layer other than routed experts, such as its gate."""
        op = _LAYER_OPS[kind, layer, rows]
        return self._machine.submit(op, _DEVICE, (), work, layer)

    def combine(self, layer: int, rows: int, after: Sequence[Span]) -> Span:
        """Submit the sum of all expert outputs of a layer."""
        op = _LAYER_OPS[_COMBINE, layer, rows]
        return self._machine.submit(op, _DEVICE, after, self._model.combine, layer)

    def head(self, op: Op) -> Span:
        """Submit the output head."""
        return self.device(op, (), self._model.head)

    def device(self, op: Op, after: Sequence[Span], work: Work | None, *args: Any) -> Span:
        """Submit an operation on the device."""
        return self._machine.submit(op, _DEVICE, after, work, *args)

    # ------------------------------------------------------------------ experts

    def device_experts(self, op: Op) -> Span:
        """Submit the computation of several resident experts of a layer, as one operation."""
        work = self._model.compute
        return self._machine.submit(op, _DEVICE, (), work, op.layer, op.experts, op.form)

    def device_expert(
        self, layer: int, expert: int, rows: int, after: Sequence[Span], form: int = 0
    ) -> Span:
        """Submit the computation of one expert on the device, behind its transfer (``after``)."""
        op = _EXPERT_OPS[layer, expert, rows, form]
        work = self._model.compute
        return self._machine.submit(op, _DEVICE, after, work, layer, op.experts, form)

    def host_expert(
        self, layer: int, expert: int, rows: int, after: Sequence[Span] = (), early: bool = False,
        form: int = 0,
    ) -> Span:  # fmt: skip
        """Submit one expert on the host; return the transfer of its small output over d2h.

        ``early``: the layer is routed ahead and not dispatched yet.
        """
        op, work = _EXPERT_OPS[layer, expert, rows, form], self._model.compute_on_host
        span = self._machine.submit(op, _HOST, after, work, layer, op.experts, early, form)
        return self._machine.submit(_RETURN_OPS[layer, expert, rows, 0], _D2H, (span,))

    def host_experts(self, layer: int, experts: Sequence[int], rows: Sequence[int]) -> Span:
        """Submit several experts on the host as one operation; return the output's transfer.

        Args:
            rows: of each expert.  The output has one row for each of the pass, at most their sum.
        """
        op = Op(_EXPERT, layer, tuple(rows), tuple(experts))
        work = self._model.compute_on_host
        span = self._machine.submit(op, _HOST, (), work, layer, op.experts, False, 0)
        back = op_of(_RETURN, layer, (max(rows),), op.experts)
        return self._machine.submit(back, _D2H, (span,))

    # ------------------------------------------------------------------ predictions

    def predict(
        self, predictor: Predictor | None, view: LayerView, done: Sequence[int]
    ) -> Span | None:
        """Submit a prediction from a layer, or return the span of an equal predictor's."""
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
        """Return a prediction's result, after waiting for it once; empty without a prediction.

        Args:
            waits: whether the control thread also waits for a prediction in the background.
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
        """Forget the predictions of the layer before."""
        self._predicted = []


class DividedOperations(Operations):
    """Submits a run's operations where non-expert weights of some layers are not on the device.

    Args:
        homes: where each layer's non-expert weights are, then the head's: device, host or stream.
    """

    def __init__(
        self, model: Model, machine: Machine, evict: Eviction, transfers: Transfers,
        homes: Sequence[Home],
    ) -> None:  # fmt: skip
        super().__init__(model, machine, evict)
        self._transfers, self._homes = transfers, homes
        #: How often this pass copies host non-expert weights to the device.
        self._host_copies = 0
        #: The last computation on the device; the last one on the host whose state was not sent to
        #: the device; the transfer of that state, until a device operation waits for it.
        self._last_on_device: Span | None = None
        self._on_host: Span | None = None
        self._coming: Span | None = None

    def begin(self, host_copies: int) -> None:
        """Note how often this pass copies host non-expert weights to the device."""
        self._host_copies = host_copies

    def copies(self, layer: int) -> Sequence[Span]:
        """Submit the copies of a layer's weights if they are streamed, or copied from the host."""
        copies = {"device": 0, "host": self._host_copies, "stream": 1}[self._homes[layer]]
        return [self._transfers.common(layer) for _ in range(copies)]

    def attend(self, op: Op, layer: int) -> Span:
        """Submit attention, behind the copy of the layer's weights if they are streamed."""
        streams = self.copies(layer)
        if streams:
            return self.device(op, streams[-1:], self._model.attend, layer)
        return self._common(op, self._model.attend)

    def head(self, op: Op) -> Span:
        """Submit the head, behind the copy of its weights if they are streamed."""
        streamed = "stream" in self._homes[self._model.shape.num_layers :]
        after = (self._transfers.common(op.layer),) if streamed else ()
        return self.device(op, after, self._model.head)

    def common(self, kind: OpKind, layer: int, rows: int, work: Work) -> Span:
        """Submit a part of a layer other than routed experts, on the host or the device."""
        return self._common(_LAYER_OPS[kind, layer, rows], work)

    def _common(self, op: Op, work: Work) -> Span:
        """Submit non-expert work; a layer's first part on the host waits for the device's state."""
        if self._homes[op.layer] != "host" or self._host_copies:
            return self.device(op, (), work, op.layer)
        first = op.kind is OpKind.ATTEND and self._on_host is None
        after = (self._last_on_device,) if first and self._last_on_device is not None else ()
        self._on_host = self._machine.submit(op, _HOST, after, work, op.layer)
        return self._on_host

    def device(self, op: Op, after: Sequence[Span], work: Work | None, *args: Any) -> Span:
        """Submit an operation on the device, behind the transfer of the host's state if any."""
        self._send()
        if self._coming is not None:
            after = (*after, self._coming)
            self._coming = None
        span = self._last_on_device = super().device(op, after, work, *args)
        return span

    def combine(self, layer: int, rows: int, after: Sequence[Span]) -> Span:
        """Submit a layer's sum on the device."""
        return self.device(_LAYER_OPS[_COMBINE, layer, rows], after, self._model.combine, layer)

    def device_experts(self, op: Op) -> Span:
        """Submit several resident experts of a layer on the device."""
        return self.device(op, (), self._model.compute, op.layer, op.experts, op.form)

    def device_expert(
        self, layer: int, expert: int, rows: int, after: Sequence[Span], form: int = 0
    ) -> Span:
        """Submit one expert on the device, behind its transfer."""
        op = _EXPERT_OPS[layer, expert, rows, form]
        return self.device(op, after, self._model.compute, layer, op.experts, form)

    def host_expert(
        self, layer: int, expert: int, rows: int, after: Sequence[Span] = (), early: bool = False,
        form: int = 0,
    ) -> Span:  # fmt: skip
        """Submit one expert on the host, after sending the layer's state to the device."""
        self._send()
        return super().host_expert(layer, expert, rows, after, early, form)

    def host_experts(self, layer: int, experts: Sequence[int], rows: Sequence[int]) -> Span:
        """Submit several experts on the host, after sending the layer's state to the device."""
        self._send()
        return super().host_experts(layer, experts, rows)

    def _send(self) -> None:
        if self._on_host is not None:
            op = self._on_host.op
            state = op_of(_RETURN, op.layer, (op.rows[0],))
            self._coming = self._machine.submit(state, _D2H, (self._on_host,))
            self._on_host = None


def operations(
    model: Model, machine: Machine, evict: Eviction, transfers: Transfers, homes: Sequence[Home]
) -> Operations:
    """Return the `Operations` for non-expert weights with these homes; empty is the device."""
    if any(home != "device" for home in homes):
        return DividedOperations(model, machine, evict, transfers, homes)
    return Operations(model, machine, evict)

"""Predictors that ask the model itself; routing and prefetching share them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from moebench.substrate.engine.decisions import Forecast, LayerView
from moebench.substrate.engine.policies import Predictor
from moebench.substrate.machines.protocol import Op, OpKind, op_of
from moebench.substrate.models.protocol import Model
from moebench.substrate.terms import Lookahead


@dataclass(frozen=True, kw_only=True)
class NextGates(Predictor):
    """Runs norms and gates of later layers on this layer's state (Mixtral-Offloading; HybriMoE).

    Attributes:
        layers: how many of the layers that follow.
        in_prefill: whether it is asked in prefill too.
    """

    layers: int = 1
    in_prefill: bool = False  # type: ignore[misc]

    lookahead: ClassVar[Lookahead] = Lookahead.GATE

    def op(self, view: LayerView) -> Op:
        """One gate for each layer."""
        rows = (view.forward.rows,) * len(self._later(view))
        return op_of(OpKind.PREDICT, view.layer, rows)

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """What these gates say."""
        return {
            later: model.predict(view.layer, later, done, self.lookahead)
            for later in self._later(view)
        }

    def _later(self, view: LayerView) -> tuple[int, ...]:
        row = view.shape.moe_rows[view.layer]
        return view.shape.moe_layers[row + 1 : row + 1 + self.layers]


@dataclass(frozen=True, kw_only=True)
class NextGatesOnNormed(NextGates):
    """Runs gates of later layers on the state that this layer's own gate reads (DAOP §III)."""

    lookahead: ClassVar[Lookahead] = Lookahead.NORMED


@dataclass(frozen=True, kw_only=True)
class NextLayer(Predictor):
    """Runs the next layer's attention and gate on this layer's partial output (SMoE §IV-C).

    Of that, resident and shared experts are known; the next layer's KV cache is read.
    """

    lookahead: ClassVar[Lookahead] = Lookahead.LAYER

    def op(self, view: LayerView) -> Op:
        """An attention and a gate."""
        p = view.forward
        return Op(OpKind.PREDICT, view.layer, (p.rows,), (), p.context, p.pairs)

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """What the next layer's gate says; nothing where a layer without experts comes between."""
        later = view.layer + 1
        if later != view.next_layer:
            return {}
        return {later: model.predict(view.layer, later, done, self.lookahead)}


@dataclass(frozen=True, kw_only=True)
class ExactNextGate(Predictor):
    """Knows what the next gate will choose, in both phases and for nothing: an oracle.

    A replay alone can tell it.  Nothing is computed: where a paper's gate of this layer chooses for
    the next one, that gate's cost is the layer's own.
    """

    lookahead: ClassVar[Lookahead] = Lookahead.EXACT
    in_prefill: ClassVar[bool] = True

    def op(self, view: LayerView) -> Op:
        """No gate is run."""
        return op_of(OpKind.PREDICT, view.layer, ())

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """The next layer's choice: positive scores, highest first."""
        assert view.next_layer is not None
        exact = model.predict(view.layer, view.next_layer, done, self.lookahead)
        return {view.next_layer: exact}

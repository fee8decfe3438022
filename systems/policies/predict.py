"""Predictors that run later gates of the model itself, for routing ahead and for prefetching."""

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
        layers: number of following MoE layers to predict.
        in_prefill: whether it predicts in prefill too.
    """

    layers: int = 1
    in_prefill: bool = False  # type: ignore[misc]

    lookahead: ClassVar[Lookahead] = Lookahead.GATE

    def op(self, view: LayerView) -> Op:
        """Return the cost of a prediction: one gate for each predicted layer."""
        rows = (view.forward.rows,) * len(self._later(view))
        return op_of(OpKind.PREDICT, view.layer, rows)

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Return the gate scores of the predicted layers on this layer's state."""
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

    The partial output contains resident and shared experts; attention reads the layer's KV cache.
    """

    lookahead: ClassVar[Lookahead] = Lookahead.LAYER

    def op(self, view: LayerView) -> Op:
        """Return the cost of a prediction: one attention and one gate."""
        p = view.forward
        return Op(OpKind.PREDICT, view.layer, (p.rows,), (), p.context, p.pairs)

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Return the next layer's predicted scores; none if that layer has no experts."""
        later = view.layer + 1
        if later != view.next_layer:
            return {}
        return {later: model.predict(view.layer, later, done, self.lookahead)}


@dataclass(frozen=True, kw_only=True)
class ExactNextGate(Predictor):
    """Oracle that predicts exactly the next gate's choice, in both phases and at no cost.

    Only a replay can provide it.  No operation is charged: where a paper's gate of this layer
    chooses for the next one, that gate's cost is the layer's own.
    """

    lookahead: ClassVar[Lookahead] = Lookahead.EXACT
    in_prefill: ClassVar[bool] = True

    def op(self, view: LayerView) -> Op:
        """Return an operation without cost: no gate is run."""
        return op_of(OpKind.PREDICT, view.layer, ())

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Return the next layer's recorded choice as scores: its experts' are positive."""
        assert view.next_layer is not None
        exact = model.predict(view.layer, view.next_layer, done, self.lookahead)
        return {view.next_layer: exact}

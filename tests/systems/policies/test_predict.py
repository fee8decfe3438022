"""Predictors by hand: their costs and predictions, and merging of equal ones."""

from dataclasses import replace

import numpy as np
import pytest

from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.terms import Lookahead
from moebench.systems.duoserve import PathPredictor
from moebench.systems.options import build
from moebench.systems.policies.predict import NextGates, NextGatesOnNormed, NextLayer
from moebench.systems.policies.prefetch import NextGate
from tests.substrate.engine.fakes import FixedModel, rig, small_shape
from tests.systems.views import shape, view


class Asked:
    """Model whose predictions are the number of the call."""

    def __init__(self):
        self.questions = []

    def predict(self, layer, later, done, lookahead):
        self.questions.append((layer, later, tuple(done), lookahead))
        return np.full((1, 4), len(self.questions))


def seen_at(layer, rows=2):
    """Return the view of a decoded layer of six, of which 0 and 3 are dense."""
    model = shape(4, 2, 6, dense_layers=(0, 3), dense_width=8)
    seen = view([[0.4, 0.3, 0.2, 0.1]] * rows, 2, layer=layer)
    return replace(seen, shape=model, next_layer=model.next_moe_layers[layer])


@pytest.mark.parametrize(
    ("kind", "lookahead"), [(NextGates, Lookahead.GATE), (NextGatesOnNormed, Lookahead.NORMED)]
)
@pytest.mark.parametrize(
    ("layers", "layer", "later"),
    [(1, 1, [2]), (1, 2, [4]), (3, 1, [2, 4, 5]), (3, 2, [4, 5]), (3, 4, [5]), (9, 1, [2, 4, 5])],
)
def test_gates_of_the_layers_with_experts_that_follow(layers, layer, later, kind, lookahead):
    predictor, model, seen = kind(layers=layers), Asked(), seen_at(layer)
    op = predictor.op(seen)
    assert (op.kind, op.layer, op.rows) == (OpKind.PREDICT, layer, (2,) * len(later))
    forecast = predictor.forecast(seen, model, [0, 3])
    assert model.questions == [(layer, other, (0, 3), lookahead) for other in later]
    assert {key: scores[0, 0] for key, scores in forecast.items()} == {
        other: number for number, other in enumerate(later, 1)
    }


def test_the_next_layer_costs_its_attention():
    seen, model = seen_at(1), Asked()
    seen.forward.context, seen.forward.pairs = 70, 71
    op = NextLayer().op(seen)
    assert (op.kind, op.rows, op.context, op.pairs) == (OpKind.PREDICT, (2,), 70, 71)
    assert list(NextLayer().forecast(seen, model, [3])) == [2]
    assert model.questions == [(1, 2, (3,), Lookahead.LAYER)]


def test_nothing_is_predicted_across_a_layer_without_experts():
    model = Asked()
    assert NextLayer().forecast(seen_at(2), model, []) == {}
    assert model.questions == []


# --------------------------------------------------------------------------- equal ones


def kinds(system, overrides):
    """Return the classes of a system's predictors, routing's first."""
    return [type(predictor) for predictor in build(system, overrides).predictors]


class AsRouted(NextGate):
    """Prefetching with the same predictor as routing ahead."""

    @property
    def predictor(self):
        return NextGatesOnNormed()


def test_equal_predictors_are_one():
    system = build("daop", {})
    system.prefetch = AsRouted()
    assert system.route.predictor is not system.prefetch.predictor
    assert system.predictors == [NextGatesOnNormed()]
    assert system.lookaheads == {Lookahead.NORMED: 1}


def test_unequal_predictors_stay_separate():
    assert kinds("smoe", {"route": "predicted"}) == [NextGatesOnNormed, NextLayer]
    assert build("smoe", {"route": "predicted"}).lookaheads == {
        Lookahead.NORMED: 1, Lookahead.LAYER: 1,
    }  # fmt: skip
    assert NextGates() != NextGates(layers=3)
    assert NextGates() != NextGatesOnNormed()
    assert kinds("daop", {"prefetch": "next-gate"}) == [NextGatesOnNormed, NextGates]
    system = build("daop", {})
    system.prefetch = FarAhead()
    assert system.predictors == [NextGatesOnNormed(), NextGates(layers=3)]


def test_networks_are_their_own():
    one, other = PathPredictor(None, (3, 4)), PathPredictor(None, (3, 4))  # type: ignore[arg-type]
    assert len(dict.fromkeys([one, other, one])) == 2


def test_systems_have_their_default_predictors():
    assert kinds("moe-ondemand", {}) == kinds("flashmoe", {}) == kinds("duoserve", {}) == []
    assert kinds("smoe", {}) == [NextLayer]
    assert kinds("daop", {}) == [NextGatesOnNormed]


class FarAhead(NextGate):
    """Prefetching by the gates of the next three layers."""

    @property
    def predictor(self):
        return NextGates(layers=3)


SCORES = [[0.1, 0.2, 0.3, 0.4]]


@pytest.mark.parametrize(
    ("prefetch", "predictions"),
    [
        # Of four layers three have a next one; in decode all but the first are routed ahead.
        (AsRouted(), 3),
        (NextGate(), 6),
    ],
)
def test_an_equal_prediction_is_made_once_a_layer(prefetch, predictions):
    model = small_shape(layers=4)
    tables = {(step, layer): SCORES for step in range(2) for layer in range(4)}
    system = build("smoe", {"route": "predicted", "route.first": "1"})
    system.prefetch = prefetch
    made = rig(system, FixedModel(model, tables, tables), slots=8)
    made.engine.generate([[1]], 2)
    spans = [span for span in made.spans if span.op.kind is OpKind.PREDICT]
    assert len(spans) == len(made.engine.model.predicted) == predictions

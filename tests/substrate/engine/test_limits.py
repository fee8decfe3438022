"""The printed bound, on a run worked out by hand; random runs are in `test_engine`."""

import numpy as np

from moebench.harness.run.bound import bound
from moebench.substrate.terms import Gate
from moebench.substrate.traces.passes import PassTrace, RoutingTrace, TracedModel
from moebench.systems.options import build
from tests.substrate.engine.cases import steps_of
from tests.substrate.engine.fakes import FlatCosts, prices, rig, small_shape, top_k_of
from tests.substrate.engine.limits import fewest_loads


def rotating(rounds: int) -> RoutingTrace:
    """Two rows of one expert each: {0,1} in prefill, then {0,1} {0,2} {1,2} and again."""
    trace = RoutingTrace(small_shape(layers=1, experts=3, top_k=1), [[]])
    for pair in [(0, 1)] + rounds * [(0, 1), (0, 2), (1, 2)]:
        scores_TE = np.full((2, 3), 0.1)
        scores_TE[[0, 1], pair] = 0.8
        gate = Gate(scores_TE, top_k_of(scores_TE, 1))
        trace.batches[0].append(PassTrace((1, 1), {0: gate}, chosen=[0, 0]))
    return trace


def test_the_bound_does_not_depend_on_the_order_within_a_layer():
    # One slot.  Each pass hits the expert that the last one left, and loads one: 30 loads for 30
    # tokens.  Asked one after the other by id, Belady would count four misses for three tokens.
    costs = FlatCosts(prices(load=9000))
    made = rig(build("moe-ondemand"), TracedModel(rotating(10)), slots=1, costs=costs)
    generation = made.engine.generate([[0], [0]], 31)
    assert made.counts["decode"].loads == 30
    assert fewest_loads(steps_of(generation), 1) <= 30
    assert bound(made.engine, [generation])["ratio"] >= 1

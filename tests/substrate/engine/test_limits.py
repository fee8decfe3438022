"""What no run can beat: the fewest loads there can be, Belady, and the printed bound."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from hypothesis import given

from moebench.harness.run.measure import bound
from moebench.substrate.analysis.bound import belady_misses
from moebench.substrate.terms import Gate
from moebench.substrate.traces.passes import PassTrace, RoutingTrace, TracedModel
from moebench.systems.options import build
from tests.substrate.engine.cases import cases, examples, steps_of
from tests.substrate.engine.fakes import FlatCosts, prices, rig, small_shape, top_k_of


def fewest_loads(steps: Iterable[Iterable[int]], capacity: int) -> int:
    """The least a cache of this capacity can load when every step needs its keys at once.

    Between two steps it keeps those it holds or has just used whose next use comes first; the first
    ``capacity`` loads are free, as if it had held the best content from the start.
    """
    asked = [set(step) for step in steps]
    kept: set[int] = set()
    loads = 0
    for now, keys in enumerate(asked):
        loads += len(keys - kept)

        def next_use(key: int, now: int = now) -> int:
            return next((t for t in range(now + 1, len(asked)) if key in asked[t]), len(asked))

        again = [k for k in kept | keys if next_use(k) < len(asked)]
        kept = set(sorted(again, key=lambda k: (next_use(k), k))[:capacity])
    return max(0, loads - capacity)


@examples(300)
@given(cases())
def test_no_policy_loads_less_than_the_least_possible(case):
    made, generations = case.run()
    counts = made.engine.counts["decode"]
    least = sum(fewest_loads(steps_of(g), made.cache.slots) for g in generations)
    assert counts.loads + counts.prefetched + counts.host >= least


@examples(300)
@given(cases(systems=["moe-ondemand", "gpu-only"]))
def test_on_demand_never_beats_belady(case):
    made, generations = case.run()
    least = sum(belady_misses([*steps_of(g)], made.cache.slots) for g in generations)
    assert made.engine.counts["decode"].loads >= least


@examples(300)
@given(cases(systems=["moe-ondemand", "gpu-only"]))
def test_no_run_beats_its_printed_bound(case):
    made, generations = case.run()
    printed = bound(made.engine, generations)
    if case.passes == 1:
        assert printed == {"tpot_ms": None, "ratio": None}
    else:
        assert printed["tpot_ms"] > 0
        assert printed["ratio"] >= 1


@examples(200)
@given(cases(systems=["smoe"]))
def test_no_smoe_run_beats_its_printed_bound(case):
    case = replace(case, passes=max(2, case.passes))
    made, generations = case.run()
    assert bound(made.engine, generations)["ratio"] >= 1


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
    assert made.engine.counts["decode"].loads == 30
    assert fewest_loads(steps_of(generation), 1) <= 30
    assert bound(made.engine, [generation])["ratio"] >= 1

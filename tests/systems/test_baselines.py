"""On-demand loading in the forms that papers measured, by hand and against real dropping."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Fetch, split
from moebench.substrate.engine.policies import Assignment
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.baselines import ACC, MoEOnDemand
from moebench.systems.options import build
from tests.substrate.engine.cases import examples, flat_costs, shapes
from tests.substrate.engine.fakes import RECORD_BYTES, random_trace, rig, small_shape
from tests.substrate.engine.own import model_of, of, run
from tests.systems.views import shape

# Two layers of four experts, top-2, two slots; attention 30, a gate 3, an expert 10, the sum 2, the
# head 6, a load 40.  Nothing runs beside anything else:
#
#   L0   attend 0..30, gate ..33, load 0 33..73, load 1 73..113, compute ..123, ..133, sum ..135
#   L1   attend ..165, gate ..168, load 2 ..208, load 3 ..248, compute ..258, ..268, sum ..270
#   head 270..276
#
# The next token begins at 276 and uses the same experts: every one is copied again.

TWO = small_shape(layers=2)
USES = [[(0, 1)], [(2, 3)]]


def test_acc_by_hand():
    made = ACC()
    ran = run(made, model_of(TWO, [USES, USES]), slots=made.most_slots(TWO), passes=2)
    first = [(0, (0,), 33, 73), (0, (1,), 73, 113), (1, (2,), 168, 208), (1, (3,), 208, 248)]
    again = [(*load[:2], load[2] + 276, load[3] + 276) for load in first]
    assert of(ran, OpKind.LOAD) == first + again
    assert of(ran, OpKind.EXPERT)[:4] == [
        (0, (0,), 113, 123), (0, (1,), 123, 133), (1, (2,), 248, 258), (1, (3,), 258, 268),
    ]  # fmt: skip
    assert [row[2:] for row in of(ran, OpKind.HEAD)] == [(270, 276), (546, 552)]
    assert ran.counts["decode"].hits == 0
    assert ran.tier.peak_bytes == 2 * RECORD_BYTES


def test_a_prompt_passes_through_k_slots():
    # Three rows use all four experts: 2 takes the slot of 0 once that one has been computed.  The
    # control thread waits for each copy, so 1 is computed behind the copy of 2, until 173.
    ran = run(ACC(), model_of(TWO, [[[(0, 1), (1, 2), (2, 3)]] * 2]), slots=2, rows=3)
    assert of(ran, OpKind.LOAD)[:4] == [
        (0, (0,), 33, 73), (0, (1,), 73, 113), (0, (2,), 123, 163), (0, (3,), 173, 213),
    ]  # fmt: skip
    assert ran.tier.peak_bytes == 2 * RECORD_BYTES


@dataclass(kw_only=True)
class Drops(Assignment):
    """Assignment that loads missing experts for one use."""

    def assign(self, view, active):
        return split(active, [Fetch(view.layer, e, keep=False) for e in active.absent])


@examples(100)
@given(shapes(), flat_costs(), st.integers(0, 999), st.booleans(), st.sampled_from([(1,), (2, 3)]))
def test_k_slots_are_a_drop_after_use(model, costs, seed, beside, prompts):
    """Of two layers or more, at any costs, beside computation or not: the same spans."""
    if len(model.moe_layers) < 2:
        return
    trace = random_trace(seed, model, [prompts], 4)
    found = []
    for more in ({}, {"assign": Drops()}):
        system = ACC(overlap=beside, blocking_copies=not beside, **more)
        slots = system.most_slots(model)
        made = rig(system, TracedModel(trace), slots=slots, costs=costs)
        made.engine.generate([[0] * n for n in prompts], 4)
        found.append([(s.op, s.lane, s.start_ns, s.end_ns) for s in made.spans])
        assert sum(c.hits for c in made.counts.values()) == 0
    assert found[0] == found[1]


def test_a_cache_of_c_of_each_layer():
    model = shape(experts=8, top_k=3, layers=4)
    assert MoEOnDemand().most_slots(model) is None
    assert MoEOnDemand(cache=0).most_slots(model) == 3
    assert MoEOnDemand(cache=2).most_slots(model) == 8
    assert MoEOnDemand(cache=2, scope="layer").most_slots(model) == 8
    assert ACC().most_slots(model) == 3
    assert build("acc", {"cache": "null"}).most_slots(model) is None


def test_what_cannot_be_is_one_clear_line():
    with pytest.raises(UsageError, match=r"cache is -1; allowed: 0 or more"):
        MoEOnDemand(cache=-1)
    with pytest.raises(UsageError, match=r"cache=0 .* scope=layer"):
        MoEOnDemand(cache=0, scope="layer").most_slots(shape())
    with pytest.raises(UnknownNameError, match="cache"):
        build("gpu-only", {"cache": "1"})


def test_on_demand_without_options_is_what_it_was():
    made = MoEOnDemand()
    assert (made.overlap, made.blocking_copies, made.pinned_copies) == (True, None, None)
    assert made.cache is None

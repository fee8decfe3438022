"""What policies are told: sequences, states, costs, how busy the machine is; and when."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from moebench.substrate.engine.decisions import Fetch, fetches, split
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.options import build
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.smoe import ExpertCacheRouter
from tests.substrate.engine.fakes import FixedModel, FlatCosts, prices, rig, small_shape
from tests.substrate.engine.own import (
    Asks,
    Guess,
    Placed,
    Plans,
    Routes,
    evicted,
    model_of,
    of,
    row,
    run,
    system,
)

TWO = small_shape(layers=2)
PLACED = Placed(pairs=[(0, 0), (0, 1), (1, 0), (1, 1)])
CALM = [[(0, 1)], [(0, 1)]]


@dataclass(kw_only=True)
class Diary(LeastRecentlyUsed):
    """LRU that writes down what it is told."""

    told: list[Any] = field(default_factory=list)
    reads_hidden: bool = False
    reads_embedding: bool = False
    reads_token_norms: bool = False

    def start(self, shape, cache):
        super().start(shape, cache)
        self.told.append("start")

    def begin_sequences(self, prompts):
        self.told.append(prompts)

    def observe(self, view):
        self.told.append(view)

    def end_sequences(self):
        self.told.append("end")

    @property
    def views(self):
        return [entry for entry in self.told if hasattr(entry, "layer")]


class Blind(FixedModel):
    """A model whose states nobody may ask for."""

    def hidden(self, layer):
        raise AssertionError("nobody reads hidden states")

    def embedding(self):
        raise AssertionError("nobody reads embeddings")


def written(batches, passes: int, shape=TWO, **reads: bool) -> Diary:
    """What is told of batches of prompts; every layer of every pass uses 0 and 1."""
    diary = Diary(**reads)
    gates, at = {}, 0
    for prompts in batches:
        for step in range(passes):
            rows = len(prompts) if step else sum(map(len, prompts))
            for layer in shape.moe_layers:
                gates[at, layer] = [row(0, 1)] * rows
            at += 1
    model = (FixedModel if reads else Blind)(shape, gates)
    made = rig(system(place=PLACED, evict=diary), model, slots=4)
    for prompts in batches:
        made.engine.generate(prompts, passes)
    return diary


# ----------------------------------------------------------------------------- sequences


def test_a_policy_is_told_when_sequences_begin_and_end():
    told = written([[[5, 5, 8], [2]], [[1, 1]]], passes=2).told
    short = [e if isinstance(e, str) else getattr(e, "lengths", "view") for e in told]
    batch = ["view"] * 4
    assert short == ["start", [3, 1], *batch, "end", [2], *batch, "end"]


def test_prompts_come_with_embeddings_for_those_who_read_them():
    told = written([[[5, 5, 8], [2]]], passes=1, reads_embedding=True).told
    assert told[1].embedding_BH.tolist() == [[6], [2]]
    assert written([[[5]]], passes=1).told[1].embedding_BH is None


def test_hidden_states_are_shown_to_those_who_read_them():
    views = written([[[5]]], passes=2, reads_hidden=True).views
    assert [view.hidden_TH.tolist() for view in views] == [[[0, 0]], [[0, 1]], [[1, 0]], [[1, 1]]]
    assert {view.hidden_TH for view in written([[[5]]], passes=1).views} == {None}


def test_norms_of_states_are_shown_to_those_who_read_them():
    views = written([[[5]]], passes=2, reads_token_norms=True).views
    assert [view.norm_T.tolist() for view in views] == [[0], [1], [1], [2**0.5]]
    assert {view.hidden_TH for view in views} == {None}
    assert {view.norm_T for view in written([[[5]]], passes=1).views} == {None}


@dataclass(kw_only=True)
class Weighs(LeastRecentlyUsed):
    """LRU that may read the norms of weights."""

    asks: bool = True
    norms: Any = None

    @property
    def reads_weight_norms(self):
        return self.asks

    def weight_norms(self, norms_LE):
        self.norms = norms_LE.tolist()


def test_norms_of_weights_are_given_to_the_policies_that_read_them():
    for asks, found in ((True, [[1, 2]]), (False, None)):
        policy = Weighs(asks=asks)
        made = system(evict=policy)
        made.weight_norms(np.array([[1, 2]]))
        assert made.reads_weight_norms == asks
        assert policy.norms == found


def test_what_a_pass_is():
    views = written([[[7, 7, 7], [7, 7]]], passes=3).views
    passes = [
        (v.phase, v.forward.rows, v.forward.sequences, v.forward.context, v.forward.pairs)
        for v in views[::2]
    ]
    # A prompt of n looks back n (n + 1) / 2 times; a decoded row at the whole of its sequence.
    assert passes == [
        ("prefill", 5, (3, 2), 5, 6 + 3),
        ("decode", 2, (1, 1), 4 + 3, 4 + 3),
        ("decode", 2, (1, 1), 5 + 4, 5 + 4),
    ]
    assert [(v.layer, v.next_layer) for v in views[:2]] == [(0, 1), (1, None)]


def test_history_is_the_models_own_choice_in_this_pass_so_far():
    # With a layer routed ahead in decode, which uses others than the model chose.
    seen: list[list[list[int]]] = []

    def plan(view, active):
        seen.append([ids.tolist() for ids in view.forward.history])
        return split(active, fetches(view.layer, active.absent))

    expects = {(1, 0): (2, 3)}
    model = model_of(TWO, [[[(1, 0)], [(0, 1)]], [[(3, 0)], [(2, 1)]]], expects)
    route = Routes(ahead=(1,), looks=Guess())
    run(system(place=PLACED, route=route, assign=Plans(by=plan)), model, slots=8, passes=2)
    prefill = [[[[1, 0]]], [[[1, 0]], [[0, 1]]]]
    # Layer 1 is planned before layer 0, whose choice is known; then each at its turn.
    decode = [[[[3, 0]]], [[[3, 0]]], [[[3, 0]], [[2, 1]]]]
    assert seen == prefill + decode


@pytest.mark.parametrize("given", [0.0, 0.4])
def test_alpha_is_the_systems_where_routing_has_one(given):
    def shown(route):
        diary = Diary()
        made = system(place=PLACED, route=route, evict=diary, alpha=given)
        run(made, model_of(TWO, [CALM]), slots=4)
        return {view.alpha for view in diary.views}

    assert shown(ExpertCacheRouter()) == {given}
    assert shown(Routes()) == {0.0}


# ----------------------------------------------------------------------------- time and costs


def test_a_policy_may_ask_how_busy_a_lane_is():
    # Layer 0's gate is known at 33: 2 is on the link until 73, 3 on the host until 88 and its
    # output back at 92, 0 and shared experts on the device until 51.
    busy = {}

    class Curious(Asks):
        def prefetch(self, view, forecast):
            if view.layer == 0:
                busy.update({lane: view.lanes.backlog_ns(lane) for lane in Lane})
            return ()

    assign = Plans(
        by=lambda view, active: (
            split(active, fetches(0, [2]), [3])
            if view.layer == 0
            else split(active, fetches(1, active.absent))
        )
    )
    shape = small_shape(layers=2, top_k=3, shared=True)
    made = system(place=Placed(pairs=[(0, 0)]), assign=assign, prefetch=Curious())
    run(made, model_of(shape, [[[(0, 2, 3)], [(0, 1, 2)]]]), slots=8)
    assert busy == {
        Lane.DEVICE: 18,
        Lane.H2D: 40,
        Lane.HOST: 55,
        Lane.D2H: 59,
        Lane.DISK: 0,
        Lane.PREDICT: 0,
    }


def test_costs_are_an_estimate_and_then_what_was_measured():
    # Layer 0's 2 has two rows, its 3 has one: the host takes both.  Layer 1's 2 is loaded.
    seen = []

    def plan(view, active):
        costs = view.costs
        kinds = (costs.load_ns, costs.host_ns, costs.host_ns_per_row, costs.device_ns)
        seen.append([list(kind) for kind in kinds])
        if view.layer == 0:
            return split(active, host=active.absent)
        return split(active, fetches(1, active.absent))

    # A speculative transfer is no measure of a needed one.
    asks = Asks(wanted={0: [Fetch(1, 3)]})
    made = system(place=PLACED, assign=Plans(by=plan), prefetch=asks)
    use = [[[(0, 2), (2, 3)], [(0, 2), (0, 1)]], [[(0, 1), (0, 1)], [(0, 1), (0, 1)]]]
    ran = run(made, model_of(TWO, use), slots=8, rows=2, passes=2, host_records=8)
    # A load is all of its path, 60 from the disk and 40 over the link; a host expert is read, too.
    assert seen[0] == [[100], [115], [115], [10]]
    # The second's read takes 5 longer than the first's 55 on the host: neither waits for the lane.
    assert seen[1][1:3] == [[115, 115, 115], [115, 115 / 2, 115]]
    assert seen[1][3] == [10, 10]
    assert seen[2][0] == [100, 100]
    assert seen[2][1] == [115, 115, 115]
    reads = [experts for _, experts, *_ in of(ran, OpKind.READ)]
    assert reads == [(2,), (3,), (3,), (2,)]


def test_the_last_measurements_are_kept():
    shape = small_shape(layers=1, experts=2, top_k=1)
    # One slot, two experts in turn: every pass loads.
    model = model_of(shape, [[[(p % 2,)]] for p in range(80)])
    ran = run(system(), model, slots=1, passes=80, costs=FlatCosts(prices(load=70)))
    assert list(ran.timeline.costs.load_ns) == [70] * 64


# ----------------------------------------------------------------------------- after prefill


def test_experts_are_exchanged_between_prefill_and_decode():
    place = Placed(pairs=PLACED.pairs, after=[Fetch(0, 3, instead_of=1), Fetch(1, 0), Fetch(1, 2)])
    plans = Plans(by=lambda view, active: split(active, fetches(view.layer, active.absent)))
    use = [[(0, 3)], [(0, 2)]]
    ran = run(system(place=place, assign=plans), model_of(TWO, [CALM, use, use]), slots=5, passes=3)
    # Prefill ends at 116.  What is there is left alone; 2 takes the free slot.
    assert of(ran, OpKind.LOAD) == [(0, (3,), 116, 156), (1, (2,), 156, 196)]
    assert evicted(ran) == [(3, 1), (4 + 2, None)]
    # Layer 0's next gate is known at 149, before its 3 has come.
    counts = ran.counts["decode"]
    assert (counts.hits, counts.in_flight, counts.loads) == (7, 1, 0)


def test_they_come_with_every_batch():
    place = Placed(pairs=PLACED.pairs, after=[Fetch(0, 3, instead_of=1)])
    batch = [CALM, [[(0, 3)], [(0, 1)]]]
    back = [[[(0, 1)], [(0, 1)]], [[(0, 3)], [(0, 1)]]]
    model = model_of(TWO, batch + back)
    made = rig(system(place=place), model, slots=4, costs=FlatCosts(prices()))
    made.engine.generate([[3]], 2)
    made.engine.generate([[3]], 2)
    # The second prompt needs 1 again and evicts 3, used longest ago; then 3 comes for 1 again.
    assert evicted(made) == [(3, 1), (1, 3), (3, 1)]


def test_systems_need_nothing_for_themselves_unless_they_say_so():
    made = build("smoe")
    assert made.device_bytes == 0
    assert made.most_slots(small_shape()) is None


@dataclass(kw_only=True)
class OwnWeights(Routes):
    """The model's own choice; in layer 1, with weights of this policy."""

    def route(self, view):
        found = super().route(view)
        return found._replace(weights_TK=np.array([[0.75, 0.5]])) if view.layer == 1 else found


def test_weights_of_the_routing_replace_those_of_the_gate_in_its_layer_alone():
    two = small_shape(layers=2)
    model = model_of(two, [[[(0, 1)]] * 2] * 2)
    run(system(route=OwnWeights()), model, slots=8, passes=2)
    assert model.weighed == [(0, 1, [[0.75, 0.5]]), (1, 1, [[0.75, 0.5]])]

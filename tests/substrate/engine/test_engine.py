"""What must always hold, over random small models, budgets, systems and routing."""

from dataclasses import dataclass

import pytest
from hypothesis import given

from moebench.substrate.engine.system import Assigned, Assignment, Placement
from moebench.substrate.errors import IntegrityError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.options import build
from tests.substrate.engine.cases import cases, examples, steps_of
from tests.substrate.engine.checker import check_timeline
from tests.substrate.engine.fakes import (
    FixedModel,
    FlatCosts,
    prices,
    random_trace,
    rig,
    small_shape,
)

# ----------------------------------------------------------------------------- memory and time


@examples(500)
@given(cases())
def test_slots_lanes_and_budgets_at_every_instant(case):
    made, _ = case.run()
    check_timeline(
        made.spans,
        made.claims,
        num_experts=case.shape.num_experts,
        capacity=case.slots,
        budget_bytes=made.tier.budget_bytes,
    )
    made.cache.check_integrity()
    assert made.tier.used_bytes <= made.tier.peak_bytes <= made.tier.budget_bytes


@examples(200)
@given(cases())
def test_the_same_run_gives_the_same_spans(case):
    def recorded():
        made, generations = case.run()
        spans = [(s.op, s.lane, s.start_ns, s.end_ns, s.cause) for s in made.spans]
        return spans, made.claims, [g.token_ends_ns for g in generations]

    assert recorded() == recorded()


@examples(300)
@given(cases())
def test_every_active_expert_is_accounted_for(case):
    made, generations = case.run()
    by_kind = {(kind, lane): 0 for kind in OpKind for lane in Lane}
    for span in made.spans:
        by_kind[span.op.kind, span.lane] += max(1, len(span.op.experts))
    active = host = moved = 0
    for counts in made.engine.counts.values():
        assert counts.hits + counts.in_flight + counts.loads + counts.host == counts.active
        assert counts.prefetched_used <= counts.prefetched_active + counts.replaced
        assert max(counts.prefetched_active, counts.prefetched_used) <= counts.prefetched
        active, host = active + counts.active, host + counts.host
        moved += counts.loads + counts.prefetched
    assert by_kind[OpKind.EXPERT, Lane.DEVICE] == active - host
    assert by_kind[OpKind.EXPERT, Lane.HOST] == by_kind[OpKind.RETURN, Lane.D2H] == host
    assert by_kind[OpKind.LOAD, Lane.H2D] == moved
    assert by_kind[OpKind.READ, Lane.DISK] == moved * case.from_disk
    decoded = sum(len(keys) for g in generations for keys in steps_of(g))
    assert made.engine.counts["decode"].active == decoded


@examples(200)
@given(cases())
def test_phase_is_told_not_guessed(case):
    made, _ = case.run()
    one_batch = [
        ("decode" if step else "prefill", layer)
        for step in range(case.passes)
        for layer in case.shape.moe_layers
    ]
    assert made.phases == one_batch * len(case.batches)


@examples(200)
@given(cases())
def test_tokens_end_in_order_and_lanes_fit_into_the_run(case):
    made, generations = case.run()
    now = 0
    for generation in generations:
        assert generation.started_ns >= now
        assert [len(t) for t in generation.tokens] == [case.passes] * len(generation.tokens)
        assert generation.ttft_ns > 0
        assert all(step > 0 for step in generation.steps_ns)
        now = generation.token_ends_ns[-1]
    device = [s for s in made.spans if s.lane is Lane.DEVICE]
    stalls = sum(made.timeline.stall_ns().values())
    assert made.timeline.busy_ns(Lane.DEVICE) + stalls == device[-1].end_ns <= now


@examples(200)
@given(cases(systems=["gpu-only"]))
def test_gpu_only_moves_nothing_and_waits_for_nothing_but_control(case):
    made, _ = case.run()
    assert {s.lane for s in made.spans} == {Lane.DEVICE}
    assert set(made.timeline.stall_ns()) <= {"control"}
    assert all(c.hits == c.active for c in made.engine.counts.values())


# ----------------------------------------------------------------------------- transfers


@examples(300)
@given(cases(systems=["smoe"]))
def test_needed_loads_never_wait_for_a_prefetch_that_had_not_started(case):
    made, _ = case.run()
    first_lane = made.machine.load_path[0]
    needed = {id(span) for _, span in made.needed}
    prefetches = [s for s in made.spans if s.lane is first_lane and id(s) not in needed]
    for asked, load in made.needed:
        assert not [p for p in prefetches if asked <= p.start_ns < load.start_ns]


@examples(300)
@given(cases(systems=["smoe"]))
def test_only_transfers_that_start_evict(case):
    made, _ = case.run()
    started = [s for s in made.spans if s.op.kind is OpKind.LOAD]
    keys = [s.op.layer * case.shape.num_experts + s.op.experts[0] for s in started]
    assert sorted(c.key for c in made.claims if not c.placed) == sorted(keys)


def test_a_cancelled_prefetch_evicts_nobody():
    # Layer 1's predicted experts 0 and 1 are queued behind layer 0's own load of 3.  The true gate
    # is known while 0 is under way and before 1's turn: 1 never gets a slot.
    shape = small_shape(layers=2, experts=4)
    keep, want, guess = [[0.1, 0.1, 0.5, 0.3]], [[0.5, 0.3, 0.1, 0.1]], [[0.6, 0.2, 0.1, 0.1]]
    gates = {(0, 0): want, (0, 1): keep, (1, 0): keep, (1, 1): keep}
    system = build("moe-ondemand", {"prefetch": "next-gate"})
    model = FixedModel(shape, gates, {(1, 0): guess})
    system.place = _Placed(pairs=[(0, 0), (0, 1), (1, 2), (1, 3), (0, 2)])
    made = rig(system, model, slots=5, costs=FlatCosts(prices(load=1000, attend=1, gate=1)))
    made.engine.generate([[0]], 2)
    assert made.engine.counts["decode"].loads == 1
    assert made.engine.counts["decode"].prefetched == 1
    assert [(c.key, c.victim) for c in made.claims if not c.placed] == [(3, 0), (4 + 0, 1)]


def test_waiting_loads_take_the_slots_of_computed_experts():
    # One slot, three rows that each use another expert: every load waits for the last computation.
    shape = small_shape(layers=1, experts=3, top_k=1)
    rows = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]
    made = rig(build("moe-ondemand"), FixedModel(shape, {(0, 0): rows}), slots=1)
    made.engine.generate([[0], [0], [0]], 1)
    experts = [s for s in made.spans if s.op.kind is OpKind.EXPERT]
    loads = [s for s in made.spans if s.op.kind is OpKind.LOAD]
    assert [s.op.experts for s in experts] == [(0,), (1,), (2,)]
    assert [s.start_ns for s in loads] == [s.end_ns for s in experts[:2]]
    check_timeline(made.spans, made.claims, num_experts=3, capacity=1)


@pytest.mark.parametrize("settings", [{}, {"evict": "static", "evict.staging": "1"}])
def test_a_load_waits_for_a_wrong_prefetch_that_holds_the_last_slot(settings):
    # Layer 1 has one slot that may change, and a prefetch of expert 1 is under way in it when
    # the gate asks for 2: the load must wait for a transfer that nobody needs any more.
    shape = small_shape(layers=2, experts=4, top_k=1)
    use = [[[0.1] * e + [0.7] + [0.1] * (3 - e)] for e in range(4)]
    gates = {(0, 0): use[0], (0, 1): use[0], (1, 0): use[0], (1, 1): use[2]}
    system = build("moe-ondemand", {"prefetch": "next-gate", **settings})
    slots, scope = (3, "global") if settings else (2, "layer")
    model = FixedModel(shape, gates, {(1, 0): use[1]})
    made = rig(system, model, slots=slots, scope=scope, costs=FlatCosts(prices(load=1000)))
    made.engine.generate([[0]], 2)
    wrong, right = [s for s in made.spans if s.op.kind is OpKind.LOAD][-2:]
    assert (wrong.op.experts, right.op.experts) == ((1,), (2,))
    assert right.start_ns >= wrong.end_ns
    check_timeline(made.spans, made.claims, num_experts=4, capacity=slots)


def test_an_assignment_that_forgets_an_expert_is_a_bug_of_the_system():
    class Forgetful(Assignment):
        def assign(self, view, missing):
            return Assigned((), ())

    shape = small_shape(layers=1)
    system = build("moe-ondemand")
    system.assign = Forgetful()
    model = TracedModel(random_trace(0, shape, [[4]], 1))
    with pytest.raises(IntegrityError, match="assigned 0 loads and 0 host"):
        rig(system, model, slots=2).engine.generate([[0] * 4], 1)


@dataclass(kw_only=True)
class _Placed(Placement):
    """Given pairs."""

    pairs: list[tuple[int, int]]

    def place(self, shape, slots, scope):
        return self.pairs

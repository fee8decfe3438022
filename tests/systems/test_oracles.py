"""Systems that know the next layer's choice fetch no expert twice or in vain."""

from itertools import pairwise

import pytest

from moebench.harness.conformance.invariants import check_timeline
from moebench.harness.run.rules import resolve
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.traces.passes import TracedModel, pass_steps
from moebench.systems.options import build
from tests.harness.commands import refused
from tests.substrate.engine.fakes import Rig, random_trace, rig, small_shape

SHAPE = small_shape()
FIRST = SHAPE.moe_layers[0]
PASSES = 6


def replayed(
    name: str, seed: int, rows: int, slots: int, overrides: dict[str, str] | None = None
) -> tuple[Rig, list[tuple[int, list[int]]]]:
    """Return a replayed batch, given the experts that each layer of each pass uses."""
    trace = random_trace(seed, SHAPE, [[3] * rows], PASSES)
    (batch,) = trace.batches
    steps, system = pass_steps(batch), build(name, overrides)
    if system.evict.clairvoyant:
        system.evict.set_future(steps)
    made = rig(system, TracedModel(trace), slots=slots)
    made.engine.generate([[0] * 3] * rows, PASSES)
    check_timeline(made.spans, made.events, num_experts=SHAPE.num_experts, capacity=slots)
    return made, steps


def uses(steps: list[tuple[int, list[int]]]) -> int:
    return sum(len(experts) for _, experts in steps)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_pre_gated_copies_each_chosen_expert_once_a_use(seed, rows):
    made, steps = replayed("pregated-moe", seed, rows, slots=2 * SHAPE.num_experts)
    loads = [s for s in made.spans if s.op.kind is OpKind.LOAD]
    asked = [(layer, e) for layer, experts in steps for e in experts]
    assert sorted((s.op.layer, *s.op.experts) for s in loads) == sorted(asked)
    # Only the first block's gate is its own: all other experts are on their way when theirs is
    # known.
    late = {phase: counts.active - counts.begun for phase, counts in made.counts.items()}
    first = [len(experts) for layer, experts in steps if layer == FIRST]
    assert (late["prefill"], late["decode"]) == (first[0], sum(first[1:]))


@pytest.mark.parametrize("seed", range(5))
def test_pre_gated_needs_two_layers_of_experts(seed):
    made, steps = replayed("pregated-moe", seed, 3, slots=2 * SHAPE.num_experts)
    used = [experts for _, experts in steps]
    pairs = pairwise(used)
    most = max(len(a) + len(b) for a, b in pairs)
    assert made.tier.peak_bytes <= most * made.engine.machine.costs.record_bytes


@pytest.mark.parametrize("evict", ["lfu", "lru", "lifo"])
def test_pre_gated_with_a_cache_copies_what_is_not_there(evict):
    every = len(SHAPE.moe_layers) * SHAPE.num_experts
    cached = {"cache": "true", "evict": evict}
    made, steps = replayed("pregated-moe", 0, 1, every, cached)
    # With a slot for each expert, each is copied when it is used for the first time.
    used = {(layer, e) for layer, experts in steps for e in experts}
    loads = [(s.op.layer, *s.op.experts) for s in made.spans if s.op.kind is OpKind.LOAD]
    assert sorted(loads) == sorted(used)
    # With fewer, some are copied again, but fewer than without a cache.
    tight, steps = replayed("pregated-moe", 0, 1, 2 * SHAPE.num_experts, cached)
    again = sum(s.op.kind is OpKind.LOAD for s in tight.spans)
    assert len(used) < again < uses(steps)


def test_a_cache_of_pre_gated_uses_all_slots():
    plain, cached = build("pregated-moe"), build("pregated-moe", {"cache": "true"})
    assert (plain.most_slots(SHAPE), cached.most_slots(SHAPE)) == (2 * SHAPE.num_experts, None)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("slots", [6, 9, 14])
def test_belady_is_surprised_by_the_first_layer_alone(slots, rows):
    made, steps = replayed("belady", 3, rows, slots)
    decode = made.counts["decode"]
    assert decode.prefetched_active == decode.prefetched
    assert decode.prefetched > 0 or slots > 6
    plain, _ = replayed("moe-ondemand", 3, rows, slots)
    copied = [sum(s.op.kind is OpKind.LOAD for s in r.spans) for r in (made, plain)]
    assert copied[0] <= copied[1] <= uses(steps)


@pytest.mark.parametrize("name", ["belady", "pregated-moe"])
def test_without_a_recording_they_are_refused(name):
    line = refused("run", "--system", name, "--setting", "S3")
    assert f"{name} must know which experts come next: replay recorded routing" in line
    assert resolve(None, system=name, setting="S3").make_system().clairvoyant

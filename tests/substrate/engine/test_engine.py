"""What must always hold, over random small models, budgets, systems and routing."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given

from moebench.harness.conformance.host_memory import check_host_memory
from moebench.harness.conformance.invariants import (
    check_counts,
    check_order,
    check_timeline,
    check_times,
)
from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import Lane, OpKind
from tests.substrate.engine.cases import Case, cases, examples
from tests.substrate.engine.fakes import RECORD_BYTES, Rig, random_trace
from tests.substrate.engine.limits import check_belady, check_bound, check_loads, check_reads


@examples(800)
@given(cases())
def test_every_run(case):
    """Runs once, and once more where the seed says so; everything is checked on that."""
    made, generations = case.run()
    check_memory(case, made)
    check_order(made.spans, case.homes, getattr(made.engine.system.assign, "deferred", ()))
    check_transfers(case, made, generations)
    check_phases(case, made)
    made.timeline.finish(generations[-1].token_ends_ns[-1])
    check_times(made.timeline, generations)
    check_lengths(case, generations)
    check_needed_first(made)
    check_experts_of_a_lossless_system(case, made, generations)
    check_loads(made, generations)
    check_reads(made, generations)
    if case.system in ("moe-ondemand", "flashmoe", "gpu-only"):
        check_belady(made, generations)
    if case.system != "arbitrary":
        check_bound(case, made, generations)
    if case.seed % 4 == 0:
        check_repeated(case, made, generations)


@examples(50)
@given(cases(systems=["gpu-only"]))
def test_gpu_only_moves_nothing_and_waits_for_nothing_but_control(case):
    made, _ = case.run()
    assert {s.lane for s in made.spans} == {Lane.DEVICE}
    assert set(made.timeline.stall_ns()) <= {"control"}
    assert all(c.hits == c.active for c in made.counts.values())


@examples(25)
@given(cases(systems=["gpu-only"]))
def test_a_pause_between_two_tokens_counts_for_neither(case):
    """Two engines generate alternately; each one's clock runs while the other computes."""
    _, (alone, *_) = case.run()
    prompts = [[0] * n for n in case.batches[0]]
    pair = [case.made_rig(), case.made_rig()]
    order: list[int] = []
    other = pair[1].engine.steps(prompts, case.passes)

    def between() -> None:
        order.append(len(next(other).tokens[0]))
        pair[0].machine._now += 12_345 * len(order)

    pair[0].engine.after_token = between
    found = pair[0].engine.generate(prompts, case.passes)
    assert order == [*range(1, case.passes + 1)]
    assert found.steps_ns == alone.steps_ns
    assert found.ttft_ns == alone.ttft_ns
    assert sum(found.paused_ns) == 12_345 * sum(order[:-1])
    assert next(other, None) is None


def check_memory(case: Case, made: Rig) -> None:
    """Slots, lanes and budgets at every instant."""
    check_timeline(
        made.spans,
        made.events,
        num_experts=case.shape.num_experts,
        capacity=made.cache.slots,
        record_bytes=(RECORD_BYTES,),
        budget_bytes=made.tier.budget_bytes,
        writes_back=made.engine.system.evict.writes_back,
    )
    made.cache.check_integrity()
    if case.host_records is not None:
        placed = [(0, *made.cache.expert_of(claim.key)) for claim in made.claims if claim.placed]
        check_host_memory(made.spans, placed, case.host_records)
    # A slot is charged when it is first used, and never again.
    used = len({claim.slot for claim in made.claims}) * RECORD_BYTES
    assert made.tier.used_bytes == made.tier.peak_bytes == used <= made.tier.budget_bytes


def check_repeated(case: Case, made: Rig, generations: Sequence[Generation]) -> None:
    """The same run gives the same spans."""

    def recorded(made, generations):
        spans = [(s.op, s.lane, s.start_ns, s.end_ns, s.cause) for s in made.spans]
        return spans, made.events, [g.token_ends_ns for g in generations]

    assert recorded(made, generations) == recorded(*case.run())


def check_transfers(case: Case, made: Rig, generations: Sequence[Generation]) -> None:
    """Every transfer is accounted for."""
    check_counts(made.spans, made.counts, generations)
    uses = sum(span.op.kind is OpKind.LOAD for span in made.spans)
    uses += sum(counts.host for counts in made.counts.values())
    reads = sum(span.op.kind is OpKind.READ for span in made.spans)
    assert reads <= (uses if case.host_records else 0)
    loads = [span.op.chunk for span in made.spans if span.op.kind is OpKind.LOAD]
    whole = sum(1 / chunk[1] if chunk else 1 for chunk in loads)
    each = sum(c.loads + c.prefetched + c.unchosen for c in made.counts.values())
    if case.system == "moesys":  # which fetches for a pass that may not come
        assert whole >= each
    elif case.system != "arbitrary":  # whose transfers may be in vain or unfinished
        assert whole == pytest.approx(each)


def check_phases(case: Case, made: Rig) -> None:
    """The phase is told, not guessed from the number of rows."""
    one_batch = [
        ("decode" if step else "prefill", layer)
        for step in range(case.passes)
        for layer in case.shape.moe_layers
    ]
    assert made.phases == one_batch * len(case.batches)


def check_lengths(case: Case, generations: Sequence[Generation]) -> None:
    """Every sequence has its tokens."""
    for generation in generations:
        assert [len(t) for t in generation.tokens] == [case.passes] * len(generation.tokens)


def check_needed_first(made: Rig) -> None:
    """Needed loads never wait for a prefetch whose turn had not come, nor for its next chunk."""
    needed = {id(span) for _, span in made.needed}
    begun: dict[tuple[int, int], int] = defaultdict(int)
    turns = list(made.turns)
    for span in made.spans:
        if span.op.kind is OpKind.LOAD and span.op.chunk:
            expert = span.op.layer, span.op.experts[0]
            if begun[expert] and id(span) not in needed:
                turns.append((span.lane, span.start_ns))
            begun[expert] = (begun[expert] + 1) % span.op.chunk[1]
    for asked, load in made.needed:
        assert not [at for lane, at in turns if lane is load.lane and asked <= at < load.start_ns]


def check_experts_of_a_lossless_system(
    case: Case, made: Rig, generations: Sequence[Generation]
) -> None:
    """It uses what the recorded gates chose, and says of nobody that he was replaced."""
    if not made.engine.system.lossless:
        return
    assert all(counts.replaced == 0 for counts in made.counts.values())
    trace = random_trace(case.seed, case.shape, case.batches, case.passes)
    experts = case.shape.num_experts
    for generation, batch in zip(generations, trace.batches, strict=True):
        assert generation.used == [
            [
                (layer * experts + np.unique(gate.ids_TK)).tolist()
                for layer, gate in recorded.gates.items()
            ]
            for recorded in batch[1:]
        ]

"""What must always hold, over random small models, budgets, systems and routing."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from hypothesis import given

from moebench.substrate.engine.records import Generation
from moebench.substrate.machines.protocol import Lane, OpKind
from tests.substrate.engine.cases import Case, cases, examples, steps_of
from tests.substrate.engine.checker import check_order, check_timeline
from tests.substrate.engine.fakes import Rig, random_trace
from tests.substrate.engine.host_memory import check_host_memory
from tests.substrate.engine.limits import check_belady, check_bound, check_loads, check_reads


@examples(800)
@given(cases())
def test_every_run(case):
    """Runs once, and once more where the seed says so; everything is checked on that."""
    made, generations = case.run()
    check_memory(case, made)
    check_order(made.spans, case.homes, getattr(made.engine.system.assign, "deferred", ()))
    check_counts(case, made, generations)
    check_phases(case, made)
    check_times(made, generations, case)
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


def check_memory(case: Case, made: Rig) -> None:
    """Slots, lanes and budgets at every instant."""
    check_timeline(
        made.spans,
        made.events,
        num_experts=case.shape.num_experts,
        capacity=made.cache.slots,
        budget_bytes=made.tier.budget_bytes,
        writes_back=made.engine.system.evict.writes_back,
    )
    made.cache.check_integrity()
    if case.host_records is not None:
        placed = [made.cache.expert_of(claim.key) for claim in made.claims if claim.placed]
        check_host_memory(made.spans, placed, case.host_records)
    # A slot is charged when it is first used, and never again.
    used = len({claim.slot for claim in made.claims}) * made.cache._record_bytes
    assert made.tier.used_bytes == made.tier.peak_bytes == used <= made.tier.budget_bytes


def check_repeated(case: Case, made: Rig, generations: Sequence[Generation]) -> None:
    """The same run gives the same spans."""

    def recorded(made, generations):
        spans = [(s.op, s.lane, s.start_ns, s.end_ns, s.cause) for s in made.spans]
        return spans, made.events, [g.token_ends_ns for g in generations]

    assert recorded(made, generations) == recorded(*case.run())


def check_counts(case: Case, made: Rig, generations: Sequence[Generation]) -> None:
    """Every active expert and every transfer is accounted for."""
    by_kind = {(kind, lane): 0.0 for kind in OpKind for lane in Lane}
    for span in made.spans:
        if span.op.kind is not OpKind.RETURN or span.op.experts:
            by_kind[span.op.kind, span.lane] += max(1, len(span.op.experts)) * span.op.share
    active = host = moved = 0
    for counts in made.counts.values():
        assert counts.hits + counts.in_flight + counts.loads + counts.host == counts.active
        assert counts.host_resident + counts.deferred <= 2 * counts.host
        assert counts.prefetched_used <= counts.prefetched_active + counts.replaced
        assert max(counts.prefetched_active, counts.prefetched_used) <= counts.prefetched
        active, host = active + counts.active, host + counts.host
        moved += counts.loads + counts.prefetched + counts.unchosen
    assert by_kind[OpKind.EXPERT, Lane.DEVICE] == active - host
    assert by_kind[OpKind.EXPERT, Lane.HOST] == by_kind[OpKind.RETURN, Lane.D2H] == host
    uses = sum(span.op.kind is OpKind.LOAD for span in made.spans) + host
    assert by_kind[OpKind.READ, Lane.DISK] <= (uses if case.host_records else 0)
    if case.system == "moesys":  # which fetches for a pass that may not come
        assert by_kind[OpKind.LOAD, Lane.H2D] >= moved
    elif case.system != "arbitrary":  # whose transfers may be in vain or unfinished
        assert by_kind[OpKind.LOAD, Lane.H2D] == moved
    decoded = sum(len(keys) for g in generations for keys in steps_of(g))
    assert made.counts["decode"].active == decoded


def check_phases(case: Case, made: Rig) -> None:
    """The phase is told, not guessed from the number of rows."""
    one_batch = [
        ("decode" if step else "prefill", layer)
        for step in range(case.passes)
        for layer in case.shape.moe_layers
    ]
    assert made.phases == one_batch * len(case.batches)


def check_times(made: Rig, generations: Sequence[Generation], case: Case) -> None:
    """Tokens end in order, and lanes fit into the run."""
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


def check_needed_first(made: Rig) -> None:
    """Needed loads never wait for a prefetch whose turn had not come, nor for its next chunk."""
    needed = {id(span) for _, span in made.needed}
    begun: dict[tuple[int, int], int] = defaultdict(int)
    turns = list(made.turns)
    for span in made.spans:
        if span.op.kind is OpKind.LOAD and span.op.share < 1:
            expert = span.op.layer, span.op.experts[0]
            if begun[expert] and id(span) not in needed:
                turns.append((span.lane, span.start_ns))
            begun[expert] = (begun[expert] + 1) % round(1 / span.op.share)
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

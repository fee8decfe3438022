"""MoE-Lightning by hand: batching by length, CGOPipe's timeline, pages, the policy (N, μ, r_w)."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import (
    BrokenError,
    check_counts,
    check_lanes,
    check_micro_batches,
    check_timeline,
)
from moebench.harness.one_run import prepare
from moebench.harness.one_run import run as run_spec
from moebench.harness.run.rules import resolve
from moebench.harness.stage.stage import on_this_computer
from moebench.substrate.analysis.roofline import Policy, Texts, layer_time
from moebench.substrate.analysis.roofline_inputs import roofs_of, sizes_of
from moebench.substrate.engine.decisions import Plan, Prompts
from moebench.substrate.engine.micro_batches import Part, Task, order
from moebench.substrate.engine.runtime import Runtime, Supports, refuse
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.memory.capacity import Request, Room, plan
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.moe_lightning import (
    InMicroBatches,
    MoELightning,
    PagedLayers,
    ShareOfEachLayer,
    batches,
    largest_micro_batch,
)
from moebench.systems.options import build
from tests.harness.commands import refused
from tests.substrate.engine.fakes import FlatCosts, prices, random_trace, rig, small_shape
from tests.systems.views import cache, shape

MIXTRAL = model_shape("mixtral-8x7b")

# --------------------------------------------------------------------------- batching by length


def lengths_of(groups, lengths):
    return [[lengths[r] for r in group] for group in groups]


def test_the_longest_request_goes_to_the_micro_batch_with_the_fewest_tokens():
    lengths = [3, 10, 1, 7, 5, 4]
    groups, rejected = batches(lengths, 3)
    # 10 | 7; 5 to the second (12); 4 to the first (14); 3 to the second, which is full; 1.
    assert lengths_of(groups, lengths) == [[10, 4, 1], [7, 5, 3]]
    assert rejected == []


def test_a_request_without_room_in_a_micro_batchs_cache_is_rejected():
    lengths = [10, 7, 5, 4, 3, 1]
    groups, rejected = batches(lengths, 3, most=12)
    # 5 makes 12; 4 would make 14, and 3 would too: 13; 1 makes 11.
    assert lengths_of(groups, lengths) == [[10, 1], [7, 5]]
    assert [lengths[r] for r in rejected] == [4, 3]
    assign = InMicroBatches(cache_tokens=9)
    with pytest.raises(UsageError, match=r"cache_tokens=9: 1 of 2 requests .* the longest has 12"):
        assign.begin_sequences(Prompts([12, 9]))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 12))
def test_each_request_is_in_one_micro_batch_that_is_not_overfull(lengths, size):
    groups, rejected = batches(lengths, size)
    assert sorted(r for group in groups for r in group) == list(range(len(lengths)))
    assert not rejected
    assert len(groups) == -(-len(lengths) // size)
    assert max(map(len, groups)) <= size


# --------------------------------------------------------------------------- the schedule


def test_the_order_of_tasks_is_the_papers():
    # Algorithm 1 with one layer and three micro-batches.
    found = [(task.part.value, task.layer, task.micro_batch) for task in order(1, 3)]
    before = [(part, 0, j) for j in (0, 1) for part in ("project", "qkv", "core")]
    staged = [("stage", 1, 0), ("stage", 1, 1)]
    assert found[:8] == [*before[:3], staged[0], *before[3:], staged[1]]
    assert found[8:] == [
        ("state", 0, 0), ("page", 1, 0), ("finish", 0, 0),
        ("project", 0, 2), ("qkv", 0, 2), ("core", 0, 2), ("stage", 1, 2),
        ("state", 0, 1), ("page", 1, 1), ("finish", 0, 1),
        ("state", 0, 2), ("page", 1, 2), ("finish", 0, 2),
    ]  # fmt: skip


def test_attention_of_the_next_layer_begins_two_micro_batches_ahead():
    tasks = list(order(2, 3))
    at = {task: number for number, task in enumerate(tasks)}
    for behind, first in ((1, 0), (2, 1)):
        finished = at[Task(Part.FINISH, 0, behind)]
        assert tasks[finished + 1] == Task(Part.PROJECT, 1, first)
    one = [task.part for task in order(2, 1) if task.layer == 0 or task.part is Part.PROJECT]
    assert one == [Part.PROJECT, Part.QKV, Part.CORE, Part.STATE, Part.FINISH, Part.PROJECT]


@given(st.integers(1, 6), st.integers(1, 7), st.booleans())
def test_each_part_of_each_micro_batch_is_submitted_once(layers, count, paged):
    tasks = list(order(layers, count, paged))
    assert len(set(tasks)) == len(tasks)
    own = [t for t in tasks if t.part not in (Part.PAGE, Part.STAGE)]
    assert len(own) == 5 * layers * count
    pages = [t for t in tasks if t.part is Part.PAGE]
    staged = [t for t in tasks if t.part is Part.STAGE]
    assert len(pages) == len(staged) == layers * (count if paged else 1)


# --------------------------------------------------------------------------- a timeline by hand

# Three micro-batches of one row and four layers of four experts, none of which stays.  In tenths:
# PostAttn 40 (output 10, gate 10, two experts 20), PreAttn 10, CPU 30, QKV 5, state 5; staging and
# the sum cost nothing.  The prefill's attention is long, so that layer 0 has come when the decode
# begins.


def decoded(weights, core=30, paged=True, layers=6, staged=True, stage=0):
    lanes = prices(
        project=10, core=core, qkv=5, state=5, output=10, gate=10, expert=10, combine=0, head=0,
        page=weights, stage=stage, attend=10_000, load=1,
    )  # fmt: skip
    model = small_shape(layers=layers, experts=4)
    trace = random_trace(5, model, [[1, 1, 1]], 2)
    options = {"prefetch.paged": str(paged).lower(), "prefetch.staged": str(staged).lower()}
    made = build("moe-lightning", {"place.micro": "1", **options})
    made.expect(3, 3)
    ran = rig(made, TracedModel(trace), slots=8, costs=FlatCosts(lanes))
    ran.engine.generate([[1]] * 3, 2)
    check(ran, model)
    heads = [i for i, span in enumerate(ran.spans) if span.op.kind is OpKind.HEAD]
    spans = ran.spans[heads[0] + 1 :]
    begin = ran.spans[heads[0]].end_ns
    return [(s, s.start_ns - begin, s.end_ns - begin) for s in spans]


def check(ran, model):
    check_timeline(
        ran.spans, ran.events, num_experts=model.num_experts, num_layers=model.num_layers,
        capacity=ran.cache.capacity, budget_bytes=ran.tier.budget_bytes,
    )  # fmt: skip
    check_micro_batches(ran.spans)
    ran.cache.check_integrity()


def sums(spans):
    """The ends of PostAttn, by layer."""
    found = {}
    for span, _, end in spans:
        if span.op.kind is OpKind.COMBINE:
            found.setdefault(span.op.layer, []).append(end)
    return found


@pytest.mark.parametrize(
    ("weights", "core", "first", "a_layer"),
    [
        (60, 30, 190, 150),  # the GPU: 3 x (40 + 10)
        (180, 30, 220, 195),  # the link: 3 x (60 + 5)
        (60, 80, 300, 240),  # the CPU: 3 x 80
    ],
)
def test_a_layer_takes_as_long_as_its_slowest_lane(weights, core, first, a_layer):
    ends = sums(decoded(weights, core))
    assert ends[0][2] == first
    steps = [after[2] - before[2] for before, after in pairwise(ends.values())]
    # Behind the last layer no attention of another one stands between its experts.
    assert steps[:-1] == [a_layer] * 4


@pytest.mark.parametrize(
    ("weights", "core", "a_layer"), [(60, 30, 205), (180, 30, 325), (60, 80, 245)]
)
def test_without_pages_the_weights_hold_up_the_states(weights, core, a_layer):
    ends = sums(decoded(weights, core, paged=False))
    steps = [after[2] - before[2] for before, after in pairwise(ends.values())]
    assert steps[1:-1] == [a_layer] * 3


def test_the_first_micro_batch_waits_for_the_last_page():
    spans = decoded(180)
    pages = {}
    for span, _, end in spans:
        if span.op.kind is OpKind.PAGE and span.lane is Lane.H2D:
            pages.setdefault(span.op.layer, []).append((span, end))
    assert [len(found) for found in pages.values()] == [3] * 6  # layers 1 to 5, then the next 0
    assert {span.op.experts for found in pages.values() for span, _ in found} == {(0, 1, 2, 3)}
    for layer in range(1, 6):
        outputs = [s for s, *_ in spans if s.op.kind is OpKind.OUTPUT and s.op.layer == layer]
        assert outputs[0].start_ns >= pages[layer][-1][0].end_ns
    parts = [span.op.chunk for span, _ in pages[3]]
    assert parts == [(0, 3), (1, 3), (2, 3)]


def test_staging_takes_time_of_the_cpu_unless_weights_are_page_locked():
    # 90 of staging and 90 of attention for each layer, in a pipeline whose GPU takes 150.
    slow, fast = (sums(decoded(60, staged=staged, stage=90)) for staged in (True, False))
    assert slow[4][2] - slow[3][2] == 3 * (30 + 30)
    assert fast[4][2] - fast[3][2] == 150


# --------------------------------------------------------------------------- whatever the routing

duration = st.integers(1, 90)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.integers(3, 6),
    st.tuples(duration, duration, duration, duration, duration, duration, duration),
)  # fmt: skip
def test_the_pipeline_holds_for_any_routing_and_prices(seed, texts, micro, layers, costs):
    project, core, qkv, state, output, page, stage = costs
    lanes = prices(
        project=project, core=core, qkv=qkv, state=state, output=output, page=page, stage=stage
    )
    model = small_shape(layers=layers, experts=4, dense_layers=(1,), shared=True)
    ends = {}
    for paged in (True, False):
        trace = random_trace(seed, model, [[2] * texts], 3)
        made = build("moe-lightning", {"place.micro": str(micro), "prefetch.paged": str(paged)})
        made.expect(2 * texts, texts)
        ran = rig(made, TracedModel(trace), slots=4 * layers, costs=FlatCosts(lanes))
        generation = ran.engine.generate([[1, 2]] * texts, 3)
        check(ran, model)
        check_lanes(ran.spans)
        check_counts(ran.spans, ran.counts, [generation])
        ends[paged] = generation.steps_ns
        decode = ran.timeline.totals["decode"]
        for lane in (Lane.DEVICE, Lane.HOST, Lane.H2D, Lane.D2H):  # the ring goes on behind it
            late = sum(
                max(0, s.end_ns - generation.token_ends_ns[-1]) for s in ran.spans if s.lane is lane
            )
            assert decode.busy_ns[lane] - late <= sum(generation.steps_ns)
        assert ran.counts["decode"].loads == 0
    assert min(ends[True]) > 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.tuples(duration, duration, duration, duration))
def test_pages_are_never_slower_than_whole_layers(seed, texts, costs):
    project, core, output, page = costs
    lanes = prices(project=project, core=core, output=output, page=page * texts, stage=0)
    took = {}
    for paged in (True, False):
        model = small_shape(layers=5, experts=4)
        trace = random_trace(seed, model, [[1] * texts], 2)
        made = build("moe-lightning", {"place.micro": "1", "prefetch.paged": str(paged)})
        made.expect(texts, texts)
        ran = rig(made, TracedModel(trace), slots=8, costs=FlatCosts(lanes))
        took[paged] = ran.engine.generate([[1]] * texts, 2).steps_ns
    assert took[True] <= took[False]


def test_a_part_before_its_input_is_noticed():
    spans = [span for span, *_ in decoded(60)]
    core = next(s for s in spans if s.op.kind is OpKind.CORE and s.op.layer == 2)
    core.start_ns = core.start_ns - 1_000
    with pytest.raises(BrokenError, match="begins before its input is there"):
        check_micro_batches(spans)
    with pytest.raises(BrokenError, match="comes before what it needs"):
        check_micro_batches([s for s in spans if s.op.kind is not OpKind.QKV])


# --------------------------------------------------------------------------- memory


def test_the_lowest_ids_stay():
    model = shape(experts=8, layers=2)
    quarter = ShareOfEachLayer(resident=0.3)
    assert quarter.stay(model) == 2  # int(8 x 0.3)
    assert quarter.place(model, 4, "global") == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert ShareOfEachLayer(resident=0.12).stay(model) == 0  # less than 1 / E is none
    assert ShareOfEachLayer().place(model, 3, "global") == [(0, 0), (1, 0)]
    with pytest.raises(BudgetError, match=r"resident=0.3 keeps 2 experts of each of 2 .* for 1"):
        quarter.place(model, 3, "global")
    for wrong in (-0.1, 1.5):
        with pytest.raises(UsageError, match=r"place\.resident is"):
            ShareOfEachLayer(resident=wrong)


def test_slots_are_those_of_residents_and_two_buffers():
    made = build("moe-lightning", {"place.resident": "0.5"})
    assert made.most_slots(MIXTRAL) == 32 * 4 + 2 * 4
    assert build("moe-lightning").most_slots(MIXTRAL) is None
    ring = PagedLayers()
    three = shape(experts=4, layers=3)
    ring.start(three, cache(three, 9))  # 3 residents and 2 x 3 slots
    assert ring.reserve == 6
    ring.start(three, cache(three, 5))  # one buffer: no pages, and nothing stays
    assert ring.pages(1) == ()


def test_with_one_buffer_a_layer_is_loaded_when_its_gate_is_known():
    model = small_shape(layers=4, experts=4)
    trace = random_trace(3, model, [[1, 1]], 3)
    ran = rig(MoELightning(), TracedModel(trace), slots=5)
    ran.engine.generate([[1]] * 2, 3)
    check(ran, model)
    assert ran.counts["decode"].loads > 0
    assert not [s for s in ran.spans if s.op.kind is OpKind.PAGE]


def test_the_kv_cache_is_charged_to_the_host():
    room = Room("card", 60 * 2**30, 0, 200 * 2**30)
    both = [
        plan(
            Request(
                room=room, shape=MIXTRAL, precision="bf16", kv_tokens=1000, texts=64,
                kv_on_host=on_host,
            )
        )
        for on_host in (False, True)
    ]  # fmt: skip
    # 2 x 8 heads x 128 x 2 bytes x 32 layers = 131,072 bytes a token.
    kv = 64 * 1000 * 131_072
    device, host = both
    assert (device.device.reserved("KV cache"), device.host.reserved("KV cache")) == (kv, 0)
    assert (host.device.reserved("KV cache"), host.host.reserved("KV cache")) == (0, kv)
    # 8.39 GB are room for 23.8 experts of 352 MB.
    assert host.slots - device.slots in (23, 24)
    with pytest.raises(BudgetError, match=r"host memory: KV cache needs 131\.1 GB"):
        plan(
            Request(
                room=Room("card", 60 * 2**30, 0, 100 * 2**30), shape=MIXTRAL, precision="bf16",
                kv_tokens=1000, texts=1000, kv_on_host=True,
            )
        )  # fmt: skip


def test_micro_batches_are_the_largest_that_fit():
    sizes, texts = sizes_of(MIXTRAL, "mixtral-8x7b"), Texts(prompt=418, new=128)
    limit = 0.86 * 15 * 2**30
    # Table 5 has 36 x 14 on the T4; 42, the next divisor of 504, does not fit.
    assert largest_micro_batch(sizes, texts, 504, limit) == 36
    assert largest_micro_batch(sizes, texts, 504, 1e12) == 252
    assert largest_micro_batch(sizes, texts, 504, 0) == 1
    # 2 to 8 requests: at least two micro-batches.
    assert [largest_micro_batch(sizes, texts, n, 1e12) for n in (1, 2, 3, 4, 8)] == [1, 1, 1, 2, 4]


def test_notes_name_micro_batches_and_residents():
    made = build("moe-lightning", {"place.micro": "2"})
    made.expect(40, 4)
    two, small, stay = made.remarks(MIXTRAL, 32 + 14)
    assert two == "2 micro-batch(es) of 2"
    assert small.startswith("a batch of 4 is far below")
    assert stay == "1 of 8 experts of each layer stay"
    made.expect(10, 1)
    assert "one micro-batch" in made.remarks(MIXTRAL, 8)[1]
    assert made.remarks(MIXTRAL, 8)[-1] == "8 slots hold 1 of 2 layer buffers"


# --------------------------------------------------------------------------- whole runs

T4 = {
    "system": "moe-lightning", "model": "mixtral-8x7b", "machine": "t4@moe-lightning",
    "routing": "drawn", "workload": "arithmetic", "new_tokens": 3,
}  # fmt: skip


@pytest.mark.parametrize(("batch", "micro"), [(36, 18), (64, 32)])
def test_a_layer_takes_no_less_than_its_roofline(batch, micro, tmp_path):
    spec = resolve(
        None, **T4, batch=batch, prompts=batch, overrides={"place.micro": str(micro)},
        software="lean",
    )  # fmt: skip
    document = run_spec(prepare(spec, None), tmp_path).document
    a_layer = document["metrics"]["tpot_ms"]["mean"] / 1e3 / 32
    sizes, roofs = sizes_of(MIXTRAL, ""), roofs_of(load_profile("t4@moe-lightning"))
    # Without prompts: the roofline's host reads nothing but queries and outputs.
    least = layer_time(sizes, roofs, Texts(prompt=0, new=0), Policy(batch=batch, micro_batch=micro))
    assert least.limit == "link"
    assert least.total <= a_layer < 1.01 * least.total


def test_where_it_cannot_run_is_one_line():
    wanted = ("run", "--system", "moe-lightning", "--routing", "drawn")
    line = refused(*wanted, "--model", "deepseek-v2-lite", "--machine", "t4@moe-lightning")
    assert "defined for models whose layers all attend to the keys and values" in line
    local = refused(
        *wanted[:3], "--model", "mixtral-8x7b", "--machine", "local", "--capacity", "0.5"
    )
    assert "has no KV cache in host memory" in local
    assert "allowed: a simulated machine without measured times" in local


def test_a_machine_that_cannot_divide_passes_refuses_no_other_system():
    plain = Supports(where="--machine m")
    refuse("x", Runtime(), plain)
    refuse("x", Runtime(divides=True), Supports(where="--machine m", divides=True))
    with pytest.raises(UsageError, match=r"--machine m: has no KV cache .* x divides them"):
        refuse("x", Runtime(divides=True), plain)
    assert not on_this_computer("fp32", "the disk").divides


@dataclass(kw_only=True)
class Forgets(InMicroBatches):
    """Leaves one text out of all micro-batches."""

    def micro_batches(self, lengths):
        return [[0], [0]]


@dataclass(kw_only=True)
class OnHost(InMicroBatches):
    """Leaves its first expert to the host in decode."""

    uses_host = True

    def assign(self, view, active):
        planned = super().assign(view, active)
        first, *rest = planned.device
        return planned if view.phase == "prefill" else Plan(rest, [first], load=planned.load)


@pytest.mark.parametrize(
    ("assign", "why"),
    [
        (Forgets(), r"Forgets divides 2 texts into \[\[0\], \[0\]\]; allowed: each text in one"),
        (OnHost(), "leaves experts to the host; allowed in a pass that is divided"),
    ],
)
def test_an_assignment_that_a_divided_pass_cannot_carry_out_is_one_line(assign, why):
    model = small_shape(layers=3, experts=4)
    trace = random_trace(3, model, [[1, 1]], 2)
    ran = rig(MoELightning(assign=assign), TracedModel(trace), slots=12)
    with pytest.raises(UsageError, match=why):
        ran.engine.generate([[1]] * 2, 2)


def test_records_of_several_forms_are_refused_in_one_line():
    for name, options in (
        ("moe-lightning", {"place": "one-width"}), ("hobbit", {"assign": "micro-batches"}),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"InMicroBatches, which divides passes .* forms of"):
            build(name, options)
    assert build("flexgen", {"assign": "micro-batches"}).divides

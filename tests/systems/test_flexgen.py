"""FlexGen by hand: tensors by midpoint, the ring beside residents, and the linear program."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.flexgen import (
    BUFFERS,
    BlockSchedule,
    ByLinearProgram,
    ByPercent,
    FlexGen,
    homes_of,
    most_resident,
    percentages,
    slots_of,
)
from moebench.systems.flexgen_policy import (
    GIB,
    T4,
    USABLE,
    Work,
    memories,
    mixtral_layer_bytes,
    solve,
    upload_s,
)
from moebench.systems.moesys import WholeLayer
from moebench.systems.options import build
from tests.substrate.engine.fakes import random_trace, rig, small_shape
from tests.substrate.engine.own import evicted, model_of, of, run
from tests.systems.views import cache, shape, view

MIXTRAL = model_shape("mixtral-8x7b")

# --------------------------------------------------------------------------- tensors by midpoint


def test_a_tensor_is_where_its_midpoint_is():
    # Four equal tensors: midpoints 12.5, 37.5, 62.5 and 87.5.  The disk has none, the CPU the first
    # 80 %, the GPU the rest.
    assert homes_of([1, 1, 1, 1], (0, 80, 20)) == ["cpu", "cpu", "cpu", "gpu"]
    # The disk comes first: 0 to 50; the CPU is 50 to 75.
    assert homes_of([1, 1, 1, 1], (50, 25, 25)) == ["disk", "disk", "cpu", "gpu"]
    # Sizes 6, 1, 1: midpoints 37.5, 81.25 and 93.75.
    assert homes_of([6, 1, 1], (0, 40, 60)) == ["cpu", "gpu", "gpu"]
    assert homes_of([6, 1, 1], (0, 90, 10)) == ["cpu", "cpu", "gpu"]
    # A midpoint at the end of an interval is behind it.
    assert homes_of([1, 1], (0, 25, 75)) == ["gpu", "gpu"]


def test_the_highest_ids_are_on_the_gpu():
    model = shape(experts=8, layers=2)
    quarter = ByPercent(gpu=25)
    assert quarter.place(model, 4, "global") == [(0, 6), (0, 7), (1, 6), (1, 7)]
    assert quarter.resident(model) == 2
    # 7 % are less than an expert's 12.5 %, but expert 7's midpoint is 93.75: it is on the GPU.
    # With 6 % none is.
    assert [ByPercent(gpu=gpu).resident(model) for gpu in (7, 6, 0, 100)] == [1, 0, 0, 8]


def test_the_lowest_ids_are_on_the_disk_and_the_next_in_host_memory():
    model = shape(experts=8, layers=2)
    some = ByPercent(gpu=25, disk=50)
    assert (some.on_disk(model), some.resident(model)) == (4, 2)
    assert some.keep_on_host(model, 12) == [(0, 4), (0, 5), (1, 4), (1, 5)]
    assert some.keep_on_host(model, 3) == [(0, 5), (1, 5)]
    assert some.host_experts(model) == 2 * 2 + 2
    system = build("flexgen", {"place.gpu": "25", "place.disk": "50"})
    system.full_size(model)
    assert system.host_experts == 6
    plain = build("flexgen")
    plain.full_size(model)
    assert plain.host_experts is None


def test_policies_of_others_learn_the_shape_of_the_model_that_is_charged(monkeypatch):
    told = []
    system = build("flexgen")
    monkeypatch.setattr(type(system.evict), "full_size", lambda self, model: told.append(model))
    model = shape(experts=8, layers=2)
    system.full_size(model)
    assert told == [model]


percent = st.floats(0, 100)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), percent, percent)
def test_memories_follow_each_other_and_no_share_is_off_by_more_than_a_tensor(sizes, one, other):
    disk, behind = min(one, other), max(one, other)
    percent_of = {"disk": disk, "cpu": behind - disk, "gpu": 100 - behind}
    homes = homes_of(sizes, tuple(percent_of.values()))
    order = ["disk", "cpu", "gpu"]
    assert homes == sorted(homes, key=order.index)
    for memory, wanted in percent_of.items():
        has = 100 * sum(s for s, home in zip(sizes, homes, strict=True) if home == memory)
        assert abs(has / sum(sizes) - wanted) <= 100 * max(sizes) / sum(sizes) + 1e-6


def test_percentages_that_do_not_sum_to_100_are_one_line():
    assert percentages(25, None, None) == (0, 75, 25)
    assert percentages(None, 60, 10) == (10, 60, 30)
    assert percentages(20, 50, 30) == (30, 50, 20)
    assert percentages(None, None, 40) == (40, 60, 0)
    for options in ({"gpu": 30, "cpu": 80}, {"gpu": 60, "disk": 50}, {"cpu": 60, "disk": 50}):
        with pytest.raises(UsageError, match="not percentages that sum to 100; allowed: 0 to 100"):
            ByPercent(**options)


# --------------------------------------------------------------------------- a timeline by hand

# Three layers of four experts, top-2; 50 % of each layer, experts 2 and 3, are on the GPU.
# Attention 30, a gate 3, an expert 10, the sum 2, the head 6, a load 40.  Control costs nothing.
#
#   link    L0's 0 and 1 0..80, L1's 80..160: both buffers are full
#   L0      attend 0..30, gate ..33; 2 is there: 33..43; the layer has come at 80; 0: 80..90; ..92
#   link    L2's 160..240, into L0's buffer
#   L1      attend 92..122, gate ..125; 0 has come: 125..135; the layer at 160; 1: 160..170; ..172
#   link    L0's for the next token 240..320
#   L2      attend 172..202, gate ..205; 2 and 3 are there: 205..225; 0 and 1 come in vain, until
#           240; ..242; head ..248
#
# The next token begins at 248, and the link never rests: six loads, 240, a token.

FOUR = small_shape(layers=3)
USES = [[[(0, 2)], [(0, 1)], [(2, 3)]], [[(0, 3)], [(1, 2)], [(0, 1)]]]


def half(**more):
    made = build("flexgen", {"place.gpu": "50"})
    slots = made.most_slots(FOUR)
    assert slots == 3 * 2 + 2 * 2
    return run(made, model_of(FOUR, USES), slots=slots, passes=2, **more)


def test_half_of_each_layer_stays_and_the_rest_streams():
    ran = half()
    brought = [(layer, (e,)) for layer in (0, 1, 2, 0, 1, 2, 0) for e in (0, 1)]
    assert of(ran, OpKind.LOAD) == [
        (*expert, 40 * i, 40 * (i + 1)) for i, expert in enumerate(brought)
    ]
    assert of(ran, OpKind.EXPERT) == [
        (0, (2,), 33, 43), (0, (0,), 80, 90), (1, (0,), 125, 135), (1, (1,), 160, 170),
        (2, (2, 3), 205, 225),
        (0, (0, 3), 281, 301), (1, (2,), 355, 365), (1, (1,), 400, 410), (2, (0,), 445, 455),
        (2, (1,), 480, 490),
    ]  # fmt: skip
    assert [row[2:] for row in of(ran, OpKind.HEAD)] == [(242, 248), (492, 498)]
    assert {victim for _, victim in evicted(ran)} == {None}


def test_streamed_attention_and_head_are_a_part_of_their_layer():
    # Non-expert weights take 300.  The head comes behind the last layer's experts, and then the
    # next token's first layer.
    ran = half(homes=("stream",) * 4)
    link = sorted(of(ran, OpKind.STREAM) + of(ran, OpKind.LOAD), key=lambda row: row[2])
    token = [(0, ()), (0, (0,)), (0, (1,)), (1, ()), (1, (0,)), (1, (1,)), (2, ()), (2, (0,)),
             (2, (1,)), (-1, ())]  # fmt: skip
    assert [row[:2] for row in link[:20]] == token * 2
    assert all(end == start for (*_, end), (*_, start, _) in pairwise(link))
    assert link[19][3] == 2 * (4 * 300 + 6 * 40)


def test_nothing_is_loaded_where_the_model_fits():
    ran = run(build("flexgen"), model_of(FOUR, USES), slots=12, passes=2)
    assert of(ran, OpKind.LOAD) == []
    assert ran.counts["decode"].hits == 6


def test_without_percentages_as_much_stays_as_fits():
    # 10 slots: r = 2, as above; 9: r = 1 takes 3 + 2 * 3 = 9.
    for slots, stay in ((10, 2), (9, 1), (8, 0), (4, 0)):
        ran = run(build("flexgen"), model_of(FOUR, USES), slots=slots, passes=1)
        placed = [claim.key for claim in ran.claims if claim.placed]
        assert len(placed) == 3 * stay
        assert len(of(ran, OpKind.LOAD)) >= 3 * (4 - stay)
    (stays,) = FlexGen().remarks(FOUR, 10)
    assert stays == "2 of 4 experts of each layer stay, the others stream by layers"
    assert FlexGen().remarks(FOUR, 12) == ()
    assert FlexGen().remarks(FOUR, 7)[1] == "7 slots hold 1 of 2 layer buffers"


def test_a_share_that_does_not_fit_is_one_line():
    made = build("flexgen", {"place.gpu": "50"})
    with pytest.raises(BudgetError, match=r"place.gpu=50 keeps 2 experts of each of 3 layers .* 1"):
        run(made, model_of(FOUR, USES), slots=9, passes=1)
    with pytest.raises(BudgetError, match=r"all 4 experts of a layer .* room for 3; give"):
        run(build("flexgen"), model_of(FOUR, USES), slots=3, passes=1)


@given(st.integers(1, 8), st.integers(1, 16), st.integers(0, 160), st.integers(1, 3))
def test_residents_and_buffers_fill_the_slots(layers, experts, slots, buffers):
    model = shape(experts=experts, top_k=1, layers=layers)
    stay = most_resident(model, slots, buffers)
    assert 0 <= stay <= experts
    if stay:
        assert slots_of(model, stay, buffers) <= slots
    if stay < experts:
        assert slots_of(model, stay + 1, buffers) > slots


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 24), st.integers(1, 3))
def test_the_schedule_holds_for_any_routing(seed, slots, sequences):
    model = small_shape(layers=4, experts=4, dense_layers=(0,))
    trace = random_trace(seed, model, [[3] * sequences] * 2, 3)
    ran = rig(FlexGen(), TracedModel(trace), slots=slots, homes=("stream",) * 5)
    for _ in trace.batches:
        ran.engine.generate([[1, 2, 3]] * sequences, 3)
    check_timeline(
        ran.spans, ran.events, num_experts=4, num_layers=4, capacity=ran.cache.capacity,
        budget_bytes=ran.tier.budget_bytes,
    )  # fmt: skip
    assert ran.counts["decode"].loads == 0  # the schedule loads all, no gate asks for more


def test_the_schedule_takes_dense_layers_and_the_head_along():
    model = shape(experts=2, top_k=1, layers=4, dense_layers=(0, 2), dense_width=8)
    ring = BlockSchedule()
    ring.start(model, cache(model, 4))
    assert isinstance(ring, WholeLayer)
    first = [Fetch(0, None), Fetch(1, None), *(Fetch(1, e) for e in (0, 1))]
    last = [Fetch(2, None), Fetch(3, None), *(Fetch(3, e) for e in (0, 1)), Fetch(-1, None)]
    assert ring.opening("prefill", 1) == first + last  # two buffers hold both layers: they stay
    assert ring.reserve == 0
    three = shape(experts=2, top_k=1, layers=3)
    ring.start(three, cache(three, 4))
    seen = view([[1.0, 0.0]], 1, layer=1, layers=3)
    ahead = ring.prefetch(seen, {})
    assert ahead == [Fetch(0, None), *(Fetch(0, e, keep=False) for e in (0, 1))]
    assert ring.reserve == 4


# --------------------------------------------------------------------------- bytes and published


def test_a_mixtral_layer_crosses_the_link_as_published():
    # 5 h1² + 6 h1 h2 E with h1 = 4,096, h2 = 14,336, E = 8.
    layer = mixtral_layer_bytes(4096, 14336, 8)
    assert layer == 2_902_458_368
    # moebench counts the gate (4,096 x 8) and two norms as well, 81,920 bytes.
    ours = 8 * MIXTRAL.expert_bytes("fp16") + 2 * MIXTRAL.layer_common_params(0)
    assert ours - layer == 2 * (4096 * 8 + 2 * 4096)
    # 93 % are on the CPU, and the link reaches 5.43 GiB/s.
    assert upload_s(layer, 0.93, 5.43 * GIB) == pytest.approx(0.463, abs=0.0005)


def test_four_bits_in_groups_of_64_take_four_and_a_half():
    # 64 codes of 4 bits, a minimum and a scale of 16 bits each: 288 bits.
    assert MIXTRAL.expert_bytes("4bit-g64") == MIXTRAL.expert_params * 288 // 64 // 8
    assert build("flexgen", {"expert_precision": "4bit-g64"}).expert_precision == "4bit-g64"


# --------------------------------------------------------------------------- the linear program


def dense(layers, hidden, heads, **block):
    """Return FlexGen's counts of a layer of OPT: 8 h1² + 4 h1 h2 with h2 = 4 h1."""
    size = 24 * hidden**2
    return Work(layers, size, size, hidden, 4 * hidden, heads, 4 * hidden, **block)


def mixtral(**block):
    return Work(
        layers=32,
        layer_bytes=mixtral_layer_bytes(4096, 14336, 8),
        layer_flops=mixtral_layer_bytes(4096, 14336, 2),
        hidden=4096,
        ffn=2 * 14336,
        heads=32,
        kv_bytes=4096,
        **block,
    )


def test_the_program_predicts_opt_30b_on_a_t4_as_published():
    # Measured by the authors: 7.32 tokens/s at a block of 144 (3 x 48), 512 tokens in, 32 out.
    found = solve(dense(48, 7168, 56, block=144, micro=48))
    assert 144 * 32 / found.total_s == pytest.approx(6.95, abs=0.005)
    assert (found.c.cpu, found.h.cpu) == (pytest.approx(1), pytest.approx(1))


def test_the_program_finds_the_published_share_of_mixtral():
    # MoE-Lightning's artifact runs FlexGen with 7 to 8 % of the weights on a T4.
    found = solve(mixtral())
    assert 100 * found.w.gpu == pytest.approx(7.95, abs=0.01)
    # By hand, all else on the GPU in prefill: 32 W g + 2 W (1 - g) + cache + states + work = 12 GiB
    work = 512 * (18 * 4096 + 4 * 14336 + 2 * 32 * 512)
    rest = 544 * 4096 * 32 + 2 * 512 * 4096 + work
    by_hand = (0.8 * 15 * GIB - rest - 2 * 2_902_458_368) / (30 * 2_902_458_368)
    assert found.w.gpu == pytest.approx(by_hand)


blocks = st.tuples(st.integers(16, 1024), st.integers(2, 64), st.integers(1, 4), st.integers(1, 4))
gib = st.floats(8, 80)


@settings(max_examples=40, deadline=None)
@given(blocks, gib)
def test_solutions_fit_the_memories_and_more_memory_is_never_slower(block, gpu):
    s, n, micro, times = block
    work = mixtral(prompt=s, new_tokens=n, micro=micro, block=micro * times)
    rates = T4._replace(gpu_bytes=gpu * GIB)
    try:
        found = solve(work, rates)
    except BudgetError:
        assert gpu < 16
        return
    values = [*found.w, *found.c, *found.h, found.prefill_s, found.decode_s, 1.0]
    for used, room in memories(work, rates):
        assert sum(used * values) <= USABLE * room * (1 + 1e-6)
    for shares in (found.w, found.c, found.h):
        assert sum(shares) == pytest.approx(1)
        assert all(share >= -1e-9 for share in shares)
    larger = solve(work, rates._replace(gpu_bytes=2 * gpu * GIB))
    assert larger.total_s <= found.total_s * (1 + 1e-6)
    assert solve(work, rates, "max").total_s <= found.total_s * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(gib, st.integers(1, 32))
def test_with_cache_and_activations_on_the_gpu_the_largest_share_is_the_solution(gpu, block):
    work, rates = mixtral(block=block), T4._replace(gpu_bytes=gpu * GIB, cpu_bytes=1e18)
    try:
        found = solve(work, rates, on_gpu=True)
    except BudgetError:
        return
    assert (found.c.gpu, found.h.gpu) == (pytest.approx(1), pytest.approx(1))
    # Either all weights are on the GPU, or the GPU is full.
    values = [*found.w, *found.c, *found.h, 0.0, 0.0, 1.0]
    fullest = max(sum(used * values) / room for used, room in memories(work, rates)[:2])
    assert found.w.gpu == pytest.approx(1) or fullest == pytest.approx(USABLE)


def budget(gib_, layer_bytes=1000, expert_bytes=352_321_536):
    return Budget(round(gib_ * GIB), (layer_bytes,) * 32, 0, 0, 0, expert_bytes)


def test_the_program_places_experts():
    placed = ByLinearProgram()
    assert placed.shares == (0, None)
    homes = placed.homes(MIXTRAL, budget(48))
    # 32 W g + 2 W (1 - g) of 38.4 GiB less cache, states and work of a prompt, 0.14 GB.
    layer = 1000 + 8 * 352_321_536
    by_hand = (0.8 * 48 * GIB - 0.14e9 - 2 * layer) / (30 * layer)
    assert placed.shares == (0, pytest.approx(100 * by_hand, abs=0.1))
    assert {*homes} == {"stream"}
    # 38.4 GiB less 5.4 GiB of buffers: about 39 % of the weights, three experts of eight.
    assert placed.resident(MIXTRAL) == 3
    made = build("flexgen", {"place": "flexgen-lp"})
    made.place.homes(MIXTRAL, budget(48))
    assert made.most_slots(MIXTRAL) == 32 * 3 + 2 * 5
    # It takes no more than there is room for, where the engine counts other bytes.
    assert len(made.place.place(MIXTRAL, 70, "global")) == 2 * 32
    assert {*ByLinearProgram().homes(MIXTRAL, budget(200))} == {"device"}
    with pytest.raises(BudgetError, match=r"no shares of 32 layers .* fit at a block of 6; give"):
        ByLinearProgram(micro=3, batches=2).homes(MIXTRAL, budget(4))
    with pytest.raises(UsageError, match=r"place.new_tokens is 1; allowed: 2 or more"):
        ByLinearProgram(new_tokens=1)


def test_the_program_keeps_the_whole_cache_on_the_gpu():
    """Caches of 128 texts of 2080 tokens, 128 KiB each, take 34.9 GB, more than 80 % of 40 GiB."""
    assert MIXTRAL.kv_bytes_per_token("bf16") == 131_072
    assert 0.8 * 40 * GIB < 128 * 2080 * 131_072
    many = ByLinearProgram(prompt=2048, micro=32, batches=4)
    with pytest.raises(BudgetError, match=r"no shares of 32 layers .* fit at a block of 128"):
        many.homes(MIXTRAL, budget(40))
    # In 80 GiB some weights are beside it.
    many.homes(MIXTRAL, budget(80))
    assert 0 < many.shares[1] < 12


def test_the_largest_share_decides_where_attention_is():
    # All experts of 32 layers take 256 slots; half of them and two buffers 128 + 8 + 2 * 4 = 136.
    every = ByPercent()
    for slots, home in ((256, "device"), (160, "device"), (120, "stream")):
        given_bytes = slots * 352_321_536 + 33 * 1000
        exact = Budget(given_bytes, (1000,) * 32, 0, 0, 0, 352_321_536)
        assert {*every.homes(MIXTRAL, exact)} == {home}, slots
    assert {*ByPercent(gpu=51).homes(MIXTRAL, budget(1))} == {"device"}
    assert {*ByPercent(gpu=50).homes(MIXTRAL, budget(1))} == {"device"}
    assert {*ByPercent(gpu=49).homes(MIXTRAL, budget(1))} == {"stream"}


def test_the_system_is_lossless_and_for_any_batch():
    system = build("flexgen")
    assert system.lossless
    assert system.max_batch is None
    assert BUFFERS == BlockSchedule().buffers == 2
    other = build("flexgen", {"prefetch": "none"})
    assert other.remarks(FOUR, 8) == ()
    assert other.most_slots(FOUR) is None
    assert build("flexgen", {"place": "none"}).most_slots(FOUR) is None
    assert build("flexgen", {"place": "none"}).remarks(FOUR, 8) == ()

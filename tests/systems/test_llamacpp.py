"""llama.cpp: the split that fits, and copies for prompts; by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_lanes, check_order
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.models.catalogue import find_shape, model_names, model_shape, shape_names
from moebench.systems.llamacpp import CpuMoE, GpuLayers, HostOrCopy
from moebench.systems.options import build
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, Rig, prices, rig, small_shape
from tests.substrate.engine.own import model_of, of
from tests.systems.views import active, cache, shape, view

FOUR = shape(experts=6, top_k=2, layers=4)


def budget(device_bytes: int, layers: int = 4) -> Budget:
    """Return a budget: layers of 10 bytes, KV cache of 1, experts of 3, embedding and head 20."""
    return Budget(device_bytes, (10,) * layers, 1, 20, 5, 3)


# ----------------------------------------------------------------------------- what fits

#: All non-expert weights and KV cache: 20 + 4 · 11.  A layer's experts 18; copies need two of six.
COMMON, LAYER, STAGING = 64, 18, 6


@pytest.mark.parametrize(
    ("spare", "n"),
    [
        (4 * LAYER, 0),  # everything, and nothing is copied
        (4 * LAYER - 1, 1),
        (3 * LAYER + STAGING, 1),
        (3 * LAYER + STAGING - 1, 2),
        (LAYER + STAGING, 3),
        (LAYER + STAGING - 1, 4),  # --cpu-moe
        (0, 4),
    ],
)
def test_experts_of_the_fewest_first_layers_are_on_the_host(spare, n):
    place = CpuMoE()
    assert list(place.homes(FOUR, budget(COMMON + spare))) == ["device"] * 4
    assert place.count(place.first, FOUR) == n
    expected = [(layer, e) for layer in range(n, 4) for e in range(6)]
    assert list(place.place(FOUR, 24, "global")) == expected


def test_ngl_puts_the_last_layers_on_the_device():
    # 20, and of each layer 10 + 1 + 18; copies 6, non-expert weights 10: four more experts.
    place = GpuLayers()
    room = 20 + 2 * 29 + STAGING + 4 * 3
    assert list(place.homes(FOUR, budget(room))) == ["host", "host", "device", "device"]
    assert list(place.place(FOUR, 18, "global")) == [(a, e) for a in (2, 3) for e in range(6)]
    assert place.homes(FOUR, budget(room - 1)).count("device") == 1
    assert list(place.homes(FOUR, budget(20 + 4 * 29))) == ["device"] * 4


@pytest.mark.parametrize(
    ("place", "n", "first"),
    [
        (CpuMoE, 3, 3), (CpuMoE, 4, 4), (CpuMoE, 999, 4),
        (GpuLayers, 1, 3), (GpuLayers, 0, 4),
    ],
)  # fmt: skip
def test_a_given_n_is_taken(place, n, first):
    made = place(n=n)
    homes = made.homes(FOUR, budget(COMMON + 2 * LAYER + STAGING))
    assert (made.first, homes.count("host")) == (first, first if place is GpuLayers else 0)


@pytest.mark.parametrize(("place", "n", "best"), [(CpuMoE, 1, 2), (GpuLayers, 999, 2)])
def test_a_given_n_that_does_not_fit_is_refused(place, n, best):
    with pytest.raises(BudgetError, match=rf"place\.n={n}: . layers .* best that fits is {best} "):
        place(n=n).homes(FOUR, budget(COMMON + 2 * LAYER + STAGING))
    with pytest.raises(UsageError, match=r"place\.n is -1; allowed: 0 or more"):
        place(n=-1)


@given(
    st.integers(0, 300), st.integers(1, 9), st.integers(0, 6),
    st.lists(st.integers(1, 20), min_size=4, max_size=4),
    st.sampled_from([(), (0,), (0, 2)]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_n_by_brute_force(device, expert, kv, layers, dense):
    model = small_shape(layers=4, experts=5, dense_layers=dense)
    given_ = Budget(device, tuple(layers), kv, 30, 5, expert)

    def experts(on_device: range) -> int:
        held = 5 * len([layer for layer in on_device if layer in model.moe_layers])
        return held if held == 5 * len(model.moe_layers) else held + 2

    def cpu_moe(n: int) -> bool:
        return 30 + sum(layers) + 4 * kv + experts(range(n, 4)) * expert <= device

    def ngl(n: int) -> bool:
        copied = -(-max(layers[: 4 - n], default=0) // expert)
        whole = sum(layers[4 - n :]) + n * kv
        return 30 + whole + (experts(range(4 - n, 4)) + copied) * expert <= device

    first, last = CpuMoE(), GpuLayers()
    first.homes(model, given_)
    last.homes(model, given_)
    fewest = min((n for n in range(4) if cpu_moe(n)), default=4)
    assert first.first == fewest or (0 in dense and {first.first, fewest} == {0, 1})
    assert last.count(last.first, model) == max((n for n in range(1, 5) if ngl(n)), default=0)


def test_whole_layers_need_shared_slots():
    with pytest.raises(UsageError, match=r"whole layers, .*--set scope=global"):
        CpuMoE().place(FOUR, 24, "layer")


# ----------------------------------------------------------------------------- what is copied


def plan_of(used: list[list[int]], resident=(), **options):
    """Return the plan of a prompt whose rows use these of six experts, with room for copies."""
    assign = HostOrCopy(**options)
    assign.start(FOUR, cache(FOUR, 8))
    own = np.array(used)
    seen = view(np.full((len(used), 6), 0.1), 2, resident, own=own, phase="prefill")
    plan = assign.assign(seen, active(seen))
    assert all(not fetch.keep for fetch in plan.load)
    return list(plan.device), list(plan.host), [f.expert for f in plan.load], list(plan.again)


def test_a_small_batch_copies_nothing():
    assert plan_of([[0, 1]] * 31, [1]) == ([1], [0], [], [])
    assert plan_of([[0, 1]] * 32, [1]) == ([1, 0], [], [0], [])


def test_each_micro_batch_copies_anew():
    # Six rows, three at a time: {0, 3, 5}, then {0, 2, 3}; 5 is on the device.
    used = [[3, 5], [0, 5], [3, 0], [2, 3], [2, 3], [0, 2]]
    got = plan_of(used, [5], min_batch=3, micro_batch=3)
    assert got == ([5, 0, 3, 2], [], [0, 3, 2], [0, 3])
    assert plan_of(used, [5], min_batch=3, micro_batch=6)[3] == []


def test_a_small_rest_is_computed_on_the_host():
    # Four rows, three at a time: the last uses 4, which is not copied, and 0, which is resident.
    used = [[0, 1], [0, 1], [0, 1], [0, 4]]
    assert plan_of(used, min_batch=3, micro_batch=3) == ([0, 1], [4], [0, 1], [])
    assert plan_of(used, min_batch=1, micro_batch=3) == ([0, 1, 4], [], [0, 1, 4], [0])


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40),
    st.integers(1, 12), st.integers(1, 12),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_copies_are_counted_by_brute_force(pairs, least, size):
    used = [[a, b] if a != b else [a, (a + 1) % 6] for a, b in pairs]
    device, host, load, again = plan_of(used, min_batch=least, micro_batch=size)
    copies = []
    for first in range(0, len(used), size):
        part = used[first : first + size]
        if len(part) >= least:
            copies += sorted({e for row in part for e in row})
    assert sorted(load + again) == sorted(copies)
    assert set(load) == set(device) == set(copies)
    assert sorted(device + host) == sorted({e for row in used for e in row})


def test_without_room_for_a_third_of_a_layer_the_host_computes_prompts():
    assign = HostOrCopy()
    for slots, copies in (2, 1), (1, 0):
        assign.start(FOUR, cache(shape(6, 1, 4), slots))
        assert assign.host_copies(100) == copies


@pytest.mark.parametrize(("rows", "copies"), [(31, 0), (32, 1), (512, 1), (543, 1), (544, 2)])
def test_common_weights_come_with_each_large_micro_batch(rows, copies):
    assign = HostOrCopy()
    assign.start(FOUR, cache(FOUR, 8))
    assert assign.host_copies(rows) == copies


@pytest.mark.parametrize("option", ["min_batch", "micro_batch"])
def test_options_that_cannot_be(option):
    with pytest.raises(UsageError, match=rf"assign\.{option} is 0; allowed: 1 or more"):
        build("llamacpp", {f"assign.{option}": "0"})


@pytest.mark.parametrize("threads", ["0", "-3"])
def test_fewer_threads_than_one_are_refused(threads):
    with pytest.raises(UsageError, match=rf"threads is {threads}; allowed: 1 or more"):
        build("llamacpp", {"threads": threads})


# ----------------------------------------------------------------------------- timelines by hand

TWO = small_shape(layers=2)


def split_run(place: str, uses, rows: int = 1, **options: int) -> Rig:
    """Run two layers of four experts, top-2; experts of layer 0 are on the host."""
    chosen = {f"assign.{name}": str(value) for name, value in options.items()}
    made = build("llamacpp", {"place": place, **chosen})
    made.place.first = 1
    homes = made.place.homes_from(1, TWO)
    model = model_of(TWO, uses)
    ran = rig(made, model, slots=6, costs=FlatCosts(prices()), homes=homes)
    ran.engine.generate([[3]] * rows, len(uses))
    check_lanes(ran.spans)
    for before, after in zip(ran.spans, ran.spans[1:], strict=False):
        assert after.start_ns >= before.end_ns
    return ran


def test_a_decoded_layer_whose_experts_are_on_the_host():
    # Gate until 33, two experts on the host as one operation, one return of 4, then the sum.
    ran = split_run("n-cpu-moe", [[[(0, 1)], [(0, 1)]]])
    assert of(ran, OpKind.EXPERT) == [(0, (0, 1), 33, 143), (1, (0, 1), 182, 202)]
    assert of(ran, OpKind.RETURN) == [(0, (0, 1), 143, 147)]
    assert of(ran, OpKind.COMBINE) == [(0, (), 147, 149), (1, (), 202, 204)]
    check_order(ran.spans)
    assert ran.timeline.bytes_moved(Lane.H2D) == 0


def test_a_prompt_copies_what_it_uses():
    # Two rows are a large batch here.  Two slots are left: 0 and 1 come 33..113.  3 takes the slot
    # of 0, which is computed until 123, and the copy keeps the control thread until 163.
    uses = [[[(0, 1), (0, 3)], [(0, 1), (0, 1)]]]
    ran = split_run("n-cpu-moe", uses, rows=2, min_batch=2)
    assert of(ran, OpKind.LOAD) == [(0, (0,), 33, 73), (0, (1,), 73, 113), (0, (3,), 123, 163)]
    assert [row[2:] for row in of(ran, OpKind.EXPERT)][:3] == [(113, 123), (163, 173), (173, 183)]
    assert ran.timeline.bytes_moved(Lane.H2D) == 3 * RECORD_BYTES
    # One row at a time, 0 comes twice; 3 waits for a slot.
    again = split_run("n-cpu-moe", uses, rows=2, min_batch=1, micro_batch=1)
    assert [row[1] for row in of(again, OpKind.LOAD)] == [(0,), (1,), (0,), (3,)]
    assert again.timeline.bytes_moved(Lane.H2D) == 4 * RECORD_BYTES


def test_nothing_stays_from_a_prompt():
    uses = [[[(0, 1), (0, 3)], [(0, 1), (0, 1)]], [[(0, 1), (0, 3)], [(0, 1), (0, 1)]]]
    ran = split_run("n-cpu-moe", uses, rows=2, min_batch=3)
    assert (ran.counts["prefill"].host, ran.counts["decode"].host) == (3, 3)
    ran = split_run("n-cpu-moe", uses, rows=2, min_batch=2)
    # Rows decide, not the phase: two sequences decoded together are as many.
    assert len(of(ran, OpKind.LOAD)) == 6


def test_a_layer_on_the_host_with_all_its_parts():
    # Attention and gate 70 each, two experts 110 with one return, after the state has gone over.
    ran = split_run("ngl", [[[(0, 1)], [(0, 1)]]])
    assert of(ran, OpKind.ATTEND) == [(0, (), 0, 70), (1, (), 260, 290)]
    assert of(ran, OpKind.EXPERT)[0] == (0, (0, 1), 144, 254)
    check_order(ran.spans, ("host", "device"))
    # A large batch copies the non-expert weights, 0..300, and computes all on the device.
    ran = split_run("ngl", [[[(0, 1), (0, 1)]] * 2], rows=2, min_batch=2)
    assert of(ran, OpKind.STREAM) == [(0, (), 0, 300)]
    assert {s.lane for s in ran.spans} == {Lane.DEVICE, Lane.H2D}


# ----------------------------------------------------------------------------- where it exists


def test_every_family_of_the_catalogue_but_xverse_has_a_gguf():
    made = build("llamacpp")
    reasons = {name: made.why_not(model_shape(name), 1) for name in model_names()}
    refused = {name: reason for name, reason in reasons.items() if reason}
    assert list(refused) == ["xverse-moe-a4.2b"]
    assert "converter refuses XverseMoeForCausalLM" in refused["xverse-moe-a4.2b"]


def test_models_of_2026_have_a_gguf():
    made = build("llamacpp")
    refused = [name for name in shape_names() if made.why_not(find_shape(name), 1)]
    assert refused == ["xverse-moe-a4.2b"]


def test_an_unknown_family_has_none():
    other = FOUR.model_copy(update={"family": "new_moe"})
    assert "new_moe is not among llama.cpp's MoE families" in build("llamacpp").why_not(other, 1)


def test_its_call_is_in_the_notes():
    made = build("llamacpp", {"place": "ngl", "place.n": "3"})
    made.place.homes(FOUR, budget(COMMON + 4 * LAYER))
    assert "llama.cpp -ngl 3, of 4 layers" in made.remarks(FOUR, 24)
    assert len(build("llamacpp", {"place": "by-id"}).remarks(FOUR, 24)) == 1

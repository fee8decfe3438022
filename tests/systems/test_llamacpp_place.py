"""llama.cpp's --fit, by hand-calculated vectors and by properties; -ot by patterns and refusals."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.models.catalogue import find_shape
from moebench.systems.llamacpp import CpuMoE
from moebench.systems.llamacpp_place import (
    ALIGNED_CONTEXT,
    LEAST_CONTEXT,
    MIB,
    Fit,
    FitSplit,
    LayerBytes,
    Override,
    fit,
    layer_bytes,
    shrunk_context,
    thirds,
)
from moebench.systems.options import build
from tests.harness.commands import call
from tests.systems.views import shape

#: Experts 30, in three matrices of 10; of 10 other bytes the router 1 and shared experts 3.
LAYER = LayerBytes(10, 10, 10, 10, 1, 1, 1, 1)
PLAIN = LayerBytes(10, 10, 10, 10)
DENSE = LayerBytes(20)
TWO = LayerBytes(10, 15, 0, 15, 1, 2, 0, 2)
HUGE = LayerBytes(10, 334, 333, 333)

# ----------------------------------------------------------------------------- the rule of --fit

#: Output 5 and, with any expert on the host, a buffer for copies of 6: four layers of 40 take 165,
#: their dense weights 51.
VECTORS = [
    # Everything fits, and then there is no room for copies.
    ([LAYER] * 4, 165, FitSplit(0, 4)),
    # Three layers take 51 + 90 = 141.  UP of the fourth: 141 + 10 - 2 - 1; GATE: 141 + 20 - 1.
    ([LAYER] * 4, 164, FitSplit(0, 3, "GATE")),
    ([LAYER] * 4, 160, FitSplit(0, 3, "UP")),  # 160 < 160 is false
    ([LAYER] * 4, 149, FitSplit(0, 3, "UP")),
    ([LAYER] * 4, 148, FitSplit(0, 3, "ATTN")),  # 141 - 4: router and shared experts leave
    # A full layer may take the last byte.
    ([LAYER] * 4, 141, FitSplit(0, 3, "ATTN")),
    ([LAYER] * 4, 140, FitSplit(0, 2, "GATE")),
    # Nothing leaves with ATTN, and 141 < 141 is false.
    ([PLAIN] * 4, 141, FitSplit(0, 3)),
    ([PLAIN] * 4, 142, FitSplit(0, 3, "ATTN")),
    # Dense weights and the first layer's experts are 81.
    ([LAYER] * 4, 81, FitSplit(0, 1, "ATTN")),
    # One whole layer less: 41 + 30.  UP: 71 + 7 = 78; GATE: 71 + 19.
    ([LAYER] * 4, 80, FitSplit(1, 1, "UP")),
    # Dense weights do not fit with a byte to spare: no second full layer, no part of one.
    ([LAYER] * 4, 51, FitSplit(3, 1)),
    ([LAYER] * 4, 50, FitSplit(4, 0)),
    # A dense layer in front has no experts to keep: 61 and no more.
    ([DENSE, *[LAYER] * 3], 61, FitSplit(0, 1)),
    ([DENSE, *[LAYER] * 3], 62, FitSplit(0, 1, "ATTN")),
    ([DENSE, *[LAYER] * 3], 99, FitSplit(0, 2, "UP")),  # 91 + 7 = 98
    ([DENSE, *[LAYER] * 3], 98, FitSplit(0, 2, "ATTN")),
    # Two matrices, of which UP and GATE keep one: 141 + 15 - 2 - 1, and 141 + 15 - 2.
    ([TWO] * 4, 154, FitSplit(0, 3, "UP")),
    ([TWO] * 4, 155, FitSplit(0, 3, "GATE")),
    # No layer's experts fit, although all dense weights do: whole layers go.
    ([HUGE] * 4, 60, FitSplit(4, 0)),
    # The output takes 5 + 6.
    ([LAYER] * 4, 11, FitSplit(4, 0)),
    ([LAYER] * 4, 10, FitSplit(4, 0, output=False)),
    ([LAYER] * 4, -7, FitSplit(4, 0, output=False)),
]


@pytest.mark.parametrize(("layers", "target", "split"), VECTORS)
def test_the_rule_by_hand(layers, target, split):
    assert fit(layers, 5, 0, target, copies=6) == split


def test_point_1_fit_fills_from_the_front_and_n_cpu_moe_from_the_back():
    # 51 of dense weights and room for two layers' experts: the first two with --fit.
    assert fit([LAYER] * 4, 5, 0, 111, copies=6)[:2] == (0, 2)
    place = CpuMoE()
    offered = Budget(20 + 4 * 11 + 6 + 36, (10,) * 4, 1, 20, 5, 3)
    place.homes(FOUR, offered)
    assert {layer for layer, _ in place.place(FOUR, 14, "global")} == {2, 3}


def test_point_2_the_margin_is_1024_mib_and_the_least_context_4096():
    assert (Fit().margin, LEAST_CONTEXT, ALIGNED_CONTEXT) == (1024, 4096, 256)


def test_point_3_full_layers_may_take_all_bytes_and_the_boundary_layer_one_less():
    # Without router and shared experts ATTN takes as much as the dense weights: 141.
    assert fit([PLAIN] * 4, 5, 0, 141, copies=6) == (0, 3, None, True)
    assert fit([PLAIN] * 4, 5, 0, 142, copies=6) == (0, 3, "ATTN", True)
    assert fit([PLAIN] * 4, 5, 0, 140, copies=6).full == 2


def test_point_3_dense_layers_leave_the_host_from_the_back_to_the_front():
    # The last layers' dense weights come first: 11 + 10 + 30 for the last layer alone.
    assert [fit([LAYER] * 4, 5, 6, t).gpu_layers(4) for t in (50, 51, 60, 61, 71, 81)] == [
        1, 2, 2, 3, 4, 5,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "boundary"),
    [
        # 141 of 150 are taken; each matrix counts with its own bytes.
        (LayerBytes(10, 8, 10, 12), "UP"),
        (LayerBytes(10, 9, 9, 12), "ATTN"),  # 150 < 150 is false
        (LayerBytes(10, 9, 9, 12, router=1), "UP"),  # the router leaves
        (LayerBytes(10, 9, 9, 12, shared_gate=1), "UP"),
        (LayerBytes(10, 9, 9, 12, shared_down=1), "UP"),
        (LayerBytes(10, 9, 9, 12, shared_up=1), "ATTN"),  # it stays with UP
        (LayerBytes(10, 4, 4, 22), "GATE"),
        (LayerBytes(10, 4, 5, 21, router=9), "UP"),  # the router stays with GATE
        (LayerBytes(10, 4, 5, 21, shared_down=1), "GATE"),
    ],
)
def test_point_4_the_boundary_layer_moves_its_router_and_shared_experts(layer, boundary):
    assert fit([*[LAYER] * 3, layer], 5, 6, 150) == (0, 3, boundary, True)


def test_point_5_the_lowest_layer_on_the_device_keeps_its_experts():
    # Only 20 of 51 bytes of dense weights fit beside one layer's experts: layers 0 to 2 are whole.
    split = fit([LAYER] * 4, 5, 6, 51)
    assert (split.whole, split.full, split.kept(3, 3)) == (3, 1, 3)


def test_point_5_step_4_is_left_out_where_dense_weights_do_not_fit():
    # 81 take all dense weights (51) and 30; at 51 nothing is left, and at 52 ATTN would fit.
    dense = [LayerBytes(10, 1, 1, 1)] * 4
    assert fit(dense, 5, 6, 51) == (1, 1, None, True)
    assert fit(dense, 5, 6, 52) == (1, 3, None, True)


@st.composite
def models(draw):
    """Return layers of one number of matrices, output, compute buffer and target."""
    matrices = draw(st.sampled_from([2, 3]))
    size = st.integers(0, 9)
    more = st.integers(0, 15)
    parts = st.tuples(size, *[more] * 3, *[size] * 4)
    layers = []
    for attention, up, gate, down, router, *shared in draw(st.lists(parts, min_size=1, max_size=8)):
        with_gate = matrices == 3
        shared[1] *= with_gate
        dense = attention + router + sum(shared)
        layers.append(LayerBytes(dense, up, gate * with_gate, down, router, *shared))
    whole = sum(one.dense + one.experts for one in layers)
    return (
        layers,
        draw(st.integers(0, 9)),
        draw(st.integers(0, 9)),
        draw(st.integers(-5, whole + 19)),
    )


def remains(one: LayerBytes, kept: str) -> int:
    """Return the bytes of a layer of which matrices (u, g) and perhaps the router (r) remain."""
    shared = one.shared_up + one.shared_gate + one.shared_down
    total = one.dense - one.router - shared + one.router * ("r" in kept)
    total += (one.up + one.shared_up) * ("u" in kept)
    return total + (one.gate + one.shared_gate) * ("g" in kept)


def searched(layers: list[LayerBytes], output: int, compute: int, target: int):
    """Restate the search of common/fit.cpp by false position, for one device.

    Returns:
        the entries on the device, those of them that overflow, and what the first of these keeps.
    """
    count = len(layers)

    def used(entries: int, part: int, boundary: str = "MOE") -> int:
        first = count + 1 - entries
        overflows = first + entries - part
        total = compute + (output if entries else 0)
        total += sum(one.dense for one in layers[first:])
        total += sum(one.experts for one in layers[first:overflows])
        if boundary != "MOE" and overflows < count:
            one = layers[overflows]
            total += remains(one, {"UP": "u", "GATE": "ugr", "ATTN": ""}[boundary]) - one.dense
        return total

    def search(least: int, most: int, used_by) -> int:
        """Return where false position ends: least fits, or is not checked."""
        if used_by(most) <= target:
            return most
        while most - least > 1:
            below, above = used_by(least), used_by(most)
            gap = above - below
            step = (most - least) * (target - below) // gap if gap > 0 else most - least - 1
            middle = least + min(max(step, 1), most - least - 1)
            if used_by(middle) <= target:
                least = middle
            else:
                most = middle
        return least

    if used(count + 1, 0) <= target:
        return count + 1, 0, "MOE"
    entries = search(0, count + 1, lambda n: used(n, max(n - 1, 0)))
    part = max(entries - 1, 0)
    if used(count + 1, count + 1) >= target or entries < 2:
        return entries, part, "MOE"
    part = entries - search(entries - part, entries, lambda full: used(entries, entries - full))
    if used(entries, part, "UP") < target:
        return entries, part, "GATE" if used(entries, part, "GATE") < target else "UP"
    return entries, part, "ATTN" if used(entries, part, "ATTN") < target else "MOE"


@pytest.mark.slow
@given(models())
@settings(max_examples=600, deadline=None)
def test_the_closed_form_is_what_the_search_finds(model):
    layers, output, compute, target = model
    count = len(layers)
    sizes = [layers[i].experts + sum(x.dense for x in layers[i:]) for i in range(count)]
    assume(all(a >= b for a, b in pairwise(sizes)))  # else several n can end the search
    split = fit(layers, output, compute, target)
    entries, part, boundary = searched(layers, output, compute, target)
    assert split.gpu_layers(count) == entries

    def on_device(layer: int) -> int:
        return sum((layers[layer].up, layers[layer].gate, layers[layer].down))

    # Layers without experts may count as full or not: compare what is on the device.
    first = count + 1 - entries
    full = [i for i in range(first, min(count, count + 1 - part)) if on_device(i)]
    assert [i for i in range(split.whole, split.whole + split.full) if on_device(i)] == full
    if part and first + entries - part < count:
        assert (split.boundary or "MOE") == boundary


@pytest.mark.slow
@given(models())
@settings(max_examples=400, deadline=None)
def test_the_split_fits_and_one_more_layer_would_not(model):
    layers, output, compute, target = model
    split = fit(layers, output, compute, target)
    everything = output + compute + sum(one.dense + one.experts for one in layers)
    if everything <= target:
        assert split == (0, len(layers), None, True)
        return
    assert 0 <= split.whole <= split.whole + split.full <= len(layers)

    def used(whole: int, full: int) -> int:
        here = layers[whole:]
        return output + compute + sum(x.dense for x in here) + sum(x.experts for x in here[:full])

    for whole in range(split.whole):
        assert used(whole, 1) > target
    if split.whole == len(layers):
        assert split.full == 0
        assert split.output == (output + compute <= target)
        return
    assert split.full >= 1
    assert used(split.whole, split.full) <= target
    if used(0, 0) >= target:
        assert split.full == 1
        assert split.boundary is None
        return
    at = split.whole + split.full
    if at < len(layers):
        assert used(split.whole, split.full + 1) > target


@given(models(), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_more_memory_never_holds_fewer_bytes(model, more):
    layers, output, compute, target = model

    def held(target: int) -> int:
        split = fit(layers, output, compute, target)
        return sum(layers[i].experts for i in range(split.whole, split.whole + split.full))

    if held(target) > held(target + more):  # only where fewer whole layers are on the host
        splits = [fit(layers, output, compute, t) for t in (target, target + more)]
        assert splits[1].whole < splits[0].whole


@pytest.mark.parametrize(
    ("target", "context"),
    [
        (1000, 131_072),  # everything fits
        (999, 130_816),  # 4096 + 126976 * 799 / 800 = 130,913, of which 256 divide 130,816
        (600, 67_584),  # half way: 4096 + 63,488
        (201, 4096),  # 4096 + 158, below the next multiple
        (200, 4096),
        (-9, 4096),
    ],
)
def test_point_3_an_unset_context_is_shrunk(target, context):
    assert shrunk_context(131_072, 200, 1000, target) == context
    assert shrunk_context(2048, 200, 1000, target) == 2048
    assert shrunk_context(131_072, 1000, 1000, 600) == 4096


# ----------------------------------------------------------------------------- place=fit

FOUR = shape(experts=6, top_k=2, layers=4)


def budget(device_bytes: int) -> Budget:
    """Return a budget in MiB: layers 10, KV cache 1, experts 3, embedding and head 20."""
    ten = (10 * MIB,) * 4
    return Budget(device_bytes * MIB, ten, MIB, 20 * MIB, 5 * MIB, 3 * MIB)


def placed_by(place, offered: Budget) -> tuple[list[str], list[int]]:
    """Return the homes of layers, and the number of experts of each on the device."""
    homes = [*place.homes(FOUR, offered)]
    found = [*place.place(FOUR, offered.slots(homes), "global")]
    counts = [sum(layer == at for at, _ in found) for layer in range(4)]
    # The lowest ids of each layer.
    assert found == [(layer, e) for layer in range(4) for e in range(counts[layer])]
    return homes, counts


#: Four layers take 20 + 44 + 72; copies 6.  The rule's target is 1,024 MiB less.
@pytest.mark.parametrize(
    ("spare", "whole", "counts"),
    [
        (136, 0, [6, 6, 6, 6]),
        (135, 0, [6, 6, 6, 2]),  # UP of the last layer's three matrices: a third of its experts
        (20 + 44 + 6 + 18, 0, [6, 0, 0, 0]),
        (20 + 44 + 6 + 36, 0, [6, 6, 0, 0]),
        (20 + 44 + 6 + 36 + 8, 0, [6, 6, 2, 0]),
        (20 + 44 + 6 + 36 + 14, 0, [6, 6, 4, 0]),
        (20 + 33 + 6 + 18, 1, [0, 6, 0, 0]),
        (30, 4, [0, 0, 0, 0]),
    ],
)
def test_fit_keeps_the_first_layers_experts(spare, whole, counts):
    place = Fit()
    homes, found = placed_by(place, budget(1024 + spare))
    assert homes == ["host"] * whole + ["device"] * (4 - whole)
    assert found == counts
    # With a margin of 0 as much fits into 1,024 MiB less.
    assert placed_by(Fit(margin=0), budget(spare)) == (homes, counts)


def test_the_margin_stays_free():
    made = build("llamacpp", {"place": "fit"})
    assert made.most_slots(FOUR) is None
    made.place.homes(FOUR, budget(1024 + 106))
    assert made.most_slots(FOUR) == 12 + 2  # and a third of a layer for copies
    made.place.homes(FOUR, budget(1024 + 136))
    assert made.most_slots(FOUR) is None
    assert build("llamacpp").most_slots(FOUR) is None


def test_fit_is_in_the_notes():
    made = build("llamacpp", {"place": "fit"})
    made.place.homes(FOUR, budget(1024 + 20 + 44 + 6 + 36 + 8))
    assert made.remarks(FOUR, 24)[1] == (
        "llama.cpp --fit on: -ngl 5, experts of layers 0 to 1 on the device, layer 2 in part (UP)"
    )
    made.place.homes(FOUR, budget(1024 + 30))
    assert made.remarks(FOUR, 24)[1] == "llama.cpp --fit on: -ngl 1, experts on the host"


def test_an_unset_context_takes_room_from_experts():
    air = find_shape("glm-4.5-air")
    run, unset, large = Fit(), Fit(context="unset"), Fit(context="unset")
    for place, gib in (run, 24), (unset, 24), (large, 96):
        assert [*place.homes(air, budget_of(air, gib))] == ["device"] * 46
    assert "--fit on: -ngl 47, " in run.flags(air)
    assert "--fit on -c 4096: -ngl 47, " in unset.flags(air)
    # 3,584 more tokens of 46 layers, 8 heads, keys and values of 128 in two bytes.
    fewer = sum(run.counts.values()) - sum(unset.counts.values())
    taken = 3584 * 46 * 8 * 2 * 128 * 2 / air.expert_bytes("4bit")
    assert fewer == pytest.approx(taken, abs=128 / 3 + 1)
    assert f"--fit on -c {air.max_positions}: " in large.flags(air)
    assert sum(large.counts.values()) == 45 * 128


def budget_of(model, gib: float) -> Budget:
    """Return the budget of a model at four bits a weight, with 512 cached tokens."""
    layers = tuple(model.layer_common_params(i) // 2 for i in range(model.num_layers))
    head = model.head_params // 2
    cache = 512 * model.kv_bytes_per_token() // model.num_layers
    expert = model.expert_bytes("4bit")
    return Budget(round(gib * 2**30), layers, cache, 2 * head, head, expert)


@pytest.mark.parametrize(
    ("name", "gib"), [("gpt-oss-120b", 24), ("glm-4.5-air", 24), ("nemotron-3-nano-30b-a3b", 12)]
)
def test_real_models_fill_a_card_up_to_the_margin(name, gib):
    model = find_shape(name)
    offered = budget_of(model, gib)
    place = Fit()
    homes = [*place.homes(model, offered)]
    assert homes == ["device"] * model.num_layers
    slots = offered.slots(homes)
    held = len([*place.place(model, slots, "global")])
    assert held == sum(place.counts.values()) > 0
    # At most one matrix of a layer's experts, the margin and the room for copies are left.
    third = model.num_experts // model.ffn_matrices + 1
    margin = -(-1024 * MIB // offered.expert_bytes)
    assert slots - margin - third - -(-model.num_experts // 3) - 1 <= held <= slots - margin
    # Experts are on the device from the front, and parts of one layer alone.
    counts = [*place.counts.values()]
    assert all(a >= b for a, b in pairwise(counts))
    assert sum(0 < count < model.num_experts for count in counts) <= 1


def test_layer_bytes_are_those_of_the_budget():
    air = find_shape("glm-4.5-air")
    offered = budget_of(air, 24)
    first, second, *_ = layer_bytes(air, offered)
    assert (first.experts, first.router) == (0, 0)
    assert second.experts == 128 * offered.expert_bytes
    shared = second.shared_up + second.shared_gate + second.shared_down
    assert shared == pytest.approx(air.shared_params / 2, rel=1e-3)
    assert second.up == second.gate == pytest.approx(second.down, abs=2)
    assert second.dense == offered.layer_bytes[1] + offered.kv_layer_bytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"place.margin": "-1"}, r"place\.margin is -1; allowed: 0 or more"),
        ({"place.context": "all"}, r"place\.context=all"),
    ],
)
def test_options_of_fit_that_cannot_be(options, said):
    with pytest.raises(UsageError, match=said):
        build("llamacpp", {"place": "fit", **options})


# ----------------------------------------------------------------------------- place=override

ROOM = budget(20 + 44 + 72 + 6)


@pytest.mark.parametrize(
    ("pattern", "counts"),
    [
        (r"blk\.(1|3)\.ffn_.*_exps", [6, 0, 6, 0]),
        (r"blk\.[01]\.ffn_.*_exps\.=CPU", [0, 0, 6, 6]),
        (r"ffn_.*_exps", [0, 0, 0, 0]),
        (r"\.ffn_(up|down|gate_up|gate)_(ch|)exps", [0, 0, 0, 0]),  # --cpu-moe
        (r"ffn_down_exps", [4, 4, 4, 4]),  # one matrix of three: a third of the experts
        (r"blk\.2\.ffn_(gate|up)_exps", [6, 6, 2, 6]),
        (r"blk\.3\.", [6, 6, 6, 0]),
    ],
)
def test_matching_layers_are_on_the_host(pattern, counts):
    assert placed_by(Override(host=pattern), ROOM) == (["device"] * 4, counts)


def test_the_default_pattern_is_cpu_moe():
    place = Override()
    assert placed_by(place, budget(20 + 44))[1] == [0] * 4
    said = "-ot '\\.ffn_(up|down|gate_up|gate)_(ch|)exps=CPU': experts of 4 of 4 layers on the host"
    assert place.flags(FOUR) == said


def test_a_pattern_that_also_matches_other_tensors_is_noted():
    place = Override(host=r"blk\.[01]\.(attn|ffn_down)")
    place.homes(FOUR, ROOM)
    assert place.flags(FOUR).endswith(
        "experts of 2 of 4 layers on the host, of 2 of them some matrices; it also matches attn_q, "
        "attn_output, ffn_down, which stay on the device here"
    )


def test_experts_that_do_not_fit_are_refused():
    with pytest.raises(BudgetError, match=r"leaves 18 experts to the device, .* room for 17; allo"):
        Override(host=r"blk\.3\.ffn.*exps").homes(FOUR, budget(20 + 44 + 6 + 53))
    placed_by(Override(host=r"blk\.3\.ffn.*exps"), budget(20 + 44 + 6 + 54))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("blk.(1", "is no regular expression (missing ), unterminated subpattern at position 4)"),
        ("*exps", "is no regular expression (nothing to repeat at position 0)"),
        ("=CPU", "is empty"),
        ("blk.9[0-9].ffn_.*_exps", "matches no experts of 28 layers"),
    ],
)
def test_a_pattern_that_cannot_be_is_one_line_and_exit_code_2(pattern, said):
    called = call(
        "run", "--system", "llamacpp", "--setting", "S3", "--quick", "--set", "place=override",
        "--set", f"place.host={pattern}",
    )  # fmt: skip
    assert (called.code, called.out) == (2, "")
    *progress, line = called.err.splitlines()
    assert line.startswith(f"moebench: place.host={pattern}: {said}")
    assert "; allowed: " in line
    assert all(": load, " in one for one in progress)


@pytest.mark.parametrize("place", [Fit(), Override()])
def test_whole_layers_need_shared_slots(place):
    with pytest.raises(UsageError, match=r"whole layers, .*--set scope=global"):
        place.place(FOUR, 24, "layer")


@pytest.mark.parametrize(
    ("size", "matrices", "parts"),
    [(30, 3, (10, 10, 10)), (31, 3, (10, 10, 11)), (32, 3, (10, 10, 12)), (30, 2, (15, 0, 15)),
     (31, 2, (15, 0, 16)), (0, 3, (0, 0, 0))],
)  # fmt: skip
def test_bytes_of_matrices_are_equal_and_the_last_has_the_rest(size, matrices, parts):
    assert thirds(size, matrices) == parts
    assert sum(thirds(size, matrices)) == size

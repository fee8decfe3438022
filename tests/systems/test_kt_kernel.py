"""kt-kernel: how N and its experts are chosen, what is deferred, chunks, changing residents."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.kt_kernel import (
    ChunkedHybrid,
    KTKernel,
    PlaceByFrequency,
    PlaceFrontLoading,
    PlaceShuffled,
    PlaceUniform,
    chunks,
    deferral,
    device_experts,
    front_loading_counts,
    most_frequent,
    most_routed,
    shuffled,
    uniform_counts,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import RECORD_BYTES, FlatCosts, prices, rig, small_shape
from tests.substrate.engine.own import model_of, of
from tests.systems.views import active, cache, shape, view

#: Four layers of three experts; the first layer is dense.
DENSE_FIRST = shape(3, 1, layers=4, dense_layers=(0,), dense_width=4)


# --------------------------------------------------------------------------- N (12.3.2)


def test_n_is_truncated_and_a_ratio_overrides_the_number_per_layer():
    # 3 MoE layers of 10 experts: 30 · 0.35 = 10.5, of which 10 are placed.
    assert device_experts(3, 10, ratio=0.35) == 10
    assert device_experts(3, 10, per_layer=4) == 12
    assert device_experts(3, 10, ratio=0.35, per_layer=4) == 10
    assert device_experts(3, 10) is None


def test_dense_layers_do_not_count_for_n():
    # 3 MoE layers of 3 experts: 9 · 0.5 = 4.5, so 4; with the dense layer it would be 6.
    assert PlaceUniform(ratio=0.5).wanted(DENSE_FIRST) == 4
    assert PlaceUniform(per_layer=2).wanted(DENSE_FIRST) == 6
    assert PlaceUniform(per_layer=9).wanted(DENSE_FIRST) == 9
    assert PlaceUniform().wanted(DENSE_FIRST) is None


def test_more_than_n_slots_stay_empty_and_fewer_are_refused():
    placed = list(PlaceUniform(ratio=0.5).place(DENSE_FIRST, 9, "global"))
    assert placed == [(1, 0), (1, 1), (2, 0), (3, 0)]
    assert len(list(PlaceUniform().place(DENSE_FIRST, 9, "global"))) == 9
    with pytest.raises(BudgetError, match=r"place\.ratio=0\.5 is 4 experts, .* slots for 3"):
        list(PlaceUniform(ratio=0.5).place(DENSE_FIRST, 3, "global"))
    with pytest.raises(BudgetError, match=r"place\.per_layer=2 is 6 experts"):
        list(PlaceUniform(per_layer=2).place(DENSE_FIRST, 5, "global"))


def test_the_system_keeps_n_experts_and_one_staged_layer():
    assert build("kt-kernel").most_slots(DENSE_FIRST) is None
    assert build("kt-kernel", {"place.per_layer": "2"}).most_slots(DENSE_FIRST) == 6
    long = {"place.per_layer": "2", "assign.threshold": "400"}
    assert build("kt-kernel", long).most_slots(DENSE_FIRST) == 6 + 3


# --------------------------------------------------------------------------- uniform (12.3.1)


def test_uniform_gives_the_first_layers_one_more():
    # 10 over 4 layers are 2 each; the remaining 2 go to the first two layers.
    assert uniform_counts(10, 4, 8) == [3, 3, 2, 2]
    assert uniform_counts(8, 4, 8) == [2, 2, 2, 2]
    assert uniform_counts(35, 4, 8) == [8, 8, 8, 8]


def test_uniform_is_of_moe_layers_and_lowest_ids():
    placed = list(PlaceUniform().place(DENSE_FIRST, 5, "global"))
    assert placed == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]


@given(st.integers(0, 60), st.integers(1, 7), st.integers(1, 8))
def test_uniform_places_n_with_layers_at_most_one_apart(n, layers, experts):
    counts = uniform_counts(n, layers, experts)
    assert sum(counts) == min(n, layers * experts)
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1


# --------------------------------------------------------------------------- front-loading, random


def test_front_loading_takes_the_lowest_ids_of_the_first_layers():
    assert front_loading_counts(10, 4, 8) == [8, 2, 0, 0]
    assert front_loading_counts(40, 4, 8) == [8, 8, 8, 8]
    placed = list(PlaceFrontLoading().place(DENSE_FIRST, 4, "global"))
    assert placed == [(1, 0), (1, 1), (1, 2), (2, 0)]


def test_random_by_hand():
    # MT19937 with seed 42 begins with 1608637542 and 3421126067.  Of three: 1608637542 mod 3 = 0
    # leaves 0 in its place, 3421126067 mod 2 = 1 exchanges 1 and 2.
    assert shuffled(3) == [0, 2, 1]
    placed = list(PlaceShuffled().place(shape(3, 1, layers=1), 2, "global"))
    assert placed == [(0, 0), (0, 2)]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 60, 128, 6144])
@pytest.mark.parametrize("seed", [42, 0, 2**32 - 1])
def test_random_is_torch_randperm(n, seed):
    # 12.3.3: the rule with MT19937 and torch agree.
    generator = torch.Generator().manual_seed(seed)
    assert shuffled(n, seed) == torch.randperm(n, generator=generator).tolist()


def test_random_is_over_all_moe_experts():
    generator = torch.Generator().manual_seed(42)
    order = torch.randperm(9, generator=generator).tolist()
    wanted = [(1 + at // 3, at % 3) for at in order[:5]]
    assert list(PlaceShuffled().place(DENSE_FIRST, 5, "global")) == wanted


# --------------------------------------------------------------------------- frequency (12.3.4)


def test_frequency_is_the_global_top_n():
    # The three largest are .9, .8 and .5: one of layer 1, two of layer 0.
    table = [[0.1, 0.5, 0.3, 0.8], [0.2, 0.4, 0.9, 0.1]]
    assert np.argwhere(most_frequent(table, 3)).tolist() == [[0, 1], [0, 3], [1, 2]]
    assert not most_frequent(table, 0).any()
    assert most_frequent(table, 99).all()


def test_rows_of_dense_layers_compete_as_they_are():
    table = ((9, 9, 0), (5, 1, 0), (4, 3, 0), (2, 8, 0))
    placed = list(PlaceByFrequency(popularity=table).place(DENSE_FIRST, 5, "global"))
    # 9, 9, 8, 5, 4: two of the five are counts of the dense layer, and are lost.
    assert placed == [(1, 0), (2, 0), (3, 1)]


@given(st.lists(st.integers(0, 4), min_size=12, max_size=12), st.integers(1, 12))
def test_frequency_has_the_largest_counts_and_torchs_ties(counts, n):
    mask = most_frequent(np.reshape(counts, (3, 4)), n).ravel()
    chosen = [count for count, in_it in zip(counts, mask, strict=True) if in_it]
    assert sorted(chosen, reverse=True) == sorted(counts, reverse=True)[:n]
    flat = torch.tensor(counts, dtype=torch.float32)
    assert set(np.flatnonzero(mask)) == set(torch.topk(flat, n, sorted=False).indices.tolist())


def test_frequency_counts_texts_unless_it_has_a_table():
    assert PlaceByFrequency().calibrates
    assert not PlaceByFrequency(popularity=((1.0,),)).calibrates
    with pytest.raises(UsageError, match="places by popularity and knows none"):
        list(PlaceByFrequency().place(DENSE_FIRST, 5, "global"))


def test_the_default_is_uniform():
    assert isinstance(KTKernel().place, PlaceUniform)


def test_other_placements_share_the_slots_of_layers():
    for made in (PlaceFrontLoading(), PlaceShuffled()):
        with pytest.raises(UsageError, match="allowed: --set scope=global"):
            list(made.place(DENSE_FIRST, 6, "layer"))
    assert len(list(PlaceUniform().place(DENSE_FIRST, 6, "layer"))) == 6


# --------------------------------------------------------------------------- deferral (12.3.5)


def test_an_expert_protected_for_any_token_is_immediate_for_all():
    # Two tokens of three experts, one protected: 5 for the first token, 1 for the second.  1 is
    # the first token's last expert and still immediate.
    ids = np.array([[5, 3, 1], [1, 3, 4]])
    assert deferral(ids, 1) == ({5, 1}, {3, 4})


def test_protected_experts_are_those_of_highest_weight():
    ids, weights = np.array([[5, 3, 1]]), np.array([[0.1, 0.7, 0.2]])
    assert deferral(ids, 1, weights) == ({3}, {5, 1})
    assert deferral(ids, 2, weights) == ({3, 1}, {5})


@pytest.mark.parametrize("protected", [0, -2])
def test_nothing_protected_defers_all(protected):
    ids = np.array([[5, 3, 1]])
    assert deferral(ids, protected) == (set(), {5, 3, 1})
    assert deferral(ids, protected, np.ones((1, 3))) == (set(), {5, 3, 1})
    assert deferral(ids, 7) == ({5, 3, 1}, set())


def per_token(ids, weights, protected):
    """Mark each position of the batch, as the code does, one token after the other."""
    flagged = set()
    for row, weigh in zip(ids, weights, strict=True):
        ranked = sorted(range(len(row)), key=lambda at: -weigh[at])
        flagged |= {row[at] for at in ranked[: max(protected, 0)]}
    marks = [[e in flagged for e in row] for row in ids]
    return (
        {e for row, mark in zip(ids, marks, strict=True) for e, m in zip(row, mark, strict=True)
         if m},
        {e for row, mark in zip(ids, marks, strict=True) for e, m in zip(row, mark, strict=True)
         if not m},
    )  # fmt: skip


@given(
    st.lists(st.permutations(range(6)), min_size=1, max_size=4),
    st.lists(st.permutations(range(1, 5)), min_size=4, max_size=4),
    st.integers(-1, 5),
)
def test_deferral_is_that_of_a_loop_over_tokens(order, weighed, protected):
    ids, weights = [row[:4] for row in order], weighed[: len(order)]
    found = deferral(np.array(ids), protected, np.array(weights, dtype=float))
    assert found == per_token(ids, weights, protected)


def planned(own, resident=(), layer_after=True, **options):
    seen = view([[0.1] * 6] * len(own), len(own[0]), resident, own=own, layers=3,
                phase=options.pop("phase", "prefill"))  # fmt: skip
    if not layer_after:
        seen.next_layer = None
    return ChunkedHybrid(**options).assign(seen, active(seen))


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_hybrid_prefill_defers_too(phase):
    plan = planned([[5, 3, 1], [1, 3, 4]], resident=[4], defer=2, phase=phase)
    assert (list(plan.device), list(plan.host), list(plan.deferred)) == ([4], [1, 5], [3])
    assert not plan.load


def test_the_last_layer_defers_none():
    plan = planned([[5, 3, 1]], defer=2, layer_after=False)
    assert (list(plan.host), list(plan.deferred)) == ([1, 3, 5], [])


# --------------------------------------------------------------------------- chunks (12.3.6)


def test_layerwise_prefill_is_off_by_default():
    assert ChunkedHybrid().threshold == 0
    plan = planned([[0, 1]] * 99)
    assert (list(plan.host), list(plan.load)) == ([0, 1], [])
    policy = ChunkedHybrid()
    policy.start(shape(), cache(shape(), 9))
    assert policy.reserve == 0


@pytest.mark.parametrize(("tokens", "staged"), [(3, False), (4, True), (5, True)])
def test_the_threshold_is_reached_at_exactly_its_tokens(tokens, staged):
    plan = planned([[0, 1]] * tokens, threshold=4)
    assert bool(plan.load) == staged
    assert list(plan.host) == ([] if staged else [0, 1])


def test_the_tokens_are_those_of_one_chunk():
    # 8 tokens in chunks of 3, 3, 2: none has 4.
    assert not planned([[0, 1]] * 8, threshold=4, chunk=3).load
    assert planned([[0, 1]] * 8, threshold=3, chunk=3).load
    assert chunks(8, 3) == [slice(0, 3), slice(3, 6), slice(6, 8)]
    assert chunks(6, 3) == [slice(0, 3), slice(3, 6)]


def test_a_short_last_chunk_stays_hybrid():
    # Chunks of 2, 2 and 1 tokens.  5 is of the last one alone and absent: the host computes it.
    # 0 is of all chunks.  The five absent experts are copied for each of the two long chunks.
    own = [[0, 1], [0, 1], [0, 2], [0, 2], [0, 5]]
    plan = planned(own, resident=[4], threshold=2, chunk=2)
    assert (list(plan.device), list(plan.host)) == ([0, 1, 2], [5])
    assert list(plan.load) == [Fetch(0, e, keep=False) for e in (0, 1, 2, 3, 5)]
    assert list(plan.again) == [0, 1, 2, 3, 5]


def test_a_short_last_chunk_defers():
    own = [[0, 1], [0, 1], [0, 5], [3, 5]]
    plan = planned(own[:3], threshold=2, chunk=2, defer=1)
    assert (list(plan.host), list(plan.deferred)) == ([], [5])
    plan = planned([*own[:2], [5, 3]], threshold=2, chunk=2, defer=1)
    assert (list(plan.host), list(plan.deferred)) == ([5], [3])


def test_a_decode_step_of_that_many_sequences_is_staged_too():
    assert planned([[0, 1]] * 4, threshold=4, phase="decode").load
    assert not planned([[0, 1]] * 3, threshold=4, phase="decode").load


@pytest.mark.parametrize(
    ("prompt", "chunk", "reserve"), [(1023, 4096, 0), (1024, 4096, 8), (9999, 1023, 0)]
)
def test_a_layer_is_staged_only_where_a_chunk_can_be_long_enough(prompt, chunk, reserve):
    made = build("kt-kernel", {"assign.threshold": "1024", "assign.chunk": str(chunk)})
    made.expect(prompt)
    model = shape(8, 2, layers=3)
    made.start(model, cache(model, 20))
    assert made.reserve == reserve
    assert len(made.remarks(model, 20)) == (reserve > 0)


# Three experts, all used by four tokens; one resident of each layer, three slots staged.  The two
# chunks of two tokens bring 1 and 2 twice:
#
#   L0   gate 33; 0 33..43; 1 comes 33..73, 2 ..113, 1 again ..153, 2 again ..193; then both compute


def test_absent_experts_are_copied_once_for_each_long_chunk():
    options = {"assign.threshold": "2", "assign.chunk": "2"}
    model = model_of(small_shape(layers=2, experts=3), [[[(1, 0), (1, 2)] * 2] * 2])
    ran = rig(build("kt-kernel", options), model, slots=5, costs=FlatCosts(prices()))
    ran.engine.generate([[3]] * 4, 1)
    loads = of(ran, OpKind.LOAD)
    assert loads[:4] == [
        (0, (1,), 33, 73), (0, (2,), 73, 113), (0, (1,), 113, 153), (0, (2,), 153, 193),
    ]  # fmt: skip
    assert [row[:2] for row in loads[4:]] == [(1, (1,)), (1, (2,))] * 2
    assert of(ran, OpKind.EXPERT, Lane.HOST) == []
    assert ran.tier.peak_bytes == 5 * RECORD_BYTES


# --------------------------------------------------------------------------- update (12.3.7)


def test_the_last_long_chunk_decides_not_the_whole_prompt():
    # Chunks of 3, 3 and 1 tokens, two residents.  The prompt uses 1 and 2 most; the second chunk
    # uses 3 and 4 most: they replace 0 and 5.  The last, short chunk does not count.
    own = [[1, 2]] * 3 + [[3, 4], [3, 4], [3, 1]] + [[1, 2]]
    plan = planned(own, resident=[0, 5], threshold=3, chunk=3, update=True)
    assert [f for f in plan.load if f.keep] == [
        Fetch(0, 3, instead_of=0), Fetch(0, 4, instead_of=5),
    ]  # fmt: skip
    assert [f.expert for f in plan.load if not f.keep] == [1, 2]
    assert list(plan.device) == [1, 2, 3, 4]


def test_each_layer_keeps_its_number():
    own = [[1, 2]] * 3
    kept = planned(own, resident=[1], threshold=3, update=True)
    assert all(not fetch.keep for fetch in kept.load)
    assert not any(f.keep for f in planned(own, resident=[], threshold=3, update=True).load)
    three = planned(own, resident=[0, 3, 4], threshold=3, update=True)
    come = {f.expert: f.instead_of for f in three.load if f.keep}
    stay = {0, 3, 4} - set(come.values())
    assert {1, 2} <= {*come, *stay}
    assert len({*come, *stay}) == 3


@given(st.lists(st.integers(-1, 6), max_size=20), st.integers(0, 6))
def test_the_most_routed_have_the_largest_counts_and_torchs_ties(ids, n):
    found = most_routed(np.array(ids, dtype=int), 6, n)
    counts = [ids.count(e) for e in range(6)]  # -1 and 6 are not ids of experts
    assert found == sorted(found)
    wanted = sorted(counts, reverse=True)[:n]
    assert sorted((counts[e] for e in found), reverse=True) == wanted
    assert found == sorted(torch.topk(torch.tensor(counts), n).indices.tolist())


def test_update_counts_in_layerwise_prefill_only():
    assert not planned([[1, 2]] * 3, resident=[0], threshold=4, update=True).load
    assert not planned([[1, 2]] * 3, resident=[0], update=True).load
    (note,) = build("kt-kernel", {"assign.update": "true"}).remarks(DENSE_FIRST, 9)
    assert note == "assign.update=true has no effect: no chunk reaches assign.threshold"
    assert build("kt-kernel").remarks(DENSE_FIRST, 9) == ()


# --------------------------------------------------------------------------- options


def test_options_out_of_range_are_one_line():
    with pytest.raises(UsageError, match=r"assign\.chunk is 0; allowed: 1"):
        ChunkedHybrid(chunk=0)
    with pytest.raises(UsageError, match=r"assign\.defer is -1; allowed: 0"):
        ChunkedHybrid(defer=-1)
    for ratio in (-0.1, 1.1):
        with pytest.raises(UsageError, match=r"place\.ratio is .*; allowed: 0 to 1"):
            PlaceUniform(ratio=ratio)
    with pytest.raises(UsageError, match=r"place\.per_layer is -1; allowed: 0 or more"):
        PlaceByFrequency(per_layer=-1)
    with pytest.raises(UsageError, match=r"place\.seed is -1; allowed: 0"):
        PlaceShuffled(seed=-1)


def test_deferral_alone_is_lossy():
    assert build("kt-kernel").lossless
    assert not build("kt-kernel", {"assign.defer": "1"}).lossless


def test_placement_that_is_no_strategy_of_the_engine_limits_no_slots():
    assert build("kt-kernel", {"place": "by-id"}).most_slots(DENSE_FIRST) is None

"""exllamav3 -mcs: the tail, sweeps with their floor, promotions, streamed prefill."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.exllamav3_mcs import (
    ColdOnHost,
    EarlierExLlamaV3Split,
    ExLlamaV3Split,
    HitSweep,
    PromoteOnMiss,
    SplitByResidence,
    TailOnHost,
    combined,
    demotions,
    on_host,
    passes,
    promotions,
    stream_tokens,
    streamed,
    sweep,
    sweep_layer,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import small_shape
from tests.substrate.engine.own import model_of, of, run
from tests.substrate.traces.texts import routed_text
from tests.systems.views import active, cache, costs, shape, view

# --------------------------------------------------------------------------- the tail (12.4.4)


def test_the_host_keeps_the_last_ids():
    assert on_host(4, 2) == [2, 3]
    assert on_host(4, 0) == []


def test_with_counts_the_order_is_stable_and_descending():
    # 1 and 2 have 5 and stay in this order, then 0 with 1, then 3 with none.
    assert on_host(4, 2, [1, 5, 5, 0]) == [0, 3]
    assert on_host(4, 3, [1, 5, 5, 0]) == [2, 0, 3]


@pytest.mark.parametrize("n", [4, 5, 99])
def test_all_experts_or_more_become_all_but_one(n):
    assert on_host(4, n) == [1, 2, 3]
    assert on_host(1, n) == []


def test_each_layer_keeps_as_many():
    # 7 slots of 2 layers: 3 experts of each.
    model = shape(5, 2, layers=2)
    assert list(TailOnHost().place(model, 7, "global")) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    cold = ColdOnHost(popularity=((0, 1, 2, 3, 4), (9, 0, 9, 0, 9)))
    assert list(cold.place(model, 7, "global")) == [
        (0, 2), (0, 3), (0, 4), (1, 0), (1, 2), (1, 4),
    ]  # fmt: skip
    assert list(TailOnHost(n=4).place(model, 7, "global")) == [(0, 0), (1, 0)]
    with pytest.raises(BudgetError, match=r"1 slots for residents, 2 layers need one each"):
        TailOnHost().place(model, 1, "global")
    with pytest.raises(UsageError, match="allowed: --set scope=global"):
        TailOnHost().place(model, 7, "layer")


def test_n_decides_how_many_slots_there_are():
    model = shape(5, 2, layers=2)
    assert ExLlamaV3Split().most_slots(model) is None
    made = build("exllamav3-mcs", {"place": "tail-on-host", "place.n": "2"})
    assert made.most_slots(model) == 2 * 3 + 2
    assert build("exllamav3-mcs", {"place.n": "9"}).most_slots(model) == 2 * 1 + 2
    with pytest.raises(BudgetError, match=r"place\.n=2 needs 8 slots, the device has 7"):
        made.start(model, cache(model, 7))
    made.start(model, cache(model, 8))
    # Of 3 slots a layer 2 are spare: one resident at least stays.
    assert made.reserve == 2 + 2 * 2
    assert made.remarks(model, 8) == ["exllamav3 -mcs 2 -mcpa"]


def test_where_all_experts_fit_nothing_is_split():
    model, made = shape(5, 2, layers=2), build("exllamav3-mcs", {"place": "tail-on-host"})
    made.start(model, cache(model, 10))
    assert made.reserve == 0
    assert made.remarks(model, 10) == ()
    assert len(list(made.place.place(model, 10, "global"))) == 10


def test_profiles_are_normalised_before_they_are_added():
    # 30 : 10 and 0 : 4 are .75 : .25 and 0 : 1.  Added as counts, expert 0 would have the most.
    assert combined([[[30, 10]], [[0, 4]]]) == [[0.75, 1.25]]
    assert combined([[[30, 10]], [[0, 4]]], [2, 1]) == [[1.5, 1.5]]
    assert combined([[[0, 0]], [[0, 4]]]) == [[0, 1]]


def test_profiles_are_of_decoded_tokens(tmp_path):
    model = shape(6, 2, layers=2)
    texts = [routed_text(model, 12, 5, frozenset(), seed=seed) for seed in (1, 2)]
    policy = ColdOnHost(profiles=True)
    policy.calibrate(texts, model, tmp_path, lambda done, total: None)
    wanted = np.zeros((2, 6))
    for text in texts:
        for layer in range(2):
            for expert in range(6):
                decoded = (text.ids_TLK[5:, layer] == expert).sum()
                wanted[layer, expert] += decoded / text.ids_TLK[5:, layer].size
    np.testing.assert_allclose(policy.counts(model), wanted)
    plain = ColdOnHost()
    plain.calibrate(texts, model, tmp_path, lambda done, total: None)
    assert np.sum(plain.counts(model)) == sum(text.ids_TLK.size for text in texts)
    assert policy.learnt == {"tokens": "14"}


# --------------------------------------------------------------------------- the sweep (12.4.1, 2)


def of_20(**hits: int) -> list[float]:
    """Return the hits of 20 experts: ``e3=50`` of expert 3, none of the others."""
    return [float(hits.get(f"e{e}", 0)) for e in range(20)]


#: Experts 0 to 2 are residents.
HEAD = [True] * 3 + [False] * 17


def test_the_sweep_has_a_floor():
    # Two residents without hits; 6 and 2 hits on the host.  6 is more than twice max(0, 1), but
    # the mean is 8 / 4 = 2 and the floor 8 · 2 = 16.
    assert sweep_layer([0, 0, 6, 2], [True, True, False, False], 64) == []
    assert sweep_layer([0, 0, 6, 2], [True, True, False, False], 64, floor=0) == [(0, 2), (1, 3)]
    # 40 hits of 20 experts: the floor is 8 · 2 = 16.
    assert sweep_layer(of_20(e5=16, e6=15, e0=9), HEAD, 64) == [(1, 5)]


def test_a_resident_with_no_hits_counts_as_one_with_one():
    assert sweep_layer(of_20(e5=2), HEAD, 64) == [(0, 5)]
    assert sweep_layer(of_20(e5=1), HEAD, 64) == []
    # 2 · 3 = 6 hits are enough against 3, 5 are not; the floor is 8 · (6 + 9) / 20 = 6.
    assert sweep_layer(of_20(e5=6, e0=3, e1=3, e2=3), HEAD, 64) == [(0, 5)]
    assert sweep_layer(of_20(e5=5, e0=3, e1=3, e2=3), HEAD, 64) == []


def test_pairs_of_equal_hits():
    # Residents: 1 and 2 without hits, the lower id first, then 0.  Host: 3 and 4 with 50 each, the
    # higher id first.  The floor is 8 · 101 / 20 = 40.4.
    assert sweep_layer(of_20(e0=1, e3=50, e4=50), HEAD, 64) == [(1, 4), (2, 3)]


def test_pairs_of_other_shapes_are_skipped_and_cost_nothing():
    hits = of_20(e0=1, e3=50, e4=50)
    shapes = ["wide" if e == 4 else "narrow" for e in range(20)]
    assert sweep_layer(hits, HEAD, 1, shapes=shapes) == [(2, 3)]
    assert sweep_layer(hits, HEAD, 1) == [(1, 4)]


def test_layers_share_the_exchanges_and_one_without_any_left_is_not_swept():
    hits = np.array([of_20(e3=50, e4=50), of_20(e5=50), of_20(e6=50)])
    resident = np.array([HEAD] * 3)
    assert sweep(hits, resident, most=3) == [(0, 0, 4), (0, 1, 3), (1, 0, 5)]
    # The first two layers were swept and halved; for the third none was left.
    assert hits.sum(axis=1).tolist() == [50, 25, 50]
    assert sweep(hits, resident, most=64) == [(0, 0, 4), (0, 1, 3), (1, 0, 5), (2, 0, 6)]


def by_the_rule(hits, resident, most):
    """Apply the rule pair by pair, choosing each expert by a search."""
    left = [e for e in range(len(hits)) if resident[e]]
    absent = [e for e in range(len(hits)) if not resident[e]]
    found = []
    while left and absent and len(found) < most:
        out = next(e for e in left if hits[e] == min(hits[x] for x in left))
        into = max(e for e in absent if hits[e] == max(hits[x] for x in absent))
        if hits[into] < 2 * max(hits[out], 1) or hits[into] < 8 * sum(hits) / len(hits):
            break
        found.append((out, into))
        left.remove(out)
        absent.remove(into)
    return found


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 9, 40]), st.booleans()), min_size=1,
                max_size=24), st.integers(0, 4))  # fmt: skip
def test_a_layers_exchanges_are_those_of_the_rule(experts, most):
    hits, resident = [float(h) for h, _ in experts], [r for _, r in experts]
    assert sweep_layer(hits, resident, most) == by_the_rule(hits, resident, most)


# --------------------------------------------------------------------------- when (12.4.3)


def swept(policy: HitSweep) -> bool:
    """Return whether the policy wants copies; forget them."""
    found, policy._wanted = bool(policy._wanted), []
    return found


def sweeping(interval: int = 4, **options) -> HitSweep:
    """Return a policy whose only layer has the resident 0 and hits of expert 1 alone."""
    model = shape(20, 1, layers=1)
    policy, slots = HitSweep(interval=interval, **options), cache(model, 1)
    slots.claim(0, None)
    policy.start(model, slots)
    return policy


def step(policy, rows: int = 1, phase="decode"):
    own = [[1]] * rows
    policy.observe(view([[0.1] * 20] * rows, 1, own=own, phase=phase, layers=1))


def test_a_sweep_is_due_from_the_interval_on_and_made_when_the_batch_has_ended():
    policy = sweeping()
    for _ in range(3):
        step(policy)
    policy.end_sequences()
    assert not swept(policy)
    step(policy)
    assert not swept(policy)
    policy.end_sequences()
    assert policy._wanted == [Fetch(0, 1, instead_of=0)]
    # The counter begins anew.
    assert swept(policy)
    policy.end_sequences()
    assert not swept(policy)


def test_a_sweep_is_forced_within_a_pass_at_four_intervals():
    policy = sweeping()
    for _ in range(15):
        step(policy)
        assert not swept(policy)
    step(policy)
    assert swept(policy)
    step(policy)
    assert not swept(policy)


def test_the_defaults_are_128_and_512():
    assert (HitSweep().interval, HitSweep().most, HitSweep().chunk) == (128, 64, 2048)


def test_chunks_of_prompts_count_as_passes_and_all_their_rows_as_hits():
    # 7 rows in chunks of 2 are 4 passes.
    policy = sweeping(chunk=2)
    step(policy, rows=7, phase="prefill")
    assert policy._hits_LE[0].tolist() == [0, 7, *[0] * 18]
    policy.end_sequences()
    assert swept(policy)
    assert policy._hits_LE[0, 1] == 3.5
    # As one pass they are not enough.
    policy = sweeping(chunk=7)
    step(policy, rows=7, phase="prefill")
    policy.end_sequences()
    assert not swept(policy)


def test_each_sequence_has_chunks_of_its_own():
    seen = view([[0.1] * 4] * 5, 1, phase="prefill")
    seen.forward.sequences = (3, 2)
    assert passes(seen, 2) == [slice(0, 2), slice(2, 3), slice(3, 5)]
    seen.phase = "decode"
    assert passes(seen, 2) == [slice(0, 5)]


# One layer of 20 experts, top-1; 0 is resident, all tokens use 1.  The second pass of decode is the
# 4th of the counter of interval 1: the sweep is made at its beginning.


def test_a_sweep_is_copied_in_the_background():
    options = {"assign.ring": "0", "admit.interval": "1"}
    made = build("exllamav3-mcs", options, "earlier")
    uses = [[[(1,)]] for _ in range(8)]
    model = model_of(small_shape(layers=1, experts=20, top_k=1), uses)
    ran = run(made, model, slots=1, passes=8)
    ((layer, experts, _, end),) = of(ran, OpKind.LOAD)
    assert (layer, experts) == (0, (1,))
    on_the_host = of(ran, OpKind.EXPERT, Lane.HOST)
    on_the_device = of(ran, OpKind.EXPERT, Lane.DEVICE)
    assert {row[1] for row in on_the_host + on_the_device} == {(1,)}
    assert len(on_the_host) + len(on_the_device) == 8
    # No pass waits for the copy: the host computes until it is complete.
    assert len(on_the_host) >= 4
    assert all(row[2] >= end for row in on_the_device)
    assert on_the_device


# --------------------------------------------------------------------------- promotions (12.4.6)


def chosen(counts, routed, resident, spare=None, busy=(), **options):
    """Return the promotions of layers whose experts are given as sets of (row, expert)."""
    counts = np.array(counts, dtype=np.float32)
    masks = []
    for experts in (routed, resident, busy):
        mask = np.zeros(counts.shape, dtype=bool)
        for row, expert in experts:
            mask[row, expert] = True
        masks.append(mask)
    return promotions(counts, *masks, [4] * len(counts) if spare is None else spare, **options)


def test_a_miss_is_promoted_by_its_count_and_the_quiet_residents():
    # 0 and 1 are residents, of which 1 was routed; 2 was missed with a count of 2.
    routed, resident = [(0, 1), (0, 2)], [(0, 0), (0, 1)]
    assert chosen([[1.0, 3.0, 2.0, 9.0]], routed, resident) == [(0, 2)]
    # 1.5 · 1.5 = 2.25 is more than 2; 1.5 · max(1, 0.2) = 1.5 is not.
    assert chosen([[1.5, 3.0, 2.0, 9.0]], routed, resident) == []
    assert chosen([[0.2, 3.0, 1.5, 9.0]], routed, resident) == [(0, 2)]
    assert chosen([[0.2, 3.0, 1.4, 9.0]], routed, resident) == []


def test_without_a_quiet_resident_nothing_is_promoted():
    assert chosen([[1.0, 3.0, 99.0]], [(0, 0), (0, 2)], [(0, 0)]) == []
    assert chosen([[1.0, 3.0, 99.0]], [(0, 2)], [(0, 0)], busy=[(0, 0)]) == []


def test_one_a_layer_six_a_pass_highest_counts_first():
    counts = [[0.0, 2.0 + row, 3.0 + row] for row in range(8)]
    routed = [(row, expert) for row in range(8) for expert in (1, 2)]
    resident = [(row, 0) for row in range(8)]
    found = chosen(counts, routed, resident)
    assert found == [(row, 2) for row in (7, 6, 5, 4, 3, 2)]
    assert chosen(counts, routed, resident, most=2) == [(7, 2), (6, 2)]


def test_a_layer_without_a_spare_slot_and_an_expert_on_its_way_are_left_out():
    counts, resident = [[0.0, 5.0], [0.0, 4.0]], [(0, 0), (1, 0)]
    routed = [(0, 1), (1, 1)]
    assert chosen(counts, routed, resident, spare=[0, 4]) == [(1, 1)]
    assert chosen(counts, routed, resident, busy=[(1, 1)]) == [(0, 1)]
    assert chosen(counts, routed, [*resident, (0, 1)]) == [(1, 1)]


def test_the_quiet_residents_with_the_least_counts_are_demoted():
    counts = np.array([3.0, 1.0, 2.0, 1.0])
    assert demotions(counts, np.array([True, True, True, True]), 2) == [1, 3]
    assert demotions(counts, np.array([True, False, True, False]), 3) == [2, 0]
    assert demotions(counts, np.array([True] * 4), 0) == []


counted = st.tuples(
    st.integers(0, 9), st.booleans(), st.booleans(), st.sampled_from([False, False, True])
)


@given(
    st.lists(st.lists(counted, min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(0, 4),
    st.data(),
)
def test_promotions_are_those_of_the_rule(layers, most, data):
    spare = data.draw(st.lists(st.integers(0, 1), min_size=len(layers), max_size=len(layers)))
    marks = np.array(layers)
    # Distinct counts: the code leaves the order of equal ones open.
    counts = marks[..., 0] + np.arange(marks[..., 0].size).reshape(len(layers), 3) / 100
    routed, resident, busy = (marks[..., at].astype(bool) for at in (1, 2, 3))
    able = []
    for row, experts in enumerate(counts.tolist()):
        quiet = [
            count for e, count in enumerate(experts)
            if resident[row, e] and not routed[row, e] and not busy[row, e]
        ]  # fmt: skip
        for e, count in enumerate(experts):
            missed = routed[row, e] and not resident[row, e] and not busy[row, e]
            if missed and quiet and count >= 1.5 * max(1, min(quiet)) and spare[row]:
                able.append((count, row, e))
    wanted: list[tuple[int, int]] = []
    for _, row, e in sorted(able, reverse=True):
        if len(wanted) < most and row not in [r for r, _ in wanted]:
            wanted.append((row, e))
    assert promotions(counts, routed, resident, busy, spare, most) == wanted


# One layer of 4 experts, top-2; 3 slots, of which 1 is spare: 0 and 1 are residents.  All passes
# use 0 and 3, the last one uses 1 and 0.
#
#   pass     counts read (after pass)    3 has   decision
#   1, 2     none, 0                      0      none
#   3        1 (pass 1)                   1      1 < 1.5 · max(1, 0 of expert 1): none
#   4        1.98 (pass 2)                1.98   3 is promoted to the spare slot
#   5, 6                                         3 is complete, and 1 is demoted for it
#   10                                           the host computes 1, whose copy is still there


def promoted(passes_: int, uses=((0, 3),), then=((1, 0),)):
    made = build(
        "exllamav3-mcs", {"place": "tail-on-host", "assign.ring": "0", "admit.spares": "1"}
    )
    tokens = [[list(uses)]] * (passes_ - 1) + [[list(then)]]
    return made, run(made, model_of(small_shape(layers=1), tokens), slots=3, passes=passes_)


def test_a_missed_expert_is_promoted_and_another_demoted():
    made, ran = promoted(10)
    assert [row[:2] for row in of(ran, OpKind.LOAD)] == [(0, (3,))]
    assert made.admit._resident_LE.tolist() == [[True, False, False, True]]
    assert made.admit.demoted == {0: [1]}
    host = of(ran, OpKind.EXPERT, Lane.HOST)
    by_expert = [row[1] for row in host]
    # Passes 1 to 4 at least compute 3 on the host; the last pass computes 1 there.
    assert by_expert[:4] == [(3,)] * 4
    assert by_expert[-1] == (1,)
    assert len(by_expert) <= 7
    assert ran.counts["decode"].uploaded == 1


def test_it_is_not_promoted_one_pass_earlier():
    _, ran = promoted(3)
    assert of(ran, OpKind.LOAD) == []


def test_a_prompt_of_many_rows_promotes_nothing():
    model = shape(4, 2, layers=1)
    policy, slots = PromoteOnMiss(spares=1), cache(model, 3)
    for key in (0, 1):
        slots.claim(key, None)
    policy.start(model, slots)
    assert policy.reserve == 1

    def observe(rows, phase):
        seen = view([[0.1] * 4] * rows, 2, own=[[0, 3]] * rows, phase=phase, layers=1)
        policy.observe(seen)
        return list(policy.uploads(seen, [3]))

    assert [observe(rows, "prefill") for rows in (9, 9, 32)] == [[], [], []]
    assert observe(31, "prefill") == [Fetch(0, 3)]


def test_counts_decay_in_each_pass_and_chunk():
    model = shape(4, 2, layers=1)
    policy = PromoteOnMiss(chunk=2)
    policy.start(model, cache(model, 3))
    policy.observe(view([[0.1] * 4] * 3, 2, own=[[0, 1]] * 3, phase="prefill", layers=1))
    # Chunks of 2 and 1 rows: 2 · .98 + 1.
    np.testing.assert_allclose(policy._counts_LE[0], [2.96, 2.96, 0, 0])
    np.testing.assert_allclose(policy._read_LE[0], [2, 2, 0, 0])
    assert policy._before_LE[0].tolist() == [0, 0, 0, 0]


@pytest.mark.slow
@given(st.lists(st.sampled_from([(0, 3), (1, 2), (4, 5), (2, 5), (3, 4)]), min_size=8, max_size=40))
def test_each_layer_keeps_its_slots(tokens):
    # 6 experts, 4 slots of which 2 are spare.
    made = build(
        "exllamav3-mcs", {"place": "tail-on-host", "assign.ring": "0", "admit.spares": "2"}
    )
    model = model_of(small_shape(layers=1, experts=6), [[[token]] for token in tokens])
    ran = run(made, model, slots=4, passes=len(tokens))
    policy = made.admit
    under_way = int(policy._busy_LE.sum()) - len(policy._leaving)
    given_up = len(policy.demoted[0])
    assert policy._empty[0] >= 0
    assert policy._vacated[0] >= 0
    spares = policy._empty[0] + given_up + under_way + policy._vacated[0] + len(policy._leaving)
    assert spares == 2
    assert int(policy._resident_LE.sum()) == 2 + policy._vacated[0] + len(policy._leaving)
    held = {e for e in range(6) if ran.cache.holds(e)}
    assert {*np.flatnonzero(policy._resident_LE[0]), *policy.demoted[0]} <= held


# --------------------------------------------------------------------------- streams (12.4.7)


@pytest.mark.parametrize(
    ("gb_per_s", "tokens"), [(57, 8), (29, 8), (25, 8), (12.5, 11), (6.7, 15), (0.5, 57), (0.1, 57)]
)
def test_from_how_many_tokens_an_expert_is_streamed(gb_per_s, tokens):
    # 8 · √(25 / 12.5) = 11.3; 8 · √(25 / 6.7) = 15.5; 8 · √50 = 56.6, at .5 GB/s and below.
    assert stream_tokens(gb_per_s) == tokens
    assert math.isclose(tokens, max(8, 8 * math.sqrt(25 / max(gb_per_s, 0.5))), abs_tol=0.5)


@pytest.mark.parametrize(("gb_per_s", "tokens"), [(26.5, 16), (25, 16), (24, 16), (6.8, 58)])
def test_the_earlier_law_is_that_of_the_measured_rows(gb_per_s, tokens):
    # results/measured has stream_t 16 at 26.5 GB/s and 58 at 6.8: 16 · 25 / 6.8 = 58.8, truncated.
    assert stream_tokens(gb_per_s, "linear") == tokens


def test_tokens_are_counted_for_each_expert_and_few_rows_stream_none():
    ids = np.array([[0, 1]] * 20 + [[0, 2]] * 12)
    assert streamed(ids, 32, 12) == [0, 1, 2]
    assert streamed(ids, 32, 13) == [0, 1]
    assert streamed(ids[:31], 31, 1) == []


def planned(own, resident=(), in_flight=(), sequences=None, **options):
    rows, measured = [[0.1] * 6] * len(own), costs(load=[1.0])
    seen = view(rows, len(own[0]), resident, in_flight=in_flight, own=own, phase="prefill",
                measured=measured)  # fmt: skip
    if sequences:
        seen.forward.sequences = sequences
    policy = SplitByResidence(**{"bandwidth": 25.0, "min_rows": 4, **options})
    policy.start(shape(6, 2), cache(shape(6, 2), 9))
    return policy.assign(seen, active(seen))


def test_a_prompt_streams_the_hosts_experts_of_many_tokens():
    # 8 tokens use 0, 1 and 3 by eight, 2 and 5 by few; 0 is resident.
    own = [[0, 1, 3]] * 7 + [[3, 1, 0], [2, 5, 4]]
    plan = planned(own, resident=[0, 5])
    assert (list(plan.device), list(plan.host)) == ([0, 5, 1, 3], [2, 4])
    assert list(plan.load) == [Fetch(0, 1, keep=False), Fetch(0, 3, keep=False)]
    assert list(plan.again) == []


def test_each_chunk_streams_for_itself():
    # Chunks of 8, 8 and 4 rows: 1 has 8, 8 and 4 tokens.  2 has 4 in all three.
    own = [[1, 2]] * 4 + [[1, 3]] * 4 + [[1, 2]] * 4 + [[1, 4]] * 4 + [[1, 2]] * 4
    plan = planned(own, chunk=8)
    assert [fetch.expert for fetch in plan.load] == [1]
    assert list(plan.again) == [1]
    assert list(plan.host) == [2, 3, 4]
    alone = planned(own, chunk=2048, sequences=(12, 8))
    assert [fetch.expert for fetch in alone.load] == [1, 2]
    assert list(alone.again) == [1]


def test_without_a_ring_or_with_large_experts_the_host_computes_all():
    own = [[0, 1]] * 8
    assert planned(own, ring=0).load == []
    model = shape(6, 2)
    policy = SplitByResidence(buffer_mib=0, bandwidth=25.0, min_rows=4)
    slots = cache(model, 9)
    slots.slot_bytes = 9
    policy.start(model, slots)
    assert policy.reserve == 0


def test_an_expert_that_is_being_copied_is_computed_on_the_host():
    plan = planned([[0, 1]] * 3, resident=[0], in_flight=[1])
    assert (list(plan.device), list(plan.host)) == ([0], [1])
    # If it had to be streamed, the layer waits for it.
    plan = planned([[0, 1]] * 8, resident=[0], in_flight=[1])
    assert (list(plan.device), list(plan.host)) == ([0, 1], [])


def test_the_link_is_measured_once():
    policy = SplitByResidence()
    slots = cache(shape(6, 2), 9)
    slots.slot_bytes = 9 * 100  # 100 bytes in 4 ns are 25 GB/s
    policy.start(shape(6, 2), slots)
    seen = view([[0.1] * 6], 2, measured=costs(load=[4.0]))
    assert policy._tokens(seen) == 8
    assert policy._tokens(view([[0.1] * 6], 2, measured=costs(load=[400.0]))) == 8


# --------------------------------------------------------------------------- variants and options


def test_the_variants():
    new, old = build("exllamav3-mcs"), build("exllamav3-mcs", variant="earlier")
    assert (type(new), type(old)) == (ExLlamaV3Split, EarlierExLlamaV3Split)
    assert (new.assign.law, old.assign.law) == ("root", "linear")
    assert (type(new.admit), type(old.admit)) == (PromoteOnMiss, HitSweep)
    assert (new.place.calibrates, old.place.calibrates) == (True, False)
    assert new.lossless


def test_static_moves_nothing():
    made = build("exllamav3-mcs", {"place": "tail-on-host", "assign.ring": "0", "admit": "all"})
    ran = run(made, model_of(small_shape(layers=1), [[[(0, 3)]]] * 9), slots=2, passes=9)
    assert of(ran, OpKind.LOAD) == []
    assert len(of(ran, OpKind.EXPERT, Lane.HOST)) == 9


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: TailOnHost(n=-1), r"place\.n is -1; allowed: 0"),
        (lambda: ColdOnHost(n=-1), r"place\.n is -1; allowed: 0"),
        (lambda: SplitByResidence(chunk=0), r"assign\.chunk is 0; allowed: 1"),
        (lambda: SplitByResidence(bandwidth=0.0), r"assign\.bandwidth is 0\.0; allowed: above 0"),
        (lambda: HitSweep(interval=0), r"admit\.interval is 0; allowed: 1"),
        (lambda: PromoteOnMiss(spares=0), r"admit\.spares is 0; allowed: 1"),
        (lambda: PromoteOnMiss(decay=1.5), r"admit\.decay is 1\.5; allowed: above 0 to 1"),
    ],
)
def test_options_out_of_range_are_one_line(made, message):
    with pytest.raises(UsageError, match=message):
        made()


def test_a_ring_of_all_slots_is_refused():
    with pytest.raises(BudgetError, match=r"assign\.ring=2 keeps all 2 slots"):
        SplitByResidence().start(shape(6, 2), cache(shape(6, 2), 2))


def test_equal_counts_are_promoted_in_the_order_of_layers_and_ids():
    layers = 60
    counts = [[0.0, 5.0, 5.0]] * layers
    routed = [(row, expert) for row in range(layers) for expert in (1, 2)]
    resident = [(row, 0) for row in range(layers)]
    assert chosen(counts, routed, resident, most=30) == [(row, 1) for row in range(30)]


def test_the_best_four_times_as_many_are_looked_at():
    """Six misses of each of two layers, all of the first layer with higher counts.

    With two promotions eight are looked at: six of the first layer and two of the other.  With one
    only the first layer's six are, four of them looked at.
    """
    counts = [[0.0, *(30.0 - e for e in range(6))], [0.0, *(20.0 - e for e in range(6))]]
    routed = [(row, expert) for row in range(2) for expert in range(1, 7)]
    resident = [(0, 0), (1, 0)]
    assert chosen(counts, routed, resident, most=2) == [(0, 1), (1, 1)]
    assert chosen(counts, routed, resident, most=1) == [(0, 1)]
    # Without a spare slot in the first layer, one promotion looks at four and finds none.
    assert chosen(counts, routed, resident, most=1, spare=[0, 4]) == []
    assert chosen(counts, routed, resident, most=2, spare=[0, 4]) == [(1, 1)]


def test_a_pass_of_exactly_the_fewest_rows_streams():
    own = [[0, 1]] * 8
    assert [fetch.expert for fetch in planned(own, min_rows=8).load] == [0, 1]
    assert planned(own, min_rows=9).load == []
    assert list(planned(own, min_rows=9).host) == [0, 1]
    # Of exactly the largest size, an expert is streamed; a ring of nothing streams none.
    assert planned(own, min_rows=8, ring=0).load == []


def test_a_last_chunk_of_few_rows_streams_nothing():
    """Chunks of 40 and 20 rows: 2 and 3 have enough tokens, but their chunk has too few rows."""
    plan = planned([[0, 1]] * 40 + [[2, 3]] * 20, chunk=40, min_rows=32)
    assert [fetch.expert for fetch in plan.load] == [0, 1]
    assert list(plan.host) == [2, 3]
    whole = planned([[0, 1]] * 40 + [[2, 3]] * 32, chunk=40, min_rows=32)
    assert [fetch.expert for fetch in whole.load] == [0, 1, 2, 3]

"""FreeToken by hand: the split of misses, the order of fetches, one clock, prefill's buffers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.conformance.cases import CASES
from moebench.harness.conformance.suite import check_system
from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.engine.policies import Assignment, Placement
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.protocol import Lane, OpKind
from moebench.systems.freetoken import (
    Q16,
    BandwidthSplit,
    EarlierSplit,
    FreeToken,
    OldestCall,
    SlotPools,
    automatic,
    automatic_earlier,
    cache_slots,
    most_recent,
    phi_alone,
    phi_of,
    phi_of_unpinned,
    recommended,
    split_by_profile,
    split_equally,
    split_misses,
    to_q16,
    uniform,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import small_shape
from tests.substrate.engine.own import evicted, model_of, of, run
from tests.systems.views import active, cache, costs, fetched, flags, shape, view

# --------------------------------------------------------------------------- f

# Three misses, φ = 1/2: one fetch takes max(1/2, 2/2) = 1, two take max(2/2, 1/2) = 1: a tie, so 1.
# Three misses, φ = 3/4: ⌊9/4⌋ = 2 takes max(2/4, 3/4), 3 takes max(3/4, 0): a tie, so 2.
# Three misses, φ = 4/5: ⌊12/5⌋ = 2 takes max(2/5, 4/5), 3 takes max(3/5, 0): so 3.
# Two misses, φ = 55/95 (a load takes 40, a host expert 55): 1 takes max(40, 55)/95, 2 takes 80/95.


@pytest.mark.parametrize(
    ("misses", "phi", "f"),
    [
        (3, 1 / 2, 1), (3, 3 / 4, 2), (3, 4 / 5, 3), (2, 55 / 95, 1), (3, 55 / 95, 2),
        (1, 1 / 2, 0), (1, 55 / 95, 1), (0, 1 / 2, 0), (5, 1, 5), (8, 1 / 16, 0), (8, 1 / 8, 1),
    ],
)  # fmt: skip
def test_the_better_of_two_neighbours_is_fetched(misses, phi, f):
    assert split_misses(misses, to_q16(phi), misses) == f


@given(st.integers(0, 40), st.integers(1, Q16))
def test_the_slower_side_ends_first_and_a_tie_takes_the_lower_f(misses, phi_q16):
    def slower(f):
        return max(f * (Q16 - phi_q16), (misses - f) * phi_q16)

    assert split_misses(misses, phi_q16, 1) == min(range(misses + 1), key=lambda f: (slower(f), f))


@given(st.integers(1, 30), st.data())
def test_12_1_5_at_the_break_even_the_lower_f_is_taken(misses, data):
    # φ = (f + 1) / (m + 1), which Q16 holds exactly where m + 1 divides 65536.
    misses = 2 ** math.ceil(math.log2(misses + 1)) - 1
    f = data.draw(st.integers(0, misses - 1))
    phi_q16 = (f + 1) * Q16 // (misses + 1)
    assert split_misses(misses, phi_q16, 1) == f
    assert split_misses(misses, phi_q16 + 1, 1) == f + 1


def test_12_1_3_phi_whose_q16_integer_is_0_uses_the_cap():
    assert to_q16(2**-17) == 0  # half an integer rounds to the even one
    assert to_q16(2**-17 * 1.01) == 1
    assert to_q16(3 * 2**-17) == 2
    assert [split_misses(6, 0, cap) for cap in (0, 1, 4, 9)] == [0, 1, 4, 6]
    assert split_misses(6, 1, 4) == 0  # with φ, the cap does not count


def test_12_1_9_roundings():
    # 5 · 0.3 = 1.5: one fetch takes max(0.7, 1.2), two take max(1.4, 0.9).  7 · 0.3 = 2.1.
    phi = to_q16(0.3)
    assert split_misses(5, phi, 1) == 1
    assert split_misses(5, phi, 1, "prefer-fetch") == 2
    assert split_misses(7, phi, 1, "prefer-fetch") == 3
    assert split_misses(4, Q16 // 2, 1, "prefer-fetch") == 2  # no fraction, nothing to round
    drawn = [split_misses(5, phi, 1, "stochastic", call) for call in range(1, 2001)]
    assert set(drawn) == {1, 2}
    assert abs(np.mean(drawn) - 1.5) < 0.05
    assert {split_misses(4, Q16 // 2, 1, "stochastic", call) for call in range(99)} == {2}


def test_a_draw_is_the_first_word_of_philox():
    # Random123's known answer of Philox-4x32-10: counter 0 and key 0 give 6627e8d5 first.
    assert uniform(0) == pytest.approx(0x6627E8D5 / 2**31, abs=1e-7)
    assert all(0 <= uniform(call) < 1 for call in range(500))


@given(st.integers(0, 20), st.integers(0, Q16), st.integers(0, 20), st.integers(0, 20))
def test_12_1_9_fetches_fit_into_the_slots_without_hits(misses, phi_q16, cap, room):
    unlimited = split_misses(misses, phi_q16, cap)
    assert split_misses(misses, phi_q16, cap, room=room) == min(unlimited, room)


def test_12_1_9_phi_of_each_kind_of_layer():
    assert phi_of(10, 30) == 0.25  # 10 / (10 + 30)
    assert phi_of_unpinned(10, 30) == 0.2  # 10 / (20 + 30)
    assert (phi_alone(10, 40), phi_alone(40, 10)) == (0.25, 1.0)
    # A host copy at 30 before a link of 10 runs at 300 / 40 = 7.5: 7.5 / (7.5 + 30) = 0.2.
    assert phi_of(10 * 30 / (10 + 30), 30) == pytest.approx(phi_of_unpinned(10, 30))


# --------------------------------------------------------------------------- which


def test_the_most_recently_routed_are_fetched_first():
    assert most_recent([0, 1, 2, 3], {1: 4, 3: 4, 2: 9}) == [2, 1, 3, 0]


# --------------------------------------------------------------------------- auto, sizes, pools


def test_12_1_1_auto_of_october_is_never_hybrid():
    assert (automatic(unified_memory=False), automatic(unified_memory=True)) == (
        "offload", "resident",
    )  # fmt: skip
    quick_host = costs(load=[100], host=[1], per_row=[1])
    assert BandwidthSplit().automatic(quick_host) == "offload"
    assert not BandwidthSplit().uses_host
    assert BandwidthSplit(mode="hybrid").uses_host


def test_12_1_8_auto_of_august_needs_all_workloads_or_the_verdict_of_the_format():
    assert recommended(host=50, link=25) == "offload"  # twice is not more than twice
    assert recommended(host=50.1, link=25) == "hybrid"
    assert automatic_earlier(["hybrid", "hybrid"]) == "hybrid"
    assert automatic_earlier(["hybrid", "offload"]) == "offload"
    assert automatic_earlier([]) == "offload"
    assert automatic_earlier(["offload"], verdict="hybrid") == "hybrid"
    assert automatic_earlier(["hybrid"], verdict="offload") == "offload"
    # A load takes 100 ns: the host must take less than 50.
    policy = EarlierSplit()
    assert policy.automatic(costs(load=[100], host=[50], per_row=[50])) == "offload"
    assert policy.automatic(costs(load=[100], host=[49], per_row=[49])) == "hybrid"
    assert policy.automatic(costs(load=[100])) == "offload"  # a machine without host lane


def test_12_1_7_cache_size():
    # int(0.9 · 1005) = 904; 904 - 300 - 4 - 100 = 500; 500 // 7 = 71.
    sizes = {"weights": 300, "fixed": 4, "kv": 100, "slot": 7, "experts": 8}
    assert cache_slots(1005, **sizes, total=1000) == 71
    assert cache_slots(1005, **sizes, total=64) == 64  # all experts
    assert cache_slots(1005, **sizes, total=1000, limit=40) == 40  # what the kernels address
    # 56 bytes are left: eight slots, of which prefill needs sixteen with two buffers.
    left = {**sizes, "kv": 544}
    with pytest.raises(BudgetError, match=r"16 slots and the KV cache take 656 bytes, 600 are"):
        cache_slots(1005, **left, total=1000)
    assert cache_slots(1005, **left, total=1000, overlap=False) == 8
    with pytest.raises(BudgetError, match="8 slots"):
        cache_slots(1004, **left, total=1000, overlap=False)
    # A model of fewer than two layers' experts has one buffer.
    assert cache_slots(1005, **left, total=12) == 8


def test_12_1_9_pools_are_split_equally_or_by_a_profile():
    assert split_equally(11, 3, 2, 4) == [4, 4, 3]
    assert split_equally(99, 3, 2, 4) == [4, 4, 4]
    # Of three slots beyond one each: shares are 6, 3, 1 of ten and 4, 4, 2 of ten.  Each layer's
    # best has its slot; next are .4 of the second layer, .3 of the first, .2 of the second.
    assert split_by_profile(5, [[6, 3, 1], [40, 40, 20]], 1, 3) == [2, 3]
    assert split_by_profile(4, [[6, 3, 1], [40, 40, 20]], 1, 3) == [2, 2]
    assert split_by_profile(3, [[5, 5], [5, 5]], 1, 2) == [2, 1]  # a tie: the first layer
    for split in (
        lambda: split_equally(5, 3, 2, 4), lambda: split_by_profile(1, [[1.0], [1.0]], 1, 1),
    ):  # fmt: skip
        with pytest.raises(BudgetError, match=r"pools need . each; .*place\.pools=unified"):
            split()


def test_pools_of_a_model():
    model = shape(experts=3, top_k=1, layers=2)
    counts = ((6, 3, 1), (40, 40, 20))
    assert SlotPools().slots(model, 5) is None
    assert SlotPools(pools="equal").slots(model, 5) == [3, 2]
    assert SlotPools(pools="profile", popularity=counts).slots(model, 5) == [2, 3]
    assert list(SlotPools().place(model, 5, "global")) == []
    assert SlotPools(pools="profile").calibrates
    assert not SlotPools(pools="equal").calibrates
    assert not SlotPools(pools="profile", popularity=counts).calibrates


# --------------------------------------------------------------------------- the assignment


def started(policy: Assignment, slots: int = 16, experts: int = 6, scope="global") -> Assignment:
    model = shape(experts, 3, 2)
    policy.start(model, cache(model, slots, scope))
    return policy


def decode(policy: Assignment, experts: Sequence[int], resident=(), measured=None, phase="decode"):
    """Plan a layer whose one token uses these experts."""
    rows = [[0.9 - 0.1 * experts.index(e) if e in experts else 0.01 for e in range(6)]]
    seen = view(rows, len(experts), resident, own=[list(experts)], phase=phase,
                measured=measured or costs(load=[40], host=[55], per_row=[55]))  # fmt: skip
    plan = policy.assign(seen, active(seen))
    return fetched(0, plan.load), list(plan.host), list(plan.device)


def test_misses_are_divided_and_recency_decides_the_next_time():
    policy = started(BandwidthSplit(mode="hybrid"))
    # m = 3, φ = 55/95: two are fetched.  None was routed before: the lowest ids.
    assert decode(policy, [5, 1, 3]) == ([1, 3], [5], [1, 3])
    # 5 was routed in the call before, computed on the host; 0 and 2 never: 5 is first, then 0.
    assert decode(policy, [0, 2, 5]) == ([5, 0], [2], [5, 0])
    # 1 and 3 are of call 1, 5, 0 and 2 of call 2.  1 is resident.
    assert decode(policy, [1, 2, 3], resident=[1]) == ([2], [3], [1, 2])


def test_12_1_6_offload_fetches_in_ascending_order_of_id():
    policy = started(BandwidthSplit())
    decode(policy, [5, 1, 3])
    assert decode(policy, [5, 0, 3], resident=[3]) == ([0, 5], [], [3, 0, 5])


def test_cpu_fetches_nothing_in_decode():
    policy = started(BandwidthSplit(mode="cpu"))
    assert decode(policy, [5, 1, 3]) == ([], [1, 3, 5], [])


def test_12_1_2_a_given_cap_switches_phi_off():
    assert BandwidthSplit().max_fetch == -1
    for policy in (BandwidthSplit, EarlierSplit):
        for cap, loads in ((0, []), (1, [1]), (3, [1, 3, 5])):
            made = started(policy(mode="hybrid", max_fetch=cap, phi=1.0))
            assert decode(made, [5, 1, 3])[0] == loads


def test_12_1_2_without_a_profile_the_cap_is_1():
    for policy in (BandwidthSplit, EarlierSplit):
        made = started(policy(mode="hybrid"))
        assert decode(made, [5, 1, 3], measured=costs(load=[40]))[0] == [1]


def test_12_1_3_phi_of_0_fetches_all_in_august_and_one_in_october():
    assert decode(started(EarlierSplit(mode="hybrid", phi=2**-17)), [5, 1, 3])[0] == [1, 3, 5]
    assert decode(started(BandwidthSplit(mode="hybrid", phi=2**-17)), [5, 1, 3])[0] == [1]


def test_12_1_9_a_small_pool_limits_fetches_in_october():
    def small(policy):  # seven slots for each of two layers hold three of seven experts
        model = shape(7, 3, 2)
        policy.start(model, cache(model, 7, "layer"))
        seen = view([[0.1] * 7], 4, [0], own=[[0, 1, 2, 3]],
                    measured=costs(load=[1], host=[9], per_row=[9]))  # fmt: skip
        return fetched(0, policy.assign(seen, active(seen)).load)

    assert small(BandwidthSplit(mode="hybrid", phi=1.0)) == [1, 2]
    assert small(EarlierSplit(mode="hybrid", phi=1.0)) == [1, 2, 3]


def test_phi_is_measured_once():
    policy = started(BandwidthSplit(mode="hybrid"))
    assert decode(policy, [5, 1, 3])[0] == [1, 3]
    slow_link = costs(load=[4000], host=[1], per_row=[1])
    assert len(decode(policy, [0, 2, 4], measured=slow_link)[0]) == 2
    assert decode(started(BandwidthSplit(mode="hybrid")), [5, 1, 3], measured=slow_link)[0] == []


def test_a_prompt_streams_the_whole_layer():
    policy = started(BandwidthSplit(mode="hybrid"))
    seen = view([[0.1] * 6] * 2, 3, [4], own=[[4, 1, 3]] * 2, phase="prefill")
    plan = policy.assign(seen, active(seen))
    assert list(plan.load) == [Fetch(0, e, keep=False) for e in (0, 1, 2, 3, 5)]
    assert (list(plan.device), list(plan.host)) == ([4, 1, 3], [])


def test_slots_for_less_than_a_layer_are_refused():
    with pytest.raises(BudgetError, match=r"layers of 6 experts, the device has 5 slots; give"):
        started(BandwidthSplit(), slots=5)
    started(BandwidthSplit(), slots=6)


@pytest.mark.parametrize("policy", [BandwidthSplit, EarlierSplit])
def test_options_out_of_range_are_one_line(policy):
    with pytest.raises(UsageError, match=r"assign\.max_fetch is -2; allowed: -1 or more"):
        policy(max_fetch=-2)
    with pytest.raises(UsageError, match=r"assign\.phi is 1\.5; allowed: 0 to 1"):
        policy(phi=1.5)
    with pytest.raises(UsageError, match=r"assign\.history is 0"):
        policy(history=0)
    with pytest.raises(UsageError, match=r"evict\.buffers is 0"):
        OldestCall(buffers=0)


# --------------------------------------------------------------------------- the cache


class Kernel:
    """The engine's cache, restated: the smallest pair (usage, slot) of two lists is evicted."""

    def __init__(self, slots: int) -> None:
        self.owner, self.usage, self.step = [-1] * slots, [0] * slots, 0

    def call(self, keys: Sequence[int], fetches: Sequence[int]) -> list[int]:
        """Return the victims of these fetches, -1 where a slot was empty."""
        self.step += 1
        for slot, owner in enumerate(self.owner):
            if owner in keys:
                self.usage[slot] = self.step
        victims = []
        for key in fetches:
            usage, slot = min((usage, slot) for slot, usage in enumerate(self.usage))
            assert usage < self.step
            victims.append(self.owner[slot])
            self.owner[slot], self.usage[slot] = key, self.step
        return victims


@given(
    st.integers(4, 9),
    st.lists(
        st.tuples(st.integers(0, 1), st.sets(st.integers(0, 7), min_size=1, max_size=4)),
        max_size=40,
    ),
)
def test_12_1_5_the_ith_fetch_gets_the_ith_victim(slots, calls):
    model = shape(8, 3, 2)
    policy, kernel, inside = OldestCall(), Kernel(slots), set[int]()
    policy.start(model, cache(model, slots))
    for layer, experts in calls:
        keys = [layer * 8 + e for e in sorted(experts)]
        missing = [key for key in keys if key not in inside]
        wanted = kernel.call(keys, missing)
        policy.used(layer, sorted(experts))
        found = []
        for key in missing:
            victim = None
            if len(inside) == slots:
                victim = policy.victim(flags(inside - {*keys}, 16), key)
                assert victim is not None
                inside.remove(victim)
                policy.left(victim)
            found.append(-1 if victim is None else victim)
            inside.add(key)
            policy.arrived(key)
        assert found == wanted


def test_12_1_4_the_clock_counts_calls_so_layers_of_one_step_differ():
    model = shape(4, 2, 2)
    policy = OldestCall()
    policy.start(model, cache(model, 4))
    # One step: layer 0 brings keys 1 and 3 in call 1, layer 1 brings keys 4 and 6 in call 2.
    for layer, experts in ((0, (1, 3)), (1, (0, 2))):
        policy.used(layer, experts)
        for e in experts:
            policy.arrived(layer * 4 + e)
    # By steps all four would be equal, and the lowest slot would leave: key 1 again.  Use it in a
    # third call: then 3, of call 1, is the oldest, before both of call 2.
    policy.used(0, (1, 2))
    assert policy.victim(flags([1, 3, 4, 6], 8), 2) == 3
    policy.left(3)
    policy.arrived(2)
    # 4 and 6 are of one call: the lower slot.
    assert policy.victim(flags([1, 2, 4, 6], 8), 0) == 4
    assert policy.victim(flags([1, 2, 6], 8), 0) == 6
    assert policy.victim(flags([], 8), 0) is None


def test_a_prompts_buffers_take_the_first_slots():
    model = shape(2, 1, 4)
    policy = OldestCall()
    policy.start(model, cache(model, 6))  # the buffers are the first four slots
    for key in (7, 6, 5, 4, 3, 2):
        policy.used(key // 2, [key % 2])
        policy.arrived(key)
    policy.observe(view([[0.1] * 2], 1, phase="prefill"))
    assert not policy.grows(0)
    every = flags(range(2, 8), 8)
    assert policy.victim(every, 0) == 7  # the lowest slot
    policy.left(7)
    assert policy.victim(flags([2, 3, 4, 5], 8), 1) == 5  # 6 is in use
    policy.left(5)
    # 2 and 3 are behind the buffers: they stay, and the prompt waits for a slot.
    assert policy.victim(flags([2, 3], 8), 0) is None
    policy.observe(view([[0.1] * 2], 1))
    assert policy.grows(0)


# --------------------------------------------------------------------------- runs

# Three layers of four experts, top-3, eight slots: two buffers.  Attention 30, a gate 3, an expert
# 10, the sum 2, the head 6, a load 40; on the host an expert 55 and its return 4.
#
# Prefill uses 0, 1, 2.  Layer 0's four experts are copied from the beginning, layer 1's behind them
# once layer 0's gate is known, and so on: the link is busy from 0 to 480.
#
#   L0   gate 33; 0 40..50, 1 80..90, 2 120..130; sum 130..132
#   L1   gate 165; 0 200..210, 1 240..250, 2 280..290; sum ..292
#   L2   gate 325; 0 360..370, 1 400..410, 2 440..450; sum ..452; head ..458
#
# Decode, φ = 55/95: of three misses two are fetched, of two one, of one one.
#
#   L0   1, 2, 3   gate 491; 1 is loaded 491..531, 2 ..571; 3 on the host 491..546, back 550;
#                  1 531..541, 2 571..581; sum ..583
#   L1   0, 1, 2   gate 616; 0 616..656, 1 ..696; 2 on the host ..671; sum 706..708
#   L2   0, 1, 2   gate 741; 0 741..781, 1 ..821; 2 on the host ..796; sum 831..833; head ..839
#
# Second token (calls 4 to 6).
#
#   L0   0, 1, 3   gate 872; 1 is a hit 872..882; 3 was routed in call 1, 0 never: 3 is loaded
#                  872..912, 0 is on the host 872..927, back 931; sum 931..933
#   L1   0, 1, 3   gate 966; 0 and 1 are hits; 3 is loaded 966..1006, into the last slot; sum ..1018
#   L2   1, 2, 3   gate 1051; 2 was routed in call 3: it is loaded.  All slots are full: of the
#                  residents, only 2 of layer 0 was last used in call 1.

THREE = small_shape(layers=3, experts=4, top_k=3)
USES = [
    [[(0, 1, 2)]] * 3,
    [[(1, 2, 3)], [(0, 1, 2)], [(0, 1, 2)]],
    [[(0, 1, 3)], [(0, 1, 3)], [(1, 2, 3)]],
]


def ran(passes: int = 3, slots: int = 8, variant="published", **options: str):
    overrides = {key.replace("_", ".", 1): value for key, value in options.items()}
    return run(build("freetoken", overrides, variant), model_of(THREE, USES), slots=slots,
               passes=passes)  # fmt: skip


def test_a_prompt_streams_through_two_buffers():
    loads = of(ran(passes=1), OpKind.LOAD)
    assert loads == [
        (layer, (e,), 160 * layer + 40 * e, 160 * layer + 40 * e + 40)
        for layer in range(3) for e in range(4)
    ]  # fmt: skip


def test_a_prompt_with_one_buffer_waits_for_each_gate():
    for found in (ran(passes=1, prefetch_overlap="false"), ran(passes=1, slots=7)):
        starts = [row[2] for row in of(found, OpKind.LOAD) if row[1] == (0,)]
        # L0: 2 is there at 153 and computed until 163, the sum until 165; L1: 165 + 33.  Its 2 is
        # there at 318, the sum until 330; L2: 330 + 33.
        assert starts == [33, 198, 363]


def test_a_decoded_token_divides_its_misses():
    found = ran(assign_mode="hybrid")
    assert of(found, OpKind.LOAD)[12:] == [
        (0, (1,), 491, 531), (0, (2,), 531, 571), (1, (0,), 616, 656), (1, (1,), 656, 696),
        (2, (0,), 741, 781), (2, (1,), 781, 821),
        (0, (3,), 872, 912), (1, (3,), 966, 1006), (2, (2,), 1051, 1091),
    ]  # fmt: skip
    assert of(found, OpKind.EXPERT, Lane.HOST) == [
        (0, (3,), 491, 546), (1, (2,), 616, 671), (2, (2,), 741, 796),
        (0, (0,), 872, 927), (2, (3,), 1051, 1106),
    ]  # fmt: skip
    assert [row[2:] for row in of(found, OpKind.COMBINE)][3:7] == [
        (581, 583), (706, 708), (831, 833), (931, 933),
    ]  # fmt: skip
    assert evicted(found)[-1] == (2 * 4 + 2, 2)
    assert all(victim is None for _, victim in evicted(found)[:-1])


def test_offload_fetches_every_miss():
    found = ran(passes=2)
    assert [row[:2] for row in of(found, OpKind.LOAD)][12:] == [
        (0, (1,)), (0, (2,)), (0, (3,)), (1, (0,)), (1, (1,)), (1, (2,)), (2, (0,)), (2, (1,)),
        (2, (2,)),
    ]  # fmt: skip
    assert of(found, OpKind.EXPERT, Lane.HOST) == []
    # Eight slots are full before the ninth fetch; its victim is of the first call, in slot 0.
    assert evicted(found)[-1] == (2 * 4 + 2, 1)


def test_august_is_offload_unless_the_host_is_twice_as_fast():
    # A load of 40 against 55 on the host: offload.
    assert of(ran(passes=2, variant="earlier"), OpKind.EXPERT, Lane.HOST) == []
    hybrid = ran(passes=2, variant="earlier", assign_mode="hybrid")
    assert len(of(hybrid, OpKind.EXPERT, Lane.HOST)) == 3


def test_a_note_says_that_one_buffer_fits():
    model = shape(experts=8, top_k=2, layers=3)
    assert FreeToken().remarks(model, 16) == ()
    (line,) = FreeToken().remarks(model, 15)
    assert line.startswith("15 slots hold one of prefill's two buffers of 8 experts")
    assert build("freetoken", {"prefetch.overlap": "false"}).remarks(model, 15) == ()


@dataclass(kw_only=True)
class Hybrid(FreeToken):
    """Divides misses."""

    assign: Assignment = field(default_factory=lambda: BandwidthSplit(mode="hybrid"))


@dataclass(kw_only=True)
class Pools(Hybrid):
    """Divides misses, with a pool for each layer."""

    place: Placement = field(default_factory=lambda: SlotPools(pools="equal"))


@dataclass(kw_only=True)
class OnHost(FreeToken):
    """Computes all misses of decode on the host, rounding and all else as it is."""

    assign: Assignment = field(default_factory=lambda: BandwidthSplit(mode="cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("system", [Hybrid, Pools, OnHost])
def test_every_mode_conforms(system):
    replayed = [case for case in CASES if case.replayed]
    assert not check_system(system, cases=replayed).failures


def test_two_buffers_need_twice_a_layers_experts():
    left = {"weights": 300, "fixed": 4, "kv": 544, "slot": 7, "experts": 8}
    with pytest.raises(BudgetError, match=r"^16 slots and the KV cache take 656 bytes, 600 are"):
        cache_slots(1005, **left, total=16)
    assert cache_slots(1005, **left, total=15) == 8
    assert cache_slots(1005, **left, total=1000, limit=15) == 8
    # One byte less than eight slots and the KV cache take: 904 - 304 - 544 = 56.
    assert cache_slots(1005, **left, total=15, ratio=0.9) == 8
    with pytest.raises(BudgetError, match="8 slots"):
        cache_slots(1005, **left, total=15, ratio=0.899)


def test_stochastic_rounding_draws_by_the_number_of_the_call():
    """Of three misses φ = 0.5 is 1.5: each call rounds up if its draw is below 0.5."""
    policy = started(BandwidthSplit(mode="hybrid", phi=0.5, rounding="stochastic"))
    found = [len(decode(policy, [5, 1, 3])[0]) for _ in range(40)]
    assert found == [2 if uniform(call) < 0.5 else 1 for call in range(1, 41)]
    assert {*found} == {1, 2}


def test_a_profile_without_uses_gives_the_further_slots_to_the_first_layers():
    assert split_by_profile(7, [[0, 0, 0], [0, 0, 0]], least=2, most=3) == [3, 3]
    assert split_by_profile(5, [[0, 0, 0], [0, 0, 0]], least=2, most=3) == [3, 2]
    # Shares of further experts: .2 and .1 in layer 0; .3 and .1 in layer 1.
    counts = [[70, 10, 20], [3, 1, 6]]
    assert split_by_profile(3, counts, least=1, most=3) == [1, 2]
    assert split_by_profile(4, counts, least=1, most=3) == [2, 2]
    assert split_by_profile(5, counts, least=1, most=3) == [3, 2]

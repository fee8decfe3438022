"""llama.cpp --moe-cache: its rules by hand, against a restatement of the whole pool, and timed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.engine.decisions import Fetch
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import OpKind
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Budget
from moebench.substrate.memory.tier import Tier
from moebench.systems.llamacpp_moe_cache import (
    LEAST_BYTES,
    MIB,
    BesideHost,
    CacheSlots,
    EarlierMoeCache,
    EveryNth,
    Heat,
    LlamaCppMoeCache,
    MissCounts,
    RowLRU,
    coldest,
    every_nth,
    fills,
    is_served,
    most_queued,
    rows_on_host,
    threshold,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import FlatCosts, prices, small_shape
from tests.substrate.engine.own import evicted, model_of, of, run
from tests.systems.views import active, fetched, shape, view

# ----------------------------------------------------------------------------- pure rules


@pytest.mark.parametrize(
    ("free", "covers", "given_", "again", "expected"),
    [
        (1, False, None, 8, 2),
        (9, True, None, 8, 1),  # a slot for every expert
        (9, True, 2, 8, 2),  # unless the number was set by hand
        (0, False, None, 8, 8),
        (0, True, None, 8, 8),
        (0, False, 20, 8, 20),  # max(20, 8)
        (0, False, None, 1, 2),
        (3, False, 64, 8, 64),
    ],
)
def test_point_1_the_threshold_depends_on_the_pool_alone(free, covers, given_, again, expected):
    assert threshold(free, covers, given_, again) == expected


def two_or_eight(free):
    return 2 if free else 8


def test_point_1_every_expert_of_a_full_pool_needs_eight_misses():
    # 5 was never cached, and still needs eight.
    counts = {}
    queued = [fills([5], counts, 0, 8, two_or_eight) for _ in range(8)]
    assert queued == [[]] * 7 + [[5]]


def test_point_1_misses_that_waited_for_room_count():
    # The queue has no room at the second and third miss; at the fourth it has.
    counts = {}
    asked = [fills([5], counts, 1, room, two_or_eight) for room in (8, 0, 0, 1)]
    assert asked == [[], [], [], [5]]
    assert counts == {5: 4}


def test_point_1_a_slot_that_is_taken_raises_the_threshold_within_a_node():
    # 3 and 4 have one miss each and come again; 3 takes the last slot, so 4 needs eight.
    counts = {3: 1, 4: 1}
    assert fills([3, 4], counts, 1, 8, two_or_eight) == [3]
    assert counts == {3: 2, 4: 2}


def test_point_3_each_row_counts_so_that_one_node_can_reach_the_threshold():
    # Two tokens miss 6; the second row queues it, and a third row finds it queued.
    counts = {}
    assert fills([6, 7, 6, 6], counts, 4, 8, two_or_eight) == [6]
    assert counts == {6: 2, 7: 1}


def test_a_node_queues_eight_experts_at_most():
    counts = dict.fromkeys(range(12), 1)
    assert fills(range(12), counts, 99, 8, two_or_eight) == list(range(8))


@pytest.mark.parametrize(
    ("jobs", "mib", "kib", "matrices", "expected"),
    [
        (128, 512, 1024, 3, 43),  # 128 wait and one is copied: 129 matrices
        (128, 512, 8 * 1024, 3, 21),  # 64 of 8 MiB wait
        (128, 512, 1024, 2, 64),
        (128, 512, 600 * 1024, 3, 0),  # one matrix is too large
        (128, None, 600 * 1024, 3, 43),
        (1, 512, 1024, 3, 0),  # two matrices are no expert
    ],
)
def test_the_queue_holds_128_jobs_and_512_mib(jobs, mib, kib, matrices, expected):
    assert most_queued(jobs, mib, kib * 1024, matrices) == expected


@pytest.mark.parametrize(
    ("rows", "tokens", "mib", "expected"),
    [
        # 8 MiB are 8 matrices of 1 MiB, but at most a quarter of 8 rows, and max(2, tokens).
        (8, 1, 1, 2),
        (4, 1, 1, 1),  # a quarter of 4
        (2, 1, 1, 1),
        (1, 1, 1, 0),  # a node of one row keeps it
        (6, 1, 16, 1),  # half a matrix: still one row
        (8, 1, 16, 2),  # from eight experts a token on: two rows
        (16, 2, 1, 2),  # 16, a quarter is 4, max(2, 2)
        (32, 4, 4, 4),  # 8, a quarter is 8, max(2, 4)
        (64, 8, 16, 4),  # 8 MiB for each of 8 tokens: 4 matrices
        (64, 8, 64, 2),
        (12, 3, 2, 3),
        (3, 2, 1, 0),  # rows that are no multiple of tokens
    ],
)
def test_point_2_rows_that_the_host_gets_back(rows, tokens, mib, expected):
    assert rows_on_host(rows, tokens, mib * MIB) == expected


def test_rows_set_by_hand_leave_one_row_to_the_device():
    assert [rows_on_host(n, 1, MIB, 3) for n in (8, 4, 3, 1, 0)] == [3, 3, 2, 0, 0]
    assert rows_on_host(8, 1, MIB, 0) == 0


@pytest.mark.parametrize(
    ("tokens", "rows", "served"),
    [(1, 8, True), (8, 64, True), (9, 9, False), (8, 65, False), (7, 70, False)],
)
def test_larger_nodes_bypass_the_cache(tokens, rows, served):
    assert is_served(tokens, rows) == served
    assert not is_served(2, 4, most_tokens=1)


def test_point_4_smaller_matrices_bypass_the_cache():
    assert LEAST_BYTES == {"auto": 512 * 1024, "on": 1024 * 1024}


def test_point_5_the_earlier_fork_admits_each_eighth_miss_of_the_device_when_full():
    assert every_nth([1, 2, 3], (), 0, 0, 8, 8) == ([], 3)
    assert every_nth([4, 5, 6, 7, 1, 2], (), 3, 0, 8, 8) == ([1], 9)  # 1 is the eighth miss
    # An expert that is being copied counts and is not queued.
    assert every_nth([9, 3], {9}, 7, 0, 8, 8) == ([], 9)
    # While slots are free each miss is queued, once.
    assert every_nth([1, 2, 1, 3], (), 0, 2, 8, 8) == ([1, 2], 4)
    assert every_nth(range(12), (), 0, 99, 8, 8) == (list(range(8)), 12)


def test_point_6_heat_protects_more_than_four_hits():
    hits = {1: 5, 2: 5, 3: 4, 4: 0}
    assert coldest([1, 2, 3, 4], hits, 4) == 3
    assert coldest([1, 2], hits, 4) == 1  # all are hot: the head of the list
    assert coldest([1, 2, 3, 4], hits, None) == 1
    assert coldest([1, 2, 3, 4], hits, 4, lambda key: key != 3) == 4
    assert coldest([1, 2], hits, 4, lambda key: False) is None


@given(st.permutations(range(6)), st.lists(st.integers(0, 8), min_size=6, max_size=6),
       st.integers(0, 8))  # fmt: skip
def test_heat_is_lru_among_the_cold(order, hits, hot):
    found = coldest(order, hits, hot)
    cold = [key for key in order if hits[key] <= hot]
    assert found == (cold or order)[0]


# ----------------------------------------------------------------------------- policies by hand

EXPERTS, LAYERS = 8, 2
MODEL = shape(EXPERTS, 2, LAYERS)


def store(slots, record_mib=3, scope="global", model=MODEL):
    """Return a cache of records of three matrices."""
    return ExpertCache(model, slots, scope, Tier("device", 2**50), record_mib * MIB)


def node(ids, resident=(), coming=(), layer=0, k=2):
    """Return the view of a node, token by token."""
    scores = [[1.0 / EXPERTS] * EXPERTS for _ in ids]
    return view(scores, k, resident, in_flight=coming, own=ids, layer=layer, layers=LAYERS)


def planned(ids, resident=(), coming=(), k=2, record_mib=3, **options):
    assign = BesideHost(**options)
    model = shape(EXPERTS, k, LAYERS)
    assign.start(model, store(16, record_mib, model=model))
    seen = node(ids, resident, coming, k=k)
    return assign.assign(seen, active(seen))


def test_hits_are_on_the_device_and_misses_on_the_host():
    plan = planned([[3, 1], [5, 3]], resident=[3], coming=[5])
    # 5 is being copied: the host computes it, and no one waits.
    assert (plan.device, plan.host, plan.load) == ([3], [1, 5], ())


def test_the_last_row_of_a_node_of_hits_goes_back_to_the_host():
    plan = planned([[3, 1]], resident=[1, 3])
    assert (plan.device, plan.host) == ([3], [1])
    assert planned([[3, 1]], resident=[1, 3], host_rows=0).host == []


def test_an_expert_goes_back_only_with_all_its_rows():
    # Two rows go back: (1, 5) of the second token; 1 has a row in the first one.
    plan = planned([[3, 1, 2, 0], [6, 7, 1, 5]], resident=range(8), k=4)
    assert (sorted(plan.device), plan.host) == ([0, 1, 2, 3, 6, 7], [5])


def test_nodes_of_more_tokens_use_no_cached_expert():
    plan = planned([[3, 1]] * 9, resident=[3])
    assert (plan.device, sorted(plan.host), plan.load) == ((), [1, 3], ())
    # From 32 rows on absent experts are copied for one use.
    plan = planned([[3, 1]] * 32, resident=[3])
    assert (list(plan.device), list(plan.host)) == ([3, 1], [])
    assert plan.load == [Fetch(0, 1, keep=False)]


def missed(policy, seen):
    """Return the experts that a layer queues."""
    return fetched(seen.layer, policy.uploads(seen, active(seen).absent))


def counting(kind=MissCounts, slots=4, record_mib=3, **options):
    policy = kind(**{"least_slots": 1, **options})
    held = store(slots, record_mib)
    policy.start(MODEL, held)
    return policy, held


def test_point_1_counts_start_anew_when_a_copy_has_ended():
    policy, held = counting()
    assert [missed(policy, node([[3, 1]])) for _ in range(2)] == [[], [3, 1]]
    for key in (3, 1):
        held.claim(key, None)
    # 3 is evicted after its copy has ended: its first miss after that is one.
    policy.uploaded(3)
    held.claim(5, 3)
    assert missed(policy, node([[3, 0]], coming=[1, 5])) == []
    assert missed(policy, node([[3, 0]], coming=[1, 5])) == [3, 0]


def test_point_1_with_a_slot_for_every_expert_the_first_miss_is_enough():
    policy, _ = counting(slots=EXPERTS * LAYERS)
    assert missed(policy, node([[3, 1]])) == [3, 1]
    policy, _ = counting(slots=EXPERTS * LAYERS, admit_after=2)
    assert missed(policy, node([[3, 1]])) == []
    policy, _ = counting(slots=EXPERTS * LAYERS - 1)
    assert missed(policy, node([[3, 1]])) == []


def test_slots_for_copies_of_prompts_are_not_free_slots():
    policy, _ = counting()
    policy.spare = 4
    policy.start(MODEL, store(5))  # one slot is the cache's
    assert [missed(policy, node([[3, 1]])) for _ in range(2)] == [[], [3]]


def test_point_3_an_expert_that_is_being_copied_is_not_counted():
    policy, held = counting()
    held.claim(3, None)
    seen = node([[3, 1]], coming=[3])
    assert policy.uploads(seen, [1, 3]) == []
    assert [fetch.expert for fetch in policy.uploads(seen, [1, 3])] == [1]


@pytest.mark.parametrize(
    ("options", "awake"),
    [
        ({}, True),
        ({"mode": "auto"}, False),  # it needs two devices
        ({"record_mib": 2}, False),  # matrices of 2/3 MiB
        ({"record_mib": 2, "min_kib": 512}, True),
        ({"least_slots": 48}, True),  # 16 slots of three matrices
        ({"least_slots": 49}, False),
        ({"least_slots": 64}, False),
    ],
)
def test_point_4_a_cache_that_is_asleep_copies_nothing(options, awake):
    policy, _ = counting(slots=15 + 1, admit_after=1, **options)
    assert bool(missed(policy, node([[3, 1]]))) == awake


def test_nodes_that_bypass_the_cache_are_not_counted():
    policy, _ = counting()
    assert missed(policy, node([[3, 1]] * 9)) == []
    assert missed(policy, node([[3, 1]])) == []


def test_point_5_the_earlier_fork_needs_no_second_miss():
    policy, held = counting(EveryNth, slots=2)
    assert (policy.queue, policy.max_batch) == (171, 1)  # 512 jobs and one under way
    assert missed(policy, node([[3, 1]])) == [3, 1]
    for key in (3, 1):
        held.claim(key, None)
    # Full: 4, 5 are misses 3 and 4; the eighth miss is queued.
    assert [missed(policy, node([[4, 5]])) for _ in range(3)] == [[], [], [5]]
    assert missed(policy, node([[4, 5]] * 2)) == []


def test_the_order_of_rows_is_the_order_of_uses():
    evict = RowLRU()
    held = store(4)
    evict.start(MODEL, held)
    for key in (1, 2, 3, 4):
        held.claim(key, None)
        evict.arrived(key)
    seen = node([[4, 1], [2, 4]])
    evict.observe(seen)
    evict.used(0, [1, 2, 4])
    order = []
    for _ in range(4):
        order.append(evict.victim([key not in order for key in range(16)], 9))
    assert order == [3, 1, 2, 4]


def test_heat_counts_hits_since_the_copy():
    evict = Heat(hot=1)
    held = store(2)
    evict.start(MODEL, held)
    allowed = [True] * 16
    for key in (1, 2):
        held.claim(key, None)
        evict.arrived(key)
    for ids in ([[1, 5]], [[1, 5]], [[2, 5]]):
        evict.observe(node(ids))
        evict.used(0, ids[0])
    assert evict.victim(allowed, 9) == 2  # one hit; 1 is older and has two
    evict.observe(node([[2, 5]]))
    evict.used(0, [2, 5])
    assert evict.victim(allowed, 9) == 1  # both are hot
    evict.left(1)
    evict.arrived(1)
    assert evict.victim(allowed, 9) == 1  # it was copied anew


# ----------------------------------------------------------------------------- the whole pool


class Pool:
    """Restates the pool: slots, the LRU list, misses and the queue, one row after the other."""

    def __init__(self, slots, covers, hot, admit=2, again=8, inserts=8, queue=4):
        self.free, self.covers, self.hot = slots, covers, hot
        self.admit, self.again, self.inserts, self.longest = admit, again, inserts, queue
        self.lru, self.copying, self.misses, self.hits = [], [], {}, {}

    def node(self, keys):
        found = [key in self.lru for key in keys]
        for key, hit in zip(keys, found, strict=True):
            if hit:
                self.lru.remove(key)
                self.lru.append(key)
                self.hits[key] += 1
        left = self.inserts
        for key, hit in zip(keys, found, strict=True):
            if hit or key in self.copying:
                continue
            self.misses[key] = self.misses.get(key, 0) + 1
            needed = 1 if self.covers else self.admit
            if not self.free:
                needed = max(needed, self.again)
            if self.misses[key] < needed or not left or len(self.copying) == self.longest:
                continue
            if self.free:
                self.free -= 1
            else:
                cold = [key for key in self.lru if self.hits[key] <= self.hot]
                if not self.lru:
                    continue
                self.lru.remove((cold or self.lru)[0])
            self.copying.append(key)
            left -= 1
        return found

    def copied(self):
        key = self.copying.pop(0)
        self.lru.append(key)
        self.hits[key] = 0
        del self.misses[key]


class Policies:
    """Drives the policies as the engine does."""

    def __init__(self, slots, hot, again, inserts, queue):
        self.evict = RowLRU() if hot > 99 else Heat(hot=hot)
        self.admit = MissCounts(
            least_slots=1, readmit_after=again, inserts=inserts, jobs=3 * queue, max_batch=8
        )
        self.cache = store(slots)
        self.evict.start(MODEL, self.cache)
        self.admit.start(MODEL, self.cache)
        self.copying = []

    def node(self, layer, ids):
        base = layer * EXPERTS
        there = [key - base for key in range(base, base + EXPERTS)
                 if self.cache.holds(key) and key not in self.copying]  # fmt: skip
        coming = [key - base for key in self.copying if 0 <= key - base < EXPERTS]
        seen = node(ids, there, coming, layer)
        self.evict.observe(seen)
        rows = active(seen)
        self.evict.used(layer, rows.rows)
        wanted = self.admit.uploads(seen, [*rows.in_flight, *rows.absent])
        for fetch in wanted:
            key, victim = base + fetch.expert, None
            if len(self.copying) == self.admit.queue:
                break
            if not self.cache.free_slots(key):
                allowed = [self.cache.holds(k) and k not in self.copying for k in range(16)]
                victim = self.evict.victim(allowed, key)
                if victim is None:
                    continue
            self.cache.claim(key, victim)
            if victim is not None:
                self.evict.left(victim)
            self.copying.append(key)
        return [e in there for row in ids for e in row]

    def copied(self):
        key = self.copying.pop(0)
        self.evict.arrived(key)
        self.admit.uploaded(key)


NODES = st.lists(
    st.tuples(
        st.integers(0, LAYERS - 1),
        st.lists(st.permutations(range(5)).map(lambda ids: ids[:2]), min_size=1, max_size=4),
        st.integers(0, 3),
    ),
    max_size=60,
)


@pytest.mark.slow
@given(NODES, st.sampled_from([2, 3, 5, 16]), st.sampled_from([0, 1, 4, 100]),
       st.integers(1, 8), st.integers(1, 8), st.integers(1, 5))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_policies_do_what_the_pool_does(nodes, slots, hot, again, inserts, queue):
    mine = Policies(slots, hot, again, inserts, queue)
    truth = Pool(slots, slots == 16, hot, again=again, inserts=inserts, queue=queue)
    assert mine.admit.queue == queue  # 3 n jobs wait and one is copied: n experts
    for layer, ids, ended in nodes:
        keys = [layer * EXPERTS + e for row in ids for e in row]
        assert mine.node(layer, ids) == truth.node(keys)
        assert mine.copying == truth.copying
        for _ in range(min(ended, len(mine.copying))):
            mine.copied()
            truth.copied()
        held = {key for key in range(16) if mine.cache.holds(key)}
        assert held == {*truth.lru, *truth.copying}
        assert not {*truth.lru} & {*truth.copying}  # a queued expert is not in the list


# ----------------------------------------------------------------------------- the system

ONE = small_shape(layers=1)


def timed(uses, slots, **options):
    """Run a system on records of 1,000 bytes: attention until 30, the gate until 33."""
    made = LlamaCppMoeCache(
        place=CacheSlots(), assign=BesideHost(),
        admit=MissCounts(min_kib=0, least_slots=1, **options),
    )  # fmt: skip
    return run(made, model_of(ONE, uses), slots=slots, passes=len(uses))


def test_a_miss_waits_for_no_copy_and_a_hit_is_beside_a_miss():
    # Two of four slots are for copies of prompts.  A pass with two misses: attention 30, gate 3,
    # two experts on the host 110, their return 4, the sum 2, the head 6, so 155.
    ran = timed([[[(0, 1)]], [[(0, 1)]], [[(0, 1)]], [[(0, 2)]]], slots=4)
    assert of(ran, OpKind.EXPERT) == [
        (0, (0, 1), 33, 143),  # first misses
        (0, (0, 1), 188, 298),  # second misses: both are queued
        # All rows are hits, so the last one is the host's: 343 + 55 + 4 + 2 + 6 = 410.
        (0, (1,), 343, 398), (0, (0,), 343, 353),
        # A hit beside a miss.
        (0, (2,), 443, 498), (0, (0,), 443, 453),
    ]  # fmt: skip
    # The copies run while the host computes: the control thread queues them at the second gate.
    assert of(ran, OpKind.LOAD) == [(0, (0,), 188, 228), (0, (1,), 228, 268)]
    assert ran.counts["decode"].uploaded == 2


def test_an_expert_whose_copy_is_under_way_is_computed_on_the_host():
    # A copy takes 400, until 588, and the second one until 988: the fourth pass begins at 465.
    uses = [[[(0, 1)]]] * 6
    made = LlamaCppMoeCache(admit=MissCounts(min_kib=0, least_slots=1))
    costs = FlatCosts(prices(load=400))
    ran = run(made, model_of(ONE, uses), slots=4, passes=6, costs=costs)
    assert of(ran, OpKind.LOAD) == [(0, (0,), 188, 588), (0, (1,), 588, 988)]
    done = of(ran, OpKind.EXPERT)
    assert done[:4] == [(0, (0, 1), 155 * n + 33, 155 * n + 143) for n in range(4)]
    assert [row[1] for row in done[4:]] == [(1,), (0,), (1,), (0,)]  # gates at 653 and 753


def test_point_3_the_victim_leaves_when_the_copy_is_queued():
    # One slot for the cache.  0 takes it at its second miss; 1 needs eight misses, and then 0 is
    # gone although 1 has not come.
    uses = [[[(0, 3)]], [[(0, 3)]], *[[[(1, 2)]]] * 8, [[(0, 1)]]]
    ran = timed(uses, slots=3)
    assert evicted(ran)[0] == (0, None)
    assert evicted(ran)[1] == (1, 0)
    # 0 in the second pass, and 1 in the tenth: eight misses.
    assert [row[1] for row in of(ran, OpKind.LOAD)] == [(0,), (1,)]


def test_the_system_keeps_slots_for_copies_of_prompts():
    made = LlamaCppMoeCache()
    model = shape(EXPERTS, 2, LAYERS)
    made.start(model, store(10, model=model))
    assert (made.evict.transient, made.admit.spare) == (3, 3)  # a third of eight experts
    prompt = node([[3, 1]] * 9)
    made.evict.observe(prompt)
    made.evict.arrived(1)
    assert made.evict.victim([True] * 16, 3) is None
    made.evict.observe(node([[3, 1]]))
    assert made.evict.victim([True] * 16, 3) == 1


@pytest.mark.parametrize(
    ("gib", "options", "slots"),
    [
        # 20 of layers and 4 of others; experts of 1 GiB; three slots for copies, 3 GiB free.
        (24 + 10, {}, 4),
        (24 + 10, {"reserve": 0}, 7),
        (24 + 10, {"reserve": 1025}, 5),
        (24 + 10, {"budget": 2048}, 2),
        (24 + 40, {}, 16),  # all experts
        (24 + 5, {}, 0),
    ],
)
def test_the_slots_are_the_free_memory_less_the_reserve(gib, options, slots):
    place = CacheSlots(**options)
    assert place.most_slots(MODEL) is None
    offered = Budget(gib * 2**30, (10 * 2**30,) * 2, 0, 4 * 2**30, 0, 2**30)
    assert [*place.homes(MODEL, offered)] == ["device"] * 2
    assert place.most_slots(MODEL) == slots + 3
    assert place.place(MODEL, slots, "global") == ()
    assert f": {slots} slots of whole experts" in place.flags(MODEL)


def test_both_variants_and_their_policies():
    made = build("llamacpp-moe-cache")
    assert type(made) is LlamaCppMoeCache
    assert (made.overlap, made.admit.readmit_after, made.assign.max_batch) == (True, 8, 8)
    earlier = build("llamacpp-moe-cache", variant="earlier")
    assert type(earlier) is EarlierMoeCache
    assert (type(earlier.admit), earlier.assign.max_batch, earlier.assign.host_rows) == (
        EveryNth, 1, 0,
    )  # fmt: skip
    assert type(build("llamacpp-moe-cache", {"evict": "heat"}).evict) is Heat
    asleep = build("llamacpp-moe-cache", {"admit.mode": "auto"})
    assert asleep.remarks(MODEL, 4)[-1].startswith("--moe-cache auto is asleep on one device")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"admit.inserts": "0"}, r"admit\.inserts is 0; allowed: 1 or more"),
        ({"admit.readmit_after": "0"}, r"admit\.readmit_after is 0; allowed: 1 or more"),
        ({"admit": "every-nth", "admit.every": "0"}, r"admit\.every is 0; allowed: 1 or more"),
        ({"admit.mode": "off"}, r"admit\.mode=off"),
        ({"assign.host_rows": "-1"}, r"assign\.host_rows is -1; allowed: 0 or more"),
        ({"place.reserve": "-1"}, r"place\.reserve is -1; allowed: 0 or more"),
        ({"evict": "heat", "evict.hot": "-1"}, r"evict\.hot is -1; allowed: 0 or more"),
    ],
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(UsageError, match=said):
        build("llamacpp-moe-cache", options)

"""Cache policies against libcachesim, published counts, and small cases by hand.

Hits are counted request by request, as a textbook's cache does (`cache_replay.requests`).
"""

import random
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.analysis.cache_replay import replay, requests, token_steps, topology
from moebench.substrate.errors import UsageError
from moebench.substrate.traces.catalogue import find_trace
from moebench.substrate.traces.file import open_trace
from moebench.systems.policies.caches import _LeCaR
from moebench.systems.registry import make
from tests.systems.policies.golden import golden_trace
from tests.systems.views import cache, shape

EVERY = [
    ("lru", {}),
    ("fifo", {}),
    ("lifo", {}),
    ("arc", {}),
    ("lecar", {}),
    ("lecar", {"variant": "libcachesim"}),
    ("belady", {}),
    *[("lfu", {"survive": s, "tie": t}) for s in (False, True) for t in ("id", "lru")],
]


def hits(name, keys, slots, experts=64, **options):
    """Return the hits of single requests for experts of one layer."""
    steps = [(0, (key,)) for key in keys]
    policy = make("evict", name, **options)
    return sum(replay(policy, [steps], topology(1, experts, 1), slots).hits)


# ---------------------------------------------------------------- published counts


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("lfu", {"tie": "id"}, 1022),
        ("fifo", {}, 1069),
        ("lru", {}, 1272),
        ("lecar", {"variant": "libcachesim"}, 1314),
        ("arc", {}, 1337),
        ("lecar", {}, 1517),
        ("lifo", {}, 1649),
        ("lfu", {"tie": "lru"}, 1652),
        ("belady", {}, 2129),
        ("belady", {"bypass": True}, 2157),
    ],
)
def test_golden_hits(name, options, expected):
    keys = [key for step in golden_trace() for key in step]
    assert hits(name, keys, 16, **options) == expected


def test_lecars_weight_at_the_end_of_the_golden_trace():
    policy = make("evict", "lecar")
    steps = [(0, (key,)) for step in golden_trace() for key in step]
    replay(policy, [steps], topology(1, 64, 1), 16)
    assert policy.weight() == pytest.approx(0.221, abs=5e-4)


# ---------------------------------------------------------------- libcachesim

PAIRS = [
    ("LRU", "lru", {}),
    ("LFU", "lfu", {}),
    ("FIFO", "fifo", {}),
    ("ARC", "arc", {}),
    ("LeCaR", "lecar", {"variant": "libcachesim"}),
    ("Belady", "belady", {}),
]


def oracle(name, keys, slots):
    """Return libcachesim's hits, in a new thread, where its random numbers restart."""
    libcachesim = pytest.importorskip("libcachesim", reason="pip install libcachesim")
    never = 2**62
    following, later = [never] * len(keys), {}
    for now in range(len(keys) - 1, -1, -1):
        following[now] = later.get(keys[now], never)
        later[keys[now]] = now

    def count():
        its = getattr(libcachesim, name)(cache_size=slots, hashpower=10)
        request, found = libcachesim.Request(obj_size=1), 0
        for key, next_use in zip(keys, following, strict=True):
            request.obj_id, request.next_access_vtime = key, next_use
            found += its.get(request)
        return found

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(count).result()


def drawn(seed):
    """Return random requests with popular ids whose popularity changes."""
    chance = random.Random(seed)
    experts = chance.choice([8, 24, 64])
    keys = []
    for _ in range(4):
        order = chance.sample(range(experts), experts)
        weights = [1 / (i + 1) ** chance.choice([0.3, 0.8, 1.5]) for i in range(experts)]
        keys += chance.choices(order, weights, k=400)
    return keys, chance.randint(2, experts - 1)


@lru_cache
def routed():
    """Return the requests of a trained model's third layer."""
    trace = open_trace(find_trace("qwen2-57b-a14b__arithmetic"))
    return [int(e) for ids in trace.ids_TLK[:, 2] for e in sorted(ids)]


@pytest.mark.parametrize(("theirs", "ours", "options"), PAIRS)
@pytest.mark.parametrize("seed", range(8))
def test_drawn_requests_as_libcachesim(theirs, ours, options, seed):
    keys, slots = drawn(seed)
    assert hits(ours, keys, slots, **options) == oracle(theirs, keys, slots)


@pytest.mark.parametrize(("theirs", "ours", "options"), PAIRS)
@pytest.mark.parametrize("slots", [8, 16, 32])
def test_routed_requests_as_libcachesim(theirs, ours, options, slots):
    keys = routed()
    assert hits(ours, keys, slots, **options) == oracle(theirs, keys, slots)


# ---------------------------------------------------------------- by hand


def pattern(name, keys, slots, **options):
    """Return which requests hit."""
    policy = make("evict", name, **options)
    outcome = []
    for end in range(1, len(keys) + 1):
        steps = [(0, (key,)) for key in keys[:end]]
        outcome.append(sum(replay(policy, [steps], topology(1, 8, 1), slots).hits))
    return np.diff(outcome, prepend=0).tolist()


def test_lifo_by_hand():
    # 0 1 2 fill three slots.  3 replaces 2, the newest; 2 replaces 3; 0 hits and does not become
    # newer, so 4 replaces 2; 1 hits; 2 replaces 4.
    assert pattern("lifo", [0, 1, 2, 3, 2, 0, 4, 1, 2], 3) == [0, 0, 0, 0, 0, 1, 0, 1, 0]


def test_lifo_passes_over_the_current_step():
    # Slots 0 1 2, all from earlier steps; the step {3, 4} puts 3 in 2's place.  3 is then the
    # newest, but in use: 4 takes 1's place.
    done = replay(make("evict", "lifo"), [[(0, (0, 1, 2)), (0, (3, 4))]], topology(1, 8, 2), 3)
    assert [(victim, new) for _, victim, new in done.evicted] == [(2, 3), (1, 4)]


def test_fifo_by_hand():
    # 0 1 2; 0 hits and stays the oldest: 3 replaces 0, 0 replaces 1, 2 still hits.
    assert pattern("fifo", [0, 1, 2, 0, 3, 0, 2], 3) == [0, 0, 0, 1, 0, 0, 1]


def test_arc_by_hand():
    # c = 2, p = 0.  0 0: T2 = 0.  1: T1 = 1.  2: |T1| = 1 > p, 1 becomes a ghost (B1).  1 again:
    # p = 1; |T1| = 1 = p, so T2's 0 leaves and 1 goes to T2.  2: a hit, to T2.  0: a ghost of B2,
    # p = 0; T1 is empty, so T2's oldest, 1, leaves.
    assert pattern("arc", [0, 0, 1, 2, 1, 2, 0, 1], 2) == [0, 1, 0, 0, 0, 1, 0, 0]


def test_the_original_lecar_by_hand():
    # One slot: LRU and LFU always agree, so no regret changes the weights.
    policy = make("evict", "lecar")
    replay(policy, [[(0, (key,)) for key in (0, 1, 0, 1, 2, 0)]], topology(1, 8, 1), 1)
    assert policy.weight() == 0.5


def best_possible(keys, slots, bypass):
    """Return the most hits of any choice of victims, by trying all."""

    @lru_cache(None)
    def most(now, inside):
        if now == len(keys):
            return 0
        key = keys[now]
        if key in inside:
            return 1 + most(now + 1, inside)
        if len(inside) < slots:
            kept = [inside | {key}]
        else:
            kept = [inside - {gone} | {key} for gone in inside]
        if bypass:
            kept.append(inside)
        return max(most(now + 1, after) for after in kept)

    return most(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=14), st.integers(1, 4), st.booleans())
def test_belady_is_the_best_there_is(keys, slots, bypass):
    if keys:
        found = hits("belady", keys, slots, bypass=bypass, experts=8)
        assert found == best_possible(tuple(keys), slots, bypass)


def test_belady_needs_the_future():
    model = shape()
    with pytest.raises(UsageError, match=r"evict=belady needs to know the future"):
        make("evict", "belady").start(model, cache(model, 4))


def test_belady_notices_another_future():
    model = shape()
    policy = make("evict", "belady")
    policy.set_future([(0, [1, 2, 3]), (1, [0, 1, 2])])
    policy.start(model, cache(model, 4))
    policy.used(0, [1, 2, 3])
    with pytest.raises(UsageError, match=r"was not told that layer 1 uses expert 4"):
        policy.used(1, [0, 4, 5])


def test_no_bypass_on_a_device():
    model = shape()
    policy = make("evict", "belady", bypass=True)
    policy.set_future([(0, [1, 2, 3])])
    with pytest.raises(UsageError, match=r"evict\.bypass"):
        policy.start(model, cache(model, 4))


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"lr": float("nan")}, {"seed": -1}])
def test_lecars_options(options):
    with pytest.raises(UsageError, match=r"evict\.(lr|seed)"):
        make("evict", "lecar", **options)


# ---------------------------------------------------------------- all policies


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_layers_that_share_no_slots_do_not_meet(name, options):
    drawn_TLK = np.random.default_rng(5).integers(0, 8, (200, 2, 1))
    steps = requests(token_steps(drawn_TLK))
    policy = make("evict", name, **options)
    both = replay(policy, [steps], topology(2, 8, 1), 6).hits
    alone = [hits(name, drawn_TLK[:, layer, 0].tolist(), 3, 8, **options) for layer in (0, 1)]
    assert both == alone


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_a_victim_is_allowed_and_asking_changes_nothing(name, options):
    model = shape(8, 2, 1)
    chance = np.random.default_rng(3)
    steps = [(0, sorted(chance.choice(8, 2, replace=False).tolist())) for _ in range(300)]
    asked_once, asked_twice = (make("evict", name, **options) for _ in range(2))
    for policy in (asked_once, asked_twice):
        if name == "belady":
            policy.set_future(steps)
        policy.start(model, cache(model, 4))
    inside = set()
    for layer, experts in steps:
        asked_once.used(layer, experts)
        asked_twice.used(layer, experts)
        for key in set(experts) - inside:
            if len(inside) == 4:
                allowed = np.zeros(8, dtype=bool)
                allowed[list(inside - set(experts))] = True
                gone = asked_once.victim(allowed, key)
                assert allowed[gone]
                assert [asked_twice.victim(allowed, key) for _ in range(2)] == [gone, gone]
                assert asked_once.victim(np.zeros(8, dtype=bool), key) is None
                inside.remove(gone)
                asked_once.left(gone)
                asked_twice.left(gone)
            inside.add(key)
            asked_once.arrived(key)
            asked_twice.arrived(key)


@pytest.mark.parametrize(("name", "options"), EVERY)
def test_a_run_starts_afresh(name, options):
    policy = make("evict", name, **options)
    steps = [(0, (key,)) for key in routed()[:800]]
    first, second = (replay(policy, [steps], topology(1, 64, 1), 9) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("variant", "first"), [("original", 3), ("libcachesim", 5)])
def test_the_rarest_allowed_key_is_chosen_by_id_or_age(variant, first):
    pool = _LeCaR(4, variant, 0.45, 0)
    for count, keys in ((2, [1]), (1, [5, 3])):  # in the order in which they reached it
        pool.by_count[count].update(dict.fromkeys(keys))
    allowed = np.ones(8, dtype=bool)
    assert pool.rarest(allowed) == first
    allowed[first] = False
    assert pool.rarest(allowed) == 8 - first
    allowed[[3, 5]] = False
    assert pool.rarest(allowed) == 1
    allowed[1] = False
    with pytest.raises(LookupError, match="no key is allowed"):
        pool.rarest(allowed)

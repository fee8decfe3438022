"""FlashMoE's figures about caches, computed by hand."""

import numpy as np
import pytest

from moebench.harness.reproduce.flashmoe.evictions import duel, eviction_map, hit_rates, regret
from moebench.substrate.analysis.cache_replay import replay, token_steps, topology
from moebench.systems.flashmoe import LearnedEviction
from moebench.systems.registry import make
from tests.systems.learn.networks import one_layer, random_network, routed

INF = float("inf")


def test_an_eviction_map_by_hand():
    drawn = eviction_map(
        one_layer(0, 1, 2, 0, 1), 0, 3, 2, {n: make("evict", n) for n in ("lru", "belady")}
    )
    assert drawn.age_TE.tolist() == [
        [0, INF, INF], [1, 0, INF], [2, 1, 0], [0, 2, 1], [1, 0, 2],
    ]  # fmt: skip
    # LRU always throws out what comes next; Belady gives up 1 for 2, then has 0, then 1 for either.
    assert drawn.evicted == {"lru": [(2, 0), (3, 1), (4, 2)], "belady": [(2, 1), (4, 0)]}


def test_regret_by_hand():
    tokens = [one_layer(0, 1, 2, 0, 1)]
    lru = regret(make("evict", "lru"), tokens, 3, 2, within=1)
    # Evicted at 2, 3, 4: 0 (used again at 3), 1 (at 4), 2 (never).  Each was idle for two tokens.
    assert (lru.evictions, lru.refetched, lru.idle) == (3, pytest.approx(2 / 3), 2)
    belady = regret(make("evict", "belady"), tokens, 3, 2, within=1)
    # 1 at 2 (used at 1, again at 4: after two tokens), 0 at 4 (used at 3, never again).
    assert (belady.evictions, belady.refetched, belady.idle) == (2, 0, 1)
    within_two = regret(make("evict", "belady"), tokens, 3, 2, within=2)
    assert within_two.refetched == 0.5


def test_duel_of_two_policies_matches_hand_computation():
    # 0 0 0 1: at 2, LRU gives up 0 and LFU 1.  0 comes sooner, so LFU is right.
    found = duel(make("evict", "lru"), make("evict", "lfu"), [one_layer(0, 0, 0, 1, 2, 0, 1)], 3, 2)
    assert (found.first, found.second) == (0, 1)
    assert found.share == 0
    same = duel(make("evict", "lru"), make("evict", "lru"), [one_layer(0, 1, 2, 0)], 3, 2)
    assert (same.first, same.second, same.equal) == (0, 0, 0)


def test_hit_rates_by_size():
    sequences = [routed(), routed(seed=1)]
    learned = LearnedEviction()
    learned.network = random_network(2, 8, 16)
    policies = {n: make("evict", n) for n in ("lru", "belady")} | {"flashmoe": learned}
    rates = hit_rates(sequences, 8, (2, 4, 8), policies)
    assert list(rates) == [2, 4, 8]
    for size, row in rates.items():
        assert row["belady"] == max(row.values())
        steps = [token_steps(ids) for ids in sequences]
        assert (
            row["lru"] == replay(make("evict", "lru"), steps, topology(2, 8, 2), 2 * size).hit_rate
        )
    assert rates[8]["lru"] == rates[8]["flashmoe"] == rates[8]["belady"]


def test_regret_tells_the_layers_apart():
    # Both layers: 0 1 2 0 1, but the second has them one later, so that its experts are others.
    ids_TLK = np.stack([one_layer(0, 1, 2, 0, 1)[:, 0], one_layer(1, 2, 0, 1, 2)[:, 0]], axis=1)
    alone = regret(make("evict", "lru"), [one_layer(0, 1, 2, 0, 1)], 3, 2, within=1)
    both = regret(make("evict", "lru"), [ids_TLK], 3, 2, within=1)
    assert both.evictions == 2 * alone.evictions
    assert (both.refetched, both.idle) == (pytest.approx(alone.refetched), alone.idle)

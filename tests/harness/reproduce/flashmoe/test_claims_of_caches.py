"""The claims of this module are those of the results that ship, and what each of them counts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.claim import Claim
from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.flashmoe import counts
from moebench.harness.reproduce.flashmoe.claims_of_caches import CLAIMS
from moebench.results.claims import Measured
from tests.harness.reproduce.shipped import check

KNOWN = {claim.id: claim for claim in CLAIMS}


def test_claims_are_those_that_ship() -> None:
    check("flashmoe", CLAIMS)


def value(claim: Claim, evidence: Evidence) -> Measured:
    assert claim.measure is not None
    return claim.measure(evidence)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds of each setting, each with a text of six tokens that the network learnt from."""

    class Routing:
        replayed = 3

        def __init__(self, setting: str, seed: int) -> None:
            self.setting, self.seed = setting, seed

        def sequences(self, learnt: bool) -> list[Any]:
            assert learnt
            return [np.zeros((6, 1, 1))]

    monkeypatch.setattr(
        counts, "routings", lambda evidence, setting: [Routing(setting, seed) for seed in (0, 1)]
    )


@pytest.mark.usefixtures("given")
def test_hits_and_loads_are_compared_at_the_best_cache_size(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first seed gains most with the small cache, the second with the large one."""
    seeds = (
        {16: {"flashmoe": 0.6, "lru": 0.4, "lfu": 0.3, "lfu-kept": 0.5, "lifo": 0.1, "fifo": 0.1,
              "arc": 0.24, "lecar": 0.2, "belady": 0.9},
         32: {"flashmoe": 0.7, "lru": 0.7, "lfu": 0.5, "lfu-kept": 0.7, "lifo": 0.1, "fifo": 0.1,
              "arc": 0.7, "lecar": 0.7, "belady": 0.9}},
        {16: {"flashmoe": 0.2, "lru": 0.2, "lfu": 0.2, "lfu-kept": 0.2, "lifo": 0.1, "fifo": 0.1,
              "arc": 0.2, "lecar": 0.2, "belady": 0.9},
         32: {"flashmoe": 0.9, "lru": 0.8, "lfu": 0.6, "lfu-kept": 0.8, "lifo": 0.1, "fifo": 0.1,
              "arc": 0.75, "lecar": 0.5, "belady": 0.9}},
    )  # fmt: skip
    asked: list[Any] = []

    def rates(routing: Any) -> Any:
        asked.append((routing.setting, routing.seed))
        return seeds[routing.seed]

    monkeypatch.setattr(counts, "rates", rates)
    gains: dict[str, tuple[float, ...]] = {
        "LRU": (50, 12.5),
        "LFU": (100, 50),
        "ARC": (150, 20),
        "LeCaR": (200, 80),
    }
    for said, samples in gains.items():
        found = value(KNOWN[f"F-1 hits over {said}"], evidence)
        assert found.samples == pytest.approx(samples, rel=1e-5), said
        assert found.badge == "counted"
        assert found.conditions == (
            "one cache a layer, sizes of a quarter to three quarters of its experts; 3 sequences, "
            "the network learnt from 6 tokens"
        )
    # Of 100 requests, 40 are loaded in place of 60 with LRU, and 10 in place of 20.
    saved: dict[str, tuple[float, ...]] = {"LRU": (33.33333, 50), "LFU": (42.85714, 75)}
    for said, samples in saved.items():
        found = value(KNOWN[f"F-1 loads against {said}"], evidence)
        assert found.samples == pytest.approx(samples, rel=1e-5), said
    assert {setting for setting, _ in asked} == {"F1"}
    for name, setting in (("OLMoE", "F1"), ("Qwen3", "F2")):
        asked.clear()
        # Seed 0: first at one of two sizes, a tie at the other; seed 1: a tie and first.
        assert value(KNOWN[f"F-1 {name} order"], evidence).samples == (0.5, 0.5)
        assert asked == [(setting, 0), (setting, 1)]
    for name, samples in (("hits over", (20, 12.5)), ("loads against", (20, 50))):
        readings = [one for one in KNOWN[f"F-1 {name} LFU"].counters if one.measure is not None]
        (kept,) = (one for one in readings if one.name == "LFU whose counts outlive an eviction")
        assert (kept.always, kept.reading) == (True, True)
        assert kept.measure is not None
        assert kept.measure(evidence).samples == pytest.approx(samples)
    lasting = "LFU whose counts outlive an eviction"
    for name in ("hits over LRU", "loads against LRU", "hits over ARC", "hits over LeCaR"):
        assert lasting not in [one.name for one in KNOWN[f"F-1 {name}"].counters]


@pytest.mark.usefixtures("given")
def test_evictions_are_counted_where_beladys_hit_rate_is_nearest_86(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are those of each seed's own cache size, of 24 and 25 slots."""
    monkeypatch.setattr(counts, "size_for", lambda routing, belady: 24 + routing.seed)
    hits = {24: {"lru": 0.7, "belady": 0.85}, 25: {"lru": 0.75, "belady": 0.875}}
    regrets = {("lru", 24): (0.3, 9.0), ("belady", 24): (0.01, 4.0),
               ("lru", 25): (0.4, 8.0), ("belady", 25): (0.02, 5.0)}  # fmt: skip
    shares = {("lfu", 24): 0.55, ("lfu", 25): 0.6, ("lfu-kept", 24): 0.45, ("lfu-kept", 25): 0.4}
    asked: set[str] = set()

    def rates_at(routing: Any, slots: int) -> Any:
        asked.add(routing.setting)
        return hits[slots]

    def regret_of(routing: Any, name: str, slots: int) -> Any:
        asked.add(routing.setting)
        refetched, idle = regrets[name, slots]
        return SimpleNamespace(refetched=refetched, idle=idle)

    def lru_against(lfu: str, routing: Any, slots: int) -> Any:
        asked.add(routing.setting)
        return SimpleNamespace(share=shares[lfu, slots])

    for name, function in (("rates_at", rates_at), ("regret_of", regret_of),
                           ("lru_against", lru_against)):  # fmt: skip
        monkeypatch.setattr(counts, name, function)
    expected = {
        "LRU hits": (70, 75), "loads": (2, 2), "LRU wanted again": (30, 40),
        "Belady wanted again": (1, 2), "LRU against LFU": (55, 60), "delay": (5, 3),
    }  # fmt: skip
    assert {f"F-5 {name}" for name in expected} == {one for one in KNOWN if one[:3] == "F-5"}
    for name, samples in expected.items():
        found = value(KNOWN[f"F-5 {name}"], evidence)
        assert found.samples == pytest.approx(samples), name
        assert found.conditions.startswith("Qwen3, 24 slots a layer, ")
    assert asked == {"F2"}
    kept, recorded = KNOWN["F-5 LRU against LFU"].counters
    assert kept.measure is not None
    assert recorded.measure is not None
    assert kept.measure(evidence).samples == pytest.approx((45, 40))
    assert asked == {"F2"}
    asked.clear()
    assert recorded.measure(evidence).samples == pytest.approx((55, 60))
    assert asked == {"F1"}
    assert (kept.reading, recorded.reading) == (True, False)


def test_experts_used_by_prompts_of_a_model(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The growth is of each text, as far as both lengths have texts."""
    models = {"OLMoE": "olmoe-1b-7b", "Qwen3": "qwen3-30b-a3b"}
    shares = {("olmoe-1b-7b", 32): [40.0, 50.0, 60.0], ("olmoe-1b-7b", 256): [60.0, 65.0],
              ("qwen3-30b-a3b", 32): [20.0], ("qwen3-30b-a3b", 256): [50.0],
              ("olmoe-1b-7b", 64): [55.0], ("qwen3-30b-a3b", 64): [30.0],
              ("olmoe-1b-7b", 128): [57.0], ("qwen3-30b-a3b", 128): [40.0]}  # fmt: skip
    monkeypatch.setattr(counts, "used", lambda evidence, model, tokens: shares[model, tokens])
    for said, model in models.items():
        for tokens in (32, 64, 128, 256):
            found = value(KNOWN[f"F-7 {said} {tokens}"], evidence)
            assert found.samples == tuple(shares[model, tokens])
            assert (found.badge, found.conditions, found.over) == (
                "counted", "mean of layers", "texts",
            )  # fmt: skip
    grown = value(KNOWN["F-7 OLMoE growth"], evidence)
    assert grown.samples == pytest.approx((1.5, 1.3))
    assert (grown.badge, grown.conditions, grown.over) == (
        "counted", "256 tokens over 32", "texts",
    )  # fmt: skip
    assert value(KNOWN["F-7 Qwen3 growth"], evidence).samples == pytest.approx((2.5,))

"""The field's tables and figures, from pairs, cells and rates by hand."""

from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.field import evictions, exhibits, prefetch_law, profiles
from moebench.harness.reproduce.field import experiments as e
from moebench.harness.reproduce.field.evictions import Rates
from moebench.harness.reproduce.field.prefetch_law import Fit
from moebench.harness.reproduce.field.profiles import Pinned
from tests.harness.reproduce.given import with_runs
from tests.harness.reproduce.shipped import check_words
from tests.harness.reproduce.test_field import paged, pair, placed, routed, run, split


def values(found: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.rows]


def test_the_twenty_clearest_pairs_by_hits(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven systems, each with more hits and more time than the one before, are 21 pairs."""
    runs = [run(10 * 2**n, hits=0.1 + n / 10, overrides={"n": str(n)}) for n in range(7)]
    asked = with_runs(monkeypatch, *runs)
    found = exhibits._hits(evidence)
    assert asked == [e.SPEED]
    assert len(found.rows) == 20
    assert found.rows[0] == {
        "place": "olmoe-1b-7b, a, 50% of the experts", "many": "moe-ondemand (n=6)",
        "few": "moe-ondemand (n=0)", "many_hits": 0.7, "few_hits": 0.1, "ratio": 64,
    }  # fmt: skip
    ratios = [row["ratio"] for row in found.rows]
    assert ratios == sorted(ratios, reverse=True)
    check_words(found)
    with_runs(monkeypatch, run(3, hits=0.12345, overrides={"n": "0"}),
              run(7, hits=0.65437, overrides={"n": "1"}))  # fmt: skip
    (row,) = exhibits._hits(evidence).rows
    assert (row["many_hits"], row["few_hits"], row["ratio"]) == (0.654, 0.123, 2.333)


def test_changes_by_prefetching_beside_the_laws(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(monkeypatch, run(1))
    cells = [pair(), pair(link=12.0, hit_rate=0.12345, after=95.0)]
    monkeypatch.setattr(prefetch_law, "pairs", lambda runs: cells)
    monkeypatch.setattr(prefetch_law, "fit", lambda found: Fit(0.25, 1, 1, 1))
    monkeypatch.setattr(prefetch_law.Pair, "law", lambda self, overlap: overlap + 0.00123)
    found = exhibits._prefetch(evidence)
    assert asked == [e.PREFETCH]
    assert values(found) == [
        ("m", "3 GB/s", 0.8, 10, 0.25), ("m", "12 GB/s", 0.123, -5, 0.25),
    ]  # fmt: skip
    check_words(found)


def test_hits_with_profiles_in_percent(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams before totals at each share; totals have no LRU."""
    monkeypatch.setattr(profiles, "of_streams", lambda evidence, share: [
        Pinned("m", "a", share, share, 0.61239, 0.5, 0.4),
    ])  # fmt: skip
    monkeypatch.setattr(profiles, "of_totals", lambda evidence, share: [
        Pinned("t", "b", share, share, 0.7, 0.2, None),
    ] if share == 0.5 else [])  # fmt: skip
    found = exhibits._profiles(evidence)
    assert values(found) == [
        ("m", "a", 0.125, 12.5, 61.2, 50, 40), ("m", "a", 0.25, 25, 61.2, 50, 40),
        ("m", "a", 0.5, 50, 61.2, 50, 40), ("t", "b", 0.5, 50, 70, 20, None),
    ]  # fmt: skip
    assert found.badge == "counted"
    check_words(found)


def test_placements_by_both_ways_and_times(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(monkeypatch, *placed(0.25, 10, 12, ttft=510))
    found = exhibits._placement(evidence)
    assert asked == [e.PLACEMENT]
    # 510 + 255 · 12 against 255 · 10: 40 % more.
    assert values(found) == [
        (0.25, 20, "swaps", "TPOT"), (0.25, 40, "swaps", "prompt and 256 tokens"),
        (0.25, 100, "updates", "TPOT"), (0.25, 100, "updates", "prompt and 256 tokens"),
    ]  # fmt: skip
    check_words(found)


def test_hits_of_evictions_in_percent(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {name: 0.5 + n / 3000 for n, name in enumerate(evictions.CAUSAL)}
    monkeypatch.setattr(evictions, "rates", lambda evidence: [Rates("m a", 0.25, rates)])
    found = exhibits._evictions(evidence)
    (row,) = found.rows
    assert (row["stream"], row["share"], row["best"]) == ("m a", 0.25, evictions.CAUSAL[-1])
    assert [row[name] for name in evictions.CAUSAL] == [
        round(50 + n / 30, 1) for n in range(len(rates))
    ]
    check_words(found)


def test_ways_to_use_memory_and_fronts_and_splits(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(monkeypatch, *paged(100.456, 110, 150))
    pages = exhibits._pages(evidence)
    assert values(pages) == [
        (0.375, "learned eviction", 100.46), (0.375, "LRU on the device", 110),
        (0.375, "page cache", 150),
    ]  # fmt: skip
    with_runs(
        monkeypatch, *routed("expert-cache", (0.0, 0.0, 100), (0.3, 1e-2, 80.12345)),
        *routed("cache-prior", (0.0, 0.0, 100), (0.5, 1e-6, 90), (1.0, 2e-6, 70)),
    )  # fmt: skip
    fronts = exhibits._fronts(evidence)
    # Lossless cells, of a KL up to 1e-6, have no place on a logarithmic axis.
    assert values(fronts) == [(1e-2, 80.123, "50%", "α"), (2e-6, 70, "50%", "λ")]
    with_runs(monkeypatch, *split(40.96, 12.34567, 10), *split(20.48, 8, 10))
    splits = exhibits._splits(evidence)
    assert values(splits) == [(1, 1.2346, "olmoe-1b-7b"), (2, 0.8, "olmoe-1b-7b")]
    for one in (pages, fronts, splits):
        check_words(one)
    assert asked == [e.PAGES]

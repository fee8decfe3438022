"""Hit rates, wins and collisions of evictions on streams made by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.reproduce.field import evictions, recorded
from moebench.harness.reproduce.field.evictions import Rates
from moebench.results.store import Store
from moebench.substrate.analysis.cache_replay import Replayed


def stream(
    experts: int, *tokens: Sequence[Sequence[int]], model: str = "m", workload: str = "a"
) -> recorded.Stream:
    """Return a stream of one sequence: the experts of each token and layer."""
    return recorded.Stream(model, workload, experts, (np.array(tokens, np.int64),))


#: Top-1 of eight experts in two layers, and top-2 of eight in one layer.
NARROW = stream(8, *([[n * n % 7], [n * 5 % 3]] for n in range(30)))
WIDE = stream(8, *([[n % 5, 5 + n % 3]] for n in range(30)), workload="wide")


def with_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *streams: recorded.Stream, quick: bool = True
) -> Evidence:
    monkeypatch.setattr(evictions, "streams", lambda evidence: streams)
    return Evidence(Store(tmp_path), None, tmp_path, quick)


def least_recent(one: recorded.Stream, slots: int) -> float:
    """Return LRU's hit rate on a top-1 stream, with a list for each layer."""
    hits, total = 0, 0
    for layer in one.sequences[0][:, :, 0].T.tolist():
        held: list[int] = []
        for expert in layer:
            total += 1
            if expert in held:
                hits += 1
                held.remove(expert)
            held = [*held, expert][-slots:]
    return hits / total


def test_rates_of_all_policies_at_sizes_that_leave_a_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of as many experts as a token uses leaves none: 1 of 8 for top-1, 2 for top-2."""
    full = with_streams(tmp_path, monkeypatch, NARROW, WIDE, quick=False)
    found = evictions.rates(full)
    assert [(one.stream, one.share) for one in found] == [
        ("m a", 0.25), ("m a", 0.5), ("m wide", 0.5),
    ]  # fmt: skip
    assert all(tuple(one.hits) == evictions.CAUSAL for one in found)
    assert [one.hits["lru"] for one in found[:2]] == [
        pytest.approx(least_recent(NARROW, slots)) for slots in (2, 4)
    ]
    quick = with_streams(tmp_path, monkeypatch, NARROW, WIDE)
    assert evictions.rates(quick) == found[:1]
    with pytest.raises(MissingEvidenceError, match="no stream leaves a cache a choice"):
        evictions.rates(with_streams(tmp_path, monkeypatch, WIDE))


def test_a_cache_of_a_share_of_the_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.3 of 8 experts in 2 layers: 2 in each, or 4.8 in one pool, which are 5."""
    seen: list[Any] = []

    def replay(policy: Any, steps: Any, shape: Any, slots: int, scope: str) -> str:
        seen.append((slots, scope, getattr(policy, "reading", None)))
        assert (shape.num_layers, shape.num_experts, shape.top_k) == (2, 8, 1)
        assert steps[0][:3] == [(0, [0]), (1, [0]), (0, [1])]
        return "replayed"

    monkeypatch.setattr(evictions, "replay", replay)
    assert str(evictions.counted(NARROW, "lru", 0.3)) == "replayed"
    evictions.counted(NARROW, "least-stale", 0.3, "global", reading="interval")
    assert seen == [(4, "layer", None), (5, "global", "interval")]


def test_collisions_end_one_token_after_an_eviction() -> None:
    """Two slots for two layers: 0 comes back two steps after it left, and 1 after four."""
    tokens = [[[0], [0]], [[1], [1]], [[0], [0]], [[2], [2]], [[1], [1]]]
    assert evictions.collisions(stream(20, *tokens), "lru") == 2


def test_the_last_eviction_of_an_expert_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of (step, victim, incoming): 1 comes back after one step, 3 after two, 2 after four."""
    evicted = [(1, 1, 9), (2, 2, 1), (3, 3, 8), (5, 1, 3), (6, 4, 2), (7, 5, 1)]
    told: list[Any] = []

    def counted(*of: Any, **options: str) -> Replayed:
        told.append((of[1:], options))
        return Replayed([], [], evicted)

    monkeypatch.setattr(evictions, "counted", counted)
    assert evictions.collisions(NARROW, "least-stale", reading="layer") == 3
    assert told == [(("least-stale", 0.05, "global"), {"reading": "layer"})]


def test_fewer_collisions_of_each_recording_of_olmoe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve against three, and nine against none, which counts as one."""
    of_both = {("x", "lru"): 12, ("x", "least-stale"): 3, ("y", "lru"): 9, ("y", "least-stale"): 0}
    readings: list[str] = []

    def collisions(one: recorded.Stream, name: str, **options: str) -> int:
        readings.extend(options.values())
        return of_both[one.workload, name]

    monkeypatch.setattr(evictions, "collisions", collisions)
    olmoe = [stream(8, [[0]], model="olmoe-1b-7b", workload=name) for name in "xy"]
    found = evictions.fewer_collisions("interval")(
        with_streams(tmp_path, monkeypatch, NARROW, *olmoe)
    )
    assert (found.samples, found.badge, found.over) == ((4, 9), "counted", "streams")
    assert readings == ["interval", "interval"]
    assert found.conditions == "5% of OLMoE's experts in one pool, on demand, reading interval"
    with pytest.raises(MissingEvidenceError, match="no recording of olmoe-1b-7b"):
        evictions.fewer_collisions("layer")(with_streams(tmp_path, monkeypatch, NARROW))


RATES = [
    Rates("a", 0.25, {"lru": 0.5, "lfru": 0.6, "arc": 0.1}),
    Rates("a", 0.5, {"lru": 0.9, "lfru": 0.8, "arc": 0.1}),
    Rates("b", 0.25, {"lru": 0.5, "lfru": 0.2, "arc": 0.3}),
    Rates("b", 0.5, {"lru": 0.7, "lfru": 0.6, "arc": 0.9}),
    Rates("c", 0.25, {"lru": 0.5, "lfru": 0.4, "arc": 0.5}),
]


def test_streams_won_at_half_of_the_sizes_or_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evictions, "rates", lambda evidence: RATES)
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    shares = {"lru": 1, "lfru": 1 / 3, "arc": 2 / 3}
    for name, share in shares.items():
        found = evictions.first(name)(evidence)
        assert (found.value, found.badge) == (pytest.approx(share, rel=1e-5), "counted")
        said = f"{round(3 * share)} of 3 streams, a cache for each layer; exact count"
        assert found.conditions == said


def test_the_policies_with_most_hits_by_size_and_lfrus_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter: 0, 30 and 10 points below the best; a half: 10 and 30."""
    monkeypatch.setattr(evictions, "rates", lambda evidence: RATES)
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    assert evictions.turns(evidence) == (
        "Most hits, in streams: at 0.25 of the experts lru 2, lfru 1 of 3 (LFRU on average 13.3 "
        "points below the best); at 0.5 of the experts lru 1, arc 1 of 2 (LFRU on average 20.0 "
        "points below the best)."
    )

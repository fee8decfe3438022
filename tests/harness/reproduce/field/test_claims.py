"""The claims of this module are those of the results that ship; figures of data made by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.field import evictions, prefetch_law, profiles
from moebench.harness.reproduce.field.claims import CLAIMS
from moebench.harness.reproduce.field.experiments import PREFETCH
from moebench.results.claims import Measured
from tests.harness.reproduce.given import by_experiment
from tests.harness.reproduce.shipped import check

KNOWN = {claim.id: claim for claim in CLAIMS}


def test_claims_are_those_that_ship() -> None:
    check("field", CLAIMS)


def measured(name: str, evidence: Evidence) -> Measured:
    measure = KNOWN[name].measure
    assert measure is not None
    return measure(evidence)


def test_the_law_of_prefetching_is_judged_by_signs_and_by_its_error(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = SimpleNamespace(signs=0.9, held_out=1.5, overlap=0.456, error=0.71)
    monkeypatch.setattr(prefetch_law, "pairs", lambda runs: ["a pair", "another"])
    monkeypatch.setattr(prefetch_law, "fit", lambda found: law)
    by_experiment(monkeypatch, {PREFETCH.name: [{"badge": "estimate"}]})
    for name, figure in (("R-2 law", 0.9), ("R-2 error", 1.5)):
        found = measured(name, evidence)
        assert (found.samples, found.badge) == ((figure,), "estimate"), name
        assert found.conditions == (
            "2 cells; O = 0.46 of a layer's time, fitted; error of all cells 0.71 points of TPOT, "
            "of held-out link rates 1.5"
        )


def test_profiles_are_compared_with_chance_with_their_own_texts_and_with_lru(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the uses are hits, 70 % with a profile of the texts themselves, 60 % with LRU."""
    rows = [SimpleNamespace(other=0.5, own=0.7, chance=0.25, lru=0.6)] * 3
    monkeypatch.setattr(profiles, "of_streams", lambda evidence, share: rows)
    monkeypatch.setattr(profiles, "by_model", lambda given, figure: {"model": figure(given)})
    figures = {"R-3 helps": 2.0, "R-3 carries over": 100 * 0.25 / 0.45, "R-3 against LRU": -10}
    for name, figure in figures.items():
        found = measured(name, evidence)
        assert found.samples == pytest.approx((figure,), rel=1e-5), name
        assert (found.badge, found.over) == ("counted", "models")
        assert found.conditions == f"3 streams, 25% pinned: model {figure:.3g}"


def test_evictions_are_those_of_one_policy_or_reading(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LFRU wins at half of the sizes in two streams of three; LRU has a hundred collisions."""
    won = {"lfru": {"a": 0.5, "b": 0.4, "c": 1.0}}
    monkeypatch.setattr(evictions, "rates", lambda evidence: "rates")
    monkeypatch.setattr(evictions, "wins", lambda found, name: won[name])
    found = measured("R-5 LFRU", evidence)
    assert found.value == pytest.approx(2 / 3, rel=1e-5)
    assert found.conditions == "2 of 3 streams, a cache for each layer; exact count"
    fewer = {"tinyserve": 10, "layer": 20, "interval": 0}

    def collisions(stream: Any, name: str, reading: str = "") -> int:
        assert stream.model == "olmoe-1b-7b"
        return {"lru": 100, "least-stale": fewer.get(reading, -1)}[name]

    streams = [SimpleNamespace(model=name) for name in ("olmoe-1b-7b", "other")]
    monkeypatch.setattr(evictions, "streams", lambda evidence: streams)
    monkeypatch.setattr(evictions, "collisions", collisions)
    for reading, figure in (("tinyserve", 10), ("layer", 5), ("interval", 100)):
        found = measured(f"R-5 Least-Stale {reading}", evidence)
        assert (found.samples, found.over) == ((figure,), "streams"), reading
        assert found.conditions.endswith(f"% of OLMoE's experts in one pool, on demand, reading "
                                         f"{reading}")  # fmt: skip

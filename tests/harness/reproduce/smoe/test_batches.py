"""The claims of this module are those of the results that ship; means of counts by hand."""

from pathlib import Path

import pytest

from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.smoe import batches
from moebench.harness.reproduce.smoe.batches import CLAIMS, Substitutes
from moebench.harness.reproduce.smoe.experiments import BATCHES, REFINED, REFINEMENT, UNREFINED
from moebench.results.store import Store
from tests.harness.reproduce.given import by_experiment
from tests.harness.reproduce.shipped import check
from tests.harness.reproduce.test_smoe import document


def test_claims_are_those_that_ship() -> None:
    check("smoe", CLAIMS)


def test_counts_are_means_over_settings_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of replaced experts 25 and 75 % in seed 0, 10 % in seed 1."""
    counts = {
        ("S1", 0): Substitutes(by_row=1, by_resident=3, absent=10),
        ("S1", 1): Substitutes(by_row=1, by_resident=9, absent=4),
        ("S2", 0): Substitutes(by_row=3, by_resident=1, absent=6),
    }
    monkeypatch.setattr(batches, "substitutes", lambda evidence: counts)
    monkeypatch.setattr(Evidence, "runs", lambda self, *of: Runs([document()]))
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    found = batches.of_batches(batches.of_replaced)(evidence)
    assert (found.samples, found.badge) == ((50, 10), "counted")
    assert found.conditions.endswith("; mean over S1-S3")
    absent = batches.of_batches(batches.of_absent)(evidence)
    assert absent.samples == pytest.approx((30, 25))


def test_experts_off_the_device_are_loaded_or_on_the_host() -> None:
    runs = []
    for loads, host in ((10, 4), (20, 6)):
        one = document()
        one["metrics"]["experts"] = {"decode": {"loads": loads, "host": host, "hits": 99}}
        runs.append(one)
    assert batches.off_device(Runs(runs)) == 20


def test_claims_are_of_other_rows_and_of_the_refinement(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TPOT is 20 % shorter on S1 and 10 % longer on S2, with 30 and 10 % fewer experts."""
    known = {claim.id: claim for claim in CLAIMS}
    counts = {("S1", 0): Substitutes(by_row=1, by_resident=3, absent=10)}
    monkeypatch.setattr(batches, "substitutes", lambda evidence: counts)
    refined = []
    for setting, *both in (("S1", (10, 100), (8, 70)), ("S2", (10, 100), (11, 90))):
        for (tpot, loads), options in zip(both, (UNREFINED, REFINED), strict=True):
            one = document(setting=setting, tpot=tpot, options=options)
            one["metrics"]["experts"] = {"decode": {"loads": loads - 5, "host": 5}}
            refined.append(one)
    by_experiment(monkeypatch, {BATCHES.name: [document()], REFINEMENT.name: refined})
    figures = {"S-16 from other rows": 25, "S-16 refined TPOT": -5, "S-16 refined misses": -20}
    assert known.keys() == figures.keys()
    for name, figure in figures.items():
        measure = known[name].measure
        assert measure is not None
        assert measure(evidence).samples == pytest.approx((figure,), rel=1e-5), name
    absent, _ = known["S-16 from other rows"].counters
    assert absent.measure is not None
    assert absent.measure(evidence).samples == pytest.approx((10,))

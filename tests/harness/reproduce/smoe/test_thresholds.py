"""Accuracy by α on rows by hand, and how well a curve of TPOT is fitted."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.smoe import thresholds
from tests.harness.reproduce.test_smoe import document
from tests.results.tables import row


def scores(workload: str, generated: bool = True, **by_alpha: float) -> list[Any]:
    """Return rows of a workload whose scores are given by α in percent, as in ``at_35``."""
    return [
        row(workload=workload, generated=generated, alpha=int(alpha.removeprefix("at_")) / 100,
            score=score, stderr=2.0, n=50)
        for alpha, score in by_alpha.items()
    ]  # fmt: skip


TABLE = [
    *scores("facts", at_0=60, at_35=57, at_40=50), *scores("passages", at_0=50, at_35=54, at_40=50),
    *scores("equations", at_0=98, at_35=98, at_40=98), *scores("words", at_0=4, at_35=0, at_40=0),
    *scores("gsm8k", generated=False, at_0=40, at_35=38, at_40=30),
]  # fmt: skip


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "read_table", lambda file: TABLE)


def test_rows_of_generated_families_or_of_one_workload() -> None:
    assert {one.workload for one in thresholds.our_rows("S1", None)} == {
        "facts", "passages", "equations", "words",
    }  # fmt: skip
    assert [one.score for one in thresholds.our_rows("S1", "gsm8k")] == [40, 38, 30]
    assert thresholds.our_rows("S2", None) == []


def test_a_sample_for_each_workload_that_can_show_a_loss(evidence: Evidence) -> None:
    """Above 0.35: -10 less the mean of 0 and -3, and 0 less that of 0 and 4."""
    found = thresholds.accuracy("S1", None, thresholds.above)(evidence)
    assert (found.samples, found.over, found.badge) == ((-8.5, -2), "workloads", "counted")
    assert found.conditions == (
        "facts passages, 50 questions each, scale model; the committed table of moebench accuracy; "
        "families at a ceiling or floor left out"
    )
    one = thresholds.accuracy("S1", "gsm8k", thresholds.above)(evidence)
    assert one.samples == (-9,)
    assert one.conditions.startswith("gsm8k, 50 questions each")


def test_the_largest_change_is_of_the_mean_of_all_rows(evidence: Evidence) -> None:
    """At 0.35 the mean of facts and passages is 55.5, a half point more; 0.4 is beyond."""
    found = thresholds.accuracy("S1", None, thresholds.largest)(evidence)
    assert (found.samples, found.badge) == ((0.5,), "counted")
    assert found.conditions.endswith("left out; one figure: a maximum over α has no sample")
    assert thresholds.largest({0.0: 0, 0.3: -2, 0.35: 1, 0.36: 9}) == 2
    assert thresholds.above({0.0: 0, 0.35: -4, 0.5: -6}) == -4
    assert thresholds.changes(TABLE[:3]) == {0.0: 0, 0.35: -3, 0.4: -10}


def test_what_cannot_show_a_loss_says_why(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = thresholds.accuracy("S1", "gsm8k", thresholds.largest)
    monkeypatch.setattr(thresholds, "read_table", lambda file: [])
    with pytest.raises(MissingEvidenceError) as missing:
        measure(evidence)
    assert str(missing.value).endswith(
        ".csv has no row of S1 gsm8k; type: moebench accuracy --settings S1 --data-dir DIR"
    )
    floor = [row(alpha=0.35, score=90.0), row(alpha=0.0, score=28.0, chance=25.0, n=50, stderr=2.0)]
    monkeypatch.setattr(thresholds, "read_table", lambda file: floor)
    with pytest.raises(MissingEvidenceError) as missing:
        measure(evidence)
    assert str(missing.value).startswith(
        "deepseek-moe-16b's scale model answers 28 % of gsm8k (50 questions; chance 25 %): no "
        "better than a guess, so that a loss could not be seen; needs"
    )
    full = scores("gsm8k", False, at_0=99, at_35=99)
    monkeypatch.setattr(thresholds, "read_table", lambda file: full)
    with pytest.raises(MissingEvidenceError, match="answers more than 97 % of gsm8k: at the ceili"):
        measure(evidence)


def test_the_edge_of_a_floor_is_two_standard_errors() -> None:
    at = SimpleNamespace(alpha=0.0, score=29.0, chance=25.0, stderr=2.0)
    assert thresholds.at_floor([at])  # type: ignore[list-item]
    at.score = 29.1
    assert not thresholds.at_floor([at])  # type: ignore[list-item]
    assert thresholds.at_floor([SimpleNamespace(**vars(at) | {"alpha": 0.3})])  # type: ignore[list-item]
    none = SimpleNamespace(alpha=0.0, score=4.1, chance=None, stderr=2.0)
    assert not thresholds.at_floor([none])  # type: ignore[list-item]


def test_curves() -> None:
    alphas = np.array([0.0, 0.3, 0.6])
    assert thresholds.linearity(alphas, np.array([5.0, 5.0, 5.0])) == 0
    # Times 0 3 0: the line is 1, the squares beyond it 1 4 1 of 1 4 1 around the mean.
    assert thresholds.linearity(alphas, np.array([0.0, 3.0, 0.0])) == pytest.approx(0)
    # Times 0 1 1: the line 1/6 4/6 7/6 leaves squares of 1/36 4/36 1/36, of 2/3 around the mean.
    assert thresholds.linearity(alphas, np.array([0.0, 1.0, 1.0])) == pytest.approx(0.75)
    assert thresholds.fall(alphas, np.array([4.0, 9.0, 3.0])) == pytest.approx(-25)
    # A straight line is fitted exactly, whatever point is left out.
    many = np.linspace(0, 0.6, 7)
    straight = 10 - 10 * many
    assert thresholds.pick_error(many, straight) <= 0.005
    # No fit without it falls as low as the middle point: the largest α is picked, 0.3 too large.
    fallen = straight.copy()
    fallen[3] = -50
    assert thresholds.pick_error(many, fallen) >= 0.3 / 5
    runs = Runs([document(alpha=alpha, tpot=10 - alpha) for alpha in (0.5, 0.0)])
    found = thresholds.of_curve(thresholds.fall, "S1")(runs)
    assert found == pytest.approx(-5)

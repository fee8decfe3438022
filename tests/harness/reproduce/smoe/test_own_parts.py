"""The claims of this module are those of the results that ship; figures of runs made by hand."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.smoe import importance
from moebench.harness.reproduce.smoe.experiments import (
    ABLATION,
    FROM_RESIDUAL,
    PREDICTION,
    STEPS,
    TABLE_I,
)
from moebench.harness.reproduce.smoe.instrumented import Importance, Watched
from moebench.harness.reproduce.smoe.own_parts import CLAIMS
from moebench.results.store import Store
from tests.harness.reproduce.given import by_experiment, with_runs
from tests.harness.reproduce.shipped import check
from tests.harness.reproduce.test_smoe import document


def test_claims_are_those_that_ship() -> None:
    check("smoe", CLAIMS)


#: By step: TPOT, cache ratio, and busy times of link and host, on S1.
PARTS = {
    "base, misses on the host": (7, 0.2, 4, 9), "base, misses loaded": (16, 0.25, 10, 1),
    "base, first in, first out": (20, 0.1, 10, 1), "+CE": (8, 0.3, 12, 1), "+CR": (4, 0.6, 6, 2),
    "+Pre": (3, 0.9, 9, 3), "+BA": (2, 0.45, 4, 3),
}  # fmt: skip


def runs() -> list[dict[str, Any]]:
    """Return the runs of all steps on two settings, and predictions from the residual stream.

    On S3 all times are twice those of S1, but for the host's with all parts, which is 2.
    """
    made = []
    for setting, times in (("S1", 1), ("S3", 2)):
        for name, (tpot, ratio, link, host) in PARTS.items():
            host = 2 if (setting, name) == ("S3", "+BA") else host * times
            made.append(document(setting=setting, tpot=tpot * times, options=STEPS[name],
                                 ratio=ratio, link=link * times, host=host))  # fmt: skip
        made.append(document(setting=setting, options=FROM_RESIDUAL, prefetch=(10, 5, 6)))
    return made


#: Figures by hand: changes in percent, the same on both settings but for the gap.
FIGURES = {
    "S-5 +CE TPOT, host base": 100 / 7, "S-5 +CE TPOT, loaded base": -50,
    "S-5 +CE ratio, host base": 50, "S-5 +CE ratio, loaded base": 20, "S-5 +CR TPOT": -50,
    "S-5 +CR ratio": 100, "S-5 +Pre TPOT": -25, "S-5 +Pre ratio complete": 50,
    "S-5 +Pre ratio begun": 100 * (1.0 / 0.7 - 1), "S-5 +BA TPOT": -100 / 3,
    "S-5 +BA ratio complete": -50, "S-5 +BA ratio begun": -45,
    "S-5 every step, host base": 3 / 4, "S-5 every step, loaded base": 1,
    "S-7 link": 50, "S-7 TPOT": -25, "S-7 both": 1,
    # Of ten prefetched experts eight are top-score; of the other two, one is active.
    "S-8 top": 80, "S-8 active": 50, "S-8 against the residual": 80 - 50,
    # 6 and 1 ms of four tokens on S1, 12 and 6 on S3: a sixth and a half.
    "S-9 gap": 100 * ((1 / 6 + 1 / 2) / 2 - 1),
    "S-9 covered": (3 / 4 + 2 / 8) / 2, "S-9 third in total": 2 / 8,
}  # fmt: skip

#: What a claim adds to the conditions of its runs.
SAID = {"S-5 every": "", "S-7 both": "", "S-8 active": "; S1-S3 together",
        "S-9 third in total": "; S3"}  # fmt: skip


def test_figures_of_steps_predictions_and_balance_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(monkeypatch, *runs())
    evidence = Evidence(Store(tmp_path), None, tmp_path, True)
    known = {claim.id: claim for claim in CLAIMS}
    left_out = ("S-6 ", "S-10 ")  # they count in runs that are carried out again
    assert {n for n in known if not n.startswith(left_out)} == {*FIGURES, "S-9 third"}
    for name, figure in FIGURES.items():
        asked.clear()
        measure = known[name].measure
        assert measure is not None
        found = measure(evidence)
        assert found.value == pytest.approx(figure, rel=1e-5), name
        assert found.badge == "estimate"
        more = next((said for of, said in SAID.items() if name.startswith(of)),
                    "; mean over S1-S3")  # fmt: skip
        assert found.conditions == (
            f"2 prompts of 3 new tokens; passages; model routing, hf-eager{more}"
        ), name
        needed = PREDICTION if name.startswith("S-8") else ABLATION
        assert (asked, known[name].needs) == ([needed], (needed,)), name


def test_table_1_is_read_by_its_parts(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of 40, 35 and 25 %: the first is 5 points above the larger of the others."""
    shares = {"low-score loading": 40.0, "top-score loading": 35.0, "GPU computing": 25.0}
    monkeypatch.setattr(importance, "table_1", lambda evidence: {0: shares})
    by_experiment(monkeypatch, {TABLE_I.name: [document(setting="S3")]})
    known = {claim.id: claim for claim in CLAIMS}
    for name, figure in (*shares.items(), ("order", 5.0)):
        claim = known[f"S-10 {name}"]
        assert claim.measure is not None
        assert claim.measure(evidence).samples == (figure,), name
        assert claim.needs == (TABLE_I,)


def test_shares_off_the_device_are_of_one_kind_and_two_steps(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each step, as many of a hundred experts are off the device as stated here."""
    off = {"base, misses on the host": (80, 60), "base, misses loaded": (50, 70),
           "base, first in, first out": (90, 95), "+CE": (40, 45), "+CR": (30, 9),
           "+Pre": (6, 8), "+BA": (1, 2)}  # fmt: skip

    def watch(evidence: Evidence, experiment: Any, **options: str) -> list[Watched]:
        assert experiment is ABLATION
        (name,) = (name for name, given in STEPS.items() if given == options)
        top, low = off[name]
        counts = Importance(top=100, low=100, top_absent=top, low_absent=low)
        return [Watched("", "S1", {}, 0, 2, counts)]

    monkeypatch.setattr(importance, "watch", watch)
    by_experiment(monkeypatch, {ABLATION.name: [document()]})
    known = {claim.id: claim for claim in CLAIMS if claim.id.startswith("S-6 ")}
    figures = {
        "S-6 +CE top": -50, "S-6 +CE low": -25, "S-6 +CR low": -80, "S-6 +Pre top": -80,
        "S-6 +CE top less low": -25,
    }  # fmt: skip
    assert known.keys() == figures.keys()
    for name, figure in figures.items():
        measure = known[name].measure
        assert measure is not None
        assert measure(evidence).samples == pytest.approx((figure,)), name


def test_other_hosts_are_tried_whether_or_not_the_third_is_reproduced() -> None:
    (third,) = (claim for claim in CLAIMS if claim.id == "S-9 third")
    assert [one.always for one in third.counters] == [True, True]

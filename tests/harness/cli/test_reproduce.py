"""``moebench reproduce`` on a paper of one claim and one figure: what is run, written and said."""

import json
import re
from pathlib import Path

import pytest

from moebench.harness.reproduce import smoe
from moebench.harness.reproduce.bands import Bands
from moebench.harness.reproduce.claim import Claim, PaperClaims, Show
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.results.claims import Axis, Band, Exhibit, Measured
from moebench.results.store import Store
from tests.harness.commands import call

pytestmark = pytest.mark.usefixtures("tiny_models")

CELLS = {
    "common": {"setting": "S3", "workload": "arithmetic", "prompts": 1, "new_tokens": 2},
    "product": {"system": ["smoe", "moe-ondemand"]},
}
PAIR = Experiment("pair", CELLS)


def gain(evidence: Evidence) -> Measured:
    smoe, lru = (evidence.runs(PAIR).of(system=name)[0] for name in CELLS["product"]["system"])
    ratio = smoe["metrics"]["tpot_ms"]["mean"] / lru["metrics"]["tpot_ms"]["mean"]
    return Measured.of([100 * (1 - ratio)], "estimate", "simulated")


def picture(evidence: Evidence) -> Exhibit:
    rows = [{"system": run["spec"]["system"], "ms": run["metrics"]["tpot_ms"]["mean"]}
            for run in evidence.runs(PAIR)]  # fmt: skip
    return Exhibit(
        id="smoe-fig-1", place="Fig. 1", title="TPOT", form="bars",
        x=Axis(field="system", title="system"), y=Axis(field="ms", title="ms"), rows=rows,
        badge="estimate",
    )  # fmt: skip


@pytest.fixture(autouse=True)
def paper(monkeypatch: pytest.MonkeyPatch) -> None:
    bands = Bands(Band(low=-1000), Band(low=-2000), "any gain")
    claim = Claim("S-1", "Fig. 9", "TPOT less", 20, "%", bands, gain, (PAIR,))
    shows = (Show(picture, (PAIR,)),)
    monkeypatch.setattr(smoe, "PAPER", PaperClaims("smoe", "SMoE", (claim,), shows))


@pytest.mark.slow
def test_claims_are_measured_once_written_and_shown(here: Path) -> None:
    planned = call("reproduce", "smoe", "--dry-run")
    assert planned.err.startswith("2 cells, 2 to run, ")
    assert not (here / ".moebench").exists()
    shown = call("reproduce", "smoe", "--jobs", "1", "--figures", "figures")
    assert shown.code == 0, shown.err
    assert "S-1" in shown.out
    assert "reproduced" in shown.out
    assert "1 claim: 1 reproduced with evidence" in shown.err
    assert {file.suffix for file in Path("figures").iterdir()} == {".svg", ".pdf"}
    store = Store(Path(".moebench"))
    assert len(store.runs()) == 2
    assert len(list(Path(".moebench/samples").iterdir())) == 2, "claims read single samples"
    written = json.loads(Path(".moebench/claims/smoe.json").read_text())
    assert [claim["verdict"] for claim in written["claims"]] == ["reproduced"]
    again = call("reproduce", "smoe", "--jobs", "1", "--quick", "--json", "--out", "elsewhere")
    assert len(store.runs()) == 2
    assert "with fewer prompts (--quick)" in again.err
    (result,) = again.json
    assert result["claims"] == written["claims"]
    assert Path("elsewhere/smoe.json").exists()
    assert re.match(r"2 cells, 0 to run, about \d s: ", call("reproduce", "smoe", "--dry-run").err)


@pytest.mark.slow
def test_a_dry_run_says_what_its_estimate_rests_on(here: Path) -> None:
    assert ": 2 cells from constants" in call("reproduce", "smoe", "--dry-run").err
    call("reproduce", "smoe", "--jobs", "1")
    written = json.loads(Path(".moebench/claims/smoe.json").read_text())
    (cells, seconds, _) = written["provenance"]["costs"]["experiments"]["pair"]["full"]
    assert cells == 2
    assert seconds > 0
    again = call("reproduce", "smoe", "--dry-run", "--store", "other", "--out", ".moebench/claims")
    made = written["provenance"]["created"][:10]
    assert "2 to run, about " in again.err
    assert f": 2 cells by the times of {made} (" in again.err
    assert "0 cells from constants" in again.err


@pytest.mark.slow
def test_markdown_has_the_verdicts_and_what_they_mean(here: Path) -> None:
    text = call("reproduce", "smoe", "--jobs", "1", "--markdown").out
    assert "| S-1 | TPOT less | 20 % |" in text
    assert "**1 claim: 1 reproduced with evidence.**" in text
    assert "### Fig. 9" in text
    assert "Bands were written down before the runs" in text


@pytest.mark.parametrize("option", ["--store", "--out", "--figures"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(
    here: Path, option: str
) -> None:
    Path("taken").write_text("a file")
    called = call("reproduce", "smoe", option, "taken")
    assert called.code == 2
    assert "taken" in called.err
    assert len(called.err.splitlines()) == 1
    assert not Path(".moebench/runs.sqlite").exists()

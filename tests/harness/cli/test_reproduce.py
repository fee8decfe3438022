"""``moebench reproduce`` on a paper of one claim and one figure: what is run, written and said."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from moebench.harness import extras
from moebench.harness.cli import reproduce
from moebench.harness.reproduce import costs, equal_memory, expected, run_claims, smoe
from moebench.harness.reproduce.bands import Bands
from moebench.harness.reproduce.claim import Claim, PaperClaims, Show
from moebench.harness.reproduce.evidence import Evidence, Experiment
from moebench.harness.run.rules import resolve
from moebench.harness.sweep import execute, forecast, progress
from moebench.harness.sweep.worker import Job
from moebench.reports import reproduction
from moebench.reports.figures import exhibits
from moebench.reports.sections import claims
from moebench.results.claims import (
    EQUAL_MEMORY,
    Axis,
    Band,
    ClaimResult,
    Exhibit,
    Measured,
    PaperResult,
    Verdict,
    read,
    read_exhibit,
    write,
)
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


# ----------------------------------------------------------------------------- with fakes


def result(paper: Any, **more: Any) -> PaperResult:
    """Return results of a paper of one claim, which is reproduced."""
    claim = ClaimResult(
        id=f"{paper} 1", place="Fig. 9", statement="TPOT less", paper=20, unit="%",
        reproduced=Band(low=10), direction=None, why="any gain",
        measured=Measured.of([30], "estimate", "simulated"), verdict=Verdict.REPRODUCED,
    )  # fmt: skip
    given = {"title": paper.upper(), "quick": False, "provenance": {"commit": "c1"}} | more
    return PaperResult(paper=paper, claims=(claim,), **given)


class Fakes:
    """Replaces everything that runs cells or measures, and notes what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: dict[str, Any] = {}
        self.shown: Any = None
        self.exhibit: Exhibit | None = None
        fakes = self

        class Meter:
            def timed(self, paper: Any) -> Any:
                return ("timed", paper.paper)

            def watched(self, board: Any) -> Any:
                return ("watched", board)

            def costs(self, chosen: Any, evidence: Any, found: Any, earlier: Any) -> Any:
                fakes.asked["costs"] = ([p.paper for p in chosen], evidence, found, earlier)
                return {one.paper: {"of": one.paper} for one in found}

        def measure(papers: Any, evidence: Any, context: Any) -> list[PaperResult]:
            self.asked["measure"] = (papers, evidence, context)
            self.shown = context.board(["a job", "another"])
            return [result(name) for _, name in papers]

        def exhibit(show: Any, evidence: Any, context: Any) -> Any:
            self.asked["exhibit"] = (show, evidence, context)
            return self.exhibit

        monkeypatch.setattr(costs, "Meter", Meter)
        monkeypatch.setattr(run_claims, "reproduce", measure)
        monkeypatch.setattr(run_claims, "exhibit", exhibit)
        monkeypatch.setattr(
            execute, "local_workers", lambda *given, **more: ("workers", given, more)
        )
        monkeypatch.setattr(progress, "board", lambda forecast: ("board", forecast))

        def forecast_of(jobs: Any, store: Store, planned: Any, processes: int) -> Any:
            self.asked["forecast"] = (jobs, store, planned.data_dir, processes)
            return "about 3 min"

        monkeypatch.setattr(progress, "forecast_of", forecast_of)
        monkeypatch.setattr(reproduce, "_known", lambda folder: {"known in": folder})
        times = iter([100.0, 225.0])
        monkeypatch.setattr("time.monotonic", lambda: next(times, 225.0))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(monkeypatch)


def test_a_paper_is_measured_with_the_options_and_its_results_are_written(
    here: Path, fakes: Fakes
) -> None:
    called = call("reproduce", "smoe", "--jobs", "3")
    assert called.code == 0, called.err
    papers, evidence, context = fakes.asked["measure"]
    assert papers == [("timed", "smoe")]
    assert (evidence.data_dir, evidence.scratch, evidence.quick) == (None, Path(".moebench"), False)
    assert evidence.store.directory == Path(".moebench")
    given = (3, None, Path(".moebench"))
    assert context.opened == ("workers", given, {"samples": True})
    assert context.retry_failed is False
    assert fakes.shown == ("watched", ("board", "about 3 min"))
    assert fakes.asked["forecast"] == (["a job", "another"], evidence.store, None, 3)
    assert "exhibit" not in fakes.asked
    chosen, same, found, earlier = fakes.asked["costs"]
    assert (chosen, same, found) == (["smoe"], evidence, [result("smoe")])
    assert earlier == {"known in": Path(".moebench/claims")}
    (written,) = read(here / ".moebench" / "claims")
    assert written.provenance == {"commit": "c1", "costs": {"of": "smoe"}}
    assert written.claims == result("smoe").claims
    header, row = (line.split("\t") for line in called.out.splitlines())
    assert header == list(claims.HEADERS)
    assert row == claims.lines(result("smoe"))[0]
    assert called.err.splitlines() == [
        "2 cells to run, 3 at a time, about 3 min",
        "1 claim: 1 reproduced with evidence; 2 min; in .moebench/claims",
    ]


def test_all_papers_are_measured_and_the_table_of_equal_memory_is_written(
    here: Path, fakes: Fakes
) -> None:
    row = {"setting": "S1", "model": "m", "machine": "a", "memory_gb": 1.0, "system": "s",
           "tpot_ms": 2.0, "lossless": True}  # fmt: skip
    fakes.exhibit = Exhibit(id=EQUAL_MEMORY, place="", title="t", form="table", rows=(row,),
                            badge="estimate")  # fmt: skip
    (here / "kept").mkdir()
    called = call("reproduce", "all", "--quick", "--retry-failed", "--store", "kept", "--out",
                  "written", "--json")  # fmt: skip
    assert called.code == 0, called.err
    papers, evidence, context = fakes.asked["measure"]
    assert [name for _, name in papers] == ["smoe", "daop", "duoserve", "flashmoe", "field"]
    assert (evidence.quick, evidence.scratch, context.retry_failed) == (True, Path("kept"), True)
    assert context.opened[1][0] == (os.cpu_count() or 1)
    assert fakes.asked["exhibit"] == (equal_memory.EQUAL_MEMORY, evidence, context)
    assert read_exhibit(EQUAL_MEMORY, Path("written")) == fakes.exhibit
    assert [one.paper for one in read(Path("written"))] == [name for _, name in papers]
    assert [one["paper"] for one in called.json] == [name for _, name in papers]
    assert called.json[0]["provenance"]["costs"] == {"of": "smoe"}
    assert called.err.splitlines()[-1] == (
        "5 claims: 5 reproduced with evidence; 2 min, with fewer prompts (--quick); in written"
    )
    fakes.exhibit = None
    assert call("reproduce", "all", "--out", "none").code == 0
    assert read_exhibit(EQUAL_MEMORY, Path("none")) is None


def test_figures_are_counted_and_markdown_is_the_whole_document(
    here: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(extras, "require", lambda *given: asked.append(given))
    files = ["a.svg", "a.pdf"]

    def draw(found: Any, folder: Path) -> list[str]:
        asked.append((found, folder))
        return files

    monkeypatch.setattr(exhibits, "write", draw)
    called = call("reproduce", "daop", "--figures", "drawn", "--markdown")
    assert called.code == 0, called.err
    (found,) = read(here / ".moebench" / "claims")
    assert asked == [("vl_convert", "--figures"), ([found], Path("drawn"))]
    assert "2 files in drawn" in called.err.splitlines()
    assert called.out == reproduction.one_document([found]) + "\n"
    del files[1:]
    assert "1 file in drawn" in call("reproduce", "daop", "--figures", "drawn").err.splitlines()
    asked.clear()
    call("reproduce", "daop")
    assert asked == []


def test_earlier_results_are_those_of_the_folder_else_those_that_ship(here: Path) -> None:
    shipped = {one.paper: one for one in read()}
    assert reproduce._known(here) == shipped
    write(result("smoe"), here)
    assert reproduce._known(here) == shipped | {"smoe": result("smoe")}


PLAN = ("reproduce", "smoe", "--dry-run", "--jobs", "4", "--store", "kept", "--out", "results")


@pytest.mark.parametrize("quick", [True, False])
def test_a_dry_run_lists_its_cells_with_their_states(
    quick: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    spec = resolve(None, system="smoe", setting="S3")
    jobs = [Job(name, spec, "g") for name in ("cell a", "cell b", "cell c")]

    class Load:
        def __enter__(self) -> "Load":
            return self

        def __exit__(self, *error: object) -> None:
            asked["left"] = True

        def slowdown(self, processes: int) -> float:
            asked["processes"] = processes
            return float(asked["slower"])

    def steps(papers: Any, evidence: Any, known: Any) -> Any:
        asked["steps"] = ([one.paper for one in papers], evidence.quick, known["smoe"])
        yield costs.Step("smoe", "pair", "full", jobs[:2])
        yield costs.Step("smoe", "other", "quick", jobs[1:])

    def guess(found: Any, finished: Any, known: Any, processes: int, slower: float) -> Any:
        asked["guess"] = ([step.experiment for step in found], known["smoe"], processes, slower)
        asked["finished"] = finished
        return asked["guessed"]

    monkeypatch.setattr(costs, "steps", steps)
    monkeypatch.setattr(expected, "guess", guess)
    monkeypatch.setattr(forecast, "Load", Load)
    monkeypatch.setattr(Store, "finished", lambda self, cells: {"cell b": str(self.directory)})
    write(result("smoe"), here / "results")
    asked["slower"] = 1.5
    asked["guessed"] = expected.Guess(180.0, 3, 2, 1, 1.25, "2026-01-02 (abc)")
    called = call(*PLAN, *(["--quick"] if quick else []))
    assert called.code == 0, called.err
    assert [line.split("\t") for line in called.out.splitlines()] == [
        ["cell", "state", "what"], ["cell a", "to run", progress.title(spec)],
        ["cell b", "stored", progress.title(spec)], ["cell c", "to run", progress.title(spec)],
    ]  # fmt: skip
    ends = "; with the counter-experiments and ranges that earlier verdicts call for\n"
    assert called.err == (
        "3 cells, 2 to run, about 3 min: 1 cell by the times of 2026-01-02 (abc) × 1.25 for this "
        f"computer, 1 cell from constants, × 1.5 beside the programs that run now{ends}"
    )
    assert asked["steps"] == (["smoe"], quick, result("smoe"))
    assert asked["guess"] == (["pair", "other"], result("smoe"), 4, 1.5)
    assert asked["finished"]([]) == {"cell b": "kept"}
    assert (asked["processes"], asked["left"]) == (4, True)
    asked["slower"] = 1.1
    asked["guessed"] = expected.Guess(180.0, 3, 2, 0, 1.25, "")
    assert call(*PLAN).err == f"3 cells, 2 to run, about 3 min: 2 cells from constants{ends}"
    assert not Path("kept").exists(), "nothing is written"

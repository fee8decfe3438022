"""The expected time of several papers' reproductions, by hand."""

from typing import Any

import pytest

from moebench.harness.reproduce.costs import Step, work
from moebench.harness.reproduce.expected import Guess, guess
from moebench.harness.sweep.estimate import START_S
from moebench.harness.sweep.worker import Job
from moebench.results.claims import PaperResult
from tests.harness.reproduce.test_costs import SPEC


def steps_of(paper: Any, names: str, size: Any = "quick") -> Step:
    return Step(paper, "pair", size, [Job(name, SPEC, "") for name in names])


def result(paper: Any, created: str = "", commit: str = "", **costs: Any) -> PaperResult:
    provenance = {"costs": costs, "created": created, "commit": commit} if costs else {}
    return PaperResult(paper=paper, title="", quick=True, provenance=provenance, claims=())


def approximately(seconds: float) -> Any:
    return pytest.approx(seconds)


#: On a computer that takes 0.5 s for the fixed computation: twice and half of that of then.
KNOWN = {
    "smoe": result("smoe", "2026-02-03T10:00", "abc", speed_s=0.25, own_s={"quick": 8.0},
                   experiments={"pair": {"quick": [2, 30.0, 1.0]}}),
    "daop": result("daop", "2026-01-04T10:00", "def", speed_s=1.0,
                   own_s={"full": 40.0, "other": 12.0},
                   experiments={"pair": {"quick": [2, 10.0, 1.0]}}),
    "flashmoe": result("flashmoe"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer of three cores."""
    monkeypatch.setattr("moebench.harness.reproduce.expected.speed_s", lambda: 0.5)
    monkeypatch.setattr("os.cpu_count", lambda: 3)


def test_each_paper_has_its_own_costs_and_a_cell_is_counted_once() -> None:
    """Three cells of 30 s, twice as long, and one of the constants, on three cores.

    The calling process takes 8 s for four cells of SMoE, twice as long, of which three quarters
    are to run; and 40 s for DAOP, half as long, of which at least half is spent.
    """
    found = [steps_of("smoe", "abcd"), steps_of("daop", "aef"), steps_of("flashmoe", "g")]
    stored = {"d": "run 1", "e": "run 2", "f": "run 3"}
    got = guess(found, lambda cells: stored, KNOWN, processes=4, slowdown=1.5)
    constant = work([Job("g", SPEC, "")])
    own = 8 * 2 * 3 / 4 + 40 * 0.5 * 0.5
    assert got == Guess(
        seconds=approximately(1.5 * (START_S + (3 * 30 * 2 + constant) / 3 + own)), cells=7,
        todo=4, measured=3, scale=2.0, of="2026-01-04 (def), 2026-02-03 (abc)",
    )  # fmt: skip


def test_cells_of_a_paper_never_measured_have_no_scale() -> None:
    """One process is used where none is asked for, and nothing is said of earlier costs."""
    got = guess([steps_of("flashmoe", "gh")], lambda cells: {}, KNOWN, processes=0)
    constant = work([Job("g", SPEC, "")])
    assert got == Guess(approximately(START_S + 2 * constant), 2, 2, 0, 1.0, "")


def test_with_all_cells_stored_no_worker_is_started() -> None:
    got = guess([steps_of("smoe", "ab")], lambda cells: dict.fromkeys("ab", "run"), KNOWN, 2)
    assert got == Guess(approximately(8 * 2 * 0.5), 2, 0, 0, 2.0, "2026-02-03 (abc)")

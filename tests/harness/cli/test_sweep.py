"""`moebench sweep`: listed and finished cells in words and JSON, without running them."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from moebench.harness import extras
from moebench.harness.api.sweep import Plan
from moebench.harness.cli import sweep as command
from moebench.harness.run.rules import resolve
from moebench.harness.sweep import execute
from moebench.harness.sweep import progress as showing
from moebench.harness.sweep.forecast import Forecast
from moebench.harness.sweep.worker import Job
from moebench.results.store import Cell
from tests.harness.commands import call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")


def job(number: int) -> Job:
    spec = resolve(None, system="smoe", setting="S3", workload="arithmetic", seed=number)
    return Job(f"c{number}", spec, "g")


def forecast(jobs: Any, *rest: Any) -> Forecast:
    return Forecast({}, 65.4 * len(jobs), {"by its rates": len(jobs)}, 2)


class Store:
    """Finished and failed cells by hand."""

    directory = Path(".moebench")

    def __init__(self, done: dict[str, str], *failed: Cell) -> None:
        self._done, self._failed = done, failed

    def finished(self, cells: Any) -> dict[str, str]:
        return {cell: self._done[cell] for cell in cells if cell in self._done}

    def cells(self, state: str) -> list[Cell]:
        assert state == "failed"
        return list(self._failed)


def failed(number: int, error: str, traceback: str | None) -> Cell:
    return Cell(f"c{number}", "failed", job(number).spec.model_dump(), None, error, traceback)


def shown(
    capsys: pytest.CaptureFixture[str], *given: Any
) -> tuple[int, str, list[str]]:  # fmt: skip
    code = command._sum_up(*given)
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def test_finished_cells_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [job(n) for n in range(3)]
    done: Any = Store({"c0": "r0", "c1": "r1", "c2": "r2", "c9": "r9"})
    assert shown(capsys, cells, 2, done, False, False) == (
        0, "", ["3 cells: 3 done (1 were known), 0 failed; moebench report shows them"]
    )  # fmt: skip
    code, out, _ = shown(capsys, cells[:1], 0, done, False, True)
    assert code == 0
    assert json.loads(out) == {"cells": [{"cell_id": "c0", "run_id": "r0", "error": None}]}


def test_failed_and_impossible_cells_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [job(n) for n in range(4)]
    impossible = failed(1, "--batch 3 is too large [4]", None)
    broken = failed(2, "it broke", "t.txt")
    other = failed(9, "not of this sweep", "t.txt")
    some: Any = Store({"c0": "r0"}, impossible, broken, other)
    code, out, err = shown(capsys, cells, 4, some, False, True)
    assert code == 1
    assert json.loads(out)["cells"] == [
        {"cell_id": "c0", "run_id": "r0", "error": None},
        {"cell_id": "c1", "run_id": None, "error": "--batch 3 is too large [4]"},
        {"cell_id": "c2", "run_id": None, "error": "it broke"},
        {"cell_id": "c3", "run_id": None, "error": None},
    ]
    assert err[0] == (
        "4 cells: 1 done (0 were known), 1 failed, 1 not possible here; moebench report shows them"
    )
    assert err[1].startswith("not possible here, 1 cell: --batches 3 is too large [4] (smoe ")
    assert err[2] == (
        "moebench report names the failures; the same sweep with --retry-failed runs these cells "
        "again"
    )
    cannot: Any = Store({"c0": "r0"}, impossible)
    code, _, err = shown(capsys, cells, 4, cannot, True, False)
    assert code == 0, "what is possible is done"
    assert err[1].startswith("not possible here, 1 cell: `batch` 3 is too large [4]")
    assert err[2] == "the same sweep with --retry-failed tries these cells again"
    none: Any = Store({}, impossible)
    assert shown(capsys, cells[1:2], 1, none, True, False)[0] == 1
    broken_alone: Any = Store({"c0": "r0"}, broken)
    assert shown(capsys, cells, 4, broken_alone, True, False)[0] == 1


def plan(todo: list[Job], known: dict[str, str], problems: dict[str, str]) -> Any:
    cells = [job(int(name[1:])) for name in sorted([*known, *(one.cell_id for one in todo)])]
    planned = SimpleNamespace(problem=lambda spec: problems.get(f"c{spec.seed}"))
    return SimpleNamespace(cells=cells, todo=todo, known=known, planned=planned)


def test_planned_cells_are_listed_with_their_state(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "forecast_of", forecast)
    store: Any = None
    one = plan([job(1), job(2), job(3)], {"c0": "done"}, {"c3": "--batch 3: [no]", "c0": "x"})
    assert command._show_plan(one, store, 1, False) == 0
    out, err = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["cell", "state", "what"]
    assert [row[:2] for row in rows[1:]] == [
        ["c0", "done"], ["c1", "to run"], ["c2", "to run"], ["c3", "not possible here"],
    ]  # fmt: skip
    assert rows[1][2] == showing.title(job(0).spec)
    assert err.splitlines() == [
        "not possible here, 1 cell: --batches 3: [no]",
        "4 cells: 1 done, 2 to run, 1 not possible here; 2 at a time, about 2 min: 2 cells by its "
        "rates",
    ]
    assert command._show_plan(one, store, 1, True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["estimate_s"] == 130.8
    assert [(row["cell_id"], row["state"], row.get("error")) for row in document["cells"]] == [
        ("c0", "done", None), ("c1", "to run", None), ("c2", "to run", None),
        ("c3", "not possible here", "--batch 3: [no]"),
    ]  # fmt: skip
    assert "error" not in document["cells"][0]
    assert document["cells"][1]["spec"] == job(1).spec.model_dump()
    assert command._show_plan(plan([job(1)], {}, {"c1": "no"}), store, 1, False) == 1
    assert command._show_plan(plan([], {"c0": "done"}, {}), store, 1, False) == 0


def test_workers_are_of_this_computer_or_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(execute, "local_workers", lambda *what: ("local", *what))
    with command.workers_on(None, 3, Path("data"), Path("store"), True) as workers:
        assert workers == ("local", 3, Path("data"), Path("store"), True)  # type: ignore[comparison-overlap]
    cluster, ray = ModuleType("cluster"), ModuleType("ray")
    cluster.connect = given.append  # type: ignore[attr-defined]
    cluster.RayWorkers = lambda *what: ("ray", *what)  # type: ignore[attr-defined]
    ray.shutdown = lambda: given.append("shutdown")  # type: ignore[attr-defined]
    monkeypatch.setattr(extras, "require", lambda *what: given.append(what))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "moebench.harness.sweep.cluster", cluster)
    with command.workers_on("auto", 3, Path("data"), Path("store"), False) as workers:
        assert workers(True) == ("ray", Path("data"), False, 3, True)  # type: ignore[comparison-overlap]
        assert given == [("ray", "--ray"), "auto"]
    assert given == [("ray", "--ray"), "auto", "shutdown"]


def test_flags_reach_the_plan_and_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def of(specs: Any, store: Any, folder: Any, force: bool, retry: bool, progress: Any) -> Any:
        given.append(([one.seed for one in specs], store.directory, folder, force, retry))
        found = plan([job(1)] if force else [], {"c0": "done"}, {})
        found.run = lambda store, workers, shown: given.append(("run", workers))
        return found

    monkeypatch.setattr(Plan, "of", of)
    monkeypatch.setattr(showing, "forecast_of", forecast)
    monkeypatch.setattr(execute, "local_workers", lambda *what: what)
    monkeypatch.setattr(command, "_sum_up", lambda *what: given.append(what[1:]) or 0)
    monkeypatch.setattr(command, "_show_plan", lambda *what: given.append(what[2:]) or 1)
    axes = ("sweep", "--systems", "smoe", "--settings", "S3", "--seeds", "0,1")
    called = call(*axes, "--force", "--jobs", "3", "--no-samples", "--store", "runs")
    assert called.code == 0, called.err
    assert given[0] == ([0, 1], Path("runs"), None, True, False)
    assert given[1] == ("run", (3, None, Path("runs"), False))
    assert given[2][0] == 1
    assert given[2][2:] == (False, False)
    assert "1 cell to run, 2 at a time, about 65 s: 1 cell by its rates" in called.err
    given.clear()
    assert call(*axes, "--retry-failed", "--dry-run", "--json", "--jobs", "2").code == 1
    assert given == [([0, 1], Path(".moebench"), None, False, True), (2, True)]
    Path("s.yaml").write_text(json.dumps({
        "common": {"setting": "S3"}, "product": {"system": "smoe"}
    }))  # fmt: skip
    given.clear()
    assert call("sweep", "s.yaml", "--json").code == 0
    assert given[1][2:] == (True, True)
    assert "s.yaml and flags: give a file or flags, not both" in refused(*axes, "s.yaml")
    assert "s.yaml and flags" in refused("sweep", "s.yaml", "--set", "evict=lru")
    assert "nothing to sweep; give FILE.yaml or" in refused("sweep")

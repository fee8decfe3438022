"""Cells are run in groups, this computer's last and alone, and what ends is stored."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.sweep import execute
from moebench.harness.sweep.execute import (
    _checked,
    _Strict,
    carry_out,
    jobs_of,
    keep,
    local_workers,
    processes_for,
    run_all,
)
from moebench.harness.sweep.pool import InProcess
from moebench.harness.sweep.worker import Failed, Finished, Job
from moebench.substrate.errors import MoeBenchError

FAILED = Failed("went wrong", "a traceback")


def spec(name: str, machine: str = "a6000") -> Any:
    return SimpleNamespace(name=name, machine=machine, model_dump=lambda: {"name": name},
                           model_dump_json=lambda: name)  # fmt: skip


def finished(run_id: str) -> Finished:
    return Finished({"run_id": run_id}, ["sample"], ["span"])  # type: ignore[list-item]


def test_cells_that_share_inputs_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "group_of", lambda one: one.name[0])
    planned: Any = SimpleNamespace(cell_id=lambda one: f"id of {one.name}")
    seen: list[Any] = []
    specs = [spec("a1"), spec("b1"), spec("a2"), spec("c1"), spec("b2")]
    found = jobs_of(specs, planned, lambda *done: seen.append(done))
    assert [(job.cell_id, job.spec.name, job.group) for job in found] == [
        (f"id of {name}", name, name[0]) for name in ("a1", "a2", "b1", "b2", "c1")
    ]
    assert seen == [(n, 5) for n in range(1, 6)]


@pytest.mark.parametrize("locals_", [0, 1, 3])
def test_cells_of_this_computer_run_last_and_alone(
    locals_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []
    names = ["a", "b", "c"]
    jobs = [Job(name, spec(name, "local" if n < locals_ else "a6000"), "")
            for n, name in enumerate(names)]  # fmt: skip

    class Workers:
        def __init__(self, local: bool) -> None:
            log.append(("open", local))

        def close(self) -> None:
            log.append("close")

    def schedule(chosen: Any, workers: Any, started: Any) -> Iterator[Any]:
        assert started == "started"
        for job in chosen:
            yield 7, job, finished(job.cell_id)

    monkeypatch.setattr(execute, "schedule", schedule)
    monkeypatch.setattr(
        execute, "keep", lambda store, job, outcome: log.append(("keep", job.cell_id))
    )
    board: Any = SimpleNamespace(
        started="started", ended=lambda worker, job, outcome: log.append((worker, job.cell_id))
    )
    carry_out(jobs, "store", Workers, board)  # type: ignore[arg-type]
    expected: list[Any] = []
    for local, part in ((False, names[locals_:]), (True, names[:locals_])):
        if part:
            each = [one for name in part for one in (("keep", name), (7, name))]
            expected += [("open", local), *each, "close"]
    assert log == expected


def test_another_id_than_the_planned_one_is_a_failure() -> None:
    job, local = Job("r1", spec("a"), ""), Job("cell", spec("a", "local"), "")
    same, other = finished("r1"), finished("r2")
    assert _checked(job, same) is same
    assert _checked(job, FAILED) is FAILED
    assert _checked(local, other) is other, "each measurement has an id of its own"
    text = "the worker read other weights, data or library versions than this computer has"
    assert _checked(job, other) == Failed(text, text)


def test_a_run_or_its_failure_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    store: Any = SimpleNamespace(fail=lambda *given: asked.append(given))
    monkeypatch.setattr(execute.kept, "keep", lambda *given: asked.append(given))
    job = Job("r1", spec("a"), "")
    keep(store, job, FAILED)
    keep(store, job, finished("r1"))
    assert asked == [
        ("r1", {"name": "a"}, "went wrong", "a traceback"),
        (store, {"run_id": "r1"}, ["span"], ["sample"], ("r1", {"name": "a"})),
    ]


def test_as_many_processes_as_asked_for_or_one_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert [processes_for(n) for n in (None, 0, 1, 4)] == [6, 1, 1, 4]
    asked: list[Any] = []
    monkeypatch.setattr(execute, "Processes", lambda *given: asked.append(given))
    opened = local_workers(3, Path("data"), Path("store"), True)
    opened(False)
    opened(True)
    local_workers(None, None, Path("store"), False)(False)
    assert asked == [(3, Path("data"), Path("store"), True), (1, Path("data"), Path("store"), True),
                     (6, None, Path("store"), False)]  # fmt: skip
    assert isinstance(local_workers(0, None, Path("store"), False)(True), InProcess)
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert processes_for(None) == 1


def test_all_runs_are_returned_in_order_and_only_new_ones_are_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = [spec("c"), spec("a"), spec("b"), spec("a")]
    done = {"a": "run a"}
    ran: list[Any] = []

    class Store:
        def __init__(self, directory: Path) -> None:
            assert directory == Path("store")

        def finished(self, ids: Iterator[str]) -> dict[str, str]:
            return {one: done[one] for one in ids if one in done}

        def get(self, run_id: str) -> dict[str, str] | None:
            return None if run_id == "run b" else {"run_id": run_id}

    def carried(todo: Any, store: Any, opened: Any, board: Any) -> None:
        ran.append(([job.cell_id for job in todo], board._total, opened))
        done.update({job.cell_id: f"run {job.cell_id}" for job in todo})

    monkeypatch.setattr(execute, "Store", Store)
    monkeypatch.setattr(execute, "Planned", lambda data: SimpleNamespace(data=data))

    def jobs_of_(ones: Any, planned: Any) -> list[Job]:
        return [Job(one.name, one, "") for one in sorted(ones, key=lambda one: one.name)]

    monkeypatch.setattr(execute, "jobs_of", jobs_of_)
    monkeypatch.setattr(execute, "local_workers", lambda *given, samples: (*given, samples))
    monkeypatch.setattr(execute, "carry_out", carried)
    found = run_all(specs, Path("data"), Path("store"), 4, lambda *done: None)
    assert found == [{"run_id": "run c"}, {"run_id": "run a"}, {"run_id": "run a"}]
    assert ran == [(["b", "c"], 2, (4, Path("data"), Path("store"), False))]


def test_the_first_failure_ends_a_strict_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "title", lambda one: f"title of {one.name}")
    seen: list[Any] = []
    board, job = _Strict(3, lambda *done: seen.append(done)), Job("r1", spec("a"), "")
    board.started(0, job)
    board.ended(0, job, finished("r1"))
    board.ended(0, job, finished("r2"))
    assert seen == [(1, 3), (2, 3)]
    with pytest.raises(MoeBenchError, match=r"^title of a: went wrong$"):
        board.ended(0, job, FAILED)

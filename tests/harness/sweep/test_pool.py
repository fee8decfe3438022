"""Scheduling of cells on workers, and retries of cells whose workers are lost."""

import os
from collections import Counter
from pathlib import Path

import pytest

from moebench.harness.run.rules import resolve
from moebench.harness.sweep.pool import TRIES, Lost, Outcome, Processes, schedule
from moebench.harness.sweep.worker import Failed, Finished, Job

pytestmark = pytest.mark.usefixtures("tiny_models")

SPEC = resolve(None, system="gpu-only", setting="S3", workload="arithmetic")


def jobs(*names: str) -> list[Job]:
    """Return cells "a1", "a2", "b1", ..., whose first letter is their group."""
    return [Job(name, SPEC, name[0]) for name in names]


class Scripted:
    """Fake workers that finish cells one by one, lowest first, and are lost on request."""

    def __init__(self, size: int, losses: dict[str, int] | None = None) -> None:
        self.size = size
        self.busy: dict[int, Job] = {}
        self.history: list[tuple[int, str]] = []
        self.released: Counter[int] = Counter()
        self._losses = Counter(losses or {})

    def send(self, worker: int, job: Job) -> None:
        assert worker not in self.busy
        self.busy[worker] = job
        self.history.append((worker, job.cell_id))

    def wait(self) -> list[tuple[int, Outcome]]:
        worker = min(self.busy)
        job = self.busy.pop(worker)
        if self._losses[job.cell_id] > 0:
            self._losses[job.cell_id] -= 1
            return [(worker, Lost("exit code -9"))]
        return [(worker, Finished({"run_id": job.cell_id}, [], []))]

    def release(self, worker: int) -> None:
        self.released[worker] += 1

    def close(self) -> None: ...


def outcomes(names: list[Job], workers: Scripted) -> dict[str, Finished | Failed]:
    ended = [(job.cell_id, outcome) for _, job, outcome in schedule(names, workers)]
    assert len(dict(ended)) == len(ended), "a cell came back twice"
    return dict(ended)


def test_each_cell_comes_back_once() -> None:
    wanted = jobs("a1", "a2", "b1", "c1", "c2")
    found = outcomes(wanted, Scripted(3))
    assert set(found) == {job.cell_id for job in wanted}
    assert all(isinstance(outcome, Finished) for outcome in found.values())
    assert outcomes([], Scripted(3)) == {}


def test_a_worker_keeps_to_its_group() -> None:
    workers = Scripted(1)
    outcomes(jobs("a1", "b1", "a2", "b2"), workers)
    assert [name for _, name in workers.history] == ["a1", "a2", "b1", "b2"]


def test_every_group_is_begun_before_one_is_split() -> None:
    workers = Scripted(3)
    outcomes(jobs("a1", "a2", "a3", "a4", "b1"), workers)
    assert workers.history[:3] == [(0, "a1"), (1, "b1"), (2, "a2")]


def test_a_lost_cell_is_tried_elsewhere_and_again() -> None:
    workers = Scripted(2, {"a2": TRIES - 1})
    found = outcomes(jobs("a1", "a2", "b1"), workers)
    assert all(isinstance(outcome, Finished) for outcome in found.values())
    assert [name for _, name in workers.history].count("a2") == TRIES


def test_a_cell_that_kills_its_workers_fails() -> None:
    workers = Scripted(2, {"a1": 99})
    found = outcomes(jobs("a1", "a2"), workers)
    assert isinstance(found["a2"], Finished)
    assert isinstance(found["a1"], Failed)
    assert "3 workers were lost with this cell (exit code -9)" in found["a1"].error
    assert [name for _, name in workers.history].count("a1") == TRIES


def test_workers_without_work_are_released() -> None:
    workers = Scripted(2)
    outcomes(jobs("a1", "a2", "a3"), workers)
    assert workers.released.keys() == {0, 1}


@pytest.mark.slow
def test_a_process_that_dies_is_lost_and_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suicidal.py").write_text(
        "import os\nfrom moebench.systems.baselines import GpuOnly\n"
        "class Dies(GpuOnly):\n"
        "    def __init__(self, *a, **o):\n"
        f"        os._exit(5) if os.getpid() != {os.getpid()} else super().__init__(*a, **o)\n"
    )
    monkeypatch.chdir(tmp_path)
    deadly = resolve(None, system="suicidal:Dies", setting="S3", workload="arithmetic")
    workers = Processes(1, None, tmp_path, samples=False)
    try:
        ((_, _, outcome),) = schedule([Job("a", deadly, "a")], workers)
    finally:
        workers.close()
    assert isinstance(outcome, Failed)
    assert "3 workers were lost with this cell (exit code 5)" in outcome.error

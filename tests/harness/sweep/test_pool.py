"""Scheduling of cells on workers, and retries of cells whose workers are lost."""

import os
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.run.rules import resolve
from moebench.harness.sweep import pool
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


# ------------------------------------------------------------------------------ processes


class Pipe:
    """One end of a pipe to a worker that the test plays."""

    def __init__(self, *received: Any) -> None:
        self.received, self.sent, self.closed = list(received), list[Any](), False

    def send(self, what: Any) -> None:
        if self.closed:
            raise OSError("closed")
        self.sent.append(what)

    def recv(self) -> Any:
        if not self.received:
            raise EOFError
        return self.received.pop(0)

    def close(self) -> None:
        self.closed = True


class Process:
    """A process that ends when it is told to."""

    exitcode = -9

    def __init__(self, target: Any, args: Any, daemon: bool) -> None:
        self.target, self.args, self.daemon = target, args, daemon
        self.history: list[str] = []

    def start(self) -> None:
        self.history.append(f"start {signal.getsignal(signal.SIGINT) is signal.SIG_IGN}")

    def join(self) -> None:
        self.history.append("join")

    def kill(self) -> None:
        self.history.append("kill")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Workers whose pipes and processes are fakes; ``made`` has each process with its pipe."""
    found: Any = Processes(2, Path("data"), Path("scratch"), samples=True)
    found.made = []

    def pipe() -> tuple[Pipe, Pipe]:
        found.made.append([Pipe(), Pipe()])
        return tuple(found.made[-1])

    def process(**more: Any) -> Process:
        found.made[-1].append(Process(**more))
        return found.made[-1][-1]

    found._spawn = SimpleNamespace(Pipe=pipe, Process=process)
    monkeypatch.setattr(pool, "Connection", Pipe)
    monkeypatch.setattr(pool, "wait", lambda connections: [c for c in connections if c.sent])
    monkeypatch.setattr(pool, "code_hash", lambda: "code")
    return found


def test_a_process_is_started_for_its_first_cell_and_ignores_ctrl_c(workers: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    first, second = jobs("a1", "a2")
    workers.send(1, first)
    workers.send(1, second)
    ((here, there, process),) = workers.made
    assert here.sent == [(first, "code"), (second, "code")]
    assert there.closed, "only the process holds its end"
    assert not here.closed
    assert process.target is pool._serve
    assert process.args == (there, Path("data"), Path("scratch"), True)
    assert process.daemon
    assert process.history == ["start True"]
    assert signal.getsignal(signal.SIGINT) is before


def test_outcomes_come_by_worker_and_a_dead_one_is_lost(workers: Any) -> None:
    first, second = jobs("a1", "b1")
    workers.send(0, first)
    workers.send(1, second)
    (here, _, _), (other, _, dead) = workers.made
    here.received.append("an outcome")
    assert workers.wait() == [(0, "an outcome"), (1, Lost("exit code -9"))]
    assert dead.history == ["start True", "join", "join"]
    assert (here.closed, other.closed) == (False, True)
    workers.send(1, second)
    assert len(workers.made) == 3, "a lost worker begins again"


def test_workers_are_released_one_by_one_and_killed_at_the_end(workers: Any) -> None:
    for worker, job in enumerate(jobs("a1", "b1")):
        workers.send(worker, job)
    workers.release(0)
    workers.release(0)
    workers.release(7)
    (here, _, process), (other, _, last) = workers.made
    assert here.closed
    assert process.history == ["start True", "join"]
    workers.close()
    assert other.closed
    assert last.history == ["start True", "kill", "join"]
    here.closed = False
    workers.send(0, jobs("a2")[0])
    assert len(workers.made) == 3


def test_a_cell_sent_to_a_dead_process_is_found_by_waiting(workers: Any) -> None:
    (job,) = jobs("a1")
    workers.send(0, job)
    workers.made[0][0].closed = True
    workers.send(0, job)  # raises nothing


def test_a_worker_process_runs_cells_until_its_pipe_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Worked:
        def __init__(self, *given: Any) -> None:
            made.append(given)

        def run(self, job: str, code: str) -> str:
            return f"{job} by {code}"

    monkeypatch.setattr(pool, "end_with_parent", lambda: made.append("ends"))
    monkeypatch.setattr(pool, "Worker", Worked)
    pipe: Any = Pipe(("a1", "x"), ("a2", "y"))
    pool._serve(pipe, Path("data"), Path("scratch"), False)
    assert pipe.sent == ["a1 by x", "a2 by y"]
    assert made == ["ends", (Path("data"), Path("scratch"), False)]
    gone: Any = Pipe(("a1", "x"))
    gone.closed = True
    pool._serve(gone, None, Path("scratch"), True)
    assert gone.sent == []


@pytest.mark.parametrize(
    ("platform", "parent", "asked", "ended"),
    [
        ("linux", 5, True, False), ("linux", 6, True, True), ("linux", None, True, False),
        ("darwin", 6, False, False),
    ],
)  # fmt: skip
def test_a_worker_ends_with_its_parent_on_linux(
    platform: str, parent: int | None, asked: bool, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    library = SimpleNamespace(prctl=lambda *what: calls.append(what))
    process = None if parent is None else SimpleNamespace(pid=parent)
    monkeypatch.setattr(pool.sys, "platform", platform)
    monkeypatch.setattr(pool.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(pool.multiprocessing, "parent_process", lambda: process)
    monkeypatch.setattr(pool.os, "getppid", lambda: 5)
    monkeypatch.setattr(pool.os, "_exit", lambda code: calls.append(code))
    pool.end_with_parent()
    assert calls == ([(1, signal.SIGKILL)] if asked else []) + ([1] if ended else [])


def test_in_this_process_a_cell_is_run_when_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(pool, "code_hash", lambda: "code")
    monkeypatch.setattr(
        pool, "Worker", lambda *given: made.append(given) or SimpleNamespace(run=lambda *w: w)
    )
    here = pool.InProcess(Path("data"), Path("scratch"), True)
    assert (here.size, made) == (1, [(Path("data"), Path("scratch"), True)])
    (job,) = jobs("a1")
    here.send(0, job)
    assert here.wait() == [(0, (job, "code"))]  # type: ignore[comparison-overlap]


def test_started_cells_are_told_and_a_lost_one_goes_to_the_front() -> None:
    told: list[tuple[int, str]] = []
    workers = Scripted(1, {"a1": 1})
    names = jobs("a1", "a2", "b1")
    list(schedule(names, workers, lambda worker, job: told.append((worker, job.cell_id))))
    assert told == [(0, "a1"), (0, "a1"), (0, "a2"), (0, "b1")]
    failing = Scripted(1, {"a1": TRIES})
    found = outcomes(jobs("a1"), failing)["a1"]
    assert isinstance(found, Failed)
    assert found.error == found.traceback == "3 workers were lost with this cell (exit code -9)"
    assert failing.history == [(0, "a1")] * 3

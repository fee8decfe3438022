"""Cells of one process: what they share, what a failure says, and ids of cells."""

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness import keep, one_run
from moebench.harness.run import identity
from moebench.harness.sweep import worker
from moebench.harness.sweep.worker import Failed, Finished, Job, Opened, Worker, group_of
from moebench.results.spec import RunSpec
from moebench.substrate.errors import BudgetError, IntegrityError, UsageError


def spec_of(**given: Any) -> RunSpec:
    base = {"system": "smoe", "machine": "h100", "model": "mixtral-8x7b", "workload": "arithmetic"}
    return RunSpec(**{**base, **given})


class Session:
    """A prepared session, which notes what is done with it."""

    def __init__(self, log: list[Any], spec: Any, number: int = 1) -> None:
        self.log, self.spec, self.number = log, spec, number
        self.run_id, self.hashes = f"run {number}", {"weights": "w", "profile": "time"}
        self.problem: Exception | None = None

    def varied(self, spec: Any) -> "Session":
        self.log.append(("varied", self.number, spec))
        return Session(self.log, spec, self.number + 10)

    def close(self) -> None:
        self.log.append(("close", self.number))

    def share(self, shared: Any) -> Any:
        self.log.append(("share", shared))
        return shared or f"work of {self.number}"

    def check_memory(self) -> None:
        if self.problem is not None:
            raise self.problem


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was prepared and done; sessions are numbered by their preparation."""
    done: list[Any] = []

    def prepare(spec: Any, data_dir: Path | None) -> Session:
        done.append(("prepare", spec, data_dir))
        return Session(done, spec, sum(one[0] == "prepare" for one in done))

    monkeypatch.setattr(one_run, "prepare", prepare)
    return done


def test_cells_that_read_the_same_are_of_one_group() -> None:
    base = group_of(spec_of())
    for same in ({"machine": "a100"}, {"overrides": {"evict": "lru"}}, {"cache_ratio": 0.5},
                 {"variant": "shipped"}, {"system": "daop"}):  # fmt: skip
        assert group_of(spec_of(**same)) == base, same
    for other in ({"model": "olmoe-1b-7b"}, {"seed": 1}, {"new_tokens": 9}, {"weights": "w"},
                  {"batch": 2}):  # fmt: skip
        assert group_of(spec_of(**other)) != base, other
    traced = group_of(spec_of(trace="t"))
    assert group_of(spec_of(trace="t", batch=2)) == traced, "a trace is read in any batches"
    assert group_of(spec_of(trace="u")) != traced
    native = group_of(spec_of(system="native-llamacpp"))
    assert native == f"native {base}"


def test_inputs_are_opened_once_for_cells_of_a_group(log: list[Any]) -> None:
    first, same, other = spec_of(), spec_of(machine="a100"), spec_of(seed=1)
    opened = Opened(Path("data"))
    assert opened.session(first).run_id == "run 1"
    assert opened.session(same).run_id == "run 11"
    assert opened.session(other).run_id == "run 2"
    assert opened.session(first).run_id == "run 3", "the last group alone is kept"
    assert log == [
        ("prepare", first, Path("data")), ("varied", 1, same), ("close", 1),
        ("prepare", other, Path("data")), ("close", 2), ("prepare", first, Path("data")),
    ]  # fmt: skip


def test_a_group_that_cannot_be_opened_leaves_no_session(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, plain = Opened(None), one_run.prepare
    opened.session(spec_of())

    def refuse(spec: Any, data_dir: Any) -> Any:
        raise UsageError("no weights")

    monkeypatch.setattr(one_run, "prepare", refuse)
    assert opened.problem(spec_of(seed=1)) == "no weights"
    monkeypatch.setattr(one_run, "prepare", plain)
    assert opened.session(spec_of()).run_id == "run 2", "it was closed"
    assert opened.problem(spec_of()) is None


def test_a_cell_that_does_not_fit_has_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session([], spec_of())
    session.problem = BudgetError("too large")
    monkeypatch.setattr(one_run, "prepare", lambda *given: session)
    assert Opened(None).problem(spec_of()) == "too large"
    session.problem = ValueError("a defect")
    with pytest.raises(ValueError, match="a defect"):
        Opened(None).problem(spec_of())


def test_ids_of_cells_are_their_runs_or_repeatable(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "run_id", lambda spec, **hashes: (spec.machine, hashes))
    monkeypatch.setattr(platform, "node", lambda: "host-1")
    assert Opened(None).cell_id(spec_of()) == "run 1"
    local: Any = Opened(None).cell_id(spec_of(machine="local"))
    assert local == (
        "local", {"weights": "w", "profile": "local host-1"},
    )  # fmt: skip

    def refuse(spec: Any, data_dir: Any) -> Any:
        raise UsageError("no weights")

    monkeypatch.setattr(one_run, "prepare", refuse)
    unusable: Any = Opened(None).cell_id(spec_of())
    assert unusable == ("h100", {"inputs": "unusable"})


# ----------------------------------------------------------------------------- running


class Ran:
    """Replaces runs: what was run, and errors that the next ones raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, log: list[Any]) -> None:
        self.log, self.errors = log, list[Exception | None]()
        self.bytes = 0
        monkeypatch.setattr(one_run, "run", self.run)
        monkeypatch.setattr(identity, "code_hash", lambda: "code")
        monkeypatch.setattr(keep, "samples_of", lambda generations: [("samples", generations)])
        monkeypatch.setattr(worker, "resident_bytes", lambda: self.bytes)
        monkeypatch.setattr("gc.collect", lambda: log.append(("collect",)))

    def run(self, session: Any, scratch: Path) -> Any:
        self.log.append(("run", session.number, scratch))
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return SimpleNamespace(document={"n": session.number}, generations="g", picture=["p"])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, log: list[Any]) -> Ran:
    return Ran(monkeypatch, log)


def job(**given: Any) -> Job:
    spec = spec_of(**given)
    return Job("cell", spec, group_of(spec))


@pytest.mark.parametrize("samples", [True, False])
def test_cells_of_a_group_share_their_work(samples: bool, ran: Ran, log: list[Any]) -> None:
    made = Worker(Path("data"), Path("scratch"), samples)
    found = made.run(job(), "code")
    assert found == Finished({"n": 1}, [("samples", "g")] if samples else [], ["p"])  # type: ignore[list-item]
    made.run(job(machine="a100"), "code")
    made.run(job(seed=1), "code")
    steps = [one for one in log if one[0] not in ("prepare", "varied")]
    scratch = Path("scratch")
    assert steps == [
        ("share", None), ("run", 1, scratch), ("share", "work of 1"), ("run", 11, scratch),
        ("collect",), ("close", 1), ("share", None), ("run", 2, scratch),
    ]  # fmt: skip
    assert log[0] == ("prepare", spec_of(), Path("data"))


@pytest.mark.parametrize(("size", "kept"), [(700_000_000, True), (700_000_001, False)])
def test_a_large_process_drops_what_cells_share(
    size: int, kept: bool, ran: Ran, log: list[Any]
) -> None:
    made = Worker(None, Path("s"), False)
    ran.bytes = size
    made.run(job(), "code")
    assert (("collect",) in log) is not kept
    made.run(job(machine="a100"), "code")
    assert [one for one in log if one[0] == "share"][1] == ("share", "work of 1" if kept else None)
    log.clear()
    ran.errors = [ValueError("x")]
    made.run(job(), "code")
    assert (("collect",) in log) is not kept, "after a failure, too"


def test_a_run_that_cannot_share_runs_alone(ran: Ran, log: list[Any]) -> None:
    made = Worker(None, Path("s"), False)
    ran.errors = [UsageError("its prefill is its own"), None]
    found = made.run(job(), "code")
    assert isinstance(found, Finished)
    assert found.document == {"n": 11}
    assert log[-3:] == [("collect",), ("varied", 1, spec_of()), ("run", 11, Path("s"))]


def test_a_replay_shares_nothing_and_its_refusal_stays(
    ran: Ran, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "share", lambda self, shared: None)
    ran.errors = [UsageError("no")]
    assert Worker(None, Path("s"), False).run(job(), "code") == Failed("no", None)
    assert sum(one[0] == "run" for one in log) == 1


@pytest.mark.parametrize(
    ("error", "own", "says", "traced"),
    [
        (UsageError("no"), False, "no", False), (BudgetError("large"), False, "large", False),
        (UsageError("no"), True, "no", True), (IntegrityError("odd"), False, "odd", True),
        (KeyError("x"), False, "KeyError: 'x'", True),
    ],
)  # fmt: skip
def test_a_failure_has_one_line_and_the_traceback_of_a_defect(
    error: Exception, own: bool, says: str, traced: bool, ran: Ran,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[Any] = []

    def needs_import(system: str, overrides: Any) -> bool:
        asked.append((system, overrides))
        return own

    monkeypatch.setattr(worker, "needs_import", needs_import)
    ran.errors = [error, error]
    found = Worker(None, Path("s"), False).run(job(overrides={"evict": "lru"}), "code")
    assert isinstance(found, Failed)
    assert found.error == says
    assert (found.traceback is not None) is traced
    if traced:
        assert (found.traceback or "").startswith("Traceback (most recent call last)")
    if isinstance(error, UsageError | BudgetError):
        assert asked == [("smoe", {"evict": "lru"})]


def test_other_code_runs_no_cell(ran: Ran, log: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "host-1")
    said = (
        "moebench is not the same here and there: host-1 has another version, or its files changed "
        "meanwhile; start the sweep again"
    )
    assert Worker(None, Path("s"), False).run(job(), "other code") == Failed(said, said)
    assert log == []


def test_resident_memory_is_the_second_number_of_the_kernels_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def read(self: Path) -> str:
        asked.append(str(self))
        return "900 12 5 1 0 300 0"

    monkeypatch.setattr(Path, "read_text", read)
    assert worker.resident_bytes() == 12 * 4096
    assert asked == ["/proc/self/statm"]

    def missing(self: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert worker.resident_bytes() == 0

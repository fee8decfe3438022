"""Runs that are made, stored, or taken from the store, without running them."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.api import run as module
from moebench.harness.api.run import carry_out, complete
from moebench.harness.run.rules import resolve
from moebench.substrate.errors import UsageError
from moebench.substrate.progress_events import phase_listener

SPEC = resolve(None, system="moe-ondemand", setting="S3", workload="arithmetic")


class Session:
    """An open session that notes when it is closed."""

    run_id = "id"

    def __init__(self) -> None:
        self.closed = 0
        self.spec = SPEC

    def close(self) -> None:
        self.closed += 1


class Noted:
    """What a run was given; ``stored`` is in the store, ``error`` is raised by the run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.stored: Any = None
        self.error: Exception | None = None
        self.session = Session()
        self.ran: list[Any] = []
        self.kept: list[Any] = []
        self.asked: list[str] = []
        noted = self

        class Store:
            def __init__(self, directory: Path) -> None:
                self.directory = directory

            def reusable(self, run_id: str) -> Any:
                noted.asked.append(run_id)
                return noted.stored

            def timeline(self, run_id: str) -> str:
                return f"timeline of {run_id}"

        patch.setattr(module, "Store", Store)
        patch.setattr(module.one_run, "prepare", lambda spec, data_dir: self.session)
        patch.setattr(module.one_run, "run", self.run)
        patch.setattr(module, "samples_of", lambda generations: f"samples of {generations}")
        patch.setattr(module, "keep", lambda store, *what, **more: self.kept.append((what, more)))

    def run(self, session: Any, directory: Path, progress: Any, keep_timeline: bool) -> Any:
        self.ran.append((session, directory, keep_timeline))
        progress(1, 2)
        if self.error is not None:
            raise self.error
        timeline = SimpleNamespace(records=lambda: ["a span"])
        return SimpleNamespace(
            document={"run_id": "new"}, picture="picture", generations="g", timeline=timeline
        )  # fmt: skip


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def test_a_run_is_made_and_kept_and_its_session_stays_open(noted: Noted) -> None:
    steps: list[Any] = []
    phases: list[str] = []

    @contextmanager
    def shown(what: str) -> Any:
        steps.append(what)
        yield lambda done, total: steps.append((done, total))

    prepared: list[Any] = []
    with phase_listener(lambda name, done, total: phases.append(name)):
        done = carry_out(SPEC, None, Path("s"), shown=shown, what=", seed 3",
                         prepared=prepared.append)  # fmt: skip
    assert steps == [f"{SPEC.title} on {SPEC.model}, seed 3", (1, 2)]
    assert phases == ["load"]
    assert prepared == [noted.session]
    assert noted.ran == [(noted.session, Path("s"), False)]
    assert done == ({"run_id": "new"}, noted.session, steps[0], None, False)
    assert noted.session.closed == 0
    cell = ("id", SPEC.model_dump())
    assert noted.kept == [(({"run_id": "new"}, "picture", "samples of g", cell), {})]


def test_a_stored_run_is_taken_unless_it_is_forced_or_its_spans_are_wanted(noted: Noted) -> None:
    noted.stored = {"run_id": "stored"}
    done = carry_out(SPEC, None, Path("s"))
    assert (done.document, done.stored, done.timeline) == ({"run_id": "stored"}, True, None)
    assert (noted.ran, noted.kept, noted.asked) == ([], [], ["id"])
    assert carry_out(SPEC, None, Path("s"), force=True).document == {"run_id": "new"}
    done = carry_out(SPEC, None, Path("s"), keep_timeline=True)
    assert (done.timeline, done.stored) == (["a span"], False)
    assert [keep for _, _, keep in noted.ran] == [False, True]
    assert noted.asked == ["id"]


def test_a_run_that_fails_closes_its_session_and_keeps_nothing(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    blamed: list[Any] = []
    monkeypatch.setattr(module, "blamed", lambda error, system: blamed.append((error, system)))
    noted.error = UsageError("cannot be")
    with pytest.raises(UsageError, match="cannot be"):
        carry_out(SPEC, None, Path("s"))
    assert (noted.session.closed, blamed) == (1, [])
    noted.error = ValueError("a defect")
    with pytest.raises(ValueError, match="a defect"):
        carry_out(SPEC, None, Path("s"))
    assert (noted.session.closed, blamed) == (2, [(noted.error, "moe-ondemand")])
    monkeypatch.setattr(module, "blamed", lambda error, system: UsageError(f"{system}:7"))
    with pytest.raises(UsageError, match="moe-ondemand:7") as caught:
        carry_out(SPEC, None, Path("s"))
    assert caught.value.__cause__ is noted.error
    assert noted.kept == []


def test_an_interval_is_added_once_to_a_simulated_run(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[Any] = []
    monkeypatch.setattr(module, "EngineRun", Session)
    monkeypatch.setattr(
        module, "add_interval", lambda document, *rest: added.append((document, rest))
    )

    def done(session: Any = noted.session, **document: Any) -> Any:
        return module.Done(document, session, "what", None, False)

    steps: list[str] = []

    @contextmanager
    def shown(what: str) -> Any:
        steps.append(what)
        yield None

    one = done(simulated=True)
    assert complete(one, Path("s"), shown)
    assert steps == ["what, how sure its latencies are"]
    assert added == [(one.document, (noted.session, Path("s")))]
    cell = ("id", SPEC.model_dump())
    assert noted.kept == [((one.document, "timeline of id"), {"cell": cell})]
    for other in (done(simulated=False), done(simulated=True, interval={"x": 1}),
                  done(session="native", simulated=True)):  # fmt: skip
        assert not complete(other, Path("s"), shown)
    assert (len(added), len(noted.kept)) == (1, 1)
    assert complete(done(simulated=True, interval=None), Path("s"))


def test_runs_of_seeds_have_no_interval(monkeypatch: pytest.MonkeyPatch, noted: Noted) -> None:
    completed: list[Any] = []
    monkeypatch.setattr(module, "complete", lambda done, *rest: completed.append(rest))
    found = module.run("moe-ondemand", setting="S3", workload="arithmetic", store="s")
    assert (found.documents, found.store) == (({"run_id": "new"},), Path("s"))
    assert completed == [(Path("s"), module.silent)]
    assert noted.session.closed == 1
    module.run("moe-ondemand", setting="S3", workload="arithmetic", interval=False, force=True)
    assert len(completed) == 1
    found = module.run("moe-ondemand", setting="S3", workload="arithmetic", seeds=3, store="s")
    assert len(found) == 3
    assert len(completed) == 1
    assert noted.session.closed == 5
    Path("file").write_text("")
    with pytest.raises(Exception, match="store file: file is not a folder"):
        module.run("moe-ondemand", setting="S3", store="file")

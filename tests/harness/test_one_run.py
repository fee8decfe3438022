"""One run: what is prepared and run in which way, and when its files are closed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness import one_run
from moebench.harness.native import run as native_run
from moebench.harness.native.run import NativeSession
from moebench.harness.run import execute
from moebench.harness.run.live import LiveSession
from moebench.harness.run.replay import ReplaySession
from moebench.substrate.errors import UsageError

DATA = Path("data")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is required, prepared and run."""
    given: list[Any] = []

    def note(name: str, answer: Any = None) -> Any:
        def call(*what: Any) -> Any:
            given.append((name, *what))
            return answer

        return call

    native = SimpleNamespace(system=SimpleNamespace(libraries=("llama_cpp", "json", "psutil")))
    monkeypatch.setattr(one_run, "require", note("require"))
    monkeypatch.setattr(one_run, "EXTRAS", {"llama_cpp": "native", "deepspeed": "native"})
    monkeypatch.setattr(execute, "prepare", note("prepare", "a session"))
    monkeypatch.setattr(execute, "run", note("run", "an outcome"))
    monkeypatch.setattr(native_run, "prepare", note("prepare native", native))
    monkeypatch.setattr(native_run, "run", note("run native", "a native outcome"))
    metrics = {"xsum": "rouge", "facts": "exact"}
    monkeypatch.setattr(one_run, "workload", lambda name: SimpleNamespace(metric=metrics[name]))
    return given


def spec(**more: Any) -> Any:
    base = {"scoring": "fixed-length", "workload": "facts", "native": False, "system": "smoe"}
    return SimpleNamespace(**base | more)


def test_a_run_of_a_system_is_prepared_for_the_engine(asked: list[Any]) -> None:
    of = spec()
    assert one_run.prepare(of, DATA) == "a session"  # type: ignore[comparison-overlap]
    assert asked == [("prepare", of, DATA)]


@pytest.mark.parametrize(
    ("scoring", "workload", "needed"),
    [("generation", "xsum", True), ("generation", "facts", False), ("prefill", "xsum", False)],
)
def test_the_package_that_scores_is_required_before_anything_is_opened(
    scoring: str, workload: str, needed: bool, asked: list[Any]
) -> None:
    one_run.prepare(spec(scoring=scoring, workload=workload), DATA)
    require = [("require", "rouge_score", "--workload xsum")] if needed else []
    assert asked[:-1] == require
    assert asked[-1][0] == "prepare"


def test_a_package_s_run_requires_its_libraries_among_the_extras(asked: list[Any]) -> None:
    of = spec(native=True, system="native-llamacpp")
    found = one_run.prepare(of, DATA)
    assert asked == [
        ("prepare native", of, DATA), ("require", "llama_cpp", "--system native-llamacpp"),
    ]  # fmt: skip
    assert found.system.libraries[0] == "llama_cpp"  # type: ignore[attr-defined]


def test_files_are_closed_at_the_end_and_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    session = SimpleNamespace(close=lambda: closed.append("closed"))
    monkeypatch.setattr(one_run, "prepare", lambda *given: session)
    with one_run.opened(spec(), DATA) as found:
        assert found is session  # type: ignore[comparison-overlap]
        assert closed == []
    assert closed == ["closed"]
    with pytest.raises(UsageError), one_run.opened(spec(), DATA):
        raise UsageError("no")
    assert closed == ["closed", "closed"]


@pytest.mark.parametrize("kind", [LiveSession, ReplaySession])
def test_a_session_of_the_engine_runs_on_it(kind: type, asked: list[Any]) -> None:
    session: Any = object.__new__(kind)
    progress: Any = object()
    found: Any = one_run.run(session, Path("s"), progress, True)
    assert found == "an outcome"
    assert asked == [("run", session, Path("s"), progress, True)]
    asked.clear()
    one_run.run(session, Path("s"))
    assert asked[0][4] is False
    assert asked[0][3](1, 2) is None


def test_a_session_of_a_package_runs_in_a_process_of_its_own(asked: list[Any]) -> None:
    session: Any = object.__new__(NativeSession)
    progress: Any = object()
    found: Any = one_run.run(session, Path("s"), progress, True)
    assert found == "a native outcome"
    assert asked == [("run native", session, Path("s"), progress)]

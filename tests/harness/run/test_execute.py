"""The order of what is done in a run on the engine, with a session that notes it."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.run import execute
from moebench.harness.run.execute import PICTURE_TOKENS, Ready, calibrated, started


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens, in order."""
    found: list[Any] = []
    monkeypatch.setattr(execute, "report_phase", lambda name: found.append(name))
    monkeypatch.setattr(execute, "check_machine", lambda spec, system: found.append("machine"))

    def calibrate(system: Any, full: Any, learnable: Any, scratch: Path, progress: Any) -> Any:
        found.append(("calibrate", full, scratch, progress, learnable()))
        return {"evict": {"from": "some texts", "note": "a note"}, "place": {"from": "others"}}

    monkeypatch.setattr(execute, "calibrate", calibrate)
    monkeypatch.setattr(execute, "compiled", lambda engine: engine)
    return found


def test_a_started_run_is_replayed_in_compiled_code_where_it_can_be(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(measured_by=None)
    monkeypatch.setattr(execute, "compiled", lambda engine: log.append("compiled") or made)
    with started(session(log), HERE, PROGRESS) as ready:
        assert log[-2:] == ["start", "compiled"]
        assert ready.stage.engine is made


class Stage:
    """A stage of a simulated machine, or of this computer."""

    def __init__(self, log: list[Any], profile: str | None) -> None:
        self.log, self.profile, self.notes, self.card = log, profile, ["own"], "a card"
        self.engine = SimpleNamespace(measured_by=None)
        self.timeline = SimpleNamespace(window=lambda tokens: log.append(("window", tokens)),
                                        picture=lambda: "picture")  # fmt: skip

    def start(self) -> int:
        self.log.append("start")
        return 55


def session(log: list[Any], own_forms: Any = (), profile: str | None = "a6000") -> Any:
    """A session of five prompts in batches of two."""
    system = SimpleNamespace(place=SimpleNamespace(own_forms=own_forms))

    def opened(scratch: Path, keep: bool, stack: ExitStack) -> Stage:
        log.append(("open", scratch, keep))
        return Stage(log, profile)

    return SimpleNamespace(
        system=system, full="full", spec=SimpleNamespace(prompts=5, batch=2), open=opened,
        check_memory=lambda: log.append("memory"), learnable=lambda *given: given,
        answer=lambda stage, rows: log.append(rows) or [rows.start],
    )  # fmt: skip


HERE, PROGRESS = Path("here"), print
CALIBRATE = ("calibrate", "full", HERE, PROGRESS, (HERE, PROGRESS))


def test_a_stage_is_open_before_a_system_learns(log: list[Any]) -> None:
    with ExitStack() as stack:
        stage, learnt = calibrated(session(log), HERE, PROGRESS, True, stack)
    assert log == ["load", ("open", HERE, True), CALIBRATE]
    assert isinstance(stage, Stage)
    assert [*learnt] == ["evict", "place"]


def test_forms_are_learnt_before_memory_is_divided_among_them(log: list[Any]) -> None:
    with ExitStack() as stack:
        calibrated(session(log, own_forms=[1]), HERE, PROGRESS, False, stack)
    assert log == ["load", "memory", "machine", CALIBRATE, ("open", HERE, False)]


@pytest.mark.parametrize("profile", ["a6000", None])
def test_a_started_run_knows_what_was_learnt_and_what_it_read(
    profile: str | None, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([10.0, 12.3456])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    monkeypatch.setattr(execute, "below", lambda scratch, used: f"below {scratch}")
    monkeypatch.setattr(execute.energy, "open_meter", lambda card: f"meter of {card}")
    switches = iter([5, 9])
    monkeypatch.setattr(execute.document, "involuntary_switches", lambda: next(switches))
    frozen: list[str] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append("freeze"))
    monkeypatch.setattr("gc.unfreeze", lambda: frozen.append("unfreeze"))
    threads: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    of = session(log, profile=profile)
    with started(of, HERE, PROGRESS) as ready:
        assert frozen == ["freeze"]
        assert log == ["load", ("open", HERE, False), CALIBRATE, "load", "start"]
    assert frozen == ["freeze", "unfreeze"]
    assert threads == [1]
    learnt = {"evict": {"from": "some texts", "note": "a note"}, "place": {"from": "others"}}
    assert ready == Ready(of, ready.stage, {"learnt": learnt, "kept": "below here"}, 55, 10.0, 5)
    assert ready.stage.notes == [
        "own", "evict learnt from some texts", "place learnt from others", "a note",
    ]  # fmt: skip
    assert ready.stage.engine.measured_by == (None if profile else "meter of a card")
    asked: list[Any] = []
    monkeypatch.setattr(execute, "engine_result", lambda *given: asked.append(given) or "result")
    monkeypatch.setattr(execute, "document_of", lambda *given: given)
    assert ready.document(["ran"]) == (  # type: ignore[list-item]
        of, "result", {"learnt": learnt, "kept": "below here", "wall_s": 2.346},
    )  # fmt: skip
    assert asked == [(of, ready.stage, ["ran"], 55, 4)]


def test_batches_are_answered_in_turn_and_the_first_is_drawn(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ready, "document", lambda self, generations: ("document", generations))
    seen: list[Any] = []
    of = session(log)
    outcome = execute.run(of, HERE, lambda *done: seen.append(done), keep_timeline=True)
    assert log[1] == ("open", HERE, True)
    assert log[5:] == [
        ("window", PICTURE_TOKENS), slice(0, 2), ("window", None), slice(2, 4), ("window", None),
        slice(4, 6),
    ]  # fmt: skip
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert outcome.document == ("document", [0, 2, 4])
    assert (outcome.picture, outcome.generations) == ("picture", [0, 2, 4])


def test_replays_are_prepared_from_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute.replay, "prepare", lambda *given: ("replay", *given))
    monkeypatch.setattr(execute.live, "prepare", lambda *given: ("live", *given))
    for replays, kind in ((True, "replay"), (False, "live")):
        spec: Any = SimpleNamespace(replays=replays)
        assert execute.prepare(spec, HERE) == (kind, spec, HERE)

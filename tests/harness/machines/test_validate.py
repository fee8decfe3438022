"""Validation with fakes: which runs are made with which options, and what the table holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.harness.machines import validate
from moebench.harness.machines.validate import Alternated, Request, Times
from moebench.harness.run.live import LiveSession
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.records import MemoryRecords

GIVEN = {"cache_ratio": 0.25, "batch": 2, "prompts": 3, "new_tokens": 4}


def request(**more: Any) -> Request:
    base: dict[str, Any] = {"profile": Path("here.yaml"), "weights": Path("w"), "link_gb_s": 4.0,
            "systems": {"smoe": {"alpha": "0.3"}, "daop": {}}, "repeats": 2, "given": GIVEN,
            "data_dir": Path("data")}  # fmt: skip
    return Request(**base | more)


class Live(LiveSession):
    """A live session to which a test gives attributes."""


def session(**fields: Any) -> Any:
    """Return a live session without its inputs; what it is told to share is kept."""
    made: Any = object.__new__(Live)
    made.shared = []
    made.share = made.shared.append
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What runs were resolved, opened and started with; each run is a session of its spec."""
    seen: dict[str, Any] = {"resolved": [], "opened": [], "log": []}

    def resolve(data_dir: Path, **given: Any) -> Any:
        seen["resolved"].append((data_dir, given))
        return ("spec", len(seen["resolved"]))

    @contextmanager
    def opened(spec: Any, data_dir: Path) -> Iterator[Any]:
        seen["log"].append("open")
        seen["opened"].append((spec, data_dir))
        yield seen.get("session") or session()
        seen["log"].append("close")

    @contextmanager
    def started(live: Any, scratch: Path, progress: Any) -> Iterator[Any]:
        progress(1, 2)
        seen["log"].append(("start", scratch, live.shared))
        yield SimpleNamespace(session=live, mode=torch.is_inference_mode_enabled)
        seen["log"].append("end")

    monkeypatch.setattr(validate, "resolve", resolve)
    monkeypatch.setattr(validate, "opened", opened)
    monkeypatch.setattr(validate, "started", started)
    monkeypatch.setattr("gc.collect", lambda: seen["log"].append("collect"))
    return seen


def test_a_run_here_has_the_requests_options_and_shared_weights(asked: dict[str, Any]) -> None:
    with validate._placed(request(), "smoe", {"alpha": "0.3"}, Path("s"), "shared",  # type: ignore[arg-type]
                          cache_ratio=1.0) as ready:  # fmt: skip
        assert ready.mode()  # type: ignore[attr-defined]
        asked["log"].append("in")
    assert asked["resolved"] == [(Path("data"), {
        "system": "smoe", "machine": "local", "weights": "w", "emulated_link_gb_s": 4.0,
        "overrides": {"alpha": "0.3"}, "cache_ratio": 1.0, "batch": 2, "prompts": 3,
        "new_tokens": 4,
    })]  # fmt: skip
    assert asked["opened"] == [(("spec", 1), Path("data"))]
    assert asked["log"] == ["open", ("start", Path("s"), ["shared"]), "in", "end", "close",
                            "collect"]  # fmt: skip
    with validate._placed(request(), "smoe", {}, Path("s")):
        pass
    assert asked["log"][-4] == ("start", Path("s"), [None])


LIKE = {"model": "m", "slots": 7, "device": "cpu", "precision": "bf16", "options": {}}


@pytest.mark.parametrize(
    ("like", "precision", "overrides"),
    [
        (LIKE, "fp32", {"alpha": "0.3"}), (LIKE | {"options": None}, "fp32", {"alpha": "0.3"}),
        (LIKE | {"device": "cuda"}, "bf16", {"alpha": "0.3"}),
        (LIKE | {"options": {"assign": "load"}}, "fp32", {"alpha": "0.3", "assign": "load"}),
        (LIKE | {"options": {"assign": "host"}}, "fp32", {"alpha": "0.3"}),
    ],
)  # fmt: skip
def test_a_simulated_run_has_the_measured_runs_slots(
    like: dict[str, Any], precision: str, overrides: dict[str, str], asked: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked["session"] = live = session()
    outcome = SimpleNamespace(
        document="document", generations=[SimpleNamespace(ttft_ns=5, steps_ns=[1, 2])]
    )
    ran: list[Any] = []
    monkeypatch.setattr(validate, "run", lambda *given: ran.append(given) or outcome)  # type: ignore[func-returns-value]
    resident = session(weights=SimpleNamespace(sharing=lambda: "shared"))
    given = {**GIVEN, "slots": 3, "device": "cuda", "precision": "fp16"}
    found: Any = validate._simulated(
        request(given=given), resident, Path("s"), "smoe", {"alpha": "0.3"}, like, Path("now.yaml")
    )
    assert found == ("document", ([5], [1, 2]))
    assert asked["resolved"] == [(Path("data"), {
        "system": "smoe", "machine": "now.yaml", "model": "m", "weights": "w",
        "precision": precision, "slots": 7, "allow_overcommit": True, "overrides": overrides,
        "batch": 2, "prompts": 3, "new_tokens": 4,
    })]  # fmt: skip
    assert asked["opened"] == [(("spec", 1), Path("data"))]
    assert (ran, live.shared) == ([(live, Path("s"))], ["shared"])


class Machine(LocalMachine):
    """A local machine of which only its queue of copies is asked."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def drain(self) -> None:
        """Note that all copies were waited for."""
        self.log.append("drain")


def generation(name: str, ttft_ns: int, *steps_ns: int) -> Any:
    return SimpleNamespace(name=name, ttft_ns=ttft_ns, steps_ns=list(steps_ns))


def test_the_resident_model_generates_a_token_after_each_of_the_systems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three prompts in batches of two; each batch has two tokens."""
    log: list[Any] = []

    def steps(prompts: Any, new_tokens: int, cues: Any) -> Iterator[Any]:
        log.append((prompts, new_tokens, cues))
        for n in (1, 2):
            log.append(f"resident {n}")
            yield generation("resident", 10 * n, *([n] * (n - 1)), len(prompts))

    def answer(stage: Any, rows: slice) -> list[Any]:
        for n in (1, 2):
            log.append(f"own {n}")
            stage.engine.after_token()
        return [generation("own", rows.start, rows.stop)]

    @contextmanager
    def placed(*given: Any) -> Iterator[Any]:
        log.append(given[1:])
        own = session(spec=SimpleNamespace(batch=2, prompts=3))
        own.answer = answer
        stage = SimpleNamespace(machine=Machine(log), engine=SimpleNamespace())
        yield SimpleNamespace(session=own, stage=stage,
                              document=lambda found: [one.name for one in found])  # fmt: skip
        log.append("left")

    monkeypatch.setattr(validate, "_placed", placed)
    questions = [SimpleNamespace(prompt=[n], continuations=[[8, 9]]) for n in (1, 2, 3)]
    model = session(questions=questions, spec=SimpleNamespace(new_tokens=4),
                    weights=SimpleNamespace(sharing=lambda: "shared"))  # fmt: skip
    resident = SimpleNamespace(
        session=model, stage=SimpleNamespace(engine=SimpleNamespace(steps=steps))
    )
    found = validate._alternated(request(), "smoe", {"a": "1"}, resident, Path("s"))  # type: ignore[arg-type]
    turn = ["own 1", "drain", "resident 1", "own 2", "drain", "resident 2"]
    assert log == [
        ("smoe", {"a": "1"}, Path("s"), "shared"),
        *turn[:2], ([[1], [2]], 6, [[8, 9], [8, 9]]), *turn[2:],
        *turn[:2], ([[3]], 6, [[8, 9]]), *turn[2:], "left",
    ]  # fmt: skip
    assert found.document == ["own", "own"]  # type: ignore[comparison-overlap]
    assert found.own == ([0, 2], [2, 4])
    # Of the resident model, the last state of each batch counts.
    assert found.resident == ([20, 20], [2, 2, 2, 1])


# ----------------------------------------------------------------------------- the whole

SPEC = {"model": "m", "slots": 5}


def measured(tokens: list[float], resident: list[float]) -> Alternated:
    document = {
        "spec": {"name": "own spec"},
        "measured": {"model": "my model", "noisy": True}, "accuracy": {"agreement": 0.5},
        "metrics": {"bytes_h2d": 3, "bytes_disk": 4, "experts": {"decode": {"hits": 9}}},
        "provenance": {key: f"the {key}" for key in
                       ("versions", "commit", "machine", "weights_hash", "data_hash", "threads",
                        "other")},
    }  # fmt: skip
    return Alternated(document, Times([100.0], tokens), Times([50.0], resident))


class Runs:
    """Fakes of all runs: the resident model takes 10 ns a token on the profile, and 20 here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, moves: bool = True) -> None:
        self.log: list[Any] = []
        self.refuse: dict[str, Exception] = {}
        self.profile: Any = SimpleNamespace(
            measured=SimpleNamespace(shape="hash of full") if moves else None, name="here",
            content_hash=lambda: "p1", calibration=SimpleNamespace(date="2026-01-02"),
            model_dump=lambda: {"calibration": {"error": {"value": 0.03}}},
        )  # fmt: skip
        monkeypatch.setattr(validate, "load_profile", self.load)
        monkeypatch.setattr(validate, "shape_hash", lambda full: f"hash of {full}")
        monkeypatch.setattr(validate, "_placed", self.placed)
        monkeypatch.setattr(validate, "_simulated", self.simulated)
        monkeypatch.setattr(validate, "_alternated", self.alternated)
        monkeypatch.setattr(validate, "profile_of_now", self.now)

    def load(self, name: str) -> Any:
        self.log.append(name)
        return self.profile

    @contextmanager
    def placed(self, *given: Any, **changed: Any) -> Iterator[Any]:
        self.log.append(("placed", *given[1:], changed))
        live = session(spec=SimpleNamespace(model_dump=lambda: {"slots": 1, "model": "m"}),
                       full="full")  # fmt: skip
        yield SimpleNamespace(session=live, stage=SimpleNamespace(machine="simulated", slots=40))
        self.log.append("left")

    def simulated(self, request: Any, live: Any, scratch: Path, *given: Any) -> Any:
        self.log.append(("simulated", scratch, *given))
        tokens = [10.0, 10.0] if given[0] == "gpu-only" else [30.0, 50.0]
        return measured([], []).document, Times([25.0], tokens)

    def alternated(
        self, request: Any, name: str, options: Any, resident: Any, scratch: Path
    ) -> Any:
        self.log.append(("measured", name, options, scratch))
        if name in self.refuse:
            raise self.refuse[name]
        return measured([60.0, 100.0], [20.0, 20.0])

    @contextmanager
    def now(self, profile: Path, factor: float) -> Iterator[Path]:
        self.log.append(("now", profile, factor))
        yield Path(f"now {factor}.yaml")


def test_every_system_is_measured_and_then_simulated_at_the_speed_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, said = Runs(monkeypatch), list[str]()
    before = datetime.now(UTC).replace(microsecond=0)
    found = validate.validate(request(), Path("s"), said.append)
    assert said == ["smoe: measured", "smoe: simulated", "daop: measured", "daop: simulated"]
    resident = {"cache_ratio": 1.0, "slots": None}
    own = {"name": "own spec"}
    assert runs.log == [
        "here.yaml", ("placed", "gpu-only", {}, Path("s"), resident),
        ("simulated", Path("s"), "gpu-only", {}, {"slots": 40, "model": "m"}, Path("here.yaml")),
        *[step for name, options in (("smoe", {"alpha": "0.3"}), ("daop", {})) for step in (
            ("measured", name, options, Path("s")), ("measured", name, options, Path("s")),
            ("now", Path("here.yaml"), 2.0),
            ("simulated", Path("s"), name, options, own, Path("now 2.0.yaml")))],
        "left",
    ]  # fmt: skip
    created = datetime.fromisoformat(found["provenance"].pop("created"))
    assert before <= created <= datetime.now(UTC)
    assert created.microsecond == 0
    one, other = found.pop("rows")
    assert (one["system"], one["options"]) == ("smoe", {"alpha": "0.3"})
    assert (other["system"], other["options"]) == ("daop", {})
    # 60 and 100 over 20 are 3 and 5; 30 and 50 over twice 10 are 1.5 and 2.5.
    assert one["tpot_ms"]["over_resident"] == {"measured": 4.0, "simulated": 2.0}
    assert one["ttft_ms"]["over_resident"] == {"measured": 2.0, "simulated": 0.5}
    assert one["resident"] == [-0.5, -0.5], "the profile says half of the measured time"
    assert found.pop("summary") == validate.summary([one, other])
    assert found == {
        "profile": "here", "profile_hash": "p1", "calibrated": "2026-01-02",
        "calibration_error": 0.03, "model": "my model", "emulated_link_gb_s": 4.0,
        "not_possible": [],
        "provenance": {key: f"the {key}" for key in
                       ("versions", "commit", "machine", "weights_hash", "data_hash", "threads")},
    }  # fmt: skip


def test_what_cannot_run_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, moves=False)
    runs.profile.calibration = None
    runs.profile.model_dump = lambda: {"calibration": None}
    runs.refuse = {"smoe": BudgetError("too large")}
    systems: dict[str, dict[str, str]] = {"fiddler": {"x": "1"}, "smoe": {}, "daop": {}}
    found = validate.validate(request(systems=systems, repeats=1), Path("s"),
                              skip=lambda name: "not asked" * (name == "fiddler"))  # fmt: skip
    assert found["not_possible"] == [
        {"system": "fiddler", "options": {"x": "1"}, "reason": "not asked"},
        {"system": "smoe", "options": {}, "reason": "too large"},
    ]
    assert [one["system"] for one in found["rows"]] == ["daop"]
    assert (found["calibrated"], found["calibration_error"]) == (None, None)
    # Without measurements of this model, the profile is used as it is.
    assert ("now", Path("here.yaml"), 1.0) in runs.log
    assert found["rows"][0]["tpot_ms"]["over_resident"]["simulated"] == 4.0
    runs.refuse["daop"] = UsageError("no")
    with pytest.raises(UsageError) as caught:
        validate.validate(request(systems={"smoe": {}, "daop": {}}), Path("s"))
    assert str(caught.value) == "no system can run here: too large"


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_resident_models_records_are_released(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts that are on the device need not be in host memory, too; those on disk are not."""
    runs, released = Runs(monkeypatch), []

    class Records(MemoryRecords):
        def __init__(self) -> None:
            pass

        def release(self) -> None:
            released.append("released")

    machine = Machine([])
    machine.records = Records() if in_memory else SimpleNamespace()

    @contextmanager
    def placed(*given: Any, **changed: Any) -> Iterator[Any]:
        with runs.placed(*given, **changed) as ready:
            ready.stage.machine = machine
            yield ready

    monkeypatch.setattr(validate, "_placed", placed)
    validate.validate(request(), Path("s"))
    assert released == ["released"] * in_memory

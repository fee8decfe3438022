"""Answers of this project's systems, from runs that the test makes up."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.advise import ours
from moebench.harness.advise.answer import Rate
from moebench.harness.advise.question import Lengths, Question
from moebench.results.published_errors import Error
from moebench.substrate.errors import UsageError
from tests.harness.advise.asked import PC, question

GIB = 2**30


def document(lossless: bool, kl: float = 0.0) -> dict[str, Any]:
    return {
        "metrics": {"tpot_ms": {"mean": 50.0}}, "lossless": lossless, "notes": ["a note"],
        "memory": {"offered_device_bytes": 3 * GIB}, "accuracy": {"kl": kl},
    }  # fmt: skip


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The runs that were asked for; the model's is lossy, and each takes 50 ms a token."""
    asked: list[Any] = []

    def run(system: str, **options: Any) -> Any:
        asked.append((system, options))
        drawn = "routing" in options
        one = document(system != "smoe", 9.0 if drawn else 0.01234)
        return SimpleNamespace(documents=[one, None])

    monkeypatch.setattr(ours, "run", run)
    monkeypatch.setattr(ours, "load_profile", lambda machine, software: (machine, software))
    monkeypatch.setattr(
        ours, "rate_error", lambda system, profile: Error(1.25, f"{system} {profile}", checked=True)
    )
    return asked


def one(**changes: Any) -> Question:
    return question(lengths=Lengths(32768, 4096, 500), batch=2, **changes)


def test_an_answer_is_that_of_a_simulated_run(runs: list[Any]) -> None:
    found = ours.system_answer(one(), "fiddler", Path("store"))
    ((system, options),) = runs
    assert (system, options["store"], options["interval"]) == ("fiddler", Path("store"), False)
    assert (options["routing"], options["context"], options["batch"]) == ("drawn", 4096, 2)
    assert found.engine == found.configuration.engine == "moebench:fiddler"
    assert found.config == f"simulated with {options['software']} software"
    # Two texts at once give two tokens in 50 ms; the error's factor is that of either end.
    assert found.decode == Rate(40.0, 32.0, 50.0)
    assert found.request_s == 500 * 2 / 40
    assert (found.prefill, found.ttft_s) == (None, None)
    asked = one()
    host = asked.shape.routed_params * asked.bits.routed / 8 / GIB
    assert (found.device_gib, found.host_gib, found.disk_gib) == (3.0, pytest.approx(host), 0.0)
    assert (found.quality, found.verdict, found.fits) == ("lossless", "fits", "fits")
    assert (found.checked, found.remarks) == (True, ("a note",))


def test_a_lossy_system_is_computed_on_the_scale_model(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "scale_names", lambda: [])
    found = ours.system_answer(one(), "smoe", Path("s"))
    assert found.quality == "lossy; no scale model of it ships, so its KL is not known"
    assert len(runs) == 1
    monkeypatch.setattr(ours, "scale_names", lambda: ["gpt-oss-120b"])
    found = ours.system_answer(one(), "smoe", Path("s"))
    assert found.quality == "lossy: 0.012 nats of KL a token on the scale model"
    (_, drawn), (system, computed) = runs[1:]
    assert system == "smoe"
    assert drawn.keys() - computed.keys() == {"routing", "context"}
    assert (computed["store"], computed["interval"]) == (Path("s"), False)


def test_a_run_without_a_plan_of_memory_has_none(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = {**document(True), "memory": None}
    monkeypatch.setattr(ours, "run", lambda *a, **o: SimpleNamespace(documents=[bare]))
    assert ours.system_answer(one(), "fiddler", Path("s")).device_gib == 0.0


def test_files_and_calibrated_machines_are_refused(runs: list[Any]) -> None:

    asked = one()
    calibrated: Any = SimpleNamespace()
    for other in (
        replace(asked, model="x.gguf"), replace(asked, hardware=replace(PC, profile=calibrated))
    ):  # fmt: skip
        with pytest.raises(UsageError, match="needs parts and a model's name"):
            ours.system_answer(other, "fiddler", Path("s"))
    assert runs == []

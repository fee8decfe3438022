"""Recordings of live runs: which run is recorded, what the header says, and what is kept."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.harness.run import recording
from moebench.harness.run.recording import (
    EXACT,
    Recorded,
    answered,
    header,
    once,
    planned_header,
    record,
)
from moebench.results.spec import RunSpec
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.traces.file import Header
from moebench.substrate.traces.record import recorded_predictions

MODEL = "mixtral-8x7b"


def spec_of(**given: Any) -> RunSpec:
    base = {"system": "smoe", "machine": "h100", "model": MODEL, "workload": "arithmetic"}
    return RunSpec(**{**base, **given})


#: What decides the tokens that a model computes, each with a value that no default has.
TEXT: dict[str, Any] = {
    "model": MODEL, "weights": "elsewhere", "workload": "gsm8k", "prompts": 7, "new_tokens": 19,
    "seed": 5, "few_shot": 3, "plain_prompts": True,
}  # fmt: skip


def test_the_recorded_run_has_the_text_of_the_run_and_nothing_else_of_it() -> None:
    other: dict[str, Any] = {
        "batch": 2, "slots": 9, "variant": "shipped", "overrides": {"evict": "lru"},
        "setting": "S3", "software": "hf-eager", "temperature": 0.5,
    }  # fmt: skip
    made = once(spec_of(**TEXT, **other))
    assert made == RunSpec(system="gpu-only", machine="a6000", allow_overcommit=True, **TEXT)


class Session(SimpleNamespace):
    """A session of a run of ten prompts, which notes the batches that it answers."""

    def __init__(self, **given: Any) -> None:
        self.answers: list[Any] = []
        shape = model_shape(MODEL)
        base = {
            "spec": spec_of(prompts=5, batch=2), "run_id": "abc123", "hashes": {"weights": "w1"},
            "sample": SimpleNamespace(source="a set", examples=[1, 2, 3], available=40,
                                      data_hash="d1"),
            "weights": SimpleNamespace(checkpoint=SimpleNamespace(shape=shape)),
            "system": SimpleNamespace(lossless=True, lookaheads=()),
        }  # fmt: skip
        super().__init__(**{**base, **given})

    def open(self, scratch: Path, keep: bool, stack: Any) -> Any:
        self.answers.append(("open", scratch, keep, torch.is_inference_mode_enabled()))
        return SimpleNamespace(start=lambda: self.answers.append("start"))

    def answer(self, stage: Any, rows: slice) -> None:
        self.answers.append((rows.start, rows.stop))


def test_all_batches_of_a_session_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five prompts, two at a time, are three batches, each told when it is done."""
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    session, told = Session(), []
    answered(session, tmp_path, lambda *done: told.append(done))  # type: ignore[arg-type]
    assert session.answers == [("open", tmp_path, False, True), "start", (0, 2), (2, 4), (4, 6)]
    assert told == [(2, 5), (4, 5), (6, 5)]
    assert threads == [1]


@pytest.mark.parametrize("lossless", [True, False])
def test_the_header_names_weights_prompts_system_and_run(lossless: bool) -> None:
    session = Session(system=SimpleNamespace(lossless=lossless, lookaheads=()))
    found = header(session)  # type: ignore[arg-type]
    assert found.source == {
        "weights": f"scale model of {MODEL}", "weights_hash": "w1", "system": "smoe",
        "run_id": "abc123", "spec": session.spec.model_dump(mode="json"),
        "data": "a set: 3 of 40", "data_hash": "d1",
    }  # fmt: skip
    assert (found.model, found.workload, found.lossless) == (MODEL, "arithmetic", lossless)
    assert (found.num_moe_layers, found.num_experts, found.top_k) == (32, 8, 2)
    own = Session(spec=spec_of(weights="my/folder"))
    assert header(own).source["weights"] == "my/folder"  # type: ignore[arg-type]


def test_the_header_that_is_planned_has_all_arrays_and_predictions() -> None:
    session = Session()
    found = planned_header(session)  # type: ignore[arg-type]
    plain = header(session)  # type: ignore[arg-type]
    assert found.predictions == recorded_predictions((), "smoe") != {}
    arrays = {name: one.model_dump() for name, one in found.arrays.items()}
    assert arrays == {
        "hidden": {"dtype": "float32", "shape": (0, 32, 4096), "sha256": ""},
        "embedding": {"dtype": "float32", "shape": (0, 4096), "sha256": ""},
    }
    assert found.model_copy(update={"predictions": {}, "arrays": {}}) == plain


def test_predictions_of_the_recorded_system_are_marked_as_its_own() -> None:
    kinds = list(recorded_predictions((), "smoe"))
    session = Session(system=SimpleNamespace(lossless=True, lookaheads=(kinds[0],)))
    found = planned_header(session).predictions  # type: ignore[arg-type]
    assert found[kinds[0]].made == "as smoe saw it"
    assert all(found[kind].made != "as smoe saw it" for kind in kinds[1:])


@pytest.mark.parametrize(
    ("kept", "weights", "states"),
    [
        (Recorded("float16", None), None, True), (Recorded("float16", None), "mine", False),
        (Recorded("float16", True), "mine", True), (Recorded("float16", False), None, False),
        (EXACT, "mine", True),
    ],
)  # fmt: skip
def test_states_are_kept_of_scale_models_or_where_asked(
    kept: Recorded, weights: str | None, states: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made: list[Any] = []

    class Writing:
        def __init__(self, out: Path, header: Header) -> None:
            made.append((out, header.source["run_id"]))

        def __enter__(self) -> Any:
            return SimpleNamespace(describe=lambda **given: made.append(given))

        def __exit__(self, *error: object) -> None:
            made.append("closed")

    def run(session: Any, scratch: Path, progress: Any) -> None:
        made.append((scratch, session.wrap("a model")))
        progress(1, 2)

    monkeypatch.setattr(recording, "writing", Writing)
    monkeypatch.setattr(recording, "TraceRecorder", lambda model, writer, *given: (model, *given))
    session, told = Session(spec=spec_of(weights=weights)), []
    out = tmp_path / "traces" / "new"
    record(session, out, kept, run, lambda *done: told.append(done))  # type: ignore[arg-type]
    assert made == [
        (out, "abc123"), {"predictions": recorded_predictions((), "smoe")},
        (tmp_path / "traces", ("a model", kept.scores, states)), "closed",
    ]  # fmt: skip
    assert told == [(1, 2)]


def test_an_exact_recording_keeps_single_precision_and_states() -> None:
    assert EXACT == ("float32", True)
    assert recording.MACHINE == "a6000"

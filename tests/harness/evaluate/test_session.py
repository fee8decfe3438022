"""Sessions for evaluators: options that they take, lengths of texts, and what is answered."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.evaluate import session
from moebench.harness.evaluate.session import (
    NO_PROMPTS,
    EvaluatedSession,
    prepare_evaluated,
    resolve_evaluated,
)
from moebench.substrate.errors import UsageError


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is resolved and refused; the spec is of a system of the engine."""
    given: list[Any] = []

    def resolve(data_dir: Path | None, **options: Any) -> Any:
        given.append((data_dir, options))
        return SimpleNamespace(system=options["system"], native=options["system"] == "native-x")

    monkeypatch.setattr(session, "resolve", resolve)
    monkeypatch.setattr(session, "refuse", lambda *what: given.append(what))
    return given


@pytest.mark.parametrize(
    ("mode", "scoring"), [(None, "generation"), ("decode", "generation"), ("prefill", "prefill")]
)
def test_requests_are_answered_without_prompts_of_a_workload(
    mode: str | None, scoring: str, resolved: list[Any]
) -> None:
    spec = resolve_evaluated(Path("data"), mode, system="smoe", batch=3, trace=None, seed=None)
    assert spec.system == "smoe"
    refused, (data_dir, options) = resolved
    assert refused == ({"system": "smoe", "batch": 3}, "evaluated")
    assert data_dir == Path("data")
    assert options == {
        "system": "smoe", "batch": 3, "scoring": scoring, "new_tokens": 256, "prompts": 3,
        "plain_prompts": True,
    }  # fmt: skip
    resolved.clear()
    resolve_evaluated(None, mode, system="smoe", routing="model")
    assert resolved[1][1]["prompts"] == 1


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("other", {}, "--mode other: allowed: decode, prefill"),
        (None, {"trace": "t"}, "an evaluator needs answers: a replay of routing computes none"),
        (None, {"routing": "drawn"},
         "an evaluator needs answers: a replay of routing computes none"),
        (None, {"system": "native-x"},
         "--system native-x: a package that runs by itself is not asked by evaluators; see: "
         "moebench list systems"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_one_line(
    mode: str | None, options: dict[str, str], said: str, resolved: list[Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_evaluated(None, mode, **{"system": "smoe", **options})
    assert str(caught.value) == said


@pytest.fixture
def positions(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The shape of the opened weights, whose positions a test may change."""
    shape = SimpleNamespace(max_positions=4096)
    weights = SimpleNamespace(
        full="full", hashes={"weights": "w"}, checkpoint=SimpleNamespace(shape=shape)
    )
    monkeypatch.setattr(session, "computing_system", lambda spec: f"system of {spec}")
    monkeypatch.setattr(session, "open_weights", lambda spec: weights)
    monkeypatch.setattr(session, "own_hashes", lambda *given: {"system": repr(given)})
    return shape


@pytest.mark.parametrize(
    ("most", "asked", "length"),
    [(4096, None, 2048), (512, None, 512), (2048, None, 2048), (4096, 2, 2), (4096, 4096, 4096)],
)
def test_the_longest_text_has_as_many_tokens_as_the_model_has_positions(
    most: int, asked: int | None, length: int, positions: Any
) -> None:
    positions.max_positions = most
    spec: Any = "spec"
    found: Any = prepare_evaluated(spec, Path("data"), asked)
    assert found.max_length == found.longest == length
    assert found.note == (
        f"an evaluator asked; memory is planned for texts of up to {length} tokens"
    )
    assert (found.spec, found.system, found.full) == ("spec", "system of spec", "full")
    assert found.hashes == {
        "weights": "w", "data": "",
        "system": repr(("spec", "system of spec", Path("data"))),
    }  # fmt: skip
    assert (found.sample, found.data_dir) == (NO_PROMPTS, Path("data"))
    assert found.weights.checkpoint.shape is positions


@pytest.mark.parametrize("length", [1, 0, 4097])
def test_lengths_beyond_the_models_are_refused(length: int, positions: Any) -> None:
    spec: Any = "spec"
    with pytest.raises(UsageError) as caught:
        prepare_evaluated(spec, None, length)
    assert str(caught.value) == f"--max-length {length}: allowed: 2 to 4096, the model's own"


@pytest.mark.parametrize("scoring", ["generation", "prefill"])
def test_answers_are_those_of_the_responder(scoring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = object.__new__(EvaluatedSession)
    made.spec = SimpleNamespace(scoring=scoring, batch=3)
    made.weights, made.max_length = "weights", 77
    assert made.mode == ("prefill" if scoring == "prefill" else "decode")
    generation: Any = object()

    def responder(*given: Any) -> Any:
        return SimpleNamespace(given=given, written={id(generation): [[1, 2]]},
                               accuracy=lambda: {"agreement": 1.0})  # fmt: skip

    monkeypatch.setattr(session, "Responder", responder)
    made.attach("decoder")
    assert made.responder.given == ("weights", 3, "decoder", 77, made.mode)
    assert made.written(generation) == [[1, 2]]
    assert made.written(object()) == []
    assert made.accuracy() == {"agreement": 1.0}


def test_nothing_is_drawn_for_an_evaluator() -> None:
    assert (NO_PROMPTS.examples, NO_PROMPTS.source) == ((), "an evaluator's own")
    assert (NO_PROMPTS.seed, NO_PROMPTS.available, NO_PROMPTS.data_hash) == (0, 0, "")

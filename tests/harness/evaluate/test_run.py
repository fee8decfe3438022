"""An evaluation from its tasks to the run's document, with an evaluator that a test plays."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.evaluate import run, session, tasks
from moebench.harness.evaluate.outcome import Metric, TaskResult, evaluation
from moebench.harness.evaluate.session import prepare_evaluated, resolve_evaluated
from moebench.harness.evaluate.tasks import Questions, draw
from moebench.substrate.errors import MoeBenchError, UnknownNameError, UsageError
from moebench.workloads.draw import PromptSet
from moebench.workloads.example import Example


def example(name: str, choices: Any = None) -> Example:
    return Example(
        id=name, prompt="?", choices=choices, answer=0 if choices else "a", solution=None
    )


def questions(
    name: str, count: int, shots: int = 0, chance: float | None = None, **more: Any
) -> Any:
    examples = tuple(example(f"{name}{n}") for n in range(count))
    drawn = PromptSet(examples=examples, source=f"{name}'s", split="test", seed=3,
                      available=9 * count, data_hash=f"h{name}")  # fmt: skip
    chosen: Any = SimpleNamespace(name=name, chance=chance)
    return Questions(workload=chosen, drawn=drawn, shots=(example("shot"),) * shots)


@dataclass
class Session:
    """What `about` and `evaluate` read of a session."""

    max_length: int = 64
    sample: Any = None
    hashes: dict[str, str] = field(default_factory=lambda: {"weights": "w", "data": ""})
    run_id: str = "r1"
    mode: str = "decode"
    responder: Any = None


def test_the_id_depends_on_the_evaluator_and_all_that_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "_code", lambda: "code")
    asked = [questions("a", 2), questions("b", 1, shots=2)]
    base = run.about(Session(), "lm-eval", "1", asked)  # type: ignore[arg-type]
    assert base.sample == PromptSet(
        examples=(example("a0"), example("a1"), example("b0")), source="a's + b's", split="test",
        seed=3, available=27, data_hash="ha+hb",
    )  # fmt: skip
    assert {k: v for k, v in base.hashes.items() if k != "evaluation"} == {
        "weights": "w", "data": "ha+hb",
    }  # fmt: skip
    others = [
        run.about(of, name, version, ones)
        for of, name, version, ones in (
            (Session(), "opencompass", "1", asked), (Session(), "lm-eval", "2", asked),
            (Session(max_length=65), "lm-eval", "1", asked), (Session(), "lm-eval", "1", asked[:1]),
            (Session(), "lm-eval", "1", [asked[0], questions("b", 1, shots=1)]),
        )
    ]  # fmt: skip
    monkeypatch.setattr(run, "_code", lambda: "other code")
    others.append(run.about(Session(), "lm-eval", "1", asked))  # type: ignore[arg-type]
    ids = {one.hashes["evaluation"] for one in (base, *others)}
    assert len(ids) == 1 + len(others)
    monkeypatch.setattr(run, "_code", lambda: "code")
    again = run.about(Session(), "lm-eval", "1", asked)  # type: ignore[arg-type]
    assert again.hashes == base.hashes


def test_the_code_of_evaluations_is_hashed() -> None:
    assert len(run._code()) == 64
    assert run._code() == run._code()


class Fails(Exception):
    """What an evaluator's failure raises."""


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """An evaluator that notes what it is given, and whose folder may hold what it left."""
    found: dict[str, Any] = {"fails": False}

    def evaluate(of: Any, asked: Any, folder: Path, progress: Any) -> list[TaskResult]:
        found.update(folder=folder, asked=asked, engine=of.responder.engine, progress=progress,
                     left=sorted(path.name for path in folder.iterdir()))  # fmt: skip
        (folder / "file").touch()
        if found["fails"]:
            raise Fails
        return [RESULT]

    @contextmanager
    def started(of: Any, scratch: Path, progress: Any) -> Iterator[Any]:
        timeline = SimpleNamespace(picture=lambda: "picture")
        stage = SimpleNamespace(engine="engine", timeline=timeline)
        document = {"spec": {"seed": 1}, "notes": ["own"], "provenance": {"versions": {}}}
        found["timeline"] = timeline
        yield SimpleNamespace(stage=stage, document=lambda generations: document
                              | {"of": generations})  # fmt: skip

    monkeypatch.setattr(run, "evaluator", lambda name: SimpleNamespace(evaluate=evaluate))
    monkeypatch.setattr(run, "started", started)
    return found


RESULT = TaskResult(
    task="t", workload="a", version="1", task_hash="th", data="d", data_hash="dh", shown=0, n=2,
    metrics=[Metric(name="acc", value=0.5)],
)  # fmt: skip


@pytest.mark.parametrize(("truncated", "shots", "few"), [(0, (1, 1), 1), (3, (1, 2), None)])
def test_an_evaluation_is_part_of_the_runs_document(
    truncated: int, shots: tuple[int, int], few: int | None, played: dict[str, Any], tmp_path: Path
) -> None:
    responder = SimpleNamespace(generations="made", truncated=truncated, requests={"read": 4})
    of = Session(responder=responder)
    asked = [questions("a", 2, shots[0]), questions("b", 1, shots[1])]
    left = tmp_path / "evaluations" / "r1"
    left.mkdir(parents=True)
    (left / "old").touch()
    outcome = run.evaluate(of, "lm-eval", "7", asked, tmp_path, "progress")  # type: ignore[arg-type]
    lost = "3 contexts were longer than there was room for and lost their beginning"
    assert outcome.document == {
        "spec": {"seed": 1, "workload": "lm-eval: a, b", "prompts": 3, "few_shot": few},
        "notes": ["own", *([lost] if truncated else [])],
        "evaluation": {
            "evaluator": "lm-eval", "version": "7", "mode": "decode", "requests": {"read": 4},
            "truncated": truncated,
            "tasks": [{
                "task": "t", "workload": "a", "version": "1", "task_hash": "th", "data": "d",
                "data_hash": "dh", "shown": 0, "n": 2,
                "metrics": [{"name": "acc", "value": 0.5, "whole": 1.0, "guessing": None,
                             "stderr": None, "higher_is_better": None, "items": ()}],
            }],
        },
        "provenance": {"versions": {"lm-eval": "7"}}, "of": "made",
    }  # fmt: skip
    assert (outcome.picture, outcome.generations) == ("picture", "made")
    assert outcome.timeline is played["timeline"]
    assert (played["engine"], played["asked"], played["progress"]) == ("engine", asked, "progress")
    assert (played["folder"], played["left"]) == (left, []), "what a failure left is removed"
    assert not left.exists()


def test_files_of_an_evaluation_are_kept_on_request_and_after_a_failure(
    played: dict[str, Any], tmp_path: Path
) -> None:
    of = Session(responder=SimpleNamespace(generations="", truncated=0, requests={}))
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "old").touch()
    run.evaluate(of, "lm-eval", "7", [questions("a", 1)], tmp_path, None, kept)  # type: ignore[arg-type]
    assert (played["folder"], played["left"]) == (kept, ["old"])
    assert sorted(path.name for path in kept.iterdir()) == ["file", "old"]
    played["fails"] = True
    with pytest.raises(Fails):
        run.evaluate(of, "lm-eval", "7", [questions("a", 1)], tmp_path, None)  # type: ignore[arg-type]
    assert (tmp_path / "evaluations" / "r1" / "file").exists()


def test_unknown_evaluators_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown evaluator 'lm_eval'; nearest: lm-eval"):
        run.evaluator("lm_eval")
    assert run.evaluator("opencompass").__name__.endswith("opencompass_run")


def test_an_evaluations_part_is_plain() -> None:
    part = evaluation("e", "1", "prefill", [], {"read": 1}, 2)
    assert json.loads(json.dumps(part)) == {
        "evaluator": "e", "version": "1", "mode": "prefill", "requests": {"read": 1},
        "truncated": 2, "tasks": [],
    }  # fmt: skip


# --------------------------------------------------------------------------- tasks


def test_guessing_is_right_by_the_options_or_the_workloads_chance() -> None:
    four, two = example("x", ["a", "b", "c", "d"]), example("y", ["a", "b"])
    for chance, examples, share in (
        (None, (four, two), (1 / 4 + 1 / 2) / 2), (50.0, (four, example("z")), (1 / 4 + 1 / 2) / 2),
        (None, (example("z"),), 0.0),
    ):  # fmt: skip
        asked = questions("a", 1, chance=chance)
        drawn = PromptSet(examples=examples, source="", split="test", seed=0, available=2,
                          data_hash="")  # fmt: skip
        assert Questions(workload=asked.workload, drawn=drawn, shots=()).guessing == share
    assert asked.name == "a"


def test_tasks_are_drawn_as_a_run_draws_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(chosen: str, split: str = "test", count: int = 0, seed: int = 0,
             data_dir: Any = None) -> Any:  # fmt: skip
        asked.append((chosen, split, count, seed, data_dir))
        return SimpleNamespace(examples=(f"{split} of {chosen}",))

    monkeypatch.setattr(tasks, "workload", lambda name: name)
    monkeypatch.setattr(tasks, "load", load)
    monkeypatch.setattr(tasks, "few_shot_count", lambda few, name, of: {"a": 0, "b": 5}[name])
    found = draw(["a", "b"], 7, 3, "paper", "D1", Path("data"))
    assert [(one.workload, one.shots) for one in found] == [("a", ()), ("b", ("train of b",))]
    assert asked == [("a", "test", 7, 3, Path("data")), ("b", "train", 5, 3, Path("data")),
                     ("b", "test", 7, 3, Path("data"))]  # fmt: skip
    for names in (["a", "b", "a"], []):
        with pytest.raises(UsageError) as caught:
            draw(names, 7, 3, "0", None, None)
        assert str(caught.value) == f"--tasks {','.join(names)}: give each once, at least one"


# --------------------------------------------------------------------------- sessions

BARE: dict[str, Any] = {"system": "smoe", "model": "mixtral-8x7b", "machine": "a6000"}


@pytest.mark.parametrize(
    ("mode", "more", "scoring", "prompts"),
    [
        (None, {}, "generation", 1), ("decode", {"batch": 4}, "generation", 4),
        ("prefill", {"routing": "model"}, "prefill", 1),
    ],
)  # fmt: skip
def test_an_evaluated_run_answers_as_its_mode_says(
    mode: str | None, more: dict[str, Any], scoring: str, prompts: int
) -> None:
    spec = resolve_evaluated(None, mode, **BARE | more, seed=None)
    assert (spec.scoring, spec.prompts, spec.new_tokens) == (scoring, prompts, 256)
    assert spec.plain_prompts
    made = object.__new__(session.EvaluatedSession)
    made.spec, made.max_length = spec, 77
    assert made.mode == (mode or "decode")
    assert made.longest == 77
    assert made.note == "an evaluator asked; memory is planned for texts of up to 77 tokens"
    made.responder = SimpleNamespace(written={}, accuracy=lambda: "accuracy")  # type: ignore
    generation: Any = SimpleNamespace()
    assert made.written(generation) == []
    made.responder.written[id(generation)] = [[1]]
    assert made.written(generation) == [[1]]
    assert made.accuracy() == "accuracy"


@pytest.mark.parametrize(
    ("mode", "more", "says"),
    [
        ("fast", {}, "--mode fast: allowed: decode, prefill"),
        (None, {"trace": "x"}, "an evaluator needs answers: a replay of routing computes none"),
        (None, {"routing": "drawn"},
         "an evaluator needs answers: a replay of routing computes none"),
        (None, {"system": "native-llamacpp", "machine": "local", "setting": "S3"},
         "--system native-llamacpp: a package that runs by itself is not asked by evaluators; see: "
         "moebench list systems"),
        (None, {"workload": "facts"},
         "workload: an evaluator chooses its questions and how they are put"),
    ],
)  # fmt: skip
def test_what_no_evaluator_asks_is_refused(
    mode: str | None, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(MoeBenchError) as caught:
        resolve_evaluated(None, mode, **BARE | more)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("asked", "positions", "length"),
    [(None, 4096, 2048), (None, 512, 512), (2, 512, 2), (512, 512, 512), (3000, 4096, 3000)],
)
def test_memory_is_planned_for_the_longest_text(
    asked: int | None, positions: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = SimpleNamespace(max_positions=positions)
    weights = SimpleNamespace(checkpoint=SimpleNamespace(shape=shape), full="full", hashes={"w": 1})
    monkeypatch.setattr(session, "computing_system", lambda spec: f"system of {spec}")
    monkeypatch.setattr(session, "open_weights", lambda spec: weights)
    monkeypatch.setattr(session, "own_hashes", lambda *given: {"own": given})
    monkeypatch.setattr(session, "EvaluatedSession", lambda **given: given)
    spec: Any = "spec"
    assert prepare_evaluated(spec, Path("d"), asked) == {
        "spec": "spec", "system": "system of spec", "full": "full", "sample": session.NO_PROMPTS,
        "hashes": {"w": 1, "own": ("spec", "system of spec", Path("d")), "data": ""},
        "weights": weights, "data_dir": Path("d"), "max_length": length,
    }  # fmt: skip
    for wrong in (1, positions + 1):
        with pytest.raises(UsageError) as caught:
            prepare_evaluated(spec, None, wrong)
        assert str(caught.value) == (
            f"--max-length {wrong}: allowed: 2 to {positions}, the model's own"
        )

"""Tasks of evaluators: which examples are drawn, and what a guess gets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.evaluate import tasks
from moebench.harness.evaluate.tasks import Questions, draw
from moebench.substrate.errors import UsageError


def questions(*choices: int, chance: float | None = None) -> Questions:
    """Return questions with numbers of choices; 0 is a question without."""
    examples = [SimpleNamespace(choices=["x"] * count or None) for count in choices]
    workload: Any = SimpleNamespace(name="facts", chance=chance)
    drawn: Any = SimpleNamespace(examples=examples)
    return Questions(workload=workload, drawn=drawn, shots=())


def test_a_guess_is_one_of_the_choices_or_the_workloads_chance() -> None:
    assert questions(2, 4).name == "facts"
    assert questions(2, 4).guessing == (1 / 2 + 1 / 4) / 2
    assert questions(2, 0, chance=10.0).guessing == (1 / 2 + 0.1) / 2
    assert questions(0, 0).guessing == 0


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is loaded; few-shot examples are those of the train split."""
    asked: list[Any] = []

    def load(chosen: Any, *given: Any, **more: Any) -> Any:
        asked.append((chosen, given, more))
        return SimpleNamespace(examples=("shot",) if given else ("example",))

    def few_shot_count(asked: str, name: str, setting: str | None) -> int:
        return {"facts": 0, "gsm8k": 4}[name] if (asked, setting) == ("paper", "S1") else int(asked)

    monkeypatch.setattr(tasks, "load", load)
    monkeypatch.setattr(tasks, "few_shot_count", few_shot_count)
    monkeypatch.setattr(tasks, "workload", lambda name: f"workload {name}")
    return asked


def test_examples_are_those_of_a_run_with_the_same_options(loaded: list[Any]) -> None:
    found = draw(["facts", "gsm8k"], 7, 3, "paper", "S1", Path("data"))
    assert loaded == [
        ("workload facts", (), {"count": 7, "seed": 3, "data_dir": Path("data")}),
        ("workload gsm8k", ("train", 4, 3, Path("data")), {}),
        ("workload gsm8k", (), {"count": 7, "seed": 3, "data_dir": Path("data")}),
    ]  # fmt: skip
    assert [(one.workload, one.drawn.examples, one.shots) for one in found] == [
        ("workload facts", ("example",), ()), ("workload gsm8k", ("example",), ("shot",)),
    ]  # type: ignore[comparison-overlap]  # fmt: skip


@pytest.mark.parametrize(("names", "said"), [((), ""), (("facts", "facts"), "facts,facts")])
def test_tasks_are_named_once(names: tuple[str, ...], said: str, loaded: list[Any]) -> None:
    with pytest.raises(UsageError) as caught:
        draw(names, 7, 0, "0", None, None)
    assert str(caught.value) == f"--tasks {said}: give each once, at least one"
    assert loaded == []

"""Commands that repeat an evaluation, from the document alone."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.evaluate.session import resolve_evaluated
from moebench.harness.run.repeat import repeat
from moebench.results.store import Store


def evaluated(*tasks: tuple[str, int, int]) -> dict[str, Any]:
    """Return an evaluation's document; of each task its name, questions and shown examples."""
    spec = resolve_evaluated(None, "decode", system="smoe", setting="S3")
    return {
        "run_id": "0123456789ab",
        "spec": spec.model_dump(),
        "evaluation": {
            "evaluator": "lm-eval", "mode": "decode",
            "tasks": [{"workload": name, "n": n, "shown": shown} for name, n, shown in tasks],
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tasks", "prompts", "shown"),
    [
        ([("arc_easy", 3, 0)], "3", None),
        ([("arc_easy", 3, 0), ("mmlu", 5, 2)], "5", "2"),
        ([("mmlu", 4, 1)], "4", "1"),
    ],
)
def test_an_evaluation_names_tasks_questions_and_shots(
    tasks: list[tuple[str, int, int]], prompts: str, shown: str | None, tmp_path: Path
) -> None:
    words = shlex.split(repeat(Store(tmp_path), evaluated(*tasks)))
    assert words[:4] == ["moebench", "eval", "--engine", "lm-eval"]

    def after(flag: str) -> str | None:
        return words[words.index(flag) + 1] if flag in words else None

    assert after("--tasks") == ",".join(name for name, _, _ in tasks)
    assert (after("--prompts"), after("--few-shot")) == (prompts, shown)
    assert (after("--system"), after("--setting"), after("--mode")) == ("smoe", "S3", "decode")

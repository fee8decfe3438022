"""Scores of an evaluator, stored as the part ``evaluation`` of a run's document."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One score of a task, as the evaluator reports it.

    Attributes:
        name: the evaluator's name, with its filter or mode if any: ``acc``,
            ``exact_match (strict-match)``.
        whole: the value if all answers are right: 1, or 100 for an evaluator that uses percent.
        guessing: the value of guessing, in the same unit; None if nothing can be guessed.
        stderr: standard error; None if the evaluator reports none.
        items: value of each example, in the order of drawing; empty if not reported.
    """

    name: str
    value: float
    whole: float = 1.0
    guessing: float | None = None
    stderr: float | None = None
    higher_is_better: bool | None = None
    items: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Scores of an evaluator on one task, with the versions of task and data.

    Attributes:
        workload: the workload whose examples the evaluator used.
        version, task_hash: the evaluator's own, which change with its prompts and scoring.
        data, data_hash: source of the examples, and the hash of the drawn ones, which a moebench
            run on the same examples has too.
        shown: few-shot examples that moebench puts before each prompt.
    """

    task: str
    workload: str
    version: str
    task_hash: str
    data: str
    data_hash: str
    shown: int
    n: int
    metrics: Sequence[Metric] = field(default_factory=list)


def evaluation(
    evaluator: str, version: str, mode: str, results: Sequence[TaskResult],
    requests: Mapping[str, int], truncated: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the part ``evaluation`` of a run's document, as plain numbers and texts.

    Args:
        requests: number of answered requests by kind.
        truncated: number of contexts whose beginning was cut off.
    """
    return {
        "evaluator": evaluator, "version": version, "mode": mode, "requests": dict(requests),
        "truncated": truncated, "tasks": [asdict(result) for result in results],
    }  # fmt: skip

"""What an evaluator found, as the part ``evaluation`` of a run's document."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure of a task, as the evaluator gives it.

    Attributes:
        name: the evaluator's, with its filter or mode where it has one: ``acc``,
            ``exact_match (strict-match)``.
        whole: what all answers right would be: 1, or 100 where the evaluator gives percent.
        guessing: what guessing would give, in the same unit; None where nothing can be guessed.
        stderr: None where the evaluator gives none.
        items: by question, in the order in which they were drawn; empty where it does not say.
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
    """What an evaluator found on one task.

    Attributes:
        workload: whose questions it asked.
        version, task_hash: the evaluator's own, which change with what it asks and how it scores.
        data, data_hash: where the questions are from, and the hash of those that were drawn, which
            a run of ours on the same questions has too.
        shown: worked examples of ours before each question.
        n: questions.
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
    evaluator: str,
    version: str,
    mode: str,
    results: Sequence[TaskResult],
    requests: Mapping[str, int],
    truncated: int,
) -> dict[str, Any]:
    """The document's part: plain numbers and texts.

    Args:
        requests: how many were answered, by kind.
        truncated: how many contexts lost their beginning.
    """
    return {
        "evaluator": evaluator,
        "version": version,
        "mode": mode,
        "requests": dict(requests),
        "truncated": truncated,
        "tasks": [asdict(result) for result in results],
    }

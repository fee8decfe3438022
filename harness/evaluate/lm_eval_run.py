"""Runs lm-evaluation-harness on a started run, with task files written from workloads."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moebench.harness.evaluate.lm_eval_tasks import check, write_tasks
from moebench.harness.evaluate.outcome import Metric, TaskResult
from moebench.harness.evaluate.packages import require_lm_eval as version
from moebench.harness.evaluate.session import EvaluatedSession
from moebench.harness.evaluate.tasks import Questions

__all__ = ["check", "evaluate", "version"]

#: Bootstrap samples for standard errors without a formula, which none of the tasks' metrics need.
BOOTSTRAP = 1


def evaluate(
    session: EvaluatedSession, asked: Sequence[Questions], folder: Path,
    progress: Callable[[int, int], None],
) -> list[TaskResult]:  # fmt: skip
    """Run every task with lm-eval and return the scores.

    Args:
        progress: called with answered and total requests, for each kind of request.
    """
    # The task files contain all data, so lm-eval must not access the network.
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from moebench.harness.evaluate.lm_eval_model import RespondingLM

    write_tasks(asked, folder)
    found = simple_evaluate(
        model=RespondingLM(session, progress), tasks=[questions.name for questions in asked],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=BOOTSTRAP, log_samples=True,
    )  # fmt: skip
    return [_result(questions, found) for questions in asked]


def _result(questions: Questions, found: Mapping[str, Any]) -> TaskResult:
    from lm_eval.utils import hash_string

    name, drawn = questions.name, questions.drawn
    samples = found["samples"][name]
    higher = found["higher_is_better"][name]
    metrics = [
        _metric(key, value, found["results"][name], higher, samples, questions.guessing)
        for key, value in found["results"][name].items()
        if "," in key and not key.partition(",")[0].endswith("_stderr")
    ]
    hashed = "".join(s["doc_hash"] + s["prompt_hash"] + s["target_hash"] for s in samples)
    return TaskResult(
        task=name,
        workload=name,
        version=str(found["versions"][name]),
        task_hash=hash_string(hashed),  # computed as in lm-eval's own results
        data=drawn.source,
        data_hash=drawn.data_hash,
        shown=len(questions.shots),
        n=len(drawn.examples),
        metrics=metrics,
    )


def _metric(
    key: str, value: Any, results: Mapping[str, Any], higher: Mapping[str, bool | None],
    samples: Sequence[Mapping[str, Any]], guessing: float,
) -> Metric:  # fmt: skip
    """Return one of lm-eval's scores, whose key is ``metric,filter``."""
    name, _, way = key.partition(",")
    stderr = results.get(f"{name}_stderr,{way}")
    own = sorted((s for s in samples if s["filter"] == way), key=lambda s: s["doc_id"])
    return Metric(
        name=name if way == "none" else f"{name} ({way})", value=float(value),
        stderr=float(stderr) if isinstance(stderr, int | float) else None,
        guessing=None if "per" in name else guessing, higher_is_better=higher.get(name),
        items=[float(s[name]) for s in own if isinstance(s[name], int | float)],
    )  # fmt: skip

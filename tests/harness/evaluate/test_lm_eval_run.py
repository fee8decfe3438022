"""Scores as lm-evaluation-harness reports them, and as a run's document holds them."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from moebench.harness.evaluate import lm_eval_run
from moebench.harness.evaluate.outcome import Metric, TaskResult, evaluation


def test_a_task_has_its_versions_and_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: Any = SimpleNamespace(
        name="facts", guessing=0.5, shots=[1, 2, 3],
        drawn=SimpleNamespace(source="a set", data_hash="d1", examples=[1, 2]),
    )  # fmt: skip
    samples = [
        {"filter": "none", "doc_id": n, "acc": n, "doc_hash": f"d{n}", "prompt_hash": f"p{n}",
         "target_hash": f"t{n}"} for n in (0, 1)
    ]  # fmt: skip
    found = {
        "samples": {"facts": samples}, "higher_is_better": {"facts": {"acc": True}},
        "versions": {"facts": 1.5},
        "results": {"facts": {"alias": "facts", "acc,none": 0.5, "acc_stderr,none": 0.1,
                              "acc,strict": 0.25}},
    }  # fmt: skip
    utils = SimpleNamespace(hash_string=lambda text: f"hash of {text}")
    monkeypatch.setitem(sys.modules, "lm_eval.utils", utils)
    monkeypatch.setitem(sys.modules, "lm_eval", SimpleNamespace(utils=utils))
    assert lm_eval_run._result(questions, found) == TaskResult(
        task="facts", workload="facts", version="1.5", task_hash="hash of d0p0t0d1p1t1",
        data="a set", data_hash="d1", shown=3, n=2,
        metrics=[
            Metric(name="acc", value=0.5, guessing=0.5, stderr=0.1, higher_is_better=True,
                   items=[0.0, 1.0]),
            Metric(name="acc (strict)", value=0.25, guessing=0.5, higher_is_better=True, items=[]),
        ],
    )  # fmt: skip


def test_the_document_holds_plain_numbers() -> None:
    result = TaskResult(task="t", workload="w", version="1", task_hash="h", data="a set",
                        data_hash="d", shown=1, n=2,
                        metrics=[Metric(name="acc", value=0.5)])  # fmt: skip
    assert evaluation("lm-eval", "0.4", "decode", [result], {"loglikelihood": 3}, 4) == {
        "evaluator": "lm-eval", "version": "0.4", "mode": "decode",
        "requests": {"loglikelihood": 3}, "truncated": 4,
        "tasks": [{
            "task": "t", "workload": "w", "version": "1", "task_hash": "h", "data": "a set",
            "data_hash": "d", "shown": 1, "n": 2,
            "metrics": [{"name": "acc", "value": 0.5, "whole": 1.0, "guessing": None,
                         "stderr": None, "higher_is_better": None, "items": ()}],
        }],
    }  # fmt: skip


def test_only_the_tasks_that_were_written_are_run_and_without_a_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tasks of lm-eval's own have the same names, and data sets that are downloaded."""
    seen: list[Any] = []

    def simple_evaluate(**given: Any) -> dict[str, Any]:
        seen.append((given, os.environ["HF_HUB_OFFLINE"], os.environ["HF_DATASETS_OFFLINE"]))
        return {"of": given["tasks"]}

    def manager(**given: Any) -> Any:
        return given

    names = ("lm_eval", "lm_eval.tasks", "moebench.harness.evaluate.lm_eval_model")
    fakes: dict[str, Any] = {name: ModuleType(name) for name in names}
    fakes["lm_eval"].simple_evaluate = simple_evaluate
    fakes["lm_eval.tasks"].TaskManager = manager
    fakes[names[2]].RespondingLM = lambda *given: ("model", *given)
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(
        lm_eval_run, "write_tasks", lambda asked, folder: seen.append((asked, folder))
    )
    monkeypatch.setattr(lm_eval_run, "_result", lambda one, found: (one.name, found["of"]))
    asked: Any = [SimpleNamespace(name="gsm8k"), SimpleNamespace(name="facts")]
    session: Any = "the session"
    progress: Any = "progress"
    found = lm_eval_run.evaluate(session, asked, tmp_path, progress)
    assert found == [("gsm8k", ["gsm8k", "facts"]), ("facts", ["gsm8k", "facts"])]  # type: ignore[comparison-overlap]
    assert seen[0] == (asked, tmp_path)
    given, *offline = seen[1]
    assert offline == ["1", "1"]
    assert given.pop("bootstrap_iters") == lm_eval_run.BOOTSTRAP
    assert given == {
        "model": ("model", session, progress), "tasks": ["gsm8k", "facts"],
        "task_manager": {"include_path": str(tmp_path), "include_defaults": False},
        "log_samples": True,
    }  # fmt: skip

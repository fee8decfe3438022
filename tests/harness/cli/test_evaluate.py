"""`moebench eval`: what an evaluator is asked, and what is stored and shown."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness import keep as keeping
from moebench.harness.cli import evaluate as command
from moebench.harness.evaluate import lm_eval_tasks, run, session
from moebench.results.store import Store
from moebench.substrate.errors import UsageError
from tests.harness.commands import call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")

OPTIONS = ("eval", "--engine", "lm-eval", "--system", "smoe", "--setting", "S3",
           "--tasks", "arithmetic,facts")  # fmt: skip


class Evaluator:
    """An evaluator that asks nothing."""

    def __init__(self) -> None:
        self.checked: list[Any] = []

    def check(self, asked: Any) -> None:
        self.checked.append([(one.name, len(one.drawn.examples), len(one.shots)) for one in asked])
        if len(asked) == 3:
            raise UsageError("three are too many")

    def version(self) -> str:
        return "1.5"


class Noted:
    """What each part of an evaluation was given."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.evaluator, self.kept = Evaluator(), list[Any]()
        self.resolved: list[Any] = []
        self.evaluated: list[Any] = []
        patch.setattr(run, "evaluator", lambda name: self.evaluator)
        patch.setattr(run, "about", lambda *given: SimpleNamespace(run_id="id", given=given))
        patch.setattr(run, "evaluate", self.evaluate)
        patch.setattr(session, "resolve_evaluated", self.resolve)
        patch.setattr(session, "prepare_evaluated", lambda *given: given)
        patch.setattr(keeping, "keep", lambda store, *what: self.kept.append((store, *what)))
        patch.setattr(command, "_show", lambda document, store: print(document, store))

    def resolve(self, data_dir: Any, mode: Any, **given: Any) -> Any:
        self.resolved.append((data_dir, mode, given))
        return SimpleNamespace(system=given["system"], title="the title")

    def evaluate(self, *given: Any) -> Any:
        given[5](1, 1)
        self.evaluated.append(given)
        return SimpleNamespace(document={"run_id": "new"}, picture="a picture")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def test_an_evaluation_is_run_kept_and_shown(noted: Noted) -> None:
    called = call(
        *OPTIONS, "--prompts", "3", "--few-shot", "2", "--mode", "prefill", "--max-length", "99",
        "--store", "runs", "--keep", "theirs", "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    assert called.json == {"run_id": "new"}
    assert noted.evaluator.checked == [[("arithmetic", 3, 2), ("facts", 3, 2)]]
    data_dir, mode, given = noted.resolved[0]
    assert (data_dir, mode) == (None, "prefill")
    assert (given["system"], given["setting"], given["seed"]) == ("smoe", "S3", 0)
    about, engine, version, asked, directory, _, kept = noted.evaluated[0]
    (spec, folder, length), *rest = about.given
    assert (spec.title, folder, length) == ("the title", None, 99)
    assert rest == ["lm-eval", "1.5", asked]
    assert (engine, version, directory, kept) == ("lm-eval", "1.5", Path("runs"), Path("theirs"))
    ((store, document, picture),) = noted.kept
    assert (store.directory, document, picture) == (Path("runs"), {"run_id": "new"}, "a picture")
    assert "lm-eval asks the title: 1/1" in called.err
    shown = call(*OPTIONS)
    assert shown.out == "{'run_id': 'new'} .moebench\n"
    assert noted.evaluator.checked[1] == [("arithmetic", 32, 0), ("facts", 32, 0)]
    assert noted.evaluated[1][-1] is None


def test_a_stored_evaluation_is_taken_unless_it_is_forced(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "reusable", lambda self, run_id: {"run_id": run_id})
    called = call(*OPTIONS, "--json")
    assert called.json == {"run_id": "id"}
    assert called.err == "run id was stored; --force evaluates again\n"
    assert (noted.evaluated, noted.kept) == ([], [])
    assert call(*OPTIONS, "--force", "--json").json == {"run_id": "new"}
    assert len(noted.kept) == 1


def test_task_files_are_written_for_lm_eval_alone(
    noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(
        lm_eval_tasks, "write_tasks",
        lambda asked, folder: written.append(([one.name for one in asked], folder)),
    )  # fmt: skip
    called = call(*OPTIONS, "--task-files", "[files]")
    assert written == [(["arithmetic", "facts"], Path("[files]"))]
    assert called.err == (
        "written; type: python -m moebench.lm_eval run --model moebench --model_args "
        "system=smoe,setting=S3 --include_path [files] --tasks arithmetic,facts\n"
    )
    assert noted.resolved == []
    other = [*OPTIONS, "--task-files", "files"]
    other[2] = "opencompass"
    assert "--task-files and --engine opencompass: only lm-eval has task files" in refused(*other)


def test_what_cannot_be_asked_is_refused_before_anything_runs(noted: Noted) -> None:
    assert "three are too many" in refused(*OPTIONS[:-1], "arithmetic,facts,passages")
    assert "no such folder" in refused(*OPTIONS, "--data-dir", "nowhere")
    Path("file").write_text("")
    assert "file is not a folder" in refused(*OPTIONS, "--store", "file")
    assert noted.evaluated == []


def test_a_document_is_shown_with_its_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    monkeypatch.setattr("moebench.harness.console.show_run", lambda *what: shown.append(what))
    monkeypatch.setattr("moebench.harness.console.table", lambda *what: shown.append(what))
    monkeypatch.setattr(
        "moebench.reports.sections.evaluations.lines", lambda documents: [documents]
    )
    command._show({"run_id": "r"}, Path("runs"))
    first, (title, _, lines) = shown
    assert first == ({"run_id": "r"}, Path("runs"))
    assert (title, lines) == ("what the evaluator found", [[{"run_id": "r"}]])

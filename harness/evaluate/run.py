"""One evaluation: an evaluator's tasks on one system, and the run's document."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from moebench.harness.evaluate.outcome import evaluation
from moebench.harness.evaluate.session import EvaluatedSession
from moebench.harness.evaluate.tasks import Questions
from moebench.harness.run.document import Evaluated, with_evaluation
from moebench.harness.run.execute import Progress, started
from moebench.harness.run.session import Outcome
from moebench.substrate.errors import UnknownNameError
from moebench.workloads.draw import PromptSet

#: By name, the module that lets an evaluator ask: it has ``version``, ``check`` and ``evaluate``.
EVALUATORS = {
    "lm-eval": "moebench.harness.evaluate.lm_eval_run",
    "opencompass": "moebench.harness.evaluate.opencompass_run",
}


def evaluator(name: str) -> Any:
    """Return the module of an evaluator.

    Raises UnknownNameError: there is none of that name.
    """
    if name not in EVALUATORS:
        raise UnknownNameError("evaluator", name, EVALUATORS)
    return import_module(EVALUATORS[name])


def about(
    session: EvaluatedSession, name: str, version: str, asked: Sequence[Questions]
) -> EvaluatedSession:
    """Return the session with an id that depends on the evaluator and its tasks."""
    drawn = [questions.drawn for questions in asked]
    digests = [questions.drawn.data_hash for questions in asked]
    whole = json.dumps([name, version, session.max_length, _code(), _content(asked)])
    hashes = {"data": "+".join(digests), "evaluation": hashlib.sha256(whole.encode()).hexdigest()}
    return replace(
        session,
        sample=PromptSet(
            examples=tuple(example for one in drawn for example in one.examples),
            source=" + ".join(one.source for one in drawn), split="test", seed=drawn[0].seed,
            available=sum(one.available for one in drawn), data_hash=hashes["data"],
        ),
        hashes=session.hashes | hashes,
    )  # fmt: skip


def _content(asked: Sequence[Questions]) -> list[Any]:
    return [
        [questions.name, questions.drawn.data_hash, [asdict(shot) for shot in questions.shots]]
        for questions in asked
    ]


def _code() -> str:
    """Return a hash of the evaluation code, which results depend on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def evaluate(
    session: EvaluatedSession, name: str, version: str, asked: Sequence[Questions], scratch: Path,
    progress: Progress, keep: Path | None = None,
) -> Outcome:  # fmt: skip
    """Start the run, let the evaluator make its requests, and build the document.

    Args:
        session: from `about`.
        scratch: as for `execute.run`.
        progress: told of answered requests.
        keep: a folder for the evaluator's files, in place of one in ``scratch`` that is removed
            unless it fails.

    Raises MoeBenchError: anything that the user can mend; nothing was stored.
    """
    module = evaluator(name)
    folder = keep or scratch / "evaluations" / session.run_id
    if keep is None:  # what a failure left is of no use any more
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with started(session, scratch, progress) as ready:
        session.responder.engine = ready.stage.engine
        results = module.evaluate(session, asked, folder, progress)
        document = ready.document(session.responder.generations)
    if keep is None:
        shutil.rmtree(folder)
    names = ", ".join(questions.name for questions in asked)
    counts = {len(questions.shots) for questions in asked}
    responder, notes = session.responder, []
    if responder.truncated:
        notes.append(
            f"{responder.truncated} contexts were longer than there was room for and lost their "
            "beginning"
        )
    found = Evaluated(
        resolved={
            "workload": f"{name}: {names}",
            "prompts": sum(len(questions.drawn.examples) for questions in asked),
            "few_shot": counts.pop() if len(counts) == 1 else None,
        },
        notes=notes,
        part=evaluation(
            name, version, session.mode, results, responder.requests, responder.truncated
        ),
        versions={name: version},
    )
    with_evaluation(document, found)
    timeline = ready.stage.timeline
    return Outcome(document, timeline.picture(), timeline, responder.generations)

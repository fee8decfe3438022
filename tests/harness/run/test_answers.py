"""The four ways of scoring, against the lossless model read in one piece."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moebench.harness.one_run import prepare
from moebench.harness.one_run import run as run_cell
from moebench.harness.run.live import LiveSession
from moebench.harness.run.rules import resolve
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.models.shared import SharedWork
from moebench.workloads.likelihood import choose, continuations
from tests.harness.commands import call

pytestmark = pytest.mark.usefixtures("tiny_models")


def session_of(
    scoring: str, system: str = "gpu-only", workload: str = "arithmetic",
    data_dir: Path | None = None, **given,
) -> LiveSession:  # fmt: skip
    spec = resolve(
        data_dir, system=system, setting="S3", workload=workload, prompts=4, scoring=scoring,
        allow_overcommit=True, **given,
    )  # fmt: skip
    session = prepare(spec, data_dir)
    assert isinstance(session, LiveSession)
    return session


@pytest.fixture
def options(tmp_path) -> dict[str, object]:
    """Four questions whose options have letters."""
    (tmp_path / "mmlu").mkdir()
    with (tmp_path / "mmlu" / "test.jsonl").open("w") as file:
        for i in range(4):
            choices = [str(i + n) for n in range(4)]
            listed = "".join(f"\n{letter}. {c}" for letter, c in zip("ABCD", choices, strict=True))
            record = {
                "id": f"q/{i}", "prompt": f"What is {i} + 1?{listed}", "choices": choices,
                "answer": 1, "answers": None, "split": "test",
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")
    return {"workload": "mmlu", "data_dir": tmp_path}


def likeliest(session: LiveSession) -> list[int]:
    """Each question's answer, from the whole texts in one pass of the resident model."""
    decoder = SharedWork(session.weights.checkpoint).decoder()
    answers = []
    for example in session.sample.examples:
        asked = continuations(session.workload, example)
        prompt = session.weights.tokenizer.encode(asked.prompt).ids
        values = []
        for text in asked.texts:
            option = session.weights.tokenizer.encode(text).ids
            with torch.inference_mode():
                logits = decoder.full_logits([[*prompt, *option]])[0].log_softmax(-1)
            rows = logits[len(prompt) - 1 : -1]
            values.append(float(rows.gather(1, torch.tensor(option)[:, None]).sum()))
        answers.append(choose(session.workload, asked.texts, values))
    return answers


@pytest.mark.parametrize("batch", [1, 2])
def test_likelihoods_through_decode_and_in_one_prefill_are_the_lossless_models(
    tmp_path, batch, options
):
    by_decode, in_prefill = (
        session_of(scoring, batch=batch, **options) for scoring in ("likelihood", "prefill")
    )
    one, other = (run_cell(i, tmp_path).document["accuracy"] for i in (by_decode, in_prefill))
    right = [float(a == e.answer) for a, e in zip(likeliest(by_decode), by_decode.sample.examples,
                                                  strict=True)]  # fmt: skip
    assert one["items"]["value"] == other["items"]["value"] == right
    assert one["items"]["answer"] == other["items"]["answer"]
    assert (one["agreement"], one["kl"]) == (1.0, 0.0)
    assert other["agreement"] is None  # nothing was decoded


def test_an_answer_ends_at_the_end_of_text_and_its_cue_is_decoded(tmp_path):
    """The model writes what it writes after the whole prompt, up to the end."""
    free = session_of("fixed-length", new_tokens=12)
    written = [g.tokens[0] for g in run_cell(free, tmp_path).generations]
    session = session_of("generation", new_tokens=12)
    # A token that some answers hold stands for the end of a text.
    session.weights.texts = replace(session.weights.texts, end=written[0][5])
    outcome = run_cell(session, tmp_path)
    ended = 0
    for question, generation, whole in zip(
        session.questions, outcome.generations, written, strict=True
    ):
        assert question.cue == question.continuations[0]
        assert session.weights.end not in question.cue
        ends = session.weights.end in whole
        answer = whole[: whole.index(session.weights.end) + 1] if ends else whole
        assert generation.tokens == [[*question.cue, *answer]]
        ended += ends
    assert ended > 0
    decoded = [len(g.tokens[0]) - 1 for g in outcome.generations]
    assert outcome.document["accuracy"]["items"]["decoded"] == decoded


def test_substitution_reaches_the_options_letters(tmp_path, options):
    """The only token of such an answer comes out of decode, where systems approximate."""
    given = options | {"alpha": 1.0, "cache_ratio": 0.1}
    accuracy = run_cell(session_of("likelihood", "smoe", **given), tmp_path).document["accuracy"]
    assert accuracy["kl"] > 0


def test_remembered_work_changes_no_figure(tmp_path):
    session = session_of("generation", "smoe", alpha=0.5, new_tokens=8)
    alone = run_cell(session, tmp_path).document
    shared = None
    for _ in range(2):
        again = session.varied(session.spec)
        shared = again.share(shared)
        document = run_cell(again, tmp_path).document
        for part in ("metrics", "accuracy", "bound"):
            assert document[part] == alone[part]


def test_remembered_work_changes_no_figure_of_a_prefill_whose_every_token_is_read(
    tmp_path, options
):
    session = session_of("prefill", **options)
    shared = session.share(None)
    first = run_cell(session, tmp_path).document
    again = session.varied(session.spec)
    again.share(shared)
    assert run_cell(again, tmp_path).document["accuracy"] == first["accuracy"]


def test_wrong_ways_are_one_line():
    with pytest.raises(UsageError, match="no options to score by likelihood"):
        session_of("likelihood", workload="arithmetic")
    for asked, message in [
        (("--scoring", "guess"), "--scoring guess"),
        (("--few-shot", "many"), "--few-shot many: allowed: a number from 0 on, or paper"),
        (("--setting", "S3", "--workload", "gsm8k"), "needs a data folder"),
    ]:
        called = call("run", "--system", "smoe", "--setting", "S3", *asked)
        assert called.code == 2
        assert message in called.err
        assert called.err.count("\n") == 1


def test_few_shot_examples_come_from_training_exercises():
    bare, shown = (session_of("generation", few_shot=n) for n in (0, 2))
    for few, many in zip(bare.questions, shown.questions, strict=True):
        assert len(many.prompt) > 2 * len(few.prompt)
        assert many.prompt[-len(few.prompt) + 1 :] == few.prompt[1:]
    paper = resolve(None, system="smoe", setting="S3", workload="gsm8k", few_shot="paper")
    assert paper.few_shot == 4


def test_a_missing_split_is_one_line(tmp_path):
    (tmp_path / "wic").mkdir()
    (tmp_path / "wic" / "test.jsonl").write_text("")
    with pytest.raises(InputError):
        prepare(
            resolve(tmp_path, system="smoe", setting="S3", workload="wic", few_shot=2), tmp_path
        )

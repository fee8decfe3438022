"""OpenCompass on moebench systems: data files, requests, and its own model's responses."""

import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from moebench.harness.evaluate import opencompass_run
from moebench.harness.evaluate.opencompass_data import DATASETS, check, write_data
from moebench.harness.evaluate.opencompass_server import answer
from moebench.harness.evaluate.packages import OPENCOMPASS_VARIABLE, find_opencompass
from moebench.harness.evaluate.tasks import draw
from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.models.shared import SharedWork
from moebench.workloads.data import read_examples
from tests.harness.commands import SCALE_MODEL, call, refused
from tests.harness.evaluate.data import write_data as write_sets
from tests.harness.evaluate.sessions import responding

pytestmark = pytest.mark.usefixtures("tiny_models")

TASKS = ("wic", "race_middle", "triviaqa", "gsm8k", "gaokao_biology")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_sets(tmp_path / "sets", questions=2)


# --------------------------------------------------------------------------- without OpenCompass


def test_data_files_contain_the_parts_of_the_drawn_prompts(data: Path, tmp_path: Path) -> None:
    write_data(draw(TASKS, 2, 0, "0", None, data), tmp_path / "theirs")

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(one) for one in (tmp_path / "theirs" / name).read_text().splitlines()]

    def asked(name: str) -> dict[str, Any]:
        examples = read_examples(data / name / "test.jsonl")
        return {example.prompt: example for example in examples}

    for one in lines("WiC.jsonl"):
        word, first, second = one["word"], one["sentence1"], one["sentence2"]
        prompt = (
            f'Sentence 1: {first}\nSentence 2: {second}\nQuestion: Is the word "{word}" used with '
            "the same meaning in both sentences?\nA. yes\nB. no"
        )
        assert one["label"] == ("true" if asked("wic")[prompt].answer == 0 else "false")
    for one in lines("test/middle.jsonl"):
        options = "".join(
            f"\n{letter}. {text}" for letter, text in zip("ABCD", one["options"], strict=True)
        )
        prompt = f"{one['article']}\nQuestion: {one['question']}{options}"
        assert one["answer"] == "ABCD"[asked("race_middle")[prompt].answer]
    for one in lines("test.jsonl"):
        assert one["answer"] == f"#### {asked('gsm8k')[one['question']].answer}"
    file = tmp_path / "theirs/Multiple-choice_Questions/2010-2022_Biology_MCQs.json"
    for one in json.loads(file.read_text())["example"]:
        assert one["answer"] == ["ABCD"[asked("gaokao_biology")[one["question"]].answer]]
    for row in (tmp_path / "theirs/trivia-dev.qa.csv").read_text().splitlines():
        question, answers = row.split("\t")
        example = asked("triviaqa")[f"{question}?"]
        assert all(repr(text)[1:-1] in answers for text in example.answers)


def test_a_task_names_the_configuration_that_is_read() -> None:
    config = Path(opencompass_run.__file__).parent / "opencompass" / "moebench_config.py"
    read = set(re.findall(r"\.(\w+_\w{6}) import", config.read_text()))
    assert {dataset.config for dataset in DATASETS.values()} == read


def test_a_question_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "race_middle").mkdir()
    record = {
        "id": "r/1", "prompt": "No article?\nA. a\nB. b\nC. c\nD. d", "choices": list("abcd"),
        "answer": 0, "answers": None, "split": "test",
    }  # fmt: skip
    (tmp_path / "race_middle/test.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(InputError, match="r/1: no article with a question"):
        write_data(draw(["race_middle"], 1, 0, "0", None, tmp_path), tmp_path / "theirs")


def test_only_what_it_is_configured_for_is_asked(data: Path) -> None:
    with pytest.raises(UsageError, match="--tasks passages: OpenCompass is configured for gaokao"):
        check(draw(["passages"], 1, 0, "0", None, None))
    with pytest.raises(UsageError, match="its configurations have examples of their own"):
        check(draw(["gsm8k"], 1, 0, "1", None, data))


def test_requests_are_answered_as_its_own_model_would() -> None:
    texts = ["Where is the cup?", "Answer: shop the cup"]
    with responding(batch=2) as session, torch.inference_mode():
        responder = session.responder
        decoder = SharedWork(session.weights.checkpoint).decoder()
        ids = [responder.encode(text) for text in texts]
        whole = [one.log_softmax(-1) for one in decoder.full_logits(ids)]
        losses = [
            [-float(logits[i, token]) for i, token in enumerate(one[1:])]
            for logits, one in zip(whole, ids, strict=True)
        ]
        asked = answer(responder, {"ask": "ppl", "inputs": texts, "mask_length": None})
        wanted = [sum(loss) / len(one) for loss, one in zip(losses, ids, strict=True)]
        assert asked["values"] == pytest.approx(wanted, abs=1e-4)
        asked = answer(responder, {"ask": "ppl", "inputs": texts, "mask_length": [3, 2]})
        wanted = [sum(loss[n - 1 :]) / (len(one) - n)
                  for loss, one, n in zip(losses, ids, (3, 2), strict=True)]  # fmt: skip
        assert asked["values"] == pytest.approx(wanted, abs=1e-4)
        assert answer(responder, {"ask": "token_len", "input": texts[0]}) == {"value": len(ids[0])}
        request = {"ask": "generate", "inputs": texts, "max_out_len": 4, "stops": []}
        assert answer(responder, request) == {"texts": responder.write(texts, 4)}
        too_long = request | {"max_out_len": 5000}
        assert "leave no room" in answer(responder, too_long)["failed"]


def test_a_missing_environment_is_one_line(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPENCOMPASS_VARIABLE, "nowhere")
    said = refused(
        "eval", "--engine", "opencompass", "--tasks", "wic", "--system", "smoe", "--setting", "S3",
        "--prompts", "2", "--data-dir", data,
    )  # fmt: skip
    assert "make opencompass makes it" in said


# --------------------------------------------------------------------------- with OpenCompass

#: OpenCompass's own model on the same checkpoint, asked what its configurations asked.
_THEIRS = """
import json, sys
from opencompass.models import HuggingFaceBaseModel
asked = json.load(open(sys.argv[2]))
model = HuggingFaceBaseModel(
    path=sys.argv[1], max_seq_len=2048, generation_kwargs={"do_sample": False},
    model_kwargs={"torch_dtype": "torch.float32", "device_map": "cpu"},
)
found = {
    "texts": [model.generate([text], length)[0] for text, length in asked["generate"]],
    "values": [float(model.get_ppl([text])[0]) for text in asked["ppl"]],
}
json.dump(found, open(sys.argv[3], "w"))
"""

#: What transformers 4 needs beside a scale model's files.
_TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>", "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
}  # fmt: skip


def write_checkpoint(source: Path, folder: Path) -> None:
    """Write a scale model with the files that transformers 4 needs for its tokenizer."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER))


@pytest.mark.skipif(
    find_opencompass() is None,
    reason="OpenCompass has no environment of its own: make opencompass makes it",
)
def test_responses_equal_those_of_opencompass_own_model(
    data: Path, tmp_path: Path, tiny_catalogue: Path
) -> None:
    checkpoint, kept = tmp_path / "checkpoint", tmp_path / "kept"
    write_checkpoint(tiny_catalogue / "scale" / SCALE_MODEL, checkpoint)
    names = ("wic", "race_middle", "triviaqa")  # the other tasks' answers are long
    called = call(
        "eval", "--engine", "opencompass", "--tasks", ",".join(names), "--system", "gpu-only",
        "--setting", "S3", "--allow-overcommit", "--prompts", "2", "--batch", "2", "--data-dir",
        data, "--keep", kept, "--json",
    )  # fmt: skip
    assert called.code == 0, called.err
    found = called.json["evaluation"]["tasks"]
    assert [task["task"] for task in found] == [DATASETS[name].abbr for name in names]
    assert all(task["n"] == 2 and len(task["metrics"]) == 1 for task in found)

    (predictions,) = kept.glob("out/*/predictions/moebench")
    asked: dict[str, list[Any]] = {"generate": [], "ppl": []}
    ours: dict[str, list[Any]] = {"texts": [], "values": []}
    lengths = {"triviaqa": 50, "race-middle": 64}
    for task in found:
        said = json.loads((predictions / f"{task['task']}.json").read_text())
        for one in said.values():
            if task["task"] == "WiC":
                labels = [one[key] for key in one if key.startswith("label: ")]
                asked["ppl"] += [label["testing input"] for label in labels]
                ours["values"] += [label["PPL"] for label in labels]
            else:
                asked["generate"].append((one["origin_prompt"], lengths[task["task"]]))
                ours["texts"].append(one["prediction"])
    assert [len(ours[key]) for key in ("texts", "values")] == [4, 4]

    (tmp_path / "asked.json").write_text(json.dumps(asked))
    subprocess.run(
        [str(find_opencompass()), "-c", _THEIRS, checkpoint, tmp_path / "asked.json",
         tmp_path / "found.json"],
        check=True, capture_output=True,
    )  # fmt: skip
    theirs = json.loads((tmp_path / "found.json").read_text())
    assert ours["texts"] == theirs["texts"]
    assert ours["values"] == pytest.approx(theirs["values"], abs=1e-3)
    assert all(map(math.isfinite, theirs["values"]))

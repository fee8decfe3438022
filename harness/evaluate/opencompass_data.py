"""Writes SMoE's five workloads as the data files that OpenCompass's own configurations read.

OpenCompass builds its own prompts, so moebench's prompts are split into their parts: article and
question, sentences and word.
"""

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.evaluate.tasks import Questions
from moebench.substrate.errors import InputError, UsageError
from moebench.workloads.example import LETTERS, Example, stem

_WIC = re.compile(
    r'Sentence 1: (?P<one>.*)\nSentence 2: (?P<two>.*)\nQuestion: Is the word "(?P<word>.*)" used '
    r"with the same meaning in both sentences\?"
)


class Dataset(NamedTuple):
    """OpenCompass's name of a data set, and the function that writes its files into a folder.

    ``config`` is OpenCompass's module with its prompts; ``labels`` is the number of texts that it
    scores for each example, 1 if an answer is generated.
    """

    abbr: str
    config: str
    write: Callable[[Sequence[Example], Path], None]
    labels: int = 1


def write_data(asked: Sequence[Questions], folder: Path) -> None:
    """Write the data files of workloads for OpenCompass.

    Raises:
        InputError: an example does not have the form that OpenCompass's prompts need, or the folder
            cannot be written.
    """
    try:
        for questions in asked:
            DATASETS[questions.name].write(questions.drawn.examples, folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from error


def check(asked: Sequence[Questions]) -> None:
    """Refuse workloads and options for which OpenCompass is not configured.

    Raises:
        UsageError: a workload is not one of SMoE's, or few-shot examples are requested although
            OpenCompass has its own.
    """
    for questions in asked:
        if questions.name not in DATASETS:
            known = ", ".join(sorted(DATASETS))
            raise UsageError(f"--tasks {questions.name}: OpenCompass is configured for {known}")
        if questions.shots:
            raise UsageError(
                "--few-shot and --engine opencompass: its configurations have examples of their own"
            )


def _lines(records: Sequence[dict[str, Any]], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    file.write_text("".join(lines), encoding="utf-8")


def _gsm8k(examples: Sequence[Example], folder: Path) -> None:
    records = [{"question": e.prompt, "answer": f"#### {e.answer}"} for e in examples]
    # OpenCompass's prompt contains its few-shot examples; it reads the train split without use.
    for split in ("train", "test"):
        _lines(records, folder / f"{split}.jsonl")


def _triviaqa(examples: Sequence[Example], folder: Path) -> None:
    """Write TriviaQA's files without question marks, which OpenCompass's prompt adds."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("dev", "test"):
        with (folder / f"trivia-{split}.qa.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t")
            for e in examples:
                accepted = dict.fromkeys([e.answer_text, *(e.answers or ())])
                writer.writerow([e.prompt.rstrip("? "), repr(list(accepted))])


def _wic(examples: Sequence[Example], folder: Path) -> None:
    records = []
    for example in examples:
        found = _WIC.fullmatch(stem(example))
        if found is None or example.choices != ("yes", "no"):
            raise InputError(f"{example.id}: not a question of Word-in-Context as it is known here")
        one, two, word = found["one"], found["two"], found["word"]
        records.append({
            "word": word, "sentence1": one, "sentence2": two,
            "label": "true" if example.answer == 0 else "false",
        })  # fmt: skip
    _lines(records, folder / "WiC.jsonl")


def _race(examples: Sequence[Example], folder: Path) -> None:
    records = []
    for example in examples:
        article, mark, question = stem(example).rpartition("\nQuestion: ")
        if not mark or example.choices is None or len(example.choices) != 4:
            raise InputError(f"{example.id}: no article with a question and four options")
        records.append({
            "article": article, "question": question, "options": example.choices,
            "answer": example.answer_text,
        })  # fmt: skip
    for split in ("validation", "test"):
        _lines(records, folder / split / "middle.jsonl")


def _gaokao(subject: str) -> Dataset:
    def write(examples: Sequence[Example], folder: Path) -> None:
        records = [
            {"index": i, "question": e.prompt, "answer": [_letter(e)]}
            for i, e in enumerate(examples)
        ]
        file = folder / "Multiple-choice_Questions" / f"{subject}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"example": records}, ensure_ascii=False)
        file.write_text(text, encoding="utf-8")

    return Dataset(f"GaokaoBench_{subject}", "GaokaoBench_gen_5cfe9e", write)


def _letter(example: Example) -> str:
    if example.answer_text not in LETTERS[:4]:
        raise InputError(f"{example.id}: its answer is none of A to D")
    return example.answer_text


#: OpenCompass's data sets by workload; SMoE's exam consists of four subjects of GAOKAO.
DATASETS = {
    "gaokao_math_i": _gaokao("2010-2022_Math_I_MCQs"),
    "gaokao_math_ii": _gaokao("2010-2022_Math_II_MCQs"),
    "gaokao_history": _gaokao("2010-2022_History_MCQs"),
    "gaokao_biology": _gaokao("2010-2022_Biology_MCQs"),
    "wic": Dataset("WiC", "SuperGLUE_WiC_ppl_312de9", _wic, labels=2),
    "triviaqa": Dataset("triviaqa", "triviaqa_gen_2121ce", _triviaqa),
    "race_middle": Dataset("race-middle", "race_gen_69ee4f", _race),
    "gsm8k": Dataset("gsm8k", "gsm8k_gen_1d7fe4", _gsm8k),
}

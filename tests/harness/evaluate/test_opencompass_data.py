"""Data files of OpenCompass, made of examples by hand."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from moebench.harness.evaluate.opencompass_data import DATASETS, write_data
from moebench.harness.evaluate.tasks import Questions
from moebench.substrate.errors import InputError
from moebench.workloads.example import Example


class Drawn:
    """Drawn examples of a workload."""

    def __init__(self, name: str, *examples: Example) -> None:
        self.name, self.drawn, self.examples = name, self, examples


def write(name: str, *examples: Example) -> Path:
    folder = Path("theirs")
    write_data([cast(Questions, Drawn(name, *examples))], folder)
    return folder


def example(prompt: str, answer: Any, **more: Any) -> Example:
    return Example(id="e", prompt=prompt, answer=answer, **{"choices": None, **more})


def lines(file: Path) -> list[Any]:
    text = file.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_exercises_in_words_are_in_both_splits() -> None:
    folder = write("gsm8k", example("How many é?", "12"), example("And?", "3"))
    for split in ("train", "test"):
        assert lines(folder / f"{split}.jsonl") == [
            {"question": "How many é?", "answer": "#### 12"},
            {"question": "And?", "answer": "#### 3"},
        ]
        assert "é" in (folder / f"{split}.jsonl").read_text(encoding="utf-8")
    assert len(list(folder.iterdir())) == 2


def test_questions_of_trivia_have_each_accepted_answer_once() -> None:
    found = write(
        "triviaqa", example("Who, when? ", "Bo", answers=("Al", "Bo", "Cy")), example("Why?", "x")
    )
    for split in ("dev", "test"):
        rows = (found / f"trivia-{split}.qa.csv").read_text(encoding="utf-8").splitlines()
        assert rows == ["Who, when\t['Bo', 'Al', 'Cy']", "Why\t['x']"]


WIC = 'Sentence 1: a bank\nSentence 2: the bank\nQuestion: Is the word "bank" used with the same ' \
      "meaning in both sentences?"  # fmt: skip


def test_words_in_contexts_have_labels() -> None:
    options = "\nA. yes\nB. no"
    found = write("wic", *(example(WIC + options, n, choices=("yes", "no")) for n in (0, 1)))
    same = {"word": "bank", "sentence1": "a bank", "sentence2": "the bank"}
    assert lines(found / "WiC.jsonl") == [{**same, "label": "true"}, {**same, "label": "false"}]


@pytest.mark.parametrize(
    ("name", "one", "said"),
    [
        ("wic", example("What?\nA. yes\nB. no", 0, choices=("yes", "no")), "e: not a question of"),
        ("wic", example(WIC + "\nA. no\nB. yes", 0, choices=("no", "yes")), "e: not a question of"),
        ("race_middle", example("x\nQuestion: y\nA. a\nB. b\nC. c", 0, choices=tuple("abc")),
         "e: no article with a question and four options"),
        ("race_middle", example("x\nQuestion: y", "a"), "e: no article with a question and four"),
        ("race_middle", example("x\nA. a\nB. b\nC. c\nD. d", 0, choices=tuple("abcd")),
         "e: no article with a question and four options"),
        ("gaokao_history", example("x", "E"), "e: its answer is none of A to D"),
    ],
)  # fmt: skip
def test_an_example_of_another_form_is_refused(name: str, one: Example, said: str) -> None:
    with pytest.raises(InputError, match=said):
        write(name, one)


def test_articles_and_exams() -> None:
    prompt = "One.\nQuestion: a trap\nQuestion: Who?\nA. a\nB. b\nC. c\nD. d"
    found = write("race_middle", example(prompt, 2, choices=tuple("abcd")))
    for split in ("validation", "test"):
        assert lines(found / split / "middle.jsonl") == [{
            "article": "One.\nQuestion: a trap", "question": "Who?", "options": list("abcd"),
            "answer": "C",
        }]  # fmt: skip
    found = write("gaokao_math_ii", example("一", "D"), example("二", "A"))
    file = found / "Multiple-choice_Questions" / "2010-2022_Math_II_MCQs.json"
    text = file.read_text(encoding="utf-8")
    assert json.loads(text) == {"example": [
        {"index": 0, "question": "一", "answer": ["D"]},
        {"index": 1, "question": "二", "answer": ["A"]},
    ]}  # fmt: skip
    assert "一" in text


def test_data_sets_have_names_and_numbers_of_scored_texts() -> None:
    assert DATASETS["gaokao_math_i"].abbr == "GaokaoBench_2010-2022_Math_I_MCQs"
    assert {name: one.labels for name, one in DATASETS.items() if one.labels != 1} == {"wic": 2}


def test_a_folder_that_cannot_be_written_is_named(here: Path) -> None:
    (here / "theirs").write_text("a file")
    with pytest.raises(InputError, match=r"^theirs cannot be written: File exists$"):
        write("gsm8k", example("x", "1"))

"""Prompts: the text that a model reads, to the letter."""

from dataclasses import replace
from pathlib import Path

import pytest

from substrate.errors import UsageError
from workloads.catalogue import load, workload
from workloads.example import Example
from workloads.prompts import build_prompt, without_calculator_marks

QUESTION = Example(id="q", prompt="Two and two?", choices=None, answer="4")
WORKED = Example(
    id="w", prompt="Half of 48?", choices=None, answer="24", solution="48/2 = <<48/2=24>>24."
)
LETTER = Example(id="l", prompt="Is it?\nA. yes\nB. no", choices=("yes", "no"), answer=1)


def test_without_examples_a_prompt_is_the_question_alone() -> None:
    assert build_prompt(workload("gsm8k"), QUESTION, []) == "Question: Two and two?\nAnswer:"


def test_examples_come_first_in_order_with_solutions_and_without_marks() -> None:
    assert build_prompt(workload("gsm8k"), QUESTION, [WORKED, LETTER]) == (
        "Question: Half of 48?\nAnswer: 48/2 = 24.\n#### 24\n\n"
        "Question: Is it?\nA. yes\nB. no\nAnswer: B\n\n"
        "Question: Two and two?\nAnswer:"
    )


def test_a_question_among_its_own_examples_is_refused() -> None:
    twin = replace(QUESTION, id="another id")
    with pytest.raises(UsageError, match="q is among its own few-shot examples"):
        build_prompt(workload("gsm8k"), QUESTION, [twin])


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("48/2 = <<48/2=24>>24 clips", "48/2 = 24 clips"),
        ("$<<12/60=0.2>>0.2, <<1+1=2>>2", "$0.2, 2"),
        ("no marks", "no marks"),
        ("1 << 4 is 16; cin >> x", "1 << 4 is 16; cin >> x"),
        ("<<unclosed\n>>", "<<unclosed\n>>"),
        ("", ""),
    ],
)
def test_calculator_marks_go_and_nothing_else(marked: str, plain: str) -> None:
    assert without_calculator_marks(marked) == plain


def test_all_training_solutions_read_as_the_models_were_trained_on_them(data_dir: Path) -> None:
    """Training cuts every part at its last ``>>``; on the data both must give the same text."""
    for name in ("gsm8k", "math"):
        for example in load(workload(name), "train", data_dir=data_dir).examples:
            assert example.solution is not None
            parts = example.solution.split("<<")
            trained = "".join(part.split(">>")[-1] for part in parts)
            assert without_calculator_marks(example.solution) == trained

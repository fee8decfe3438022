"""The text of an example for a model, by hand, and its question without its options."""

import pytest

from moebench.substrate.errors import InputError
from moebench.workloads.example import Example, ask, ask_and_answer, listed, stem

FREE = Example(id="a", prompt="2 + 2?", choices=None, answer="4")
SOLVED = Example(id="b", prompt="2 + 2?", choices=None, answer="4", solution="2 + 2 = 4.")
OPTIONS = Example(id="c", prompt="Which?\nA. one\nB. two", choices=("one", "two"), answer=1)


def test_a_prompt_and_its_answer() -> None:
    assert ask(FREE) == "Question: 2 + 2?\nAnswer:"
    assert ask_and_answer(FREE) == "Question: 2 + 2?\nAnswer: 4"
    assert ask_and_answer(SOLVED) == "Question: 2 + 2?\nAnswer: 2 + 2 = 4.\n#### 4"
    assert ask_and_answer(OPTIONS) == "Question: Which?\nA. one\nB. two\nAnswer: B"
    assert (FREE.answer_text, OPTIONS.answer_text) == ("4", "B")
    assert Example(id="d", prompt="", choices=None, answer=25).answer_text == "Z"


def test_a_question_without_its_options() -> None:
    assert listed(OPTIONS.choices or ()) == "\nA. one\nB. two"
    assert listed(()) == ""
    assert (stem(FREE), stem(OPTIONS)) == ("2 + 2?", "Which?")


@pytest.mark.parametrize(
    "prompt",
    [
        "Which?",
        "\nA. one\nB. two",
        " \nA. one\nB. two",
        "Which?\nA. one\nB. two\n",
        "Which?\nA. two\nB. one",
    ],
)
def test_a_prompt_that_does_not_end_in_its_options_is_named(prompt: str) -> None:
    one = Example(id="e", prompt=prompt, choices=("one", "two"), answer=0)
    with pytest.raises(InputError, match=r"^e: the prompt is not a question followed by "):
        stem(one)

"""Prompts, compared character by character."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import scale_path
from moebench.workloads.catalogue import workload, workload_names
from moebench.workloads.draw import load
from moebench.workloads.example import Example, ask
from moebench.workloads.prompts import CUE, build_prompt, split_cue, without_calculator_marks

QUESTION = Example(id="q", prompt="Two and two?", choices=None, answer="4")
WORKED = Example(
    id="w", prompt="Half of 48?", choices=None, answer="24", solution="48/2 = <<48/2=24>>24."
)
LETTER = Example(id="l", prompt="Is it?\nA. yes\nB. no", choices=("yes", "no"), answer=1)


def test_without_examples_a_prompt_is_the_question_alone() -> None:
    assert build_prompt(workload("gsm8k"), QUESTION, []) == "Question: Two and two?\nAnswer:"


def test_the_template_is_what_models_were_trained_on_and_plain_text_is_plain() -> None:
    for name in workload_names():
        expected = "Two and two?" if name in ("text", "c4") else ask(QUESTION)
        assert build_prompt(workload(name), QUESTION) == expected
    braces = replace(QUESTION, prompt="What is {x} in {prompt}?")
    assert build_prompt(workload("math"), braces) == ask(braces)


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


@pytest.mark.parametrize(
    ("prompt", "cue"),
    [
        ("Question: Two and two?\nAnswer:", CUE),
        ("Question: x\nAnswer: 1\n\nQuestion: y\nAnswer:", CUE),
        ("a band on stage plays. They", " They"),
        ("two blanks  end", " end"),
        ("a new\nline", "\nline"),
        ("a tail of \n", " of \n"),
        ("Once", "Once"),
    ],
)
def test_the_cue_is_cut_off(prompt: str, cue: str) -> None:
    assert split_cue(prompt) == (prompt.removesuffix(cue), cue)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(scale_path("qwen2-57b-a14b") / "tokenizer.json"))


def ids(tokenizer: Tokenizer, *parts: str) -> list[int]:
    return [i for part in parts for i in tokenizer.encode(part).ids]


@given(st.text(st.characters(codec="utf-8")), st.sampled_from([CUE, " word", "\n7", " ?", ""]))
def test_a_prompt_and_its_cue_have_the_tokens_of_the_whole(
    tokenizer: Tokenizer, text: str, end: str
) -> None:
    prefilled, cue = split_cue(text + end)
    assert prefilled + cue == text + end
    assert ids(tokenizer, prefilled, cue) == ids(tokenizer, text + end)


def test_every_prompt_of_the_data_has_the_tokens_of_its_parts(
    tokenizer: Tokenizer, data_dir: Path
) -> None:
    for name in ("gsm8k", "winogrande", "bbh", "gaokao_math_i", "text"):
        for example in load(workload(name), count=40, data_dir=data_dir).examples:
            prompt = build_prompt(workload(name), example)
            assert ids(tokenizer, *split_cue(prompt)) == ids(tokenizer, prompt)

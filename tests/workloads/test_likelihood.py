"""Options scored by likelihood: texts as lm-eval scores them, and the chosen option."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.models.catalogue import scale_path
from moebench.workloads.catalogue import workload, workload_names
from moebench.workloads.draw import load
from moebench.workloads.example import Example
from moebench.workloads.likelihood import choose, continuations


def options(question: str, *choices: str, answer: int = 0) -> Example:
    block = "".join(f"\n{'ABCD'[i]}. {choice}" for i, choice in enumerate(choices))
    return Example(id="q/1", prompt=question + block, choices=choices, answer=answer)


CUP = options("What is a cup for?", "drinking", "flying", answer=0)
SEA = options("What is the sea?", "dry", "wet", answer=1)


def test_letters() -> None:
    found = continuations(workload("mmlu"), CUP)
    assert found.prompt == "Question: What is a cup for?\nA. drinking\nB. flying\nAnswer:"
    assert (found.texts, found.uncounted) == ((" A", " B"), (0, 0))


def test_texts_without_the_options_and_after_examples() -> None:
    found = continuations(workload("arc_easy"), CUP, [SEA])
    assert found.prompt == (
        "Question: What is the sea?\nAnswer: wet\n\nQuestion: What is a cup for?\nAnswer:"
    )
    assert found.texts == (" drinking", " flying")


def test_endings_follow_the_bare_text() -> None:
    tango = options("Tango: A band plays. They", "dance.", "fly.")
    found = continuations(workload("hellaswag"), tango, [options("X: It", "dance.", "fly.")])
    assert found.prompt == "X: It dance.\n\nTango: A band plays. They"
    assert found.texts == (" dance.", " fly.")


def test_a_blank_counts_what_follows_it() -> None:
    """Sakaguchi et al. 2019 (WinoGrande) as lm-eval scores it: the rest given each name."""
    sarah = options("Sarah beat Maria so _ always won.", "Sarah", "Maria")
    found = continuations(workload("winogrande"), sarah, [options("It is _'s.", "Tom", "Ann")])
    assert found.prompt == "It is Tom's.\n\nSarah beat Maria so"
    assert found.texts == (" Sarah always won.", " Maria always won.")
    counted = [t[n:] for t, n in zip(found.texts, found.uncounted, strict=True)]
    assert counted == [" always won."] * 2


def test_no_worked_solution_is_shown_before_a_letter() -> None:
    shot = replace(SEA, solution="1 + 1 = 2.")
    found = continuations(workload("mmlu"), CUP, [shot])
    assert "1 + 1" not in found.prompt
    assert "Answer: B\n\nQuestion:" in found.prompt


def test_the_likeliest_wins_and_the_first_of_equals() -> None:
    assert choose(workload("mmlu"), (" A", " B", " C"), (-3.0, -1.0, -2.0)) == 1
    assert choose(workload("mmlu"), (" A", " B"), (-1.0, -1.0)) == 0
    assert choose(workload("mmlu"), (" A", " B"), (-math.inf, -9.0)) == 1


def test_per_byte_of_utf8_without_the_blank() -> None:
    """-4 over "abcd" is -1 a byte; -2.5 over "é" (two bytes) is -1.25 a byte."""
    texts = (" abcd", " é")
    assert choose(workload("arc_easy"), texts, (-4.0, -2.5)) == 0
    assert choose(workload("arc_easy"), texts, (-4.0, -2.5), per_byte=False) == 1
    assert choose(workload("boolq"), texts, (-4.0, -2.5)) == 1
    assert choose(workload("boolq"), texts, (-4.0, -2.5), per_byte=True) == 0


def test_what_cannot_be_scored_is_told() -> None:
    free = Example(id="g/1", prompt="How many?", choices=None, answer="3")
    for name in ("gsm8k", "bbh"):
        with pytest.raises(UsageError, match="g/1 has no options to score by likelihood"):
            continuations(workload(name), free)
    with pytest.raises(UsageError, match="among its own few-shot examples"):
        continuations(workload("mmlu"), CUP, [CUP])
    with pytest.raises(InputError, match=r"q/1: no blank \"_\" inside the sentence"):
        continuations(workload("winogrande"), CUP)
    for prompt in (
        "What is a cup for?",
        "What?\nA. flying\nB. drinking",
        "\nA. drinking\nB. flying",
    ):
        with pytest.raises(InputError, match=r"q/1: the prompt is not a question followed by"):
            continuations(workload("piqa"), replace(CUP, prompt=prompt))


def test_every_question_of_the_data_has_its_continuations(data_dir: Path) -> None:
    """They exist, differ, and read on from the prompt as the tokenizer sees the whole text."""
    tokenizer = Tokenizer.from_file(str(scale_path("qwen2-57b-a14b") / "tokenizer.json"))
    names = [name for name in workload_names() if workload(name).likelihood]
    assert len(names) == 16
    for name in names:
        entry = workload(name)
        drawn = load(entry, data_dir=data_dir).examples
        for number, example in enumerate(e for e in drawn if e.choices):
            found = continuations(entry, example)
            assert len(set(found.texts)) == len(example.choices or ())
            if number % 50:
                continue
            for text, uncounted in zip(found.texts, found.uncounted, strict=True):
                parts = (found.prompt, text[:uncounted], text[uncounted:])
                ids = [i for part in parts for i in tokenizer.encode(part).ids]
                assert ids == tokenizer.encode(found.prompt + text).ids, example.id

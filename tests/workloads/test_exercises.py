"""Generated exercises are true, disjoint, repeatable, and equal to the models' training text."""

import hashlib
import re
from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.workloads.example import Example, ask_and_answer
from moebench.workloads.exercises import FAMILIES, Split, exercises, facts, inflection

OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
SPLITS: tuple[Split, Split] = ("test", "train")

# Scale models are trained on this text: a change makes their weights and scores mean another thing.
GOLDEN = {
    ("equations", "test"): "a33fa0273eb410e05ddf78f85884d31f230c6ca5fce7cae2e488e431b3693b17",
    ("equations", "train"): "03dbbae0b49ebcb84fa0a641a7b10be9e241b0ae1aa93048957dad0b5078a6fc",
    ("inflection", "test"): "9fb662dd193db42b5e537a7532cffd30e0b6cf8aab313ba112ac0616d1005c65",
    ("inflection", "train"): "94570f843f7a4ca03e7275259ae881c7e62e12228d72298d644a663113571551",
    ("facts", "test"): "bba34ba256d4646ddb1d37c486641acebbe4ff8f78f82eb4905266189ca8ce36",
    ("facts", "train"): "8a38ee91e19359a73d161f02968793c9595e137d26440a4856cec47284b93b4c",
    ("passages", "test"): "73fc7900cf1c1a744b8b6a138992984a30d90594ba7715d6b13279eee4073f65",
    ("passages", "train"): "25edc9ddd99d0b7eed2f3d58d6bd19d49cc86753e4191d45fdc9fef916b5c315",
    ("arithmetic", "test"): "4c491ef576fe0e967280dfdd7a339c96c7cf146e81dbeb8896b4fa5714337306",
    ("arithmetic", "train"): "bcca1746e83118cea6a9e9ba87e95ddb947f73750bbd0ba1fa0c8e69aac3f469",
}


def drawn(family: str, split: Split, count: int, seed: int = 0) -> list[Example]:
    return list(islice(exercises(family, split, seed), count))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_never_drifts(family: str, split: Split) -> None:
    text = "".join(f"{e.id}\n{ask_and_answer(e)}\n" for e in drawn(family, split, 200))
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN[family, split]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_exercise_or_id_comes_twice(family: str) -> None:
    examples = drawn(family, "test", 4000)
    assert len({e.prompt for e in examples}) == len({e.id for e in examples}) == 4000


@settings(max_examples=20, deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)), split=st.sampled_from(SPLITS),
    seed=st.integers(0, 10_000), count=st.integers(1, 40),
)  # fmt: skip
def test_the_same_exercises_whenever_they_are_asked_for(
    family: str, split: Split, seed: int, count: int
) -> None:
    assert drawn(family, split, count, seed) == drawn(family, split, 40, seed)[:count]


def asked_of_inflection(example: Example) -> str:
    """Return verb and complement without names, which must not be in both splits."""
    task, sentence = example.prompt.split(": ")
    return f"{re.sub(r' of .*', '', task)}/{sentence.split(' ', 1)[1]}"


def facts_asked(example: Example) -> tuple[dict[str, str], str, list[str]]:
    """Return the table, the wanted value and the four things of a facts exercise."""
    asked, things = example.prompt.removesuffix("?").split(": ")
    ((table, value),) = {
        id(table): (table, value)
        for table, templates in facts.TABLES
        for template in templates
        for value in table.values()
        if asked == template.format(value=value)
    }.values()
    return table, value, things.split(", ")


def asked_of_facts(example: Example) -> str:
    _, value, things = facts_asked(example)
    return f"{value}/{sorted(things)}"


KEYS: dict[str, Callable[[Example], str]] = {
    "equations": lambda example: example.prompt,
    "inflection": asked_of_inflection,
    "facts": asked_of_facts,
    "passages": lambda example: example.prompt,
    "arithmetic": lambda example: example.prompt,
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_splits_share_no_question_whatever_the_seed(family: str) -> None:
    halves: list[set[str]] = []
    for split in SPLITS:
        examples = [e for seed in range(3) for e in drawn(family, split, 1500, seed)]
        halves.append({e.prompt for e in examples} | {KEYS[family](e) for e in examples})
    assert not halves[0] & halves[1]


def check_equations(example: Example) -> None:
    assert example.choices is None
    assert example.solution is not None
    numbers = [int(n) for n in re.findall(r"\d+", example.prompt)]
    asked = re.sub(r"\d+", "#", example.prompt)
    chain = re.fullmatch(r"(?:What is|How much is|Compute|Work out) (#(?: [+-] #)+)[?.]", asked)
    if chain is not None:
        truth = numbers[0]
        for operator, number in zip(re.findall(r"[+-]", chain[1]), numbers[1:], strict=True):
            truth = OPERATIONS[operator](truth, number)
    elif asked == "x + # = #. What is x?":
        truth = numbers[1] - numbers[0]
    else:
        assert asked == "Which number comes next: #, #, #?"
        assert numbers[1] - numbers[0] == numbers[2] - numbers[1]
        truth = 2 * numbers[2] - numbers[1]
    assert example.answer == str(truth)
    steps = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)\.", example.solution)
    assert " ".join(f"{a} {o} {b} = {c}." for a, o, b, c in steps) == example.solution
    assert all(OPERATIONS[o](int(a), int(b)) == int(c) for a, o, b, c in steps)
    assert steps[-1][-1] == str(truth)


def check_inflection(example: Example) -> None:
    task, sentence = example.prompt.split(": ")
    name, third, rest = sentence.removesuffix(".").split(" ", 2)
    (row,) = [row for row in (*inflection.MOTION, *inflection.HANDLING) if row[1] == third]
    base, _, past = row
    if task == "Put into the past":
        expected = f"{name} {past} {rest}."
    elif task == "Put into the future":
        expected = f"{name} will {base} {rest}."
    elif task == "Make it negative":
        expected = f"{name} does not {base} {rest}."
    elif task == "Make it a question":
        expected = f"Does {name} {base} {rest}?"
    else:
        both = task.removeprefix("Say it of ")
        first, second = both.split(" and ")
        assert (first == name, second == name) == (True, False)
        expected = f"{both} {base} {rest}."
    assert (example.answer, example.choices, example.solution) == (expected, None, None)


def check_facts(example: Example) -> None:
    assert example.solution is not None
    table, value, things = facts_asked(example)
    assert [thing for thing in things if table[thing] == value] == [example.answer]
    assert len(set(things)) == 4
    considered = things[: things.index(str(example.answer)) + 1]
    assert example.solution == ", ".join(f"{thing} {table[thing]}" for thing in considered) + "."


def check_passages(example: Example) -> None:
    """Check a passage's answer with a tiny interpreter of its sentences."""
    assert example.solution is not None
    form = r"Notes: (.*)\. Later: (.*)\. Where is (the )?(\w+)\?"
    read = re.fullmatch(form, example.prompt)
    assert read is not None
    noted = dict(note.split() for note in f"{read[1]}, {read[2]}".split(", "))  # the last counts
    wanted = noted[read[4]] if read[3] else read[4]
    assert example.answer == noted[wanted]
    held = f"{read[4]} {wanted}, " if read[3] else ""
    assert example.solution == f"{held}{wanted} {noted[wanted]}."


def check_arithmetic(example: Example) -> None:
    assert example.solution is not None
    story = [int(n) for n in re.findall(r"\d+", example.prompt)]
    steps = re.findall(r"(\d+) ([+*-]) (\d+) = (\d+)\.", example.solution)
    assert " ".join(f"{a} {o} {b} = {c}." for a, o, b, c in steps) == example.solution
    total = story[0]
    for number, (left, operator, right, result) in zip(story[1:], steps, strict=True):
        assert (int(left), int(right)) == (total, number)
        total = OPERATIONS[operator](total, number)
        assert int(result) == total >= 1
    assert example.answer == str(total)


CHECKS = {
    "equations": check_equations,
    "inflection": check_inflection,
    "facts": check_facts,
    "passages": check_passages,
    "arithmetic": check_arithmetic,
}


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(split=st.sampled_from(SPLITS), seed=st.integers(0, 10_000))
def test_every_answer_is_true(family: str, split: Split, seed: int) -> None:
    for example in drawn(family, split, 30, seed):
        CHECKS[family](example)


def place_in_facts(example: Example) -> int:
    return facts_asked(example)[2].index(str(example.answer))


def test_always_answering_one_place_does_not_pay() -> None:
    places = [place_in_facts(example) for example in drawn("facts", "test", 1000)]
    assert all(200 <= places.count(option) <= 300 for option in range(4))


def test_an_answer_is_written_after_its_solution() -> None:
    example = next(exercises("arithmetic", "test"))
    assert ask_and_answer(example).endswith(f"{example.solution}\n#### {example.answer}")

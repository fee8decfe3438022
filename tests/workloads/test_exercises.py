"""Generated problems: true, disjoint, repeatable, and byte for byte what models were trained on."""

import hashlib
import re
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.example import ask_and_answer
from workloads.exercises import Split, arithmetic

OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
SPLITS = st.sampled_from(["test", "train"])

# Scale models are trained on this text: a change makes their weights and scores mean another thing.
GOLDEN_TEST = "d759673038b86acf8e6d25631c63a0d4947e67eb58a774f46f80daa4ab1bfaca"
GOLDEN_TRAIN = "9b82b4c0b1cdf827749cc7247d1a972f0442d6e07d00e0a3a6ec349c81d28d39"


def digest(split: Split) -> str:
    lines = [f"{e.id}\n{ask_and_answer(e)}\n" for e in islice(arithmetic(split), 200)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_text_never_drifts() -> None:
    assert digest("test") == GOLDEN_TEST
    assert digest("train") == GOLDEN_TRAIN


@settings(max_examples=20, deadline=None)
@given(split=SPLITS, seed=st.integers(0, 10_000))
def test_every_equation_is_true_and_follows_from_the_story(split: Split, seed: int) -> None:
    for example in islice(arithmetic(split, seed), 30):
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


@settings(max_examples=20, deadline=None)
@given(split=SPLITS, seed=st.integers(0, 10_000), count=st.integers(1, 40))
def test_the_same_problems_whenever_they_are_asked_for(split: Split, seed: int, count: int) -> None:
    longer = list(islice(arithmetic(split, seed), 40))
    assert list(islice(arithmetic(split, seed), count)) == longer[:count]


def test_the_splits_share_no_problem_whatever_the_seed() -> None:
    train = {e.prompt for seed in range(3) for e in islice(arithmetic("train", seed), 2000)}
    test = {e.prompt for seed in range(3) for e in islice(arithmetic("test", seed), 2000)}
    assert not train & test


def test_no_problem_or_id_comes_twice() -> None:
    drawn = list(islice(arithmetic("test"), 5000))
    assert len({e.prompt for e in drawn}) == len({e.id for e in drawn}) == 5000


def test_an_answer_is_a_free_number() -> None:
    example = next(arithmetic("test"))
    assert (example.choices, example.answers) == (None, None)
    assert ask_and_answer(example).endswith(f"{example.solution}\n#### {example.answer}")

"""Generated exercises: arithmetic word problems that need no data folder.

Every problem is drawn from its own index, so problem 17 of a split is the same wherever it is
asked for.  The two splits are disjoint by construction: a problem belongs to *test* when a hash of
its text is even, so that memorising the training half never answers a test question.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from workloads.example import Example

Split = Literal["train", "test"]

NAMES = ("Tom", "Anna", "Ben", "Lucy", "Omar", "Mia", "Ivan", "Sara", "Leo", "Nina", "Paul", "Ruth")
THINGS = ("apples", "books", "coins", "pens", "cards", "eggs", "shells", "stamps", "cakes", "toys")
GAINS = ("buys {n} more", "finds {n} more", "gets {n} more from {friend}", "wins {n}")
LOSSES = ("gives {n} to {friend}", "loses {n}", "sells {n}", "gives away {n}")


@dataclass(frozen=True, slots=True)
class _Step:
    """One sentence of a story and the equation that it asks for."""

    text: str
    operator: str
    operand: int
    total: int


def _draw_step(rng: random.Random, total: int, friend: str) -> _Step:
    kinds = ["+"] + (["-"] if total > 1 else []) + (["*"] if total <= 12 else [])
    operator = rng.choice(kinds)
    if operator == "+":
        n = rng.randint(1, 20)
        return _Step(rng.choice(GAINS).format(n=n, friend=friend), "+", n, total + n)
    if operator == "-":
        n = rng.randint(1, min(20, total - 1))
        return _Step(rng.choice(LOSSES).format(n=n, friend=friend), "-", n, total - n)
    n = rng.randint(2, 5)
    return _Step(f"then makes it {n} times as many", "*", n, total * n)


def _word_problem(rng: random.Random) -> tuple[str, str, str]:
    """A story of one to three steps: (question, worked solution, answer)."""
    name, friend = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    total = rng.randint(2, 30)
    sentences = [f"{name} has {total} {thing}."]
    lines = []
    for _ in range(rng.randint(1, 3)):
        step = _draw_step(rng, total, friend)
        sentences.append(f"{name} {step.text}.")
        lines.append(f"{total} {step.operator} {step.operand} = {step.total}.")
        total = step.total
    sentences.append(f"How many {thing} does {name} have now?")
    return " ".join(sentences), " ".join(lines), str(total)


def arithmetic(split: Split, seed: int = 0) -> Iterator[Example]:
    """An endless stream of distinct arithmetic word problems of one split."""
    wanted = 0 if split == "test" else 1
    seen: set[str] = set()
    index = 0
    while True:
        question, solution, answer = _word_problem(random.Random(f"{seed}/{index}"))
        index += 1
        half = hashlib.sha256(question.encode()).digest()[0] % 2
        if half == wanted and question not in seen:
            seen.add(question)
            yield Example(
                id=f"arithmetic/{split}/{seed}/{index - 1}",
                prompt=question,
                choices=None,
                answer=answer,
                solution=solution,
            )

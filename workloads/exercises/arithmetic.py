"""Generated word problems of one to three steps (category: reasoning)."""

import random
from dataclasses import dataclass

from moebench.workloads.exercises.exercise import NAMES, Exercise

THINGS = ("apples", "books", "coins", "pens", "cards", "eggs", "shells", "stamps", "cakes", "toys")
GAINS = ("buys {n} more", "finds {n} more", "gets {n} more from {friend}", "wins {n}")
LOSSES = ("gives {n} to {friend}", "loses {n}", "sells {n}", "gives away {n}")


@dataclass(frozen=True, slots=True)
class _Step:
    """One sentence of a story and the equation that it needs."""

    text: str
    operator: str
    operand: int
    total: int


def _draw_step(rng: random.Random, total: int, friend: str) -> _Step:
    kinds = ["+"] + (["-"] if total > 1 else []) + (["*"] if total <= 12 else [])
    operator = rng.choice(kinds)
    if operator == "+":
        n = rng.randint(1, 9)
        return _Step(rng.choice(GAINS).format(n=n, friend=friend), "+", n, total + n)
    if operator == "-":
        n = rng.randint(1, min(9, total - 1))
        return _Step(rng.choice(LOSSES).format(n=n, friend=friend), "-", n, total - n)
    n = rng.randint(2, 3)
    return _Step(f"then makes it {n} times as many", "*", n, total * n)


def draw(rng: random.Random) -> Exercise:
    """Draw a story of one to three steps, with its solution line by line."""
    name, friend = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    total = rng.randint(2, 15)
    sentences = [f"{name} has {total} {thing}."]
    lines = []
    for _ in range(rng.randint(1, 3)):
        step = _draw_step(rng, total, friend)
        sentences.append(f"{name} {step.text}.")
        lines.append(f"{total} {step.operator} {step.operand} = {step.total}.")
        total = step.total
    sentences.append(f"How many {thing} does {name} have now?")
    question = " ".join(sentences)
    return Exercise(question=question, solution=" ".join(lines), answer=str(total), key=question)

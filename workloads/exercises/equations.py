"""Sums, missing terms and sequences with four options (category: exam)."""

import random

from workloads.exercises.exercise import Exercise

LETTERS = "ABCD"


def draw(rng: random.Random) -> Exercise:
    """One question; the wrong options lie near the right one, as in a school examination.

    The solution computes, then reads the options until one has the result.
    """
    asked, solution, value = rng.choice((_sum, _difference, _missing_term, _sequence))(rng)
    near = [
        n for n in (value - 10, value - 2, value - 1, value + 1, value + 2, value + 10) if n > 0
    ]
    options = [value, *rng.sample(near, 3)]
    rng.shuffle(options)
    choices = tuple(str(option) for option in options)
    listed = list(zip(LETTERS, choices, strict=True))
    right = options.index(value)
    compared = "".join(f" {letter} {choice}." for letter, choice in listed[: right + 1])
    return Exercise(
        question=asked + "".join(f"\n{letter}. {choice}" for letter, choice in listed),
        answer=right,
        solution=solution + compared,
        choices=choices,
        key=asked,
    )


def _sum(rng: random.Random) -> tuple[str, str, int]:
    a, b = rng.randint(2, 50), rng.randint(2, 20)
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", a + b


def _difference(rng: random.Random) -> tuple[str, str, int]:
    a, b = rng.randint(2, 50), rng.randint(2, 20)
    return f"What is {a + b} - {b}?", f"{a + b} - {b} = {a}.", a


def _missing_term(rng: random.Random) -> tuple[str, str, int]:
    x, b = rng.randint(2, 50), rng.randint(2, 20)
    return f"x + {b} = {x + b}. What is x?", f"{x + b} - {b} = {x}.", x


def _sequence(rng: random.Random) -> tuple[str, str, int]:
    first, step = rng.randint(1, 30), rng.randint(2, 9)
    terms = [first + step * i for i in range(4)]
    shown = ", ".join(str(term) for term in terms[:3])
    solution = f"{terms[1]} - {terms[0]} = {step}. {terms[2]} + {step} = {terms[3]}."
    return f"Which number comes next: {shown}?", solution, terms[3]

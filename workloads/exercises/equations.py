"""Sums, missing terms and sequences (category: exam)."""

import random

from workloads.exercises.exercise import Exercise


def draw(rng: random.Random) -> Exercise:
    """One question of school arithmetic with its working."""
    asked, solution, value = rng.choice(KINDS)(rng)
    return Exercise(question=asked, answer=str(value), solution=solution, key=asked)


def _sum(rng: random.Random) -> tuple[str, str, int]:
    a, b = rng.randint(2, 79), rng.randint(2, 30)
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", a + b


def _difference(rng: random.Random) -> tuple[str, str, int]:
    a, b = rng.randint(2, 79), rng.randint(2, 30)
    return f"What is {a + b} - {b}?", f"{a + b} - {b} = {a}.", a


def _two_steps(rng: random.Random) -> tuple[str, str, int]:
    a, b, c = rng.randint(20, 99), rng.randint(2, 39), rng.randint(2, 39)
    first, second = rng.choice("+-"), rng.choice("+-")
    middle = a + b if first == "+" else a - b
    value = middle + c if second == "+" else middle - c
    if value < 0:
        return _two_steps(rng)
    solution = f"{a} {first} {b} = {middle}. {middle} {second} {c} = {value}."
    return f"What is {a} {first} {b} {second} {c}?", solution, value


def _missing_term(rng: random.Random) -> tuple[str, str, int]:
    x, b = rng.randint(2, 79), rng.randint(2, 30)
    return f"x + {b} = {x + b}. What is x?", f"{x + b} - {b} = {x}.", x


def _sequence(rng: random.Random) -> tuple[str, str, int]:
    first, step = rng.randint(1, 60), rng.randint(2, 12)
    terms = [first + step * i for i in range(4)]
    shown = ", ".join(str(term) for term in terms[:3])
    solution = f"{terms[1]} - {terms[0]} = {step}. {terms[2]} + {step} = {terms[3]}."
    return f"Which number comes next: {shown}?", solution, terms[3]


KINDS = (_sum, _difference, _missing_term, _sequence, _two_steps)

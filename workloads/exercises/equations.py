"""Generated sums, missing terms and sequences (category: exam)."""

import random

from moebench.workloads.exercises.exercise import Exercise

FORMS = ("What is {}?", "How much is {}?", "Compute {}.", "Work out {}.")


def draw(rng: random.Random) -> Exercise:
    """Draw one exercise of school arithmetic with its worked solution."""
    asked, solution, value = rng.choice((_chain, _missing_term, _sequence))(rng)
    return Exercise(question=asked, answer=str(value), solution=solution, key=asked)


def _chain(rng: random.Random) -> tuple[str, str, int]:
    """Draw one to three additions and subtractions, from left to right."""
    total = rng.randint(2, 40)
    asked, lines = str(total), []
    for _ in range(rng.randint(1, 3)):
        operator, n = rng.choice("+-"), rng.randint(2, 9)
        if n > total:
            operator = "+"
        result = total + n if operator == "+" else total - n
        asked += f" {operator} {n}"
        lines.append(f"{total} {operator} {n} = {result}.")
        total = result
    return rng.choice(FORMS).format(asked), " ".join(lines), total


def _missing_term(rng: random.Random) -> tuple[str, str, int]:
    x, b = rng.randint(2, 40), rng.randint(2, 9)
    return f"x + {b} = {x + b}. What is x?", f"{x + b} - {b} = {x}.", x


def _sequence(rng: random.Random) -> tuple[str, str, int]:
    first, step = rng.randint(1, 30), rng.randint(2, 9)
    terms = [first + step * i for i in range(4)]
    shown = ", ".join(str(term) for term in terms[:3])
    solution = f"{terms[1]} - {terms[0]} = {step}. {terms[2]} + {step} = {terms[3]}."
    return f"Which number comes next: {shown}?", solution, terms[3]

"""Generated questions on facts from training, with four options (category: knowledge).

The facts are in both splits, each question in one: a test question on four things together was
never in the training split, so it is answered by facts and not by memory of the question.
"""

import random

from moebench.workloads.exercises.exercise import Exercise

CAPITALS = {
    "Paris": "France", "Rome": "Italy", "Madrid": "Spain", "Berlin": "Germany", "London": "England",
    "Vienna": "Austria", "Athens": "Greece", "Oslo": "Norway", "Lisbon": "Portugal",
    "Warsaw": "Poland", "Dublin": "Ireland", "Moscow": "Russia", "Tokyo": "Japan",
    "Beijing": "China", "Delhi": "India", "Bangkok": "Thailand", "Cairo": "Egypt",
    "Nairobi": "Kenya", "Lima": "Peru", "Havana": "Cuba", "Ottawa": "Canada", "Hanoi": "Vietnam",
    "Tehran": "Iran", "Baghdad": "Iraq",
}  # fmt: skip
CONTINENTS = {
    "France": "Europe", "Italy": "Europe", "Spain": "Europe", "Germany": "Europe",
    "Greece": "Europe", "Norway": "Europe", "Poland": "Europe", "Japan": "Asia", "China": "Asia",
    "India": "Asia", "Thailand": "Asia", "Iran": "Asia", "Vietnam": "Asia", "Egypt": "Africa",
    "Kenya": "Africa", "Ghana": "Africa", "Nigeria": "Africa", "Peru": "America",
    "Brazil": "America", "Cuba": "America", "Canada": "America", "Mexico": "America",
}  # fmt: skip
KINDS = {
    "sparrow": "bird", "eagle": "bird", "owl": "bird", "duck": "bird", "robin": "bird",
    "trout": "fish", "salmon": "fish", "shark": "fish", "tuna": "fish", "carp": "fish",
    "ant": "insect", "bee": "insect", "fly": "insect", "moth": "insect", "wasp": "insect",
    "dog": "mammal", "horse": "mammal", "whale": "mammal", "cow": "mammal", "mouse": "mammal",
    "snake": "reptile", "lizard": "reptile", "turtle": "reptile", "crocodile": "reptile",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "old": "young", "good": "bad", "high": "low", "long": "short",
    "fast": "slow", "rich": "poor", "full": "empty", "hard": "soft", "dark": "light",
    "early": "late", "near": "far", "wet": "dry", "open": "closed", "happy": "sad",
    "strong": "weak", "first": "last", "day": "night", "left": "right",
}  # fmt: skip
WORKPLACES = {
    "teacher": "school", "doctor": "hospital", "farmer": "field", "cook": "kitchen",
    "sailor": "ship", "judge": "court", "priest": "church", "actor": "theatre", "clerk": "office",
    "miner": "mine", "baker": "bakery", "soldier": "army", "pilot": "plane", "driver": "car",
}  # fmt: skip
#: Each table with its question templates for the thing that has a ``{value}``.
TABLES = (
    (CAPITALS, ("Which is the capital of {value}", "From which city is {value} ruled")),
    (CONTINENTS, ("Which country is in {value}", "Which of these lies in {value}")),
    (KINDS, ("Which is a kind of {value}", "Which of these animals is a {value}")),
    (OPPOSITES, ("Which is the opposite of {value}", "Which word says the contrary of {value}")),
    (WORKPLACES, ("Whose place of work is the {value}", "Who belongs to the {value}")),
)


def draw(rng: random.Random) -> Exercise:
    """Draw four things of one table, one of which has the requested value.

    The solution recalls the fact about each thing until one has that value.
    """
    table, templates = rng.choice(TABLES)
    right = rng.choice(tuple(table))
    others = [thing for thing, value in table.items() if value != table[right]]
    things = [right, *rng.sample(others, 3)]
    rng.shuffle(things)
    considered = things[: things.index(right) + 1]
    asked = rng.choice(templates).format(value=table[right])
    return Exercise(
        question=f"{asked}: {', '.join(things)}?",
        answer=right,
        solution=", ".join(f"{thing} {table[thing]}" for thing in considered) + ".",
        key=f"{table[right]}/{'/'.join(sorted(things))}",
    )

"""Generated notes on where people and things are, with a question (category: understanding).

The form is that of bAbI's first two tasks (Weston et al. 2015, "Towards AI-complete question
answering"), as short notes: the last note on a person counts, and a thing is where the person
is who has it.
"""

import random

from moebench.workloads.exercises.exercise import NAMES, Exercise

PLACES = ("garden", "kitchen", "office", "park", "school", "shop", "station", "library", "church")
THINGS = ("ball", "book", "key", "cup", "lamp", "letter", "map", "hat", "bag", "box")


def draw(rng: random.Random) -> Exercise:
    """Draw people in four places, of whom one or two move; ask where a person or thing is."""
    people = rng.sample(NAMES, 4)
    places = rng.sample(PLACES, 6)
    where = dict(zip(people, places[:4], strict=True))
    notes = [f"{person} {place}" for person, place in where.items()]
    holder, thing = rng.choice(people), rng.choice(THINGS)
    notes.insert(rng.randint(0, 4), f"{thing} {holder}")
    moves = []
    for place in places[4 : 4 + rng.randint(1, 2)]:
        person = rng.choice(people)
        where[person] = place
        moves.append(f"{person} {place}")
    person = rng.choice(people)
    if rng.random() < 0.5:
        person = holder
        asked, solution = f"Where is the {thing}?", f"{thing} {holder}, "
    else:
        asked, solution = f"Where is {person}?", ""
    question = f"Notes: {', '.join(notes)}. Later: {', '.join(moves)}. {asked}"
    return Exercise(
        question=question, answer=where[person], solution=f"{solution}{person} {where[person]}.",
        key=question,
    )  # fmt: skip

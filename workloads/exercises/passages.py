"""Stories of where people and things are (category: understanding).

The form is that of bAbI's first two tasks (Weston et al. 2015, "Towards AI-complete question
answering"): what is said last of a person counts, and a thing is where the person is who has it.
"""

import random

from workloads.exercises.exercise import NAMES, Exercise

PLACES = ("garden", "kitchen", "office", "park", "school", "shop", "station", "library", "church")
THINGS = ("ball", "book", "key", "cup", "lamp", "letter", "map", "hat", "bag", "box")


def draw(rng: random.Random) -> Exercise:
    """Four people in four places, one or two of whom move; where is someone or something?"""
    people = rng.sample(NAMES, 4)
    places = rng.sample(PLACES, 6)
    where = dict(zip(people, places[:4], strict=True))
    story = [f"{person} is in the {place}." for person, place in where.items()]
    holder, thing = rng.choice(people), rng.choice(THINGS)
    story.insert(rng.randint(1, 4), f"The {thing} is with {holder}.")
    for place in places[4 : 4 + rng.randint(1, 2)]:
        person = rng.choice(people)
        where[person] = place
        story.append(f"Now {person} is in the {place}.")
    person = rng.choice(people)
    if rng.random() < 0.5:
        person = holder
        asked, solution = f"Where is the {thing}?", f"The {thing} is with {holder}. "
    else:
        asked, solution = f"Where is {person}?", ""
    question = f"{' '.join(story)} {asked}"
    return Exercise(
        question=question,
        answer=where[person],
        solution=f"{solution}{person} is in the {where[person]}.",
        key=question,
    )

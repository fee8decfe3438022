"""Stories of people who go to places and take things (category: understanding).

The form is that of bAbI's first two tasks (Weston et al. 2015, "Towards AI-complete question
answering"): the last move of a person counts, and a thing is where its holder is.
"""

import random

from workloads.exercises.exercise import NAMES, Exercise

PLACES = ("garden", "kitchen", "office", "park", "school", "shop", "station", "library", "church")
THINGS = ("ball", "book", "key", "cup", "lamp", "letter", "map", "hat", "bag", "box")
MOVES = ("goes to", "walks to", "runs to", "comes to")


def draw(rng: random.Random) -> Exercise:
    """Four people in four places, one or two of whom move again; where is someone or something?"""
    people = rng.sample(NAMES, 4)
    places = rng.sample(PLACES, 6)
    where = dict(zip(people, places[:4], strict=True))
    story = [f"{person} {rng.choice(MOVES)} the {place}." for person, place in where.items()]
    holder, thing = rng.choice(people), rng.choice(THINGS)
    story.insert(rng.randint(1, 4), f"{holder} takes the {thing}.")
    for place in places[4 : 4 + rng.randint(1, 2)]:
        person = rng.choice(people)
        where[person] = place
        story.append(f"{person} {rng.choice(MOVES)} the {place}.")
    person = rng.choice(people)
    if rng.random() < 0.5:
        person = holder
        asked, solution = f"Where is the {thing}?", f"{holder} has the {thing}. "
    else:
        asked, solution = f"Where is {person}?", ""
    question = f"{' '.join(story)} {asked}"
    return Exercise(
        question=question,
        answer=where[person],
        solution=f"{solution}{person} is in the {where[person]}.",
        key=question,
    )

"""Generated sentences to put into another form, such as the past (category: language).

A verb with its complement and its task belongs to one split, so no form of a test sentence was
seen in training with another name in front.
"""

import random

from moebench.workloads.exercises.exercise import NAMES, Exercise

#: Verbs as base form, third person, past.
MOTION = (
    ("walk", "walks", "walked"), ("run", "runs", "ran"), ("go", "goes", "went"),
    ("come", "comes", "came"), ("drive", "drives", "drove"), ("hurry", "hurries", "hurried"),
    ("move", "moves", "moved"), ("fly", "flies", "flew"), ("ride", "rides", "rode"),
    ("march", "marches", "marched"),
)  # fmt: skip
HANDLING = (
    ("take", "takes", "took"), ("see", "sees", "saw"), ("find", "finds", "found"),
    ("buy", "buys", "bought"), ("carry", "carries", "carried"), ("wash", "washes", "washed"),
    ("open", "opens", "opened"), ("paint", "paints", "painted"), ("lose", "loses", "lost"),
    ("hold", "holds", "held"), ("make", "makes", "made"), ("watch", "watches", "watched"),
    ("break", "breaks", "broke"), ("try", "tries", "tried"),
)  # fmt: skip
PLACES = ("garden", "city", "river", "park", "school", "shop", "station", "sea", "forest", "hill")
THINGS = ("ball", "book", "door", "cup", "lamp", "letter", "map", "hat", "bag", "box")
COLOURS = ("red", "blue", "green", "old", "new", "small", "big", "white")
TASKS = {
    "Put into the past": "{name} {past} {rest}.",
    "Put into the future": "{name} will {base} {rest}.",
    "Make it negative": "{name} does not {base} {rest}.",
    "Make it a question": "Does {name} {base} {rest}?",
    "Say it of {name} and {friend}": "{name} and {friend} {base} {rest}.",
}


def draw(rng: random.Random) -> Exercise:
    """Draw one sentence and the requested form."""
    name, friend = rng.sample(NAMES, 2)
    if rng.random() < 0.4:
        base, third, past = rng.choice(MOTION)
        rest = f"to the {rng.choice(PLACES)}"
    else:
        base, third, past = rng.choice(HANDLING)
        rest = f"the {rng.choice(COLOURS)} {rng.choice(THINGS)}"
    task = rng.choice(tuple(TASKS))
    words = {"name": name, "friend": friend, "base": base, "past": past, "rest": rest}
    return Exercise(
        question=f"{task.format(**words)}: {name} {third} {rest}.",
        answer=TASKS[task].format(**words),
        key=f"{task}/{base}/{rest}",
    )

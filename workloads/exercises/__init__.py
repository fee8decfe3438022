"""Generated exercises: five families, one for each of SMoE's categories, that need no data folder.

Every exercise is drawn from its own index, so exercise 17 of a split is the same in every run.  The
two splits are disjoint by construction: a hash of an exercise's `key` decides its split, so
memorising the training split never answers a test question.

| family | category | content |
|---|---|---|
| ``equations`` | exam | sums, missing terms, sequences |
| ``inflection`` | language | a sentence put into another form |
| ``facts`` | knowledge | which of four things has a property, from facts seen in training |
| ``passages`` | understanding | who and what is where, after some moves |
| ``arithmetic`` | reasoning | word problems of one to three steps |
"""

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal

from moebench.workloads.example import Example
from moebench.workloads.exercises import arithmetic, equations, facts, inflection, passages
from moebench.workloads.exercises.exercise import Exercise

Split = Literal["train", "test"]

#: The function of each family that draws one exercise.
FAMILIES: dict[str, Callable[[random.Random], Exercise]] = {
    "equations": equations.draw, "inflection": inflection.draw, "facts": facts.draw,
    "passages": passages.draw, "arithmetic": arithmetic.draw,
}  # fmt: skip


def exercises(family: str, split: Split, seed: int = 0) -> Iterator[Example]:
    """Yield distinct exercises of one family and split, without end."""
    draw = FAMILIES[family]
    wanted = 0 if split == "test" else 1
    seen: set[str] = set()
    for index in count():
        # Arithmetic was the first family: its stream has no family name.
        stream = f"{seed}/{index}" if family == "arithmetic" else f"{family}/{seed}/{index}"
        exercise = draw(random.Random(stream))
        if exercise.half == wanted and exercise.question not in seen:
            seen.add(exercise.question)
            yield Example(
                id=f"{family}/{split}/{seed}/{index}", prompt=exercise.question,
                choices=exercise.choices, answer=exercise.answer, solution=exercise.solution,
            )  # fmt: skip

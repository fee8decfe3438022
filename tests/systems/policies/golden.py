"""A published request stream with known hits of many cache policies."""

import random


def golden_trace():
    """Return 400 steps of 8 distinct ids, popular ids more often, each step sorted."""
    rng = random.Random(7)
    weights = [1 / (i + 1) ** 0.8 for i in range(64)]
    steps = []
    while len(steps) < 400:
        step = set()
        while len(step) < 8:
            step.add(rng.choices(range(64), weights)[0])
        steps.append(sorted(step))
    return steps

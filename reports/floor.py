"""Whether a score says anything: what guessing reaches, too, cannot show a cost in accuracy."""

import math

#: How many standard errors a score must be above guessing to count as above it.
ERRORS = 2.0


def at_floor(score: float, stderr: float, n: int, chance: float | None, whole: float = 1) -> bool:
    """Whether a fall to what guessing scores could not be told from chance.

    The standard error is the score's own or that of guessing, whichever is larger: where all
    answers are wrong a score has none of its own.

    Args:
        n: how many questions.
        chance: what guessing scores; None where there is nothing to guess, which is 0.
        whole: what all answers right score, 1 or 100; score, error and chance are in that unit.
    """
    share = (chance or 0.0) / whole
    error = max(stderr / whole, math.sqrt(share * (1 - share) / n))
    above = score / whole - share
    return above <= 0 or above < ERRORS * error

"""Notices texts that loop: greedy decoding may write the same words again and again.

A looping text asks for the same experts again and again, which flatters every cache and predictor.
"""

from collections.abc import Sequence

#: Length of the n-grams that are counted, in tokens.
N = 4

#: Above this share a run's texts are said to loop: between what S3's scale model writes on
#: generated exercises (.07 to .18) and on real question sets, where it does loop (.42 to .74).
MUCH = 0.25


def repeated(texts: Sequence[Sequence[int]]) -> float | None:
    """The share of 4-grams that stood in the same text before; None where none is known.

    Args:
        texts: token ids of what was written, without the prompt; -1 where a trace does not say.
    """
    grams = [
        [*zip(*(text[i:] for i in range(N)), strict=False)] for text in texts if -1 not in text
    ]
    number = sum(map(len, grams))
    return 1 - sum(len(set(ones)) for ones in grams) / number if number else None


def notes(share: float | None) -> list[str]:
    """What a run's document says of texts that loop."""
    if share is None or share <= MUCH:
        return []
    return [
        f"the texts loop: {share:.0%} of their {N}-grams stood in the same text before; caches and "
        "predictors do better on such texts than on others"
    ]

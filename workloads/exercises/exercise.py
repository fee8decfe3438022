"""The `Exercise` type: a generated question with its answer, before it is assigned to a split."""

import hashlib
from dataclasses import dataclass

NAMES = ("Tom", "Anna", "Ben", "Lucy", "Omar", "Mia", "Ivan", "Sara", "Leo", "Nina", "Paul", "Ruth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A generated question with its worked solution and answer.

    ``answer`` is a text, or an index into ``choices``.  ``key`` decides the split: exercises with
    one key are in one split, so a family whose texts differ only in passing uses as key what must
    not be memorised (a verb with its complement, for example) and not the whole text.
    """

    question: str
    answer: str | int
    solution: str | None = None
    choices: tuple[str, ...] | None = None
    key: str

    @property
    def half(self) -> int:
        """0 (test) or 1 (train): the parity of a hash, so it never depends on a drawing order."""
        return hashlib.sha256(self.key.encode()).digest()[0] % 2

"""Looping texts, counted by hand."""

from typing import Any

import pytest

from moebench.harness.run.document import notes_on_repetition, repeated
from tests.harness.commands import run

A_B = [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        ([[1, 2, 3, 4, 5, 6]], 0.0),
        ([[7] * 8], 4 / 5),  # five 4-grams, one of them new
        ([[1, 2, 1, 2, 1, 2, 1]], 2 / 4),  # 1212 2121 1212 2121
        ([A_B, A_B], 0.0),  # each text by itself
        ([A_B, [7] * 8], 4 / 7),
        ([[1, 2, 3]], None),  # too short for one
        ([[7] * 7 + [-1], A_B], 0.0),  # a trace that does not know its tokens says nothing
        ([], None),
    ],
)
def test_the_share_of_four_grams_that_stood_before(texts: Any, share: float | None) -> None:
    assert repeated(texts) == share


def test_a_note_says_it_where_it_is_much() -> None:
    assert notes_on_repetition(None) == notes_on_repetition(0.25) == []
    (note,) = notes_on_repetition(0.5)
    assert note.startswith("the texts loop: 50% of their 4-grams stood in the same text before")


@pytest.mark.usefixtures("tiny_models")
def test_a_run_says_how_much_it_repeats() -> None:
    """A tiny model with random weights falls into a loop."""
    document = run("gpu-only", "--new-tokens", "40", "--allow-overcommit")
    share = document["metrics"]["repeated_4grams"]
    assert share > 0.25
    assert notes_on_repetition(share)[0] in document["notes"]

"""Warnings about a lossless model that scores no better than chance."""

import pytest

from moebench.harness.advise.budget.runs import _floor


@pytest.mark.parametrize(
    ("score", "stderr", "chance", "warned"),
    [
        (44.3, 8.0, 25.0, True),  # guessing has a standard error of 9.68
        (44.4, 8.0, 25.0, False),
        (0.0, 0.0, None, True),
        (20.0, 9.0, None, False),
        (None, None, None, False),
    ],
)
def test_a_score_within_two_standard_errors_of_chance_is_a_floor(
    score: float | None, stderr: float | None, chance: float | None, warned: bool
) -> None:
    found = {"score": score, "stderr": stderr, "chance": chance, "n": 20, "metric": "choice"}
    notes = _floor({"spec": {"workload": "mmlu"}, "accuracy": found})
    assert len(notes) == warned
    if warned:
        assert (
            f"scores {score:.1f} % on mmlu, by chance it would be {chance or 0:.1f} %" in notes[0]
        )

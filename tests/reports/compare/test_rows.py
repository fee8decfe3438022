"""Remarks of a comparison's rows."""

from typing import Any

import pytest

from moebench.reports.compare.conditions import InputSet
from moebench.reports.compare.rows import _remarks, row_of
from tests.reports.samples import run


def answered(n: int, cut: int | None, score: float = 90.0) -> dict[str, Any]:
    scored = {"metric": "choice", "score": score, "stderr": 1.0, "chance": 25.0, "n": n}
    return run() | {"accuracy": scored | {"cut": cut, "items": {}}}


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([answered(32, 0)], ()),
        ([answered(32, None)], ()),
        ([answered(32, None), answered(32, 0)], ()),
        ([answered(32, 1)], ("1 of 32 answers cut at --new-tokens",)),
        ([answered(32, 1), answered(16, 2)], ("3 of 48 answers cut at --new-tokens",)),
        ([answered(32, 1), answered(16, None)], ("1 of 48 answers cut at --new-tokens",)),
        ([run()], ()),
    ],
)
def test_answers_that_were_cut_are_counted(
    runs: list[dict[str, Any]], said: tuple[str, ...]
) -> None:
    assert _remarks(runs) == said


def sized(taken: float | None, room: float | None) -> dict[str, Any]:
    return run() | {"memory": {"slot_bytes": taken, "room_bytes": room}}


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([sized(18e9, 36e9)], ()),
        ([sized(17.9e9, 36e9)], ("its experts take 17.9 of 36 GB",)),
        ([sized(0.705e9, 36.4e9), sized(0.705e9, 36.2e9)], ("its experts take 0.705 of 36.3 GB",)),
        ([sized(None, None)], ()),
        ([sized(1e9, None), sized(36e9, 36e9)], ()),
    ],
)
def test_more_than_half_of_the_room_left_empty_is_said(
    runs: list[dict[str, Any]], said: tuple[str, ...]
) -> None:
    assert _remarks(runs) == said


def test_the_standard_error_of_a_mean_is_that_of_independent_samples() -> None:
    cells = {
        InputSet(name, "0", ""): [answered(32, 0) | {"run_id": name}] for name in ("one", "two")
    }
    for cell, error in zip(cells, (3.0, 4.0), strict=True):
        cells[cell][0]["accuracy"]["stderr"] = error
    found = row_of("smoe", cells, {}).values["score"]
    assert (found.mean, found.n, found.stderr) == (90.0, 2, 2.5)  # √(9 + 16) / 2


def test_inputs_that_lack_a_figure_count_nothing_and_a_part_of_some_leaves_none() -> None:
    def cell(name: str, *tpots: float | None) -> dict[InputSet, Any]:
        runs = [run(f"{name}{n}") for n in range(len(tpots))]
        for one, tpot in zip(runs, tpots, strict=True):
            one["metrics"]["tpot_ms"]["mean"] = tpot
        return {InputSet(name, "0", ""): runs}

    whole = row_of("smoe", cell("one", 80.0, 100.0) | cell("two", None, None), {}).values["tpot_ms"]
    assert (whole.mean, whole.n) == (90.0, 1)
    assert "tpot_ms" not in row_of("smoe", cell("one", 80.0) | cell("two", 70.0, None), {}).values
    assert "tpot_ms" not in row_of("smoe", cell("one", None), {}).values


def test_a_score_at_chance_level_is_remarked() -> None:
    (found,) = _remarks([answered(32, 0, score=25.5)])
    assert found.startswith("score at chance level: ")

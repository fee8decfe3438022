"""The guard's verdicts on hand-made cells."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from moebench.harness.guard.verdicts import (
    FALSE_ALARM,
    MOVED_BY_ROUNDING,
    Finding,
    Verdict,
    _changes,
    at_least,
    compare,
    sign_test,
)

#: A question's KL that is far beyond rounding.
FAR = 0.01


def cell(right: str, kl: float | Sequence[float] = 0.001, **source: str) -> dict[str, Any]:
    """Return a cell with right (1) and wrong (0) answers, and one divergence or one for each."""
    n = len(right)
    kls = [kl] * n if isinstance(kl, float) else list(kl)
    return {
        "accuracy": {
            "score": 100 * right.count("1") / n, "agreement": 1.0, "kl": round(sum(kls) / n, 6),
            "items": {
                "value": [float(mark) for mark in right],
                "answer": [f"{mark}-{i}" for i, mark in enumerate(right)],
                "agreed": [1] * n,
                "kl": kls,
            },
        },
        "alpha": 0.3,
        "data_hash": "questions", "weights_hash": "weights", "arithmetic": "this computer",
        **source,
    }  # fmt: skip


def moved(farther: int, of: int = 12, by: float = FAR) -> list[float]:
    """Return divergences of which some are farther from the lossless model."""
    return [0.001 + by] * farther + [0.001] * (of - farther)


def finding(now: dict[str, Any], reference: dict[str, Any]) -> Finding:
    (found,) = compare({"cell": now}, {"cell": reference})
    return found


def verdict(now: dict[str, Any], reference: dict[str, Any]) -> Verdict:
    return finding(now, reference).verdict


def test_each_way_in_which_questions_change_is_counted() -> None:
    reference = cell("1100", [0.1, 0.1, 0.1, 0.1])
    now = cell("0110", [0.1, 0.2, 0.05, math.nan])
    one, other = now["accuracy"], reference["accuracy"]
    found = _changes([(one, other), (other, other)])
    assert found == {
        "questions": 8, "moved": 4, "answers": 2, "better": 1, "worse": 1, "closer": 1,
        "farther": 2,
    }  # fmt: skip


@pytest.mark.parametrize("source", [{}, {"arithmetic": "elsewhere"}, {"weights_hash": "other"}])
def test_equal_cells_pass(source):
    assert verdict(cell("1101", **source), cell("1101")) is Verdict.PASS


@pytest.mark.parametrize(
    ("now", "reference", "expected"),
    [
        (cell("1100"), cell("1101"), Verdict.REGRESSED),
        (cell("1111"), cell("1101"), Verdict.IMPROVED),
        (cell("1101", kl=0.002), cell("1101"), Verdict.REGRESSED),
        (cell("1101", kl=math.nan), cell("1101"), Verdict.REGRESSED),
        (cell("1101"), cell("1101", kl=0.002), Verdict.IMPROVED),
        # More right answers, yet farther from the lossless model: damage, with luck.
        (cell("1111", kl=0.002), cell("1101"), Verdict.REGRESSED),
        # The mean fell, by one question; the others are farther.
        (cell("1101", kl=[0.1, 0.3, 0.2, 0.4]), cell("1101", kl=[9.0, 0.2, 0.1, 0.3]),
         Verdict.REGRESSED),
    ],
)  # fmt: skip
def test_on_the_same_arithmetic_any_difference_counts(now, reference, expected):
    assert verdict(now, reference) is expected


def test_a_token_that_the_lossless_model_would_not_choose_is_a_regression():
    now = cell("1101")
    now["accuracy"]["agreement"] = 0.9
    now["accuracy"]["items"]["agreed"][2] = 0
    assert verdict(now, cell("1101")) is Verdict.REGRESSED


@pytest.mark.parametrize("source", [{}, {"arithmetic": "elsewhere"}])
def test_a_divergence_that_differs_by_rounding_is_no_difference(source):
    for now, before in ((0.001, 0.001004), (0.001004, 0.001), (3.0, 3.001)):
        found = finding(cell("1101", kl=now, **source), cell("1101", kl=before))
        assert (found.verdict, found.reason) == (Verdict.PASS, "equal within rounding")


def test_a_score_that_is_no_number_is_a_regression():
    now = cell("1101", kl=0.0)
    now["accuracy"]["agreement"] = math.nan
    assert verdict(now, cell("1101")) is Verdict.REGRESSED


def test_examples_without_reference_answer_or_divergence_are_compared_by_their_text():
    now, before = cell("1101"), cell("1101")
    for one in (now, before):
        one["accuracy"] |= {"score": None, "kl": None}
        one["accuracy"]["items"] |= {"value": [None] * 4, "kl": [None] * 4}
    now["accuracy"]["items"]["answer"][1] = "another"
    assert "1 of 4 questions moved" in finding(now, before).reason


def test_other_answers_of_the_same_worth_neither_regress_nor_improve():
    other = cell("1101")
    other["accuracy"]["items"]["answer"][2] = "another wrong answer"
    found = finding(other, cell("1101"))
    assert found.verdict is Verdict.PASS
    assert "1 answers changed" in found.reason
    assert "score, agreement and KL equal" in found.reason


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (cell("1" * 12, kl=moved(2)), Verdict.PASS),
        (cell("1" * 12, kl=moved(2, by=-0.0005)), Verdict.PASS),
        (cell("1" * 10 + "00"), Verdict.PASS),
        (cell("1" * 12, kl=moved(3)), Verdict.REGRESSED),
        (cell("1" * 12, kl=moved(3, by=-0.0005)), Verdict.IMPROVED),
        (cell("1" * 9 + "000"), Verdict.REGRESSED),
        # Ten are a little closer, two far away: not for the better.
        (cell("1" * 12, kl=[0.0005] * 10 + [0.5] * 2), Verdict.REGRESSED),
    ],
)
def test_on_other_arithmetic_a_few_questions_may_move(now, expected):
    now = {**now, "arithmetic": "elsewhere"}
    assert verdict(now, cell("1" * 12)) is expected


@pytest.mark.parametrize(
    ("now", "reference", "expected"),
    [
        (cell("1" * 28 + "00"), cell("1" * 30), Verdict.PASS),
        (cell("1" * 18 + "0" * 12), cell("1" * 30), Verdict.REGRESSED),
        (cell("1" * 30), cell("0" * 30), Verdict.IMPROVED),
        (cell("1" * 30, kl=[0.1, 0.0] * 15), cell("1" * 30), Verdict.PASS),
        (cell("1" * 30, kl=moved(15, of=30)), cell("1" * 30), Verdict.REGRESSED),
        (cell("1" * 30, kl=0.0), cell("1" * 30), Verdict.IMPROVED),
    ],
)
def test_of_other_weights_questions_are_compared_by_sign(now, reference, expected):
    assert verdict({**now, "weights_hash": "other"}, reference) is expected


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"arithmetic": "elsewhere"}, "all on other arithmetic"),
        ({"weights_hash": "other"}, "all of other weights"),
    ],
)
def test_small_damage_everywhere_is_found_over_all_cells(source, name):
    now = {str(i): cell("111110", **source) for i in range(20)}
    references = {str(i): cell("111111") for i in range(20)}
    *single, together = compare(now, references)
    assert {f.verdict for f in single} == {Verdict.PASS}
    assert (together.cell, together.verdict) == (name, Verdict.REGRESSED)


@pytest.mark.parametrize("cells", [1, 19])
def test_rounding_alone_regresses_in_at_most_one_of_a_hundred_checks(cells):
    def regressed(farther: int, spread_over: int) -> set[str]:
        """What regresses where so many questions moved, in turn in each of the first cells."""
        kls = [moved(0) for _ in range(cells)]
        for i in range(farther):
            kls[i % spread_over][i // spread_over] += FAR
        now = {str(i): cell("1" * 12, kl=kl, arithmetic="elsewhere") for i, kl in enumerate(kls)}
        found = compare(now, {name: cell("1" * 12) for name in now})
        return {f.cell for f in found if f.verdict is Verdict.REGRESSED}

    in_one = min(n for n in range(13) if "0" in regressed(n, 1))
    chance = cells * at_least(in_one, 12, MOVED_BY_ROUNDING)
    if cells > 1:
        together = "all on other arithmetic"
        in_all = min(n for n in range(100) if together in regressed(n, cells))
        chance += at_least(in_all, 12 * cells, MOVED_BY_ROUNDING)
    assert 0 < chance <= FALSE_ALARM


def test_a_missing_reference_and_other_questions_are_not_measured():
    (missing,) = compare({"cell": cell("11")}, {})
    assert (missing.verdict, missing.reason) == (
        Verdict.NOT_MEASURED, "no reference; moebench check --update",
    )  # fmt: skip
    assert verdict(cell("11"), cell("11", data_hash="others")) is Verdict.NOT_MEASURED


def test_sign_test_and_binomial_tail_match_hand_computation():
    assert sign_test(0, 0) == 1.0
    assert sign_test(3, 0) == 1 / 8
    assert sign_test(2, 1) == (3 + 1) / 8
    assert sign_test(0, 3) == 1.0
    assert at_least(2, 2, 0.1) == pytest.approx(0.01)
    assert at_least(1, 3, 0.5) == 7 / 8
    assert (at_least(0, 3, 0.0), at_least(1, 3, 0.0)) == (1.0, 0.0)

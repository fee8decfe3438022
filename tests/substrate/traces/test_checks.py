"""Checks of a trace's arrays: what is allowed at the limits, and what is named beyond them."""

import numpy as np
import pytest

from moebench.substrate.errors import InputError
from moebench.substrate.traces import checks
from moebench.substrate.traces.checks import check_array, check_experts, check_range, check_scores


def test_scores_may_be_zero_and_no_less():
    check_scores("t", "scores", np.array([[0.0, 1.0]]), negative=False, nan=False)
    check_scores("t", "scores", np.array([[-1.0, 1.0]]), negative=True, nan=False)
    with pytest.raises(InputError, match=r"scores.*numbers from 0"):
        check_scores("t", "scores", np.array([[-1e-9, 1.0]]), negative=False, nan=False)


@pytest.mark.parametrize(("value", "nan", "good"), [
    (np.nan, True, True), (np.nan, False, False), (np.inf, True, False), (-np.inf, False, False),
])  # fmt: skip
def test_only_what_was_not_predicted_is_no_number(value, nan, good, monkeypatch):
    monkeypatch.setattr(checks, "_BLOCK", 2)
    scores = np.array([[0.5], [0.5], [0.5], [value]])
    if good:
        check_scores("t", "scores", scores, negative=True, nan=nan)
        return
    with pytest.raises(InputError, match=r"t.*scores.*3"):
        check_scores("t", "scores", scores, negative=True, nan=nan)


def test_experts_are_from_zero_to_the_last_and_differ_within_a_row():
    check_experts("t", "ids", np.array([[[0, 5]]]), 6)
    for wrong in ([[[0, 6]]], [[[5, 5]]]):
        with pytest.raises(InputError, match="ids"):
            check_experts("t", "ids", np.array(wrong), 6)


def test_a_range_has_both_of_its_ends():
    check_range("t", "phase", np.array([0, 1]), 0, 1)
    for wrong in ([0, 2], [-1, 0]):
        with pytest.raises(InputError, match="phase"):
            check_range("t", "phase", np.array(wrong), 0, 1)


@pytest.mark.parametrize(("name", "values"), [
    ("phase", np.array([0, 2])), ("ids", np.array([[[7]]])), ("scores", np.array([[np.nan]])),
    ("predicted_1", np.array([[np.inf]])), ("ids", np.array([[[0.5]]])), ("scores", np.array([1])),
])  # fmt: skip
def test_what_is_wrong_names_the_file_and_then_the_array(name, values):
    with pytest.raises(InputError, match=f"^trace/arrays: {name} "):
        check_array("trace/arrays", name, values, 4)


def test_only_predictions_may_be_missing():
    check_array("t", "predicted_1", np.array([[np.nan]]), 4)
    check_array("t", "scores", np.array([[0.5]]), 4)


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("phase", np.array([0, 1, 2, -1]), "phase is 2 at token 2; allowed: 0 to 1"),
        ("chosen", np.array([-1, -2]), "chosen is -2 at token 1; allowed: -1 to 2147483647"),
        ("position", np.array([0, 2**31]), "position is 2147483648 at token 1; allowed: 0 to "
         "2147483647"),
        ("sequence", np.array([-1]), "sequence is -1 at token 0; allowed: 0 to 2147483647"),
        ("ids", np.array([[[0, 1]], [[1, 6]]]), "ids names expert 6 of 6 at token 1, layer 0, "
         "column 1; allowed: 0 to 5"),
        ("candidates", np.array([[[0, 1], [3, -1]]]), "candidates names expert -1 of 6 at token 0,"
         " layer 1, column 1; allowed: 0 to 5"),
        ("ids", np.array([[[0, 1, 2], [4, 3, 4]]]), "ids has the same expert twice, 4, at token 0,"
         " layer 1; allowed: each expert once"),
        ("scores", np.full((9, 2, 1), np.nan), "scores is nan at token 0, layer 0, column 0; "
         "allowed: finite numbers"),
        ("predicted_2", np.array([[[0.5], [np.inf]]]), "predicted_2 is inf at token 0, layer 1, "
         "column 0; allowed: finite numbers, or NaN for those that were not made"),
        ("ids", np.array([[[0.5]]]), "ids is float64; allowed: integer numbers"),
        ("hidden", np.array([1]), "hidden is int64; allowed: floating numbers"),
    ],
)  # fmt: skip
def test_the_first_wrong_value_is_named(name: str, values: np.ndarray, says: str):
    with pytest.raises(InputError) as caught:
        check_array("t", name, values, 6)
    assert str(caught.value) == f"t: {says}"


def test_values_beyond_the_first_block_are_found():
    scores = np.zeros((2 * 4096 + 5, 1))
    scores[8195] = -0.5
    check_scores("t", "scores", scores)
    with pytest.raises(InputError, match=r"scores is -0\.5 at token 8195, layer 0; allowed: numb"):
        check_scores("t", "scores", scores, negative=False)
    check_experts("t", "ids", np.zeros((0, 1, 2), int), 6)

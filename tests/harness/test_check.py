"""The guard's verdicts, on cells made by hand."""

import copy
import json
from typing import Any

import pytest

from harness.check import (
    EXIT_CODES,
    Verdict,
    compare,
    read_references,
    sign_test,
    subset,
)
from substrate.errors import InputError

Cells = dict[str, dict[str, Any]]


def cell(right: str, kl: float = 0.0, **source: str) -> dict[str, Any]:
    """A cell whose questions were right (1) or wrong (0), each with the same divergence."""
    n = len(right)
    return {
        "accuracy": {
            "score": 100 * right.count("1") / n, "agreement": 1.0, "kl": kl,
            "items": {
                "value": [float(mark) for mark in right],
                "answer": [f"{mark}-{i}" for i, mark in enumerate(right)],
                "kl": [kl] * n,
            },
        },
        "alpha": 0.3,
        "data_hash": "questions", "weights_hash": "weights", "arithmetic": "this computer",
        **source,
    }  # fmt: skip


def verdict(now: dict[str, Any], reference: dict[str, Any]) -> Verdict:
    (finding,) = compare({"cell": now}, {"cell": reference})
    return finding.verdict


def test_equal_cells_pass():
    assert verdict(cell("1101"), cell("1101")) is Verdict.PASS


@pytest.mark.parametrize(
    ("now", "reference", "expected"),
    [
        (cell("1100"), cell("1101"), Verdict.REGRESSED),
        (cell("1111"), cell("1101"), Verdict.IMPROVED),
        (cell("1101", kl=0.002), cell("1101", kl=0.001), Verdict.REGRESSED),
        (cell("1101", kl=0.001), cell("1101", kl=0.002), Verdict.IMPROVED),
        # More right answers, yet farther from the lossless model: damage, with luck.
        (cell("1111", kl=0.002), cell("1101", kl=0.001), Verdict.REGRESSED),
    ],
)
def test_on_the_same_arithmetic_any_difference_counts(now, reference, expected):
    assert verdict(now, reference) is expected


def test_other_answers_of_the_same_worth_are_no_regression():
    other = cell("1101")
    other["accuracy"]["items"]["answer"][2] = "another wrong answer"
    assert verdict(other, cell("1101")) is Verdict.IMPROVED


@pytest.mark.parametrize("source", [{"weights_hash": "other"}, {"arithmetic": "elsewhere"}])
def test_on_other_arithmetic_the_same_questions_are_compared_in_pairs(source):
    reference = cell("1" * 30)
    assert verdict(cell("1" * 30, **source), reference) is Verdict.PASS
    assert verdict(cell("1" * 28 + "00", **source), reference) is Verdict.PASS
    assert verdict(cell("1" * 18 + "0" * 12, **source), reference) is Verdict.REGRESSED
    assert verdict(cell("1" * 30, kl=0.5, **source), reference) is Verdict.REGRESSED
    assert verdict(cell("1" * 30, **source), cell("0" * 30)) is Verdict.IMPROVED


def test_small_damage_everywhere_is_found_over_all_cells():
    now = {str(i): cell("111110", arithmetic="elsewhere") for i in range(20)}
    references = {str(i): cell("111111") for i in range(20)}
    *single, together = compare(now, references)
    assert {f.verdict for f in single} == {Verdict.PASS}
    assert together.verdict is Verdict.REGRESSED


def test_a_missing_reference_and_other_questions_are_not_measured():
    (missing,) = compare({"cell": cell("11")}, {})
    assert (missing.verdict, missing.reason) == (
        Verdict.NOT_MEASURED, "no reference; moebench check --update",
    )  # fmt: skip
    assert verdict(cell("11"), cell("11", data_hash="others")) is Verdict.NOT_MEASURED


def test_the_sign_test_by_hand():
    assert sign_test(0, 0) == 1.0
    assert sign_test(3, 0) == 1 / 8
    assert sign_test(2, 1) == (3 + 1) / 8
    assert sign_test(0, 3) == 1.0


def test_exit_codes():
    assert [EXIT_CODES[v] for v in Verdict] == [0, 0, 3, 1]


def test_a_broken_reference_file_is_one_line(tmp_path):
    file = tmp_path / "check.json"
    assert read_references(file) == {}
    whole = {"cell": cell("11")}
    file.write_text(json.dumps(whole))
    assert read_references(file) == whole
    broken = copy.deepcopy(whole)
    del broken["cell"]["accuracy"]["items"]
    for text in ("{", "[]", json.dumps(broken)):
        file.write_text(text)
        with pytest.raises(InputError, match=r"check.json: not a reference .*check --update"):
            read_references(file)


def test_the_subset_covers_every_family_in_every_setting_of_smoe():
    specs = subset().values()
    smoe = {(spec.setting, spec.workload) for spec in specs if spec.system == "smoe"}
    assert len(smoe) == 15
    assert all(spec.scoring == "generation" for spec in specs)

"""The guard's verdicts, on cells made by hand."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.studies import check
from moebench.harness.studies.check import (
    EXIT_CODES,
    Verdict,
    compare,
    read_references,
    sign_test,
    subset,
)
from moebench.substrate.engine.system import LayerView, Routed
from moebench.substrate.errors import InputError
from moebench.systems.smoe import ExpertCacheRouter

Route = Callable[[ExpertCacheRouter, LayerView], Routed]
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


# ----------------------------------------------------------------------------- the command


@pytest.fixture
def small_subset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cell of three questions; the path of its references, which do not exist yet."""
    plan = {
        "prompts": 3, "seed": 0,
        "cells": [{"system": "smoe", "settings": ["S3"], "workloads": ["arithmetic"]}],
    }  # fmt: skip
    monkeypatch.setattr(check, "SUBSET", tmp_path / "check.yaml")
    (tmp_path / "check.yaml").write_text(json.dumps(plan))
    return tmp_path / "check.json"


def run_check(references: Path, update: bool = False) -> int:
    return check.check_command(update, jobs=0, as_json=False, references=references)


def test_accepted_then_equal_then_deleted(small_subset, capsys):
    assert run_check(small_subset) == 3
    assert "no reference; moebench check --update" in capsys.readouterr().out
    assert run_check(small_subset, update=True) == 0
    assert "1 references written" in capsys.readouterr().err
    assert run_check(small_subset) == 0
    assert "equal to the last bit" in capsys.readouterr().out
    small_subset.write_text("{}")
    assert run_check(small_subset) == 3


def thrice_alpha(route: Route) -> Route:
    def corrupted(self: ExpertCacheRouter, view: LayerView) -> Routed:
        return route(dataclasses.replace(self, alpha=min(1.0, 3 * self.alpha)), view)

    return corrupted


def two_experts_swapped(route: Route) -> Route:
    def corrupted(self: ExpertCacheRouter, view: LayerView) -> Routed:
        routed = route(self, view)
        swapped = np.arange(view.shape.num_experts)
        swapped[[0, 1]] = [1, 0]
        ids_TK = swapped[routed.ids_TK]
        return routed._replace(ids_TK=ids_TK, weigh_as_TK=ids_TK)

    return corrupted


@pytest.mark.parametrize("corrupt", [thrice_alpha, two_experts_swapped])
def test_a_corrupted_router_is_a_regression(small_subset, corrupt, monkeypatch, capsys):
    assert run_check(small_subset, update=True) == 0
    monkeypatch.setattr(ExpertCacheRouter, "route", corrupt(ExpertCacheRouter.route))
    assert run_check(small_subset) == 1
    assert "check: regressed" in capsys.readouterr().err
    # The same on other arithmetic, where only pairs of questions can be compared.
    accepted = json.loads(small_subset.read_text())
    for reference in accepted.values():
        reference["arithmetic"] = "another processor"
    findings = check.compare(check.measure(jobs=0), accepted)
    assert {f.verdict for f in findings} <= {Verdict.REGRESSED, Verdict.PASS}
    assert run_check(small_subset, update=True) == 0
    assert "kl" in capsys.readouterr().err

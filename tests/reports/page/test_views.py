"""Comparisons as plain values: every field of a row and of a table, by hand."""

import copy
from typing import Any

import pytest

from moebench.reports.page import runs as single
from moebench.reports.page.views import base_of, views
from moebench.reports.sections.throughput import Point
from tests.reports.samples import compared, measured_run, run, traced_run

Plain = dict[str, Any]


def viewed(runs: list[Plain]) -> list[Plain]:
    return views(runs, {one["run_id"]: at for at, one in enumerate(runs)}, {})


def rows(view: Plain, table: int = 0) -> dict[str, Plain]:
    return {row["system"]: row for row in view["rows"] if row["t"] == table}


def test_all_fields_of_a_row_over_two_workloads() -> None:
    """TPOT is 10 and 12 ms: 11 ± 12.7062; a quarter of the time the device is busy."""
    (whole, facts, _) = viewed(compared())
    row = rows(whole)["smoe"]
    values = row.pop("v")
    assert row == {
        "t": 0, "system": "smoe", "base": "smoe", "line": "smoe", "alpha": None, "ratio": 0.25,
        "rank": 0, "badge": "estimate", "reference": "", "lossless": False, "remarks": [],
        "differs": {}, "runs": [1, 0], "changes": {}, "usual": 6,
        "parts": {"device busy": 2.75, "waits for load": 6.875, "waits for host": 0.0,
                  "waits for control": 1.375},
    }  # fmt: skip
    assert values["tpot_ms"] == {
        "mean": 11.0, "text": "11.00", "n": 2, "low": -1.7062, "high": 23.7062, "half": "12.71",
    }  # fmt: skip
    # Two standard errors of 8.68: 8.68 / sqrt 2 is 6.14.
    assert values["score"] == {
        "mean": 40.62, "text": "40.6", "n": 2, "low": 40.62, "high": 40.62, "half": "0.0",
        "stderr": "6.1",
    }  # fmt: skip
    assert values["ratio_best"] == {"mean": 1.0, "text": "1.00", "n": 2}
    slow = rows(whole)["slow"]["v"]["ratio_best"]
    assert slow["mean"] == pytest.approx(401 / 11, rel=1e-5)
    assert slow["sure"] is True
    # Of one run, the ends of the interval over the profile's ranges.
    one = rows(facts)["smoe"]
    assert one["v"]["tpot_ms"] == {
        "mean": 12.0,
        "text": "12.00",
        "n": 1,
        "ends": ["10.20", "13.80"],
    }
    assert one["usual"] == 3
    assert one["runs"] == [1]


def test_all_fields_of_a_table() -> None:
    (whole, *_) = viewed(compared())
    assert whole["leftOut"] == []
    table = whole["tables"][1]
    said = table.pop("said")
    assert said.startswith("model qwen2-57b-a14b, machine a6000, precision bf16, times simulated")
    assert table == {
        "title": "S1, batch 3", "place": "S1, batch 3", "where": "S1", "batch": 3,
        "model": "qwen2-57b-a14b", "machine": "a6000", "simulated": True, "reason": "",
        "cells": ["facts, seed 0", "gsm8k, seed 0"],
        "marks": {"tpot_ms": [["smoe"], ["lru"]], "kl": [["lru", "slow"], ["smoe"]]},
        "overBatch": 0, "overRatio": 1,
    }  # fmt: skip
    assert [one["overBatch"] for one in whole["tables"]] == [0, 0, 1, 1]
    assert [one["overRatio"] for one in whole["tables"]] == [0, 1, 2, 3]


def test_tables_that_differ_in_the_axis_alone_are_one_line() -> None:
    """Over batches in prompts and memory, over capacities in memory."""
    runs = []
    for n, (batch, prompts, memory, new) in enumerate(
        [(1, 32, 10, 64), (4, 128, 20, 64), (1, 32, 30, 64), (1, 8, 10, 64), (1, 32, 10, 8)]
    ):
        one = copy.deepcopy(compared()[0]) | {"run_id": str(n)}
        one["spec"] |= {"batch": batch, "prompts": prompts, "new_tokens": new}
        one["memory"]["offered_device_bytes"] = memory * 10**9
        runs.append(one)
    (view,) = viewed(runs)
    at = {view["rows"][n]["runs"][0]: view["tables"][view["rows"][n]["t"]] for n in range(5)}
    over_batch, over_ratio = (
        [at[n][name] for n in range(5)] for name in ("overBatch", "overRatio")
    )
    assert over_batch[0] == over_batch[1] == over_batch[2] == over_batch[3] != over_batch[4]
    assert over_ratio[0] == over_ratio[2]
    assert len({over_ratio[n] for n in (0, 1, 3, 4)}) == 4


def test_a_systems_changes_and_its_usual_alpha() -> None:
    runs = []
    for n, (alpha, changes) in enumerate(
        [(0.1, {}), (0.3, {}), (0.3, {"alpha": "0.3", "evict": "static"})]
    ):
        one = copy.deepcopy(compared()[0]) | {"run_id": str(n)}
        one["spec"] |= {"alpha": alpha, "overrides": changes}
        runs.append(one)
    runs[0]["oracle"] = True
    (view,) = viewed(runs)
    by = {row["runs"][0]: row for row in view["rows"]}
    found = [tuple(by[n][name] for name in ("line", "alpha", "changes", "usual")) for n in range(3)]
    assert found == [
        ("smoe (oracle)", 0.1, {}, 1), ("smoe", 0.3, {}, 2),
        ("smoe evict=static", 0.3, {"evict": "static"}, 2),
    ]  # fmt: skip
    assert (by[0]["system"], by[0]["base"]) == ("smoe (oracle) alpha=0.1", "smoe (oracle)")
    assert by[0]["reference"] == "knows the future"
    assert base_of(runs[1]) == "smoe"


def test_ranks_of_systems_that_cannot_be_told_apart() -> None:
    runs = []
    for system, times in (("a", (10, 20, 30)), ("b", (11, 19, 31)), ("c", (50, 100, 150))):
        for seed, tpot in enumerate(times):
            one = copy.deepcopy(compared()[0]) | {"run_id": f"{system}{seed}"}
            one["spec"] |= {"system": system, "seed": seed}
            one["metrics"]["tpot_ms"]["mean"] = float(tpot)
            one["interval"] = None
            runs.append(one)
    (view,) = viewed(runs)
    found = rows(view)
    assert [found[name].get("ties") for name in "abc"] == [[1], [0], None]
    assert found["a"]["v"]["tpot_ms"]["sure"] is True


@pytest.mark.parametrize("path", ["lanes", "stall_ms", "tpot"])
def test_parts_of_a_token_need_all_of_its_times(path: str) -> None:
    one = copy.deepcopy(compared()[0])
    if path == "tpot":
        one["metrics"]["tpot_ms"] = None
    else:
        one["metrics"]["decode"][path] = {} if path == "lanes" else None
    (view,) = viewed([one])
    assert view["rows"][0]["parts"] is None


def test_an_interval_may_have_one_end_or_none() -> None:
    one = copy.deepcopy(compared()[0])
    one["interval"]["tpot_ms"] = {"low": 8.0, "high": None}
    (view,) = viewed([one])
    assert view["rows"][0]["v"]["tpot_ms"]["ends"] == ["8.00", "?"]
    one["interval"]["tpot_ms"] = {"low": None, "high": 9.0}
    (view,) = viewed([one])
    assert "ends" not in view["rows"][0]["v"]["tpot_ms"]


def test_evaluations_and_damaged_runs_are_in_no_view() -> None:
    one, other = compared()[:2]
    evaluated = copy.deepcopy(one) | {"run_id": "e", "evaluation": {}}
    evaluated["spec"]["workload"] = "mmlu"
    damaged = copy.deepcopy(one) | {"run_id": "d", "badge": None}
    found = viewed([one, evaluated, damaged])
    assert [view["workload"] for view in found] == [""]
    assert [row["runs"] for row in found[0]["rows"]] == [[0]]
    assert found[0]["leftOut"][0].startswith("run d lacks ")
    assert [view["workload"] for view in viewed([one, other])] == ["", "facts", "gsm8k"]


# ------------------------------------------------------------------------------ single runs


def test_all_fields_of_a_listed_run() -> None:
    one = run(alpha=0.25, overrides={"evict": "static"})
    (found,) = single.listed([one], {one["run_id"]: "moebench run"}, [one["run_id"]])
    notes, values = found.pop("notes"), found.pop("v")
    assert found == {
        "id": "3fa9c04be712", "system": "smoe alpha=0.25 evict=static", "base": "smoe",
        "where": "S3", "model": "qwen2-57b-a14b", "batch": 1, "workload": "gsm8k", "seed": 0,
        "routing": "model", "badge": "estimate", "simulated": True, "lossless": False,
        "command": "moebench run", "machine": "a6000", "capacity": 0.25, "alpha": 0.25,
        "code": "commit 0123456789ab", "tpot": 61.23456,
    }  # fmt: skip
    assert isinstance(notes, list)
    assert values["tpot_ms"] == "61.23"
    (brief,) = single.listed([one], {}, [])
    assert brief["command"] is None
    assert "stderr" in brief["v"].keys() - values.keys()


@pytest.mark.parametrize(
    ("provenance", "code"),
    [({"commit": "abcdefabcdefabcd", "versions": {"moebench": "1"}}, "commit abcdefabcdef"),
     ({"commit": None, "versions": {"moebench": "0.1.0"}}, "version 0.1.0"),
     ({"versions": {}}, "version unknown")],
)  # fmt: skip
def test_the_code_of_a_run(provenance: Plain, code: str) -> None:
    one = run(setting=None) | {"provenance": provenance}
    (found,) = single.listed([one], {}, [])
    assert (found["code"], found["where"]) == (code, "qwen2-57b-a14b on a6000")


def test_runs_without_figures_or_measured_here() -> None:
    traced, measured = single.listed([traced_run(), measured_run()], {}, [])
    assert (traced["tpot"], traced["where"]) == (None, "qwen2-57b-a14b on a6000")
    assert (measured["badge"], measured["simulated"]) == ("measured", False)


@pytest.mark.parametrize(
    ("points", "kept"),
    [(1, [0, 0]), (2, [0, 1]), (51, list(range(51))), (101, list(range(0, 101, 2)))],
)
def test_speeds_are_at_equal_steps(points: int, kept: list[int]) -> None:
    curve = [Point(*([0] * (len(Point._fields) - 1)), 10.0)._replace(tokens_per_s=1000.06 + n)
             for n in range(points)]  # fmt: skip
    one = run()
    (found,) = single.speeds([one], {one["run_id"]: curve})
    assert found == [float(f"{1000.06 + n:.4g}") for n in kept]
    assert single.speeds([one], {}) == [None]

"""The golden comparison accepts equal recordings and refuses each kind of difference."""

import json
from copy import deepcopy
from pathlib import Path

import pytest

from benchmarks.golden import __main__ as golden

RUN = {
    "exit": 0,
    "document": {
        "run_id": "0123456789ab",
        "simulated": True,
        "spec": {"system": "smoe", "batch": 1},
        "metrics": {"tpot_ms": {"mean": 3.5}, "experts": {"decode": {"loads": 7}}},
        "notes": ["simulated on a6000"],
        "interval": {"tpot_ms": [3.0, 4.0]},
        "memory": {"slot_bytes": 10},
        "provenance": {"commit": "a", "weights_hash": "w"},
    },
    "spans": {"events": 2, "hash": "h"},
}


def changed(path: str, value: object) -> dict:
    found = deepcopy(RUN)
    *above, last = path.split(".")
    at = found
    for name in above:
        at = at[name]
    at[last] = value
    return found


def test_equal_recordings_differ_in_nothing() -> None:
    lines, count = golden.differences({"run": RUN}, {"run": deepcopy(RUN)})
    assert (lines, count) == ([], 14)


@pytest.mark.parametrize(
    "path",
    [
        "exit", "document.run_id", "document.spec.batch", "document.metrics.tpot_ms.mean",
        "document.metrics.experts.decode.loads", "document.notes", "document.interval.tpot_ms",
        "document.memory.slot_bytes", "document.provenance.weights_hash", "spans.hash",
    ],
)  # fmt: skip
def test_each_difference_is_named(path: str) -> None:
    lines, _ = golden.differences({"run": RUN}, {"run": changed(path, ["other"])})
    assert lines
    assert all(line.startswith(f"run: .{path}") for line in lines)


def test_when_and_with_which_commit_it_ran_is_no_difference() -> None:
    assert (
        golden.differences({"r": RUN}, {"r": changed("document.provenance.commit", "b")})[0] == []
    )


def test_a_lost_note_a_lost_run_and_a_new_run_are_named() -> None:
    assert golden.differences({"r": RUN}, {"r": changed("document.notes", [])})[0]
    assert golden.differences({"r": RUN}, {})[0] == ["only before: r"]
    assert golden.differences({}, {"r": RUN})[0] == ["only after: r"]


def test_of_a_measured_run_times_may_differ_and_counts_of_tokens_may_not() -> None:
    measured = changed("document.simulated", False)
    other = deepcopy(measured)
    other["document"]["metrics"]["tpot_ms"]["mean"] = 9.0
    assert golden.differences({"r": measured}, {"r": other})[0] == []
    other["document"]["metrics"]["decoded_tokens"] = 5
    assert golden.differences({"r": measured}, {"r": other})[0]


def test_a_changed_line_of_text_is_named_alone() -> None:
    old, new = {"exit": 0, "out": "a\nb\n"}, {"exit": 0, "out": "a\nc\n"}
    lines, _ = golden.differences({"list": old}, {"list": new})
    assert lines == ["list: .out: - b", "list: .out: + c"]


def test_an_intended_difference_must_be_one() -> None:
    lines = ["list: .out: - b", "list: .out: + c"]
    assert golden.unintended(lines, [r"list: .*[bc]$"]) == []
    assert golden.unintended(lines, [r"- b"]) == ["list: .out: + c"]
    assert golden.unintended([], [r"- b"]) == ["intended, but it is no difference: - b"]


def test_a_run_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="listed twice: a"):
        golden._unique([{"name": "a"}, {"name": "a"}])


def test_the_exit_code_says_whether_anything_differs(tmp_path: Path) -> None:
    for name, run in {"a": RUN, "b": changed("spans.hash", "other")}.items():
        found = {"kind": "quick", "found": {"r": run}}
        (tmp_path / name).write_text(json.dumps(found))
    assert golden.compare(tmp_path / "a", tmp_path / "a", None) == 0
    assert golden.compare(tmp_path / "a", tmp_path / "b", None) == 1
    (tmp_path / "intended").write_text("# why\nspans.hash\n")
    assert golden.compare(tmp_path / "a", tmp_path / "b", tmp_path / "intended") == 0

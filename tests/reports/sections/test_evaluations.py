"""What evaluators found, in rows: floors, and our own scores of the same questions."""

from typing import Any

import pytest

from moebench.reports.sections.evaluations import HEADERS, lines, metric_at_floor
from tests.reports.samples import run

ACC = {
    "name": "acc", "value": 0.75, "whole": 1.0, "guessing": 0.25, "stderr": 0.1,
    "higher_is_better": True, "items": [1.0, 1.0, 1.0, 0.0],
}  # fmt: skip


def evaluated(mode: str = "decode", **metric: Any) -> dict[str, Any]:
    document = run("e0e1e2e3e4e5", workload="lm-eval: mmlu", overrides={"alpha": "0.25"})
    task = {
        "task": "mmlu", "workload": "mmlu", "version": "1.0", "task_hash": "0123456789abcdef",
        "data": "mmlu/test.jsonl", "data_hash": "dd" * 8, "shown": 0, "n": 20,
        "metrics": [ACC | metric],
    }  # fmt: skip
    document["evaluation"] = {
        "evaluator": "lm-eval", "version": "0.4.13", "mode": mode, "requests": {"read": 80},
        "truncated": 0, "tasks": [task],
    }  # fmt: skip
    return document


def own(scoring: str = "likelihood", **spec: Any) -> dict[str, Any]:
    document = run("0a1b2c3d4e5f", **{"overrides": {"alpha": "0.25"}, "workload": "mmlu"} | spec)
    document["spec"]["scoring"] = scoring
    document["provenance"]["data_hash"] = "dd" * 8
    return document


def test_a_row_says_who_asked_what_and_what_was_found() -> None:
    ((*_, value, guessing, ours),) = rows = lines([evaluated(), own()])
    assert len(rows[0]) == len(HEADERS)
    assert rows[0][:2] == ["e0e1e2e3e4e5", "smoe"]
    assert rows[0][4:10] == ["lm-eval 0.4.13", "decode", "mmlu", "1.0", "01234567", "20"]
    assert (value, guessing, ours) == ("0.75 ± 0.1", "0.25", "40.62 ± 8.7 (likelihood)")


@pytest.mark.parametrize(
    "other",
    [
        own(scoring="prefill"), own(scoring="fixed-length"), own(batch=2), own(system="daop"),
        own(overrides={}), own(machine="a5000"), own(few_shot=2),
    ],
)  # fmt: skip
def test_only_a_run_of_the_same_stands_beside_it(other: dict[str, Any]) -> None:
    assert lines([evaluated(), other])[0][-1] == "–"


def test_a_score_without_an_error_is_above_guessing_by_guessing_s_own() -> None:
    """Of 20 examples with a chance of 1/4, two standard errors of guessing are .194."""
    known = {"stderr": None, "guessing": 0.25, "whole": 1.0}
    assert metric_at_floor(ACC | known | {"value": 0.44}, 20)
    assert not metric_at_floor(ACC | known | {"value": 0.45}, 20)


def test_a_prefill_stands_beside_a_prefill() -> None:
    rows = lines([evaluated("prefill"), own(scoring="prefill"), own()])
    assert rows[0][-1] == "40.62 ± 8.7 (prefill)"


@pytest.mark.parametrize(
    ("value", "whole", "guessing", "floor"),
    [
        (0.25, 1.0, 0.25, True),
        (0.4, 1.0, 0.25, True),  # 2 · √(0.25 · 0.75 / 20) = 0.194
        (0.45, 1.0, 0.25, False),
        (40.0, 100.0, 25.0, True),
        (45.0, 100.0, 25.0, False),
        (0.0, 1.0, 0.0, True),
        (0.05, 1.0, 0.0, True),  # one of 20, ± 0.1: if it were lost, nobody could tell
        (0.25, 1.0, 0.0, False),
        (3.0, 1.0, None, False),
    ],
)
def test_a_floor_is_what_guessing_may_give(
    value: float, whole: float, guessing: float | None, floor: bool
) -> None:
    metric = ACC | {"value": value, "whole": whole, "guessing": guessing}
    assert metric_at_floor(metric, 20) == floor
    shown = lines([evaluated(value=value, whole=whole, guessing=guessing)])[0][-3]
    assert shown.endswith("(floor)") == floor


def test_runs_that_nobody_evaluated_have_no_row() -> None:
    assert lines([own()]) == []

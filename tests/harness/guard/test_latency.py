"""Latencies of cells beside their references, one number changed at a time."""

from typing import Any

import pytest

from moebench.harness.guard.latency import NOTHING_COMPUTED, compare_latencies, latency
from moebench.harness.guard.verdicts import Finding, Verdict

TIMES = {"tpot_ms": 2.0, "ttft_ms": 10.0, "e2e_ms": 30.0, "profile_hash": "p"}


def cell(arithmetic: str = "here", subject: Any = "s", data: str = "d", **times: Any) -> Any:
    return {"latency": TIMES | times, "arithmetic": arithmetic, "data_hash": data,
            "subject": subject}  # fmt: skip


def test_latencies_are_those_of_simulated_runs() -> None:
    metrics = {"tpot_ms": {"mean": 2.0, "p50": 1}, "ttft_ms": {"mean": 10.0}, "e2e_ms": 30.0}
    run = {"simulated": True, "metrics": metrics, "provenance": {"profile_hash": "p"}}
    assert latency(run) == TIMES
    assert latency(run | {"simulated": False}) is None
    prompt = {"tpot_ms": {"mean": 2.0}, "ttft_ms": None, "e2e_ms": None}
    assert latency(run | {"metrics": prompt}) == TIMES | {"ttft_ms": None, "e2e_ms": None}


@pytest.mark.parametrize(
    ("now", "reference", "verdict", "reason"),
    [
        (cell(), cell(), Verdict.PASS, "equal to the last bit"),
        (cell(profile_hash="q"), cell(), Verdict.PASS, "equal to the last bit"),
        (cell(tpot_ms=2.0000001), cell(), Verdict.REGRESSED, "tpot_ms 2 -> 2.0000001 ms"),
        (cell(e2e_ms=29.0), cell(), Verdict.IMPROVED, "e2e_ms 30 -> 29 ms"),
        # One figure that is worse is not offset by others.
        (cell(tpot_ms=1.0, ttft_ms=11.0), cell(), Verdict.REGRESSED,
         "tpot_ms 2 -> 1 ms, ttft_ms 10 -> 11 ms"),
        (cell(ttft_ms=None), cell(), Verdict.REGRESSED, "ttft_ms 10 -> none ms"),
        (cell(), cell(ttft_ms=None), Verdict.REGRESSED, "ttft_ms none -> 10 ms"),
        (cell(), cell(tpot_ms=0.0), Verdict.REGRESSED, "tpot_ms 0 -> 2 ms"),
        (cell(tpot_ms=1.0, profile_hash="q"), cell(), Verdict.IMPROVED,
         "tpot_ms 2 -> 1 ms; the machine's profile is another one"),
        (cell("there", tpot_ms=3.0), cell(), Verdict.NOT_MEASURED,
         "tpot_ms 2 -> 3 ms; sums round differently here, which may flip a choice of experts; add "
         "the same cell with routing: drawn or a trace, whose latency is exact"),
    ],
)  # fmt: skip
def test_a_latency_is_judged_exactly(now: Any, reference: Any, verdict: Any, reason: str) -> None:
    (found,) = compare_latencies({"a": now}, {"a": reference})
    assert found == Finding("a: latency", verdict, reason, "latency")
    assert found.name == "a"


def test_another_arithmetic_leaves_the_judgement_to_the_twin() -> None:
    now, twin = cell("there", tpot_ms=3.0), cell(NOTHING_COMPUTED)
    cells = {"a": now, "other": cell(NOTHING_COMPUTED, "t"), "live": cell("there"), "twin": twin}
    found = compare_latencies(cells, {"a": cell(), "twin": twin})
    assert [(one.cell, one.verdict) for one in found] == [
        ("a: latency", Verdict.PASS), ("twin: latency", Verdict.PASS),
    ]  # fmt: skip
    assert found[0].reason == (
        "tpot_ms 2 -> 3 ms; sums round differently here, which may flip a choice of experts; "
        "judged by twin"
    )


@pytest.mark.parametrize(
    ("now", "reference"),
    [
        (cell(), None), (cell() | {"latency": None}, cell()), (cell(), cell() | {"latency": None}),
        (cell(), cell(data="e")),
    ],
)  # fmt: skip
def test_nothing_is_judged_without_a_reference_of_the_same_questions(
    now: Any, reference: Any
) -> None:
    references = {} if reference is None else {"a": reference}
    assert compare_latencies({"a": now}, references) == []

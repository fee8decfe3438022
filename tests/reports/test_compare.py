"""Comparisons by hand: what is refused, what is marked, what is averaged."""

from typing import Any

import pytest

from moebench.reports.compare import MARK, markdown, tables, text_lines
from moebench.substrate.errors import UsageError
from tests.reports.samples import run

GB = 10**9
MEMORY = {
    "offered_device_bytes": 44 * GB, "offered_host_bytes": 256 * GB,
    "expert_bytes": 55_000_000, "slot_bytes": 22 * GB,
}  # fmt: skip


def ran(system: str, tpot_ms: float, memory: dict[str, int] | None = None, **spec: Any):
    """A run of S3 with the figures that a comparison shows."""
    one = run(f"{system}-{len(spec)}-{tpot_ms}", system=system, overrides={}, **spec)
    one["spec"]["options"] = {"expert_precision": "null"}
    one["metrics"] |= {
        "tpot_ms": {"mean": tpot_ms},
        "decoded_tokens": 2000,
        "decode": {
            "lanes": {"device": 300.0}, "stall_ms": {"load": 80.0, "control": 20.0},
            "bytes_h2d": 500 * GB, "bytes_disk": 0,
        },
    }  # fmt: skip
    return one | {"memory": MEMORY | (memory or {})}


def test_figures_are_means_over_workloads_and_the_fastest_comes_first() -> None:
    runs = [
        ran("slow", 90.0, workload="gsm8k"), ran("slow", 110.0, workload="facts"),
        ran("fast", 50.0, workload="gsm8k"), ran("fast", 60.0, workload="facts"),
    ]  # fmt: skip
    (table,) = tables(runs)
    assert [line.system for line in table.lines] == ["fast", "slow"]
    fast, slow = (line.figures for line in table.lines)
    assert (fast[0], slow[0]) == (55.0, 100.0)
    # 500 GB for 2000 tokens; the device stood idle for 100 of 400 ms; slots of 22 GB.
    assert (slow[4], slow[5], slow[7]) == (0.25, 0.25, 22.0)
    assert table.common["device-memory"] == "44.00 GB"
    assert table.common["workloads"] == "facts, gsm8k"


def test_a_table_for_each_setting_and_batch() -> None:
    runs = [ran("a", 1.0), ran("a", 2.0, batch=3), ran("a", 3.0, setting="S1")]
    assert [table.place.title for table in tables(runs)] == [
        "S1, batch 1", "S3, batch 1", "S3, batch 3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("device-memory", {"memory": {"offered_device_bytes": 48 * GB}}),
        ("host-memory", {"memory": {"offered_host_bytes": 64 * GB}}),
        ("expert-precision", {"precision": "4bit"}),
        ("prompts", {"prompts": 8}),
        ("new-tokens", {"new_tokens": 8}),
        ("seed", {"seed": 1}),
        ("few-shot", {"few_shot": 5}),
        ("plain-prompts", {"plain_prompts": True}),
        ("scoring", {"scoring": "generation"}),
        ("software", {"software": "hf-eager"}),
        ("workloads", {"workload": "facts"}),
    ],
)
def test_what_differs_is_refused_or_marked(name: str, other: dict[str, Any]) -> None:
    runs = [ran("a", 1.0), ran("b", 2.0), ran("odd", 3.0, **other)]
    with pytest.raises(UsageError, match=rf"S3, batch 1: odd has {name} .*--mixed {name}"):
        tables(runs)
    (table,) = tables(runs, mixed=[name])
    marked = [line for line in text_lines(table) if MARK in line[0]]
    assert [line[0] for line in marked] == ["odd" + MARK]
    assert marked[0][-1].startswith(name)
    assert marked[0][-1].endswith(MARK)


def test_a_precision_of_the_systems_own_is_another_condition() -> None:
    own = ran("quantised", 1.0)
    own["spec"]["options"]["expert_precision"] = "4bit"
    with pytest.raises(UsageError, match="quantised has expert-precision 4bit, the others bf16"):
        tables([ran("a", 1.0), ran("b", 1.0), own])


def test_only_known_conditions_may_be_mixed() -> None:
    with pytest.raises(UsageError, match=r"--mixed fonts: allowed: device-memory, .*workloads"):
        tables([ran("a", 1.0)], mixed=["fonts"])


def test_a_system_that_does_not_exist_here_says_why() -> None:
    runs = [ran("a", 1.0), ran("b", 2.0), ran("a", 4.0, batch=3)]

    def why_not(place: dict[str, Any], system: str) -> str | None:
        return "one at a time" if system == "b" and place["spec"]["batch"] == 3 else None

    one, three = tables(runs, why_not=why_not)
    assert [line[:2] for line in text_lines(one)] == [["a", "1.0"], ["b", "2.0"]]
    assert text_lines(three)[1][:2] == ["b", "n/a"]
    assert "| b | n/a |" in markdown(three)
    assert "one at a time" in markdown(three)


def test_oracles_are_called_so() -> None:
    (table,) = tables([ran("a", 1.0) | {"oracle": True}])
    assert table.lines[0].system == "a (oracle)"

"""One run's figures as text: each with its unit, interval, badge, and what it is of."""

import copy
from typing import Any

import pytest

from moebench.reports.sections.run import figures, plus_minus, title_of
from tests.reports.samples import measured_run, run

Document = dict[str, Any]


def said(one: Document) -> dict[str, str]:
    return dict(figures(one))


def test_the_title_of_a_run() -> None:
    assert title_of(run()) == "smoe · S3 · a6000 · gsm8k · batch 1"
    shipped = run(setting=None, variant="shipped", batch=4)
    assert title_of(shipped) == "smoe (shipped) · qwen2-57b-a14b · a6000 · gsm8k · batch 4"


def test_all_figures_of_a_run_in_order() -> None:
    one = run(quant="q4_k_m")
    one["metrics"]["decode"] = {"lanes": {"device": 1234.4, "h2d": 0.0, "host": 5.0},
                                "stall_ms": {"load": 2500.0, "host": 0.0}}  # fmt: skip
    one["metrics"]["host_memory"] = {"hits": 30, "reads": 12, "records": 640}
    found = list(figures(one))
    names = [name for name, _ in found]
    assert names[:5] == ["routing", "software", "quant", "TPOT", "TPOT bound"]
    assert names[-4:] == ["decode busy", "decode device idle", "prefetches", "found in host memory"]
    texts = dict(found)
    assert {name: texts[name] for name in (
        "quant", "TPOT", "TPOT bound", "× bound", "throughput", "hit ratio, complete",
        "moved over the link", "peak device memory", "energy", "energy efficiency", "score",
        "agreement", "KL", "decode busy", "decode device idle", "prefetches",
        "found in host memory",
    )} == {
        "quant": "q4_k_m",
        "TPOT": "61.23 ms ± 9.2 [estimate]  (p50 60.50, p99 83.12)",
        "TPOT bound": "33.31 ms [estimate]",
        "× bound": "1.84",
        "throughput": "13.42 tokens/s +2.3 −1.9 [estimate]",
        "hit ratio, complete": "47.1 %",
        "moved over the link": "9.877 GB",
        "peak device memory": "48.00 GB",
        "energy": "31234.5 J [simulated, estimate]",
        "energy efficiency": "65.6 tokens/kJ [simulated, estimate]",
        "score": "40.6 % ± 8.7 of 32 (exact_number)",
        "agreement": "96.2 %",
        "KL": "0.0213 nats/token",
        "decode busy": "device 1,234 ms, host 5 ms",
        "decode device idle": "load 2,500 ms",
        "prefetches": "4096, used 43.9 %",
        "found in host memory": "30 of 42, 640 records fit",
    }  # fmt: skip
    assert "read from disk" not in texts
    assert "quant" not in said(run())


def test_what_is_zero_or_missing_is_left_out() -> None:
    one = run()
    one["metrics"]["decode"] = {"lanes": {}, "stall_ms": {"load": 0.0}}
    one["metrics"]["prefetch"] = {"issued": 0, "used": 0}
    one["metrics"]["host_memory"] = None
    one["accuracy"]["cut"] = 0
    found = said(one)
    assert not found.keys() & {
        "decode busy", "decode device idle", "prefetches", "found in host memory", "answers cut",
        "read from disk", "peak memory of its process", "major page faults",
    }  # fmt: skip
    one["accuracy"]["cut"] = 3
    one["metrics"]["bytes_disk"] = 2 * 10**9
    found = said(one)
    assert (found["answers cut"], found["read from disk"]) == ("3 of 32", "2.000 GB")


def test_badges_of_measured_runs_and_energies() -> None:
    one = measured_run()
    one["metrics"]["energy"] = {"source": "nvml"}
    found = said(one)
    assert found["TPOT bound"].endswith("[computed]")
    assert "[measured on qwen2-57b-a14b's scale model" in found["TPOT"]
    assert found["energy"].startswith("31234.5 J [nvml, measured")


def test_scores_at_chance_level_say_so() -> None:
    one = run()
    one["accuracy"] |= {"metric": "choice", "score": 25.5, "chance": 25.0, "stderr": 1.0}
    assert said(one)["score"] == (
        "25.5 % ± 1.0 of 32 (choice); at chance level: guessing scores no less"
    )
    del one["accuracy"]["stderr"]
    assert said(one)["score"].startswith("25.5 % ± 0.0 of 32")


def test_counters_of_a_process() -> None:
    one = copy.deepcopy(run())
    one["metrics"]["process"] = {"peak_rss_bytes": 12_345_678_900, "read_bytes": 10**9,
                                 "major_faults": 12345}  # fmt: skip
    found = said(one)
    assert {key: found[key] for key in (
        "peak memory of its process", "read from disk", "major page faults",
    )} == {"peak memory of its process": "12.35 GB", "read from disk": "1 GB",
           "major page faults": "12,345"}  # fmt: skip
    one["metrics"]["process"] = {"read_bytes": None, "major_faults": 0}
    found = said(one)
    assert "peak memory of its process" not in found
    assert found["major page faults"] == "0"


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (None, ""), ({"low": None, "high": 3.0}, ""), ({"low": 1.0, "high": None}, ""),
        ({"low": 8.0, "high": 12.0}, " ± 2"), ({"low": 8.0, "high": 12.04}, " ± 2"),
        ({"low": 9.0, "high": 12.5}, " +2.5 −1"),
    ],
)  # fmt: skip
def test_the_ends_of_an_interval_are_distances(
    ends: dict[str, float | None] | None, text: str
) -> None:
    assert plus_minus(10.0, ends) == text

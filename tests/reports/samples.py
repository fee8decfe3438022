"""Run documents and span records by hand, in the shapes that the command line writes."""

import copy
from itertools import pairwise, product
from typing import Any

HOSTILE = "<script>alert(1)</script>\"'&</title><img src=x onerror=alert(2)>"

RUN: dict[str, Any] = {
    "run_id": "3fa9c04be712",
    "spec": {
        "system": "smoe",
        "setting": "S3",
        "machine": "a6000",
        "model": "qwen2-57b-a14b",
        "precision": "bf16",
        "workload": "gsm8k",
        "batch": 1,
        "prompts": 32,
        "new_tokens": 64,
        "cache_ratio": 0.25,
        "seed": 0,
        "options": {"alpha": 0.25, "evict": "lru", "prefetch": "score"},
    },
    "badge": "estimate",
    "simulated": True,
    "measured": None,
    "metrics": {
        "tpot_ms": {"mean": 61.23456, "p50": 60.5, "p90": 70.25, "p99": 83.125},
        "ttft_ms": {"mean": 912.75, "p50": 900.5, "p90": 990.0, "p99": 1011.5},
        "e2e_ms": 152653.5,
        "tokens_per_s": 13.42,
        "cache_ratio": 0.4712,
        "cache_ratio_begun": 0.6108,
        "prefetch": {"issued": 4096, "top_score": 3318, "active": 2048, "used": 1800},
        "routed_ahead": {"places": 0, "right": None, "degraded": None},
        "bytes_h2d": 9_876_543_210,
        "bytes_disk": 0,
        "lanes": {"device": 40000.0, "h2d": 90000.0, "d2h": 500.0, "host": 25000.0, "disk": 0.0},
        "stall_ms": {"load": 48000.0, "host": 9000.0, "control": 3000.0},
        "peak_device_bytes": 48_000_000_000,
        "peak_host_bytes": 114_000_000_000,
        "energy_j": 31234.5,
        "tokens_per_kj": 65.57,
        "load_ms": 5321.5,
        "repeated_4grams": 0.0625,
    },
    "interval": {
        "tpot_ms": {"low": 52.05, "high": 70.42},
        "ttft_ms": {"low": 800.25, "high": 1100.5},
        "tokens_per_s": {"low": 11.5, "high": 15.75},
        "fields": [
            {
                "field": "link.pinned_h2d",
                "low": 24,
                "high": 28.5,
                "stated": True,
                "tpot_ms": [6.1, -10.2],
                "ttft_ms": [6.2, -10.5],
            }
        ],
    },
    "accuracy": {
        "score": 40.62,
        "n": 32,
        "stderr": 8.68,
        "metric": "exact_number",
        "agreement": 0.962,
        "kl": 0.0213,
    },
    "bound": {"tpot_ms": 33.3125, "ratio": 1.8382},
    "notes": ["the scale model did the mathematics; the full-size model's bytes were charged"],
    "provenance": {
        "versions": {"moebench": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "commit": "0123456789abcdef",
        "machine": "x86_64, 2 cores",
        "profile": "a6000",
        "profile_hash": "aa" * 32,
        "weights_hash": "bb" * 32,
        "data_hash": "cc" * 32,
        "learnt": {"evict": {"from": "trace 0a1b2c", "epochs": "12"}, "place": {"tokens": "320"}},
        "created": "2026-01-01T12:00:00+00:00",
        "wall_s": 41.7,
    },
}


def run(run_id: str = "3fa9c04be712", **spec: Any) -> dict[str, Any]:
    """A simulated run of its own; ``spec`` overrides parts of its spec."""
    document = copy.deepcopy(RUN) | {"run_id": run_id}
    document["spec"] |= spec
    return document


def traced_run() -> dict[str, Any]:
    """A replayed trace of one new token: no mathematics, no TPOT, no bound, no batch of options."""
    document = run("77aa00bb11cc", system="resident", setting=None, options={})
    document["metrics"] |= {
        "tpot_ms": None,
        "cache_ratio": None,
        "cache_ratio_begun": None,
        "lanes": {},
        "stall_ms": {},
        "repeated_4grams": None,
    }
    document["interval"] = {"ttft_ms": {"low": 800.25, "high": 1100.5}, "fields": []}
    return document | {"accuracy": None, "bound": None, "notes": []}


def measured_run() -> dict[str, Any]:
    """A run on this computer."""
    document = run("b0b1b2b3b4b5", system="lru", machine="local")
    document["metrics"]["tpot_ms"]["mean"] = 88.0625
    ran = {"model": "qwen2-57b-a14b's scale model, 12.5 M parameters"}
    return document | {"badge": "measured", "simulated": False, "measured": ran, "interval": None}


def spans(layers: int = 12) -> list[dict[str, Any]]:
    """Decode, layer by layer: attention, gate, three loads, one host expert, the experts."""
    records: list[dict[str, Any]] = []

    def add(lane: str, kind: str, layer: int, experts: list[int], start: float, us: float) -> float:
        record = {"lane": lane, "kind": kind, "layer": layer, "experts": experts}
        records.append(record | {"start_us": start, "end_us": start + us})
        return start + us

    now = 0.0
    for layer in range(layers):
        gated = add("device", "gate", layer, [], add("device", "attend", layer, [], now, 140), 12.5)
        ready = add("device", "expert", layer, [1, 5], gated, 90.25)
        loads = [gated + 410.0 * turn for turn in range(4)]
        for turn, (start, end) in enumerate(pairwise(loads)):
            add("h2d", "load", layer, [8 + turn], start, end - start)
            ready = add("device", "expert", layer, [8 + turn], end, 45)
        back = add("d2h", "return", layer, [7], add("host", "expert", layer, [7], gated, 900), 20)
        add("device", "predict", layer, [], gated + 95, 30)
        now = add("device", "combine", layer, [], max(ready, back), 8)
    add("device", "head", layers, [], now, 300)
    return records


def hostile_run() -> dict[str, Any]:
    document = run(HOSTILE, system=HOSTILE, setting=HOSTILE, model=HOSTILE)
    document["spec"]["options"][HOSTILE] = HOSTILE
    document["notes"] = [HOSTILE]
    document["accuracy"]["metric"] = HOSTILE
    document["provenance"][HOSTILE] = HOSTILE
    return document


RUNS = [run(), measured_run(), traced_run()]
TIMELINES = {RUNS[0]["run_id"]: spans(), RUNS[1]["run_id"]: spans(2)}


def compared() -> list[dict[str, Any]]:
    """Three systems in two settings, one and three sequences at once, two workloads; an ablation.

    TPOT is 10 ms for smoe, 20 ms for lru and 400 ms for slow, three times that at batch 3, and
    2 ms more with facts.  KL is 0.01 for smoe and 0 for the others, which are lossless.
    """
    times = {"smoe": 10.0, "lru": 20.0, "slow": 400.0}
    found = []
    for setting, batch, system, workload in product(
        ("S1", "S3"), (1, 3), times, ("gsm8k", "facts")
    ):
        document = run(
            f"{setting}-{batch}-{system}-{workload}", setting=setting, batch=batch,
            system=system, workload=workload, alpha=None, options={}, overrides={},
        )  # fmt: skip
        _set_tpot(document, times[system] * batch + 2 * (workload == "facts"))
        document["accuracy"] |= {"kl": 0.01 if system == "smoe" else 0.0, "agreement": 0.9}
        found.append(document)
    steps = [{"evict": "static", "prefetch": "none"}, {"prefetch": "none"}]
    for at, changes in enumerate(steps):
        for workload in ("gsm8k", "facts"):
            document = run(
                f"step-{at}-{workload}", setting="S1", workload=workload, alpha=None, options={},
                overrides=changes,
            )  # fmt: skip
            _set_tpot(document, 40.0 - 10 * at + 2 * (workload == "facts"))
            found.append(document)
    return found


def _set_tpot(document: dict[str, Any], ms: float) -> None:
    document["metrics"]["tpot_ms"]["mean"] = ms
    document["interval"]["tpot_ms"] = {"low": 0.85 * ms, "high": 1.15 * ms}
    document["metrics"]["decoded_tokens"] = 100
    document["metrics"]["decode"] = {
        "lanes": {"device": 1000.0, "h2d": 2000.0},
        "stall_ms": {"load": 2500.0, "host": 0.0, "control": 500.0},
        "bytes_h2d": 10**10,
        "bytes_disk": 0,
    }
    document["bound"] = {"tpot_ms": ms / 2, "ratio": 2.0}
    document["memory"] = {
        "offered_device_bytes": 10**10, "offered_host_bytes": 10**11,
        "expert_bytes": 10**7, "slot_bytes": 5 * 10**9,
    }  # fmt: skip

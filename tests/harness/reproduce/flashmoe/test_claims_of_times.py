"""The claims of this module are those of the results that ship; figures of runs made by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.flashmoe import counts
from moebench.harness.reproduce.flashmoe.claims_of_times import CLAIMS
from moebench.harness.reproduce.flashmoe.experiments import EVICTIONS, SYSTEMS
from tests.harness.reproduce.given import by_experiment
from tests.harness.reproduce.shipped import check
from tests.harness.reproduce.test_flashmoe import run

KNOWN = {claim.id: claim for claim in CLAIMS}


def test_claims_are_those_that_ship() -> None:
    check("flashmoe", CLAIMS)


#: Milliseconds a token by eviction policy, on OLMoE and on Qwen3.
EVICTING: dict[str, dict[str, float]] = {
    "F1": {"flashmoe": 100, "lru": 122, "lfu": 110, "lifo": 90, "fifo": 140, "arc": 100,
           "lecar": 150},
    "F2": {"flashmoe": 100, "lru": 107, "lfu": 128.4, "lifo": 200, "fifo": 300, "arc": 130,
           "lecar": 140},
}  # fmt: skip

#: Milliseconds of loading, of the first token and of each other, by system.
OF_SYSTEMS = {
    "F1": {"flashmoe": (10, 90, 100), "llamacpp": (40, 160, 260), "fiddler": (60, 140, 200),
           "daop": (80, 120, 90)},
    "F2": {"flashmoe": (20, 80, 200), "llamacpp": (120, 180, 300), "fiddler": (140, 60, 200),
           "daop": (200, 100, 800)},
}  # fmt: skip

FIGURES: dict[str, tuple[float, str]] = {
    "F-2 OLMoE": (22, "decoded tokens a second"), "F-2 Qwen3": (7, "decoded tokens a second"),
    # On OLMoE LIFO is faster and ARC as fast.
    "F-2 OLMoE order": (4 / 6, "decoded tokens a second"),
    "F-2 Qwen3 order": (1, "decoded tokens a second"),
    "F-2 OLMoE LRU": (90 / 122, "decoded tokens a second"),
    "F-2 Qwen3 LRU": (128.4 / 107, "decoded tokens a second"),
    "F-3 load llama.cpp": ((4 + 6) / 2, "mean of OLMoE and Qwen3"),
    "F-3 load others": ((6 + 8 + 7 + 10) / 4, "mean of OLMoE and Qwen3"),
    "F-3 prefill llama.cpp": ((2 + 3) / 2, "mean of OLMoE and Qwen3"),
    "F-3 prefill others": ((2 + 2 + 2 + 3) / 4, "mean of OLMoE and Qwen3"),
    "F-4 greatest": (4, "the greatest of both models"),
    # DAOP is faster on OLMoE, and Fiddler as fast on Qwen3.
    "F-4 order": (4 / 6, "both models"),
    "F-6 OLMoE loading": (75, ""), "F-6 Qwen3 loading": (50, ""),
}  # fmt: skip


def test_figures_of_speed_and_starts_by_hand(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While 20 tokens of 100 ms are decoded, experts are waited for 1.5 s, or 1 s on Qwen3."""
    waits = {"F1": 1500.0, "F2": 1000.0}
    evictions = [
        run(setting, "flashmoe", ms, name, decoded_tokens=20,
            decode={"stall_ms": {"load": waits[setting] * (name == "flashmoe")}})
        for setting, times in EVICTING.items() for name, ms in times.items()
    ]  # fmt: skip
    systems = [
        run(setting, name, ms, load_ms=load, ttft_ms={"mean": first})
        for setting, times in OF_SYSTEMS.items()
        for name, (load, first, ms) in times.items()
    ]
    by_experiment(monkeypatch, {EVICTIONS.name: evictions, SYSTEMS.name: systems})
    for name, (figure, said) in FIGURES.items():
        measure = KNOWN[name].measure
        assert measure is not None
        found = measure(evidence)
        assert found.samples == pytest.approx((figure,), rel=1e-5), name
        assert (found.badge, found.conditions) == ("estimate", said), name
        assert KNOWN[name].needs == ((SYSTEMS,) if name[:3] in ("F-3", "F-4") else (EVICTIONS,))
    others = {name for name in KNOWN if name[:3] in ("F-8", "F-9")}
    assert {*KNOWN} - others == {*FIGURES, "F-6 FFN", "F-6 read"}


def test_sizes_and_placements_are_counted(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def network(routing: Any) -> Any:
        return SimpleNamespace(network=SimpleNamespace(bytes_per_layer={"F1": 115_712}[routing]))

    monkeypatch.setattr(counts, "routings", lambda evidence, setting: [setting, "other seed"])
    monkeypatch.setattr(counts, "network", network)
    size, placed = KNOWN["F-8 size"].measure, KNOWN["F-9 placements"].measure
    assert size is not None
    assert placed is not None
    found = size(evidence)
    assert (found.samples, found.badge) == ((113,), "counted")
    assert found.conditions == "KiB of fp32, 64 experts"
    # 64! / (24! 40!) placements at 5.4 GHz.
    ways = math.factorial(64) // (math.factorial(24) * math.factorial(40))
    counted = placed(evidence)
    assert counted.samples == pytest.approx((ways / 5.4e9,), rel=1e-5)
    assert counted.conditions == (
        "exact: 2.5e+17 placements, one at each cycle of 5.4 GHz; Mixtral's 8 experts in 4 slots "
        "have 70"
    )

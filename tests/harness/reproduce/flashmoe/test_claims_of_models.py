"""The claims of this module are those of the results that ship; figures counted by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.flashmoe import counts
from moebench.harness.reproduce.flashmoe.claims_of_models import CLAIMS
from moebench.harness.reproduce.flashmoe.experiments import EVICTIONS
from moebench.results.claims import Measured
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from tests.harness.reproduce.given import by_experiment
from tests.harness.reproduce.shipped import check
from tests.harness.reproduce.test_flashmoe import run

KNOWN = {claim.id: claim for claim in CLAIMS}


def test_claims_are_those_that_ship() -> None:
    check("flashmoe", CLAIMS)


def measured(name: str, evidence: Evidence) -> Measured:
    measure = KNOWN[name].measure
    assert measure is not None
    return measure(evidence)


def reading(name: str, evidence: Evidence) -> Measured:
    (counter,) = KNOWN[name].counters
    assert (counter.always, counter.reading) == (True, True)
    assert counter.measure is not None
    return counter.measure(evidence)


#: Parameters by the models' configurations: of experts; of embedding and output; and of
#: attention, gates and norms.
PARAMETERS = {
    "OLMoE": (16 * 64 * 3 * 2048 * 1024, 2 * 50304 * 2048,
              16 * (4 * 2048**2 + 64 * 2048 + 4 * 2048) + 2048),
    "Qwen3": (48 * 128 * 3 * 2048 * 768, 2 * 151936 * 2048,
              48 * ((2 * 4096 + 2 * 512) * 2048 + 128 * 2048 + 2 * 2048 + 2 * 128) + 2048),
}  # fmt: skip


@pytest.mark.parametrize("model", PARAMETERS)
def test_weights_that_are_of_no_expert_are_counted(model: str, evidence: Evidence) -> None:
    experts, ends, others = PARAMETERS[model]
    found = measured(f"F-10 {model} non-experts", evidence)
    assert found.samples == pytest.approx((100 * (ends + others) / experts,), rel=1e-5)
    assert (found.badge, found.conditions) == (
        "counted", "exact: all weights but the experts', over the weights of all experts",
    )  # fmt: skip
    listed = reading(f"F-10 {model} non-experts", evidence)
    assert listed.samples == pytest.approx((100 * others / experts,), rel=1e-5)
    assert listed.conditions == (
        "exact: attention, norms and gates, which the paper names; no embeddings, no output layer, "
        "over the weights of all experts"
    )


def test_epochs_are_the_most_of_any_layer(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = {"F1, seed 0": "9 to 120", "F1, seed 1": "31"}
    monkeypatch.setattr(counts, "routings", lambda evidence, setting: [
        f"{setting}, seed {seed}" for seed in (0, 1)
    ])  # fmt: skip
    monkeypatch.setattr(counts, "network", lambda one: SimpleNamespace(
        network=SimpleNamespace(note={"epochs": notes[one]})
    ))  # fmt: skip
    found = measured("F-11 epochs", evidence)
    assert (found.samples, found.over) == ((120, 31), "trained networks")
    assert found.conditions == "most epochs of a layer"


def test_equation_1_is_given_the_peak_of_a_settings_run(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of all other weights and half of the experts; on Qwen3 the run has half as many."""
    reserve = load_profile("rtx5070ti").gpu.reserved_memory.bytes
    made, expected = [], {}
    for setting, model, fewer in (("F1", "OLMoE", 1), ("F2", "Qwen3", 2)):
        name = counts.MODEL_OF[setting]
        shape = model_shape(name)
        half = len(shape.moe_layers) * shape.num_experts // 2
        held = half * shape.expert_bytes("bf16")
        peak = shape.common_bytes("bf16") + held
        one: Any = run(setting, "flashmoe", 1, peak_device_bytes=peak)
        place = {"model": name, "machine": "rtx5070ti", "precision": "bf16"}
        one["spec"] |= {**place, "slots": half // fewer}
        made.append(one)
        expected[model] = (fewer, fewer * (1 - reserve / held))
    by_experiment(monkeypatch, {EVICTIONS.name: made})
    for model, (with_reserve, without) in expected.items():
        found = measured(f"F-12 {model} Eq. 1", evidence)
        assert found.samples == pytest.approx((with_reserve,), rel=1e-5)
        assert found.conditions == "a run's peak device memory"
        assert reading(f"F-12 {model} Eq. 1", evidence).samples == pytest.approx(
            (without,), rel=1e-5
        )

"""S-MBU and S-MFU, against sums over a model's configuration and a profile's numbers."""

from typing import Any

import pytest

import moebench as mb
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape

PROMPTS, STEPS = 2, 3


def run(system: str, **options: Any) -> dict[str, Any]:
    """Return the document of a run of S3 on drawn routing, which computes nothing."""
    given: dict[str, Any] = {
        "setting": "S3", "routing": "drawn", "prompts": PROMPTS, "new_tokens": STEPS + 1,
    }  # fmt: skip
    (document,) = mb.run(system, interval=False, **(given | options))
    return document


def decode(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["metrics"]["utilisation"]["decode"]
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_calculation_by_hand() -> None:
    """Qwen2-57B-A14B with all experts on the device, in bf16, from its config.json."""
    document = run("gpu-only", allow_overcommit=True)
    hidden, width, shared, layers, vocabulary = 3584, 2560, 20480, 28, 151936
    experts, chosen, kv_heads, head_dim = 64, 8, 4, 128
    expert = 3 * hidden * width
    attention = 2 * hidden * hidden + 2 * hidden * kv_heads * head_dim  # q and o; k and v
    attention += hidden + 2 * kv_heads * head_dim  # biases of q, k, v
    norms, gate = 2 * hidden, experts * hidden
    layer = attention + norms + gate + 3 * hidden * shared + hidden + chosen * expert
    token = layers * layer + vocabulary * hidden
    steps = PROMPTS * STEPS
    device = decode(document)["device"]
    # The KV cache adds 2 · 4 · 128 values of two bytes a layer for each cached token.
    cached = device["gb"] * 1e9 - 2 * token * steps
    a_token = layers * 2 * kv_heads * head_dim * 2
    longest = 4096
    assert 0 < cached < steps * longest * a_token
    assert cached / a_token == pytest.approx(round(cached / a_token), abs=0.01)
    seconds = document["metrics"]["tpot_ms"]["mean"] / 1e3 * steps
    assert device["s_mbu"] == pytest.approx(device["gb"] / (768 * seconds), abs=2e-6)
    # 2 FLOPs for each parameter of 2 bytes, and those of the scores.
    assert device["tflop"] * 1e12 == pytest.approx(2 * token * steps, rel=0.01)
    assert device["tflop"] * 1e12 > 2 * token * steps
    peak = load_profile("a6000").gpu.tensor_bf16.flops_per_s
    assert device["s_mfu"] == pytest.approx(device["tflop"] * 1e12 / (peak * seconds), abs=2e-6)
    assert decode(document)["host"]["gb"] == decode(document)["h2d"]["gb"] == 0
    assert model_shape("qwen2-57b-a14b").expert_params == expert


def test_what_is_activated_does_not_depend_on_who_computes_it() -> None:
    """Lossless systems on one routing share out the same bytes and FLOPs."""
    whole = decode(run("gpu-only", allow_overcommit=True))["device"]
    for system in ("moe-ondemand", "fiddler", "llamacpp"):
        parts = decode(run(system))
        for figure in ("gb", "tflop"):
            both = parts["device"][figure] + parts["host"][figure]
            assert both == pytest.approx(whole[figure], rel=1e-6)
        for lane in parts.values():
            assert 0 <= lane["s_mbu"] <= 1


@pytest.mark.parametrize("system", ["moe-infinity", "smoe", "mixtral-offloading", "adapmoe"])
def test_experts_that_are_loaded_in_vain_do_not_count_on_the_link(system: str) -> None:
    """Records are counted twice: by what crossed the link, and by what the layers used."""
    document = run(system)
    counts, prefetch = document["metrics"]["experts"]["decode"], document["metrics"]["prefetch"]
    expert = document["memory"]["expert_bytes"]
    moved = document["metrics"]["decode"]["bytes_h2d"]
    useful = decode(document)["h2d"]["gb"] * 1e9
    assert prefetch["used"] < prefetch["issued"]
    assert useful < moved
    used = counts["loads"] - counts["unchosen"] + prefetch["used"]
    assert useful / expert == pytest.approx(used, abs=1e-3)


def test_a_system_of_its_own_network_is_not_charged_for_it() -> None:
    """Predictions are work of a policy, not of the model."""
    lossless = decode(run("gpu-only", allow_overcommit=True))["device"]["gb"]
    predicting = decode(run("mixtral-offloading"))
    both = predicting["device"]["gb"] + predicting["host"]["gb"]
    assert both == pytest.approx(lossless, rel=1e-6)

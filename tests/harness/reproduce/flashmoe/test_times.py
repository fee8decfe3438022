"""FlashMoE's slots, times and epochs, on runs by hand and with clocks that are given."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce import read
from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.flashmoe import PAPER, counts, times
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape
from tests.harness.reproduce.test_flashmoe import run


def test_slots_that_equation_1_gives_for_the_memory_of_a_run() -> None:
    """The memory that common weights and half of all experts need is that of half of the slots."""
    shape = model_shape("olmoe-1b-7b")
    half = len(shape.moe_layers) * shape.num_experts // 2
    reserve = load_profile("rtx5070ti").gpu.reserved_memory.bytes
    weights = shape.common_bytes("bf16") + half * shape.expert_bytes("bf16")

    def held(peak: float, slots: int) -> Runs:
        one = run("F1", "flashmoe", 1, peak_device_bytes=peak)
        place = {"model": "olmoe-1b-7b", "machine": "rtx5070ti", "precision": "bf16"}
        one["spec"] |= {**place, "slots": slots}
        other = run("F1", "flashmoe", 1, peak_device_bytes=9.9)
        return Runs([one, other])

    assert times.slots_by_equation_1(held(weights, half)) == pytest.approx(1)
    assert times.slots_by_equation_1(held(weights, half // 2)) == pytest.approx(2)
    assert times.slots_without_reserve(held(weights + reserve, half)) == pytest.approx(1)
    more = reserve / (half * shape.expert_bytes("bf16"))
    assert times.slots_by_equation_1(held(weights + reserve, half)) == pytest.approx(1 + more)


def test_gains_over_one_policy_and_over_all_others() -> None:
    runs = Runs(run("F1", "flashmoe", ms, name)
                for name, ms in {"flashmoe": 100, "lru": 125, "lfu": 150}.items())  # fmt: skip
    assert times.best_of(runs, "flashmoe", ["lru", "lfu"]) == 1.25
    assert times.best_of(runs, "lru", ["flashmoe"]) == 0.8
    assert [one["spec"]["overrides"] for one in times.evicting(runs, "lfu")] == [{"evict": "lfu"}]


def test_a_gain_is_of_the_runs_of_one_setting(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [
        run(setting, "flashmoe", ms, name)
        for setting, slow in (("F1", 120), ("F2", 150))
        for name, ms in (("flashmoe", 100), ("lru", slow))
    ]
    asked: list[Any] = []

    def runs(self: Evidence, *experiments: Any) -> Runs:
        asked.extend(experiments)
        return Runs(given)

    monkeypatch.setattr(Evidence, "runs", runs)
    found = times.faster_than("F2", "lru")(evidence)
    assert (found.value, found.conditions) == (pytest.approx(50), "decoded tokens a second")
    assert asked == [times.EVICTIONS]


def test_the_median_time_of_a_call_in_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of 4, 9 and 2 µs."""
    clock = iter([1000, 5000, 10_000, 19_000, 50_000, 52_000])
    calls: list[int] = []
    monkeypatch.setattr(times, "time", SimpleNamespace(perf_counter_ns=lambda: next(clock)))
    assert times._timed_us(lambda: calls.append(1), 3) == 4
    assert len(calls) == 3


class FakeRouting:
    """Routing of three texts, of which two are for training; it notes what it is asked."""

    experts = 8

    def __init__(self) -> None:
        ids = np.arange(20 * 6 * 2).reshape(20, 6, 2) % 8
        self.texts = {True: [ids, ids[:12]], False: [ids[::-1]]}

    def sequences(self, learnt: bool) -> list[np.ndarray]:
        return self.texts[learnt]


def with_routing(monkeypatch: pytest.MonkeyPatch, *routings: Any) -> None:
    def found(evidence: Evidence, setting: str) -> list[Any]:
        assert setting == "F1"
        return list(routings)

    monkeypatch.setattr(counts, "routings", found)


def test_the_most_epochs_of_a_layer_of_each_seed(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_routing(monkeypatch, "12 to 30", "8")
    monkeypatch.setattr(counts, "network", lambda one: SimpleNamespace(
        network=SimpleNamespace(note={"epochs": one})))  # fmt: skip
    found = times.epochs(evidence)
    assert (found.samples, found.badge, found.over) == ((30, 8), "counted", "trained networks")
    assert found.conditions == "most epochs of a layer"


def test_inputs_and_labels_over_training(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 s of 10 s build; four of six layers of each text are trained together, from no file."""
    routing = FakeRouting()
    with_routing(monkeypatch, routing)
    seen: list[Any] = []
    network = times.eviction_network
    monkeypatch.setattr(network, "features", lambda ids, n: seen.append(("in", ids.shape, n)))
    monkeypatch.setattr(network, "labels", lambda ids, n: seen.append(("out", ids.shape, n)))

    def trained(texts: Any, experts: int, options: Any, folder: Path) -> None:
        assert folder.is_dir()
        assert not list(folder.iterdir())
        assert options == network.EvictionNetworkOptions()
        seen.append(("train", [ids.shape for ids in texts], experts))

    monkeypatch.setattr(network, "trained", trained)
    taken = iter([2e6, 10e6])

    def timed(work: Callable[[], object], repeats: int) -> float:
        assert repeats == 1
        work()
        return next(taken)

    monkeypatch.setattr(times, "_timed_us", timed)
    found = times.features_over_training(evidence)
    shapes = [(20, 4, 2), (12, 4, 2)]
    assert seen == [
        *((what, shape, 8) for shape in shapes for what in ("in", "out")), ("train", shapes, 8),
    ]  # fmt: skip
    assert (found.value, found.badge) == (0.25, "measured")
    assert found.conditions == "2 texts, 4 layers; training 8.0 s"


def test_a_decision_is_timed_after_16_tokens_of_a_layer(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    routing = FakeRouting()
    with_routing(monkeypatch, routing)
    given: list[Any] = []
    network = SimpleNamespace(distances=lambda layer, features: given.append((layer, features)))
    monkeypatch.setattr(counts, "network", lambda one: SimpleNamespace(network=network))

    def timed(work: Callable[[], object], repeats: int) -> float:
        assert repeats == 500
        work()
        return 12.5

    monkeypatch.setattr(times, "_timed_us", timed)
    found = times.network_us(evidence)
    assert (found.value, found.badge) == (12.5, "measured")
    ((layer, features),) = given
    expected = times.History(6, 8)
    for ids in routing.sequences(learnt=False)[0][:16]:
        expected.step(0, ids[0])
    assert layer == 0
    assert features.tolist() == expected.features(0).tolist()


def test_a_charged_time_is_the_mean_of_both_models(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def components(what: str) -> list[dict[str, Any]]:
        asked.append(what)
        return [{"model": "a", "charged": 1.0}, {"model": "b", "charged": 2.34567}]

    monkeypatch.setattr(read, "components", components)
    found = times.charged("FFN")(evidence)
    assert asked == ["FFN"]
    assert (found.value, found.badge) == (pytest.approx(3.34567 / 2, rel=1e-5), "estimate")
    assert found.conditions == "charged at batch 1: a 1, b 2.346"


def test_the_prompt_of_algorithm_1_has_a_share_of_the_experts_on_the_device() -> None:
    view = times._prompt_of_a_layer()
    assert view.topk_ids_TK.shape == (256, 8)
    assert all(len(set(token)) == 8 for token in view.topk_ids_TK.tolist())
    assert (view.topk_ids_TK.min(), view.topk_ids_TK.max()) == (0, 127)
    assert (int(view.resident_E.sum()), len(view.resident_E)) == (24, 128)
    assert not view.in_flight_E.any()


def test_the_size_of_a_network_is_in_kibibytes(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_routing(monkeypatch, "one", "other")
    monkeypatch.setattr(counts, "network", lambda one: SimpleNamespace(
        network=SimpleNamespace(bytes_per_layer={"one": 5120, "other": 1}[one])))  # fmt: skip
    (claim,) = (one for one in PAPER.claims if one.id == "F-8 size")
    assert claim.measure is not None
    found = claim.measure(evidence)
    assert (found.value, found.badge, found.conditions) == (5, "counted", "KiB of fp32, 64 experts")


def test_qwen3_has_so_many_layers() -> None:
    assert model_shape("qwen3-30b-a3b").num_layers == times.LAYERS
    assert times.READ_MS == 3.0

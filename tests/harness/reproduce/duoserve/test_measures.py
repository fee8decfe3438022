"""DuoServe-MoE's spread of speeds and missing evidence, on runs by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.duoserve import measures as m
from moebench.harness.reproduce.duoserve import measures_of_predictor as mp
from moebench.harness.reproduce.duoserve.experiments import BOTH, LARGE, SMALL
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.results.store import Store
from moebench.substrate.models.catalogue import model_shape
from tests.harness.reproduce.given import with_runs
from tests.harness.reproduce.test_duoserve import cell, run


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return Evidence(Store(tmp_path), None, tmp_path, quick=False)


def with_samples(monkeypatch: pytest.MonkeyPatch, **of: tuple[float, ...]) -> None:
    def samples(directory: Path, run_id: str) -> list[Any]:
        times = of[run_id.split("-")[1]]
        return [SimpleNamespace(step=step, ns=ns) for step, ns in enumerate(times)]

    monkeypatch.setattr(m, "read_samples", samples)


def test_a_spread_needs_samples_that_differ(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(monkeypatch, *cell("U1", 1, 1, 1))
    with_samples(monkeypatch, duoserve=(), acc=(9, 1, 2), moesys=(9, 1, 2))
    with pytest.raises(MissingEvidenceError, match="no samples were kept of U1-duoserve-equations"):
        m.broader(evidence)
    assert asked == [*BOTH]
    with_samples(monkeypatch, duoserve=(9, 1, 2), acc=(9, 1, 1), moesys=(9, 2, 2))
    with pytest.raises(MissingEvidenceError, match="all tokens of the baselines take the same"):
        m.broader(evidence)
    with_samples(monkeypatch, duoserve=(9, 1, 3), acc=(9, 1, 1), moesys=(9, 1, 3))
    found = m.broader(evidence)
    assert found.value == 1
    assert "standard deviation over mean" in found.conditions


def test_a_spread_is_of_all_tokens_of_all_runs_of_a_cell(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells are averaged: 2 where DuoServe is twice as broad, 1 where both are equal."""
    with_runs(monkeypatch, *cell("U1", 1, 1, 1), *cell("U2", 1, 1, 1))
    times = {"U1-duoserve": (1, 3), "U2-duoserve": (3, 5), "acc": (3, 5), "moesys": (4, 4)}

    def samples(directory: Path, run_id: str) -> list[Any]:
        setting, system, _ = run_id.split("-")
        first, second = times.get(f"{setting}-{system}", times.get(system, (0, 0)))
        return [SimpleNamespace(step=n, ns=ns) for n, ns in enumerate((7, first, second))]

    monkeypatch.setattr(m, "read_samples", samples)
    # Spreads of speeds 1/a and 1/b: |a - b| / (a + b), 1/2 and 1/4.
    assert m.broader(evidence).value == pytest.approx(1.5)


def test_the_memory_of_a_resident_model_by_its_weights(evidence: Evidence) -> None:
    shape = model_shape("mixtral-8x7b")
    own = shape.common_bytes("4bit") / 1e9
    experts = 32 * 8 * shape.expert_bytes("4bit") / 1e9
    found = m.of_non_experts("mixtral-8x7b", share=True)(evidence)
    assert found.value == pytest.approx(100 * own / (own + experts), rel=1e-5)
    assert (found.badge, found.conditions) == ("counted", "exact: weights in 4bit, without a run")
    assert m.of_non_experts("mixtral-8x7b")(evidence).value == pytest.approx(own, rel=1e-5)
    reserved = m.load_profile("a6000@duoserve").gpu.reserved_memory.bytes / 1e9
    assert m.gpu_only_gb("mixtral-8x7b") == pytest.approx(own + experts + reserved)
    assert m.of_gpu_only("mixtral-8x7b")(evidence).badge == "counted"
    peak = run("U1", "duoserve", 1, peak_device_bytes=1e9 * (own + experts + reserved) / 4)
    assert m.share_of_model(("U1",), "mixtral-8x7b")(Runs([peak])) == pytest.approx(25)
    assert (m.settings_of("8x7B"), m.settings_of("8x22B")) == (("U1", "U2"), ("U3", "U4"))


def test_epochs_are_of_full_sets_of_texts(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DuoServe's own: 10 and 20 on 8x7B, 45 on 8x22B."""
    runs = [run(setting, "duoserve", 1) for setting in ("U1", "U2", "U3")]
    for one, epochs in zip(runs, ("10", "20", "45"), strict=True):
        one["provenance"] = {"learnt": {"prefetch": {"best_epoch": epochs}}}
    asked = with_runs(monkeypatch, *runs, *cell("U1", 1, 1, 1)[1:])
    assert mp.more_epochs(evidence).value == 30
    assert asked == [*BOTH]
    asked.clear()
    mp.sufficient(SMALL)(evidence)
    assert asked == [SMALL]
    quick = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    for measure in (mp.more_epochs, mp.sufficient(LARGE)):
        with pytest.raises(MissingEvidenceError, match="few texts, for 20 epochs at most"):
            measure(quick)


def test_memory_that_is_reserved_for_the_predictor(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run("U1", "duoserve", 1)
    own["spec"]["options"] = {"prefetch.memory_mb": "300"}
    asked = with_runs(monkeypatch, *cell("U1", 1, 1, 1)[1:], own)
    found = mp.reserved_mb(evidence)
    assert asked == [SMALL]
    assert (found.value, found.badge) == (300, "counted")
    one, six = (
        mp.component("predictor", "a5000@duoserve", times=n)(evidence).value for n in (1, 6)
    )
    assert six == pytest.approx(6 * one)


def test_conditions_say_how_many_texts_the_predictors_learnt_from(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 unless another number is given; those of the baselines do not count."""
    runs = [*cell("U1", 1, 2, 3), *cell("U2", 1, 2, 3)]
    for one, texts in zip(runs, (8, 1, 2, None, 3, 4), strict=True):
        one["spec"]["calibrate_texts"] = texts
    asked = with_runs(monkeypatch, *runs)
    found = m.of_both(lambda runs: 5.0, "said")(evidence)
    assert (found.samples, found.badge) == ((5,), "estimate")
    how = "1 prompts of 4 new tokens, model routing, predictor learnt from 8/64 texts"
    assert found.conditions == f"said; {how}"
    assert m.of_one(LARGE, lambda runs: 5.0)(evidence).conditions == how
    assert asked == [*BOTH, LARGE]


def test_speed_ups_at_their_edges(evidence: Evidence) -> None:
    """A system as fast as DuoServe is not slower, and one as slow as ACC not the slowest."""
    equal = Runs(cell("U1", 100, 100, 100))
    assert (m.faster_share(equal), m.slower_than_acc(equal)) == (0, 0)
    assert m.slower_than_acc(Runs(cell("U1", 100, 50, 99))) == 0
    assert m.slower_than_acc(Runs(cell("U1", 100, 50, 101))) == 1
    both = Runs([*cell("U1", 100, 200, 300), *cell("U3", 100, 400, 800)])
    assert m.card(("U3",), "metrics.e2e_ms")(both) == 6
    assert m.over_acc()(both) == 3
    assert m.over_acc("metrics.ttft_ms.mean", setting="U1")(both) == 2
    assert m.order_of_peaks(Runs([
        run("U1", name, 1, peak_device_bytes=size)
        for name, size in (("acc", 3), ("duoserve", 4), ("moesys", 4))
    ])) == 0  # fmt: skip


def test_hits_on_gsm8k_less_those_on_squad(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hit(workload: str, share: float, system: str = "duoserve") -> Any:
        return run("U1", system, 1, workload, prefetch={"all_of_top_k": share})

    asked = with_runs(monkeypatch, hit("gsm8k", 0.6), hit("squad", 0.45), hit("squad", 0.1, "acc"))
    found = mp.gsm8k_more(SMALL)(evidence)
    assert (found.value, asked) == (pytest.approx(15), [SMALL])


def test_matrices_of_several_sets_of_texts(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first counts; both are samples.  Uses of half of the experts are twice the even share."""
    even = np.full((2, 4), 0.25)
    half = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    after = np.zeros((1, 4, 4))
    after[0, 0, 3], after[0, 1] = 1.0, 0.25
    matrices = [{"popularity": half, "affinity": after}, {"popularity": even, "affinity": after}]
    monkeypatch.setattr(mp, "trained_matrices", lambda evidence: matrices)
    assert mp.matrices(evidence) is matrices[0]
    popular = mp.popular(evidence)
    assert (popular.samples, popular.badge) == ((2, 1), "counted")
    assert popular.conditions == ("the most popular expert, mean over layers; scale model of 8x7B")
    affine = mp.affine(evidence)
    assert affine.samples == (2.5, 2.5), "of the two experts that were ever chosen"
    assert affine.conditions.startswith("the likeliest next expert, mean over experts; ")


def test_the_peak_is_the_largest_of_a_systems_runs_in_some_settings() -> None:
    def used(system: str, setting: str, gb: float) -> Any:
        return run(setting, system, 1.0, peak_device_bytes=int(gb * 1e9))

    runs = Runs([
        used("duoserve", "U1", 5), used("duoserve", "U2", 7), used("duoserve", "U3", 20),
        used("acc", "U1", 30),
    ])  # fmt: skip
    assert m.peak_gb("duoserve", ("U1", "U2"))(runs) == 7
    assert m.peak_gb("duoserve", ("U1", "U3"))(runs) == 20
    assert m.peak_gb("acc", ("U1",))(runs) == 30

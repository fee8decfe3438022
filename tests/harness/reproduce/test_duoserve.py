"""DuoServe-MoE's claims, and their measuring functions on hand-made documents."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from moebench.harness.reproduce.duoserve import PAPER
from moebench.harness.reproduce.duoserve import measures as m
from moebench.harness.reproduce.duoserve import measures_of_predictor as mp
from moebench.harness.reproduce.duoserve.experiments import LARGE, OF_TIMES, SMALL, TEXTS
from moebench.harness.reproduce.duoserve.explained import HEADLINES
from moebench.harness.reproduce.duoserve.tags import TAGS
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.read import E2E, TTFT, difference
from moebench.harness.reproduce.timelines import decoded, prefill, spans
from moebench.harness.run.rules import resolve
from moebench.results.samples import TokenSample
from moebench.results.store import Store
from moebench.substrate.models.catalogue import model_shape

# ----------------------------------------------------------------------------- the registry


def test_exhibits_are_three_tables_and_five_figures() -> None:
    """Fig. 2 has two panels of different axes."""
    assert len(PAPER.exhibits) == 8


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("experiment", [SMALL, LARGE])
def test_experiments_expand_without_a_data_folder(
    experiment: Experiment, quick: bool, tmp_path: Path
) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick)
    specs = evidence.specs(experiment)
    assert {spec.system for spec in specs} == {"duoserve", "acc", "moesys"}
    assert len({spec.setting for spec in specs}) == 2
    assert {spec.slots for spec in specs if spec.system != "moesys"} == {2}
    cells = len(evidence.changed({}).specs(experiment))
    for counter in OF_TIMES:
        assert len(evidence.changed(counter.changes).specs(experiment)) == cells
    if not quick:
        assert {spec.seed for spec in specs} == {0, 1, 2}
        assert {s.calibrate_texts for s in specs if s.system == "duoserve"} == {TEXTS}


def test_8x22b_may_learn_for_as_long_as_the_authors_did(tmp_path: Path) -> None:
    specs = Evidence(Store(tmp_path), None, tmp_path, quick=False).specs(LARGE)
    learning = [spec.overrides for spec in specs if spec.system == "duoserve"]
    assert {one["prefetch.epochs"] for one in learning} == {"45"}


# ----------------------------------------------------------------------------- runs by hand


def run(
    setting: str, system: str, e2e: float, workload: str = "equations", ttft: float = 100,
    **metrics: Any,
) -> Any:  # fmt: skip
    return {
        "run_id": f"{setting}-{system}-{workload}", "badge": "estimate",
        "spec": {
            "setting": setting, "system": system, "variant": "published", "seed": 0,
            "workload": workload, "routing": "model", "overrides": {}, "prompts": 1,
            "new_tokens": 4, "calibrate_texts": None,
        },
        "metrics": {"e2e_ms": e2e, "ttft_ms": {"mean": ttft}} | metrics,
    }  # fmt: skip


def cell(setting: str, own: float, acc: float, moesys: float, workload: str = "equations") -> Any:
    times = {"duoserve": own, "acc": acc, "moesys": moesys}
    return [run(setting, name, ms, workload, ttft=ms / 2) for name, ms in times.items()]


def test_speed_ups_are_of_each_cell_and_baseline() -> None:
    runs = Runs([*cell("U1", 100, 150, 400), *cell("U3", 100, 120, 90, "passages")])
    assert m.speedups(runs, E2E) == [1.5, 4, 1.2, 0.9]
    assert m.least(E2E)(runs) == 0.9
    assert m.greatest(TTFT)(runs) == 4
    assert m.faster_share(runs) == 0.75
    assert m.slower_than_acc(runs) == 0.5
    # Outputs of one token take TTFT, half of the times; a further token of 50 ms adds as much.
    for one in runs:
        one["metrics"]["tpot_ms"] = {"mean": 50.0}
    assert m.least(1)(runs) == 0.9
    assert m.greatest(2)(runs) == (200 + 50) / (50 + 50)
    assert m.over_acc(workload="passages")(runs) == 1.2
    assert difference(m.over_acc(setting="U1"), m.over_acc(setting="U3"))(runs) == pytest.approx(
        0.3
    )


def test_peak_memory_and_its_order_over_systems() -> None:
    def peaks(setting: str, *sizes: float) -> list[Any]:
        names = zip(("acc", "duoserve", "moesys"), sizes, strict=True)
        return [run(setting, name, 1, peak_device_bytes=size * 1e9) for name, size in names]

    runs = Runs([*peaks("U1", 3, 4, 5), *peaks("U2", 4.5, 4, 5)])
    assert m.peak_gb("duoserve", ("U1", "U2"))(runs) == 4
    assert m.order_of_peaks(runs) == 0.5


def test_the_whole_model_is_counted_in_four_bits() -> None:
    """46.7 billion parameters at half a byte, scales, and some context: the paper's 25 GB."""
    assert 46.7 / 2 < m.gpu_only_gb("mixtral-8x7b") < 1.15 * 46.7 / 2 + 1.5


def test_hits_are_of_a_data_set_unless_recordings_stand_for_all() -> None:
    def hit(workload: str, share: float) -> Any:
        return run("U1", "duoserve", 1, workload, prefetch={"all_of_top_k": share})

    runs = Runs([hit("equations", 0.6), hit("passages", 0.5), *cell("U2", 1, 1, 1)[1:]])
    assert mp.hits(mp.BOTH_RIGHT, "equations")(runs) == 60
    assert mp.orca_more(mp.BOTH_RIGHT)(runs) == pytest.approx(10)
    recorded = hit("humaneval", 0.25)
    recorded["spec"]["routing"] = "real"
    assert mp.hits(mp.BOTH_RIGHT, "equations")(Runs([recorded])) == 25


def test_predicting_share_is_predict_time_over_decode_time() -> None:
    one = run(
        "U1", "duoserve", 1, decoded_tokens=10, tpot_ms={"mean": 100.0},
        decode={"lanes": {"predict": 20.0}},
    )  # fmt: skip
    assert mp.predicting_share(Runs([one])) == 2


def test_copies_are_a_share_of_prefill_and_of_decode() -> None:
    """Of 1000 ms of a prompt 900 have a copy, of ten tokens of 100 ms half of the time."""
    one = run(
        "U1", "duoserve", 1, ttft=1000, decoded_tokens=10, tpot_ms={"mean": 100.0},
        lanes={"h2d": 1400.0}, decode={"lanes": {"h2d": 500.0, "predict": 20.0}},
    )  # fmt: skip
    runs = Runs([one, *cell("U1", 1, 2, 3)[1:]])
    assert m.copying_in_prefill(runs) == 90
    assert m.copying_in_decode(runs) == 50
    charged = mp.component("predictor", "a5000@duoserve")(None).value  # type: ignore[arg-type]
    assert mp.predicting_share_at(2 * charged)(runs) == pytest.approx(4)


def test_non_experts_are_a_small_part_in_four_bits() -> None:
    def measured(*of: Any, **more: Any) -> float:
        return m.of_non_experts(*of, **more)(None).value  # type: ignore[arg-type]

    gb, wide = measured("mixtral-8x7b"), measured("mixtral-8x7b", "bf16")
    assert gb < 1 < 3 < wide
    assert measured("mixtral-8x7b", share=True) == pytest.approx(100 * gb / (gb + 25), rel=0.1)


def test_spread_is_over_the_wider_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two speeds a and b: their standard deviation over their mean is |a - b| / (a + b)."""
    ns = {"duoserve": (1e9, 3e9), "acc": (1e9, 1e9), "moesys": (3e9, 5e9)}

    def samples(directory: Path, run_id: str) -> list[Any]:
        times = ns[run_id.split("-")[1]]
        return [SimpleNamespace(step=i, ns=t) for i, t in enumerate((7, *times))]

    monkeypatch.setattr(m, "read_samples", samples)
    monkeypatch.setattr(Evidence, "runs", lambda *of: Runs(cell("U1", 1, 1, 1)))
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    # DuoServe's 1 and 1/3 a second; MoESys' 1/3 and 1/5.
    assert m.broader(evidence).value == pytest.approx(0.5 / 0.25)
    assert TokenSample.__annotations__.keys() >= {"step", "ns"}


# ----------------------------------------------------------------------------- Fig. 2 and 4


def test_popularity_figures_read_the_runs_trained_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt = run("U1", "duoserve", 1)
    learnt["provenance"] = {"kept": ["routing/x", "calibration/expert-mlp-1.safetensors"]}
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    monkeypatch.setattr(Evidence, "runs", lambda self, experiment: Runs([learnt]))
    with pytest.raises(MissingEvidenceError, match="run it again"):
        mp.popular(evidence)
    (tmp_path / "calibration").mkdir()
    # Even use of four experts, but for the first layer; expert 3 was never chosen before.
    popularity = np.array([[0.5, 0.5, 0, 0], [0.25] * 4])
    affinity = np.array([[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4, [0.0] * 4]])
    save_file(
        {"popularity": popularity, "affinity": affinity},
        tmp_path / "calibration" / "expert-mlp-1.safetensors",
    )
    popular = mp.popular(evidence)
    assert (popular.value, popular.over) == (1.5, "sets of training texts")
    assert mp.affine(evidence).value == pytest.approx((4 + 2 + 1) / 3, abs=1e-4)


def test_a_timeline_shows_three_layers_from_their_beginning() -> None:
    kept = [
        {"lane": "device", "kind": "expert", "layer": layer, "start_us": 10.0 * layer,
         "end_us": 10.0 * layer + 5}
        for layer in range(32)
    ]  # fmt: skip
    store = SimpleNamespace(timeline=lambda run_id: kept if run_id == "U1-acc-equations" else None)
    evidence: Any = SimpleNamespace(store=store)
    rows = spans({"ACC": decoded(evidence, Runs([run("U1", "acc", 1)]))}, 15)
    assert [(row["layer"], row["start"], row["end"]) for row in rows] == [
        (15, 0, 5), (16, 10, 15), (17, 20, 25),
    ]  # fmt: skip
    with pytest.raises(MissingEvidenceError, match="no timeline was kept of DuoServe"):
        spans({"DuoServe": decoded(evidence, Runs([run("U1", "duoserve", 1)]))}, 15)


def test_a_prefill_is_run_once_more_and_shown_up_to_its_first_token(
    tmp_path: Path, tiny_models: None
) -> None:
    spec = resolve(None, system="moe-ondemand", setting="S3", workload="arithmetic", prompts=3)
    records = prefill(Evidence(Store(tmp_path), None, tmp_path, quick=True), spec)
    layers = {one["layer"] for one in records if one["kind"] == "gate"}
    assert layers == set(range(model_shape("qwen2-57b-a14b").num_layers))
    # A gate reads all of a prompt at once, and none of it reads a decoded token.
    gates = [one for one in records if one["kind"] == "gate"]
    assert len(gates) == len(layers)
    assert {one["rows"][0] for one in gates} != {1}


# ----------------------------------------------------------------------------- verdicts


def test_tags_are_of_claims_and_have_reasons() -> None:
    claims = {claim.id: claim for claim in PAPER.claims}
    assert TAGS.keys() <= claims.keys()
    assert all(claims[name].tag and claims[name].tag_reason for name in TAGS)
    assert claims["U-1 TTFT least"].tag is None
    assert {claim.id for claim in PAPER.claims if claim.headline} == HEADLINES.keys()


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("U-1 TTFT least", {1.78: "reproduced", 1.25: "direction only", 1.0155: "no effect"}),
        ("U-2 by card", {0.02: "reproduced", -2e-7: "no effect", -0.1: "not reproduced"}),
        ("U-2 by data set", {0.02: "reproduced", 0.012: "no effect", -0.29: "not reproduced"}),
        ("U-3 broader", {15: "reproduced", 1.1: "direction only", 1.0: "no effect"}),
        ("U-5 8x7B by data set", {5: "reproduced", 2: "direction only", 0: "no effect"}),
        ("U-6 epochs order", {25: "reproduced", 8: "direction only", 0: "no effect"}),
        ("U-8 popularity", {1.5: "reproduced", 1.0: "no effect", 9: "not reproduced"}),
    ],
)
def test_less_than_a_quarter_of_an_effect_is_none(name: str, figures: dict[float, str]) -> None:
    (claim,) = (claim for claim in PAPER.claims if claim.id == name)
    assert {figure: claim.judge(figure).value for figure in figures} == figures

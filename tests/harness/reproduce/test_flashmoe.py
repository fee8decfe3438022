"""FlashMoE's claims, and their measuring functions on small routing and hand-made documents."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.claim import LEAN, Claim
from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.harness.reproduce.flashmoe import PAPER, counts, times
from moebench.harness.reproduce.flashmoe.experiments import (
    EVICTIONS,
    IN_MEMORY,
    MASKED,
    POLICIES,
    SYSTEMS,
)
from moebench.harness.reproduce.flashmoe.explained import HEADLINES
from moebench.harness.reproduce.read import LOAD, TPOT, TTFT
from moebench.results.claims import Tag
from moebench.results.store import Store
from moebench.substrate.traces.file import Header
from moebench.substrate.traces.writer import writing

# ----------------------------------------------------------------------------- the registry


def test_exhibits_are_those_of_the_paper() -> None:
    assert len(PAPER.exhibits) == 9


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("experiment", [EVICTIONS, SYSTEMS])
def test_experiments_expand_without_a_data_folder(
    experiment: Experiment, quick: bool, tmp_path: Path
) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick)
    for changed in (evidence, *(evidence.changed(one.changes) for one in (LEAN, IN_MEMORY))):
        specs = changed.specs(experiment)
        assert {spec.setting for spec in specs} == {"F1", "F2"}
        assert {spec.seed for spec in specs} == ({0} if changed.quick else {0, 1, 2})
    assert {spec.software for spec in evidence.changed(LEAN.changes).specs(experiment)} == {"lean"}


def test_flashmoe_is_one_cell_for_both_experiments(tmp_path: Path) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=False)
    both = [
        {spec.model_dump_json() for spec in evidence.specs(one)} for one in (EVICTIONS, SYSTEMS)
    ]
    assert len(both[0] & both[1]) == 6  # two settings, three seeds


# ----------------------------------------------------------------------------- hits


@pytest.fixture
def routing(tmp_path: Path) -> counts.Routing:
    """Return routing of one layer of four experts, top-1; two sequences are for training."""
    held_out = [0, 1, 0, 2, 0, 1, 0, 2]
    sequences = [held_out, [0, 1, 2, 3] * 8, [3, 2, 1, 0] * 8]
    header = Header(model="tiny", workload="none", num_moe_layers=1, num_experts=4, top_k=1)
    with writing(tmp_path / "trace", header) as out:
        for number, ids in enumerate(sequences):
            n = len(ids)
            out.append(
                ids=np.array(ids, np.uint8).reshape(n, 1, 1), sequence=np.full(n, number),
                position=np.arange(n), phase=np.ones(n), chosen=np.full(n, -1),
            )  # fmt: skip
    return counts.Routing(tmp_path / "trace", 1, tmp_path / "trace", 2, tmp_path)


def test_routing_is_split_into_training_and_held_out_sequences(routing: counts.Routing) -> None:
    (held_out,) = routing.sequences(learnt=False)
    assert held_out.ravel().tolist() == [0, 1, 0, 2, 0, 1, 0, 2]
    assert [ids.ravel()[0] for ids in routing.sequences(learnt=True)] == [0, 3]
    assert routing.experts == 4


def test_hit_rates_are_those_of_a_hand_count(routing: counts.Routing) -> None:
    """Two slots: LRU keeps 0 and hits it thrice; with three slots only first uses miss."""
    of = counts.rates(routing)
    assert set(of) == {1, 2, 3}
    assert of[2]["lru"] == 3 / 8
    assert of[3] == dict.fromkeys(counts.COUNTED, 5 / 8)
    assert all(rates[name] <= rates["belady"] for rates in of.values() for name in rates)


def test_hit_gain_and_load_reduction_match_the_papers_figures(
    routing: counts.Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's own: 51 % of hits and 21 % more of them are 22 % fewer loads."""
    of = dict.fromkeys(counts.COUNTED, 0.4) | {"flashmoe": 0.617, "lru": 0.51, "belady": 0.7}
    worse = of | {"flashmoe": 0.3, "lru": 0.4}
    monkeypatch.setattr(counts, "rates", lambda _: {16: of, 24: worse})
    assert counts.gain(routing, "lru") == pytest.approx(20.98, abs=0.01)
    assert counts.fewer_loads(routing, "lru") == pytest.approx(21.84, abs=0.01)
    assert counts.first_at(routing) == 0.5


def test_share_of_experts_used() -> None:
    ids_TLK = np.array([[[0, 1], [5, 6]], [[1, 2], [5, 6]], [[7, 3], [0, 1]]])
    assert counts._used(ids_TLK, 2, 8) == 100 * (3 + 2) / 2 / 8
    assert counts._used(ids_TLK, 3, 8) == 100 * (5 + 4) / 2 / 8


# ----------------------------------------------------------------------------- times


def run(setting: str, system: str, tpot: float, evict: str | None = None, **metrics: Any) -> Any:
    return {
        "run_id": f"{setting}{system}{evict}", "badge": "estimate",
        "spec": {
            "setting": setting, "system": system, "variant": "published", "seed": 0,
            "overrides": {"evict": evict} if evict else {},
        },
        "metrics": {"tpot_ms": {"mean": tpot}} | metrics,
    }  # fmt: skip


def test_speed_ups_are_of_each_setting_and_system() -> None:
    runs = Runs([
        run("F1", "flashmoe", 100), run("F1", "llamacpp", 250), run("F1", "fiddler", 100),
        run("F1", "daop", 50), run("F2", "flashmoe", 200), run("F2", "llamacpp", 200),
        run("F2", "fiddler", 400), run("F2", "daop", 300),
    ])  # fmt: skip
    assert times.speedups(runs, TPOT) == [2.5, 1, 0.5, 1, 2, 1.5]


def test_speed_up_sums_parts_and_averages_settings() -> None:
    def started(setting: str, system: str, load: float, ttft: float) -> Any:
        return run(setting, system, 1, load_ms=load, ttft_ms={"mean": ttft})

    runs = Runs([
        started("F1", "flashmoe", 10, 90), started("F1", "llamacpp", 40, 160),
        started("F2", "flashmoe", 20, 80), started("F2", "llamacpp", 40, 60),
    ])  # fmt: skip
    assert times.sooner(("llamacpp",), LOAD)(runs) == 3
    assert times.sooner(("llamacpp",), LOAD, TTFT)(runs) == 1.5


def test_waiting_is_a_share_of_all_decoded_time() -> None:
    one = run(
        "F1", "flashmoe", 100, "flashmoe", decoded_tokens=20, decode={"stall_ms": {"load": 1500}}
    )
    other = run("F1", "flashmoe", 1, "lru", decoded_tokens=20, decode={"stall_ms": {"load": 20}})
    assert times.loading_share(Runs([one, other])) == 75


def test_the_search_is_extrapolated_by_its_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that takes a microsecond for each split takes 2^64 of them for 64 experts."""
    taken = iter([2.0**8, 2.0**10, 2.0**12, 2.0**14])
    monkeypatch.setattr(times, "_timed_us", lambda work, repeats: next(taken))
    found = times.search_s(Evidence(Store(tmp_path), None, tmp_path, quick=True))
    assert found.value == pytest.approx(2.0**64 / 1e6, rel=1e-4)
    assert "times 2.00 for each expert more" in found.conditions


def test_reads_follow_the_decision_of_algorithm_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        times, "_timed_us", lambda work, repeats: 1000.0 if work() is not None else 0
    )
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    decided = times.swaps_ms(evidence)
    assert (decided.value, decided.badge) == (times.LAYERS, "measured")
    found = times.swaps_and_reads_ms(evidence)
    loaded = times.LAYERS * len(times.swaps(times._prompt_of_a_layer(), times.THRESHOLD))
    assert loaded > 0
    assert found.value == pytest.approx(times.LAYERS + loaded * times.READ_MS, rel=1e-5)
    assert f"{loaded} experts at " in found.conditions


def test_the_least_split_is_found() -> None:
    """Three experts: 0 and 3.5 on the host beside 30 for the one that is loaded, or 10.5 there."""
    assert times._least(3) == 10.5


def test_other_policies_are_slower_in_a_share_of_cases() -> None:
    """The network's options do not matter; equal speed is not slower."""
    ours = run("F1", "flashmoe", 100, "flashmoe")
    ours["spec"]["overrides"]["evict.cached"] = "24"
    tpot = {"lru": 120, "lfu": 90, "lifo": 130, "fifo": 140, "arc": 100, "lecar": 101}
    others = [run("F1", "flashmoe", ms, name) for name, ms in tpot.items()]
    assert times.slower_share(Runs([ours, *others])) == pytest.approx(4 / 6)
    assert times.best_of(Runs([ours, *others]), "flashmoe", ["lru"]) == 1.2


@pytest.mark.slow
def test_masked_labels_are_an_option_of_the_network(tmp_path: Path) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    for changes, cached in (({}, 0), (MASKED.changes, 24)):
        found = counts.routings(evidence.changed(changes), "F2")
        assert [routing.cached for routing in found] == [cached]


def test_seeds_replay_other_texts_and_learn_from_the_same(tmp_path: Path) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True).changed(
        {"setting": "F1", "seed": [0, 1], "calibrate_texts": 3, "new_tokens": 4}
    )
    one, other = counts.routings(evidence, "F1")
    assert one.shown == other.shown
    assert one.trace not in (other.trace, one.shown)
    assert len(one.sequences(learnt=True)) == 3
    shown = {ids.tobytes() for ids in one.sequences(learnt=True)}
    assert not shown & {ids.tobytes() for ids in other.sequences(learnt=False)}


# ----------------------------------------------------------------------------- claims


def claim(name: str) -> Claim:
    return next(one for one in PAPER.claims if one.id == name)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("F-1 hits over LRU", {21: "reproduced", 6: "direction only", 4: "no effect", -6: ""}),
        ("F-2 OLMoE", {11: "reproduced", 34: "direction only", 5: "no effect", -9: ""}),
        ("F-2 OLMoE order", {1: "reproduced", 0.5: "direction only", 0.3: ""}),
        ("F-2 OLMoE LRU", {1.03: "reproduced", 1.02: "direction only", 1: "no effect", 0.92: ""}),
        ("F-4 greatest", {2: "reproduced", 1.5: "direction only", 1.3: "no effect", 0.5: ""}),
        ("F-5 loads", {1.9: "reproduced", 1.3: "direction only", 1.2: "no effect", 0.7: ""}),
        ("F-5 LRU against LFU", {60: "reproduced", 62: "direction only", 51: "no effect", 38: ""}),
        ("F-5 delay", {4: "reproduced", 2: "direction only", 1: "no effect", -2: ""}),
        ("F-7 OLMoE growth", {1.4: "reproduced", 2: "direction only", 1.05: "no effect", 7: ""}),
        ("F-9 placements", {2: "reproduced", 0.01: "direction only", 1e-8: ""}),
        ("F-10 Qwen3 non-experts", {5.3: "reproduced", 3.2: "direction only", 20: ""}),
    ],
)
def test_bands_accept_and_refuse(name: str, figures: dict[float, str]) -> None:
    for figure, verdict in figures.items():
        assert claim(name).judge(figure) == (verdict or "not reproduced"), figure


def test_no_edge_lies_where_there_is_no_effect() -> None:
    for one in PAPER.claims:
        nothing = 1.0 if one.unit == "×" else 0.0
        for band in (one.bands.reproduced, one.bands.direction, one.bands.no_effect):
            assert band is None or nothing not in (band.low, band.high), one.id


def test_times_of_this_computer_have_no_verdict() -> None:
    timed = {one.id for one in PAPER.claims if one.timed_here}
    assert timed == {"F-8 time", "F-11 features", "F-9 search", "F-9 Algorithm 1"}
    assert claim("F-8 time").judge(100) == "no verdict"


def test_placements_are_counted(tmp_path: Path) -> None:
    """Twenty-four of 64: 2.5e17, at 5.4e9 a second."""
    found = times.placements_s(Evidence(Store(tmp_path), None, tmp_path, quick=True))
    assert found.value == pytest.approx(4.64e7, rel=1e-2)
    assert (found.badge, found.low) == ("counted", None)
    assert "have 70" in found.conditions


def test_non_experts_are_counted_with_and_without_embeddings(tmp_path: Path) -> None:
    """OLMoE: 476 M of 6,442 M; attention's 268 M, gates' 2 M and norms alone are 4.2 %."""
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    one = claim("F-10 OLMoE non-experts")
    assert one.measure is not None
    assert one.measure(evidence).value == pytest.approx(7.4, abs=0.01)
    (listed,) = one.counters
    assert listed.measure is not None
    assert listed.measure(evidence).value == pytest.approx(4.2, abs=0.01)


def test_headlines_are_claims() -> None:
    shown = [one.id for one in PAPER.claims if one.headline]
    assert 3 <= len(shown) <= 5
    assert set(HEADLINES) == set(shown)


def test_tags_name_rows_that_exist() -> None:
    ids = {one.id for one in PAPER.claims}
    same = [one for one in PAPER.claims if one.tag is Tag.SAME_ROW]
    assert same
    for one in same:
        assert any(name in one.tag_reason for name in ids - {one.id}), one.id


def test_claims_that_differ_have_explanations() -> None:
    of = {claim.id: claim.explanation for claim in PAPER.claims}
    assert of["F-9 Algorithm 1"].startswith("DAOP's Algorithm 1")
    assert of["F-1 hits over LFU"] != of["F-1 hits over LRU"]
    assert all(
        of[name] for name in of if name[:4] in ("F-1 ", "F-2 ", "F-3 ", "F-4 ", "F-5 ", "F-7 ")
    )


def test_policies_that_run_are_counted() -> None:
    assert set(POLICIES) < set(counts.COUNTED)

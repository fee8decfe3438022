"""FlashMoE's tables and figures, from routing, networks and runs that are given."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.flashmoe import counts, exhibits
from moebench.harness.reproduce.flashmoe.experiments import EVICTIONS, SYSTEMS
from moebench.systems.learn.eviction_network import LEARNING_RATE, WEIGHT_DECAY
from moebench.systems.registry import make
from tests.harness.reproduce.given import with_runs
from tests.harness.reproduce.shipped import check_words
from tests.harness.reproduce.test_flashmoe import run


def test_table_1_states_the_networks_own_widths(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = [np.zeros((16, *widths)) for widths in ((128, 96), (96, 48), (48, 64))]
    network = SimpleNamespace(weights=weights, note={"epochs": "9 to 12"})
    monkeypatch.setattr(counts, "routings", lambda evidence, setting: [setting, "other seed"])
    monkeypatch.setattr(
        counts, "network", lambda one: {"F1": SimpleNamespace(network=network)}[one]
    )
    found = exhibits.table_1(evidence)
    here = {row["hyperparameter"]: (row["paper"], row["here"]) for row in found.rows}
    assert here == {
        "loss": ("MSE", "MSE"), "optimizer": ("AdamW", "AdamW"),
        "learning rate": ("1e-3", f"{LEARNING_RATE:g}"),
        "learning rate decay": ("1e-2", f"{WEIGHT_DECAY:g} (weight decay)"),
        "layers": ("3", "3"), "hidden size": ("128", "96, 48"), "activation": ("SiLU", "SiLU"),
    }  # fmt: skip
    assert [axis.field for axis in found.columns] == ["hyperparameter", "paper", "here"]
    assert found.note == "Learning stopped after 9 to 12 epochs."


def test_figure_2_marks_experts_and_the_policies_that_evict_them(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two layers, 3 slots of 8: at token 3, LRU gives up 0 and Belady 2."""
    middle = [0, 1, 2, 3, 0, 1] + [0, 1] * 7 + [4] * 40
    ids = np.stack([np.full(60, 7), np.array(middle)], axis=1)[:, :, None]

    class Routing:
        experts = 8

        def sequences(self, learnt: bool) -> list[np.ndarray]:
            assert not learnt
            return [ids, ids[:3]]

    monkeypatch.setattr(counts, "routings", lambda evidence, setting: {"F1": [Routing()]}[setting])
    monkeypatch.setattr(counts, "policy", lambda routing, name: make("evict", name))
    found = exhibits.figure_2(evidence)
    rows = {(row["token"], row["expert"]): (row["recent"], row["evicted"]) for row in found.rows}
    assert max(token for token, _ in rows) == 39
    assert {expert for _, expert in rows} == {0, 1, 2, 3, 4}
    # An expert is shown for twelve tokens: 2, routed at 2, until 13.
    assert [rows.get((token, 2), (None,))[0] for token in (1, 2, 3, 13, 14)] == [
        None, 12, 11, 1, None,
    ]  # fmt: skip
    evicted = {place: said for place, (_, said) in rows.items() if said}
    lru = {place for place, said in evicted.items() if "lru" in said}
    belady = {place for place, said in evicted.items() if "belady" in said}
    # At 3, LRU gives up 0 and Belady 2; at 4 and 5, LRU gives up 1 and 2 for 0 and 1.
    assert {(3, 0), (4, 1), (5, 2)} <= lru
    assert (3, 2) in belady
    assert not {place for place in belady if place[0] in (4, 5)}
    assert found.note == "OLMoE, layer 1, 3 slots. 12: now; 0: 12 tokens ago."


def test_evictions_of_one_expert_by_both_are_one_mark(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expert is marked when it is evicted, however long ago it was routed."""
    ids = np.zeros((30, 1, 1), int)
    ids[0, 0, 0] = 1
    routing = SimpleNamespace(experts=3, sequences=lambda learnt: [ids])
    monkeypatch.setattr(counts, "routings", lambda evidence, setting: [routing])
    monkeypatch.setattr(counts, "policy", lambda routing, name: name)
    drawn = exhibits.eviction_map

    def marked(*of: Any) -> Any:
        made = drawn(*of[:4], {})
        return SimpleNamespace(age_TE=made.age_TE, evicted={
            "lru": [(20, 1), (25, 0)], "belady": [(20, 1)],
        })  # fmt: skip

    monkeypatch.setattr(exhibits, "eviction_map", marked)
    rows = exhibits.figure_2(evidence).rows
    assert [row for row in rows if row["evicted"]] == [
        {"token": 20, "expert": 1, "recent": 0, "evicted": "lru and belady"},
        {"token": 25, "expert": 0, "recent": 12, "evicted": "lru"},
    ]
    # Expert 0 is shown at all but the first token, expert 1 at tokens 0 to 11 and 20.
    assert len(rows) == 29 + 12 + 1


def test_figure_5_shows_two_layers_of_the_middle(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run("F1", "flashmoe", 1, "flashmoe")
    later = run("F1", "flashmoe", 2, "flashmoe")
    later["spec"]["seed"] = 1
    asked = with_runs(monkeypatch, run("F1", "flashmoe", 1, "lru"), later, own)
    kept = [
        {"lane": "disk", "kind": "load", "layer": layer, "start_us": 5.0 * layer,
         "end_us": 5.0 * layer + 2}
        for layer in (-1, 0, 1, 2, 3, 4)
    ]  # fmt: skip

    def decoded(evidence: Evidence, runs: Runs) -> list[Any]:
        assert list(runs) == [own]
        return kept

    monkeypatch.setattr(exhibits, "decoded", decoded)
    found = exhibits.figure_5(evidence)
    assert asked == [EVICTIONS]
    assert [(row["layer"], row["start"], row["end"]) for row in found.rows] == [
        (2, 0, 2), (3, 5, 7),
    ]  # fmt: skip
    check_words(found)
    kept.clear()
    with pytest.raises(MissingEvidenceError, match="no timeline was kept of F1"):
        exhibits.figure_5(evidence)


def test_figure_6_is_the_mean_of_the_seeds(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"F1": [0.5, 0.6], "F2": [0.25001]}

    def rates(hits: float) -> Any:
        return {size: dict.fromkeys(counts.COUNTED, hits * size / 24) for size in (16, 24)}

    monkeypatch.setattr(counts, "routings", lambda evidence, setting: known[setting])
    monkeypatch.setattr(counts, "rates", rates)
    found = exhibits.figure_6(evidence)
    hits = {(row["model"], row["slots"], row["policy"]): row["hits"] for row in found.rows}
    assert len(hits) == len(found.rows) == 2 * 2 * len(counts.COUNTED)
    assert hits["OLMoE", 24, "lru"] == 0.55
    assert hits["OLMoE", 16, "belady"] == 0.3667
    assert hits["Qwen3", 24, "flashmoe"] == 0.25
    check_words(found)


def test_figure_7_has_the_times_of_systems_and_speeds_of_policies(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = [run("F1", "flashmoe", 400, load_ms=2500, ttft_ms={"mean": 500}),
               run("F2", "daop", 8, load_ms=1000, ttft_ms={"mean": 250})]  # fmt: skip
    asked = with_runs(monkeypatch, *systems)
    found = exhibits.figure_7a(evidence)
    assert [tuple(row.values()) for row in found.rows] == [
        ("OLMoE", "flashmoe", "loading", 2.5), ("OLMoE", "flashmoe", "prefill", 0.5),
        ("Qwen3", "daop", "loading", 1), ("Qwen3", "daop", "prefill", 0.25),
    ]  # fmt: skip
    speeds = exhibits.figure_7c(evidence)
    assert [tuple(row.values()) for row in speeds.rows] == [
        ("OLMoE", "flashmoe", 2.5), ("Qwen3", "daop", 125),
    ]  # fmt: skip
    assert asked == [SYSTEMS] * 2
    with_runs(monkeypatch, *(run("F1", "flashmoe", ms, name)
                             for name, ms in (("lru", 30), ("lfu", 50), ("lru", 50))))  # fmt: skip
    policies = exhibits.figure_7b(evidence)
    assert [tuple(row.values()) for row in policies.rows] == [
        ("OLMoE", "lru", 25), ("OLMoE", "lfu", 20),
    ]  # fmt: skip


def test_used_experts_are_means_over_texts(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"olmoe-1b-7b": [50.0, 60.0], "qwen3-30b-a3b": [20.123]}
    monkeypatch.setattr(counts, "used", lambda evidence, model, tokens: shares[model])
    found = exhibits.used_experts(evidence)
    assert {(row["model"], row["used"]) for row in found.rows} == {("OLMoE", 55), ("Qwen3", 20.12)}
    assert [row["tokens"] for row in found.rows] == [row["tokens"] for row in found.paper_rows] * 2
    check_words(found)

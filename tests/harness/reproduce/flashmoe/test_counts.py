"""FlashMoE's counts on drawn routing, with policies, sizes and texts that are given."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from moebench.harness.reproduce.flashmoe import claims_of_caches, counts
from moebench.harness.reproduce.flashmoe.claims_of_caches import against_lfu, where_belady_hits
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.traces.file import Header
from moebench.substrate.traces.writer import writing
from moebench.systems.flashmoe import LearnedEviction


@pytest.fixture
def routing(tmp_path: Path) -> counts.Routing:
    """Return routing of one layer of 40 experts, top-1: a cycle of ten experts; one text of two."""
    sequences = [[n % 10 for n in range(30)], [3] * 9]
    header = Header(model="tiny", workload="none", num_moe_layers=1, num_experts=40, top_k=1)
    with writing(tmp_path / "trace", header) as out:
        for number, ids in enumerate(sequences):
            n = len(ids)
            out.append(
                ids=np.array(ids, np.uint8).reshape(n, 1, 1), sequence=np.full(n, number),
                position=np.arange(n), phase=np.ones(n), chosen=np.full(n, -1),
            )  # fmt: skip
    return counts.Routing(tmp_path / "trace", 1, tmp_path / "trace", 1, tmp_path)


def test_policies_by_name(routing: counts.Routing, monkeypatch: pytest.MonkeyPatch) -> None:
    """LFU whose counts outlive an eviction breaks ties by id; plain LFU does neither."""
    asked: list[Any] = []

    def make(what: str, name: str, **options: str) -> str:
        asked.append((what, name, options))
        return name

    with monkeypatch.context() as patch:
        patch.setattr(counts, "make", make)
        assert [counts.policy(routing, name) for name in ("lru", "lfu", "lfu-kept")] == [
            "lru", "lfu", "lfu",
        ]  # fmt: skip
    assert asked == [
        ("evict", "lru", {}), ("evict", "lfu", {}),
        ("evict", "lfu", {"survive": "true", "tie": "id"}),
    ]  # fmt: skip
    kept, plain = (counts.policy(routing, name) for name in ("lfu-kept", "lfu"))
    assert (kept.survive, kept.tie) == ("true", "id")
    assert (plain.survive, plain.tie) != ("true", "id")


def test_the_network_learns_from_the_texts_of_training(
    routing: counts.Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def calibrate(self: LearnedEviction, texts: Any, shape: Any, folder: Path) -> None:
        seen.append((self.cached, [one.ids_TLK.tolist() for one in texts], folder))
        assert [one.prefill for one in texts] == [0]
        assert (shape.num_layers, shape.num_experts, shape.top_k) == (1, 40, 1)

    monkeypatch.setattr(LearnedEviction, "calibrate", calibrate)
    masked = routing._replace(cached=5)
    assert counts.policy(masked, "flashmoe") is counts.network(masked)
    assert seen == [(5, [[[[3]]] * 9], routing.artefacts)]


def test_figures_at_one_cache_size(
    routing: counts.Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cycle of ten experts, thrice: with ten slots 20 of 30 hit, with nine LRU never hits."""
    assert counts.rates_at(routing, 10) == {"lru": 2 / 3, "belady": 2 / 3}
    of_nine = counts.rates_at(routing, 9)
    assert of_nine["lru"] == 0
    assert of_nine["belady"] > 0.5
    lru = counts.regret_of(routing, "lru", 9)
    # The first nine requests fill the slots; each later one evicts what is used next.
    assert (lru.evictions, lru.refetched, lru.idle) == (21, pytest.approx(20 / 21), 9)

    sizes: list[Any] = []
    shares = {16: 0.7, 24: 0.85, 32: 0.88}

    def hit_rates(
        texts: Any, experts: int, slots: Sequence[int], policies: Mapping[str, Eviction]
    ) -> Any:
        assert (len(texts), len(texts[0]), experts) == (1, 30, 40)
        sizes.append([*slots])
        return {size: dict.fromkeys(policies, shares[size]) for size in slots}

    monkeypatch.setattr(counts, "hit_rates", hit_rates)
    assert counts.size_for(routing, 0.86) == 24
    assert counts.size_for(routing, 0.87) == 32
    assert counts.size_for(routing, 0.1) == 16
    assert sizes == [[16, 24, 32]] * 3


def test_victims_of_two_policies(routing: counts.Routing, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 0 0 1 2 1: at 2, LRU gives up 0, which is never used again, and LFU 1, which is."""
    texts = [np.array([0, 0, 0, 1, 2, 1]).reshape(6, 1, 1)]
    monkeypatch.setattr(counts.Routing, "sequences", lambda self, learnt: texts)
    found = counts.lru_against("lfu", routing, 2)
    assert (found.first, found.second, found.equal) == (1, 0, 0)
    assert against_lfu("lfu")(routing, 2) == 100


def test_shares_of_experts_that_prompts_use(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.array([[[0]], [[1]], [[1]], [[2]]])
    monkeypatch.setattr(counts, "_texts", lambda *of: [(ids, 8), (ids[:3], 8), (ids[1:], 4)])
    assert counts.used(evidence, "m", 3) == [25, 25, 50]
    assert counts.used(evidence, "m", 4) == [37.5]
    with pytest.raises(MissingEvidenceError, match="no recorded text of m has 5 tokens"):
        counts.used(evidence, "m", 5)


def test_prompts_are_drawn_once_with_the_statistics_of_the_model(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    synthesize = counts.synthesize

    def noting(synthesis: Any, *of: Any) -> Any:
        drawn.append(of[:-1])
        return synthesize(synthesis, of[0], [5, 5], 2, of[-1])

    monkeypatch.setattr(counts, "synthesize", noting)
    texts = counts._texts(evidence, "olmoe-1b-7b")
    again = counts._texts(evidence, "olmoe-1b-7b")
    assert drawn == [("olmoe-1b-7b", [256] * 8, 2)]
    shape = model_shape("olmoe-1b-7b")
    assert [experts for _, experts in texts] == [shape.num_experts] * 2
    assert {ids.shape[1:] for ids, _ in texts} == {(len(shape.moe_layers), shape.top_k)}
    assert all((a == b).all() for (a, _), (b, _) in zip(texts, again, strict=True))


def test_recorded_prompts_end_where_they_repeat_themselves(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.arange(12).reshape(6, 1, 2)
    trace = SimpleNamespace(ids_TLK=ids, sequences=[np.arange(4), np.arange(4, 6)])
    monkeypatch.setattr(
        Evidence, "recordings", lambda self, model: [SimpleNamespace(trace=trace, ends=[3, 2])]
    )
    found = counts._texts(evidence.changed({"routing": "real"}), "olmoe-1b-7b")
    assert [(rows.tolist(), experts) for rows, experts in found] == [
        (ids[:3].tolist(), 64), (ids[4:].tolist(), 64),
    ]  # fmt: skip


def test_a_figure_has_a_sample_for_each_seed(
    evidence: Evidence, routing: counts.Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "routings", lambda evidence, setting: [routing, routing] * 2)
    values = iter([1.0, 2.0, 4.0, 5.0])
    found = counts.measured(evidence, "F1", lambda one: next(values), "said")
    assert (found.samples, found.badge) == ((1, 2, 4, 5), "counted")
    assert found.conditions == "said; 1 sequences, the network learnt from 9 tokens"


def test_figures_where_beladys_hit_rate_is_nearest_86(
    evidence: Evidence, routing: counts.Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is each routing's own; that of the first is said."""
    other = routing._replace(cached=1)
    monkeypatch.setattr(counts, "routings", lambda evidence, setting: [routing, other])

    def size_for(one: counts.Routing, belady: float) -> int:
        assert belady == 0.86
        return 24 + 8 * one.cached

    monkeypatch.setattr(claims_of_caches.counts, "size_for", size_for)
    found = where_belady_hits("F2", lambda one, slots: slots + 100 * one.cached)(evidence)
    assert found.samples == (24, 132)
    assert found.conditions.startswith(
        "Qwen3, 24 slots a layer, where Belady's hit rate is nearest 86 %; 1 sequences"
    )


def test_no_routing_of_a_setting_that_is_not_replayed(evidence: Evidence) -> None:
    with pytest.raises(MissingEvidenceError, match="nothing of F9 is replayed here"):
        counts.routings(evidence.changed({"set": {"evict": "lru"}}), "F9")

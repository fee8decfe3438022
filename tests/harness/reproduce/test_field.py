"""Measures, laws and verdicts of the field's claims, on runs and recordings made by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.field import (
    PAPER,
    evictions,
    fronts,
    hits,
    pages,
    placement,
    prefetch_law,
    profiles,
    recorded,
    splits,
)
from moebench.harness.reproduce.field import experiments as e
from moebench.results.claims import Verdict
from moebench.results.store import Store

# ----------------------------------------------------------------------------- verdicts

#: A figure of each claim that reproduces it, and one that does not.
JUDGED: dict[str, tuple[float, float]] = {
    "R-1 pairs": (30, 1), "R-1 greatest": (2.5, 1.0), "R-2 saturated": (5, -3),
    "R-2 law": (0.95, 0.5), "R-2 error": (1, 9), "R-3 helps": (1.5, 1.0),
    "R-3 carries over": (90, 20), "R-3 against LRU": (-15, 4), "R-4 swaps few": (-10, 10),
    "R-4 swaps many": (-10, 10), "R-4 updates few": (-10, 10), "R-4 updates many": (-10, 10),
    "R-4 swaps few whole": (-10, 10), "R-4 updates few whole": (-10, 10),
    "R-5 LFRU": (12 / 13, 0.1), "R-5 Least-Stale tinyserve": (85, 1.5),
    "R-5 Least-Stale layer": (60, 0.5), "R-5 Least-Stale interval": (100, 1),
    "R-6 learned": (10, -20), "R-6 rule": (20, -10), "R-6 LRU": (10, -20),
    "R-7 front": (0.9, 1.1), "R-7 misses": (40, 1), "R-8 ratio": (2.1, 0.3),
}  # fmt: skip


def test_every_claim_has_a_case_to_accept_and_one_to_refuse() -> None:
    assert [claim.id for claim in PAPER.claims] == list(JUDGED)
    for claim in PAPER.claims:
        accepted, refused = JUDGED[claim.id]
        assert claim.judge(accepted) is Verdict.REPRODUCED, claim.id
        assert claim.judge(refused) in (Verdict.NOT_REPRODUCED, Verdict.NO_EFFECT), claim.id


def test_each_of_the_eight_has_sources_and_one_condition() -> None:
    for number in range(1, 9):
        of = [claim for claim in PAPER.claims if claim.id.startswith(f"R-{number} ")]
        assert all(claim.sources for claim in of)
        assert sum(claim.turns is not None for claim in of) == 1
        assert sum(bool(claim.headline) for claim in of) == 1


def test_rows_that_sources_name_are_in_the_measured_rows() -> None:
    table = Path(__file__).parents[3] / "results" / "measured" / "develop.csv"
    known = {line.split(",")[0] for line in table.read_text("utf-8").splitlines()}
    said = " ".join(text for claim in PAPER.claims for text in claim.sources)
    named = [word.strip(",:;") for word in said.split() if word.startswith(("h200-", "p27861-"))]
    assert named
    assert set(named) <= known


# ----------------------------------------------------------------------------- runs by hand


def run(tpot: float, **of: Any) -> dict[str, Any]:
    """Return a run of 10 decoded tokens; ``of`` are fields of the spec and of the metrics."""
    spec = {
        "system": "moe-ondemand", "variant": "published", "model": "olmoe-1b-7b", "machine": "a",
        "cache_ratio": 0.5, "seed": 0, "overrides": {}, "alpha": None, "slots": None,
        "free_host_gb": None, "software": "lean",
    }  # fmt: skip
    metrics: dict[str, Any] = {
        "tpot_ms": {"mean": tpot}, "ttft_ms": {"mean": of.pop("ttft", 0.0)},
        "cache_ratio": of.pop("hits", 0.5), "decoded_tokens": 10,
        "prefetch": {"issued": of.pop("issued", 0), "used": of.pop("used", 0)},
        "decode": {
            "stall_ms": {"control": 3.0, **of.pop("stalls", {})},
            "lanes": {"h2d": of.pop("h2d", 0.0)},
        },
        "experts": {
            "decode": {
                "active": 100, "hits": of.pop("found", 50), "loads": of.pop("loads", 0),
            }
        },
    }  # fmt: skip
    kl = of.pop("kl", 0.0)
    document = {"run_id": str(id(metrics)), "badge": "estimate", "accuracy": {"kl": kl}}
    return document | {"spec": spec | of, "metrics": metrics}


class OfRuns(Evidence):
    """Evidence whose experiments have the same given runs."""

    given: tuple[dict[str, Any], ...] = ()

    def runs(self, *experiments: Experiment) -> Runs:
        return Runs(self.given)


def evidence(tmp_path: Path, *runs: dict[str, Any], data_dir: Path | None = None) -> OfRuns:
    found = OfRuns(Store(tmp_path), data_dir, tmp_path, True)
    object.__setattr__(found, "given", runs)
    return found


# ----------------------------------------------------------------------------- 1


def test_a_system_with_more_hits_may_be_slower(tmp_path: Path) -> None:
    """70 % hits with misses of 10 ms against 40 % of 1 ms: 3 ms against 0.6 ms of waiting."""
    many = run(20, hits=0.7, found=70, stalls={"load": 300.0})
    few = run(10, hits=0.4, found=40, stalls={"host": 60.0}, overrides={"assign": "host"})
    slow = run(30, hits=0.2, found=20, stalls={"load": 800.0}, overrides={"evict": "fifo"})
    of = evidence(tmp_path, many, few, slow)
    (pair, *_) = [one for one in hits.contrasts(Runs(of.given)) if one.reversed]
    assert (pair.many.cost, pair.few.cost) == (10, 1)
    assert pair.ratio == 2
    assert pair.told
    # Of three pairs, one is reversed.
    assert hits.reversals(of).value == pytest.approx(100 / 3, rel=1e-5)
    assert hits.greatest(of).value == 2
    assert "the edge is 0.50, and its misses cost 0.10" in hits.turns(of)


def test_systems_that_hardly_differ_are_no_pair(tmp_path: Path) -> None:
    equal = [run(20, hits=0.7), run(10, hits=0.71, overrides={"evict": "lfu"})]
    with pytest.raises(MissingEvidenceError, match="no two systems"):
        hits.contrasts(Runs(equal))
    elsewhere = [run(20, hits=0.7), run(10, hits=0.3, machine="b")]
    with pytest.raises(MissingEvidenceError, match="no two systems"):
        hits.contrasts(Runs(elsewhere))


# ----------------------------------------------------------------------------- 2


@given(st.floats(0.01, 10), st.floats(0.01, 5), st.floats(0.05, 2))
def test_the_wait_is_the_mean_of_what_is_left_when_a_copy_is_needed(
    rest: float, misses: float, layer: float
) -> None:
    """The mean of max(0, rest - t) over the exponential time t to the next needed copy."""
    rate = (1 - math.exp(-misses)) / layer
    t = np.linspace(0, rest, 20_001)
    left = (rest - t) * rate * np.exp(-rate * t)
    wanted = float(np.sum((left[1:] + left[:-1]) / 2) * (t[1] - t[0]))
    assert prefetch_law.waiting(rest, misses, layer) == pytest.approx(wanted, rel=1e-3, abs=1e-6)


def test_no_copy_is_delayed_by_one_that_is_over_or_where_none_is_needed() -> None:
    assert prefetch_law.waiting(-1, 2, 1) == 0
    assert prefetch_law.waiting(1, 0, 1) == 0
    assert prefetch_law.waiting(1, 50, 1e-6) == pytest.approx(1, rel=1e-4)


def pair(**of: float) -> prefetch_law.Pair:
    given = {
        "link": 3.0, "hit_rate": 0.8, "before": 100.0, "after": 110.0, "busy": 0.95,
        "misses": 1.5, "more": 2.0, "used": 8.0, "copy": 5.0, "exposed": 4.0, "layer": 0.5,
        "waits": 0.9, "predict": 1.0,
    }  # fmt: skip
    return prefetch_law.Pair(model="m", **(given | of))


def test_the_law_by_hand() -> None:
    """O = 0.25 ms.  P (1 - w) = 0.1; W of 4.75 ms at rate (1 - e^-1.5) / 0.5 = 1.5537 a ms.

    W = 4.75 - (1 - e^-7.380) / 1.5537 = 4.1068; x W = 8.2136; u min(E, O) = 2.
    ΔT = 0.1 + 8.2136 - 2 = 6.314 ms of 100 ms.
    """
    assert pair().law(0.5) == pytest.approx(6.314, abs=2e-3)
    # A gain: no wrong copies, a fast link on which all of a copy is hidden.
    assert pair(more=0.0, copy=0.2, exposed=0.1).law(0.5) == pytest.approx(0.1 - 0.8)


def test_the_fit_finds_the_constant_that_made_the_cells() -> None:
    made = [
        one._replace(after=one.before * (1 + one.law(0.4) / 100))
        for link in (3.0, 6.0, 12.0, 26.0)
        for more in (0.0, 0.5, 2.0)
        if (one := pair(link=link, copy=15 / link, exposed=12 / link, more=more))
    ]
    law = prefetch_law.fit(made)
    assert law.overlap == pytest.approx(0.4)
    assert law.error == pytest.approx(0, abs=1e-9)
    assert law.held_out == pytest.approx(0, abs=1e-9)
    assert law.signs == 1
    turned = [one._replace(after=2 * one.before - one.after) for one in made]
    assert prefetch_law.fit(turned).signs < 0.6


def test_the_hit_rate_from_which_prefetching_loses() -> None:
    assert prefetch_law.threshold([(0.9, 3.0), (0.5, -1.0)]) == pytest.approx(0.6)
    assert prefetch_law.threshold([(0.5, -1.0), (0.9, -0.5)]) is None
    assert prefetch_law.threshold([(0.5, 1.0), (0.9, 2.0)]) == 0.5
    assert prefetch_law.threshold([]) is None


def test_pairs_of_cells_with_and_without_prefetching(tmp_path: Path) -> None:
    """16 layers, 10 tokens: 320 loads are 2 misses a layer; 40 of 50 fetches are used."""
    place = {"machine": "rtx-3090+ryzen-5950x+link.pinned_h2d=3"}
    ahead = {"overrides": {"prefetch": "next-gate"}}
    runs = [
        run(100, loads=320, h2d=900.0, stalls={"load": 840.0}, hits=0.75, **place),
        run(110, loads=290, issued=50, used=40, **place, **ahead),
        run(8, cache_ratio=1.0, **place), run(9, cache_ratio=1.0, **place, **ahead),
    ]  # fmt: skip
    (one,) = prefetch_law.pairs(Runs(runs))
    assert (one.link, one.busy, one.misses, one.more, one.used) == (3, 0.9, 2, 2, 4)
    assert (one.copy, one.exposed, one.waits) == (2.8125, 2.625, 0.84)
    assert one.layer == pytest.approx(1.0)
    assert (one.predict, one.change) == (1, pytest.approx(10))
    assert prefetch_law.saturated(evidence(tmp_path, *runs)).value == pytest.approx(10)
    assert "at 3 GB/s" in prefetch_law.turns(evidence(tmp_path, *runs))
    idle = [runs[0] | {"metrics": runs[0]["metrics"] | {"tpot_ms": {"mean": 500}}}, *runs[1:]]
    with pytest.raises(MissingEvidenceError, match="saturated"):
        prefetch_law.saturated(evidence(tmp_path, *idle))


# ----------------------------------------------------------------------------- 3 and 5


def record(folder: Path, name: str, ids_TLK: np.ndarray, experts: int, **meta: Any) -> None:
    """Write a recording of one sequence."""
    at = folder / "traces" / name
    at.mkdir(parents=True)
    tokens = len(ids_TLK)
    np.save(at / "ids.npy", ids_TLK.astype(np.uint8))
    np.save(at / "seq.npy", np.zeros(tokens, np.int32))
    np.save(at / "phase.npy", np.ones(tokens, np.uint8))
    given = {"num_experts": experts, "ids_order": "id", "workload": name.split("__")[1]}
    (at / "meta.json").write_text(json.dumps(given | meta), "utf-8")


def cyclic(offset: int, tokens: int = 200) -> np.ndarray:
    """Return tokens that use two of four neighbouring experts, in two layers."""
    first = offset + np.arange(tokens) % 3
    return np.stack([np.stack([first, first + 1], 1)] * 2, 1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of a model whose texts use the same experts, and of one of disjoint ones."""
    folder = tmp_path / "data"
    record(folder, "alike__a", cyclic(0), 16)
    record(folder, "alike__b", cyclic(0, 150), 16)
    record(folder, "apart__a", cyclic(0), 16)
    record(folder, "apart__b", cyclic(8), 16)
    record(folder, "apart__b-run2", cyclic(8), 16)
    record(folder, "short__a", cyclic(0, 20), 16)
    return folder


def test_a_profile_carries_over_to_texts_that_use_the_same_experts(
    data: Path, tmp_path: Path
) -> None:
    of = evidence(tmp_path, data_dir=data)
    rows = profiles.of_streams(of, 0.25)
    assert profiles.by_model(rows, profiles.keeps) == pytest.approx(
        {"alike": 100, "apart": -100 / 3}
    )
    assert profiles.by_model(rows, profiles.over_chance) == {"alike": 4, "apart": 0}
    assert profiles.measured(profiles.over_chance)(of).value == 2
    # LRU misses its first four experts of 200, or 100 tokens of two layers; pinned ones never miss.
    lru = profiles.by_model(rows, profiles.against_lru)
    assert lru["alike"] > 0 > lru["apart"]
    said = profiles.turns(of)
    assert "alike a 100 %" in said.split("less on")[0]
    assert "apart a" not in said.split("less on")[0]


def test_of_a_profile_that_gains_nothing_no_share_is_kept() -> None:
    row = profiles.Pinned("m", "a", 0.25, 0.25, 0.26, 0.26, None)
    assert profiles.keeps([row]) is None
    assert profiles.keeps([row._replace(own=0.75, other=0.5)]) == pytest.approx(50)
    assert profiles.against_lru([row]) is None


def test_uses_that_a_profile_covers_by_hand() -> None:
    profile, used = np.array([[5, 1, 3], [0, 9, 9]]), np.array([[1, 2, 3], [4, 5, 6]])
    # Experts 0 and 2, then 1 and 2: 1 + 3 + 5 + 6 of 21.
    assert profiles.covered(profile, used, 2) == pytest.approx(15 / 21)
    assert profiles.covered(profile, used, 3) == 1


def test_texts_of_one_kind_are_no_other_texts() -> None:
    assert profiles.text("theme/math_reasoning_on") == profiles.text("theme/math_reasoning_off")
    assert profiles.text("tulu (olmoe-sft)") == "tulu"
    assert profiles.text("theme/math") != profiles.text("theme/coding")


def test_totals_of_other_texts(tmp_path: Path) -> None:
    at = tmp_path / "traces" / "m__popularity"
    at.mkdir(parents=True)
    entries = {
        "a": {"counts": [[8, 1, 1, 0]]}, "b": {"counts": [[0, 1, 1, 8]]},
        "other": {"counts": [[1, 1]]},
    }  # fmt: skip
    (at / "popularity.json").write_text(json.dumps({"entries": entries}), "utf-8")
    rows = profiles.of_totals(evidence(tmp_path, data_dir=tmp_path), 0.25)
    assert [(row.workload, row.own, row.other) for row in rows] == [("a", 0.8, 0), ("b", 0.8, 0)]
    assert profiles.of_totals(evidence(tmp_path), 0.25) == []


def test_streams_leave_out_short_ones_and_second_captures(data: Path, tmp_path: Path) -> None:
    found = recorded.streams(evidence(tmp_path, data_dir=data))
    assert [one.name for one in found] == ["alike a", "alike b", "apart a", "apart b"]
    assert found[0].tokens == 200
    with pytest.raises(MissingEvidenceError, match="--data-dir"):
        recorded.streams(evidence(tmp_path))
    with pytest.raises(MissingEvidenceError, match="no stream"):
        recorded.streams(evidence(tmp_path, data_dir=tmp_path))


def test_streams_end_where_they_repeat_themselves(tmp_path: Path) -> None:
    loop = {"loops": [{"sequence": 0, "from_token": 120, "period": 3, "overlap": 1.0}]}
    record(tmp_path, "m__a", cyclic(0), 16, **loop)
    (one,) = recorded.streams(evidence(tmp_path, data_dir=tmp_path))
    assert one.tokens == 120
    assert one.cut(50).tokens == 50
    assert [half.tokens for half in one.halves()] == [60, 60]


def test_streams_that_a_policy_wins() -> None:
    found = [
        evictions.Rates("a", 0.25, {"lru": 0.5, "lfru": 0.6}),
        evictions.Rates("a", 0.5, {"lru": 0.8, "lfru": 0.8}),
        evictions.Rates("b", 0.25, {"lru": 0.5, "lfru": 0.4}),
    ]
    assert evictions.wins(found, "lfru") == {"a": 1, "b": 0}
    assert evictions.wins(found, "lru") == {"a": 0.5, "b": 1}
    assert [one.best for one in found] == ["lfru", "lru", "lru"]


def test_collisions_are_misses_of_what_was_evicted_less_than_a_token_ago() -> None:
    """One slot, two layers, one expert each: every request evicts what is needed next."""
    ids = np.zeros((10, 2, 1), np.int64)
    tight = recorded.Stream("m", "a", 10, (ids,))
    # 5 % of 20 experts is one slot: 20 requests, of which the first of each layer is no collision.
    assert evictions.collisions(tight, "lru") == 18
    roomy = recorded.Stream("m", "a", 40, (ids,))
    assert evictions.collisions(roomy, "lru") == 0


# ----------------------------------------------------------------------------- 4


def placed(share: float, fixed: float, again: float, ttft: float = 0.0) -> list[dict[str, Any]]:
    common = {"system": "ktransformers", "cache_ratio": share}
    return [
        run(fixed, **common),
        run(again, ttft=ttft, overrides=dict(e.SWAPPED["set"]), **common),
        run(2 * fixed, overrides=dict(e.UPDATED["set"]), **common),
    ]


def test_where_placing_again_wins(tmp_path: Path) -> None:
    runs = [*placed(0.125, 10, 12), *placed(0.25, 10, 8), *placed(0.5, 10, 5)]
    by_share = placement.changes(Runs(runs), "swaps")
    assert by_share == pytest.approx({0.125: 20, 0.25: -20, 0.5: -50})
    assert placement.crossing(by_share) == pytest.approx(0.1875)
    assert placement.crossing({0.1: -3, 0.9: -1}) is None
    of = evidence(tmp_path, *runs)
    assert placement.over("swaps", 0, 0.25)(of).value == pytest.approx(0)
    assert placement.over("swaps", 0.5, 1)(of).value == pytest.approx(-50)
    with pytest.raises(MissingEvidenceError, match="no cell has"):
        placement.over("swaps", 0.9, 1)(of)
    said = placement.turns(of)
    assert "swaps, TPOT: placing again wins above 0.19" in said
    assert "updates, TPOT: frequency wins at every share" in said


def test_claims_of_placement_are_of_few_or_many_experts_and_of_one_way(tmp_path: Path) -> None:
    """Swaps take 255 ms in a prompt: of 256 tokens of 10 ms they have 1.3 and 0.9 of the time."""
    runs = [*placed(0.125, 10, 12, 255), *placed(0.25, 10, 8, 255), *placed(0.5, 10, 5, 255)]
    of = evidence(tmp_path, *runs)
    known = {claim.id: claim for claim in PAPER.claims if claim.id.startswith("R-4 ")}
    figures = {
        "swaps few": 0, "swaps many": -50, "swaps few whole": 10, "updates few": 100,
        "updates many": 100, "updates few whole": 100,
    }  # fmt: skip
    assert known.keys() == {f"R-4 {name}" for name in figures}
    for name, figure in figures.items():
        claim = known[f"R-4 {name}"]
        assert claim.measure is not None
        found = claim.measure(of)
        assert found.value == pytest.approx(figure, abs=1e-6), name
        what = "a prompt and 256 tokens" if name.endswith("whole") else "TPOT"
        shares = "0.5" if "many" in name else "0.125, 0.25"
        assert found.conditions == f"{what}; {shares} of the experts"
        assert (claim.turns is not None) == (name == "swaps few")


def test_claims_measure_what_their_modules_count() -> None:
    measures = {
        "R-1 pairs": hits.reversals, "R-1 greatest": hits.greatest,
        "R-2 saturated": prefetch_law.saturated, "R-7 front": fronts.measured,
        "R-7 misses": fronts.halved, "R-8 ratio": splits.measured,
    }  # fmt: skip
    turning = {
        "R-1 pairs": hits.turns, "R-2 saturated": prefetch_law.turns, "R-3 helps": profiles.turns,
        "R-4 swaps few": placement.turns, "R-5 LFRU": evictions.turns, "R-6 learned": pages.turns,
        "R-7 front": fronts.turns, "R-8 ratio": splits.turns,
    }  # fmt: skip
    known = {claim.id: claim for claim in PAPER.claims}
    assert {name: known[name].measure for name in measures} == measures
    assert {name: one.turns for name, one in known.items() if one.turns} == turning


def test_the_time_of_a_prompt_counts_in_the_whole() -> None:
    """10 + 255 · 9 ms against 255 · 10: a prompt of 255 ms makes them equal."""
    runs = Runs(placed(0.25, 10, 9, ttft=255))
    assert placement.changes(runs, "swaps", whole=True)[0.25] == pytest.approx(0)


def test_a_placement_without_its_run_is_no_evidence() -> None:
    with pytest.raises(MissingEvidenceError, match="lacks its run"):
        placement.changes(Runs(placed(0.25, 10, 9)[:1]), "swaps")


# ----------------------------------------------------------------------------- 6


def paged(learned: float, lru: float, cache: float, share: float = 0.375) -> list[dict[str, Any]]:
    on_device = {"system": "flashmoe", "cache_ratio": share}
    return [
        run(learned, overrides={"evict": "flashmoe"}, **on_device),
        run(lru, overrides={"evict": "lru"}, **on_device),
        run(cache, overrides={"evict": "lru", "scope": "global"}, slots=8, cache_ratio=0.008,
            free_host_gb=round(1 + share * e.OLMOE_GB, 2)),
    ]  # fmt: skip


def test_gains_over_the_page_cache(tmp_path: Path) -> None:
    of = evidence(tmp_path, *paged(100, 110, 150), *paged(50, 50, 60, 0.5))
    gain = pages.faster(pages.LEARNED, pages.PAGED)(of).value
    assert gain == pytest.approx((50 + 20) / 2, rel=1e-5)
    assert pages.faster(pages.LEARNED, pages.LRU)(of).value == pytest.approx(5)
    assert "0.375 of the experts: learned +50 %, LRU +36 %" in pages.turns(of)
    claimed = {one.id: one.measure(of).value for one in PAPER.claims if one.id.startswith("R-6 ")}
    lru_over_pages = (150 / 110 - 1 + 60 / 50 - 1) / 2 * 100
    assert claimed == pytest.approx(
        {"R-6 learned": 35, "R-6 rule": 5, "R-6 LRU": lru_over_pages}, rel=1e-5
    )
    with pytest.raises(MissingEvidenceError, match="lacks its run"):
        pages.by_share(Runs(paged(100, 110, 150)[:2]))


# ----------------------------------------------------------------------------- 7


def routed(route: str, *cells: tuple[float, float, float]) -> list[dict[str, Any]]:
    """Return runs of a routing: value, KL and TPOT of each."""
    return [
        run(tpot, alpha=value, kl=kl, hits=0.5 + value / 4,
            overrides={"route": route, "alpha": str(value)})
        for value, kl, tpot in cells
    ]  # fmt: skip


def test_two_routings_at_the_same_kl(tmp_path: Path) -> None:
    """At KL 1e-2, α takes 80 ms; λ takes 60, halfway in log KL from 70 to 50."""
    alpha = routed("expert-cache", (0.0, 0.0, 100), (0.3, 1e-2, 80), (0.6, 1e-1, 70))
    prior = routed("cache-prior", (0.0, 0.0, 100), (0.5, 1e-3, 70), (1.0, 1e-1, 50))
    curves = [
        fronts.points(Runs([*alpha, *prior]), name) for name in ("expert-cache", "cache-prior")
    ]
    assert fronts.tpot_at(curves[0], 1e-2) == pytest.approx(80)
    assert fronts.tpot_at(curves[1], 1e-2) == pytest.approx(60)
    at = fronts.shared(*curves)
    assert (at[0], at[-1]) == (pytest.approx(1e-2), pytest.approx(1e-1))
    of = evidence(tmp_path, *alpha, *prior)
    assert 0.7 < fronts.measured(of).value < 0.76
    assert fronts.halved(of).value == pytest.approx(50)
    assert "λ is faster at every KL" in fronts.turns(of)


def test_cells_that_another_beats_are_on_no_front() -> None:
    curve = [
        fronts.Point(0, 0.0, 100, 0.5), fronts.Point(0.2, 1e-2, 90, 0.6),
        fronts.Point(0.4, 2e-2, 95, 0.6), fronts.Point(0.6, 3e-2, 80, 0.7),
    ]  # fmt: skip
    assert [point.value for point in fronts.pareto(curve)] == [0, 0.2, 0.6]


def test_fronts_without_a_common_kl_are_not_compared() -> None:
    runs = Runs([
        *routed("expert-cache", (0.0, 0.0, 100), (0.3, 1e-4, 80)),
        *routed("cache-prior", (0.0, 0.0, 100), (0.5, 1e-2, 70)),
    ])  # fmt: skip
    with pytest.raises(MissingEvidenceError, match="no range"):
        fronts.ratio(runs)
    with pytest.raises(MissingEvidenceError, match="fewer than two"):
        fronts.points(runs, "exact")
    lossless = Runs(routed("expert-cache", (0.0, 0.0, 100), (0.3, 0.0, 80)))
    curve = fronts.points(lossless, "expert-cache")
    with pytest.raises(MissingEvidenceError, match="changes the model"):
        fronts.shared(curve, curve)


# ----------------------------------------------------------------------------- 8


def split(link: float, hybrid: float, offload: float) -> list[dict[str, Any]]:
    machine = {"machine": f"rtx-3090+ryzen-5950x+link.pinned_h2d={link:g}"}
    return [
        run(time, system="freetoken", overrides=dict(mode["set"]), **machine)
        for time, mode in ((hybrid, e.HYBRID), (offload, e.OFFLOAD))
    ]


def test_the_ratio_from_which_on_hybrid_is_faster(tmp_path: Path) -> None:
    """The host reads 40.96 GB/s: ratios 1 and 2; the TPOT ratio falls from 1.2 to 0.8."""
    runs = [*split(40.96, 12, 10), *split(20.48, 8, 10)]
    assert splits.by_ratio(Runs(runs)) == pytest.approx({1: 1.2, 2: 0.8})
    assert splits.crossing({1: 1.2, 2: 0.8}) == pytest.approx(1.5)
    of = evidence(tmp_path, *runs)
    assert splits.measured(of).value == pytest.approx(1.5)
    assert "from a ratio of host to link of 1.50 on" in splits.turns(of)


def test_without_a_crossing_the_ratio_is_an_end_and_the_words_say_so(tmp_path: Path) -> None:
    always = [*split(40.96, 9, 10), *split(20.48, 8, 10)]
    assert splits.measured(evidence(tmp_path, *always)).value == pytest.approx(1)
    assert "Hybrid is faster at every ratio" in splits.turns(evidence(tmp_path, *always))
    never = [*split(40.96, 11, 10), *split(20.48, 12, 10)]
    assert splits.measured(evidence(tmp_path, *never)).value == pytest.approx(2)
    assert "Offload is faster at every ratio" in splits.turns(evidence(tmp_path, *never))
    with pytest.raises(MissingEvidenceError, match="lacks its run"):
        splits.by_ratio(Runs(split(20.48, 8, 10)[:1]))


def test_a_stream_is_cut_and_halved_by_its_tokens() -> None:
    """Sequences of 3, 4 and 2 tokens."""
    rows = [np.full((n, 1, 1), n) for n in (3, 4, 2)]
    one = recorded.Stream("m", "w", 8, tuple(rows))
    assert (one.name, one.tokens) == ("m w", 9)
    lengths = {most: [len(part) for part in one.cut(most).sequences] for most in (0, 2, 3, 5, 99)}
    assert lengths == {0: [], 2: [2], 3: [3], 5: [3, 2], 99: [3, 4, 2]}
    kept, held = one.halves()
    assert [[len(part) for part in half.sequences] for half in (kept, held)] == [[3, 2], [4]]
    alone = recorded.Stream("m", "w", 8, (np.arange(5),))
    assert [half.sequences[0].tolist() for half in alone.halves()] == [[0, 1], [2, 3, 4]]

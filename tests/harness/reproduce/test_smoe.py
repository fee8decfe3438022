"""SMoE's claims: measuring functions on hand-made documents, and cells that really run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.read import TPOT, difference
from moebench.harness.reproduce.smoe import (
    PAPER,
    batches,
    components,
    exhibits,
    experiments,
    importance,
    measures,
    tables,
    thresholds,
)
from moebench.harness.reproduce.smoe.batches import Substitutes, substitutes
from moebench.harness.reproduce.smoe.components import host_over_load
from moebench.harness.reproduce.smoe.experiments import STEPS
from moebench.harness.reproduce.smoe.host_bandwidth import implied, said
from moebench.harness.reproduce.smoe.importance import off_device, rank_correlation, time_shares
from moebench.harness.reproduce.smoe.instrumented import Importance, Watched, watch
from moebench.harness.reproduce.smoe.measures import COMPLETE
from moebench.harness.sweep.execute import run_all
from moebench.results.accuracy_table import AccuracyRow
from moebench.results.claims import Exhibit, Tag
from moebench.results.store import Store
from moebench.substrate.engine.decisions import Routed
from moebench.substrate.machines.protocol import Lane
from moebench.systems.smoe import ExpertCacheRouter
from tests.harness.reproduce.given import with_runs
from tests.harness.reproduce.shipped import check_words
from tests.systems.views import view

EXPERIMENTS = (
    experiments.MAIN, experiments.ABLATION, experiments.PREDICTION, experiments.THRESHOLDS,
    experiments.BATCHES, experiments.REFINEMENT,
)  # fmt: skip


def document(
    system: str = "smoe", setting: str = "S1", tpot: float = 1.0, *, options: dict[str, str] = {},  # noqa: B006
    alpha: float | None = 0.35, batch: int = 1, workload: str = "passages", ratio: float = 0.5,
    link: float = 8.0, host: float = 2.0, prefetch: tuple[int, int, int] = (10, 8, 9),
) -> dict[str, Any]:  # fmt: skip
    """Return a run's document with the figures that SMoE's claims read, of four decoded tokens."""
    issued, top, active = prefetch
    return {
        "run_id": f"{system} {setting} {options} {batch} {workload} {alpha}",
        "badge": "estimate",
        "spec": {
            "system": system, "variant": "published", "setting": setting, "seed": 0,
            "overrides": options, "alpha": alpha, "batch": batch, "workload": workload,
            "prompts": 2, "new_tokens": 3, "routing": "model", "software": "hf-eager",
            "model": "a-model",
        },
        "metrics": {
            "tpot_ms": {"mean": tpot}, "ttft_ms": {"mean": 10 * tpot}, "decoded_tokens": 4,
            "cache_ratio": ratio, "cache_ratio_begun": ratio + 0.1,
            "prefetch": {"issued": issued, "top_score": top, "active": active},
            "decode": {"lanes": {"h2d": link, "host": host}, "stall_ms": {"load": 2 * tpot}},
        },
    }  # fmt: skip


def ablation(setting: str, *times: float) -> list[dict[str, Any]]:
    """Return a document for each step of the ablation, with the given TPOTs."""
    return [
        document(setting=setting, tpot=tpot, options=options)
        for options, tpot in zip(STEPS.values(), times, strict=True)
    ]


# ----------------------------------------------------------------------------- the registry


def test_every_claim_of_the_paper_is_there() -> None:
    rows = {claim.id.split()[0] for claim in PAPER.claims}
    assert rows == {f"S-{n}" for n in range(1, 17)}
    assert len({claim.id for claim in PAPER.claims}) == len(PAPER.claims)


@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda claim: claim.id)
def test_a_claim_has_bands_with_a_reason_and_its_own_figure_reproduces_it(claim: Any) -> None:
    assert claim.measure is not None
    assert claim.bands.why
    assert claim.statement
    assert claim.place
    assert claim.bands.reproduced is not None
    if claim.paper is not None:
        assert claim.bands.reproduced.holds(claim.paper)
        assert claim.bands.direction.holds(claim.paper)


def edges(band: Any) -> list[float]:
    return [] if band is None else [edge for edge in (band.low, band.high) if edge is not None]


@pytest.mark.parametrize(
    "claim", [c for c in PAPER.claims if c.bands.no_effect], ids=lambda claim: claim.id
)
def test_bands_of_effects_have_room_around_no_effect(claim: Any) -> None:
    nothing = claim.bands.no_effect
    middle = (nothing.low + nothing.high) / 2
    assert all(not nothing.low < edge < nothing.high for edge in edges(claim.bands.reproduced))
    assert middle not in (*edges(claim.bands.reproduced), *edges(claim.bands.direction))
    assert not claim.bands.reproduced.holds(middle)


def test_a_tag_of_the_same_row_names_that_row() -> None:
    ids = [claim.id for claim in PAPER.claims]
    for claim in PAPER.claims:
        if claim.tag is Tag.SAME_ROW:
            assert any(other in claim.tag_reason for other in ids if other != claim.id)


def test_counter_experiments_of_one_name_are_the_same() -> None:
    """They are carried out by name."""
    by_name: dict[str, Any] = {}
    for claim in PAPER.claims:
        for counter in claim.counters:
            known = by_name.setdefault(counter.name, counter)
            assert (known.changes, known.reading) == (counter.changes, counter.reading)


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_every_experiment_expands(experiment: Experiment, quick: bool, tmp_path: Path) -> None:
    specs = Evidence(Store(tmp_path), None, tmp_path, quick).specs(experiment)
    assert {spec.setting for spec in specs} == {"S1", "S2", "S3"}
    assert not any(spec.setting == "S2" and spec.system == "llamacpp" for spec in specs)


@pytest.mark.slow
def test_every_counter_experiment_expands_where_it_is_asked(evidence: Evidence) -> None:
    pairs = {
        (need.name, counter.name): (need, counter)
        for claim in PAPER.claims
        for need in claim.needs
        for counter in claim.counters
    }
    for need, counter in pairs.values():
        changed = evidence.changed(counter.changes).specs(need) != evidence.specs(need)
        assert changed == bool(counter.changes)  # without changes, it reads the same runs otherwise


def test_experiments_share_the_cell_of_smoe_itself(evidence: Evidence) -> None:
    kept = [{spec.model_dump_json() for spec in evidence.specs(one)} for one in EXPERIMENTS[:3]]
    shared = set.intersection(*kept)
    assert len(shared) >= 3  # one for each setting


# ----------------------------------------------------------------------------- against baselines


def comparison() -> Runs:
    """SMoE half and three quarters of the best baseline's time on two settings; b3 is twice it."""
    return Runs([
        document("smoe", "S1", 5, ratio=0.9), document("hybrimoe", "S1", 10, ratio=0.6),
        document("deepspeed", "S1", 40, ratio=0.0),
        document("smoe", "S3", 6, ratio=0.6), document("hybrimoe", "S3", 20, ratio=0.3),
        document("deepspeed", "S3", 8, ratio=0.0),
        document("smoe", "S3", 4, batch=3), document("hybrimoe", "S3", 2, batch=3),
    ])  # fmt: skip


def test_a_change_is_against_the_best_baseline_of_each_cell() -> None:
    runs = comparison()
    assert measures.change(TPOT, batch=1)(runs) == pytest.approx(-37.5)
    assert measures.change(TPOT, setting="S1", batch=1)(runs) == pytest.approx(-50)
    assert measures.change(TPOT, batch=3)(runs) == pytest.approx(100)


def test_a_gain_is_relative_and_of_batch_1() -> None:
    runs = comparison()
    gains = [measures.gain(COMPLETE, setting) for setting in ("S1", "S3")]
    assert [gain(runs) for gain in gains] == pytest.approx([50, 100])
    assert measures.least(gains)(runs) == pytest.approx(50)
    assert measures.ratio(COMPLETE, "S1")(runs) == pytest.approx(90)
    assert difference(gains[0], gains[1])(runs) == pytest.approx(-50)


# ----------------------------------------------------------------------------- parts


def test_a_step_is_the_mean_of_the_settings_changes() -> None:
    runs = Runs([*ablation("S1", 10, 20, 16, 12, 6, 6, 3), *ablation("S2", 10, 30, 16, 8, 8, 6, 9)])
    assert measures.step(TPOT, "+CR", "+CE")(runs) == pytest.approx((-50 + 0) / 2)
    # S1 falls at +CR and +BA and not at +CE and +Pre; S2 at +CE and +Pre.
    assert measures.faster_steps("base, misses on the host")(runs) == pytest.approx(4 / 8)


def test_link_host_and_prefetch_measures_match_hand_computation() -> None:
    before, after = STEPS["+Pre"], STEPS["+BA"]
    runs = Runs([
        document(tpot=2, options=STEPS["+CR"], link=6),
        document(tpot=1, options=before, link=8, host=0, prefetch=(10, 8, 9)),
        document(options=after, link=6, host=2, prefetch=(10, 10, 10)),
        document(setting="S2", tpot=2, options=STEPS["+CR"], link=9),
        document(setting="S2", tpot=1, options=before, link=8, host=0, prefetch=(10, 4, 4)),
        document(setting="S2", options=after, link=4, host=4),
    ])  # fmt: skip
    assert measures.gap(runs.of(set=before)) == pytest.approx(2)  # 8 ms over 4 tokens
    assert measures.gap_change(runs) == pytest.approx((-50 - 100) / 2)
    assert measures.host_to_link(runs) == pytest.approx((2 / 6 + 1) / 2)
    assert measures.busier_yet_faster(runs) == pytest.approx(1 / 2)
    assert measures.top_share(runs.of(set=before)) == pytest.approx((80 + 40) / 2)
    assert measures.active_share(runs.of(set=before)) == pytest.approx(100 * 1 / 8)


def test_no_prefetch_that_is_not_top_score_says_so() -> None:
    with pytest.raises(MissingEvidenceError, match="top-score"):
        measures.active_share(Runs([document(prefetch=(10, 10, 10))]))


def test_importance_of_a_tokens_experts() -> None:
    """Top-2 of 5, the best inactive score 0.2: at α = 0.5 an expert is top-score from 0.3 on."""
    seen = Importance()
    seen.count([0.5, 0.2, 0.25, 0.04, 0.01], [0, 2], 0.5, absent={2, 3}, in_flight={0})
    assert seen == Importance(top=1, low=1, low_absent=1, top_in_flight=1)
    assert off_device(seen, "low") == 1
    assert off_device(seen, "top") == 0  # on its way: it need not be loaded


def test_table_1_divides_what_the_device_waits_as_the_loads_are() -> None:
    runs = Runs([document(tpot=5)])  # waits 10 ms of 4 tokens of 5 ms
    seen = [Watched("", "S3", {}, 0, 2, Importance(top=9, low=9, top_absent=1, low_absent=3))]
    assert time_shares(runs, seen) == pytest.approx(
        {"low-score loading": 37.5, "top-score loading": 12.5, "GPU computing": 50}
    )


def test_rank_correlation() -> None:
    assert rank_correlation([0.9, 0.5, 0.4, 0.1]) == pytest.approx(1)
    assert rank_correlation([0.1, 0.4, 0.5, 0.9]) == pytest.approx(-1)
    # By hand: ranks 1 2 3 against 2 1 3, so 1 - 6·2/(3·8).
    assert rank_correlation([5, 7, 1]) == pytest.approx(0.5)


@pytest.mark.slow
def test_watching_counts_what_the_run_itself_counts(tmp_path: Path) -> None:
    """Without substitution, its own experts are the active ones, and what is absent is loaded."""
    cell = Experiment(
        "one",
        {
            "common": {
                "setting": "S1", "system": "smoe", "routing": "drawn", "workload": "arithmetic",
                "prompts": 2, "new_tokens": 6, "set": STEPS["+CE"],
            }
        },
    )  # fmt: skip
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=False)
    (run,) = run_all(evidence.specs(cell), None, tmp_path, 0, lambda done, total: None)
    (seen,) = watch(evidence, cell, **STEPS["+CE"])
    counted = run["metrics"]["experts"]["decode"]
    found = seen.importance
    assert found.top + found.low == counted["active"]
    assert found.top_absent + found.low_absent == counted["loads"]
    assert 0 < found.low < found.top + found.low
    assert seen.run_id == run["run_id"]
    assert seen.score_by_rank == sorted(seen.score_by_rank, reverse=True)
    assert watch(evidence, cell, **STEPS["+CE"]) == [seen]  # as it was kept
    assert watch(evidence, cell, **STEPS["+CR"]) == []


# ----------------------------------------------------------------------------- batches

#: Two rows of five experts, top-2, α = 0.5, expert 0 on the device.  Row 0: 1 is low-score (0.22 of
#: rival 0.2) and off the device.  Row 1: 2 is top-score and off it, 0 is low-score and on it.
ROWS = [[0.3, 0.22, 0.2, 0.15, 0.13], [0.22, 0.1, 0.4, 0.2, 0.08]]


def routed_by(used: list[list[int]], top: set[int]) -> Substitutes:
    counts = Substitutes()
    ids_TK = np.array(used)
    counts.count(view(ROWS, 2, {0}, alpha=0.5), Routed(ids_TK, ids_TK, frozenset(top)))
    return counts


def test_substitutes_of_a_batch_are_told_apart() -> None:
    top = {0, 2}
    assert routed_by([[0, 2], [2, 0]], top) == Substitutes(absent=1, by_row=1)
    assert routed_by([[0, 1], [2, 0]], top) == Substitutes(absent=1)
    assert routed_by([[0, 1], [2, 0]], {0, 1, 2}) == Substitutes(absent=1, shared=1)
    on_device = Substitutes()
    ids_TK = np.array([[0, 2], [2, 0]])
    on_device.count(view(ROWS, 2, {0, 2}, alpha=0.5), Routed(ids_TK, ids_TK, frozenset(top)))
    assert on_device == Substitutes(absent=1, by_resident=1)


def test_the_router_itself_substitutes_what_another_row_uses() -> None:
    seen = view(ROWS, 2, {0}, alpha=0.5)
    counts = Substitutes()
    counts.count(seen, ExpertCacheRouter().route(seen))
    assert counts == Substitutes(absent=1, by_row=1)


def test_shares_of_substitutes() -> None:
    counts = Substitutes(absent=10, shared=2, by_resident=3, by_row=1)
    assert batches.of_replaced(counts) == 25
    assert batches.of_absent(counts) == 10


@pytest.mark.parametrize("batch", [1, 3])
def test_one_row_finds_no_other_rows_experts(batch: int, tmp_path: Path) -> None:
    """With one text, low-score experts are replaced by experts on the device alone."""
    cell = Experiment(
        "one",
        {
            "common": {
                "setting": "S1", "system": "smoe", "routing": "drawn", "workload": "arithmetic",
                "prompts": batch, "batch": batch, "new_tokens": 6,
            }
        },
    )  # fmt: skip
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=False)
    (counts,) = substitutes(evidence, cell).values()
    assert counts.by_resident > 0
    assert (counts.by_row > 0) == (counts.shared > 0) == (batch > 1)
    assert counts.shared + counts.by_resident + counts.by_row <= counts.absent
    assert [*substitutes(evidence, cell).values()] == [counts]  # as it was kept


def test_the_refinement_is_against_the_same_algorithm_without_it() -> None:
    runs = Runs([
        document(setting=s, tpot=tpot, options=options)
        for s, *both in (("S1", 10, 8), ("S2", 10, 11))
        for tpot, options in zip(both, (experiments.UNREFINED, experiments.REFINED), strict=True)
    ])  # fmt: skip
    change = batches.refined_change(lambda one: one.mean(TPOT))
    assert change(runs) == pytest.approx((-20 + 10) / 2)
    alone = Runs(
        [document(tpot=4, options={}), document(tpot=3, options=experiments.REFINED_ALONE)]
    )
    assert change(alone) == pytest.approx(-25)


# ----------------------------------------------------------------------------- α


def test_a_straight_line_is_linear_and_a_parabola_is_fitted() -> None:
    alphas = np.linspace(0, 0.6, 13)
    assert thresholds.linearity(alphas, 100 - 20 * alphas) == pytest.approx(1)
    assert thresholds.linearity(alphas, np.cos(20 * alphas)) < 0.5
    parabola = 100 - 40 * alphas + 20 * alphas**2  # falls up to α = 1
    assert thresholds.pick_error(alphas, parabola) <= 0.005
    assert thresholds.fall(alphas, 100 - 20 * alphas) == pytest.approx(-12)


def test_a_curve_is_read_by_alpha() -> None:
    runs = Runs([document(alpha=alpha, tpot=10 - alpha) for alpha in (0.6, 0.0, 0.3)])
    alphas, times = thresholds.curve(runs, "S1")
    assert alphas.tolist() == [0.0, 0.3, 0.6]
    assert times.tolist() == pytest.approx([10, 9.7, 9.4])


def test_paper_changes_match_table_4() -> None:
    """Table IV, GaoKao, Deepseek: 27.2 at α = 0, 29.5 at 0.15, 27.7 at 0.35, 25.9 at 0.6."""
    changes = thresholds.paper_changes("S1", "GaoKao")
    assert changes[0.35] == pytest.approx(0.5)
    assert thresholds.largest(changes) == pytest.approx(2.3)
    # All five of Deepseek at 0.35: 27.7 50.7 59.0 69.1 50.2 less 27.2 50.7 59.3 70.0 51.4.
    assert thresholds.paper_changes("S1")[0.35] == pytest.approx(-1.9 / 5)


def test_a_score_no_better_than_a_guess_is_at_the_floor() -> None:
    def row(score: float, chance: float | None) -> AccuracyRow:
        return AccuracyRow.model_construct(alpha=0.0, score=score, stderr=5.0, chance=chance)

    assert thresholds.at_floor([row(34, 25)])
    assert thresholds.at_floor([row(0, None)])
    assert not thresholds.at_floor([row(36, 25)])


def test_a_set_at_its_floor_is_not_measurable(evidence: Evidence) -> None:
    """The scale models do not know trivia: no change of 0 % can be seen."""
    with pytest.raises(MissingEvidenceError, match="a loss could not be seen"):
        thresholds.accuracy("S1", "triviaqa", thresholds.largest)(evidence)


# ----------------------------------------------------------------------------- times of an expert


def test_an_experts_load_is_its_bytes_over_the_link() -> None:
    """3 matrices of 3584 · 2560 in bf16 at 26 GB/s, and 2.5 µs."""
    assert components.load_ns() == pytest.approx(3 * 3584 * 2560 * 2 / 26 + 2500, rel=1e-3)


def test_an_experts_time_in_a_prompt(evidence: Evidence) -> None:
    """A token of Qwen2 chooses 8 of 64 experts: 512 tokens are 64 rows of each, a prompt of 1 is 1.

    At 1,050 GFLOPS and 75 % of them 64 rows take 2 · 64 · 3 · 3584 · 2560 / 787.5 ns.
    """
    assert [components.rows_of(n, components.MODEL) for n in (1, 256, 512)] == [1, 32, 64]
    taken = components.expert_ns(Lane.HOST, 64, components.EIGHT_CORES)
    assert taken == pytest.approx(2 * 64 * 3 * 3584 * 2560 / 787.5 + 20_000, rel=1e-3)
    assert components.prompt_over(512, 256)(evidence).value == pytest.approx(2, abs=0.02)


@pytest.mark.slow
def test_the_shortest_prompt_whose_expert_is_slower_on_the_host(evidence: Evidence) -> None:
    """S3: a load is 2.12 ms, a row 0.0935 ms; 22.5 rows less the handoff are 181 tokens."""
    model, machine = components.MODEL, components.MACHINE
    assert components.slower_from(model, machine) == 181
    for tokens, slower in ((180, False), (181, True)):
        rows = components.rows_of(tokens, model)
        assert (components.expert_ns(Lane.HOST, rows) > components.load_ns()) is slower
    longest = components.longest_limit(evidence).value
    assert longest == max(components.longest_limit(evidence, [s]).value for s in ("S1", "S2", "S3"))


def test_an_experts_time_grows_with_rows_at_some_point() -> None:
    assert components.expert_ns(Lane.HOST, 64) > 2 * components.expert_ns(Lane.HOST, 1)
    assert components.expert_ns(Lane.DEVICE, 2) == components.expert_ns(Lane.DEVICE, 1)


# ----------------------------------------------------------------------------- S3's host


def test_an_implied_value_lies_between_two_that_were_measured() -> None:
    assert implied([10, 40], [0, 2], 1) == pytest.approx([20])
    assert implied([10, 40], [0, 2], 3) == []
    assert said([10, 40], [0, 2], 1) == "20"
    assert said([10, 40], [0, 2], 3) == "above 40"
    assert said([10, 40], [2, 0], 3) == "below 10"
    assert said([10, 20, 40], [0, 2, 0], 3) == "none; closest at 20"


def test_a_place_of_the_hosts_range_moves_its_claim(evidence: Evidence) -> None:
    slow, nominal, fast = (
        host_over_load()(evidence.moved({"host.gemv_bandwidth": place})).value
        for place in (-1.0, 0.0, 1.0)
    )
    assert fast < nominal < slow
    assert nominal == host_over_load()(evidence).value


def test_a_figure_without_a_baseline_ignores_its_runs() -> None:
    runs, figure = comparison(), measures.change(TPOT, setting="S1", batch=1)
    assert figure(runs) == pytest.approx(-50)  # against HybriMoE
    assert measures.without(figure, "hybrimoe")(runs) == pytest.approx(-87.5)
    assert measures.without(figure, "deepspeed")(runs) == pytest.approx(-50)


def test_families_at_the_ceiling_are_left_out() -> None:
    rooms = {s: {r.workload for r in thresholds.with_room(thresholds.our_rows(s, None))}
             for s in ("S1", "S2", "S3")}  # fmt: skip
    assert rooms == {s: {*names} for s, names in experiments.WITH_ROOM.items()}


def test_accuracy_above_the_limit_is_less_that_up_to_it() -> None:
    assert thresholds.above({0.0: 0, 0.35: 2, 0.4: -1, 0.6: -3}) == -3


def test_the_routers_effect_is_ranked_by_the_share_of_low_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seen(*_: Any, **options: str) -> list[Watched]:
        exact = options.get("route") == "exact"
        lows, falls = {"S1": 20, "S2": 40, "S3": 60}, {"S1": 0.9, "S2": 0.5, "S3": 0.2}
        absent = {s: lows[s] if exact else round(lows[s] * falls[s]) for s in lows}
        counts = {s: Importance(top=40, low=lows[s], low_absent=absent[s]) for s in lows}
        return [Watched("", s, {}, 0, 1, one) for s, one in counts.items()]

    monkeypatch.setattr(importance, "watch", seen)
    ranked = importance.falls_with_low_share("+CR", "+CE")(cast(Evidence, Made()))
    assert ranked == {0: pytest.approx(1)}


# ----------------------------------------------------------------------------- exhibits


class Made:
    """Evidence with hand-made runs."""

    def __init__(self) -> None:
        settings, baselines = ("S1", "S2", "S3"), ("hybrimoe", "deepspeed")
        options = [{}, experiments.FROM_RESIDUAL, *STEPS.values()]
        self._runs = {
            "smoe main": [
                document(system, setting, batch=batch)
                for system in ("smoe", *baselines) for setting in settings for batch in (1, 3)
            ],
            "smoe thresholds": [
                document(setting=setting, alpha=alpha)
                for setting in settings for alpha in (0.0, 0.2, 0.4, 0.6)
            ],
        }  # fmt: skip
        self._runs["smoe batches"] = [document(setting=s, batch=3) for s in settings]
        self._runs["smoe table I"] = [document(setting="S3", options=STEPS["+CE"])]
        for name in ("smoe ablation", "smoe prediction"):
            self._runs[name] = [
                document(setting=setting, options=one) for setting in settings for one in options
            ]

    def runs(self, *experiments: Experiment) -> Runs:
        """Return the hand-made runs of some experiments."""
        return Runs(run for one in experiments for run in self._runs[one.name])

    def moved(self, numbers: Any) -> "Made":
        """Return this evidence: its runs are the same on all machines."""
        return self

    def machine(self, name: str) -> str:
        """Return the machine as it is."""
        return name


#: Spans of one decoded token as the store keeps them, of layers around those of Fig. 9.
SPANS = [
    {"lane": "device", "kind": "gate", "layer": i, "start_us": 10 * i, "end_us": 10 * i + 3}
    for i in (13, 14, 15, 16)
] + [{"lane": "device", "kind": "evict", "layer": 15, "start_us": 900, "end_us": 900}]


def seen_of_all_settings(*_: Any, **__: Any) -> list[Watched]:
    counts = Importance(top=4, low=2, top_absent=2, low_absent=1)
    return [Watched("", s, {}, 0, 1, counts, [1.0, 0.5], [0.6, 0.3]) for s in ("S1", "S2", "S3")]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Exhibit]:
    monkeypatch.setattr(importance, "watch", seen_of_all_settings)
    monkeypatch.setattr(exhibits, "watch", seen_of_all_settings)
    monkeypatch.setattr(exhibits, "decoded", lambda *_: SPANS)
    counted = {(s, 0): Substitutes(10, 1, 5, 2) for s in ("S1", "S2", "S3")}
    monkeypatch.setattr(exhibits, "substitutes", lambda _: counted)
    return [show.make(cast(Evidence, Made())) for show in PAPER.exhibits]


def test_every_table_and_figure_is_there(made: list[Exhibit]) -> None:
    places = {exhibit.place for exhibit in made}
    figures = (3, 4, 6, *range(8, 19))
    tables = {"Table I", "Table III", "Table IV", "Fig. 3, 11, 14 and 18", "§VI-B"}
    assert places == {*tables, "first version, §4.1", *(f"Fig. {n}" for n in figures)}
    assert len({exhibit.id for exhibit in made}) == len(made)


def test_rows_hold_what_their_axes_name(made: list[Exhibit]) -> None:
    for exhibit in made:
        axes = [axis.field for axis in (*exhibit.columns, exhibit.x, exhibit.y) if axis is not None]
        named = {*axes, exhibit.series, exhibit.facet} - {None}
        assert named, exhibit.id
        assert exhibit.rows, exhibit.id
        for row in (*exhibit.rows, *exhibit.paper_rows):
            assert named <= set(row), exhibit.id


def test_figures_of_watched_runs_have_the_axes_and_captions_that_ship(made: list[Exhibit]) -> None:
    known = {one.id: one for one in made}
    for name in ("table-1", "fig-4", "fig-6", "fig-15"):
        check_words(known[f"smoe-{name}"])
    # The caption of the last states the runs' conditions, which are made up here.
    batches_of = known["smoe-batches"]
    assert batches_of.note == "2 prompts of 3 new tokens; passages; model routing, hf-eager"
    check_words(batches_of.model_copy(
        update={"note": "3 prompts of 32 new tokens; passages; model routing, hf-eager"}
    ))  # fmt: skip
    gates = [(row["model"], row["rank"], row["score"]) for row in known["smoe-fig-4"].rows]
    assert gates == [(model, rank, score) for model in components.MODELS
                     for rank, score in ((1, 1.0), (2, 0.5))]  # fmt: skip
    reuse = [(row["model"], row["rank"], row["share"]) for row in known["smoe-fig-6"].rows]
    assert reuse == [(model, rank, share) for model in components.MODELS
                     for rank, share in ((1, 0.6), (2, 0.3))]  # fmt: skip


def test_models_have_the_sizes_of_table_3(made: list[Exhibit]) -> None:
    table = next(one for one in made if one.id == "smoe-table-3")
    for row, paper in zip(table.rows, table.paper_rows, strict=True):
        assert row["model_gib"] == pytest.approx(paper["model_gib"], rel=0.03)
        assert row["memory_gib"] == paper["memory_gib"]


def test_figure_3_has_three_times_of_three_models(made: list[Exhibit]) -> None:
    shown = next(one for one in made if one.id == "smoe-fig-3")
    assert len(shown.rows) == 9
    (load,) = (
        row["ms"] for row in shown.rows if (row["model"], row["side"]) == (components.MODEL, "PCIe")
    )
    assert load == pytest.approx(components.load_ns() / 1e6)


def test_figure_9_shows_two_layers_from_their_first_span(made: list[Exhibit]) -> None:
    shown = next(one for one in made if one.id == "smoe-fig-9")
    assert [(row["layer"], row["start"], row["end"]) for row in shown.rows] == [
        (14, 0, 3), (15, 10, 13),
    ]  # fmt: skip


def test_what_became_of_low_score_experts_adds_up(made: list[Exhibit]) -> None:
    shown = next(one for one in made if one.id == "smoe-batches")
    row = shown.rows[0]
    assert [row[name] for name in ("shared", "by_resident", "by_row", "rest")] == [10, 50, 20, 20]


def test_table_4_holds_all_of_the_papers_scores(made: list[Exhibit]) -> None:
    table = next(one for one in made if one.id == "smoe-table-4")
    scores = [value for row in table.paper_rows for key, value in row.items() if key[0].isdigit()]
    assert len(scores) == 13 * 5 * 3
    assert tables.TABLES


def test_ranks_of_scores_and_reuse_by_hand() -> None:
    """Two of five experts are active: ranks 0 and 1."""
    seen: Any = SimpleNamespace(top_k=2, score_by_rank=[8.0, 6.0, 4.0, 2.0, 1.0],
                                reuse_by_rank=np.array([5.0, 4.0, 1.0, 2.0, 3.0]))  # fmt: skip
    assert importance.first_over_rival(seen) == 2.0
    assert importance.last_over_rival(seen) == 1.5
    # Reuse grows over the inactive ranks; of all ranks the squares of the differences sum to 8.
    assert importance.inactive_reuse_falls(seen) == pytest.approx(-1.0)
    assert importance.reuse_falls(seen) == pytest.approx(1 - 6 * 8 / (5 * 24))


def test_curves_of_alpha_by_hand() -> None:
    """A line through (0, 0), (1, 1) and (2, 4) is off by 1/3, 2/3 and 1/3."""
    alphas, times = np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 4.0])
    assert thresholds.linearity(alphas, times) == pytest.approx(1 - (6 / 9) / (78 / 9))
    assert thresholds.linearity(alphas, np.array([2.0, 2.0, 2.0])) == 0.0
    assert thresholds.fall(alphas, np.array([10.0, 7.0, 8.0])) == pytest.approx(-20)
    changes = {0.0: 0.0, 0.2: -1.0, 0.35: 2.0, 0.4: -3.0, 0.6: -5.0}
    assert thresholds.above(changes) == pytest.approx(-4 - 1 / 3)
    assert thresholds.largest(changes) == 2.0
    # A parabola picks every point that is left out: the fit of the others is the same.
    grid = np.array([0.0, 0.1, 0.2, 0.3, 0.4])
    assert thresholds.pick_error(grid, (1 - grid) ** 2) == pytest.approx(0, abs=0.006)
    # A TPOT that no α of the fit reaches is answered by the largest.
    steep = np.array([4.0, 0.0, 3.0, 2.0])
    assert thresholds.pick_error(np.array([0.0, 0.1, 0.2, 0.3]), steep) > 0.05


def test_figures_against_baselines_are_of_the_main_experiment(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_runs(monkeypatch, document(tpot=2.0), document("hybrimoe", tpot=4.0))
    found = measures.main(measures.change(TPOT))(evidence)
    assert asked == [experiments.MAIN]
    assert found.value == pytest.approx(-50)
    assert found.conditions == (
        "2 prompts of 3 new tokens; passages; model routing, hf-eager; best of four baselines in "
        "each cell"
    )

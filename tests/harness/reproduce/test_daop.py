"""DAOP's claims, and their measuring functions on hand-made documents."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce import generated_texts
from moebench.harness.reproduce.daop import PAPER
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures as m
from moebench.harness.reproduce.daop import measures_of_routing as mr
from moebench.harness.reproduce.daop.experiments import (
    BY_RATIO,
    FIRST_TOKEN,
    MATHS,
    OF_SPEED,
    OTHERS,
    SHIPPED,
    SPEED,
    TIMELINES,
    WHOLE_ANSWERS,
)
from moebench.harness.reproduce.daop.explained import HEADLINES
from moebench.harness.reproduce.daop.tags import TAGS
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.generated_texts import routed
from moebench.results.store import Store
from moebench.substrate.terms import RoutedSequence

# ----------------------------------------------------------------------------- the registry


def test_exhibits_are_six_tables_and_six_figures() -> None:
    assert len(PAPER.exhibits) == 12


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("experiment", [SPEED, BY_RATIO, TIMELINES, WHOLE_ANSWERS])
def test_experiments_expand_without_a_data_folder(
    experiment: Experiment, quick: bool, tmp_path: Path
) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick)
    assert evidence.specs(experiment)
    if experiment in (SPEED, BY_RATIO):
        for counter in (*OF_SPEED, SHIPPED):
            assert evidence.changed(counter.changes).specs(experiment)


def test_the_paper_has_three_systems_of_phi(tmp_path: Path) -> None:
    specs = Evidence(Store(tmp_path), None, tmp_path, quick=True).specs(SPEED)
    assert {spec.system for spec in specs if spec.setting == "D2"} == {
        "daop", "fiddler", "moe-ondemand",
    }  # fmt: skip
    assert len({spec.system for spec in specs}) == 5


def test_experiments_without_data_name_the_missing_option(tmp_path: Path) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    with pytest.raises(MissingEvidenceError, match="arc_easy lies in a data folder; give --data-"):
        evidence.specs(FIRST_TOKEN)
    with pytest.raises(MissingEvidenceError, match="c4 lies in a data folder; give --data-dir"):
        routed(evidence, mr.MIXTRAL, "c4")


# ----------------------------------------------------------------------------- runs by hand


def run(setting: str, system: str, ttft: float = 0, tpot: float = 100, **of: Any) -> Any:
    ratio, workload, score = of.get("ratio", 0.469), of.get("workload", ""), of.get("score")
    return {
        "run_id": f"{setting}{system}{ratio}{workload}", "badge": "estimate",
        "spec": {
            "setting": setting, "system": system, "variant": of.get("variant", "published"),
            "seed": of.get("seed", 0), "cache_ratio": ratio, "workload": workload,
            "prompts": of.get("prompts", 1),
            "overrides": {},
        },
        "metrics": {
            "ttft_ms": {"mean": ttft}, "tpot_ms": {"mean": tpot}, **of.get("metrics", {}),
        },
        "accuracy": {"score": score},
    }  # fmt: skip


def test_speed_of_an_output_counts_its_prefill() -> None:
    """A second for the first token and a second for ten more."""
    runs = Runs([run("D1", "daop", ttft=1000, tpot=100)])
    assert m.tokens_per_s(runs, 11) == pytest.approx(11 / 2)
    assert m.tokens_per_s(runs, 1) == 1


def test_variants_bear_their_systems_name() -> None:
    runs = Runs([run("D1", "fiddler"), run("D1", "daop", variant="shipped")])
    assert len(runs.named("daop")) == 1


def test_gains_are_means_over_models_and_ratios() -> None:
    """A half faster at one ratio, twice as fast at the other; without prefill length is nothing."""
    runs = Runs([
        run("D1", "daop", tpot=100, ratio=0.25), run("D1", "fiddler", tpot=150, ratio=0.25),
        run("D1", "daop", tpot=100, ratio=0.5), run("D1", "fiddler", tpot=200, ratio=0.5),
    ])  # fmt: skip
    slow = m.tokens_per_s(Runs([runs[0]]), 256)
    assert m.over_fiddler(runs, 10**6) == pytest.approx(75, abs=0.01)
    assert m.speed("D1", "daop", 256, 0.25)(runs) == slow
    assert m.gain_of_length("daop", Runs([run("D1", "daop", ttft=100, tpot=100)])) == 0
    assert m.gain_of_length("daop", Runs([run("D1", "daop", ttft=12900, tpot=100)])) > 0


def test_the_greatest_gain_is_over_the_slowest_that_ran() -> None:
    runs = Runs([
        run("D1", "daop", 100, 100), run("D1", "moe-ondemand", 400, 400),
        run("D1", "mixtral-offloading", 900, 900), run("D2", "daop", 100, 100),
        run("D2", "moe-ondemand", 500, 500),
    ])  # fmt: skip
    assert m.greatest_over(("moe-ondemand", "mixtral-offloading"), runs) == pytest.approx(9)
    assert m.greatest_over(("moe-ondemand",), runs) == pytest.approx(5)


def energy(system: str, gpu: float, host: float) -> Any:
    """Return a run of one prompt token and ten decoded ones, each of which takes a second."""
    return run(
        "D1", system, ttft=1000, tpot=1000,
        metrics={
            "decoded_tokens": 10,
            "lanes": {"device": 8.0, "host": 0.0}, "decode": {"lanes": {"device": 6.0, "host": 0}},
            "energy": {
                "parts_j": {
                    "gpu, idle": 110.0, "gpu, at work": gpu, "host, idle": 11.0,
                    "host, at work": host,
                },
                "reason": None,
            },
        },
    )  # fmt: skip


def test_energy_of_an_output_is_prefills_and_decodes_in_proportion() -> None:
    runs = Runs([energy("daop", 80.0, 0.0)])
    # As run: 201 J for 11 tokens.
    assert m.tokens_per_kj(runs, 11) == pytest.approx(11e3 / 201)
    # Ten more: 110 J more of idling, and 60 J of work.
    assert m.tokens_per_kj(runs, 21) == pytest.approx(21e3 / (201 + 110 + 60))
    lavish = Runs([runs[0], energy("fiddler", 160.0, 0.0)])
    assert m.most_efficient(lavish) == 1
    assert m.efficiency_over_fiddler(lavish) > 1


def test_an_unknown_energy_is_said() -> None:
    unknown = energy("daop", 1, 1)
    unknown["metrics"]["energy"] = {"parts_j": {}, "reason": "no powers"}
    with pytest.raises(MissingEvidenceError, match="no powers"):
        m.tokens_per_kj(Runs([unknown]), 256)


def answered(
    workload: str, system: str, values: list[float], ratio: float = 0.25, setting: str = "D1"
) -> Any:
    """Return a run that scored each question, 0 to 1."""
    one = run(setting, system, workload=workload, ratio=ratio, prompts=len(values))
    one["accuracy"] = {"score": 100 * sum(values) / len(values), "items": {"value": values}}
    return one


ANSWERED = Runs([
    answered("equations", "moe-ondemand", [1, 1, 0]), answered("equations", "daop", [0, 1, 0]),
    answered("passages", "moe-ondemand", [1, 1, 1]), answered("passages", "daop", [1, 1, 1]),
    answered("passages", "daop", [1, 0, 0], ratio=0.375),
])  # fmt: skip


def test_changes_of_answers_are_against_what_the_model_answers() -> None:
    assert mr.question_changes(ANSWERED, "D1", 0.25, MATHS) == [-100, 0, 0]
    assert mr.question_changes(ANSWERED, "D1", 0.25, OTHERS) == [0, 0, 0]
    assert mr.question_changes(ANSWERED, "D1", 0.375, OTHERS) == [0, -100, -100]
    with pytest.raises(MissingEvidenceError, match="no answers of D2"):
        mr.question_changes(ANSWERED, "D2", 0.25, MATHS)
    with pytest.raises(MissingEvidenceError, match="leave --quick out"):
        mr.question_changes(ANSWERED, "D1", 0.5, MATHS)


# ----------------------------------------------------------------------------- sizes


def test_shares_of_parameters_by_table_3(tmp_path: Path) -> None:
    """45.1 of Mixtral's 46.6 billion parameters are experts': two of eight and the rest, 27.4 %."""
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    assert mr.of_token(evidence).value == pytest.approx(100 * (45.1 / 4 + 1.5) / 46.6, abs=0.3)
    assert mr.used_share(mr.MIXTRAL, 8) == pytest.approx(100)
    # bf16 of 41.7 billion parameters in 48 GiB: Phi-3.5-MoE is the smaller.
    assert mr.over_memory(evidence).value == pytest.approx(2 * 41.7e9 / (48 * 2**30), rel=0.01)


def test_a_sequence_uses_what_its_tokens_use_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompt and written token choose experts 0 to 3: half of the experts."""
    found = text([[0, 1], [2, 3], [0, 2]], prefill=2)
    monkeypatch.setattr(generated_texts, "routed", lambda *of: [found])
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    measured = mr.of_sequences(evidence)
    assert measured.samples == pytest.approx([mr.used_share(mr.MIXTRAL, 4)] * 3, rel=1e-5)


def test_what_a_host_expert_moves_over_its_weights(tmp_path: Path) -> None:
    """4,096 values in and out over 3 · 4,096 · 14,336 weights, all of two bytes."""
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    both = m.moved_over_weights()(evidence).value
    assert both == pytest.approx(1e4 * 2 / (3 * 14336), rel=1e-5)
    assert m.moved_over_weights(copies=1)(evidence).value == pytest.approx(both / 2, rel=1e-5)
    assert m.moved_over_weights(value_bytes=4)(evidence).value == pytest.approx(2 * both, rel=1e-5)


def test_figures_1_and_2_stack_what_a_token_uses(tmp_path: Path) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    (exhibit,) = (
        show.make(evidence) for show in PAPER.exhibits if show.make.__name__ == "_figs_1_and_2"
    )
    assert exhibit.place == "Fig. 1 and 2"
    sizes = {(row["name"], row["part"]): row["gb"] for row in exhibit.rows}
    whole = sizes["Mixtral 8x7B", "what one token uses"] + sizes["Mixtral 8x7B", "other parameters"]
    assert whole == pytest.approx(2 * 46.7, abs=0.1)
    assert sizes["NVIDIA RTX A6000", "memory"] == 51.5


# ----------------------------------------------------------------------------- texts


@pytest.mark.usefixtures("tiny_models")
def test_texts_have_64_written_tokens_and_predictions(tmp_path: Path) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    texts = routed(evidence, mr.MIXTRAL, "equations")
    assert len(texts) == 16
    assert {len(text.ids_TLK) - text.prefill for text in texts} == {64}
    assert all("normed" in text.predicted_TLE for text in texts)
    again = routed(evidence, mr.MIXTRAL, "equations")
    assert all((a.ids_TLK == b.ids_TLK).all() for a, b in zip(texts, again, strict=True))


def text(ids: list[list[int]], prefill: int = 0) -> RoutedSequence:
    """Return a text of one layer whose tokens have chosen these experts."""
    return RoutedSequence(np.array(ids)[:, None, :], prefill)


def test_windows_are_compared_with_their_texts_whole_decode() -> None:
    """A text that uses one pair of experts is like itself; one that changes them is less so."""
    steady, changing = [[0, 1]] * 30, [[0, 1]] * 15 + [[2, 3]] * 15
    assert mr.to_the_whole([text(steady)]) == pytest.approx(1)
    assert mr.to_the_whole([text(changing)]) == pytest.approx(2**-0.5)
    assert mr.successive([text(changing)]) == 0


def test_popular_experts_of_one_text_are_more_popular_than_over_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two texts uses its own quarter of the experts: 4 times the even share, 2 over all."""
    texts = [text([[0, 1]] * 4), text([[2, 3]] * 4)]
    monkeypatch.setattr(mr, "routed", lambda *of: texts)
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    assert mr.most_popular(evidence).value == 2
    more = mr.more_in_one(evidence)
    assert (more.value, more.samples, more.over) == (2, (2, 2), "texts")


def test_shares_of_decode_with_copies_and_of_work_in_parallel() -> None:
    def timed(system: str, link: float, host: float, waited: float) -> Any:
        decode = {"lanes": {"h2d": link, "host": host}, "stall_ms": {"host": waited}}
        return run("D1", system, tpot=100, metrics={"decoded_tokens": 10, "decode": decode})

    runs = Runs([timed("moe-ondemand", 700, 0, 0), timed("daop", 0, 500, 100)])
    assert m.copying("moe-ondemand")(runs) == 70
    assert m.copying("daop")(runs) == 0
    assert m.in_parallel("daop")(runs) == 80


def test_answers_are_samples_of_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evidence, "runs", lambda *of: ANSWERED)
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    assert mr.others_change("D1", 0.375)(evidence).samples == (0, -100, -100)
    assert mr.maths_falls_more("D1")(evidence).samples == (-100, 0, 0)
    at_quarter = Runs(one for one in ANSWERED if one["spec"]["cache_ratio"] == 0.25)
    monkeypatch.setattr(Evidence, "runs", lambda *of: at_quarter)
    assert mr.first_token_change("D1")(evidence).value == pytest.approx(100 / 3, abs=1e-4)


def test_controls_are_asked_the_claims_questions() -> None:
    """A claim with a control needs its runs, with the same number of questions and seed."""
    asked = [(e.WHOLE_ANSWERS, e.WHOLE_ANSWERS_CONTROLS), (e.FIRST_TOKEN, e.FIRST_TOKEN_CONTROLS)]
    controlled = [claim for claim in PAPER.claims if claim.control]
    assert all(claim.needs in asked for claim in controlled)
    assert len(controlled) == 24
    for pair in asked:
        for quick in (False, True):
            first, second = (experiment.plan(quick, {}) for experiment in pair)
            for field in ("scoring", "prompts", "seed"):
                assert first["common"][field] == second["common"][field]
            for axis in ("setting", "workload"):
                assert first["product"][axis] == second["product"][axis]


def test_a_cell_of_table_5_has_a_sample_for_each_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evidence, "runs", lambda *of: ANSWERED)
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    cell = mr.first_token_cell("D1", "equations")(evidence)
    assert (cell.samples, cell.over) == ((-100, 0, 0), "questions")
    with pytest.raises(MissingEvidenceError, match="no answers of D1 on piqa"):
        mr.first_token_cell("D1", "piqa")(evidence)


def test_every_cell_of_table_5_is_a_claim_with_the_papers_change() -> None:
    """Table V by hand: Mixtral 8x7B on Arc-e 84.39 - 83.10, Phi-3.5-MoE on MMLU 78.69 - 78.78."""
    cells = {claim.id: claim for claim in PAPER.claims if claim.place == "Table V"}
    assert len(cells) == 2 + 12
    assert cells["D-10 Mixtral 8x7B Arc-e"].paper == 1.29
    assert cells["D-10 Phi-3.5-MoE MMLU"].paper == -0.09
    assert cells["D-10 Mixtral 8x7B"].paper == 1.29  # the largest, unchanged
    judged = {
        change: cells["D-10 Mixtral 8x7B PIQA"].judge(change).value for change in (-1.3, 2, -4)
    }
    assert judged == {-1.3: "reproduced", 2: "direction only", -4: "not reproduced"}


# ----------------------------------------------------------------------------- verdicts


def test_tags_are_of_claims_and_have_reasons() -> None:
    claims = {claim.id: claim for claim in PAPER.claims}
    assert TAGS.keys() <= claims.keys()
    assert all(claims[name].tag and claims[name].tag_reason for name in TAGS)
    assert claims["D-2 mean"].tag is None
    assert {claim.id for claim in PAPER.claims if claim.headline} == HEADLINES.keys()


NOT = "not reproduced"


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("D-12", {-3: "reproduced", -0.5: "no effect", 0.9: "not reproduced"}),
        ("D-7 DAOP", {3: "reproduced", 1: "direction only", -0.1: "no effect"}),
        ("D-11 Mixtral 8x7B exception", {-7: "reproduced", 0: "no effect", 7: "not reproduced"}),
        ("D-11 Phi-3.5-MoE exception", {-5: "reproduced", -3: "direction only", 0: "no effect"}),
        ("D-8 caching and prefetching", {8: "reproduced", 1.5: "no effect", 3: "direction only"}),
        (
            "D-3 activations over weights",
            {1: "reproduced", 0.2: "direction only", 20: "not reproduced"},
        ),
        ("D-13 one sequence", {27: "reproduced", 50: "direction only", 100: NOT}),
        ("D-13 beyond memory", {1.5: "reproduced", 1.1: "direction only", 0.9: NOT}),
        ("D-3 migration over block", {28: "reproduced", 2: "no effect", 12: "direction only"}),
    ],
)
def test_less_than_a_quarter_of_an_effect_is_none(name: str, figures: dict[float, str]) -> None:
    (claim,) = (claim for claim in PAPER.claims if claim.id == name)
    assert {figure: claim.judge(figure).value for figure in figures} == figures

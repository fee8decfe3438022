"""DAOP's claims, and their measuring functions on hand-made documents."""

from pathlib import Path
from typing import Any

import pytest

from moebench.harness.reproduce.daop import PAPER
from moebench.harness.reproduce.daop import measures as m
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
from moebench.harness.reproduce.evidence import Evidence, Experiment, MissingEvidenceError, Runs
from moebench.harness.reproduce.generated_texts import routed
from moebench.results.store import Store

# ----------------------------------------------------------------------------- the registry


def test_exhibits_are_six_tables_and_five_figures() -> None:
    assert len(PAPER.exhibits) == 11


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
        routed(evidence, m.MIXTRAL, "c4")


# ----------------------------------------------------------------------------- runs by hand


def run(setting: str, system: str, ttft: float = 0, tpot: float = 100, **of: Any) -> Any:
    ratio, workload, score = of.get("ratio", 0.469), of.get("workload", ""), of.get("score")
    return {
        "run_id": f"{setting}{system}{ratio}{workload}", "badge": "estimate",
        "spec": {
            "setting": setting, "system": system, "variant": of.get("variant", "published"),
            "seed": 0, "cache_ratio": ratio, "workload": workload, "prompts": of.get("prompts", 1),
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


def test_changes_of_answers_are_against_what_the_model_answers() -> None:
    runs = Runs([
        run("D1", "moe-ondemand", workload="equations", score=60.0, ratio=0.25),
        run("D1", "daop", workload="equations", score=30.0, ratio=0.25),
        run("D1", "moe-ondemand", workload="passages", score=50.0, ratio=0.25),
        run("D1", "daop", workload="passages", score=45.0, ratio=0.25),
        run("D1", "daop", workload="passages", score=52.0, ratio=0.375),
    ])  # fmt: skip
    assert m.answers_change(runs, "D1", 0.25, MATHS) == -30
    assert m.answers_change(runs, "D1", 0.25, OTHERS) == -5
    assert m.answers_change(runs, "D1", 0.375, OTHERS) == 2
    with pytest.raises(MissingEvidenceError, match="no answers of D2"):
        m.answers_change(runs, "D2", 0.25, MATHS)


# ----------------------------------------------------------------------------- texts


@pytest.mark.usefixtures("tiny_models")
def test_texts_have_64_written_tokens_and_predictions(tmp_path: Path) -> None:
    evidence = Evidence(Store(tmp_path), None, tmp_path, quick=True)
    texts = routed(evidence, m.MIXTRAL, "equations")
    assert len(texts) == 16
    assert {len(text.ids_TLK) - text.prefill for text in texts} == {64}
    assert all("normed" in text.predicted_TLE for text in texts)
    again = routed(evidence, m.MIXTRAL, "equations")
    assert all((a.ids_TLK == b.ids_TLK).all() for a, b in zip(texts, again, strict=True))

"""The claims of this module are those of the results that ship; figures of runs made by hand."""

from dataclasses import replace
from typing import Any

import pytest

from moebench.harness.reproduce import read
from moebench.harness.reproduce.duoserve import measures_of_predictor as mp
from moebench.harness.reproduce.duoserve.claims_of_predictor import CLAIMS_OF_PREDICTOR
from moebench.harness.reproduce.duoserve.experiments import LARGE, SMALL
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError
from tests.harness.reproduce.given import by_experiment
from tests.harness.reproduce.shipped import check
from tests.harness.reproduce.test_duoserve import run

KNOWN = {claim.id: claim for claim in CLAIMS_OF_PREDICTOR}


def test_claims_are_those_that_ship() -> None:
    check("duoserve", CLAIMS_OF_PREDICTOR)


#: Shares of tokens with both experts right and with one, by setting and workload.
HITS = {
    "U1": {"equations": (0.6, 0.9), "passages": (0.5, 0.8), "gsm8k": (0.65, 0.9),
           "squad": (0.45, 0.9)},
    "U3": {"equations": (0.55, 0.85), "passages": (0.5, 0.75), "gsm8k": (0.3, 0.5),
           "squad": (0.25, 0.5)},
}  # fmt: skip


def predicting(setting: str, workload: str) -> Any:
    """Return a run of which 20 of 1000 ms are predictions, and 60 on U3."""
    both, one = HITS[setting][workload]
    found = run(
        setting, "duoserve", 1, workload, prefetch={"all_of_top_k": both, "at_least_one": one},
        decoded_tokens=10, tpot_ms={"mean": 100.0},
        decode={"lanes": {"predict": 20.0 if setting == "U1" else 60.0}},
    )  # fmt: skip
    found["spec"]["options"] = {"prefetch.memory_mb": "250"}
    epochs = {"equations": 16, "passages": 18, "gsm8k": 17, "squad": 17}[workload]
    learnt = {"best_epoch": str(epochs + 25 * (setting == "U3"))}
    return {**found, "provenance": {"learnt": {"prefetch": learnt}}}


def collecting(setting: str, workload: str) -> Any:
    """Return a run of ACC whose texts take 3.6 s, or 1 s and 10 ms for each token but the first."""
    return run(setting, "acc", 3600, workload, 1000, tpot_ms={"mean": 10.0})


FIGURES: dict[str, float] = {
    "U-5 8x7B Orca-Math top-2": 60, "U-5 8x7B Orca-Math at least one": 90,
    "U-5 8x7B SQuAD top-2": 50, "U-5 8x7B SQuAD at least one": 80,
    "U-5 8x22B Orca-Math top-2": 55, "U-5 8x22B Orca-Math at least one": 85,
    "U-5 8x22B SQuAD top-2": 50, "U-5 8x22B SQuAD at least one": 75,
    "U-5 8x7B by data set": 10, "U-5 8x22B by data set": 5,
    "U-6 memory": 250, "U-6 hidden": 4,
    "U-6 epochs 8x7B": 17, "U-6 epochs 8x22B": 42, "U-6 epochs order": 25,
    # 2,190 texts of SQuAD and 5,001 of Orca-Math.
    "U-6 collection": (2.19 + 5.001) / 2,
}  # fmt: skip


def test_figures_of_the_predictor_by_hand(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {
        name: [make(setting, workload) for workload in HITS[setting]
               for make in (predicting, *(() if workload in ("gsm8k", "squad") else (collecting,)))]
        for name, setting in ((SMALL.name, "U1"), (LARGE.name, "U3"))
    }  # fmt: skip
    by_experiment(monkeypatch, made)
    full = replace(evidence, quick=False)
    for name, figure in FIGURES.items():
        measure = KNOWN[name].measure
        assert measure is not None
        assert measure(full).samples == pytest.approx((figure,), rel=1e-5), name
        if "epochs" in name:
            with pytest.raises(MissingEvidenceError, match="with --quick predictors learn from"):
                measure(evidence)
    for name, figure in (("8x7B", 20), ("8x22B", 5)):
        (real,) = KNOWN[f"U-5 {name} by data set"].counters
        assert real.measure is not None
        assert real.measure(evidence).samples == pytest.approx((figure,), rel=1e-5)
    (charged, *_) = read.components("predictor", machine="a5000@duoserve")
    longer = {"U-6 hidden": 4 * 0.6 / charged["charged"],
              "U-6 collection": (2.19 + 5.001) / 2 * (1000 + 255 * 10) / 3600}  # fmt: skip
    for name, figure in longer.items():
        (reading,) = (one for one in KNOWN[name].counters if one.measure is not None)
        assert (reading.always, reading.reading) == (True, True)
        assert reading.measure is not None
        assert reading.measure(evidence).samples == pytest.approx((figure,), rel=1e-5), name
    said = KNOWN["U-6 collection"].measure
    assert said is not None
    assert said(evidence).conditions.startswith(
        "a text times 2,190 and 5,001 texts, mean of cells; 1 prompts of 4 new tokens"
    )


def test_the_predictors_memory_is_charged_once_or_for_each_layer(evidence: Evidence) -> None:
    (row,) = read.components("predictor's memory", machine="a5000@duoserve")
    weights = KNOWN["U-6 weights"]
    (each,) = weights.counters
    assert weights.measure is not None
    assert each.measure is not None
    assert weights.measure(evidence).value == pytest.approx(row["charged"], rel=1e-5)
    assert each.measure(evidence).value == pytest.approx(31 * row["charged"], rel=1e-5)
    for model, machine in (("8x7B", "a5000@duoserve"), ("8x22B", "a6000@duoserve")):
        (time,) = read.components("predictor", machine=machine)
        measure = KNOWN[f"U-6 time {model}"].measure
        assert measure is not None
        found = measure(evidence)
        assert found.value == pytest.approx(time["charged"], rel=1e-5)
        assert found.conditions == f"exact: as the cost model charges {time['model']} on {machine}"


def test_popularity_and_affinity_are_of_the_trained_matrices() -> None:
    assert KNOWN["U-8 popularity"].measure is mp.popular
    assert KNOWN["U-8 affinity"].measure is mp.affine

"""The claims of this module are those of the results that ship; figures of texts made by hand."""

from functools import partial
from typing import Any

import pytest

from moebench.harness.reproduce.controls import blind
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures_of_routing as m
from moebench.harness.reproduce.daop.claims_of_routing import CLAIMS_OF_ROUTING
from moebench.harness.reproduce.evidence import Evidence
from moebench.results.claims import Measured
from tests.harness.reproduce.given import by_experiment
from tests.harness.reproduce.shipped import check
from tests.harness.reproduce.test_daop import answered

KNOWN = {claim.id: claim for claim in CLAIMS_OF_ROUTING}


def test_claims_are_those_that_ship() -> None:
    check("daop", CLAIMS_OF_ROUTING)


def measured(name: str, evidence: Evidence) -> Measured:
    measure = KNOWN[name].measure
    assert measure is not None
    return measure(evidence)


def test_claims_of_routing_read_the_texts_that_they_name(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"c4": 90.0, "math": 80.0, "gsm8k": 70.0}

    def over_texts(_: Evidence, model: str, dataset: str, *rest: Any) -> Measured:
        assert model == "mixtral-8x7b"
        return Measured.of([shares[dataset]], "counted", dataset)

    monkeypatch.setattr(m, "over_texts", over_texts)
    assert measured("D-1 C4", evidence).samples == (90,)
    assert measured("D-1 MATH", evidence).samples == (80,)
    assert measured("D-1 GSM8K", evidence).samples == (70,)
    assert measured("D-1 average", evidence).samples == (90, 80, 70)
    # Windows of GSM8K are 10 % less alike than those of TriviaQA.
    monkeypatch.setattr(m, "routed", lambda evidence, model, dataset: [dataset] * 16)
    alike = {"gsm8k": 0.9, "triviaqa": 1.0}
    monkeypatch.setattr(m, "window_similarity", lambda texts, experts: alike[texts[0]])
    found = measured("D-12", evidence)
    assert found.samples == pytest.approx((-10,) * 8)
    assert found.conditions == "GSM8K 0.900, TriviaQA 1.000; 16 texts each, scale model"
    whole, recorded = KNOWN["D-12"].counters
    assert (whole.always, whole.reading) == (True, True)
    assert recorded.measure is m.recorded_windows_change
    others = {
        "D-1 all texts": m.most_popular, "D-1 single texts": m.more_in_one, "D-2 mean": m.recall,
        "D-2 first layers": m.low_at_first, "D-13 one token": m.of_token,
        "D-13 one sequence": m.of_sequences, "D-13 beyond memory": m.over_memory,
    }  # fmt: skip
    for name, measure in others.items():
        assert KNOWN[name].measure is measure, name


#: Lost answers of five questions that prefill decides, on Mixtral; on Phi it is one more.
LOST = {"hellaswag": 0, "arc_easy": 1, "arc_challenge": 2, "piqa": 3, "winogrande": 4, "mmlu": 0}
PRINTED = {"HellaS": "hellaswag", "Arc-e": "arc_easy", "Arc-c": "arc_challenge", "PIQA": "piqa",
           "WinoG": "winogrande", "MMLU": "mmlu"}  # fmt: skip


def lossy(lost: int, questions: int) -> list[float]:
    return [0.0] * lost + [1.0] * (questions - lost)


def test_answers_that_prefill_decides_are_of_one_model_and_data_set(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        answered(workload, system, lossy((lost + more) * (system == "daop"), 5), 0.25, setting)
        for more, setting in enumerate(e.MODELS)
        for workload, lost in LOST.items()
        for system in ("moe-ondemand", "daop")
    ]
    by_experiment(monkeypatch, {e.FIRST_TOKEN.name: runs})
    for more, (setting, model) in enumerate(e.MODELS.items()):
        assert measured(f"D-10 {model}", evidence).samples == (80 + 20 * more,)
        asked = {"experiment": e.FIRST_TOKEN_CONTROLS, "setting": setting}
        assert controlled(f"D-10 {model}") == asked
        for said, workload in PRINTED.items():
            lost = LOST[workload] + more
            found = measured(f"D-10 {model} {said}", evidence)
            assert found.samples == (-100,) * lost + (0,) * (5 - lost), said
            assert controlled(f"D-10 {model} {said}") == asked | {"workloads": (workload,)}


def controlled(name: str) -> dict[str, Any]:
    """Return what a claim's positive control is asked."""
    control = KNOWN[name].control
    assert isinstance(control, partial)
    assert control.func is blind
    assert control.args == ()
    return control.keywords


def test_whole_answers_are_of_one_model_and_cache_ratio(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four questions none to three are lost on Mixtral, and one to four on Phi.

    Of mathematics, all are lost on Mixtral and two on Phi.
    """
    ratios = (0.625, 0.5, 0.375, 0.25)
    runs = [answered(family, "moe-ondemand", [1.0] * 4, 0.25, setting)
            for setting in e.MODELS for family in (*e.MATHS, *e.OTHERS)]  # fmt: skip
    for more, setting in enumerate(e.MODELS):
        for lost, ratio in enumerate(ratios):
            runs += [answered(family, "daop", lossy(lost + more, 4), ratio, setting)
                     for family in e.OTHERS]  # fmt: skip
            runs += [answered(family, "daop", lossy(4 - 2 * more, 4), ratio, setting)
                     for family in e.MATHS]  # fmt: skip
    by_experiment(monkeypatch, {e.WHOLE_ANSWERS.name: runs})
    for more, (setting, model) in enumerate(e.MODELS.items()):
        asked = {"experiment": e.WHOLE_ANSWERS_CONTROLS, "setting": setting}
        for lost, ratio in enumerate(ratios):
            name = f"D-11 {model} {100 * ratio:g} %"
            expected = (-100,) * (lost + more) + (0,) * (4 - lost - more)
            assert measured(name, evidence).samples == expected, name
            assert controlled(name) == asked | {"workloads": e.OTHERS}
        name = f"D-11 {model} exception"
        falls = {"D1": (0, 0, 0, -100), "D2": (0, 0, 100, 100)}[setting]
        assert measured(name, evidence).samples == falls
        assert controlled(name) == asked | {"workloads": (*e.MATHS, *e.OTHERS)}
        (words,) = KNOWN[name].counters
        assert words.measure is m.words_change_more

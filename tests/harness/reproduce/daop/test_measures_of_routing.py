"""DAOP's measures of routed texts, on texts and runs by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from moebench.harness.reproduce import generated_texts
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures_of_routing as mr
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.substrate.terms import RoutedSequence
from tests.harness.reproduce.test_daop import ANSWERED, answered, text


def with_texts(
    monkeypatch: pytest.MonkeyPatch, texts: dict[str, Sequence[RoutedSequence]]
) -> list[str]:
    """Give data sets these texts, and return a list of the data sets that will be asked for."""
    asked: list[str] = []

    def routed(evidence: Evidence, model: str, dataset: str) -> Any:
        assert model == "mixtral-8x7b"
        asked.append(dataset)
        return texts[dataset]

    monkeypatch.setattr(mr, "routed", routed)
    monkeypatch.setattr(generated_texts, "routed", routed)
    return asked


def test_similarity_of_prefill_and_decode(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal use is a cosine of 1; half of it equal, of 1/2; a text without decode has none."""
    equal, half = text([[0, 1], [1, 0]], prefill=1), text([[0, 1], [1, 2]], prefill=1)
    with_texts(monkeypatch, {"c4": [equal, half, text([[0, 1]], 1)], "math": [half]})
    one = mr.similarity("c4")(evidence)
    assert (one.samples, one.over) == ((100, 50), "texts")
    assert one.conditions == "2 texts, the scale model's routing; c4, 64 tokens written"
    both = mr.similarity("c4", "math")(evidence)
    assert (both.samples, both.over, both.badge) == ((75, 50), "data sets", "counted")
    assert both.conditions == "mean of c4, math"


def predicted(right: Sequence[int]) -> RoutedSequence:
    """Return a text of one token that chooses experts 0 and 1 in each layer.

    Args:
        right: how many of the two are predicted, for each layer but the first.
    """
    scores = np.zeros((1, len(right) + 1, 8))
    for layer, n in enumerate(right):
        scores[0, layer, [0, 1][:n] + [6, 7][n:]] = 1
    scores[0, -1] = np.nan
    ids = np.tile([0, 1], (1, len(right) + 1, 1))
    return RoutedSequence(ids, 0, predicted_TLE={"normed": scores})


def test_recall_is_low_in_the_first_four_layers_that_are_predicted(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alpaca: 50 % in layers 1 to 4, then 100 and 50 %; MATH: 100 %; C4: 0, then 50 %."""
    right = {"alpaca": [1, 1, 1, 1, 2, 1], "math": [2] * 6, "c4": [0, 0, 0, 0, 1, 1]}
    asked = with_texts(monkeypatch, {name: [predicted(n)] for name, n in right.items()})
    (layers, *_) = mr.recall_by_layer(evidence)
    assert np.isnan(layers[0])
    assert layers[1:].tolist() == [0.5, 0.5, 0.5, 0.5, 1, 0.5]
    assert asked == ["alpaca", "math", "c4"]
    whole = mr.recall(evidence)
    assert whole.samples == pytest.approx((350 / 6, 100, 100 / 6), rel=1e-5)
    assert (whole.over, whole.conditions) == ("data sets", "Alpaca, MATH, C4; scale model")
    first = mr.low_at_first(evidence)
    assert first.samples == (-25, 0, -50)
    assert (first.over, first.badge) == ("data sets", "counted")
    assert first.conditions == "layers 1 to 4 less the others; scale model"


def test_windows_are_compared_in_eight_groups_of_texts(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sixteen texts, each group has two that are eight apart; sums stand for similarities."""
    maths = [text([[0, 1]] * (n + 1)) for n in range(16)]
    others = [text([[0, 1]] * 5) for _ in range(16)]
    with_texts(monkeypatch, {"gsm8k": maths, "triviaqa": others})

    def tokens(texts: Sequence[RoutedSequence]) -> float:
        return float(sum(len(one.ids_TLK) for one in texts)) / len(texts)

    found = mr.windows_change(tokens)(evidence)
    # Group i has texts of i + 1 and i + 9 tokens against 5.
    assert found.samples == pytest.approx([100 * ((i + 5) / 5 - 1) for i in range(8)], abs=1e-4)
    assert (found.over, found.badge) == ("groups of texts", "counted")
    assert found.conditions == "GSM8K 8.500, TriviaQA 5.000; 16 texts each, scale model"


def test_windows_of_recordings_of_two_models(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two windows of equal use against two of which half is equal: twice as similar."""
    same = text([[0, 1]] * 30)
    half = text([[0, 1]] * 15 + [[1, 2]] * 15)
    asked: list[Any] = []

    def recorded(evidence: Evidence, model: str, *kinds: str) -> list[RoutedSequence]:
        asked.append((model, *kinds))
        maths = kinds == ("math",)
        return [same if maths == (model == "gpt-oss-20b") else half]

    monkeypatch.setattr(mr, "recorded", recorded)
    found = mr.recorded_windows_change(evidence)
    assert asked == [
        (model, *kinds)
        for model in ("gpt-oss-20b", "olmoe-1b-7b")
        for kinds in (("math",), ("dialogue", "prose"))
    ]
    assert found.samples == pytest.approx((100, -50))
    assert (found.badge, found.over) == ("counted", "models")
    assert found.conditions == "gpt-oss-20b +100.00, olmoe-1b-7b -50.00"


def test_windows_and_their_whole_decode_leave_out_the_prompt_and_the_rest() -> None:
    """A prompt of two tokens and a third window of three tokens do not count as windows."""
    ids = [[6, 7]] * 2 + [[0, 1]] * 15 + [[2, 3]] * 15 + [[4, 5]] * 3
    # Use of the whole: 15 of 0 to 3, 3 of 4 and 5; a window's cosine with it.
    cosine = 2 * 15 * 15 / (np.sqrt(2 * 15**2) * np.sqrt(4 * 15**2 + 2 * 3**2))
    assert mr.to_the_whole([text(ids, prefill=2)]) == pytest.approx(cosine)
    assert mr.successive([text(ids, prefill=2)]) == 0


def test_the_most_popular_expert_of_each_layer(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first layer expert 0 has 3 of 8 choices, in the second 4 of 8: 3 and 4 even shares."""
    ids = np.array([[[0, 1], [0, 1]], [[0, 2], [0, 2]], [[0, 3], [0, 3]], [[4, 5], [0, 4]]])
    asked = with_texts(monkeypatch, {"c4": [RoutedSequence(ids, 0)]})
    found = mr.most_popular(evidence)
    assert (found.samples, found.over) == ((3, 4), "layers")
    assert found.conditions == "C4, all texts; scale model"
    assert mr.more_in_one(evidence).conditions == "1 texts of C4; scale model"
    assert asked == ["c4", "c4"]


def test_experts_of_a_sequence_are_those_of_all_its_tokens(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, six = text([[0, 1], [1, 0]]), text([[0, 1], [2, 3], [4, 5]])
    asked = with_texts(monkeypatch, {"c4": [two, six], "math": [two], "gsm8k": [six]})
    found = mr.of_sequences(evidence)
    few, many = (mr.used_share(mr.MIXTRAL, n) for n in (2, 6))
    assert found.samples == pytest.approx(((few + many) / 2, few, many), rel=1e-5)
    assert asked == ["c4", "math", "gsm8k"]
    assert (found.over, found.badge) == ("data sets", "counted")
    assert found.conditions == ("mean of c4, math, gsm8k; prompts of up to 256 tokens, 64 written")


def given(monkeypatch: pytest.MonkeyPatch, *runs: Any) -> list[Any]:
    asked: list[Any] = []

    def of(self: Evidence, *experiments: Any) -> Runs:
        asked.extend(experiments)
        return Runs(runs)

    monkeypatch.setattr(Evidence, "runs", of)
    return asked


def test_the_largest_change_of_a_first_token(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of 50 points is larger than a gain of 25; another model's loss is not read."""
    asked = given(
        monkeypatch,
        answered("piqa", "moe-ondemand", [1, 1, 1, 0]), answered("piqa", "daop", [1, 1, 1, 1]),
        answered("mmlu", "moe-ondemand", [1, 1, 1, 0]), answered("mmlu", "daop", [1, 0, 0, 0]),
        answered("mmlu", "moe-ondemand", [1] * 4, setting="D2"),
        answered("mmlu", "daop", [0] * 4, setting="D2"),
    )  # fmt: skip
    found = mr.first_token_change("D1")(evidence)
    assert asked == [e.FIRST_TOKEN]
    assert (found.value, found.over, found.badge) == (50, "data sets", "counted")
    assert found.conditions == ("exact: a largest value; piqa, mmlu; 4 questions each, scale model")
    cell = mr.first_token_cell("D1", "mmlu")(evidence)
    assert (cell.samples, cell.badge) == ((0, -100, -100, 0), "counted")
    assert cell.conditions == "mmlu; 4 questions, scale model"
    assert mr.score_change(Runs(ANSWERED.of(workload="passages")), 0.375) == pytest.approx(
        100 / 3 - 100
    )


def test_whole_answers_are_of_the_runs_that_score_them(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = given(monkeypatch, *ANSWERED)
    found = mr.others_change("D1", 0.375)(evidence)
    assert asked == [e.WHOLE_ANSWERS]
    assert (found.over, found.badge) == ("questions", "counted")
    assert found.conditions == "all but mathematics; equations, passages; 3 questions each"
    said = mr.maths_falls_more("D1")(evidence).conditions
    assert said == "mathematics against the others; equations, passages; 3 questions each"
    with pytest.raises(MissingEvidenceError, match="no such answers"):
        mr._scores(Runs([]))


def test_tokens_that_daop_keeps_on_real_data_sets(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """90 % of GSM8K's against 75 % of TriviaQA's: 15 points."""
    runs = [answered(name, "daop", [1]) for name in ("gsm8k", "triviaqa")]
    for one, kept in zip(runs, (0.9, 0.75), strict=True):
        one["accuracy"]["agreement"] = kept
    other = answered("gsm8k", "moe-ondemand", [1])
    other["accuracy"]["agreement"] = 0.0
    asked = given(monkeypatch, *runs, other)
    found = mr.words_change_more(evidence)
    assert asked == [e.WHOLE_ANSWERS]
    assert (found.value, found.badge) == (pytest.approx(15), "counted")
    assert found.conditions == "tokens unchanged: gsm8k 90.0 %, triviaqa 75.0 %"


def test_words_that_say_how_exact_figures_were_counted(evidence: Evidence) -> None:
    token, memory = mr.of_token(evidence), mr.over_memory(evidence)
    assert token.conditions == "exact: a count of the model's parameters"
    assert (token.badge, memory.badge) == ("counted", "counted")
    sizes = [mr.weights_gb(model) / (48 * 2**30 / 1e9) for model in mr.MODELS]
    assert memory.value == pytest.approx(min(sizes), rel=1e-5)
    assert memory.conditions == (
        f"exact: a smallest value; mixtral-8x7b {sizes[0]:.2f}, phi-3.5-moe {sizes[1]:.2f}"
    )

"""Drawn traces have the requested statistics."""

import json
from dataclasses import replace

import numpy as np
import pytest

from moebench.substrate.analysis.statistics import (
    concentration_within,
    lag_overlap,
    prefill_decode_similarity,
    summary,
)
from moebench.substrate.analysis.targets import Target, judge, targets, value_at
from moebench.substrate.errors import InputError, UnknownNameError, UsageError
from moebench.substrate.models.catalogue import model_shape, scale_names
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.fit import drawn_statistics
from moebench.substrate.traces.recipes import SynthesisRecipe, family, recipes
from moebench.substrate.traces.replay import routings
from moebench.substrate.traces.synthesis import (
    DrawnPredictions,
    Synthesis,
    Topology,
    _bisect,
    compared,
    correlation_for_recall,
    prefill_for_similarity,
    synthesize,
)

TOPOLOGY = Topology(layers=6, experts=32, top_k=4)


def drawn(
    recipe: SynthesisRecipe, sequences: int = 8, prompt: int = 32, new: int = 128, seed: int = 0,
    topology: Topology = TOPOLOGY,
) -> list[RoutedSequence]:  # fmt: skip
    synthesis = Synthesis(topology, recipe, seed)
    found = []
    for _ in range(sequences):
        ids, scores, predicted = synthesis.draw(prompt, new)
        kinds = {}
        if predicted is not None:
            guess = np.full(scores.shape, np.nan)
            guess[prompt:, :-1] = predicted
            kinds = {"gate": guess}
        found.append(RoutedSequence(ids, prompt, scores, kinds))
    return found


def test_other_seeds_of_one_model_are_other_texts_with_the_same_popular_experts() -> None:
    """All of the static part is common: the most popular experts are the model's alone."""
    recipe = replace(SynthesisRecipe(static=0.9, ar1=0, common=1), recall=None)

    def popular(seed: int, model: int | None) -> tuple[np.ndarray, np.ndarray]:
        ids = Synthesis(TOPOLOGY, recipe, seed, model).draw(32, 64).ids_TLK
        counts = [np.bincount(layer.ravel(), minlength=32) for layer in ids.swapaxes(0, 1)]
        return ids, np.argmax(counts, axis=1)

    (one, first), (other, second) = popular(1, 0), popular(2, 0)
    assert not np.array_equal(one, other)
    assert np.mean(first == second) > 0.5
    assert np.mean(first == popular(1, None)[1]) < 0.5
    # The model's own seed draws what it drew without the argument.
    assert np.array_equal(popular(1, 1)[0], popular(1, None)[0])


def statistic(recipe: SynthesisRecipe, name: str, **more) -> float:
    return compared(drawn(recipe, **more), TOPOLOGY.experts, {})[name].drawn


@pytest.mark.parametrize(
    ("experts", "top_k", "recall", "published"),
    [
        (8, 2, 0.84, 0.963), (8, 2, 0.9, 0.986), (8, 2, 0.93, 0.994), (64, 8, 0.84, 0.975),
        (64, 8, 0.9, 0.991), (128, 8, 0.84, 0.982), (8, 2, 0.6, 0.73), (64, 8, 0.6, 0.82),
        (128, 8, 0.6, 0.87),
    ],
)  # fmt: skip
def test_correlations_behind_a_recall(experts, top_k, recall, published):
    """Computed elsewhere for the same question."""
    assert correlation_for_recall(experts, top_k, recall) == pytest.approx(published, abs=0.012)


def test_white_noise_overlaps_by_chance():
    overlap = statistic(SynthesisRecipe(static=0), "lag_overlap.1")
    assert overlap == pytest.approx(4 / 32, abs=0.01)


def test_popularity_lasts_and_recency_fades():
    static = drawn(SynthesisRecipe(static=0.5))
    recent = drawn(SynthesisRecipe(static=0, ar1=0.6, rho=0.6))
    for lag in (1, 8):
        assert lag_overlap(static, lag).mean() > 0.3, "popularity is the same at every lag"
    assert lag_overlap(static, 1).mean() == pytest.approx(lag_overlap(static, 8).mean(), abs=0.02)
    assert lag_overlap(recent, 1).mean() > 0.22
    assert lag_overlap(recent, 8).mean() == pytest.approx(4 / 32, abs=0.02)


def test_what_lasts_follows_the_depth_profile():
    overlaps = lag_overlap(drawn(SynthesisRecipe(static=0.4, depth=(0, 2, 1))), 1)
    assert overlaps[0] == pytest.approx(4 / 32, abs=0.02)
    assert overlaps.argmax() in (2, 3)
    assert overlaps[0] < overlaps[-1] < overlaps.max()


@pytest.mark.slow
def test_a_common_part_makes_all_sequences_alike():
    apart, alike = (
        statistic(SynthesisRecipe(static=0.5, common=c), "popularity.gini") for c in (0.0, 1.0)
    )
    assert alike > apart + 0.15
    name = "popularity_within.gini"
    within = [statistic(SynthesisRecipe(static=0.5, common=c), name) for c in (0.0, 1.0)]
    assert within[0] == pytest.approx(within[1], abs=0.06), "one sequence alone shows no difference"


@pytest.mark.parametrize("wanted", [0.6, 0.8, 0.9])
def test_prefill_is_as_much_like_decode_as_asked(wanted):
    recipe = SynthesisRecipe(static=0.5, common=0)
    prefill = prefill_for_similarity(TOPOLOGY, recipe, wanted)
    found = drawn(replace(recipe, prefill=prefill), sequences=16, prompt=128)
    assert prefill_decode_similarity(found, 32) == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("wanted", [0.5, 0.84, 0.97])
def test_the_predictor_recalls_what_was_asked(wanted):
    assert statistic(
        SynthesisRecipe(static=0.3, recall=wanted), "prediction.gate"
    ) == pytest.approx(wanted, abs=0.02)


def test_predictions_are_drawn_in_single_precision_after_the_truth():
    truth = np.random.default_rng(1).standard_normal((3, 8), dtype=np.float32)
    drawn_ = DrawnPredictions(experts=8, top_k=2, recall=0.8, spread=1.1)
    found = drawn_.of(truth, np.random.default_rng(2))
    assert found.dtype == np.float32
    noise = np.random.default_rng(2).standard_normal((3, 8), dtype=np.float32)
    c = correlation_for_recall(8, 2, 0.8)
    logits = 1.1 * (c * truth + np.sqrt(1 - c * c) * noise)
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_predictions_of_scores_assign_drawn_logits_in_the_scores_order():
    scores = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], dtype=np.float32)
    drawn_ = DrawnPredictions(experts=3, top_k=3, recall=1.0, spread=1.0)  # nothing is wrong
    found = drawn_.of_scores(scores, np.random.default_rng(2))
    assert found.dtype == np.float32
    random = np.random.default_rng(2)
    random.random(scores.shape)  # orders equal scores
    best = np.sort(random.standard_normal((2, 3), dtype=np.float32))[:, ::-1]
    logits = np.array([[best[0, 2], best[0, 0], best[0, 1]], [best[1, 0], best[1, 2], best[1, 1]]])
    np.testing.assert_allclose(found, np.exp(logits) / np.exp(logits).sum(1, keepdims=True), 1e-5)


def test_scores_are_a_softmax_and_rank_the_choice_first():
    (routing,) = drawn(SynthesisRecipe(static=0.3, spread=1.4), sequences=1)
    scores = routing.scores_TLE
    assert np.allclose(scores.sum(2), 1, atol=1e-5)
    assert np.array_equal(np.argsort(-scores, 2, kind="stable")[..., :4], routing.ids_TLK)


@pytest.mark.parametrize("model", scale_names())
def test_texts_of_a_shipped_recipe_route_as_real_models_do(model):
    """Other texts than those that the recipe was fitted on."""
    wanted = targets(model)
    drawn_texts = drawn_statistics(family(model), Topology.of(model_shape(model)), seed=7)
    judged = {name: judge(drawn_texts[name], wanted[name]) for name in drawn_texts.keys() & wanted}
    assert len(judged) >= 18
    assert [name for name, judgement in judged.items() if judgement == "off"] == []
    near = [name for name, judgement in judged.items() if judgement == "near"]
    assert len(near) <= len(judged) / 3, near


@pytest.mark.parametrize("model", scale_names())
def test_predictions_and_scores_of_a_shipped_recipe_are_real_models_too(model):
    _, experts, top_k = Topology.of(model_shape(model))
    texts = drawn(family(model), 1, 1, 65, topology=Topology(8, experts, top_k))
    found = compared(texts, experts, targets(model))
    for name in ("prediction.gate", "weight_by_rank.1"):
        assert found[name].judgement != "off", found[name]


#: Of 512 greedy steps, four prompts a model (pjordanandrsn/grouped-nf4-gemm): overlap with the
#: token 1 and 8 before, and Gini of a sequence's use.
PUBLISHED = {
    "gpt-oss-20b": (Topology(24, 32, 4), 0.444, 0.35, 0.53),
    "granite-3b-a800m": (Topology(32, 40, 8), 0.436, 0.353, 0.462),
    "qwen1.5-moe-a2.7b": (Topology(24, 60, 4), 0.144, 0.103, 0.42),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_other_families_come_near_what_was_published(name):
    """At the model's own number of experts, within what four prompts can say of it."""
    topology, lag_1, lag_8, gini = PUBLISHED[name]
    texts = drawn(replace(family(name), recall=None), 3, 1, 513, topology=topology)
    assert lag_overlap(texts, 1).mean() == pytest.approx(lag_1, abs=0.06)
    assert lag_overlap(texts, 8).mean() == pytest.approx(lag_8, abs=0.06)
    found = concentration_within(texts, topology.experts)
    assert found["gini"] == pytest.approx(gini, abs=0.12)


def test_a_drawn_trace_is_judged_by_what_is_wanted_of_it():
    texts = drawn(SynthesisRecipe(static=0.3), prompt=2, new=40)
    overlap = value_at(summary(texts, 32), "lag_overlap.1")
    wanted = {"lag_overlap.1": Target(overlap, 1.0, "me"), "used.32": Target(0.1, 0.2, "me")}
    found = compared(texts, 32, wanted)
    assert (found["lag_overlap.1"].drawn, found["lag_overlap.1"].judgement) == (overlap, "in range")
    assert found["used.32"].judgement == "off"
    assert (found["lag_overlap.2"].target, found["lag_overlap.2"].judgement) == (None, None)
    assert not {"used.64", "used.256", "prediction.gate"} & found.keys(), "too short, not drawn"


def test_one_seed_is_one_trace(tmp_path):
    recipe = SynthesisRecipe(static=0.3, ar1=0.2, rho=0.5, recall=0.8, prefill=0.8)
    hashes = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(Synthesis(TOPOLOGY, recipe, seed), "tiny", [3, 3], 4, tmp_path / name)
        hashes.append(open_trace(tmp_path / name).hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_drawn_trace_says_so_and_serves_every_kind_of_prediction(tmp_path):
    recipe = SynthesisRecipe(static=0.3, recall=0.8)
    synthesize(Synthesis(TOPOLOGY, recipe, 0), "tiny", [5] * 3, 4, tmp_path / "t")
    trace = open_trace(tmp_path / "t")
    assert trace.prompts == [5] * 3
    assert [trace.passes(s) for s in range(3)] == [4] * 3
    assert set(trace.header.predictions) == {"gate", "normed", "layer"}
    assert trace.predicted("gate") is trace.predicted("normed") is trace.predicted("layer")
    assert any("drawn" in note for note in trace.header.notes)
    assert json.loads((tmp_path / "t" / "trace.json").read_text())["source"]["seed"] == 0
    assert [r.prefill for r in routings(trace)] == [5] * 3


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"static": 1.2}, "static is 1.2"),
        ({"static": 0.7, "ar1": 0.4}, "sum may be 1"),
        ({"static": 0.1, "rho": 1.0}, "rho is 1"),
        ({"static": 0.1, "recall": -0.1}, "recall"),
        ({"static": float("nan")}, "static is nan"),
        ({"static": 0.1, "prefill": 2.0}, "prefill is 2; allowed: 0 to 1"),
        ({"static": 0.1, "spread": 0.0}, "spread"),
        ({"static": 0.1, "depth": (0, 0, 0)}, "depth"),
    ],
)
def test_an_impossible_recipe_is_one_line(fields, says):
    with pytest.raises(UsageError, match=says):
        SynthesisRecipe(**fields)


def test_an_unknown_family_names_the_nearest():
    with pytest.raises(UnknownNameError, match="olmoe-1b-7b"):
        family("olmoe")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "cannot be read"),
        ("a: 3", "a"),
        ("a: {static: 0.3, noise: 0.1}", r"a\.noise: Unexpected"),
        ("a: {ar1: 0.3}", r"a\.static: .*required"),
    ],
)
def test_a_bad_file_of_recipes_is_one_line(tmp_path, text, says):
    file = tmp_path / "recipes.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=says) as error:
        recipes(file)
    assert "\n" not in str(error.value)


def test_a_rising_function_is_searched_between_two_ends():
    calls = []

    def square(x: float) -> float:
        calls.append(x)
        return x * x

    assert _bisect(square, 4.0, 0.0, 2.0) == 2.0, "its largest value is reached at the end"
    assert _bisect(square, 9.0, 0.0, 2.0) == 2.0, "or nowhere"
    assert calls == [2.0, 2.0]
    assert _bisect(square, 0.25, 0.0, 2.0, steps=3) == 0.375  # between .25 and .5
    assert calls[2:] == [2.0, 1.0, 0.5, 0.25]
    assert _bisect(square, -1.0, 0.0, 2.0, steps=2) == 0.25
    assert _bisect(square, 0.3, 0.0, 1.0) == pytest.approx(0.3**0.5, abs=1e-3)

"""Drawn traces have the statistics that were asked for."""

import json

import numpy as np
import pytest

from moebench.substrate.analysis.statistics import lag_overlap, prefill_decode_similarity
from moebench.substrate.errors import UnknownNameError, UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.substrate.traces.file import open_trace
from moebench.substrate.traces.replay import routings
from moebench.substrate.traces.synthesis import (
    FAMILIES,
    Synthesis,
    SynthesisRecipe,
    asked_and_drawn,
    correlation_for_recall,
    family,
    synthesize,
)
from tests.substrate.engine.fakes import small_shape

SHAPE = small_shape(layers=6, experts=32, top_k=4)


def drawn(
    recipe: SynthesisRecipe, sequences: int = 8, prompt: int = 32, new: int = 128, seed: int = 0
):
    synthesis = Synthesis(SHAPE, recipe, seed)
    synthesis.fit(prompt, new)
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


def statistic(recipe: SynthesisRecipe, name: str, **more) -> float:
    found = asked_and_drawn(recipe, drawn(recipe, **more), SHAPE.num_experts)
    return {n: value for n, _, value in found}[name]


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


def test_a_common_part_makes_all_sequences_alike():
    apart, alike = (
        statistic(SynthesisRecipe(static=0.5, common=c), "gini_of_all") for c in (0.0, 1.0)
    )
    assert alike > apart + 0.15
    within = [statistic(SynthesisRecipe(static=0.5, common=c), "gini") for c in (0.0, 1.0)]
    assert within[0] == pytest.approx(within[1], abs=0.06), "one sequence alone shows no difference"


@pytest.mark.parametrize("wanted", [0.6, 0.8, 0.9])
def test_prefill_is_as_much_like_decode_as_asked(wanted):
    recipe = SynthesisRecipe(static=0.5, prefill_similarity=wanted)
    found = drawn(recipe, sequences=16, prompt=128)
    assert prefill_decode_similarity(found, 32) == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("wanted", [0.5, 0.84, 0.97])
def test_the_predictor_recalls_what_was_asked(wanted):
    assert statistic(SynthesisRecipe(static=0.3, recall=wanted), "recall") == pytest.approx(
        wanted, abs=0.02
    )


def test_scores_are_a_softmax_and_rank_the_choice_first():
    (routing,) = drawn(SynthesisRecipe(static=0.3, spread=1.4), sequences=1)
    scores = routing.scores_TLE
    assert np.allclose(scores.sum(2), 1, atol=1e-5)
    assert np.array_equal(np.argsort(-scores, 2, kind="stable")[..., :4], routing.ids_TLK)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_come_near_what_was_published(name):
    """At the model's own number of experts, within what four prompts can say of it."""
    experts, k, layers = {
        "olmoe-1b-7b": (64, 8, 16), "gpt-oss-20b": (32, 4, 24), "granite-3b-a800m": (40, 8, 32),
        "qwen1.5-moe-a2.7b": (60, 4, 24), "mixtral-8x7b": (8, 2, 32),
    }[name]  # fmt: skip
    synthesis = Synthesis(small_shape(layers=layers, experts=experts, top_k=k), family(name), 0)
    found = []
    for _ in range(3):
        ids, scores, predicted = synthesis.draw(1, 257)
        guess = np.full((len(ids), layers, experts), np.nan, np.float32)
        guess[1:, :-1] = predicted
        found.append(RoutedSequence(ids, 1, scores, {"gate": guess}))
    rows = {n: (asked, drawn) for n, asked, drawn in asked_and_drawn(family(name), found, experts)}
    near = {"lag_overlap.1": 0.06, "lag_overlap.8": 0.06, "gini": 0.12, "recall": 0.03}
    for statistic_name, tolerance in near.items():
        asked, value = rows[statistic_name]
        if asked is not None:
            assert value == pytest.approx(asked, abs=tolerance), statistic_name
    assert rows["first_layer"][1] < rows["middle_layer"][1]


def test_published_figures_are_not_held_against_another_topology():
    rows = asked_and_drawn(family("mixtral-8x7b"), drawn(family("mixtral-8x7b"), 2, 2, 16), 32)
    asked = {name: value for name, value, _ in rows}
    assert asked["first_layer"] is None
    assert asked["recall"] == 0.84


def test_one_seed_is_one_trace(tmp_path):
    recipe = SynthesisRecipe(static=0.3, ar1=0.2, rho=0.5, recall=0.8, prefill_similarity=0.8)
    hashes = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(Synthesis(SHAPE, recipe, seed), "tiny", [3, 3], 4, tmp_path / name)
        hashes.append(open_trace(tmp_path / name).hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_drawn_trace_says_so_and_serves_every_kind_of_prediction(tmp_path):
    recipe = SynthesisRecipe(static=0.3, recall=0.8)
    synthesize(Synthesis(SHAPE, recipe, 0), "tiny", [5] * 3, 4, tmp_path / "t")
    trace = open_trace(tmp_path / "t")
    assert trace.prompts == [5] * 3
    assert [trace.passes(s) for s in range(3)] == [4] * 3
    assert set(trace.header.predictions) == {"gate", "layer"}
    assert trace.predicted("gate") is trace.predicted("layer")
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

"""AdapMoE: gating, sensitivities and placement by hand, and any routing in any memory."""

from collections.abc import Sequence
from itertools import pairwise
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.conformance.invariants import check_timeline
from moebench.substrate.engine.decisions import NO_EXPERT, Fetch
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import Lookahead, RoutedSequence
from moebench.substrate.traces.passes import TracedModel
from moebench.systems.adapmoe import (
    MIXTRAL_8X7B,
    MIXTRAL_8X22B,
    AdapMoE,
    AdaptiveGating,
    FirstMissing,
    PlaceBySplit,
    chosen_scores,
    dropped,
    measured_by_the_authors,
)
from moebench.systems.options import build
from tests.substrate.engine.fakes import random_trace, rig, small_shape
from tests.systems.views import cache, shape, view

# --------------------------------------------------------------------------- gating


def drops(scores: Sequence[float], limit: float) -> list[bool]:
    found: list[bool] = dropped(np.array(scores), limit).tolist()
    return found


def test_the_second_expert_is_dropped_below_the_limit():
    assert drops([0.5, 0.25], 0.34) == [False, True]  # a third of the two
    assert drops([0.5, 0.25], 0.33) == [False, False]
    assert drops([0.5, 0.5], 0.5) == [False, False]  # strictly below
    assert drops([0.5, 0.25], 9) == [False, True]  # never the best


@given(st.lists(st.integers(1, 99), min_size=2, max_size=6), st.floats(0, 1.2))
def test_as_many_of_the_lowest_as_stay_below_together(scores, limit):
    scores.sort(reverse=True)
    most = max(n for n in range(len(scores)) if n == 0 or sum(scores[-n:]) / sum(scores) < limit)
    assert drops(scores, limit) == [False] * (len(scores) - most) + [True] * most


def started(layers: int = 2, k: int = 2, **options) -> AdaptiveGating:
    gating, model = AdaptiveGating(**options), shape(8, k, layers)
    gating.start(model, cache(model, 8))
    return gating


def test_the_limit_is_the_root_of_the_threshold_over_the_sensitivity():
    # .25 in layer 0, .5 in layer 1.
    gating = started(threshold=0.01, sensitivity=[0.16, 0.04])
    rows = [[0.4, 0.12, 0.0, 0.0], [0.4, 0.15, 0.0, 0.0], [0.0, 0.3, 0.31, 0.0]]
    for layer, kept in ((0, [[0, -1], [0, 1], [2, 1]]), (1, [[0, -1], [0, -1], [2, -1]])):
        routed = gating.route(view(rows, 2, layer=layer))
        assert routed.ids_TK.tolist() == routed.weigh_as_TK.tolist() == kept
    assert NO_EXPERT == -1


def test_a_prefill_is_exact_and_so_is_no_threshold():
    rows = [[0.9, 0.1, 0.0, 0.0]]
    for gating, phase in ((started(threshold=99), "prefill"), (started(threshold=0), "decode")):
        seen = view(rows, 2, phase=phase)
        assert gating.route(seen).ids_TK is seen.topk_ids_TK
    assert not AdaptiveGating().lossless_at(0)
    assert AdaptiveGating(threshold=0).lossless_at(0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threshold": -1}, r"route\.threshold is -1; allowed: 0 or more"),
        ({"threshold": float("nan")}, r"route\.threshold is nan"),
        ({"sensitivity": [1, 0]}, r"route\.sensitivity is \[1, 0\]; allowed: above 0 each"),
    ],
)
def test_options_out_of_range_are_one_line(options, says):
    with pytest.raises(UsageError, match=says):
        AdaptiveGating(**options)


def test_another_number_of_layers_is_one_line():
    with pytest.raises(UsageError, match=r"has 3 values, the model has 2 layers.*give one for eac"):
        started(sensitivity=[1, 2, 3])


# --------------------------------------------------------------------------- sensitivities


def test_the_authors_figures():
    assert (len(MIXTRAL_8X7B), len(MIXTRAL_8X22B)) == (32, 56)
    for known, total in ((MIXTRAL_8X7B, 98.31029), (MIXTRAL_8X22B, 198.15146)):
        assert sum(known) == pytest.approx(total, abs=1e-7)  # of the figures as printed
        # The deeper the layer, the less sensitive, but for the last.
        assert [*known[:-1]] == sorted(known[:-1], reverse=True)
        assert known[-1] > known[-2]
        assert measured_by_the_authors(len(known)) == pytest.approx(known)
    # run.py's thresholds of the first and the last but one layer.
    limits = AdaptiveGating().limits(shape(8, 2, 32))
    assert (limits[0], limits[30]) == pytest.approx((0.01035, 0.4917), rel=1e-3)
    # Between two layers the geometric mean.
    middle = measured_by_the_authors(63)
    assert middle[0] == pytest.approx(46.69)
    assert middle[1] == pytest.approx(sqrt(46.69 * 17.30))


def text(
    random: np.random.Generator, sensitivity: Sequence[float] | None, layers: int = 2, k: int = 3,
    tokens: int = 40,
) -> RoutedSequence:  # fmt: skip
    """Return a text, half of it a prompt."""
    scores = random.random((tokens, layers, 8))
    ids = np.argsort(-scores, axis=2)[..., :k]
    values = None if sensitivity is None else np.array(sensitivity)
    return RoutedSequence(ids, tokens // 2, scores, sensitivity_L=values)


def calibrated(policy, texts: Sequence[RoutedSequence], model, tmp_path):
    policy.calibrate(texts, model, tmp_path, lambda done, total: None)
    return policy


def test_what_was_measured_is_scaled_to_the_authors_operating_point(tmp_path):
    random, model = np.random.default_rng(0), shape(8, 3, 2)
    texts = [text(random, (4.0, 1.0)), text(random, (2.0, 3.0))]
    gating = calibrated(AdaptiveGating(), texts, model, tmp_path)
    limits = gating.limits(model)
    assert (limits[1] / limits[0]) ** 2 == pytest.approx(3 / 2)
    decoded = np.concatenate([t.scores_TLE[20:] for t in texts])
    chosen = np.sort(decoded, axis=2)[..., :-4:-1]
    drop = dropped(chosen, limits[:, None])
    assert drop[..., 1:].mean() == pytest.approx(0.25, abs=0.01)
    # The threshold still counts.
    twice = calibrated(AdaptiveGating(threshold=0.02), texts, model, tmp_path).limits(model)
    assert twice == pytest.approx(2 * limits)
    assert "measured" in gating.learnt["sensitivity"]


def test_a_text_counts_by_its_tokens(tmp_path):
    """(4, 1) over 20 tokens and (2, 3) over 60: means of 2.5 in both layers."""
    random, model = np.random.default_rng(0), shape(8, 3, 2)
    texts = [text(random, (4.0, 1.0), tokens=20), text(random, (2.0, 3.0), tokens=60)]
    limits = calibrated(AdaptiveGating(), texts, model, tmp_path).limits(model)
    assert limits[0] == pytest.approx(limits[1])


def test_without_gradients_the_authors_figures_are_taken(tmp_path):
    random, model = np.random.default_rng(0), shape(8, 3, 2)
    known, recorded = text(random, (4.0, 1.0)), text(random, None)
    for texts in ([recorded], [known, recorded]):
        gating = calibrated(AdaptiveGating(), texts, model, tmp_path)
        assert gating.limits(model) == pytest.approx(np.sqrt(0.005 / measured_by_the_authors(2)))
        assert "no gradients" in gating.learnt["note"]
    assert AdaptiveGating().calibrates
    assert not AdaptiveGating(sensitivity=[1, 2]).calibrates


def test_one_expert_a_token_is_never_dropped(tmp_path):
    random, model = np.random.default_rng(0), shape(8, 1, 2)
    gating = calibrated(AdaptiveGating(), [text(random, (4.0, 1.0), k=1)], model, tmp_path)
    gating.start(model, cache(model, 8))
    seen = view([[0.1, 0.9, 0.0]], 1)
    assert gating.route(seen).ids_TK is seen.topk_ids_TK


# --------------------------------------------------------------------------- placement


def of_two_layers(right: bool) -> RoutedSequence:
    """Return a prompt and two decoded tokens, top-2, with good or bad predictions of layer 1."""
    ids = np.array([[[0, 1], [2, 3]], [[1, 2], [3, 0]], [[0, 3], [1, 2]]])
    scores = np.zeros((3, 2, 4))
    np.put_along_axis(scores, ids, np.array([0.6, 0.3]), axis=2)
    guess = scores[:, [1, 0]] if right else 1 - scores[:, [1, 0]]
    guess[:, 1] = np.nan
    return RoutedSequence(ids, 1, scores, {"normed": guess, "gate": np.full((3, 2, 4), np.nan)})


def placed(system: AdapMoE, texts: Sequence[RoutedSequence], tmp_path) -> PlaceBySplit:
    place = system.place
    assert isinstance(place, PlaceBySplit)
    return calibrated(place, texts, shape(4, 2), tmp_path)


def test_accuracy_is_the_share_of_predictions_that_were_chosen(tmp_path):
    model = shape(4, 2)
    for texts, second in (([True], 1.0), ([False], 0.0), ([True, False], 0.5)):
        place = placed(AdapMoE(), [of_two_layers(right) for right in texts], tmp_path)
        assert place.accuracies(model) == [0.0, second]
    # Experts of another predictor, or of none, are not fetched.
    gate = placed(build("adapmoe", {"prefetch": "next-gate"}), [of_two_layers(True)], tmp_path)
    nobody = placed(build("adapmoe", {"prefetch": "none"}), [of_two_layers(True)], tmp_path)
    assert gate.accuracies(model) == nobody.accuracies(model) == [0.0, 0.0]


def test_how_many_experts_a_token_uses_is_the_gatings_doing(tmp_path):
    model, texts = shape(4, 2), [of_two_layers(True)]
    # The second has a third of the weight: below .5 in layer 0, above .2 in layer 1.
    options = {"route.sensitivity": "[0.02, 0.125]"}
    first, second = [[1, 2], [0, 3]], [[3, 0], [1, 2]]
    gated = placed(build("adapmoe", options), texts, tmp_path)
    assert gated.used(model) == [[[1], [0]], second]
    exact = placed(build("adapmoe", {"route": "exact"}), texts, tmp_path)
    assert exact.used(model) == [first, second]
    # By the authors' assumption one expert misses (4 - s) / 4 of the time; LRU, which begins with 0
    # and 1, finds 1, and 0 with one slot more.
    uniform = placed(build("adapmoe", options | {"place.misses": "uniform"}), texts, tmp_path)
    assert uniform.loads(model)[0] == [1, 0.75, 0.5, 0.25, 0]
    assert gated.loads(model)[0] == [1, 1, 0, 0, 0]


def test_the_slots_go_where_loads_are_expected(tmp_path):
    model = shape(4, 2)
    place = placed(AdapMoE(), [of_two_layers(True)], tmp_path)
    # Layer 1's prefetch is always right, layer 0 has none.
    assert place.place(model, 5, "global") == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3)]
    assert place.place(model, 5, "layer") == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert place.place(model, 1, "global") in ([(0, 3)], [(1, 3)])
    assert place.place(model, 0, "global") == []
    # Not calibrated, or in another system, all layers are alike.
    assert PlaceBySplit().place(model, 4, "global") == [(0, 2), (0, 3), (1, 2), (1, 3)]


# --------------------------------------------------------------------------- prefetching


def fetched(held: Sequence[int], *forecasts: Sequence[float], layers: int = 1) -> list[Fetch]:
    """Return the fetches for forecasts of layers 1, 2, ... with these keys on the device."""
    model, policy = shape(8, 2, 4), FirstMissing(layers=layers)
    slots = cache(model, 9)
    policy.start(model, slots)
    for key in held:
        slots.claim(key, None)
    forecast = {layer: np.array([scores]) for layer, scores in enumerate(forecasts, start=1)}
    return list(policy.prefetch(view([[0.0] * 8], 2), forecast))


def test_the_first_missing_of_the_predicted_top_k_is_fetched_alone():
    guess = [0.1, 0.5, 0.0, 0.3, 0.2, 0.0, 0.0, 0.0]
    assert fetched([], guess) == [Fetch(1, 1)]
    assert fetched([9], guess) == [Fetch(1, 3)]
    assert fetched([9, 11], guess) == []  # the third is not predicted
    assert fetched([9, 11], guess, guess, layers=2) == [Fetch(2, 1)]
    assert fetched([9], guess, guess, layers=2) == [Fetch(1, 3)]


def test_the_best_score_of_any_row_counts():
    model, policy = shape(8, 1, 2), FirstMissing()
    policy.start(model, cache(model, 4))
    guess = np.array([[0.3, 0.0, 0.0, 0.0], [0.0, 0.0, 0.4, 0.1]])
    assert list(policy.prefetch(view([[0.0] * 4] * 2, 1), {1: guess})) == [Fetch(1, 2)]


def test_it_reads_the_state_that_the_gate_reads():
    (predictor,) = AdapMoE(prefetch=FirstMissing(layers=3)).predictors
    assert (predictor.lookahead, predictor.layers) == (Lookahead.NORMED, 3)
    with pytest.raises(UsageError, match=r"prefetch\.layers is 0; allowed: 1 or more"):
        FirstMissing(layers=0)


# --------------------------------------------------------------------------- the whole system


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(2, 18), st.integers(1, 3), st.integers(1, 2))
def test_any_routing_in_any_memory(seed, slots, rows, layers):
    model = small_shape(layers=3, experts=6)
    trace = random_trace(seed, model, [[2] * rows], 6)
    options = {"prefetch.layers": str(layers), "route.sensitivity": "[0.1, 0.1, 0.02]"}
    made = rig(build("adapmoe", options), TracedModel(trace), slots=slots)
    made.engine.generate([[1, 1]] * rows, 6)
    check_timeline(made.spans, made.events, num_experts=6, capacity=slots)
    prefill, decode = made.counts["prefill"], made.counts["decode"]
    assert (prefill.replaced, prefill.prefetched) == (0, 0)
    # At most one expert a layer is fetched, of those that have a next one.
    assert decode.prefetched <= 5 * (len(model.moe_layers) - 1)


def test_without_a_threshold_it_is_lossless():
    assert not build("adapmoe").lossless
    assert build("adapmoe", {"route.threshold": "0"}).lossless
    assert build("adapmoe").max_batch is None


def test_only_the_next_layer_is_searched_unless_asked():
    """The paper fetches an expert of the next layer; further layers are an option here."""
    assert FirstMissing().layers == 1
    assert FirstMissing().predictor.layers == 1
    assert AdapMoE().prefetch == FirstMissing(layers=1)


@pytest.mark.parametrize(
    ("ours", "logarithms", "total"),
    [(MIXTRAL_8X7B, -35.853973, 98.311305), (MIXTRAL_8X22B, -28.283640, 198.153733)],
)
def test_sensitivities_are_those_of_the_authors_files(ours, logarithms, total):
    """Their sum and that of their logarithms, over the authors' numbers in full precision.

    They fall from layer to layer but for the last one.
    """
    assert sum(map(log, ours)) == pytest.approx(logarithms, abs=2e-3)
    assert sum(ours) == pytest.approx(total, abs=5e-3)
    assert all(a > b for a, b in pairwise(ours[:-1]))
    assert ours[-2] < ours[-1] < ours[-6]


def test_scores_of_chosen_experts_are_those_of_decoded_tokens():
    ids = np.array([[[0, 1]], [[2, 0]], [[3, 2]]])
    scores = np.array([[[0.5, 0.3, 0.1, 0.1]], [[0.25, 0.0, 0.5, 0.25]], [[0.0, 0.0, 0.25, 0.75]]])
    found = chosen_scores(RoutedSequence(ids, 1, scores))
    assert found.tolist() == [[[0.5, 0.25]], [[0.75, 0.25]]]
    assert chosen_scores(RoutedSequence(ids, 1)).tolist() == [[[1, 1]], [[1, 1]]]

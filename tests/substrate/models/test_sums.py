"""MoE sums compared with a plain model: deferred outputs, omitted experts, substitutes.

The prefill is long enough that its experts run one by one; a decoded row's run together.
"""

from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from moebench.substrate.models.decoder import GATHERED_PLACES, Decoder
from moebench.substrate.terms import Gate
from tests.substrate.models.driver import passes
from tests.substrate.models.plain import Experts, PlainModel

PROMPTS = [[(7 * i) % 61 for i in range(20)], [3], [60, 1, 8]]
STEPS = 4
TOLERANCE = 1e-4
#: Its gate renormalises and three layers have experts; the other's does not, and two have.
FAMILIES = ("xverse", "deepseek")


def compare(found: Tensor, plain: PlainModel, truth_of: Callable[[PlainModel], Experts]) -> None:
    """Check every step of every sequence, and that the change has an effect."""
    for b, prompt in enumerate(PROMPTS):
        text = prompt + found[:-1, b].argmax(-1).tolist()
        truth = plain.logits(text, truth_of(plain))[len(prompt) - 1 :]
        assert (found[:, b] - truth).abs().max() < TOLERANCE
        assert (truth - plain.logits(text)[len(prompt) - 1 :]).abs().max() > 0.01


def test_prompts_reach_both_computation_paths(decoders):
    for family in FAMILIES:
        k = decoders[family].shape.top_k
        assert sum(map(len, PROMPTS)) * k > GATHERED_PLACES >= len(PROMPTS) * k


# ----------------------------------------------------------------------------- deferral


def late(experts) -> list[int]:
    return [expert for expert in experts if expert % 2]


class Deferred:
    """Plain model that adds odd experts' outputs one layer later, after that layer's gate."""

    def __init__(self, plain: PlainModel) -> None:
        self._plain, self._last = plain, plain.config["num_hidden_layers"] - 1
        self._carried: dict[int, Tensor] = {}

    def __call__(self, layer: int, position: int, x: Tensor) -> Tensor:
        plain = self._plain
        y = plain.normed(layer, x)
        scores = plain.scores(layer, y)
        added = plain.shared(layer, y) + self._carried.pop(position, 0)
        for e, weight in plain.weights(scores, plain.best(scores)).items():
            output = weight * plain.expert(layer, e, y)
            if late([e]) and layer < self._last:
                self._carried[position] = self._carried.get(position, 0) + output
            else:
                added = added + output
        return added


@pytest.mark.parametrize("family", FAMILIES)
def test_deferred_outputs_are_added_one_layer_later(family, decoders, directories):
    decoder: Decoder = decoders[family]

    def moe(step: int, layer: int, gate: Gate) -> None:
        active = list(decoder.dispatch(layer, gate.ids_TK, gate.ids_TK))
        if decoder.shape.next_moe_layers[layer] is not None:
            decoder.defer(layer, late(active))
        decoder.compute(layer, active)
        decoder.shared(layer)

    compare(passes(decoder, PROMPTS, STEPS, moe), PlainModel(directories[family]), Deferred)


# ----------------------------------------------------------------------------- fewer experts


def left_out(ids_TK: np.ndarray) -> np.ndarray:
    """Return a mask of the omitted experts, those with even ids: all, some or none of a row."""
    return ids_TK % 2 == 0


@pytest.mark.parametrize("weighed", ["over the others", "as the model's own"])
@pytest.mark.parametrize("family", FAMILIES)
def test_omitted_experts_have_no_weight(family, weighed, decoders, directories):
    """Who is left out weighs nothing, whether or not the others take over its weight."""
    decoder: Decoder = decoders[family]
    seen: set[int] = set()

    def moe(step: int, layer: int, gate: Gate) -> None:
        ids_TK = np.where(left_out(gate.ids_TK), -1, gate.ids_TK)
        seen.update((ids_TK >= 0).sum(axis=1).tolist())
        weigh_as_TK = ids_TK if weighed == "over the others" else gate.ids_TK
        active = decoder.dispatch(layer, ids_TK, weigh_as_TK)
        assert active == {e: int((ids_TK == e).sum()) for e in sorted({*ids_TK.ravel()} - {-1})}
        decoder.compute(layer, list(active))
        decoder.shared(layer)

    def truth_of(plain: PlainModel) -> Experts:
        def experts(layer: int, position: int, x: Tensor) -> Tensor:
            y = plain.normed(layer, x)
            scores = plain.scores(layer, y)
            best = plain.best(scores)
            kept = [e for e in best if e % 2]
            weights = plain.weights(scores, kept if weighed == "over the others" else best)
            return plain.shared(layer, y) + sum(
                weights[e] * plain.expert(layer, e, y) for e in kept
            )

        return experts

    found = passes(decoder, PROMPTS, STEPS, moe)
    assert {0, decoder.shape.top_k} <= seen
    compare(found, PlainModel(directories[family]), truth_of)


# ----------------------------------------------------------------------------- substitutes


@pytest.mark.parametrize("weighed", ["as itself", "as the one it stands for"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_substitute_weighs_as_it_is_told(family, weighed, decoders, directories):
    """The last rank's expert gives way to the lowest id that was not chosen."""
    decoder: Decoder = decoders[family]

    def substitute(best: list[int]) -> list[int]:
        return [*best[:-1], min(set(range(8)) - set(best))]

    def moe(step: int, layer: int, gate: Gate) -> None:
        ids_TK = np.array([substitute(best) for best in gate.ids_TK.tolist()])
        weigh_as_TK = ids_TK if weighed == "as itself" else gate.ids_TK
        decoder.compute(layer, list(decoder.dispatch(layer, ids_TK, weigh_as_TK)))
        decoder.shared(layer)

    def truth_of(plain: PlainModel) -> Experts:
        def experts(layer: int, position: int, x: Tensor) -> Tensor:
            y = plain.normed(layer, x)
            scores = plain.scores(layer, y)
            best = plain.best(scores)
            used = substitute(best)
            weighs_as = used if weighed == "as itself" else best
            weights = plain.weights(scores, weighs_as)
            routed = zip(used, weighs_as, strict=True)
            return plain.shared(layer, y) + sum(
                weights[w] * plain.expert(layer, e, y) for e, w in routed
            )

        return experts

    compare(passes(decoder, PROMPTS, STEPS, moe), PlainModel(directories[family]), truth_of)

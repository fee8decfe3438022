"""Layers routed ahead: the state that each expert reads, compared with a plain model."""

from collections.abc import Iterable

import numpy as np
import pytest
from torch import Tensor

from moebench.substrate.models.decoder import Decoder
from moebench.substrate.terms import Gate, Lookahead
from tests.substrate.models.driver import PROMPTS, passes
from tests.substrate.models.plain import PlainModel

STEPS = 4
TOLERANCE = 1e-4


def early(experts: Iterable[int]) -> list[int]:
    """Return the experts with even ids, which the host computes before their layer begins."""
    return [expert for expert in experts if expert % 2 == 0]


def decoded_ahead(decoder: Decoder, first: int) -> Tensor:
    """Return logits ``[steps, B, V]``; decode routes layers from ``first`` on ahead."""
    shape = decoder.shape
    ahead: dict[int, np.ndarray] = {}

    def moe(step: int, layer: int, gate: Gate) -> None:
        was_ahead, later = layer in ahead, shape.next_moe_layers[layer]
        ids_TK = ahead.pop(layer, gate.ids_TK)
        if step and later is not None and later >= first:
            scores_TE = decoder.predict(layer, later, (), Lookahead.NORMED)
            ahead[later] = np.argsort(-scores_TE, axis=1)[:, : shape.top_k]
            decoder.route_ahead(later, ahead[later])
        before = early(np.unique(ids_TK).tolist()) if was_ahead else []
        if before:
            decoder.compute_on_host(layer, before, ahead=True)
        active = list(decoder.dispatch(layer, ids_TK, ids_TK))
        decoder.compute(layer, [e for e in active if e not in before])
        decoder.shared(layer)

    return passes(decoder, PROMPTS, STEPS, moe)


class RoutedAhead:
    """Plain model in which a later gate chooses and weighs experts on the earlier gate's input.

    The input is normalised by the earlier layer's norm.  Early experts read it too; other experts
    read the input of their own layer.
    """

    def __init__(self, plain: PlainModel, prompt: int, first: int) -> None:
        self._plain, self._prompt, self._first = plain, prompt, first
        self._states: dict[tuple[int, int], Tensor] = {}

    def __call__(self, layer: int, position: int, x: Tensor) -> Tensor:
        plain = self._plain
        self._states[layer, position] = x
        if position < self._prompt or layer < self._first:
            return plain.own(layer, position, x)
        own = plain.normed(layer, x)
        foreseen = plain.normed(layer - 1, self._states[layer - 1, position])
        scores = plain.scores(layer, foreseen)
        weights = plain.weights(scores, plain.best(scores))
        routed = sum(
            weight * plain.expert(layer, e, foreseen if early([e]) else own)
            for e, weight in weights.items()
        )
        return routed + plain.shared(layer, own)


@pytest.mark.parametrize(("family", "first"), [("xverse", 1), ("xverse", 2), ("deepseek", 2)])
def test_early_experts_read_the_state_that_their_own_layer_was_routed_by(
    family, first, decoders, directories
):
    """With layer 1 routed in layer 0 and layer 2 in layer 1, neither may take the other's state."""
    found = decoded_ahead(decoders[family], first)
    plain = PlainModel(directories[family])
    for b, prompt in enumerate(PROMPTS):
        text = prompt + found[:-1, b].argmax(-1).tolist()
        routed = RoutedAhead(plain, len(prompt), first)
        truth = plain.logits(text, routed)[len(prompt) - 1 :]
        assert (found[:, b] - truth).abs().max() < TOLERANCE
        assert (truth[1:] - plain.logits(text)[len(prompt) :]).abs().max() > 0.01

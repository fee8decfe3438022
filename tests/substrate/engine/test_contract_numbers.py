"""What deferral, fewer experts and layers routed ahead compute, against formulas in fp64."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moebench.harness.conformance.invariants import check_order, check_timeline
from moebench.substrate.engine.decisions import NO_EXPERT, Plan, fetches, split
from moebench.substrate.engine.system import System
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.predict import NextGatesOnNormed
from tests.substrate.engine.fakes import rig
from tests.substrate.engine.own import Placed, Plans, Routes, system
from tests.substrate.models.checkpoints import EXPERTS, make_checkpoint
from tests.substrate.models.plain import PlainModel

PROMPTS = [[5, 9, 2, 44, 17], [3], [60, 1, 8]]
NEW_TOKENS = 4
SLOTS = 6
#: The score that an expert must have to be used, where tokens use fewer than k.
LEAST = 0.3


@pytest.fixture(scope="module", params=["xverse", "deepseek"])
def models(request, tmp_path_factory):
    """A decoder and the formulas of the same weights."""
    path = make_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    checkpoint = Checkpoint(path)
    experts = ResidentExperts(checkpoint, torch.float32)
    decoder = Decoder(checkpoint.shape, checkpoint.common(torch.float32), experts)
    return decoder, PlainModel(path)


def check_logits(models, made: System, formula: Callable[[PlainModel, int], Any]) -> None:
    """The run's logits are the formula's and not those of the model's own routing.

    Args:
        formula: of the plain model and a prompt's length: what the experts of a layer add.
    """
    decoder, plain = models
    with torch.inference_mode():
        ran = rig(made, decoder, slots=SLOTS)
        tokens = ran.engine.generate(PROMPTS, NEW_TOKENS).tokens
    check_timeline(ran.spans, ran.events, num_experts=EXPERTS, capacity=SLOTS)
    if not any(c.deferred for c in ran.counts.values()):
        check_order(ran.spans)
    far = 0.0
    for b, (prompt, written) in enumerate(zip(PROMPTS, tokens, strict=True)):
        text = prompt + written[:-1]
        found = torch.stack([logits[b] for logits in decoder.history])
        truth = plain.logits(text, formula(plain, len(prompt)))[len(prompt) - 1 :]
        torch.testing.assert_close(found.double(), truth, atol=1e-4, rtol=1e-4)
        far = max(far, float((truth - plain.logits(text)[len(prompt) - 1 :]).abs().max()))
    assert far > 0.01


def test_deferred_outputs_are_added_to_the_next_moe_layers_sum(models):
    last = models[0].shape.moe_layers[-1]

    def plan(view, active):
        later = [e for e in active.rows if e % 2] if view.layer != last else []
        device = [e for e in active.rows if e not in later]
        return Plan(device, (), later, fetches(view.layer, set(device) & set(active.absent)))

    def formula(plain, prompt):
        carried: dict[tuple[int, int], Tensor] = {}

        def added(layer: int, position: int, x: Tensor) -> Tensor:
            y = plain.normed(layer, x)
            scores = plain.scores(layer, y)
            parts: dict[bool, list[Tensor]] = defaultdict(list)
            for e, weight in plain.weights(scores, plain.best(scores)).items():
                parts[bool(e % 2) and layer != last].append(weight * plain.expert(layer, e, y))
            late = carried.pop((layer, position), 0)
            carried[layer + 1, position] = sum(parts[True])
            return sum(parts[False]) + plain.shared(layer, y) + late

        return added

    check_logits(models, system(assign=Plans(by=plan)), formula)


def test_tokens_that_use_fewer_experts(models):
    """Those with a score below `LEAST` are left out, sometimes all of a token's."""

    def route(view):
        chosen = np.take_along_axis(view.scores_TE, view.topk_ids_TK, axis=1)
        none = (chosen < LEAST).all(axis=1)
        seen.append(bool(none.any()))
        return np.where(chosen < LEAST, NO_EXPERT, view.topk_ids_TK)

    def formula(plain, prompt):
        def added(layer: int, position: int, x: Tensor) -> Tensor:
            y = plain.normed(layer, x)
            scores = plain.scores(layer, y)
            used = [e for e in plain.best(scores) if scores[e] >= LEAST]
            routed = (w * plain.expert(layer, e, y) for e, w in plain.weights(scores, used).items())
            return sum(routed) + plain.shared(layer, y)

        return added

    seen: list[bool] = []
    check_logits(models, system(route=Routes(by=route), assign=LoadAll()), formula)
    assert any(seen)


def test_a_layer_routed_ahead_through_the_engine(models):
    """Host experts, the even ones, read the state of the layer before; the others their own."""
    ahead = models[0].shape.moe_layers[1:]

    def plan(view, active):
        host = [e for e in active.rows if e % 2 == 0] if view.ahead else []
        device = [e for e in active.rows if e not in host]
        if view.ahead:
            return Plan(device, host, load=fetches(view.layer, set(device) & set(active.absent)))
        return split(active, fetches(view.layer, active.absent))

    def formula(plain, prompt):
        states: dict[tuple[int, int], Tensor] = {}

        def added(layer: int, position: int, x: Tensor) -> Tensor:
            states[layer, position] = x
            if position < prompt or layer not in ahead:
                return plain.own(layer, position, x)
            own = plain.normed(layer, x)
            before = plain.normed(layer - 1, states[layer - 1, position])
            scores = plain.scores(layer, before)
            routed = (
                weight * plain.expert(layer, e, own if e % 2 else before)
                for e, weight in plain.weights(scores, plain.best(scores)).items()
            )
            return sum(routed) + plain.shared(layer, own)

        return added

    route = Routes(ahead=ahead, looks=NextGatesOnNormed())
    made = system(place=Placed(pairs=[(1, 1), (2, 3)]), route=route, assign=Plans(by=plan))
    check_logits(models, made, formula)

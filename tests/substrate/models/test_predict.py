"""Predictions of later layers, and states that policies read, compared with a plain model."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from moebench.substrate.errors import UsageError
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.terms import Gate, Lookahead
from tests.substrate.models.driver import PROMPTS, load, passes, run
from tests.substrate.models.plain import PlainModel

STEPS = 3
TOLERANCE = 1e-4
#: Three layers with experts, and two after a dense one.
FAMILIES = ("xverse", "deepseek")

Asked = Callable[[int, Gate, list[int]], None]


def finish(decoder: Decoder, layer: int, gate: Gate) -> None:
    """Compute the rest of a layer with the model's own routing."""
    decoder.compute(layer, list(decoder.dispatch(layer, gate.ids_TK, gate.ids_TK)))
    decoder.shared(layer)


def rows_of(prompts: list[list[int]]) -> list[tuple[int, int, int, int]]:
    """(pass, row, sequence, position) of every row of a prefill and the decoded tokens after it."""
    found = [(b, t) for b, prompt in enumerate(prompts) for t in range(len(prompt))]
    rows = [(0, row, b, t) for row, (b, t) in enumerate(found)]
    return rows + [
        (step, b, b, len(prompt) + step - 1)
        for step in range(1, STEPS)
        for b, prompt in enumerate(prompts)
    ]


def close(found: np.ndarray, truth: Tensor) -> bool:
    return bool((torch.from_numpy(found) - truth).abs().max() < TOLERANCE)


def texts_of(logits: Tensor) -> list[list[int]]:
    """Return each prompt with the tokens that were fed after it."""
    return [p + logits[: STEPS - 1, b].argmax(-1).tolist() for b, p in enumerate(PROMPTS)]


# ----------------------------------------------------------------------------- gates ahead


#: Through the later layer's norm, and through this layer's.
KINDS = (Lookahead.GATE, Lookahead.NORMED)


@pytest.mark.parametrize("family", FAMILIES)
def test_later_gates_on_this_layers_state(family, decoders, directories):
    """For every later layer, in prefill and decode; with it the state that policies read."""
    decoder, plain = decoders[family], PlainModel(directories[family])
    layers = decoder.shape.moe_layers
    said: dict[tuple[int, int, int, Lookahead], np.ndarray] = {}
    read: dict[tuple[int, int], np.ndarray] = {}

    def moe(step: int, layer: int, gate: Gate) -> None:
        for later in layers[layers.index(layer) :]:
            for kind in KINDS:
                scores_TE = decoder.predict(layer, later, (), kind)
                said[step, layer, later, kind] = scores_TE.copy()
        # The state read is the layer's own, whichever prediction was last.
        read[step, layer] = decoder.hidden(layer).copy()
        assert np.array_equal(decoder.hidden(layers[-1]), read[step, layer])
        finish(decoder, layer, gate)

    texts = texts_of(passes(decoder, PROMPTS, STEPS, moe))
    states: dict[tuple[int, int, int], Tensor] = {}
    for b, text in enumerate(texts):

        def watched(layer: int, position: int, x: Tensor, b: int = b) -> Tensor:
            states[b, layer, position] = x
            return plain.own(layer, position, x)

        plain.logits(text, watched)
    for step, row, b, position in rows_of(PROMPTS):
        for layer in layers:
            own = plain.normed(layer, states[b, layer, position])
            assert close(read[step, layer][row], own)
            for later in layers[layers.index(layer) :]:
                later_norm = plain.normed(later, states[b, layer, position])
                for kind, y in zip(KINDS, (later_norm, own), strict=True):
                    assert close(said[step, layer, later, kind][row], plain.scores(later, y))


@pytest.mark.parametrize("kind", [Lookahead.SHARED, Lookahead.SHARED_RESIDUAL])
@pytest.mark.parametrize("family", FAMILIES)
def test_later_gates_on_the_shared_experts_without_attention(family, kind, decoders, directories):
    """h = normed state + shared output (+ residual where asked): h + LN(h), LN, gate."""
    decoder, plain = decoders[family], PlainModel(directories[family])
    layers = decoder.shape.moe_layers
    said: dict[tuple[int, int, int], np.ndarray] = {}

    def moe(step: int, layer: int, gate: Gate) -> None:
        finish(decoder, layer, gate)
        for later in layers[layers.index(layer) + 1 :]:
            said[step, layer, later] = decoder.predict(layer, later, (), kind).copy()

    texts = texts_of(passes(decoder, PROMPTS, STEPS, moe))
    states: dict[tuple[int, int, int], Tensor] = {}
    for b, text in enumerate(texts):

        def watched(layer: int, position: int, x: Tensor, b: int = b) -> Tensor:
            states[b, layer, position] = x
            return plain.own(layer, position, x)

        plain.logits(text, watched)
    assert said
    for step, row, b, position in rows_of(PROMPTS):
        for layer in layers[:-1]:
            x = states[b, layer, position]
            y = plain.normed(layer, x)
            h = y + plain.shared(layer, y)
            if kind is Lookahead.SHARED_RESIDUAL:
                h = h + x
            for later in layers[layers.index(layer) + 1 :]:
                read = plain.normed(later, h + plain.attention_normed(later, h))
                assert close(said[step, layer, later][row], plain.scores(later, read))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mean_of_each_prompts_embeddings(family, decoders, directories):
    decoder, plain = decoders[family], PlainModel(directories[family])
    decoder.begin(PROMPTS, 1)
    for found, prompt in zip(decoder.embedding(), PROMPTS, strict=True):
        assert close(found, plain.embedded(prompt).mean(0))


# ----------------------------------------------------------------------------- layers ahead


def every_other(experts: list[int]) -> list[int]:
    return experts[::2]


#: What of a layer has been computed when the next one is predicted.
WHEN = ("before dispatch", "some experts")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("family", FAMILIES)
def test_next_layer_prediction_uses_the_experts_computed_so_far(
    family, when, decoders, directories
):
    """The experts that are done and the shared ones; before dispatch, none of this layer's."""
    decoder, plain = decoders[family], PlainModel(directories[family])
    layers = decoder.shape.moe_layers
    said: dict[tuple[int, int], np.ndarray] = {}

    def moe(step: int, layer: int, gate: Gate) -> None:
        last = layer == layers[-1]
        if when == "before dispatch" and not last:
            said[step, layer] = decoder.predict(layer, layer + 1, (), Lookahead.LAYER).copy()
        active = list(decoder.dispatch(layer, gate.ids_TK, gate.ids_TK))
        done = [e for e in active if e % 2]
        decoder.compute(layer, done)
        decoder.shared(layer)
        if when == "some experts" and not last:
            said[step, layer] = decoder.predict(layer, layer + 1, done, Lookahead.LAYER).copy()
        decoder.compute(layer, [e for e in active if e not in done])

    texts = texts_of(passes(decoder, PROMPTS, STEPS, moe))
    for b, text in enumerate(texts):
        for layer in layers[:-1]:
            # Only the last token's state is partial: those before it are in the KV cache already.
            last, seen = len(text) - 1, []

            def experts(
                at: int, position: int, x: Tensor, layer: int = layer, last: int = last
            ) -> Tensor:
                if position == last and at == layer + 1:
                    seen.append(plain.scores(at, plain.normed(at, x)))  # noqa: B023
                if position < last or at != layer:
                    return plain.own(at, position, x)
                if when == "before dispatch":
                    return torch.zeros_like(x)
                y = plain.normed(at, x)
                scores = plain.scores(at, y)
                weights = plain.weights(scores, plain.best(scores))
                routed = sum(w * plain.expert(at, e, y) for e, w in weights.items() if e % 2)
                return routed + plain.shared(at, y)

            plain.logits(text, experts)
            assert close(said[STEPS - 1, layer][b], seen[0])


def test_only_the_next_layer_can_be_run_ahead(decoders):
    decoder = decoders["xverse"]
    decoder.begin([[1, 2]], 1)
    decoder.embed("prefill")
    decoder.attend(0)
    decoder.gate(0)
    with pytest.raises(UsageError, match="layer 0 cannot run layer 2 ahead"):
        decoder.predict(0, 2, (), Lookahead.LAYER)


@pytest.mark.parametrize("last", ["all", "some", "none", "a gate"])
def test_a_prediction_that_stands_for_the_next_layer_changes_no_bit(last, directories):
    """Whatever is asked after it, and of a layer whose experts were substituted or come later."""
    decoder = load(directories["qwen2_moe"], reuse_predictions=True)
    undisturbed = run(load(directories["qwen2_moe"]), PROMPTS, 6)
    shape = decoder.shape

    def predict(layer: int, gate: Gate, active: dict[int, int]) -> None:
        if shape.next_moe_layers[layer] is None:
            return
        everyone = list(active)
        decoder.predict(layer, layer + 1, everyone, Lookahead.LAYER)
        if last == "a gate":
            decoder.predict(layer, layer + 1, (), Lookahead.GATE)
        elif last != "all":
            done = every_other(everyone) if last == "some" else []
            decoder.predict(layer, layer + 1, done, Lookahead.LAYER)

    assert torch.equal(run(decoder, PROMPTS, 6, before_combine=predict), undisturbed)


def test_a_prediction_before_deferral_is_no_truth(directories):
    """The next layer's state lacks what was deferred, whatever was predicted of it."""

    def decoded(reuse: bool) -> Tensor:
        decoder = load(directories["qwen2_moe"], reuse_predictions=reuse)
        last = decoder.shape.moe_layers[-1]

        def moe(step: int, layer: int, gate: Gate) -> None:
            active = list(decoder.dispatch(layer, gate.ids_TK, gate.ids_TK))
            decoder.compute(layer, active)
            decoder.shared(layer)
            if layer != last:
                decoder.predict(layer, layer + 1, active, Lookahead.LAYER)
                decoder.defer(layer, active[:2])

        return passes(decoder, PROMPTS, 4, moe)

    assert torch.equal(decoded(True), decoded(False))

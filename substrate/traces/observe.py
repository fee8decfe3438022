"""Greedy generation and routing of a model with all experts resident, without any system."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from moebench.substrate.models.decoder import Decoder
from moebench.substrate.terms import LOOKAHEADS, Gate, Lookahead, Phase, RoutedSequence


@torch.inference_mode()
def write(
    decoder: Decoder, prompts: Sequence[Sequence[int]], new_tokens: int, stop: int | None
) -> list[list[int]]:
    """Return the tokens that the model generates greedily for a batch of prompts.

    A text ends before the token ``stop``, or after ``new_tokens`` tokens.
    """
    decoder.begin(prompts, new_tokens)
    written: list[list[int]] = [[] for _ in prompts]
    ended = [False] * len(prompts)
    for step in range(new_tokens):
        for _ in _layers(decoder, "prefill" if step == 0 else "decode"):
            pass
        for b, token in enumerate(decoder.head()):
            ended[b] |= token == stop
            if not ended[b]:
                written[b].append(token)
        if all(ended):
            break
    return written


def margins(logits: Sequence[Tensor], lengths: Sequence[int]) -> np.ndarray:
    """Return the gap of each generated token's log-probability to the second-best one, in nats.

    Args:
        logits: ``[B, V]`` of each step.
        lengths: number of generated tokens of each text; later steps are left out.

    Returns:
        one value for each generated token, text by text.
    """
    best = torch.stack([step.topk(2).values for step in logits])
    lead_SB = (best[..., 0] - best[..., 1]).numpy()
    return np.concatenate([lead_SB[:length, b] for b, length in enumerate(lengths)])


@torch.inference_mode()
def read(
    decoder: Decoder, texts: Sequence[Sequence[int]], prefill: int,
    lookaheads: Sequence[Lookahead] = LOOKAHEADS, states: bool = False, embeddings: bool = False,
) -> list[RoutedSequence]:  # fmt: skip
    """Return a model's routing and predictions for texts, computed as one batch in one pass.

    The first ``prefill`` tokens of each text are its prompt.  A token's routing depends only on
    earlier tokens, so the others are routed exactly as if they were decoded one by one.  Layers are
    run ahead (`Lookahead.LAYER`) with no routed expert computed, SMoE's worst case.  Numbers are
    kept in half precision.

    Args:
        states: also keep the hidden states that gates read, and the prompts' embeddings.
        embeddings: also keep each token's embedding.
    """
    means: Sequence[np.ndarray | None] = [None] * len(texts)
    if states:
        decoder.begin([text[:prefill] for text in texts], 0)
        means = [*decoder.embedding().astype(np.float16)]
    decoder.begin(texts, 0)
    ids, scores, hidden = [], [], []
    predicted: dict[str, list[np.ndarray]] = {kind.value: [] for kind in lookaheads}
    for layer, gate, guesses in _layers(decoder, "prefill", lookaheads):
        if states:
            hidden.append(decoder.hidden(layer).astype(np.float16))
        ids.append(gate.ids_TK)
        scores.append(gate.scores_TE.astype(np.float16))
        for kind in lookaheads:
            guess = guesses.get(kind)
            missing = np.full_like(scores[-1], np.nan)
            predicted[kind.value].append(missing if guess is None else guess.astype(np.float16))
    ends = np.cumsum([len(text) for text in texts])[:-1]
    embedded: Sequence[np.ndarray | None] = [None] * len(texts)
    if embeddings:
        decoder.begin(texts, 0)
        decoder.embed("prefill")
        embedded = np.split(decoder.token_embeddings().astype(np.float16), ends)

    def by_text(layers: list[np.ndarray]) -> list[np.ndarray]:
        return np.split(np.stack(layers, axis=1), ends)

    kinds = {kind: by_text(layers) for kind, layers in predicted.items()}
    states_TLH: Sequence[np.ndarray | None] = by_text(hidden) if states else means
    return [
        RoutedSequence(
            ids_TLK=ids_TLK,
            prefill=prefill,
            scores_TLE=scores_TLE,
            predicted_TLE={kind: parts[b] for kind, parts in kinds.items()},
            hidden_TLH=states_TLH[b],
            embedding_H=means[b],
            embedding_TH=embedded[b],
        )
        for b, (ids_TLK, scores_TLE) in enumerate(zip(by_text(ids), by_text(scores), strict=True))
    ]


def _layers(
    decoder: Decoder, phase: Phase, lookaheads: Sequence[Lookahead] = ()
) -> Iterator[tuple[int, Gate, dict[Lookahead, np.ndarray]]]:
    """Run one pass, and yield each MoE layer, its gate and its predictions of the next layer."""
    shape = decoder.shape
    decoder.embed(phase)
    for layer in range(shape.num_layers):
        decoder.attend(layer)
        if layer in shape.dense_layers:
            decoder.dense(layer)
            continue
        guesses: dict[Lookahead, np.ndarray] = {}
        wanted = lookaheads if layer + 1 in shape.moe_layers else ()
        gate = decoder.gate(layer)
        for kind in Lookahead.GATE, Lookahead.NORMED:
            if kind in wanted:
                guesses[kind] = decoder.predict(layer, layer + 1, (), kind)
        active = decoder.dispatch(layer, gate.ids_TK, gate.ids_TK)
        decoder.compute(layer, list(active))
        if shape.shared_width:
            decoder.shared(layer)
        if Lookahead.LAYER in wanted:
            guesses[Lookahead.LAYER] = decoder.predict(layer, layer + 1, (), Lookahead.LAYER)
        decoder.combine(layer)
        yield layer, gate, guesses

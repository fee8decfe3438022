"""Drives a decoder's methods, one pass after the other, as an engine would."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.terms import Gate

PROMPTS = [[5, 9, 2, 44, 17, 17, 30], [3], [60, 1, 8, 52]]

Order = Callable[[Iterable[int]], Iterable[int]]
Choose = Callable[[int, Gate], np.ndarray]


def load(
    path: Path, dtype: torch.dtype = torch.float32, reuse_predictions: bool = False
) -> Decoder:
    checkpoint = Checkpoint(path)
    experts = ResidentExperts(checkpoint, dtype)
    return Decoder(checkpoint.shape, checkpoint.common(dtype), experts, reuse_predictions)


def passes(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    steps: int,
    moe: Callable[[int, int, Gate], None],
) -> Tensor:
    """Return logits ``[steps, B, V]`` of each greedy choice: one prefill, then decode.

    Args:
        moe: of a pass and a layer, all from its gate to the sum.
    """
    decoder.begin(prompts, steps)
    for step in range(steps):
        decoder.embed("decode" if step else "prefill")
        for layer in range(decoder.shape.num_layers):
            decoder.attend(layer)
            if layer in decoder.shape.dense_layers:
                decoder.dense(layer)
            else:
                moe(step, layer, decoder.gate(layer))
                decoder.combine(layer)
        assert decoder.head() == decoder.history[-1].argmax(-1).tolist()
    return torch.stack(decoder.history)


def run(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    steps: int,
    order: Order = list,
    choose: Choose = lambda layer, gate: gate.ids_TK,
    before_combine: Callable[[int, Gate, dict[int, int]], None] = lambda layer, gate, active: None,
) -> Tensor:
    """Return the logits of `passes`, computing experts one by one in a given order."""

    def moe(step: int, layer: int, gate: Gate) -> None:
        active = decoder.dispatch(layer, choose(layer, gate), gate.ids_TK)
        for expert in order(active):
            decoder.compute(layer, [expert])
        if decoder.shape.shared_width:
            decoder.shared(layer)
        before_combine(layer, gate, active)

    return passes(decoder, prompts, steps, moe)

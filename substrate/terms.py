"""Types shared by models, the engine, policies and traces.  Imports no torch.

Shape letters: T rows (all tokens of a pass), E experts, K chosen experts a token, L MoE layers,
H the width of the model that computes, which may be a scale model's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

Phase = Literal["prefill", "decode"]
#: What may be known of recorded tokens beside the chosen experts, and learnt from: predictions are
#: those of the system's own predictors, sensitivity is known where a model computes.
Learnt = Literal["scores", "hidden", "embedding", "predictions", "sensitivity"]
#: What of these a trace must hold where it is asked for, in words.
WORDS: dict[Learnt, str] = {
    "scores": "gate scores", "hidden": "hidden states", "embedding": "embeddings",
}  # fmt: skip
Ids = np.ndarray
Scores = np.ndarray


class Lookahead(StrEnum):
    """What a prefetcher's prediction of the next layer's gate scores is computed from."""

    # Enum's own hash is a Python function; predictions are looked up by it in every layer.
    __hash__ = str.__hash__

    NONE = "none"
    GATE = "gate"  # next norm and gate on this layer's post-attention state (Mixtral-Offloading)
    NORMED = "normed"  # next gate on what this layer's gate reads: its own normed state (DAOP §III)
    LAYER = "layer"  # resident and shared experts, next attention, next gate (SMoE §IV-C)
    # The state that this layer's gate read plus its shared experts, next gate (SMoE's code), and
    # the same plus the residual (its code for DeepSeek).
    SHARED = "shared"
    SHARED_RESIDUAL = "shared_residual"
    EXACT = "exact"  # the later gate's own choice: known where recorded routing is replayed


#: The kinds of prediction that traces hold; the others are answered by a model that computes.
LOOKAHEADS = (Lookahead.GATE, Lookahead.NORMED, Lookahead.LAYER)


class Gate(NamedTuple):
    """What a layer's router says: scores ``[T, E]`` and the model's own choice ``[T, K]``."""

    scores_TE: Scores
    ids_TK: Ids


@dataclass(frozen=True, slots=True)
class RoutedSequence:
    """What the router did with one sequence, prompt first.

    ``ids_TLK`` are the chosen experts, best first; ``prefill`` of the T tokens are the prompt.
    Optional are all gate scores; for each kind of lookahead, what a layer predicted of the next MoE
    layer's scores; the states that the gates read; the prompt's mean token embedding; and how
    sensitive each layer is to the share of a token's lowest expert (`DifferentiableDecoder`).  A
    prediction that was not made is NaN; the last layer's is not read.
    """

    ids_TLK: np.ndarray
    prefill: int
    scores_TLE: np.ndarray | None = None
    predicted_TLE: Mapping[str, np.ndarray] = field(default_factory=dict)
    hidden_TLH: np.ndarray | None = None
    embedding_H: np.ndarray | None = None
    sensitivity_L: np.ndarray | None = None

"""Types shared by models, the engine, policies and traces, in a module without torch.

Shape letters: T rows (all tokens of a pass), E experts, K chosen experts a token, L MoE layers,
H the hidden width of the computing model, which may be a scale model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

import numpy as np

Phase = Literal["prefill", "decode"]
#: Why an expert is copied to the device: its layer needs it now; a prefetch of one of the two
#: disciplines; or a copy in the background that admission asked for.
Purpose = Literal["needed", "speculative", "committed", "upload"]
#: Data of recorded tokens, in addition to chosen experts, from which systems can be fitted.
#: Predictions are those of the system's own predictors; sensitivity and losses need a computing
#: model.
Learnt = Literal[
    "scores", "hidden", "embedding", "token_embeddings", "predictions", "sensitivity", "loss"
]
#: Names in messages of the kinds of data that a trace must hold for systems that need them.
WORDS: dict[Learnt, str] = {
    "scores": "gate scores", "hidden": "hidden states", "embedding": "embeddings",
    "token_embeddings": "token embeddings",
}  # fmt: skip
#: Token ids of each text.
Texts = Sequence[Sequence[int]]
Ids = np.ndarray
Scores = np.ndarray


class Lookahead(StrEnum):
    """Kinds of predictions of a later layer's gate scores, by the data they are computed from."""

    # Predictions are looked up by kind in every layer, and Enum's own hash is slow Python code.
    __hash__ = str.__hash__

    NONE = "none"
    GATE = "gate"  # next norm and gate on this layer's post-attention state (Mixtral-Offloading)
    NORMED = "normed"  # next gate on what this layer's gate reads: its own normed state (DAOP §III)
    LAYER = "layer"  # resident and shared experts, next attention, next gate (SMoE §IV-C)
    # Next gate on this layer's gate input plus its shared experts (SMoE's code), and on that plus
    # the residual (SMoE's code for DeepSeek).
    SHARED = "shared"
    SHARED_RESIDUAL = "shared_residual"
    EXACT = "exact"  # the later gate's own choice: known where recorded routing is replayed


#: The kinds of prediction that traces hold.
LOOKAHEADS = (Lookahead.GATE, Lookahead.NORMED, Lookahead.LAYER)


class Gate(NamedTuple):
    """Output of a layer's gate: scores ``[T, E]`` and ids of the model's own choice ``[T, K]``."""

    scores_TE: Scores
    ids_TK: Ids


@dataclass(frozen=True, slots=True)
class RoutedSequence:
    """Routing of one sequence of T tokens, prompt first, with optional scores and states.

    ``ids_TLK`` are the chosen experts, best first; ``prefill`` of the T tokens are the prompt.
    Optional are all gate scores; each layer's predictions of the next MoE layer's scores, by kind
    of lookahead; the hidden states that the gates read; the prompt's mean token embedding; each
    token's embedding; each layer's sensitivity to the share of a token's lowest expert
    (`DifferentiableDecoder`); and the tokens themselves.  A prediction that was not made is NaN;
    the last layer's is not used.
    """

    ids_TLK: np.ndarray
    prefill: int
    scores_TLE: np.ndarray | None = None
    predicted_TLE: Mapping[str, np.ndarray] = field(default_factory=dict)
    hidden_TLH: np.ndarray | None = None
    embedding_H: np.ndarray | None = None
    embedding_TH: np.ndarray | None = None
    sensitivity_L: np.ndarray | None = None
    tokens_T: np.ndarray | None = None


class Losses(Protocol):
    """The loss of a model whose experts' records are in other forms than the whole one.

    Attributes:
        identity: a hash of the weights, the texts and the forms.
    """

    identity: str

    def of(self, forms_LE: np.ndarray, tokens: int) -> float:
        """Return the share of predicted tokens that change, in percent.

        Args:
            forms_LE: the form of each expert ``[layers, E]``, an index into the system's forms.
            tokens: most tokens of the texts that are read, in whole texts, at least one.
        """

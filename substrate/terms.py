"""Words that the model, the engine and the policies share.  Imports no torch.

Shape letters: T rows (all tokens of a pass), E experts, K chosen experts a token.
"""

from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

Phase = Literal["prefill", "decode"]
Ids = np.ndarray
Scores = np.ndarray


class Lookahead(StrEnum):
    """What a prefetcher's prediction of the next layer's gate scores is computed from."""

    NONE = "none"
    GATE = "gate"  # next gate on this layer's post-attention state (DAOP, Mixtral-Offloading)
    LAYER = "layer"  # resident and shared experts, next attention, next gate (SMoE §IV-C)


class Gate(NamedTuple):
    """What a layer's router says: scores ``[T, E]`` and the model's own choice ``[T, K]``."""

    scores_TE: Scores
    ids_TK: Ids

"""A decoder whose experts are chosen by a trace: real mathematics, recorded routing."""

from collections.abc import Sequence

import numpy as np

from moebench.substrate.models.decoder import Decoder
from moebench.substrate.terms import Gate, Lookahead, Phase, Scores
from moebench.substrate.traces.passes import Batches, TracedModel


class RoutedDecoder:
    """Computes all that a decoder does, and answers what the trace holds.

    Gates, predictions and logits are computed, as for a text of its own, and the recorded ones are
    used; chosen experts are weighed by the decoder's gate.  So a machine on the wall clock measures
    a model whose weights are dummies with the routing of one that was trained.
    """

    def __init__(self, trace: Batches, decoder: Decoder) -> None:
        self._recorded, self._decoder = TracedModel(trace), decoder
        self.shape = decoder.shape

    def __getattr__(self, name: str) -> object:
        return getattr(self._decoder, name)

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        forced: Sequence[Sequence[int]] = (),
    ) -> None:
        """Take the next recorded batch."""
        self._recorded.begin(prompts, new_tokens, forced)
        self._decoder.begin(prompts, new_tokens)

    def embed(self, phase: Phase) -> int:
        """Take the next recorded pass."""
        self._recorded.embed(phase)
        return self._decoder.embed(phase)

    def gate(self, layer: int) -> Gate:
        """Compute the gate; the recorded one."""
        self._decoder.gate(layer)
        return self._recorded.gate(layer)

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Compute the prediction; the recorded one."""
        if lookahead is not Lookahead.EXACT:
            self._decoder.predict(layer, later, done, lookahead)
        return self._recorded.predict(layer, later, done, lookahead)

    def hidden(self, layer: int) -> np.ndarray:
        """The recorded state that the last gate read."""
        return self._recorded.hidden(layer)

    def embedding(self) -> np.ndarray:
        """The recorded embeddings."""
        return self._recorded.embedding()

    def head(self) -> list[int]:
        """Compute the logits; the recorded tokens."""
        self._decoder.head()
        return self._recorded.head()

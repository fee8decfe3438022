"""A decoder that computes every operation, but with the routing of a recorded trace."""

from collections.abc import Sequence

import numpy as np

from moebench.substrate.models.decoder import Decoder
from moebench.substrate.terms import Gate, Lookahead, Phase, Scores, Texts
from moebench.substrate.traces.passes import Batches, TracedModel


class RoutedDecoder:
    """A `Model` that computes with a decoder and returns the gates and tokens of a trace.

    Gates, predictions and logits are computed and then replaced by the recorded ones; the experts'
    weights are those of the decoder's gate.  A wall-clock machine can thus time random weights with
    the routing of a trained model.
    """

    def __init__(self, trace: Batches, decoder: Decoder) -> None:
        self._recorded, self._decoder = TracedModel(trace), decoder
        self.shape = decoder.shape

    def __getattr__(self, name: str) -> object:
        return getattr(self._decoder, name)

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
        """Start the next recorded batch in the trace and in the decoder."""
        self._recorded.begin(prompts, new_tokens, forced)
        self._decoder.begin(prompts, new_tokens)

    def embed(self, phase: Phase) -> int:
        """Start the next recorded pass, and return the decoder's number of rows."""
        self._recorded.embed(phase)
        return self._decoder.embed(phase)

    def gate(self, layer: int) -> Gate:
        """Compute a layer's gate, but return the recorded gate."""
        self._decoder.gate(layer)
        return self._recorded.gate(layer)

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Compute a prediction, but return the recorded scores."""
        if lookahead is not Lookahead.EXACT:
            self._decoder.predict(layer, later, done, lookahead)
        return self._recorded.predict(layer, later, done, lookahead)

    def hidden(self, layer: int) -> np.ndarray:
        """Return the recorded hidden state that the last gate read."""
        return self._recorded.hidden(layer)

    def token_norms(self, layer: int) -> np.ndarray | None:
        """Return the norms of the recorded hidden state, or None if it is not recorded."""
        return self._recorded.token_norms(layer)

    def token_embeddings(self) -> np.ndarray:
        """Return the recorded embeddings of the rows of the pass."""
        return self._recorded.token_embeddings()

    def embedding(self) -> np.ndarray:
        """Return the recorded embeddings of the prompts."""
        return self._recorded.embedding()

    def head(self) -> list[int]:
        """Compute the logits, but return the recorded tokens."""
        self._decoder.head()
        return self._recorded.head()

"""A cache of computed prefills, for many runs of one model that differ in decode only.

The runs of an accuracy table repeat the same prompts, with systems that prefill exactly and
approximate in decode.  `RememberedPrefills` computes each batch's prefill once, replays it in later
runs, and lets the decoder continue from its KV cache.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.states import Prefilled
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores, Texts


class _Known(NamedTuple):
    gates: dict[int, Gate]
    states: dict[int, np.ndarray]
    left: Prefilled


#: Known prefills by the prompts of their batch, shared by decoders of the same weights.
Prefills = dict[tuple[tuple[int, ...], ...], _Known]


class RememberedPrefills:
    """A `Model` that replays known prefills from memory and computes the rest with a decoder.

    Raises UsageError: a system changes the routing of a prefill, so no other run can use it.
    """

    def __init__(self, decoder: Decoder, prefills: Prefills) -> None:
        self._decoder, self._prefills = decoder, prefills
        self.shape = decoder.shape

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
        """Start a batch of prompts in the decoder."""
        self._key = tuple(tuple(prompt) for prompt in prompts)
        self._decoder.begin(prompts, new_tokens, forced)

    def embed(self, phase: Phase) -> int:
        """Start a pass, and return its rows T; a known prefill calls the decoder only in `head`."""
        self._phase = phase
        self._known = self._prefills.get(self._key) if phase == "prefill" else None
        self._gates: dict[int, Gate] = {}
        self._states: dict[int, np.ndarray] = {}
        return sum(map(len, self._key)) if self._known else self._decoder.embed(phase)

    def attend(self, layer: int) -> None:
        """Compute a layer's attention, except in a known prefill."""
        if not self._known:
            self._decoder.attend(layer)

    def gate(self, layer: int) -> Gate:
        """Return a layer's gate scores and own choice, stored ones in a known prefill."""
        self._gated = layer
        if self._known:
            return self._known.gates[layer]
        gate = self._decoder.gate(layer)
        if self._phase == "prefill":
            self._states[layer] = self._decoder.hidden(layer).copy()
            self._gates[layer] = Gate(gate.scores_TE.copy(), gate.ids_TK.copy())
        return gate

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Return the row counts of active experts, and check that a prefill's routing is exact."""
        if self._phase == "prefill":
            own = (self._known.gates if self._known else self._gates)[layer].ids_TK
            if not (np.array_equal(ids_TK, own) and np.array_equal(weigh_as_TK, own)):
                raise UsageError("only exact prefills can be remembered; run each system alone")
        if not self._known:
            return self._decoder.dispatch(layer, ids_TK, weigh_as_TK)
        experts, rows = np.unique(ids_TK, return_counts=True)
        return dict(zip(experts.tolist(), rows.tolist(), strict=True))

    def weigh(self, layer: int, weights_TK: np.ndarray) -> None:
        """Replace the weights of a decoded layer's experts; a prefill with others is refused."""
        if self._phase == "prefill":
            raise UsageError("only exact prefills can be remembered; run each system alone")
        self._decoder.weigh(layer, weights_TK)

    def token_embeddings(self) -> np.ndarray:
        """Return the embedding of each row of a pass; a known prefill is computed without them."""
        if self._known:
            raise UsageError("a remembered prefill has no embeddings; run each system alone")
        return self._decoder.token_embeddings()

    def compute(self, layer: int, experts: Sequence[int], form: int = 0) -> None:
        """Compute experts on the device, except in a known prefill."""
        if not self._known:
            self._decoder.compute(layer, experts, form)

    def compute_on_host(
        self, layer: int, experts: Sequence[int], ahead: bool = False, form: int = 0
    ) -> None:
        """Compute experts on the host, except in a known prefill."""
        if not self._known:
            self._decoder.compute_on_host(layer, experts, ahead, form)

    def shared(self, layer: int) -> None:
        """Compute the shared experts, except in a known prefill."""
        if not self._known:
            self._decoder.shared(layer)

    def combine(self, layer: int) -> None:
        """Add the experts' outputs to the residual, except in a known prefill."""
        if not self._known:
            self._decoder.combine(layer)

    def dense(self, layer: int) -> None:
        """Compute a dense layer's feed-forward block, except in a known prefill."""
        if not self._known:
            self._decoder.dense(layer)

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Return the decoder's prediction of a later layer's scores; fail in prefill."""
        self._only_in_decode()
        return self._decoder.predict(layer, later, done, lookahead)

    def route_ahead(self, layer: int, ids_TK: Ids) -> None:
        """Route a layer ahead in the decoder."""
        self._decoder.route_ahead(layer, ids_TK)

    def defer(self, layer: int, experts: Sequence[int]) -> None:
        """Defer experts' outputs in the decoder; fail in prefill."""
        self._only_in_decode()
        self._decoder.defer(layer, experts)

    def hidden(self, layer: int) -> np.ndarray:
        """Return the hidden state that the last gate has read."""
        return self._known.states[self._gated] if self._known else self._decoder.hidden(layer)

    def token_norms(self, layer: int) -> np.ndarray:
        """Return the Euclidean norm of each row of `hidden` ``[T]``."""
        norms: np.ndarray = np.linalg.norm(self.hidden(layer), axis=1)
        return norms

    def embedding(self) -> np.ndarray:
        """Return the decoder's mean token embeddings, which need no prefill."""
        return self._decoder.embedding()

    def _only_in_decode(self) -> None:
        if self._phase == "prefill":
            raise UsageError("only exact prefills can be remembered; run each system alone")

    def head(self) -> list[int]:
        """Return the next tokens, and store a prefill that was just computed."""
        if self._known:
            return self._decoder.take_prefill(self._known.left)
        chosen = self._decoder.head()
        if self._phase == "prefill":
            self._prefills[self._key] = _Known(self._gates, self._states, self._decoder.prefilled())
        return chosen

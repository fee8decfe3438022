"""The `Model` protocol, the steps of a forward pass, and the `Experts` protocol, expert matrices.

The engine makes all decisions and calls a model's methods in order (embed, attend, gate, dispatch,
compute, ..., combine, head); a machine prices or times each call.
`substrate.models.decoder.Decoder` computes the forward pass, and
`substrate.traces.passes.TracedModel` replays a recorded trace.

Shape letters: B sequences, T rows (all tokens of this pass), H hidden, E experts, K chosen.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores, Texts

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from moebench.substrate.models.fused import Matrix


class Experts(Protocol):
    """Access to the matrices of experts, in memory or in the slots of a device."""

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> "tuple[Matrix, ...]":
        """Return gate over up ``[2·I, H]``, down ``[H, I]`` and their biases ``[2·I]``, ``[H]``.

        Matrices may be packed.  Models without expert biases have none.  ``on_host``: return those
        in host memory.
        """

    def stacked(self, layer: int, experts: Sequence[int]) -> "tuple[Tensor, ...] | None":
        """Return copies of n experts' matrices, ``[n, 2·I, H]`` and ``[n, H, I]``, or None.

        None means that a product for each expert is cheaper.
        """

    def all_of(self, layer: int) -> "tuple[Tensor, Tensor] | None":
        """Return all experts' matrices, transposed: ``[E, H, 2·I]`` and ``[E, I, H]``, or None.

        None unless they are in memory, small and without biases.
        """


class Model(Protocol):
    """The steps of a forward pass: a prefill of B prompts, or one token of each sequence."""

    shape: ModelShape

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
        """Start a batch of prompts (token ids) that generate at most ``new_tokens`` tokens each.

        ``forced`` holds, for each sequence, tokens that replace the first ones that it chooses.
        """

    def embed(self, phase: Phase) -> int:
        """Embed the prompts or the last chosen tokens, and return the number of rows T."""

    def attend(self, layer: int) -> None:
        """Compute a layer's attention and extend its KV cache."""

    def gate(self, layer: int) -> Gate:
        """Return the gate scores of all experts and the model's own top-k choice."""

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Set each row's experts, and return the row counts of active experts by ascending id.

        ``weigh_as_TK`` has the expert whose gate weight each position uses.  -1 is no expert:
        its weight is 0, and gates that renormalise do so over the other experts.
        """

    def weigh(self, layer: int, weights_TK: "np.ndarray") -> None:
        """Replace the weights of the experts of the layer that was dispatched last."""

    def compute(self, layer: int, experts: Sequence[int], form: int = 0) -> None:
        """Compute active experts on their rows, on the device, from records in a form."""

    def compute_on_host(
        self, layer: int, experts: Sequence[int], ahead: bool = False, form: int = 0
    ) -> None:
        """Compute active experts on the host; ``ahead`` is before `dispatch`, after `route_ahead`.

        May be called from another thread than the other verbs, until `combine` adds their outputs.
        """

    def defer(self, layer: int, experts: Sequence[int]) -> None:
        """Leave the outputs of these active experts to the next layer's `combine`."""

    def shared(self, layer: int) -> None:
        """Compute the shared experts on all rows."""

    def combine(self, layer: int) -> None:
        """Add the weighted sum of the routed experts, and the shared ones, to the residual."""

    def dense(self, layer: int) -> None:
        """Compute the feed-forward block of a layer without routed experts."""

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Return predicted gate scores ``[T, E]`` of a later layer, from the experts ``done``.

        Raises UsageError: the model makes no predictions of that kind.
        """

    def route_ahead(self, layer: int, ids_TK: Ids) -> None:
        """Route ``layer`` one layer early, with its gate on the current layer's gate input.

        The layer's experts ``ids_TK`` are weighed by these scores, and `compute_on_host` computes
        them ahead on that state.  `gate` is still called and returns the layer's own choice.
        """

    def hidden(self, layer: int) -> "np.ndarray":
        """Return the gate input ``[T, H]`` of the current layer, also for a layer routed ahead."""

    def token_norms(self, layer: int) -> "np.ndarray | None":
        """Return the Euclidean norm of each row of `hidden` ``[T]``, or None if it is not known."""

    def token_embeddings(self) -> "np.ndarray":
        """Return the embedding of each row ``[T, H]`` of the pass that `embed` began.

        Raises UsageError: a trace is replayed.
        """

    def embedding(self) -> "np.ndarray":
        """Return the mean token embedding of each prompt ``[B, H]``."""

    def head(self) -> list[int]:
        """Choose and return each sequence's next token (greedy; ties to the lowest id)."""

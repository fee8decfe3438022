"""What the engine asks of a model, step by step, and where a model finds its experts.

A `Model` answers; it never decides.  The engine calls its verbs in order (embed, attend, gate,
dispatch, compute, ..., combine, head) and a machine prices or times each.
`substrate.models.decoder.Decoder` does the real mathematics, `substrate.traces.passes.TracedModel`
answers the same verbs from a recorded trace.

Shape letters: B sequences, T rows (all tokens of this pass), H hidden, E experts, K chosen.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from moebench.substrate.models.fused import Matrix


class Experts(Protocol):
    """Where the mathematics finds an expert's matrices: in memory, or in the slots of a device."""

    def matrices(self, layer: int, expert: int, on_host: bool = False) -> "tuple[Matrix, ...]":
        """Gate above up ``[2·I, H]``, and down ``[H, I]``; where the host finds them, for it.

        They may be packed.  Then their biases ``[2·I]`` and ``[H]``, if experts have some.
        """

    def stacked(self, layer: int, experts: Sequence[int]) -> "tuple[Tensor, ...] | None":
        """Copies of several experts' matrices: ``[n, 2·I, H]`` and ``[n, H, I]``.

        Only where that is cheaper than one product for each; else None.
        """

    def gathered(self, layer: int, experts: "Tensor") -> "tuple[Tensor, Tensor] | None":
        """Several experts' matrices, transposed: ``[n, H, 2·I]`` and ``[n, I, H]``.

        Only where all are in memory and small; else None.
        """


class Model(Protocol):
    """The verbs of a forward pass.  One pass is a prefill of B prompts or one token for each."""

    shape: ModelShape

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        forced: Sequence[Sequence[int]] = (),
    ) -> None:
        """Start a batch: prompts as token ids, and how many tokens each will generate at most.

        ``forced`` holds, for each sequence, tokens that are taken instead of its own first choices.
        """

    def embed(self, phase: Phase) -> int:
        """Feed the prompts, or the last chosen tokens; returns the number of rows T."""

    def attend(self, layer: int) -> None:
        """Attention of a layer, its KV cache extended."""

    def gate(self, layer: int) -> Gate:
        """Scores of all experts and the model's own choice."""

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Fix the experts of each row; returns active experts (ascending) with their row counts.

        ``weigh_as_TK`` names, position by position, the expert whose gate weight is used.  -1
        stands for no expert: it weighs nothing, and gates that renormalise do so over the others.
        """

    def compute(self, layer: int, experts: Sequence[int]) -> None:
        """Compute active experts on their rows, on the device."""

    def compute_on_host(self, layer: int, experts: Sequence[int], ahead: bool = False) -> None:
        """Compute active experts on the host; ``ahead`` is before `dispatch`, after `route_ahead`.

        May be called from another thread than the other verbs, until `combine` adds their outputs.
        """

    def defer(self, layer: int, experts: Sequence[int]) -> None:
        """Outputs of these active experts are added by the next layer's `combine`."""

    def shared(self, layer: int) -> None:
        """Compute the shared experts on all rows."""

    def combine(self, layer: int) -> None:
        """Add the weighted sum of the routed experts, and the shared ones, to the residual."""

    def dense(self, layer: int) -> None:
        """The feed-forward block of a layer without routed experts."""

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Scores ``[T, E]`` that a later layer's gate would give, from the experts ``done``.

        Raises:
            UsageError: this model makes no predictions of that kind.
        """

    def route_ahead(self, layer: int, ids_TK: Ids) -> None:
        """Route ``layer`` one layer early: by its gate on the state that the current one has read.

        These scores weigh its experts, of which ``ids_TK`` will be dispatched; that state is what
        `compute_on_host` reads of those that it computes ahead.  Its own gate is still asked for
        what it would have chosen.
        """

    def hidden(self, layer: int) -> "np.ndarray":
        """The state ``[T, H]`` that the layer's gate has read; the current one's, of one ahead."""

    def embedding(self) -> "np.ndarray":
        """Mean token embedding of each prompt ``[B, H]``."""

    def head(self) -> list[int]:
        """Choose each sequence's next token (greedy; ties to the lowest id)."""

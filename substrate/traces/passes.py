"""Routing traces in memory: recording from a model, and replay as a `Model` for any system.

A replayed trace returns the gates and tokens of the recorded model without its computation.  With
lossless routing, a system's gates on the trace equal those on the live model; a system that
substitutes experts has the scores of the recorded text, not of the text that it would generate.
Predictions are those of the recording system: predictions from partly computed layers depend on the
experts that were resident then.

`substrate.traces.file` stores a trace in a folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol, cast

import numpy as np

from moebench.substrate.errors import NotRecordedError, UsageError
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores, Texts


@dataclass(slots=True)
class PassTrace:
    """One recorded pass of a batch: gates and predictions of all MoE layers, and chosen tokens.

    ``rows`` is the row count of each sequence; ``predicted`` has, for each kind of prediction, the
    scores ``[T, E]`` that one layer predicted for a later one; ``hidden`` has the states ``[T, H]``
    that layers' gates read, ``norms`` their norms ``[T]``, and ``embedding`` the rows' embeddings
    ``[T, H]``, if a policy used them.
    """

    rows: tuple[int, ...]
    gates: dict[int, Gate] = field(default_factory=dict)
    predicted: dict[Lookahead, dict[tuple[int, int], Scores]] = field(default_factory=dict)
    hidden: dict[int, np.ndarray] = field(default_factory=dict)
    norms: dict[int, np.ndarray] = field(default_factory=dict)
    embedding: np.ndarray | None = None
    chosen: list[int] = field(default_factory=list)


@dataclass(slots=True)
class RoutingTrace:
    """All recorded passes of all batches, with ``embeddings`` of the batches that used them."""

    shape: ModelShape
    batches: list[list[PassTrace]] = field(default_factory=list)
    embeddings: dict[int, np.ndarray] = field(default_factory=dict)


class Batches(Protocol):
    """Recorded batches in order, each with its passes; both may be read on demand."""

    @property
    def shape(self) -> ModelShape:
        """Shape of the recorded model; replay does not use its widths."""

    @property
    def batches(self) -> Iterable[Sequence[PassTrace]]:
        """Passes of each batch; the first pass is the prefill."""

    @property
    def embeddings(self) -> Mapping[int, np.ndarray]:
        """Mean token embedding of each prompt, by batch, for batches that recorded it."""


class Stacked(NamedTuple):
    """The routing of a batch's first passes as arrays, for all of its B texts.

    Attributes:
        prefill_ids, prefill_scores: of the prompts, ``[L, T, K]`` and ``[L, T, E]``.
        decoded_ids, decoded_scores: of each decoded token, ``[S, L, B, K]`` and ``[S, L, B, E]``.
        predicted: scores that each layer predicted for later ones, ``[S, A, L, B, E]``; zeros where
            no layer follows, NaN where none are recorded.
        chosen: the next tokens of each pass, ``[1 + S][B]``.
    """

    prefill_ids: Ids
    prefill_scores: Scores
    decoded_ids: Ids
    decoded_scores: Scores
    predicted: Scores
    chosen: Sequence[Sequence[int]]


class StackedBatch(Protocol):
    """A recorded batch that makes its own arrays."""

    def stacked(self, passes: int, kind: Lookahead | None, ahead: int) -> Stacked:
        """Return the batch's first passes; ``ahead`` is A of a kind of predictions."""


class Recorder:
    """A `Model` that forwards all calls to another model and records the results in a trace."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.shape = model.shape
        self.trace = RoutingTrace(model.shape)

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
        """Start a batch in the model and in the trace."""
        self._model.begin(prompts, new_tokens, forced)
        self._lengths = tuple(len(prompt) for prompt in prompts)
        self.trace.batches.append([])

    def embed(self, phase: Phase) -> int:
        """Start a pass in the model and in the trace."""
        rows = self._model.embed(phase)
        lengths = self._lengths
        self._pass = PassTrace(lengths if phase == "prefill" else (1,) * len(lengths))
        self.trace.batches[-1].append(self._pass)
        return rows

    def gate(self, layer: int) -> Gate:
        """Return the model's gate scores and choice for a layer, and record them."""
        gate = self._model.gate(layer)
        self._pass.gates[layer] = Gate(gate.scores_TE.copy(), gate.ids_TK.copy())
        self._gated = layer
        return gate

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Return the model's predicted scores, and record them."""
        scores = self._model.predict(layer, later, done, lookahead)
        self._pass.predicted.setdefault(lookahead, {})[layer, later] = scores.copy()
        return scores

    def hidden(self, layer: int) -> np.ndarray:
        """Return the hidden state that the last gate read, and record it."""
        state = self._model.hidden(layer)
        self._pass.hidden[self._gated] = state.copy()
        return state

    def token_norms(self, layer: int) -> np.ndarray | None:
        """Return the norms of the hidden state that the last gate read, and record them."""
        norms = self._model.token_norms(layer)
        if norms is not None:
            self._pass.norms[self._gated] = norms.copy()
        return norms

    def token_embeddings(self) -> np.ndarray:
        """Return the embeddings of the pass's rows, and record them."""
        found = self._model.token_embeddings()
        self._pass.embedding = found.copy()
        return found

    def embedding(self) -> np.ndarray:
        """Return the prompts' mean token embeddings, and record them."""
        means = self._model.embedding()
        self.trace.embeddings[len(self.trace.batches) - 1] = means.copy()
        return means

    def head(self) -> list[int]:
        """Return the model's next tokens, and record them."""
        self._pass.chosen = self._model.head()
        return self._pass.chosen


class TracedModel:
    """A `Model` that replays a trace, batch by batch in the recorded order, without computing."""

    def __init__(self, trace: Batches) -> None:
        self.shape = trace.shape
        self._batches = enumerate(trace.batches)
        self._embeddings = trace.embeddings
        self._gated = -1

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
        """Start the next recorded batch; its tokens include those forced at recording."""
        self._batch, batch = next(self._batches, (0, None))
        if not batch or len(batch) < new_tokens:
            have = "no further batch" if batch is None else f"{len(batch)} passes"
            raise UsageError(f"the trace holds {have}; the run asks for {new_tokens} passes")
        lengths = tuple(len(prompt) for prompt in prompts)
        passes = iter(batch)
        prefill = next(passes)
        if prefill.rows != lengths:
            raise UsageError(
                f"the trace's next batch has prompts of {list(prefill.rows)} tokens, the run "
                f"of {list(lengths)}; replay it with the prompts and the batch size it recorded"
            )
        self._passes, self._whole = chain([prefill], passes), batch

    def stacked(self, passes: int, kind: Lookahead | None, ahead: int) -> Stacked:
        """Return the first passes of the batch that `begin` started, as arrays.

        Args:
            passes: the prefill and decoded tokens.
            kind, ahead: of predictions, and for how many later MoE layers; None reads none.
        """
        if hasattr(self._whole, "stacked"):
            return cast(StackedBatch, self._whole).stacked(passes, kind, ahead)
        layers, whole = self.shape.moe_layers, self._whole[:passes]
        ids = [np.stack([one.gates[layer].ids_TK for layer in layers]) for one in whole]
        scores = [np.stack([one.gates[layer].scores_TE for layer in layers]) for one in whole]
        texts, experts = len(whole[0].rows), self.shape.num_experts
        predicted = np.zeros((passes - 1, ahead, len(layers), texts, experts), np.float32)
        for step, one in enumerate(whole[1:] if kind else ()):
            made = one.predicted.get(cast(Lookahead, kind), {})
            for later in range(ahead):
                for row, pair in enumerate(zip(layers, layers[1 + later :], strict=False)):
                    predicted[step, later, row] = made.get(pair, np.nan)
        none = (0, len(layers), texts)
        return Stacked(
            ids[0], scores[0],
            np.stack(ids[1:]) if passes > 1 else np.zeros((*none, ids[0].shape[2]), np.int64),
            np.stack(scores[1:]) if passes > 1 else np.zeros((*none, experts), np.float32),
            predicted, [one.chosen for one in whole],
        )  # fmt: skip

    def embed(self, phase: Phase) -> int:
        """Start the next recorded pass, and return its number of rows."""
        self._pass = next(self._passes)
        return sum(self._pass.rows)

    def attend(self, layer: int) -> None:
        """Do nothing: a replay computes no attention, no feed-forward block and no sum."""

    shared = combine = dense = attend

    def gate(self, layer: int) -> Gate:
        """Return a layer's recorded gate scores and choice."""
        self._gated = layer
        return self._pass.gates[layer]

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Return the row counts of active experts by ascending id."""
        if len(ids_TK) == 1:  # The common case, which has no expert twice.
            rows = dict.fromkeys(sorted(ids_TK.tolist()[0]), 1)
            rows.pop(-1, None)
            return rows
        counts = np.bincount(ids_TK[ids_TK >= 0])
        experts = counts.nonzero()[0]
        return dict(zip(experts.tolist(), counts[experts].tolist(), strict=True))

    def weigh(self, layer: int, weights_TK: np.ndarray) -> None:
        """Do nothing: a replay adds no outputs."""

    def compute(self, layer: int, experts: Sequence[int], form: int = 0) -> None:
        """Do nothing: a replay computes no expert."""

    def compute_on_host(
        self, layer: int, experts: Sequence[int], ahead: bool = False, form: int = 0
    ) -> None:
        """Do nothing: a replay computes no expert on the host."""

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Return the recorded prediction; for `Lookahead.EXACT`, the later gate's own choice."""
        if lookahead is Lookahead.EXACT:
            return self._chosen(later)
        predicted = self._pass.predicted.get(lookahead, {})
        if (layer, later) not in predicted:
            raise not_recorded(layer, later, lookahead)
        return predicted[layer, later]

    def _chosen(self, layer: int) -> Scores:
        """Return a gate's choice as scores ``[T, E]``: K for the first expert down to 1, else 0."""
        return chosen_scores(self._pass.gates[layer].ids_TK, self.shape.num_experts)

    def route_ahead(self, layer: int, ids_TK: Ids) -> None:
        """Do nothing: recorded gates do not depend on early routing."""

    def defer(self, layer: int, experts: Sequence[int]) -> None:
        """Do nothing: a replay has no expert outputs to defer."""

    def hidden(self, layer: int) -> np.ndarray:
        """Return the recorded hidden state that the last gate read."""
        state = self._pass.hidden.get(self._gated)
        if state is None:
            raise UsageError("the trace holds no hidden states; run the system live")
        return state

    def token_norms(self, layer: int) -> np.ndarray | None:
        """Return the norms of the recorded hidden state, or None if it is not recorded."""
        norms, state = self._pass.norms.get(self._gated), self._pass.hidden.get(self._gated)
        return np.linalg.norm(state, axis=1) if norms is None and state is not None else norms

    def token_embeddings(self) -> np.ndarray:
        """Return the recorded embeddings of the pass's rows; no trace in a file has them."""
        if self._pass.embedding is None:
            raise UsageError("the trace holds no token embeddings; run the system live")
        return self._pass.embedding

    def embedding(self) -> np.ndarray:
        """Return the recorded mean token embeddings of the batch's prompts."""
        means = self._embeddings.get(self._batch)
        if means is None:
            raise UsageError("the trace holds no embeddings; run the system live")
        return means

    def head(self) -> list[int]:
        """Return the recorded next tokens."""
        return self._pass.chosen


def not_recorded(layer: int, later: int, lookahead: Lookahead) -> NotRecordedError:
    """Return the error that a trace lacks a layer's prediction of a later one."""
    return NotRecordedError(
        f"the trace holds no predictions of kind {lookahead} that layer {layer} made of layer "
        f"{later}; run without --trace, or --set route=exact or prefetch=none, whichever predicts"
    )


def chosen_scores(ids_TK: Ids, experts: int) -> Scores:
    """Return a choice as scores ``[T, E]``: K for each row's first expert down to 1, else 0."""
    rows, k = ids_TK.shape
    scores_TE = np.zeros((rows, experts), np.float32)
    scores_TE[np.arange(rows)[:, None], ids_TK] = np.arange(k, 0, -1)
    return scores_TE


def pass_steps(passes: Iterable[PassTrace]) -> list[tuple[int, list[int]]]:
    """Return the steps of passes (`analysis.cache_replay`); each layer of a prefill is one step."""
    return [
        (layer, np.unique(gate.ids_TK).tolist())
        for recorded in passes
        for layer, gate in recorded.gates.items()
    ]

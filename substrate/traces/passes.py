"""Routing traces: what the router saw, recorded once and replayed against every system.

A trace answers the engine's verbs exactly as the model did, without its mathematics.  As long as a
system's routing is lossless its gates on the trace equal those on the live model; a system that
substitutes experts sees the scores of the recorded text, not of the text it would have written.
Predictions are those of the recording system: what a prediction from partly computed layers sees
depends on which experts were resident then.

Here a trace is in memory; `substrate.traces.file` keeps one in a folder.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores


@dataclass(slots=True)
class PassTrace:
    """One pass of one batch: gate and prediction of every MoE layer, and the tokens chosen.

    ``rows`` holds one count a sequence; ``predicted`` holds, for each kind of prediction, the
    scores ``[T, E]`` that one layer predicted for a later one; ``hidden`` holds the states
    ``[T, H]`` that layers' gates read, where a policy asked for them.
    """

    rows: tuple[int, ...]
    gates: dict[int, Gate] = field(default_factory=dict)
    predicted: dict[Lookahead, dict[tuple[int, int], Scores]] = field(default_factory=dict)
    hidden: dict[int, np.ndarray] = field(default_factory=dict)
    chosen: list[int] = field(default_factory=list)


@dataclass(slots=True)
class RoutingTrace:
    """All passes of all batches, in order; ``embeddings`` of the batches that were asked for it."""

    shape: ModelShape
    batches: list[list[PassTrace]] = field(default_factory=list)
    embeddings: dict[int, np.ndarray] = field(default_factory=dict)


class Batches(Protocol):
    """What is replayed: batches in order, each with its passes; both may be made on demand."""

    @property
    def shape(self) -> ModelShape:
        """The model that routed so; its widths are not read."""

    @property
    def batches(self) -> Iterable[Sequence[PassTrace]]:
        """The prefill of a batch is its first pass."""

    @property
    def embeddings(self) -> Mapping[int, np.ndarray]:
        """By batch, the mean token embedding of each prompt, where it was recorded."""


class Recorder:
    """A model that writes down what it answers.  The verbs are the model's own."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.shape = model.shape
        self.trace = RoutingTrace(model.shape)

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        forced: Sequence[Sequence[int]] = (),
    ) -> None:
        """Start a batch in the model and in the trace."""
        self._model.begin(prompts, new_tokens, forced)
        self._lengths = tuple(len(prompt) for prompt in prompts)
        self.trace.batches.append([])

    def embed(self, phase: Phase) -> int:
        """Start a pass."""
        rows = self._model.embed(phase)
        lengths = self._lengths
        self._pass = PassTrace(lengths if phase == "prefill" else (1,) * len(lengths))
        self.trace.batches[-1].append(self._pass)
        return rows

    def gate(self, layer: int) -> Gate:
        """Record a layer's gate."""
        gate = self._model.gate(layer)
        self._pass.gates[layer] = Gate(gate.scores_TE.copy(), gate.ids_TK.copy())
        self._gated = layer
        return gate

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Record a prediction."""
        scores = self._model.predict(layer, later, done, lookahead)
        self._pass.predicted.setdefault(lookahead, {})[layer, later] = scores.copy()
        return scores

    def hidden(self, layer: int) -> np.ndarray:
        """Record a state that a policy reads."""
        state = self._model.hidden(layer)
        self._pass.hidden[self._gated] = state.copy()
        return state

    def embedding(self) -> np.ndarray:
        """Record the prompts' embeddings."""
        means = self._model.embedding()
        self.trace.embeddings[len(self.trace.batches) - 1] = means.copy()
        return means

    def head(self) -> list[int]:
        """Record the choice."""
        self._pass.chosen = self._model.head()
        return self._pass.chosen


class TracedModel:
    """Answers the engine from a trace, batch by batch in the recorded order."""

    def __init__(self, trace: Batches) -> None:
        self.shape = trace.shape
        self._batches = enumerate(trace.batches)
        self._embeddings = trace.embeddings
        self._gated = -1

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        forced: Sequence[Sequence[int]] = (),
    ) -> None:
        """Take the next recorded batch; what was forced then is in it."""
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
        self._passes = chain([prefill], passes)

    def embed(self, phase: Phase) -> int:
        """Take the next recorded pass."""
        self._pass = next(self._passes)
        return sum(self._pass.rows)

    def attend(self, layer: int) -> None:
        """No mathematics."""

    def gate(self, layer: int) -> Gate:
        """The recorded gate."""
        self._gated = layer
        return self._pass.gates[layer]

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Active experts (ascending) with their rows."""
        if len(ids_TK) == 1:  # the common case: no expert twice
            rows = dict.fromkeys(sorted(ids_TK.tolist()[0]), 1)
            rows.pop(-1, None)
            return rows
        counts = np.bincount(ids_TK[ids_TK >= 0])
        experts = counts.nonzero()[0]
        return dict(zip(experts.tolist(), counts[experts].tolist(), strict=True))

    def compute(self, layer: int, experts: Sequence[int]) -> None:
        """No mathematics."""

    def compute_on_host(self, layer: int, experts: Sequence[int], ahead: bool = False) -> None:
        """No mathematics."""

    def shared(self, layer: int) -> None:
        """No mathematics."""

    def combine(self, layer: int) -> None:
        """No mathematics."""

    def dense(self, layer: int) -> None:
        """No mathematics."""

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """The recorded prediction; of what a later gate chose itself, the recorded choice."""
        if lookahead is Lookahead.EXACT:
            return self._chosen(later)
        predicted = self._pass.predicted.get(lookahead, {})
        if (layer, later) not in predicted:
            raise UsageError(
                f"the trace holds no predictions of kind {lookahead} that layer {layer} made of "
                f"layer {later}; run without --trace, or --set route=exact or prefetch=none, "
                "whichever predicts"
            )
        return predicted[layer, later]

    def _chosen(self, layer: int) -> Scores:
        """A gate's choice as scores ``[T, E]``: K for its first expert down to 1, else 0."""
        ids_TK = self._pass.gates[layer].ids_TK
        rows, k = ids_TK.shape
        scores_TE = np.zeros((rows, self.shape.num_experts), np.float32)
        scores_TE[np.arange(rows)[:, None], ids_TK] = np.arange(k, 0, -1)
        return scores_TE

    def route_ahead(self, layer: int, ids_TK: Ids) -> None:
        """No mathematics."""

    def defer(self, layer: int, experts: Sequence[int]) -> None:
        """No mathematics."""

    def hidden(self, layer: int) -> np.ndarray:
        """The recorded state that the last gate read."""
        state = self._pass.hidden.get(self._gated)
        if state is None:
            raise UsageError("the trace holds no hidden states; run the system live")
        return state

    def embedding(self) -> np.ndarray:
        """The recorded embeddings."""
        means = self._embeddings.get(self._batch)
        if means is None:
            raise UsageError("the trace holds no embeddings; run the system live")
        return means

    def head(self) -> list[int]:
        """The recorded tokens."""
        return self._pass.chosen


def pass_steps(passes: Iterable[PassTrace]) -> list[tuple[int, list[int]]]:
    """Return the steps of passes (`analysis.cache_replay`); each layer of a prefill is one step."""
    return [
        (layer, np.unique(gate.ids_TK).tolist())
        for recorded in passes
        for layer, gate in recorded.gates.items()
    ]

"""Recording a trace while a system runs: a model that writes down what it answers.

Every pass is appended to the trace's files as it ends.

Scores that are kept in half precision are rounded before the recorded system sees them: otherwise a
replay would decide otherwise where two scores differ by less than a rounding.  The mathematics goes
on with its own numbers, and the model's choice is recorded as it was made.

The next layer is predicted in every way for every decoded token:

- ``gate`` and ``normed`` depend on nothing but the token: what every system would see.
- ``layer`` depends on the experts that are on the device.  Where the recorded system asks for it,
  the answer is kept as that system saw it, and its own replay is exact.  Otherwise no routed expert
  counts as computed: the least that a system knows then.
"""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores
from moebench.substrate.traces.file import Header, Prediction, TraceWriter

Kept = Literal["float16", "float32"]

#: How each kind of prediction was made, if the recorded system did not ask for it.
MADE = {
    Lookahead.GATE: "the next norm and gate on each layer's post-attention state",
    Lookahead.NORMED: "the next gate on the state that each layer's own gate reads",
    Lookahead.LAYER: "shared experts, next attention, next gate; no routed expert computed",
}


def array_of(kind: Lookahead) -> str:
    """The array that holds recorded predictions of a kind."""
    return f"predicted_{kind.value}"


class TraceRecorder:
    """A model that appends to a trace what it answers.  The verbs are the model's own.

    Args:
        precision: of recorded scores, and of those that the recorded system sees.
        asks: the predictions that the recorded system asks for, kept as it saw them.
    """

    def __init__(
        self, model: Model, writer: TraceWriter, precision: Kept = "float16",
        asks: Collection[Lookahead] = (),
    ) -> None:  # fmt: skip
        self._model, self._writer, self._dtype = model, writer, np.dtype(precision)
        self.shape = model.shape
        self._asks = asks
        self._sequences = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def begin(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        forced: Sequence[Sequence[int]] = (),
    ) -> None:
        """Start a batch."""
        self._model.begin(prompts, new_tokens, forced)
        self._prompts = [list(prompt) for prompt in prompts]
        self._lengths = [0] * len(prompts)
        self._first = self._sequences
        self._sequences += len(prompts)

    def embed(self, phase: Phase) -> int:
        """Start a pass."""
        rows = self._model.embed(phase)
        layers, s = len(self.shape.moe_layers), self.shape
        self._phase = phase
        self._scores = np.empty((rows, layers, s.num_experts), self._dtype)
        self._ids = np.empty((rows, layers, s.top_k), np.int64)
        decoded = rows if phase == "decode" else 0
        shape = (decoded, layers - 1, s.num_experts)
        self._predicted = {kind: np.full(shape, np.nan, self._dtype) for kind in MADE}
        return rows

    def gate(self, layer: int) -> Gate:
        """Record a layer's gate."""
        return self._record(layer, self._model.gate(layer))

    def _record(self, layer: int, gate: Gate) -> Gate:
        row = self.shape.moe_rows[layer]
        self._scores[:, row] = gate.scores_TE
        self._ids[:, row] = gate.ids_TK
        return Gate(self._rounded(gate.scores_TE), gate.ids_TK)

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """The model's own."""
        return self._model.dispatch(layer, ids_TK, weigh_as_TK)

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Record a prediction of the next MoE layer that the system asked for in decode."""
        scores = self._model.predict(layer, later, done, lookahead)
        if self._phase == "decode" and later == self.shape.next_moe_layers[layer]:
            self._predicted[lookahead][:, self.shape.moe_rows[layer]] = scores
        return self._rounded(scores)

    def combine(self, layer: int) -> None:
        """Before the layer ends, predict what the system did not ask for."""
        row, later = self.shape.moe_rows[layer], self.shape.next_moe_layers[layer]
        if self._phase == "decode" and later is not None:
            for kind in MADE:
                if kind is Lookahead.LAYER and later != layer + 1:
                    continue  # a layer can be run ahead only if no other is between
                predicted = self._predicted[kind]
                if np.isnan(predicted[:, row]).any():
                    predicted[:, row] = self._model.predict(layer, later, (), kind)
        self._model.combine(layer)

    def head(self) -> list[int]:
        """The pass ends: append it."""
        chosen = self._model.head()
        prefill = self._phase == "prefill"
        counts = [len(p) for p in self._prompts] if prefill else [1] * len(self._prompts)
        numbers = range(self._first, self._first + len(counts))
        next_tokens = [
            token
            for prompt, last in zip(self._prompts, chosen, strict=True)
            for token in ((*prompt[1:], last) if prefill else (last,))
        ]
        positions = [
            position
            for start, n in zip(self._lengths, counts, strict=True)
            for position in range(start, start + n)
        ]
        self._lengths = [start + n for start, n in zip(self._lengths, counts, strict=True)]
        self._writer.append(
            ids=self._ids,
            sequence=np.repeat(numbers, counts),
            position=np.array(positions),
            phase=np.full(len(positions), not prefill),
            chosen=np.array(next_tokens),
            scores=self._scores,
            **{array_of(kind): values for kind, values in self._predicted.items()},
        )
        return chosen

    def _rounded(self, scores: Scores) -> Scores:
        """As a replay will give them."""
        return scores.astype(self._dtype).astype(np.float32)


def recorded_predictions(asks: Collection[Lookahead], system: str) -> dict[Lookahead, Prediction]:
    """What a trace's header says of its predictions.

    Raises:
        UsageError: a system asks for one that traces do not hold.
    """
    for kind in sorted({*asks} - {*MADE}):
        raise UsageError(
            f"{system} asks for predictions of kind {kind}, which traces do not hold; record "
            f"another system, or --set prefetch=none"
        )
    return {
        kind: Prediction(array=array_of(kind), made=f"as {system} saw it" if kind in asks else made)
        for kind, made in MADE.items()
    }


def header_of(shape: ModelShape, name: str, workload: str) -> Header:
    """The header of a trace that is recorded from a model that computes."""
    return Header(
        model=name,
        workload=workload,
        num_moe_layers=len(shape.moe_layers),
        num_experts=shape.num_experts,
        top_k=shape.top_k,
        scores=f"what the {shape.gate} gate ranks experts by",
    )

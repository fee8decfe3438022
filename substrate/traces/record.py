"""Recording of a routing trace to files while a system runs on a computing model.

Every pass is appended to the trace's files when it ends.

Scores, states and embeddings that are stored in half precision are rounded before the recorded
system reads them; otherwise a replay could decide differently where two scores differ by less than
the rounding.  The model computes with unrounded numbers, and its own choice is recorded.

All kinds of predictions are recorded for every decoded token:

- ``gate`` and ``normed`` depend on the token only, so they are valid for every system.  ``gate`` is
  recorded for the next three layers (HybriMoE), the others for the next one.
- ``layer`` depends on the experts that are on the device.  If the recorded system uses it, its own
  predictions are recorded, and its replay is exact.  Otherwise the prediction uses no routed
  expert: the worst case for a system.
"""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Gate, Ids, Lookahead, Phase, Scores, Texts
from moebench.substrate.traces.file import Header, Prediction
from moebench.substrate.traces.writer import TraceWriter

Kept = Literal["float16", "float32"]

#: Origin of each kind of prediction that the recorded system does not use itself.
MADE = {
    Lookahead.GATE: "later norms and gates on each layer's post-attention state",
    Lookahead.NORMED: "the next gate on the state that each layer's own gate reads",
    Lookahead.LAYER: "shared experts, next attention, next gate; no routed expert computed",
}


#: Number of following MoE layers for which each kind of prediction is recorded.
AHEAD = {Lookahead.GATE: 3, Lookahead.NORMED: 1, Lookahead.LAYER: 1}


def array_of(kind: Lookahead, ahead: int) -> str:
    """Return the name of the array with predictions of a kind for ``ahead`` MoE layers later."""
    return f"predicted_{kind.value}" + (f"_{ahead}" if ahead > 1 else "")


class TraceRecorder:
    """A `Model` that forwards all calls to another model and appends the results to a trace.

    Args:
        precision: of all recorded numbers, and of those that the recorded system reads.
        states: also record the hidden states that gates read, and the prompts' embeddings.
    """

    def __init__(
        self, model: Model, writer: TraceWriter, precision: Kept = "float16", states: bool = True
    ) -> None:
        self._model, self._writer, self._dtype = model, writer, np.dtype(precision)
        self.shape = model.shape
        self._states = states
        self._sequences = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
        """Start a batch in the model, and number its sequences in the trace."""
        self._model.begin(prompts, new_tokens, forced)
        self._prompts = [list(prompt) for prompt in prompts]
        self._lengths = [0] * len(prompts)
        self._first = self._sequences
        self._sequences += len(prompts)
        if self._states:
            self._embedding = self._model.embedding().astype(self._dtype)

    def embed(self, phase: Phase) -> int:
        """Start a pass in the model, and allocate the arrays of its records."""
        rows = self._model.embed(phase)
        layers, s = len(self.shape.moe_layers), self.shape
        self._phase = phase
        self._scores = np.empty((rows, layers, s.num_experts), self._dtype)
        self._ids = np.empty((rows, layers, s.top_k), np.int64)
        self._hidden: list[np.ndarray] = []
        decoded = rows if phase == "decode" else 0
        #: Predictions by kind and distance n, ``[D, L-n, E]``.
        self._predicted = {
            (kind, ahead): np.full(
                (decoded, max(layers - ahead, 0), s.num_experts), np.nan, self._dtype
            )
            for kind, most in AHEAD.items()
            for ahead in range(1, most + 1)
        }
        return rows

    def gate(self, layer: int) -> Gate:
        """Record a layer's gate, and return it with rounded scores."""
        return self._record(layer, self._model.gate(layer))

    def _record(self, layer: int, gate: Gate) -> Gate:
        row = self.shape.moe_rows[layer]
        self._scores[:, row] = gate.scores_TE
        self._ids[:, row] = gate.ids_TK
        if self._states:
            self._hidden.append(self._model.hidden(layer).astype(self._dtype))
        return Gate(self._rounded(gate.scores_TE), gate.ids_TK)

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Set the experts of each row in the model, and return their row counts."""
        return self._model.dispatch(layer, ids_TK, weigh_as_TK)

    def predict(self, layer: int, later: int, done: Sequence[int], lookahead: Lookahead) -> Scores:
        """Return the model's prediction, rounded, and record it in decode."""
        scores = self._model.predict(layer, later, done, lookahead)
        row = self.shape.moe_rows[layer]
        predicted = self._predicted.get((lookahead, self.shape.moe_rows[later] - row))
        if self._phase == "decode" and predicted is not None:
            predicted[:, row] = scores
        return self._rounded(scores)

    def hidden(self, layer: int) -> np.ndarray:
        """Return the hidden state that the last gate read, rounded; `gate` records it."""
        return self._rounded(self._model.hidden(layer))

    def token_norms(self, layer: int) -> np.ndarray:
        """Return the norms of the rounded hidden state, as a replay returns them."""
        norms: np.ndarray = np.linalg.norm(self.hidden(layer), axis=1)
        return norms

    def embedding(self) -> np.ndarray:
        """Return the prompts' mean token embeddings, rounded; `begin` records them."""
        return self._rounded(self._model.embedding())

    def combine(self, layer: int) -> None:
        """Record the predictions that the system did not make, and end the layer in the model."""
        row, layers = self.shape.moe_rows[layer], self.shape.moe_layers
        for (kind, ahead), predicted in self._predicted.items() if self._phase == "decode" else ():
            if row + ahead >= len(layers):
                continue
            later = layers[row + ahead]
            if kind is Lookahead.LAYER and later != layer + 1:
                continue  # Only the directly following layer can be run ahead.
            if np.isnan(predicted[:, row]).any():
                predicted[:, row] = self._model.predict(layer, later, (), kind)
        self._model.combine(layer)

    def head(self) -> list[int]:
        """Return the model's next tokens, and append the finished pass to the trace."""
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
            **{array_of(*key): values for key, values in self._predicted.items()},
            **self._stated(),
        )
        return chosen

    def _stated(self) -> dict[str, np.ndarray]:
        """Return the arrays of a pass's hidden states and, in a prefill, prompt embeddings."""
        if not self._states:
            return {}
        prompts = len(self._prompts) if self._phase == "prefill" else 0
        return {"hidden": np.stack(self._hidden, axis=1), "embedding": self._embedding[:prompts]}

    def _rounded(self, scores: Scores) -> Scores:
        """Return scores rounded to the recorded precision, as a replay returns them."""
        return scores.astype(self._dtype).astype(np.float32)


def recorded_predictions(asks: Collection[Lookahead], system: str) -> dict[Lookahead, Prediction]:
    """Return the predictions in the header of a trace that is recorded with a system.

    Raises UsageError: the system uses a kind of prediction that traces do not hold.
    """
    for kind in sorted({*asks} - {*MADE}):
        raise UsageError(
            f"{system} asks for predictions of kind {kind}, which traces do not hold; record "
            f"another system, or --set prefetch=none"
        )
    return {
        kind: Prediction(
            array=array_of(kind, 1),
            made=f"as {system} saw it" if kind in asks else made,
            further=tuple(array_of(kind, ahead) for ahead in range(2, AHEAD[kind] + 1)),
        )
        for kind, made in MADE.items()
    }


def header_of(shape: ModelShape, name: str, workload: str) -> Header:
    """Return the header of a trace that is recorded from a computing model."""
    return Header(
        model=name,
        workload=workload,
        num_moe_layers=len(shape.moe_layers),
        num_experts=shape.num_experts,
        top_k=shape.top_k,
        scores=f"what the {shape.gate} gate ranks experts by",
    )

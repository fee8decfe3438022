"""Reads an open trace as batches of passes for the engine, or as sequences for statistics.

A trace stores sequences one by one; this module forms batches.  Each decode pass has one row of
each of the B sequences, until the shortest ends.  Arrays are read once a pass.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Gate, Learnt, Lookahead, RoutedSequence
from moebench.substrate.traces.file import Header, TraceFile
from moebench.substrate.traces.passes import PassTrace, Stacked
from moebench.substrate.traces.scores import Reconstruction

_NO_ROWS = np.empty(0, np.int64)


class _Rows(NamedTuple):
    """Row indices of one pass, row counts of its sequences, and indices among decoded rows."""

    rows: np.ndarray
    counts: tuple[int, ...]
    decoded: np.ndarray


class ReplayedBatch(Sequence[PassTrace]):
    """The passes of a batch of recorded sequences, each read from the trace when it is indexed."""

    def __init__(self, replay: "Replay", sequences: Sequence[int]) -> None:
        trace = replay.trace
        self._replay = replay
        self._rows = [trace.sequences[s] for s in sequences]
        #: Number of prefill rows of each sequence.
        self.prompts = tuple(trace.prompt(s) for s in sequences)
        self._passes = min(replay.new_tokens, *(trace.passes(s) for s in sequences))

    def __len__(self) -> int:
        return self._passes

    def __getitem__(self, step: int) -> PassTrace:  # type: ignore[override]
        if not 0 <= step < self._passes:
            raise IndexError(step)
        return self._replay.read(self._pass(step), predicted=step > 0)

    def __iter__(self) -> Iterator[PassTrace]:
        return map(self.__getitem__, range(self._passes))

    def stacked(self, passes: int, kind: Lookahead | None, ahead: int) -> Stacked:
        """Return the first passes as arrays: see `TracedModel.stacked`."""
        replay, trace, rows = self._replay, self._replay.trace, list(map(self._pass, range(passes)))
        layers, texts = len(replay.shape.moe_layers), len(self.prompts)
        decoded = np.array([one.rows for one in rows[1:]], np.int64).reshape(passes - 1, texts)

        def of_decoded(values_TLX: np.ndarray, dtype: type) -> np.ndarray:
            each = values_TLX.reshape(*decoded.shape, *values_TLX.shape[1:])
            return np.ascontiguousarray(each.swapaxes(1, 2), dtype)

        flat, first = decoded.ravel(), rows[0].rows
        size = (passes - 1, ahead, layers, texts, replay.shape.num_experts)
        predicted = np.zeros(size, np.float32)
        for later in range(ahead if kind else 0):
            source = trace.predicted(cast(Lookahead, kind), later + 1)
            if source is None:
                predicted[:, later, : layers - 1 - later] = np.nan
            else:
                found = of_decoded(source[trace.decoded_row[flat]], np.float32)
                predicted[:, later, : found.shape[1]] = found
        last = [first[np.cumsum(rows[0].counts) - 1], *decoded]
        return Stacked(
            _by_layer(trace.ids_TLK[first], np.int64), _by_layer(replay._scores(first), np.float32),
            of_decoded(trace.ids_TLK[flat], np.int64), of_decoded(replay._scores(flat), np.float32),
            predicted, [trace.chosen[at].tolist() for at in last],
        )  # fmt: skip

    def _pass(self, step: int) -> _Rows:
        prefills = zip(self._rows, self.prompts, strict=True)
        if step:
            rows = np.array([rows[n - 1 + step] for rows, n in prefills])
            return _Rows(rows, (1,) * len(rows), self._replay.trace.decoded_row[rows])
        return _Rows(np.concatenate([rows[:n] for rows, n in prefills]), self.prompts, _NO_ROWS)


@dataclass(slots=True)
class Replay:
    """Batches of a trace, in the order in which sequences were recorded.

    Attributes:
        shape: of the model that is charged; it has the trace's layers, experts and top-k.
        sequences: number of replayed sequences, in whole batches.
        new_tokens: highest number of passes of each batch.
        lookaheads: kinds of predictions that the system uses, with the number of following MoE
            layers of each.
        hidden: the system uses the hidden states that gates read.
        reconstruction: replaces scores that were not recorded.
    """

    trace: TraceFile
    shape: ModelShape
    batch: int
    sequences: int
    new_tokens: int
    lookaheads: Mapping[Lookahead, int] = field(default_factory=dict)
    hidden: bool = False
    reconstruction: Reconstruction | None = None

    def __post_init__(self) -> None:
        check_topology(str(self.trace.path), self.trace.header, self.shape)

    @property
    def embeddings(self) -> Mapping[int, np.ndarray]:
        """Mean token embedding of each prompt, by batch; empty if not recorded."""
        means_SH = self.trace.embedding_SH
        if means_SH is None:
            return {}
        firsts = range(0, self.sequences, self.batch)
        return {
            number: means_SH[first : first + self.batch].astype(np.float32)
            for number, first in enumerate(firsts)
        }

    @property
    def batches(self) -> Iterator[ReplayedBatch]:
        """Iterator over all replayed batches."""
        for first in range(0, self.sequences, self.batch):
            yield self.batch_at(first)

    def batch_at(self, first: int) -> ReplayedBatch:
        """Return the batch whose first sequence is ``first``."""
        return ReplayedBatch(self, range(first, first + self.batch))

    def read(self, pass_: _Rows, predicted: bool) -> PassTrace:
        """Read the gates, predictions, states and tokens of one pass from the trace."""
        trace, layers = self.trace, self.shape.moe_layers
        ids_LTK = _by_layer(trace.ids_TLK[pass_.rows], np.int64)
        scores_LTE = _by_layer(self._scores(pass_.rows), np.float32)
        gates = map(Gate, scores_LTE, ids_LTK)
        done = PassTrace(pass_.counts, dict(zip(layers, gates, strict=True)))
        last = np.cumsum(pass_.counts) - 1
        done.chosen = trace.chosen[pass_.rows[last]].tolist()
        for kind, most in self.lookaheads.items() if predicted else ():
            for ahead in range(1, most + 1):
                source = trace.predicted(kind, ahead)
                if source is None:
                    break
                pairs = zip(layers[:-ahead], layers[ahead:], strict=True)
                scores_LTE = _by_layer(source[pass_.decoded], np.float32)
                done.predicted.setdefault(kind, {}).update(zip(pairs, scores_LTE, strict=True))
        if self.hidden and trace.hidden_TLH is not None:
            states_LTH = _by_layer(trace.hidden_TLH[pass_.rows], np.float32)
            done.hidden = dict(zip(layers, states_LTH, strict=True))
        return done

    def _scores(self, rows: np.ndarray) -> np.ndarray:
        scores_TLE = self.trace.scores_TLE
        if scores_TLE is not None:
            return np.asarray(scores_TLE[rows])
        if self.reconstruction is not None:
            return self.reconstruction.scores(self.trace, rows)
        shape = (len(rows), len(self.shape.moe_layers), self.shape.num_experts)
        return np.zeros(shape, np.float32)


def check_topology(name: str, header: Header, shape: ModelShape) -> None:
    """Check that a trace and a model have equal MoE layers, experts and top-k.

    Args:
        name: the trace's name in the error message.

    Raises UsageError: one of them differs.
    """
    has = (header.num_moe_layers, header.num_experts, header.top_k)
    wanted = (len(shape.moe_layers), shape.num_experts, shape.top_k)
    if has != wanted:
        raise UsageError(
            f"{name}: {_topology(*has)}; the model charged for has {_topology(*wanted)}; give the "
            "--model that was recorded"
        )


def _topology(layers: int, experts: int, top_k: int) -> str:
    return f"{layers} MoE layers of {experts} experts, top-{top_k}"


def _by_layer(values_TLX: np.ndarray, dtype: type) -> np.ndarray:
    """Return a contiguous copy of an array with layers first, ``[L, T, X]``."""
    return np.ascontiguousarray(values_TLX.swapaxes(0, 1), dtype=dtype)


def routings(
    trace: TraceFile, tokens: int | None = None, also: Collection[Learnt] = ()
) -> list[RoutedSequence]:
    """Return a trace's first sequences up to a total number of tokens, or all sequences.

    Return at least two if there are two, so that one of them is left for fitting.
    """
    found: list[RoutedSequence] = []
    seen = 0
    for number, rows in enumerate(trace.sequences):
        if tokens is not None and len(found) >= 2 and seen + len(rows) > tokens:
            break
        seen += len(rows)
        found.append(routing(trace, number, also))
    return found


def routing(trace: TraceFile, sequence: int, also: Collection[Learnt] = ()) -> RoutedSequence:
    """Return one sequence with its recorded scores and predictions of the next layer.

    Args:
        also: include recorded states or embeddings that are named here.
    """
    rows, prompt = trace.sequences[sequence], trace.prompts[sequence]
    predicted = {}
    for kind in trace.header.predictions:
        source = trace.predicted(kind)
        if source is not None:
            shape = (len(rows), source.shape[1] + 1, source.shape[2])
            values = np.full(shape, np.nan, source.dtype)
            values[prompt:, :-1] = source[trace.decoded_row[rows[prompt:]]]
            predicted[kind.value] = values
    scores_TLE = trace.scores_TLE
    hidden_TLH = trace.hidden_TLH if "hidden" in also else None
    embedding_SH = trace.embedding_SH if "embedding" in also else None
    return RoutedSequence(
        trace.ids_TLK[rows].astype(np.int64),
        prompt,
        None if scores_TLE is None else scores_TLE[rows],
        predicted,
        None if hidden_TLH is None else hidden_TLH[rows],
        None if embedding_SH is None else embedding_SH[sequence],
    )

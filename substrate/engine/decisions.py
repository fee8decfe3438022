"""The inputs and return values of decisions, as plain values that the engine carries out.

Shape letters: T rows (all tokens of a pass), E experts, K chosen experts a token, H hidden, B
sequences.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np

from moebench.substrate.machines.protocol import Lane, Op
from moebench.substrate.machines.timeline import Costs
from moebench.substrate.memory.cache import Mask
from moebench.substrate.memory.residency import Whereabouts
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Ids, Phase, Scores

#: In `Routed.ids_TK`: the token uses no expert at this rank.
NO_EXPERT = -1

#: Scores ``[T, E]`` that a predictor expects of layers' gates; one row stands for all tokens.
Forecast = Mapping[int, Scores]


class Fetch(NamedTuple):
    """A request to copy an expert to the device.

    Attributes:
        expert: None is the layer's non-expert weights, where these are streamed.
        instead_of: the expert of the same layer whose slot it takes; None lets `Eviction` choose.
        keep: whether it stays until it is evicted; otherwise its slot is free again as soon as it
            has been computed.
        form: the form in which the record is copied and held, an index into `System.forms`.
    """

    layer: int
    expert: int | None
    instead_of: int | None = None
    keep: bool = True
    form: int = 0


#: Getters of a fetch's layer and expert, for `map` over many fetches.
LAYER_OF, EXPERT_OF = itemgetter(0), itemgetter(1)


class _Plain(dict[int, Fetch]):
    """Cached plain fetches of one layer by expert: the same ones are made with every token."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self._layer = layer

    def __missing__(self, expert: int) -> Fetch:
        fetch = self[expert] = Fetch(self._layer, expert)
        return fetch


class _PlainOfLayers(dict[int, _Plain]):
    """Cached plain fetches by layer, then by expert."""

    def __missing__(self, layer: int) -> _Plain:
        plain = self[layer] = _Plain(layer)
        return plain


_PLAIN = _PlainOfLayers()


def fetches(layer: int, experts: Iterable[int]) -> list[Fetch]:
    """Return a fetch with default options for each of these experts of one layer, in this order."""
    plain = _PLAIN[layer]
    return [plain[expert] for expert in experts]


class Routed(NamedTuple):
    """The result of a routing decision: the experts that each row uses.

    Attributes:
        ids_TK: the experts of each row, without repetition within a row; `NO_EXPERT` where a row
            uses fewer than k.
        weigh_as_TK: whose gate weight each position gets (usually ``ids_TK`` itself).
        top_score: experts that the system counts as important, over all rows; None if it does not
            make the distinction (then every active expert counts).
        weights_TK: weights in place of the gate's; None keeps these.
    """

    ids_TK: Ids
    weigh_as_TK: Ids
    top_score: frozenset[int] | None = None
    weights_TK: Scores | None = None


class Active:
    """The experts that a layer's tokens use, divided by residency when the gate is known.

    Attributes:
        rows: rows of each expert, ascending.
        resident, in_flight, absent: the experts that are complete on the device, that are being
            copied to it, and all others, each ascending.
    """

    __slots__ = ("_best", "_view", "absent", "in_flight", "resident", "rows")

    def __init__(self, rows: Mapping[int, int], view: "LayerView") -> None:
        self.rows, self._view = rows, view
        self._best: list[float] | None = None
        self.resident, self.in_flight, self.absent = view.residency.divide(rows)

    @property
    def best(self) -> list[float]:
        """Each expert's highest gate score over the rows, as a list of E numbers."""
        if self._best is None:
            scores = self._view.scores
            self._best = scores[0] if len(scores) == 1 else list(map(max, *scores))
        return self._best


def best_scores(scores_TE: Scores) -> Scores:
    """Return each expert's highest score over the rows, ``[E]``."""
    best: Scores = scores_TE.max(axis=0)
    return best


#: No expert is computed in another form than 0.
IN_FORM_0: Mapping[int, int] = {}


class Plan(NamedTuple):
    """The plan of a layer: each active expert is in exactly one of the first three lists.

    Attributes:
        device: computed on the device, in this order.  Leading experts that are resident are one
            operation; the device waits for each other one when its turn comes.
        host: computed on the host, in this order; resident experts may be among them.
        deferred: computed on the host; their outputs are added one MoE layer later, which the last
            one does not have.
        load: transfers, in this order: every absent expert of ``device``, and whatever else of
            this layer is absent.
        again: experts of ``load`` that are copied once more, each as often as it is listed: a
            prompt is computed in micro-batches, and the device keeps no copy between them.
        forms: by expert, the form in which it is computed.  Another one is computed in the best
            form that is complete on the device, or that ``load`` brings; on the host in form 0.
    """

    device: Sequence[int]
    host: Sequence[int] = ()
    deferred: Sequence[int] = ()
    load: Sequence[Fetch] = ()
    again: Sequence[int] = ()
    forms: Mapping[int, int] = IN_FORM_0


def split(active: Active, load: Sequence[Fetch] = (), host: Sequence[int] = ()) -> Plan:
    """Return the usual plan: the device computes all but ``host``, and loads these fetches.

    It computes resident experts first, then those in flight, then loaded ones, in their order.
    """
    device = [*active.resident, *active.in_flight]
    if host and not set(host).isdisjoint(device):
        device = [expert for expert in device if expert not in host]
    device.extend(map(EXPERT_OF, load))
    return Plan(device, host, (), load)


class Prompts(NamedTuple):
    """The prompts of a batch.

    Attributes:
        lengths: tokens of each prompt.
        embedding_BH: mean token embedding of each prompt, for policies that read it.
    """

    lengths: Sequence[int]
    embedding_BH: np.ndarray | None = None


class Lanes(Protocol):
    """The part of the machine that decisions can query."""

    @property
    def load_path(self) -> tuple[Lane, ...]:
        """Lanes that an expert's transfer to the device occupies, in order."""

    def backlog_ns(self, lane: Lane) -> int:
        """Return how long a lane will still be busy with submitted operations, in ns."""

    def estimate_ns(self, op: Op, lane: Lane) -> int:
        """Return an estimate of an operation's time on a lane, in ns."""

    def control_ns(self, op: Op, lane: Lane) -> int:
        """Return the control thread's time to submit an operation, in ns; 0 if not known."""


@dataclass(slots=True, kw_only=True)
class ForwardPass:
    """The sizes and routing so far of one forward pass: whole prompts, or one token a sequence.

    Attributes:
        phase: prefill or decode, as the engine sets it, never guessed from the number of rows.
        sequences: rows of each sequence; together they are T.
        context: cached tokens that attention reads, over all sequences.
        pairs: products of a query with a key that attention computes, over all sequences.
        history: the model's own choice ``[T, K]`` in the MoE layers so far, the current one last.
    """

    phase: Phase
    sequences: tuple[int, ...]
    rows: int
    context: int
    pairs: int
    history: list[Ids] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class LayerView:
    """The inputs of a decision about one layer.

    Attributes:
        layer: index among all layers of the decoder.
        next_layer: the next layer with experts; None after the last.
        phase: prefill or decode.
        forward: the pass that the layer is a part of.
        alpha: the system's α; 0 where its routing has none.
        scores_TE: gate scores of this layer; of a layer that is routed ahead, its gate's scores on
            the state of the layer before.
        topk_ids_TK: the model's own choice by these scores, best first.
        costs: measured durations.
        lanes: how busy the machine's lanes are.
        ahead: whether the layer is routed while the one before it is computed.
        whole_layers: whether a layer's experts are loaded as one (`Assignment.whole_layers`).
        hidden_TH: the state that the gate reads, for policies that have ``reads_hidden``.
        norm_T: the Euclidean norm of each row of this state, for policies that have
            ``reads_token_norms``; None in a replay whose trace holds no states.
        residency: where this layer's experts are, from `Policy.observe` on: one by one, or as
            masks ``resident_E`` and ``in_flight_E``, in any form; its ``forms`` has each form's.
        absent: active experts that are neither resident nor in flight, once routing is decided.
    """

    layer: int
    next_layer: int | None
    phase: Phase
    shape: ModelShape
    forward: ForwardPass
    alpha: float
    scores_TE: Scores
    topk_ids_TK: Ids
    costs: Costs
    lanes: Lanes
    ahead: bool = False
    whole_layers: bool = False
    hidden_TH: np.ndarray | None = None
    norm_T: np.ndarray | None = None
    residency: Whereabouts = field(init=False)
    absent: Sequence[int] = ()
    _scores: list[list[float]] | None = None
    _topk: list[list[int]] | None = None

    @property
    def scores(self) -> list[list[float]]:
        """``scores_TE`` as one plain list for each row, on which loops over few rows are faster."""
        if self._scores is None:
            self._scores = self.scores_TE.tolist()
        return self._scores

    @property
    def topk(self) -> list[list[int]]:
        """``topk_ids_TK`` as one plain list for each row."""
        if self._topk is None:
            self._topk = self.topk_ids_TK.tolist()
        return self._topk

    @property
    def resident_E(self) -> Mask:
        """Mask ``[E]`` of the experts of this layer that are complete on the device."""
        return self.residency.resident_E

    @property
    def in_flight_E(self) -> Mask:
        """Mask ``[E]`` of the experts of this layer that are being copied to the device."""
        return self.residency.in_flight_E

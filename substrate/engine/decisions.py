"""What a decision may look at, and what it may say: plain values, priced and carried out elsewhere.

Shape letters: T rows (all tokens of a pass), E experts, K chosen experts a token, H hidden, B
sequences.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol, cast

import numpy as np

from moebench.substrate.machines.protocol import Lane
from moebench.substrate.machines.timeline import Costs
from moebench.substrate.memory.cache import Mask
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Ids, Phase, Scores

#: In `Routed.ids_TK`: the token uses no expert at this rank.
NO_EXPERT = -1

#: Scores ``[T, E]`` that a predictor expects of later layers' gates.
Forecast = Mapping[int, Scores]


class Where(StrEnum):
    """Where an active expert is when its layer's gate is known."""

    __hash__ = str.__hash__

    RESIDENT = "resident"  # complete on the device
    IN_FLIGHT = "in flight"  # on its way to the device
    ABSENT = "absent"  # neither: in host memory or on the disk


class Active(NamedTuple):
    """An expert that the tokens use: its rows, its best gate score over them, and where it is."""

    expert: int
    rows: int
    score: float
    where: Where


class Fetch(NamedTuple):
    """Bring an expert to the device.

    Attributes:
        expert: None is the layer's common weights, where these are streamed.
        instead_of: the expert of the same layer whose slot it takes; None asks `Eviction`.
        keep: whether it stays until it is evicted; otherwise its slot is free again as soon as it
            has been computed.
    """

    layer: int
    expert: int | None
    instead_of: int | None = None
    keep: bool = True


def fetches(layer: int, experts: Iterable[int]) -> list[Fetch]:
    """Plain fetches of experts of one layer, in this order."""
    return [Fetch(layer, expert) for expert in experts]


class Routed(NamedTuple):
    """Which experts the tokens use.

    Attributes:
        ids_TK: the experts of each row, without repetition within a row; `NO_EXPERT` where a row
            uses fewer than k.
        weigh_as_TK: whose gate weight each position gets (usually ``ids_TK`` itself).
        top_score: experts that the system counts as important, over all rows; None if it does not
            make the distinction (then every active expert counts).
    """

    ids_TK: Ids
    weigh_as_TK: Ids
    top_score: frozenset[int] | None = None


class Plan(NamedTuple):
    """What happens to a layer's active experts; each stands in exactly one of the three lists.

    Attributes:
        device: computed on the device, in this order.  Leading ones that are there are one
            operation; whoever is not there yet is waited for when its turn comes.
        host: computed on the host, in this order, residents too if need be.
        deferred: computed on the host; their outputs are added one MoE layer later.
        load: transfers, in this order: every absent expert of ``device``, and whatever else.
    """

    device: Sequence[int]
    host: Sequence[int] = ()
    deferred: Sequence[int] = ()
    load: Sequence[Fetch] = ()


def split(active: Iterable[Active], load: Sequence[Fetch] = (), host: Sequence[int] = ()) -> Plan:
    """The usual plan: the device computes all but ``host``, and loads these fetches.

    It computes what is there first, then what is on its way, then what is loaded, in their order.
    """
    there: list[int] = []
    coming: list[int] = []
    for a in active:
        if a.where is not Where.ABSENT and a.expert not in host:
            (there if a.where is Where.RESIDENT else coming).append(a.expert)
    return Plan([*there, *coming, *(cast(int, fetch.expert) for fetch in load)], host, (), load)


class Prompts(NamedTuple):
    """The sequences of a batch at their beginning.

    Attributes:
        lengths: tokens of each prompt.
        embedding_BH: mean token embedding of each prompt, for policies that read it.
    """

    lengths: Sequence[int]
    embedding_BH: np.ndarray | None = None


class Lanes(Protocol):
    """What a decision may ask of the machine."""

    def backlog_ns(self, lane: Lane) -> int:
        """How long a lane will still be busy with what was submitted to it."""


@dataclass(slots=True, kw_only=True)
class ForwardPass:
    """One pass over all layers: whole prompts, or one token of each sequence.

    Attributes:
        phase: told, never guessed from the number of rows.
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
    """What a decision about one layer may look at.

    Attributes:
        layer: index among all layers of the decoder.
        next_layer: the next layer with experts; None after the last.
        forward: the pass that the layer is a part of.
        alpha: the system's α; 0 where its routing has none.
        scores_TE: gate scores of this layer; of a layer that is routed ahead, its gate's scores on
            the state of the layer before.
        topk_ids_TK: the model's own choice by these scores, best first.
        costs: measured durations.
        lanes: how busy the machine's lanes are.
        ahead: whether the layer is routed while the one before it is computed.
        hidden_TH: the state that the gate reads, for policies that say ``reads_hidden``.
        resident_E, in_flight_E: where this layer's experts are, from `Policy.observe` on.
    """

    layer: int
    next_layer: int | None
    shape: ModelShape
    forward: ForwardPass
    alpha: float
    scores_TE: Scores
    topk_ids_TK: Ids
    costs: Costs
    lanes: Lanes
    ahead: bool = False
    hidden_TH: np.ndarray | None = None
    resident_E: Mask = field(init=False)
    in_flight_E: Mask = field(init=False)
    _scores: list[list[float]] | None = None

    @property
    def phase(self) -> Phase:
        """Prefill or decode."""
        return self.forward.phase

    @property
    def scores(self) -> list[list[float]]:
        """``scores_TE`` as plain lists, one a row: loops over a few rows are faster on them."""
        if self._scores is None:
            self._scores = self.scores_TE.tolist()
        return self._scores


def best_scores(scores_TE: Scores) -> Scores:
    """Each expert's highest score over the rows, ``[E]``."""
    best: Scores = scores_TE.max(axis=0)
    return best

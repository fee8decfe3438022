"""A system is five decisions.

The engine asks them at fixed moments of a token's way through a layer; a paper composes five small
policy objects, most of them shared (`systems.policies`).  A policy is a dataclass: its fields are
its options, its state is made in `start`.  Policies name actions and never price or perform them.

    place     once, before the first token: where every expert starts
    route     the gate's scores are known: which experts the tokens use
    assign    some chosen experts are off the device: load or compute on the host, in which order
    prefetch  the layer's own loads are queued: what to bring for the next layer
    evict     a transfer needs a slot: who leaves
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Ids, Lookahead, Phase, Scores

if TYPE_CHECKING:
    from moebench.substrate.terms import RoutedSequence

#: How many measured durations of each kind are kept.
COSTS_KEPT = 64


def _recent() -> "deque[float]":
    return deque(maxlen=COSTS_KEPT)


@dataclass(slots=True)
class Costs:
    """What the last operations took on this machine, in ns, oldest first.

    Each list starts with one estimate, so that the first decision has something to go by.
    """

    load_ns: "deque[float]" = field(default_factory=_recent)
    host_ns: "deque[float]" = field(default_factory=_recent)
    host_ns_per_row: "deque[float]" = field(default_factory=_recent)


@dataclass(slots=True, kw_only=True)
class LayerView:
    """What a decision about one layer may look at.

    Attributes:
        phase: told, never guessed from the number of rows.
        scores_TE: gate scores of this layer.
        scores: the same as plain lists, one a row: loops over a few rows are faster on them.
        own_TK: the model's own choice, best first.
        resident_E, in_flight_E: where this layer's experts are now.
        costs: measured durations, oldest first.
    """

    phase: Phase
    layer: int
    shape: ModelShape
    scores_TE: Scores
    scores: list[list[float]]
    own_TK: Ids
    resident_E: Mask
    in_flight_E: Mask
    costs: Costs


class Routed(NamedTuple):
    """Which experts the tokens use.

    Attributes:
        ids_TK: the experts of each row; without repetition within a row.
        weigh_as_TK: whose gate weight each position gets (usually ``ids_TK`` itself).
        top_score: experts that the system counts as important, over all rows; None if it does not
            make the distinction (then every active expert counts).
    """

    ids_TK: Ids
    weigh_as_TK: Ids
    top_score: frozenset[int] | None = None


class Missing(NamedTuple):
    """An active expert off the device: its best gate score over the batch, and its rows."""

    expert: int
    score: float
    rows: int


class Assigned(NamedTuple):
    """What happens to the missing experts; every one stands in exactly one list, in order."""

    load: Sequence[int]
    host: Sequence[int]


class Policy(ABC):
    """Base of the five decisions.  Subclasses are dataclasses whose fields are their options."""

    #: Whether the policy learns from recorded routing: `calibrate` then comes before `start`.
    calibrates: ClassVar[bool] = False
    #: Whether what it learns is a data set's own, so that it learns from the train half of the one
    #: that it will serve rather than from general text.
    learns_own_set: ClassVar[bool] = False

    @property
    def device_bytes(self) -> int:
        """Device memory that it needs for itself, beside slots."""
        return 0

    @property
    def learnt(self) -> Mapping[str, str]:
        """How `calibrate` went, for the run's provenance: epochs, loss, what it learnt from."""
        return {}

    def calibrate(
        self,
        sequences: "Sequence[RoutedSequence]",
        shape: ModelShape,
        artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Learn from how other texts than the run's own were routed.

        Args:
            artefacts: a folder in which what was learnt may be kept, by the hash of all it is from.
            progress: told of steps done and to do.
        """

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Make fresh state for a run."""

    def observe(self, view: LayerView) -> None:
        """A layer's gate is known (called for every layer of every pass, before `Routing`)."""


class Placement(Policy):
    """Where every expert starts."""

    @abstractmethod
    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """At most ``slots`` pairs (layer, expert) to hold when the run starts."""


class Routing(Policy):
    """Which experts the tokens use."""

    @property
    def lossless(self) -> bool:
        """Whether the routed experts are always the model's own."""
        return True

    @property
    def lookahead(self) -> Lookahead:
        """The prediction that `foresee` needs; GATE or NONE."""
        return Lookahead.NONE

    def foresees(self, layer: int) -> bool:
        """Whether this layer is routed while the layer before it is computed (decode only)."""
        return False

    def route(self, view: LayerView) -> Routed:
        """Choose; the default is the model's own top-k.

        For a layer that is foreseen, ``view`` holds its gate's scores on the state of the layer
        before, and ``own_TK`` their best.
        """
        return Routed(view.own_TK, view.own_TK)


class Assignment(Policy):
    """What happens to active experts that are off the device."""

    #: Whether it ever computes on the host.
    uses_host: bool = False

    @abstractmethod
    def assign(self, view: LayerView, missing: Sequence[Missing]) -> Assigned:
        """Split the missing experts between the link and the host."""


class Prefetching(Policy):
    """What to bring for the next layer."""

    #: How its transfers go.  False: behind everything needed; what has not begun is dropped when
    #: the layer's gate is known.  True: like loads, in the order asked; each waits for a slot that
    #: the current layer leaves, and none is dropped.
    in_order: ClassVar[bool] = False

    @property
    def lookahead(self) -> Lookahead:
        """The prediction that `prefetch` needs in decode."""
        return Lookahead.NONE

    @property
    def network(self) -> tuple[int, ...]:
        """Widths, input to output, of a network of its own that `foretell` runs; () for none."""
        return ()

    def foretell(self, view: LayerView, next_layer: int) -> Scores:
        """What its own network says of ``next_layer``, ``[T, E]``: asked in decode, if it has one.

        It runs beside the device, from when the layer's gate is known.

        Raises:
            UsageError: the policy names a network and does not say what it foretells.
        """
        raise UsageError(
            f"{type(self).__name__} has a network and no `foretell`; write one, or leave "
            "`network` empty"
        )

    def opening(self, phase: Phase, layer: int) -> Sequence[int]:
        """Experts of a pass's first MoE layer, to bring while all before its gate is computed."""
        return ()

    def prefetch(
        self, view: LayerView, next_layer: int, predicted_TE: Scores | None
    ) -> Sequence[int]:
        """Experts of ``next_layer`` in the order to bring them; those already held are skipped.

        ``predicted_TE`` is None where nothing was predicted, and in prefill.
        """
        return ()


class Eviction(Policy):
    """Who leaves when a slot is needed."""

    #: Slots that placement must leave empty.
    reserve: int = 0
    #: Whether it must know the future, which a replay alone can tell it before `start`.
    clairvoyant: ClassVar[bool] = False

    def foresee(self, steps: Sequence[tuple[int, Sequence[int]]], may_refuse: bool = False) -> None:
        """Learn all steps to come: a layer and the experts that it uses.

        Args:
            may_refuse: whether a newcomer can do without a slot (where hits alone are counted).
        """

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """The layer's active experts, whatever brought them."""

    def arrived(self, key: int) -> None:
        """An expert was given a slot."""

    def left(self, key: int) -> None:
        """An expert lost its slot."""

    @abstractmethod
    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """One of the allowed keys, or None: to refuse, or because none is allowed."""


@dataclass(kw_only=True)
class System:
    """Five decisions under a name.  A paper's system is a subclass with its own defaults."""

    place: Placement
    route: Routing
    assign: Assignment
    prefetch: Prefetching
    evict: Eviction
    scope: Scope = "global"
    #: Everything must fit on the device: the ceiling, not an offloading system.
    all_resident: bool = False

    @property
    def policies(self) -> dict[str, Policy]:
        """The decisions by name, in the order in which they are asked."""
        return {
            "place": self.place,
            "route": self.route,
            "assign": self.assign,
            "prefetch": self.prefetch,
            "evict": self.evict,
        }

    @property
    def lossless(self) -> bool:
        """Whether the tokens are those of the model with everything resident."""
        return self.route.lossless

    def most_slots(self, shape: ModelShape) -> int | None:
        """How many experts it keeps on the device at most; None takes all that fit."""
        return None

    @property
    def device_bytes(self) -> int:
        """Device memory that its policies need for themselves."""
        return sum(policy.device_bytes for policy in self.policies.values())

    @property
    def lookahead(self) -> Lookahead:
        """What is predicted of the next layer.

        Raises:
            UsageError: routing and prefetching ask for different predictions.
        """
        kinds = {self.route.lookahead, self.prefetch.lookahead} - {Lookahead.NONE}
        if len(kinds) > 1:
            raise UsageError(
                "route and prefetch need different predictions "
                f"({self.route.lookahead}, {self.prefetch.lookahead}); swap one of them with --set"
            )
        return kinds.pop() if kinds else Lookahead.NONE

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin a run."""
        for policy in self.policies.values():
            policy.start(shape, cache)
        # Most policies do not watch; asking only those that do keeps the inner loop short.
        watches = Policy.observe
        self._observers = [p for p in self.policies.values() if type(p).observe is not watches]

    def observe(self, view: LayerView) -> None:
        """Show a layer's gate to every policy that watches."""
        for policy in self._observers:
            policy.observe(view)


def best_scores(scores_TE: Scores) -> Scores:
    """Each expert's highest score over the rows, ``[E]``."""
    best: Scores = scores_TE.max(axis=0)
    return best

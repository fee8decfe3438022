"""Small policies of a test's own, and runs of them whose time can be worked out by hand.

Without other prices attention takes 30, a gate 3, an expert 10, the sum 2, the head 6; a load takes
40, an expert on the host 55 and its return 4.  Control costs nothing unless a test says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from moebench.harness.conformance.invariants import check_order, check_timeline
from moebench.substrate.engine.decisions import Active, Fetch, LayerView, Plan, Routed
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Predictor,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.machines.protocol import Lane, Op, OpKind, Span
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.prefetch import NoPrefetch
from moebench.systems.policies.route import ExactRouting
from tests.substrate.engine.fakes import FixedModel, FlatCosts, Rig, prices, rig


@dataclass(kw_only=True)
class Placed(Placement):
    """Given pairs on the device and on the host, and given fetches after prefill."""

    pairs: Sequence[tuple[int, int]] = ()
    after: Sequence[Fetch] = ()
    on_host: Sequence[tuple[int, int]] = ()

    def place(self, shape, slots, scope):
        return self.pairs

    def keep_on_host(self, shape, records):
        return self.on_host[:records]

    def after_prefill(self):
        return self.after


@dataclass(kw_only=True)
class Routes(Routing):
    """A function's choice; given layers ahead."""

    by: Callable[[LayerView], Any] = lambda view: view.topk_ids_TK
    ahead: Sequence[int] = ()
    looks: Predictor | None = None

    def lossless_at(self, alpha):
        return False

    @property
    def predictor(self):
        return self.looks

    def routes_ahead(self, layer):
        return layer in self.ahead

    def route(self, view):
        ids_TK = np.array(self.by(view))
        return Routed(ids_TK, ids_TK)


@dataclass(kw_only=True)
class Plans(Assignment):
    """A function's plan; what it was asked is kept."""

    by: Callable[[LayerView, Active], Plan]
    uses_host: bool = True
    lossless = False
    asked: list[tuple[int, bool, Active]] = field(default_factory=list)

    def assign(self, view, active):
        self.asked.append((view.layer, view.ahead, active))
        return self.by(view, active)


@dataclass(kw_only=True)
class Asks(Prefetching):
    """Given fetches in each layer of each pass of a phase, and at its beginning."""

    wanted: Mapping[int, Sequence[Fetch]] = field(default_factory=dict)
    opens: Sequence[Fetch] = ()
    discipline: Literal["speculative", "committed"] = "speculative"
    phase: str = "prefill"
    looks: Predictor | None = None
    told: list[tuple[int, Mapping[int, Any]]] = field(default_factory=list)
    reads_scores = False

    @property
    def predictor(self):
        return self.looks

    def opening(self, phase, layer):
        return self.opens if phase == self.phase else ()

    def prefetch(self, view, forecast):
        self.told.append((view.layer, forecast))
        return self.wanted.get(view.layer, ()) if view.phase == self.phase else ()


@dataclass(kw_only=True)
class Chunks(Asks):
    """The same in several chunks."""

    chunks: int = 2


@dataclass(kw_only=True)
class Told(LeastRecentlyUsed):
    """LRU that keeps what it is told of predictions."""

    forecasts: list[Mapping[int, Any]] = field(default_factory=list)

    def foresee(self, forecast):
        self.forecasts.append(forecast)


@dataclass(kw_only=True)
class Refuses(Eviction):
    """Nobody leaves."""

    def victim(self, allowed, incoming):
        return None


@dataclass(kw_only=True)
class Grows(LeastRecentlyUsed):
    """LRU that takes a free slot for these keys alone."""

    keys: Sequence[int] = ()

    def grows(self, incoming):
        return incoming in self.keys


@dataclass(kw_only=True)
class WritesBack(LeastRecentlyUsed):
    """LRU; victims are copied back."""

    writes_back = True


@dataclass(kw_only=True)
class KeepsRoom(LeastRecentlyUsed):
    """LRU of layer 0; one slot is for experts that are not kept."""

    reserve = 1
    transient = 1

    def victim(self, allowed, incoming):
        return super().victim(allowed, incoming) if incoming < self._experts else None


@dataclass(frozen=True)
class Guess(Predictor):
    """The model's prediction of the next layer, at a given price, on a given lane."""

    lane: Lane = Lane.DEVICE
    in_prefill: bool = False
    in_background: bool = False
    wraps: bool = False

    def op(self, view):
        return Op(OpKind.PREDICT, view.layer, (view.forward.rows,))

    def forecast(self, view, model, done):
        later = 0 if view.next_layer is None else view.next_layer
        return {later: model.predict(view.layer, later, done, self.lookahead)}


def system(**decisions: Any) -> System:
    """Nothing placed, everything exact and loaded, LRU, but for what a test says."""
    defaults: dict[str, Any] = {
        "place": Placed(),
        "route": ExactRouting(),
        "assign": LoadAll(),
        "prefetch": NoPrefetch(),
        "evict": LeastRecentlyUsed(),
    }
    return System(**{**defaults, **decisions})


def row(*best: int, experts: int = 4) -> list[float]:
    """One row's scores in which these experts come first, in this order."""
    return [0.9 - 0.1 * best.index(e) if e in best else 0.01 for e in range(experts)]


def model_of(
    shape: ModelShape,
    uses: Sequence[Sequence[Sequence[Sequence[int]]]],
    expects: Mapping[tuple[int, int], Sequence[int]] | None = None,
) -> FixedModel:
    """A model that uses these experts: of each pass, each MoE layer, each row.

    Args:
        expects: (pass, layer) → the experts that come first in its prediction, for one row.
    """
    e = shape.num_experts
    gates = {
        (p, layer): [row(*best, experts=e) for best in rows]
        for p, layers in enumerate(uses)
        for layer, rows in zip(shape.moe_layers, layers, strict=True)
    }
    guesses = {at: [row(*best, experts=e)] for at, best in (expects or {}).items()}
    return FixedModel(shape, gates, guesses)


def run(
    made: System,
    model: FixedModel,
    *,
    slots: int | Sequence[int],
    costs: FlatCosts | None = None,
    rows: int = 1,
    passes: int = 1,
    deferred: Sequence[tuple[int, ...]] = (),
    **more: Any,
) -> Rig:
    """One batch of prompts of one token each; what must always hold is checked."""
    ran = rig(made, model, slots=slots, costs=costs or FlatCosts(prices()), **more)
    ran.engine.generate([[3]] * rows, passes)
    check_timeline(
        ran.spans,
        ran.events,
        num_experts=model.shape.num_experts,
        num_layers=model.shape.num_layers,
        capacity=ran.cache.capacity,
        budget_bytes=ran.tier.budget_bytes,
        writes_back=made.evict.writes_back,
        queued=ran.engine.transfers.queued_uploads(),
        one_form=more.get("chosen") is not None,
    )
    check_order(ran.spans, more.get("homes", ()), deferred)
    ran.cache.check_integrity()
    return ran


Row = tuple[int, tuple[int, ...], int, int]


def of(ran: Rig, kind: OpKind, lane: Lane | None = None) -> list[Row]:
    """Layer, experts, start and end of the spans of a kind, in the order of submission."""
    return [_row(s) for s in ran.spans if s.op.kind is kind and lane in (None, s.lane)]


def _row(span: Span) -> Row:
    return span.op.layer, span.op.experts, span.start_ns, span.end_ns


def evicted(ran: Rig) -> list[tuple[int, int | None]]:
    """Who got a slot after placement, and who left for it, as keys."""
    return [(claim.key, claim.victim) for claim in ran.claims if not claim.placed]

"""A system whose decisions are drawn: whatever the contract allows, in any combination."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar

import numpy as np

from moebench.substrate.engine.decisions import NO_EXPERT, Fetch, Plan, Routed
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.predict import NextGates


@dataclass(kw_only=True)
class _Drawn:
    """A policy's own source of numbers: the same ones whenever a run begins."""

    seed: int = 0

    def start(self, shape, cache) -> None:
        self.random = Random(self.seed)
        self.shape = shape
        pools = cache.pools if cache.scope == "layer" else [cache.slots] * len(shape.moe_layers)
        #: Slots that each layer's experts may have.
        self.room = dict(zip(shape.moe_layers, pools, strict=True))

    def some(self, of: Sequence[Any], most: int = 99) -> list[Any]:
        """Some of these, in any order."""
        return self.random.sample(list(of), self.random.randint(0, min(most, len(of))))

    def fetch(self, layer: int, expert: int, swaps: bool) -> Fetch:
        """One that may name any other expert of its layer, and may not be kept."""
        others = [e for e in range(self.shape.num_experts) if e != expert]
        named = self.random.choice(others) if swaps and self.random.random() < 0.3 else None
        return Fetch(layer, expert, named, self.random.random() < 0.7)


@dataclass(kw_only=True)
class AnyPlacement(_Drawn, Placement):
    """As many as fit, and exchanges after prefill."""

    def place(self, shape, slots, scope):
        pairs = [(layer, e) for layer in shape.moe_layers for e in range(shape.num_experts)]
        self.random.shuffle(pairs)
        if scope == "global":
            return pairs[:slots]
        room, placed = dict(self.room), []
        for layer, expert in pairs:
            if room[layer]:
                room[layer] -= 1
                placed.append((layer, expert))
        return placed

    def after_prefill(self):
        layers = self.some([layer for layer, room in self.room.items() if room], 2)
        return [self.fetch(i, self.random.randrange(self.shape.num_experts), True) for i in layers]


@dataclass(kw_only=True)
class AnyRouting(_Drawn, Routing):
    """Some of the model's own choice, others, and nobody; some layers ahead."""

    ahead: frozenset[int] = frozenset()

    def lossless_at(self, alpha):
        return False

    @property
    def predictor(self):
        return NextGates()

    def routes_ahead(self, layer):
        return layer in self.ahead

    def route(self, view):
        ids_TK = view.topk_ids_TK.copy()
        for ids in ids_TK:
            for rank in range(1, len(ids)):
                if self.random.random() < 0.2:
                    free = [e for e in range(self.shape.num_experts) if e not in ids]
                    ids[rank] = self.random.choice([*free, NO_EXPERT])
        return Routed(ids_TK, ids_TK)


@dataclass(kw_only=True)
class AnyAssignment(_Drawn, Assignment):
    """Any division, any order, exchanges, and fetches that nobody chose.

    Attributes:
        on_host, later: how many experts the host computes, and how many of these are deferred.
    """

    on_host: float = 0.3
    later: float = 0.3

    uses_host = True
    lossless: ClassVar[bool] = False

    def start(self, shape, cache):
        super().start(shape, cache)
        #: Of every layer of every pass, whose outputs are added one layer later.
        self.deferred: list[tuple[int, ...]] = []

    def assign(self, view, active):
        lists: tuple[list[int], ...] = ([], [], [])
        for expert in active.rows:
            on_host = self.random.random() < self.on_host or self.room[view.layer] == 0
            later = view.next_layer is not None and self.random.random() < self.later
            lists[on_host * (1 + later)].append(expert)
        for experts in lists:
            self.random.shuffle(experts)
        if not view.ahead:
            self.deferred.append(tuple(lists[2]))
        there = view.resident_E | view.in_flight_E
        wanted = [e for e in lists[0] if e in active.absent]
        if self.room[view.layer]:
            others = [e for e in np.flatnonzero(~there).tolist() if e not in active.rows]
            wanted += self.some(others, 1)
        self.random.shuffle(wanted)
        return Plan(*lists, [self.fetch(view.layer, e, True) for e in wanted])


@dataclass(kw_only=True)
class AnyPrefetch(_Drawn, Prefetching):
    """Any experts of the next two layers, behind everything needed."""

    chunks: int = 1
    most: int = 2
    reads_scores = False

    @property
    def predictor(self):
        return NextGates(layers=2)

    def opening(self, phase, layer):
        return self._wanted([layer])

    def prefetch(self, view, forecast):
        row = self.shape.moe_rows[view.layer]
        return self._wanted(self.shape.moe_layers[row + 1 : row + 3])

    def _wanted(self, layers: Sequence[int]) -> list[Fetch]:
        return [
            self.fetch(layer, expert, True)
            for layer in layers
            if self.room[layer]
            for expert in self.some(range(self.shape.num_experts), self.most)
        ]


@dataclass(kw_only=True)
class AnyCommitted(AnyPrefetch):
    """The same, first in, first out with needed loads."""

    discipline = "committed"


@dataclass(kw_only=True)
class MayWriteBack(LeastRecentlyUsed):
    """LRU, whose victims may be copied back."""

    writes_back: bool = True


@dataclass(kw_only=True)
class Arbitrary(System):
    """All of them."""

    place: Placement = field(default_factory=AnyPlacement)
    route: Routing = field(default_factory=AnyRouting)
    assign: Assignment = field(default_factory=AnyAssignment)
    prefetch: Prefetching = field(default_factory=AnyPrefetch)
    evict: Eviction = field(default_factory=LeastRecentlyUsed)

"""HybriMoE as its authors' code runs it (PKU-SEC-Lab/HybriMoE 508a85b), unlike the paper.

`ktransformers/operators/experts.py`:

    code                                   here
    ────                                   ────
    KExpertsCache: n slots a layer,        PlaceById; LowestOfItsLayer: each layer keeps what its
      experts 0 to n-1 at start              slots hold
    E staging slots, in which nothing      LowestOfItsLayer.transient; Fetch(keep=False)
      stays
    HSS, where there is one row:           two_ended, TwoEnded
      GPU from the head, CPU from the
      tail of cached ++ uncached
    its costs, which are literals          TwoEnded: 1 a token and 0.79 once on the CPU, 0.5 on the
                                             GPU, 0.4179 a move, whatever runs where
    several rows: all to the GPU           TwoEnded, AfterNext
    prefetch_expert, 0 by default          AfterNext.size: the next layer's highest S
    KScoreAwareCache: α = 0.5, p = 2k      RecentScores
      argmin of S evicts; of equal ones    LowestOfItsLayer
      what was used longest ago
    pinned storage of all experts          ``pinned_copies``

The code tells decode from prefill by the number of rows, so a batch is decoded as a prompt is.
With several rows the staging slots serve the first layer.  After each layer all experts of the
layer after the next are copied into them.  So the next layer finds none free, and what it misses
replaces its own residents; and before the layer comes whose experts they hold, these are
overwritten.  The last layer finds what was staged for it, which the code drops.

Deviations:

- Of S the code credits a gate's p highest scores in descending order to their experts in the order
  of ids, and reads the first row alone.  Here every expert gets its own score, and of several rows
  the mean counts; ``evict.as_coded`` does as the code does.
- The code evicts experts that its layer is still to compute, and computes on what took their place.
  Here these wait until they have been computed.
- The code computes some experts of the CPU on others' weights: it takes positions in two lists for
  positions in their sum.  Here results are right, and the time is the same.
- Only for DeepSeek the code makes the cache of scores; other models fail.  Here all have it.
- The staging slots are the device's, as those of the cache are; they are fewer than E by what a
  layer keeps, as nothing is staged that is there.
- Copies are of one matrix each in the code.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from moebench.substrate.engine.decisions import (
    Active,
    Fetch,
    Forecast,
    LayerView,
    Plan,
    fetches,
    split,
)
from moebench.substrate.engine.policies import Assignment, Eviction, Prefetching
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.systems.hybrimoe import HybriMoE, RecentScores
from moebench.systems.policies.checks import require_at_least

#: What the code thinks that operations take, in a unit of its own: on the CPU a token, and the
#: first of a layer more; an expert on the GPU; a move there.
TOKEN_COST, FIRST_COST, GPU_COST, MOVE_COST = 1.0, 0.79, 0.5, 0.4179
#: α of S.
SMOOTHING = 0.5


class Costs(NamedTuple):
    """Constants of the schedule."""

    token: float = TOKEN_COST
    first: float = FIRST_COST
    gpu: float = GPU_COST
    move: float = MOVE_COST


class Division(NamedTuple):
    """Positions in the order of both queues, and when the GPU, the CPU and the link are done."""

    gpu: list[int]
    cpu: list[int]
    gpu_ends: float
    cpu_ends: float
    moved: float


def two_ended(cached: Sequence[int], absent: Sequence[int], costs: Costs) -> Division:
    """HSS: the GPU takes the head of the order if it ends no later than the CPU with the tail.

    Args:
        cached, absent: tokens of the experts, descending; the order is the one after the other.
    """
    tokens = [*cached, *absent]
    gpu: list[int] = []
    cpu: list[int] = []
    g = c = x = 0.0
    while len(gpu) + len(cpu) < len(tokens):
        head, tail = len(gpu), len(tokens) - 1 - len(cpu)
        moved = x + costs.move if head >= len(cached) else x
        ready = moved if head >= len(cached) else g
        gpu_ends = max(g, ready) + costs.gpu
        cpu_ends = c + costs.token * tokens[tail] + (0 if cpu else costs.first)
        if gpu_ends <= cpu_ends:
            gpu.append(head)
            g, x = gpu_ends, moved
        else:
            cpu.append(tail)
            c = cpu_ends
    return Division(gpu, cpu, g, c, x)


@dataclass(kw_only=True)
class TwoEnded(Assignment):
    """Divides the experts of one row between both ends of a list; several rows are the GPU's alone.

    Attributes:
        token_cost, first_cost: of a token on the CPU, and of the first expert there more.
        gpu_cost, move_cost: of an expert on the GPU, and of its way there.
    """

    token_cost: float = TOKEN_COST
    first_cost: float = FIRST_COST
    gpu_cost: float = GPU_COST
    move_cost: float = MOVE_COST

    reads_scores = False
    uses_host = True

    def __post_init__(self) -> None:
        require_at_least("assign", self, token_cost=0, first_cost=0, gpu_cost=0, move_cost=0)

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Of one row, each expert has one token, and the best scored are first in both lists."""
        if view.forward.rows > 1:
            # In the first and the last layer the staging slots are free.
            ends = (view.shape.moe_layers[0], view.shape.moe_layers[-1])
            keep = view.layer not in ends
            return split(active, [Fetch(view.layer, e, keep=keep) for e in active.absent])
        rank = {e: place for place, e in enumerate(view.topk_ids_TK[0].tolist())}
        order = sorted(active.rows, key=lambda e: (e in active.absent, rank.get(e, len(rank))))
        costs = Costs(self.token_cost, self.first_cost, self.gpu_cost, self.move_cost)
        away = len(active.absent)
        found = two_ended([1] * (len(order) - away), [1] * away, costs)
        device, host = [order[n] for n in found.gpu], [order[n] for n in found.cpu]
        load = fetches(view.layer, [e for e in device if e in active.absent])
        return Plan(device, host, (), load)


@dataclass(kw_only=True)
class AfterNext(Prefetching):
    """After several rows, fills the staging slots; after one, fetches the next layer's highest S.

    Attributes:
        size: how many experts of the next layer are fetched where they are not there.
    """

    size: int = 0

    discipline = "committed"

    def __post_init__(self) -> None:
        require_at_least("prefetch", self, size=0)

    @property
    def reads_scores(self) -> bool:  # type: ignore[override]
        """Only to fetch the next layer's."""
        return self.size > 0

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """No gate yet."""
        self._scores = RecentScores(shape, SMOOTHING, 0)

    def observe(self, view: LayerView) -> None:
        """S, if it is to be read."""
        if self.size:
            self._scores.update(view.layer, view.scores_TE.mean(axis=0))

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """All experts of the layer after the next, not to be kept; or some of the next."""
        shape = view.shape
        if view.forward.rows > 1:
            row = shape.moe_rows[view.layer] + 2
            after = shape.moe_layers[row : row + 1]
            return [
                Fetch(layer, e, keep=False) for layer in after for e in range(shape.num_experts)
            ]
        if not self.size:
            return ()
        assert view.next_layer is not None
        highest = (-self._scores.of(view.next_layer)).argsort(kind="stable")[: self.size]
        return fetches(view.next_layer, highest.tolist())


class CodedScores(RecentScores):
    """S as the code has it: a gate's p highest scores go to their experts in the order of ids."""

    def update(self, layer: int, scores_E: np.ndarray) -> None:
        """The highest to the lowest id among these experts, and so on."""
        highest = self.decay(layer, scores_E)
        self.of(layer)[np.sort(highest)] += self.smoothing * scores_E[highest]


@dataclass(kw_only=True)
class LowestOfItsLayer(Eviction):
    """Evicts its layer's expert with the lowest S; of equal ones, the one used longest ago.

    Attributes:
        as_coded: S is of the first row alone, and its scores go to other experts: see the module.
    """

    as_coded: bool = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set staging slots for one layer's experts apart.

        Raises:
            BudgetError: the others are fewer than one a layer.
            UsageError: layers do not share slots.
        """
        experts, layers = shape.num_experts, len(shape.moe_layers)
        if cache.scope == "layer":
            raise UsageError(
                "evict=mrs-shipped divides the slots itself and stages one layer's experts: use it "
                "with --set scope=global"
            )
        # Each of n layers keeps m, and E - m slots are for what a layer lacks.
        each = (cache.slots - experts) // max(layers - 1, 1)
        if each < 1:
            raise BudgetError(
                f"evict=mrs-shipped keeps experts of each of {layers} layers and stages the others "
                f"of one: {cache.slots} slots are too few, {experts + layers - 1} would do; give a "
                "larger --cache-ratio"
            )
        self.reserve = self.transient = experts - each
        self._scores = (CodedScores if self.as_coded else RecentScores)(shape, SMOOTHING, 0)
        self._experts = experts
        #: By layer, the experts that it keeps, the least recently used first.
        self._kept = [OrderedDict[int, None]() for _ in range(shape.num_layers)]

    def observe(self, view: LayerView) -> None:
        """Every gate; of several rows their mean, or the first one's."""
        one, scores_TE = self.as_coded or view.forward.rows == 1, view.scores_TE
        self._scores.update(view.layer, scores_TE[0] if one else scores_TE.mean(axis=0))
        self._layer, self._rows = view.layer, view.forward.rows

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Those that are kept go to the end."""
        kept, first = self._kept[layer], layer * self._experts
        for expert in experts:
            if first + expert in kept:
                kept.move_to_end(first + expert)

    def arrived(self, key: int) -> None:
        """Its layer keeps it."""
        self._kept[key // self._experts][key] = None

    def left(self, key: int) -> None:
        """It does no more."""
        self._kept[key // self._experts].pop(key, None)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Of the incoming expert's own layer; none for what is staged for a later one."""
        layer = incoming // self._experts
        if self._rows > 1 and layer != self._layer:
            return None
        kept, value = self._kept[layer], self._scores.by_key
        return min((key for key in kept if allowed[key]), key=value.__getitem__, default=None)


@dataclass(kw_only=True)
class ShippedHybriMoE(HybriMoE):
    """The complete system of the authors' code."""

    assign: Assignment = field(default_factory=TwoEnded)
    prefetch: Prefetching = field(default_factory=AfterNext)
    evict: Eviction = field(default_factory=LowestOfItsLayer)
    scope: Scope = "global"
    pinned_copies: bool | None = True

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """What decides, whose results these are, and what a batch or a prompt copies in vain."""
        said = [
            "its code computes some experts of the CPU on others' weights: its time is simulated, "
            "its results would be wrong; accuracy here is that of the right weights"
        ]
        if isinstance(takes := self.assign, TwoEnded):
            said.append(
                f"its schedule goes by the constants of its code, on the CPU {takes.token_cost:g} "
                f"a token and {takes.first_cost:g} once, {takes.gpu_cost:g} on the GPU, "
                f"{takes.move_cost:g} a move, whatever these take here"
            )
        if isinstance(self.prefetch, AfterNext):
            said.append(
                "in prefill, and in each step of a batch, its code copies all experts of the layer "
                "after the next, and overwrites them before that comes"
            )
        return said

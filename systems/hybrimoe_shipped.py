"""HybriMoE as its authors' code runs it (PKU-SEC-Lab/HybriMoE 508a85b), unlike the paper.

`ktransformers/operators/experts.py`:

    code                                   moebench
    ────                                   ────────
    KExpertsCache: n slots a layer,        PlaceById; LowestOfItsLayer: each layer keeps as many
      experts 0 to n-1 at start              experts
    E staging slots for transient          LowestOfItsLayer.transient; Fetch(keep=False)
      experts
    HSS, for one row:                      two_ended, TwoEnded
      GPU from the head, CPU from the
      tail of cached ++ uncached
    its costs, which are literals          TwoEnded: 1 a token and 0.79 once on the CPU, 0.5 on the
                                             GPU, 0.4179 a copy, for every model and machine
    several rows: all on the GPU           TwoEnded, AfterNext
    prefetch_expert, 0 by default          AfterNext.size: the next layer's highest S
    KScoreAwareCache: α = 0.5, p = 2k;     CodedScores; with ``evict.as_coded=false`` and
      a gate's p highest scores, in          ``prefetch.as_coded=false`` every expert gets its own
      descending order, are credited to      score, and of several rows the mean
      their experts in the order of ids;
      of several rows the first is read
      evicts the lowest S; of equal        LowestOfItsLayer
      ones the least recently used
    page-locked storage of all experts     ``pinned_copies``

The code distinguishes decode from prefill by the number of rows, so it decodes a batch like a
prompt.  With several rows the first layer uses the staging slots, and after each layer all experts
of the layer after the next are copied into them.  So the next layer finds no free staging slot, and
its missing experts replace its own residents; and the staged experts are overwritten before their
layer is computed.  The last layer finds the experts staged for it, but the code drops them.

Deviations:

- The code evicts experts that the current layer has not yet computed, and then computes with the
  weights that replaced theirs.  In moebench these experts are evicted after their computation.
- The code computes some of the CPU's experts with other experts' weights: it uses positions in two
  lists as positions in the joined list.  In moebench results are right, and the time is the same.
- The code creates the cache of scores only for DeepSeek; other models fail.  moebench always does.
- The staging slots are device slots, as those of the cache are; there are E less the number that a
  layer keeps, because resident experts are not staged.
- The code copies one matrix at a time, moebench a whole expert.
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
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Prefetching
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.systems.hybrimoe import HybriMoE, RecentScores

#: The code's constants, without a unit: a token on the CPU, the extra cost of a layer's first
#: expert there, an expert on the GPU, and a copy to the GPU.
TOKEN_COST, FIRST_COST, GPU_COST, MOVE_COST = 1.0, 0.79, 0.5, 0.4179
#: α, the smoothing of S.
SMOOTHING = 0.5


class Costs(NamedTuple):
    """Constant costs of the schedule, in the code's unit."""

    token: float = TOKEN_COST
    first: float = FIRST_COST
    gpu: float = GPU_COST
    move: float = MOVE_COST


class Division(NamedTuple):
    """Positions of the GPU's and the CPU's experts, and when GPU, CPU and link finish."""

    gpu: list[int]
    cpu: list[int]
    gpu_ends: float
    cpu_ends: float
    moved: float


def two_ended(cached: Sequence[int], absent: Sequence[int], costs: Costs) -> Division:
    """Divide the list (HSS): the GPU's next head, if it ends no later than the CPU's next tail.

    The list is ``cached`` + ``absent``, each the tokens of its experts, descending.
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
    """Divides one row's experts from both ends of a list; gives several rows to the GPU only.

    Attributes:
        token_cost, first_cost: cost of a token on the CPU, and extra of the first expert.
        gpu_cost, move_cost: cost of an expert on the GPU, and of its copy to it.
    """

    token_cost: float = option(TOKEN_COST, low=0)
    first_cost: float = option(FIRST_COST, low=0)
    gpu_cost: float = option(GPU_COST, low=0)
    move_cost: float = option(MOVE_COST, low=0)

    reads_scores = False
    uses_host = True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Divide one row's experts by `two_ended`; for several rows, load all absent experts."""
        if view.forward.rows > 1:
            # In the first and the last layer the staging slots are free.
            keep = view.layer not in (view.shape.moe_layers[0], view.shape.moe_layers[-1])
            return split(active, [Fetch(view.layer, e, keep=keep) for e in active.absent])
        rank = {e: place for place, e in enumerate(view.topk_ids_TK[0].tolist())}
        order = sorted(active.rows, key=lambda e: (e in active.absent, rank.get(e, len(rank))))
        costs = Costs(self.token_cost, self.first_cost, self.gpu_cost, self.move_cost)
        away = len(active.absent)
        found = two_ended([1] * (len(order) - away), [1] * away, costs)
        device, host = [order[n] for n in found.gpu], [order[n] for n in found.cpu]
        load = [e for e in device if e in active.absent]
        return Plan(device, host, (), fetches(view.layer, load))


@dataclass(kw_only=True)
class AfterNext(Prefetching):
    """Stages the layer after the next for several rows; fetches the next layer's highest S for one.

    For one row, ``size`` experts of the next layer are fetched if they are missing.  S is that of
    `LowestOfItsLayer`, with and without ``as_coded``.
    """

    size: int = option(0, low=0, searched=(0, 8))
    as_coded: bool = True

    discipline = "committed"

    @property
    def reads_scores(self) -> bool:  # type: ignore[override]
        """Whether S is kept, which only fetches for the next layer need."""
        return self.size > 0

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with S = 0 for every expert."""
        self._scores = (CodedScores if self.as_coded else RecentScores)(shape, SMOOTHING, 0)

    def observe(self, view: LayerView) -> None:
        """Update S by a gate's scores, if the next layer is fetched for."""
        if self.size:
            self._scores.update(view.layer, credited(view, self.as_coded))

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return all experts of the layer after the next, transient; or some of the next layer."""
        shape = view.shape
        if view.forward.rows > 1:
            row, experts = shape.moe_rows[view.layer] + 2, range(shape.num_experts)
            after = shape.moe_layers[row : row + 1]
            return [Fetch(layer, e, keep=False) for layer in after for e in experts]
        if not self.size:
            return ()
        assert view.next_layer is not None
        highest = (-self._scores.of(view.next_layer)).argsort(kind="stable")[: self.size]
        return fetches(view.next_layer, highest.tolist())


class CodedScores(RecentScores):
    """S as the code computes it: the p highest scores go to their experts in the order of ids.

    The code adds scores sorted by value to experts sorted by id, so most get another one's score.
    """

    def update(self, layer: int, scores_E: np.ndarray) -> None:
        """Credit the highest score to the lowest id of the p best experts, and so on."""
        highest = self.decay(layer, scores_E)
        self.of(layer)[np.sort(highest)] += self.smoothing * scores_E[highest]


def credited(view: LayerView, as_coded: bool) -> np.ndarray:
    """Return the scores that S is updated by: of several rows the first as coded, else the mean."""
    scores_TE = view.scores_TE
    first = as_coded or len(scores_TE) == 1
    scores_E: np.ndarray = scores_TE[0] if first else scores_TE.mean(axis=0)
    return scores_E


@dataclass(kw_only=True)
class LowestOfItsLayer(Eviction):
    """Evicts the lowest S of the incoming expert's layer; of equal ones the least recently used.

    S is computed as the code does, as `CodedScores` and of the first row alone; without
    ``as_coded`` it is that of the paper.
    """

    as_coded: bool = True

    shares_slots = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Reserve staging slots for one layer's experts; refuse fewer other slots than layers."""
        experts, layers = shape.num_experts, len(shape.moe_layers)
        if cache.scope == "layer":
            raise UsageError(
                "evict=mrs-shipped divides the slots itself and stages one layer's experts: use it "
                "with --set scope=global"
            )
        # Each of n layers keeps m experts, and E - m slots stage a layer's other experts.
        each = (cache.slots - experts) // max(layers - 1, 1)
        if each < 1:
            raise BudgetError(
                f"evict=mrs-shipped keeps experts of each of {layers} layers and stages the others "
                f"of one: {cache.slots} slots are too few, {experts + layers - 1} would do; give a "
                "larger --capacity"
            )
        self.reserve = self.transient = experts - each
        self._scores = (CodedScores if self.as_coded else RecentScores)(shape, SMOOTHING, 0)
        self._experts = experts
        #: The last layer with a gate, and its rows; none before the first one.
        self._layer, self._rows = -1, 0
        #: Keys of the experts that each layer keeps, the least recently used first.
        self._kept = [OrderedDict[int, None]() for _ in range(shape.num_layers)]

    def observe(self, view: LayerView) -> None:
        """Update S by a gate's scores."""
        self._scores.update(view.layer, credited(view, self.as_coded))
        self._layer, self._rows = view.layer, view.forward.rows

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Move the kept ones of these experts to the most recently used end."""
        kept, first = self._kept[layer], layer * self._experts
        for expert in experts:
            if first + expert in kept:
                kept.move_to_end(first + expert)

    def arrived(self, key: int) -> None:
        """Add the expert to those that its layer keeps."""
        self._kept[key // self._experts][key] = None

    def left(self, key: int) -> None:
        """Remove the expert from those that its layer keeps."""
        self._kept[key // self._experts].pop(key, None)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the incoming layer's allowed key with the lowest S; None for a staged expert."""
        layer = incoming // self._experts
        if self._rows > 1 and layer != self._layer:
            return None
        kept, value = self._kept[layer], self._scores.by_key
        return min((key for key in kept if allowed[key]), key=value.__getitem__, default=None)


@dataclass(kw_only=True)
class ShippedHybriMoE(HybriMoE):
    """HybriMoE with its authors' two-ended schedule, staging and per-layer eviction."""

    assign: Assignment = field(default_factory=TwoEnded)
    prefetch: Prefetching = field(default_factory=AfterNext)
    evict: Eviction = field(default_factory=LowestOfItsLayer)
    scope: Scope = option("global", searched=True)
    pinned_copies: bool | None = True

    def remarks(self, shape: ModelShape, slots: int) -> Sequence[str]:
        """Return notes on wrong weights, constant costs and useless copies of the code."""
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

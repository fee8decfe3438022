"""SwapMoE: tokens use only the experts on the device, and important experts are swapped in.

"SwapMoE: Serving Off-the-shelf MoE-based Large Language Models with Tunable Memory Budget" (R. Kong
et al., ACL 2024, arXiv 2308.15030).  No public code was found.  A small set of experts, the
*Virtual Experts*, is on the device.  The router may choose only among them, so no token waits for
a load.  While tokens are computed, experts outside the set that have become important replace the
least important ones inside.

    paper                                         moebench
    ─────                                         ────────
    Virtual Experts, n_l of layer l               residents; `VirtualExperts.plan`
    masked gating                                 `masked_choice`, MaskedGating
    importance(E_i, X) = Σ_{x in X_i}             `importance`, with
      ‖x‖ · ‖G(x)_i‖ · ‖E_i‖                        ``view.norm_T``, scores, `weight_norms`
    X_i, the tokens passed to E_i                 ``view.topk_ids_TK``: by the unmasked gate
    update every ``frequency`` inputs             `swaps_to`, ``admit.frequency``
    amortised, asynchronous expert loading        ImportantSwaps.pass_ends: uploads, one a layer
    planner {frequency, n_1 .. n_L}, offline      `place=virtual-experts`,
      genetic algorithm                             `systems.policies.genetic.search`
    E_accuracy of n_l                             `kept_mass`
    memory limit                                  ``place.limit``, or the device's memory
    Pruning: static, largest ‖E_i‖                --set place.content=largest --set admit=all
    ablation: importance by token count           --set admit.importance=tokens
    ablation: equal n_l                           --set place.divide=equal

Deviations and readings, where the paper is silent:

- The router's softmax is over all experts; the best k residents are chosen, and weighted by the
  model's own rule: renormalised where the model renormalises its top-k.
- X_i counts the tokens whose own top-k, without the mask, has expert i: otherwise no expert outside
  the set could ever enter it.
- x is the state that the gate reads.  ‖E_i‖ is the Frobenius norm of the expert's matrices.
- An input is a text: a batch of prompts with their answers, whose update is made at their end, and
  whose swaps are spread over the next passes.  ``admit.inputs=passes`` is the other reading: an
  input is a prompt, or one token of each sequence.  X is all tokens of the last inputs.
- One swap of a layer is under way at most, and one is begun after a pass: that with the largest
  gain of its layer.  Layers with larger gains go first.  Experts of equal importance do not swap.
- The slot of a swap serves no expert until its copy has ended, so that n_l - 1 >= k must hold.
- The first Virtual Experts are the most important ones of calibration texts, in which every ‖x‖
  counts as 1.  Replays have no norms of weights, and need ``admit.importance=gates``, which leaves
  ‖E_i‖ out; where their trace holds no states, ‖x‖ counts as 1 in them, too.
- The planner's accuracy is the gate mass that the residents keep: the sum over layers of the share
  of the chosen experts' scores in calibration texts.  Population and generations are ours.  The
  equal division is among the first members, and slots that the search leaves are given out.
- The paper's planner raises the frequency until latency starts to grow.  Here swaps are copied
  behind all that is needed and no token waits for one, so that this ends at every input, the
  default.  For the same reason the search of n_l leaves latency out: n_l changes prompts alone.
- Routers that choose among experts in groups are not defined.
- The paper runs batch 1.  In a batch, importances are sums over all sequences.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import Fetch, LayerView, Routed
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import (
    Admission,
    Assignment,
    Eviction,
    Placement,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError, UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Ids, Learnt, Phase, RoutedSequence, Scores
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_learnt_for, why_not_in_groups
from moebench.systems.policies.genetic import equal, search
from moebench.systems.policies.prefetch import NoPrefetch

#: Measures of an expert's importance: the paper's; without ‖E_i‖; the number of tokens.
Measure = Literal["norms", "gates", "tokens"]

#: The option with which no policy of the system reads norms of weights.
WITHOUT_NORMS = "admit.importance=gates"

# ----------------------------------------------------------------------------- the algorithm


def masked_choice(scores_TE: Scores, virtual_E: Mask, k: int) -> Ids:
    """Return the k best residents of each row ``[T, k]``, best first, ties to the lowest id.

    Of fewer than k residents all are chosen, and the best other experts.
    """
    absent_TE = np.broadcast_to(~virtual_E, scores_TE.shape)
    chosen: Ids = np.lexsort((-scores_TE, absent_TE), axis=1)[:, :k]
    return chosen


def importance(
    scores_TE: Scores, own_TK: Ids, token_norm_T: np.ndarray | None, weight_norm_E: np.ndarray,
    by: Measure = "norms",
) -> np.ndarray:  # fmt: skip
    """Return each expert's importance ``[E]``: Σ ‖x‖ · ‖G(x)_i‖ · ‖E_i‖ over its tokens.

    Args:
        own_TK: the experts of each token by the gate without a mask.
        token_norm_T: ‖x‖; None counts as 1.
        weight_norm_E: ‖E_i‖, which only ``norms`` uses.
        by: ``norms``; ``gates`` leaves ‖E_i‖ out; ``tokens`` counts tokens.
    """
    experts, chosen = scores_TE.shape[1], own_TK.ravel()
    if by == "tokens":
        return np.bincount(chosen, minlength=experts).astype(np.float64)
    passed_TK = np.maximum(np.take_along_axis(scores_TE, own_TK, axis=1), 0).astype(np.float64)
    if token_norm_T is not None:
        passed_TK = passed_TK * token_norm_T[:, None]
    found = np.bincount(chosen, passed_TK.ravel(), experts)
    return found * weight_norm_E if by == "norms" else found


def swaps_to(importance_E: np.ndarray, virtual_E: Mask) -> list[tuple[int, int]]:
    """Return the swaps (expert to load, expert to replace) to the most important experts.

    The number of Virtual Experts stays.  The most important newcomer replaces the least important
    expert that leaves, and so on.  Of equally important experts, residents stay.
    """
    order = np.lexsort((~virtual_E, -importance_E))
    target_E = np.zeros(len(virtual_E), dtype=bool)
    target_E[order[: int(virtual_E.sum())]] = True
    come = [e for e in order.tolist() if target_E[e] and not virtual_E[e]]
    leave = [e for e in order.tolist() if virtual_E[e] and not target_E[e]]
    return list(zip(come, reversed(leave), strict=True))


def kept_mass(mass_LE: np.ndarray, order_LE: np.ndarray) -> np.ndarray:
    """Return E_accuracy ``[L, E + 1]``: the share of a layer's gate mass kept with n experts.

    Args:
        mass_LE: sum of the scores of the tokens that chose each expert.
        order_LE: the experts of each layer in the order in which they are kept.
    """
    in_order_LE = np.take_along_axis(mass_LE, order_LE, axis=1).cumsum(axis=1)
    total_L1 = np.maximum(in_order_LE[:, -1:], np.finfo(np.float64).tiny)
    return np.concatenate([np.zeros_like(total_L1), in_order_LE / total_L1], axis=1)


# ----------------------------------------------------------------------------- the policies


@dataclass(kw_only=True)
class MaskedGating(Routing):
    """Chooses the best k of the experts that are complete on the device, in both phases."""

    resident_only = True

    def lossless_at(self, alpha: float) -> bool:
        """Return False: experts off the device are never used."""
        return False

    @property
    def exact_prefill(self) -> bool:
        """Whether prompts are routed exactly: they are not."""
        return False

    def route(self, view: LayerView) -> Routed:
        """Return the best residents; tokens whose own top-k is resident keep it."""
        own_TK, resident_E = view.topk_ids_TK, view.resident_E
        kept_T = resident_E[own_TK].all(axis=1)
        if kept_T.all():
            return Routed(own_TK, own_TK)
        chosen_TK = masked_choice(view.scores_TE, resident_E, own_TK.shape[1])
        ids_TK = np.where(kept_T[:, None], own_TK, chosen_TK)
        return Routed(ids_TK, ids_TK)


@dataclass(kw_only=True)
class ImportantSwaps(Admission):
    """Swaps the least important residents for the most important experts, in the background.

    Attributes:
        importance: ``norms``: Σ ‖x‖ · ‖G(x)_i‖ · ‖E_i‖; ``gates``: without ‖E_i‖; ``tokens``: the
            number of tokens.
        frequency: inputs between two updates, whose tokens give the importances.
        inputs: what an input is: ``texts``, a batch of prompts with their answers; or ``passes``.
    """

    importance: Measure = option("norms", searched=True)
    frequency: int = option(1, low=1, searched=(1, 64), scale="log")
    inputs: Literal["texts", "passes"] = option("texts", searched=True)

    reads_token_norms = True
    without_weight_norms: ClassVar[str] = WITHOUT_NORMS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._norms_LE: np.ndarray | None = None

    @property
    def reads_weight_norms(self) -> bool:  # type: ignore[override]
        """Whether ‖E_i‖ counts."""
        return self.importance == "norms"

    def weight_norms(self, norms_LE: np.ndarray) -> None:
        """Keep ‖E_i‖ for the importances."""
        self._norms_LE = norms_LE

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without importances and swaps."""
        self._cache, self._layers = cache, shape.moe_layers
        size = (len(shape.moe_layers), shape.num_experts)
        self._norm_LE = np.ones(size) if self._norms_LE is None else self._norms_LE
        self._importance_LE = np.zeros(size)
        #: By layer: whether a copy was under way at the last gate, and the swaps to be made.
        self._busy = dict.fromkeys(shape.moe_layers, False)
        self._due = {layer: deque[tuple[float, int, int]]() for layer in shape.moe_layers}
        self._ended = 0

    def observe(self, view: LayerView) -> None:
        """Add the importances of the layer's tokens."""
        row = view.shape.moe_rows[view.layer]
        self._importance_LE[row] += importance(
            view.scores_TE, view.topk_ids_TK, view.norm_T, self._norm_LE[row], self.importance
        )
        self._busy[view.layer] = bool(view.in_flight_E.any())

    def pass_ends(self, phase: Phase) -> Sequence[Fetch]:
        """Return the next swap of each layer that has none under way, largest gain first."""
        self._input_ends("passes")
        begun = []
        for layer, due in self._due.items():
            if due and not self._busy[layer]:
                gain, come, leave = due.popleft()
                begun.append((-gain, Fetch(layer, come, instead_of=leave)))
        return [fetch for _, fetch in sorted(begun, key=lambda swap: swap[0])]

    def end_sequences(self) -> None:
        """Update the swaps, if the batch is the last input of an update."""
        self._input_ends("texts")

    def _input_ends(self, kind: str) -> None:
        self._ended += kind == self.inputs
        if kind == self.inputs and self._ended % self.frequency == 0:
            self._update()

    def _update(self) -> None:
        """Choose all swaps to the most important experts anew, and forget the importances."""
        for layer, importance_E in zip(self._layers, self._importance_LE, strict=True):
            virtual_E = np.array(self._held(layer), dtype=bool)
            gains = importance_E.tolist()
            self._due[layer] = deque(
                (gains[come] - gains[leave], come, leave)
                for come, leave in swaps_to(importance_E, virtual_E)
            )
        self._importance_LE[:] = 0

    def _held(self, layer: int) -> list[bool]:
        keys = self._cache.keys(layer, range(self._importance_LE.shape[1]))
        return [self._cache.holds(key) for key in keys]


@dataclass(kw_only=True)
class OnlySwapped(Eviction):
    """Evicts only the expert that a swap names."""

    makes_room = "named"

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return None: a load that names no expert gets no slot of another one."""
        return None


@dataclass(kw_only=True)
class VirtualExperts(Placement):
    """Plans how many slots each layer has, and fills them with its most important experts.

    SwapMoE passes its swaps to `beside`; in another system, a layer may have any number of slots.

    Attributes:
        divide: ``planned``: n_l by a genetic search of the most gate mass; ``equal`` n_l.
        counts: n_l of each MoE layer, in place of both.
        limit: most experts of all layers together; None is as many as fit.
        content: the experts that are placed: the most ``important`` in calibration texts, by the
            measure of the swaps; or the ``largest`` ‖E_i‖ (the baseline Pruning).
        population, generations, seed: of the search.
    """

    divide: Literal["planned", "equal"] = option("planned", searched=True)
    counts: Sequence[int] = ()
    limit: int | None = option(None, low=1)
    content: Literal["important", "largest"] = option("important", searched=True)
    population: int = option(64, low=2)
    generations: int = option(200, low=0)
    seed: int = option(0, low=0)

    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"scores"})
    without_weight_norms: ClassVar[str] = WITHOUT_NORMS

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(n < 0 for n in self.counts):
            raise UsageError(f"place.counts has {min(self.counts)}; allowed: 0 or more each")
        self._measure: Measure = "norms"
        #: Slots that a layer has beyond those that a token uses; None sets no least number.
        self._beyond: int | None = None
        self._norms_LE: np.ndarray | None = None
        self._mass_LE: np.ndarray | None = None
        self._tokens_LE: np.ndarray | None = None
        self._tokens = 0

    def beside(self, admit: Admission) -> None:
        """Note the system's swaps: their measure, and that one takes a slot of its layer."""
        self._beyond = 0
        if isinstance(admit, ImportantSwaps):
            self._measure, self._beyond = admit.importance, 1

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        """Whether texts must be read: for importances, or for the plan."""
        return self.content == "important" or (self.divide == "planned" and not self.counts)

    @property
    def reads_weight_norms(self) -> bool:  # type: ignore[override]
        """Whether ‖E_i‖ counts."""
        return self.content == "largest" or self._measure == "norms"

    def weight_norms(self, norms_LE: np.ndarray) -> None:
        """Keep ‖E_i‖ for the order in which experts are placed."""
        self._norms_LE = norms_LE

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Add up each expert's scores and tokens over the texts, with every ‖x‖ as 1."""
        size = (len(shape.moe_layers), shape.num_experts)
        self._mass_LE, self._tokens_LE = np.zeros(size), np.zeros(size)
        nothing_E = np.ones(shape.num_experts)
        self._tokens = sum(len(text.ids_TLK) for text in sequences)
        for text in sequences:
            ids_TLK = text.ids_TLK.astype(np.int64)
            shown_TLE = np.zeros((len(ids_TLK), *size))
            scores_TLE = shown_TLE if text.scores_TLE is None else text.scores_TLE
            for row in range(size[0]):
                scores_TE, own_TK = scores_TLE[:, row], ids_TLK[:, row]
                self._mass_LE[row] += importance(scores_TE, own_TK, None, nothing_E, "gates")
                self._tokens_LE[row] += importance(scores_TE, own_TK, None, nothing_E, "tokens")

    @property
    def learnt(self) -> Mapping[str, str]:
        """Number of calibration tokens."""
        return {"tokens": str(self._tokens)} if self._tokens else {}

    def most_slots(self) -> int | None:
        """Return how many experts the plan has at most; None is as many as fit."""
        return sum(self.counts) if self.counts else self.limit

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the first n_l experts of each layer, most important or largest first."""
        order_LE = self._order(shape)
        counts = self.plan(shape, slots, scope)
        return [
            (layer, expert)
            for layer, row in shape.moe_rows.items()
            for expert in order_LE[row, : counts[row]].tolist()
        ]

    def plan(self, shape: ModelShape, slots: int, scope: Scope = "global") -> list[int]:
        """Return n_l of each MoE layer.

        Raises:
            UsageError: ``counts`` does not fit the model.
            BudgetError: the plan exceeds the memory, or a layer has fewer slots than it needs.
        """
        layers, experts = len(shape.moe_layers), shape.num_experts
        if self.counts and (len(self.counts) != layers or max(self.counts) > experts):
            raise UsageError(
                f"place.counts={list(self.counts)}: needs {layers} numbers of at most {experts}, "
                "one for each MoE layer"
            )
        wanted = self.most_slots()
        if wanted is not None and wanted > slots:
            option = "counts" if self.counts else "limit"
            raise BudgetError(
                f"place.{option}: the plan has {wanted} experts, and {slots} fit; give fewer, or a "
                "larger --capacity or --slots"
            )
        least = min(experts, shape.top_k + self._beyond) if self._beyond is not None else 0
        room = min(slots if wanted is None else wanted, layers * experts)
        if min(self.counts, default=room // layers) < least:
            raise BudgetError(self._too_few(shape, least, room))
        if self.counts:
            return list(self.counts)
        if self.divide == "equal" or scope == "layer":
            return equal(layers, room // layers * layers if scope == "layer" else room, experts)
        assert self._mass_LE is not None
        value_LN = kept_mass(self._mass_LE, self._order(shape))
        return search(value_LN, room, least, self.population, self.generations, self.seed)

    def _too_few(self, shape: ModelShape, least: int, room: int) -> str:
        layers = len(shape.moe_layers)
        has = f"{min(self.counts)} of a layer" if self.counts else f"{room} for {layers} layers"
        why = f"top-{shape.top_k}"
        fix = "--slots or place.limit" if self.limit else "--capacity or --slots"
        if self._beyond:
            why += " and one for a swap that is under way (n_l >= k + 1)"
            fix += ", or --set admit=all, which swaps none"
        return (
            f"place=virtual-experts has slots for {has}; each layer needs {least}: {why}; give a "
            f"larger {fix}"
        )

    def _order(self, shape: ModelShape) -> np.ndarray:
        """Return the experts of each layer ``[L, E]``, most important or largest first."""
        size = (len(shape.moe_layers), shape.num_experts)
        norms_LE = np.ones(size) if self._norms_LE is None else self._norms_LE
        worth_LE = norms_LE
        if self.content == "important":
            counted_LE = self._tokens_LE if self._measure == "tokens" else self._mass_LE
            assert counted_LE is not None
            require_learnt_for("place=virtual-experts was calibrated for", shape, counted_LE.shape)
            worth_LE = counted_LE * norms_LE if self._measure == "norms" else counted_LE
        order: np.ndarray = np.argsort(-worth_LE, axis=1, kind="stable")
        return order


@dataclass(kw_only=True)
class SwapMoE(System):
    """SwapMoE with the paper's policies for its decisions."""

    paper = "ACL 2024, arXiv 2308.15030"

    place: Placement = field(default_factory=VirtualExperts)
    route: Routing = field(default_factory=MaskedGating)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=NoPrefetch)
    admit: Admission = field(default_factory=ImportantSwaps)
    evict: Eviction = field(default_factory=OnlySwapped)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.place, VirtualExperts):
            self.place.beside(self.admit)

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """Return that the mask is not defined where a router chooses among experts in groups."""
        return why_not_in_groups(shape) or super().why_not(shape, batch)

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return how many experts the plan has at most; None is as many as fit."""
        return self.place.most_slots() if isinstance(self.place, VirtualExperts) else None

"""HOBBIT: a missing expert that matters little comes at low precision, or not at all.

"HOBBIT: A Mixed Precision Expert Offloading System for Fast MoE Inference" (P. Tang et al., arXiv
2411.01433v2, on llama.cpp; the authors published no code).  This file implements the paper's
GPU-centric mode.

    paper                                              moebench
    ─────                                              ────────
    unimportance degree s_e (Eq. 2)                    `unimportance`
    T1, T2 (§3.2): 0.6 and 0.9 for Mixtral-8x7B        ``assign.t1``, ``route.t2``
    three classes: high, low precision, skip           `HIGH`, `LOW`, `SKIP`; `levels`
    Expert Scorer, Task Queue                          LoadByPrecision, SkipMissing
    Adaptive Expert Predictor, Stacking Computer       StackedGates
    p, how many layers are predicted (§5.5.2)          ``prefetch.layers``
    masked predicted experts (§3.3)                    ``Multidimensional.foresee``
    priority p_t (Eq. 3); w_lru, w_lfu, w_lhu, w_fld   `priorities`; ``evict.lru``, ``evict.lfu``,
                                                       ``evict.lhu``, ``evict.fld``
    caches of high- and of low-precision experts       ``HOBBIT.forms``: slots of each form
    int4 for float16 (int2 for int8)                   ``Form("int4")``

Loading.  A token's k experts are ranked by gate weight g, normalised to sum 1.  The unimportance
of the expert of rank i is the weight before it, s_i = g_0 + ... + g_(i-1), and s_0 = 0.  A missing
expert is loaded whole if s ≤ T1, at low precision if T1 < s ≤ T2, and skipped if s > T2.

Prefetching.  The gates of the next p layers run at once on the state that this layer's gate reads.
From the next layer on, the first layer of which a predicted expert is missing is prefetched, each
expert at the precision that its predicted weight asks for; no predicted expert is evicted.

Eviction.  Each precision has a cache of its own.  The expert t with the lowest priority leaves:

    p_t = w_lru · R_t / T  +  w_lfu · F_t / T  +  w_lhu · H_t / T  +  w_fld · (1 - d_t / l_n)

R is the token of its last use, F and H count its uses and its uses at high precision in this
sequence, T is the current token, and d = (l_t - l_i + l_n) mod l_n is the distance from the layer
of the incoming expert i to that of the expert t, among l_n layers.

Deviations and readings:

- The weights of Eq. 3 are not published: the authors minimise the cost of misses on calibration
  texts.  The default is equal weights; they are divided by their sum.
- The share of memory for low-precision experts is not published, only that it is the smaller part.
  Here it has a fifth of the bytes.
- There is no int2 here.  Where a run stores experts at 4 bits, both forms are about as large.
- Weights are the gate's scores of the chosen experts.  For biased sigmoid and SparseMixer gates
  they differ from the weights by which outputs are multiplied.
- An expert that is needed at low precision and is on the device at high precision is used as it is.
  Needed at high precision, it is loaded although its low-precision record is there.
- Several rows, in prefill or in a batch: an expert gets the best class that any of its rows asks
  for, so a row skips an expert only if no row needs it.  The paper has one sequence.
- The weights of a token that skips an expert are renormalised where the model renormalises its own.
- An expert that is on the device in any precision is computed, even if its class is *skip*.
- Loads are made from the most to the least important expert.  The paper names no order.
- A token of Eq. 3 is a pass: a whole prompt counts as one.  The paper's counters start again with
  every sequence, here with every batch.
- Evicting a predicted expert is the last resort, where no other one can leave.
- The default p is 2, in the middle of the range that the paper recommends, 1 to 3.
- A prefetch that has not begun when its layer's gate is known is dropped; one that has begun is
  waited for, as in the paper.
- The mode in which the host computes missing experts is not implemented.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import (
    NO_EXPERT,
    Active,
    Fetch,
    Forecast,
    LayerView,
    Plan,
    Prompts,
    Routed,
)
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Op, OpKind, op_of
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.memory.residency import Whereabouts
from moebench.substrate.models.shape import Form, ModelShape
from moebench.substrate.terms import Ids, Scores
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.predict import NextGatesOnNormed

#: T1 and T2 of the paper for Mixtral-8x7B.
T1, T2 = 0.6, 0.9
#: Classes of a missing expert.  The first two are also indices into ``HOBBIT.forms``.
HIGH, LOW, SKIP = 0, 1, 2

# ----------------------------------------------------------------------------- importance (§3.2)


def unimportance(weights_TK: Scores) -> Scores:
    """Return the weight before each expert of a row, as a share of the row's sum (Eq. 2).

    Args:
        weights_TK: gate weights of the chosen experts, the highest first in each row.  Biased
            scores below 0 count as 0.
    """
    g_TK = np.maximum(np.asarray(weights_TK, dtype=np.float64), 0)
    g_TK = g_TK / np.maximum(g_TK.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    found: Scores = np.zeros_like(g_TK)
    found[:, 1:] = g_TK[:, :-1].cumsum(axis=1)
    return found


def level(unimportant: float, t1: float, t2: float) -> int:
    """Return the class of an expert by its unimportance; no expert is skipped at T2 = 1."""
    if t2 < 1 and unimportant > t2:
        return SKIP
    return HIGH if unimportant <= t1 else LOW


def least_unimportance(ids_TK: Ids, scores_TE: Scores) -> dict[int, float]:
    """Return, by ascending expert, the least unimportance over the rows that chose the expert."""
    scores_TK = np.take_along_axis(scores_TE, ids_TK, axis=1)
    order_TK = np.argsort(-scores_TK, axis=1, kind="stable")
    ranked_TK = np.take_along_axis(ids_TK, order_TK, axis=1)
    s_TK = unimportance(np.take_along_axis(scores_TK, order_TK, axis=1))
    found: dict[int, float] = {}
    for expert, s in zip(ranked_TK.ravel().tolist(), s_TK.ravel().tolist(), strict=True):
        found[expert] = min(s, found.get(expert, s))
    return dict(sorted(found.items()))


def levels(ids_TK: Ids, scores_TE: Scores, t1: float, t2: float) -> dict[int, int]:
    """Return the class of each chosen expert: the best one that any of its rows asks for."""
    return {e: level(s, t1, t2) for e, s in least_unimportance(ids_TK, scores_TE).items()}


# ----------------------------------------------------------------------------- loading (§3.2)


@dataclass(kw_only=True)
class SkipMissing(Routing):
    """Skips experts whose unimportance exceeds T2 if they are not on the device.

    Attributes:
        t2: T2; 1 skips none.
    """

    t2: float = option(T2, low=0, high=1, searched=(0, 1))

    def lossless_at(self, alpha: float) -> bool:
        """Return whether no expert is ever skipped."""
        return self.t2 == 1

    def route(self, view: LayerView) -> Routed:
        """Return the model's own top-k without the experts to skip."""
        own_TK = view.topk_ids_TK
        if self.t2 == 1:
            return Routed(own_TK, own_TK)
        found = levels(own_TK, view.scores_TE, self.t2, self.t2)
        skipped = [e for e, n in found.items() if n == SKIP and not view.residency.is_held(e)]
        if not skipped:
            return Routed(own_TK, own_TK)
        ids_TK = np.where(np.isin(own_TK, skipped), NO_EXPERT, own_TK)
        return Routed(ids_TK, ids_TK)


def form_on_device(high: Whereabouts, low: Whereabouts, expert: int, needed: int) -> int | None:
    """Return the form in which a needed expert is used without a load, or None.

    A complete record is preferred to one in flight, and then the higher precision.
    """
    if needed == HIGH:
        return HIGH if high.is_held(expert) else None
    for form, where in ((HIGH, high), (LOW, low)):
        if where.is_resident(expert):
            return form
    for form, where in ((HIGH, high), (LOW, low)):
        if where.is_held(expert):
            return form
    return None


@dataclass(kw_only=True)
class LoadByPrecision(Assignment):
    """Loads missing experts at the precision of their class; the device computes all of them.

    In a system of one form every expert is loaded whole.

    Attributes:
        t1: T1; 1 loads every expert whole.
    """

    t1: float = option(T1, low=0, high=1, searched=(0, 1))

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return a plan that loads experts from the most to the least important."""
        high, *lower = view.residency.forms
        low = lower[0] if lower else high
        s = least_unimportance(view.topk_ids_TK, view.scores_TE)
        here: list[int] = []
        forms: dict[int, int] = {}
        load: list[Fetch] = []
        for expert in sorted(active.rows, key=lambda e: (s.get(e, 0.0), e)):
            needed = HIGH if not lower else level(s.get(expert, 0.0), self.t1, 1)
            form = form_on_device(high, low, expert, needed)
            if form is None:
                forms[expert] = needed
                load.append(Fetch(view.layer, expert, form=needed))
            else:
                forms[expert] = form if lower else HIGH
                here.append(expert)
        # The device starts with what is complete: an operation waits for the one before it.
        here.sort(key=lambda e: (not view.residency.forms[forms[e]].is_resident(e), e))
        device = [*here, *(fetch.expert for fetch in load if fetch.expert is not None)]
        return Plan(device, load=load, forms={e: form for e, form in forms.items() if lower})


# ----------------------------------------------------------------------------- prefetching (§3.3)


@dataclass(frozen=True, kw_only=True)
class Stacked(NextGatesOnNormed):
    """Runs the gates of later layers as one operation, which takes the time of one gate."""

    def op(self, view: LayerView) -> Op:
        """Return the cost of one gate: the paper measures no more for up to four (§5.5.2)."""
        return op_of(OpKind.PREDICT, view.layer, (view.forward.rows,))


@dataclass(kw_only=True)
class StackedGates(Prefetching):
    """Fetches the predicted experts of the first later layer that lacks one of them.

    HOBBIT passes its thresholds to `beside`; in another system every expert is fetched whole.

    Attributes:
        layers: p, how many later layers are predicted.
        prefill: also predict in prefill.
    """

    layers: int = option(2, low=1, searched=(1, 8))
    prefill: bool = option(True, searched=True)

    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._t1, self._t2 = 1.0, 1.0

    def beside(self, route: Routing, assign: Assignment) -> None:
        """Note the thresholds of the system's loading."""
        self._t1 = assign.t1 if isinstance(assign, LoadByPrecision) else 1.0
        self._t2 = route.t2 if isinstance(route, SkipMissing) else 1.0

    @property
    def predictor(self) -> Stacked:
        """Predictor that runs later layers' gates on the state that this layer's gate reads."""
        return Stacked(layers=self.layers, in_prefill=self.prefill)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep the cache, to look up experts and their forms."""
        self._cache = cache

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return fetches for one layer, from the most to the least important expert."""
        for layer in sorted(forecast):
            wanted = self.missing(layer, forecast[layer], view.shape.top_k)
            if wanted:
                return wanted
        return ()

    def missing(self, layer: int, scores_TE: Scores, k: int) -> list[Fetch]:
        """Return fetches of a layer's predicted experts that are not there as they are needed."""
        ids_TK = np.argsort(-scores_TE, axis=1, kind="stable")[:, :k]
        s = least_unimportance(ids_TK, scores_TE)
        wanted = []
        for expert in sorted(s, key=lambda e: (s[e], e)):
            needed = level(s[expert], self._t1, self._t2)
            if needed == SKIP:
                continue
            needed = min(needed, self._cache.forms - 1)
            held = (self._cache.holds(self._cache.key(layer, expert, f)) for f in range(needed + 1))
            if not any(held):
                wanted.append(Fetch(layer, expert, form=needed))
        return wanted


# ----------------------------------------------------------------------------- eviction (§3.4)


def priorities(
    last_used: np.ndarray, uses: np.ndarray, high_uses: np.ndarray, layers: np.ndarray,
    token: int, layer: int, num_layers: int, weights: Sequence[float],
) -> np.ndarray:  # fmt: skip
    """Return the priority of experts (Eq. 3); the lowest leaves.

    Args:
        last_used, uses, high_uses, layers: R, F, H and l of each expert.
        token: T, from 1 on.
        layer: l_i, the incoming expert's layer.
        weights: w_lru, w_lfu, w_lhu and w_fld; they are divided by their sum.
    """
    distance = (layers - layer + num_layers) % num_layers
    terms = (last_used / token, uses / token, high_uses / token, 1 - distance / num_layers)
    shares = np.array(weights) / sum(weights)
    found: np.ndarray = shares @ np.array(np.broadcast_arrays(*terms))
    return found


@dataclass(kw_only=True)
class Multidimensional(Eviction):
    """Evicts the expert with the lowest weighted sum of recency, frequencies and nearness (Eq. 3).

    Ties go to the lowest key.

    Attributes:
        lru: weight of the last use.
        lfu: weight of the number of uses.
        lhu: weight of the number of uses at high precision.
        fld: weight of the nearness of the expert's layer.
        mask: evict predicted experts only where no other one can leave.
    """

    lru: float = option(1.0, low=0, searched=(0, 4))
    lfu: float = option(1.0, low=0, searched=(0, 4))
    lhu: float = option(1.0, low=0, searched=(0, 4))
    fld: float = option(1.0, low=0, searched=(0, 4))
    mask: bool = option(True, searched=True)

    takes_forms = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not sum(self.weights) > 0:
            raise UsageError("evict.lru, lfu, lhu and fld are 0; allowed: at least one above 0")

    @property
    def weights(self) -> tuple[float, float, float, float]:
        """The weights of Eq. 3, in its order."""
        return self.lru, self.lfu, self.lhu, self.fld

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without uses and without predicted experts."""
        self._experts, self._layers = shape.num_experts, shape.num_layers
        self._k, self._one_layer = shape.top_k, len(shape.moe_layers) == 1
        self._reset()

    def _reset(self) -> None:
        total = self._layers * self._experts
        self._masked: dict[int, set[int]] = {}
        self._token, self._layer = 0, self._layers
        self._last, self._uses, self._high = np.zeros((3, total), dtype=np.int64)

    def begin_sequences(self, prompts: Prompts) -> None:
        """Forget all uses: a sequence's frequencies do not hold for the next one."""
        self._reset()

    def foresee(self, forecast: Forecast) -> None:
        """Protect the predicted experts of later layers."""
        if self.mask:
            for layer, scores_TE in forecast.items():
                ids_TK = np.argsort(-scores_TE, axis=1, kind="stable")[:, : self._k]
                self._masked[layer] = set(ids_TK.ravel().tolist())

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Update R and F of used experts, and H of those used in form 0; count passes.

        A pass begins at a layer before the last one.  The layer's predicted experts are no longer
        protected.
        """
        form, layer = divmod(layer, self._layers)
        self._token += layer < self._layer or (self._one_layer and form == HIGH)
        self._layer = layer
        self._masked.pop(layer, None)
        keys = [layer * self._experts + expert for expert in experts]
        self._last[keys] = self._token
        self._uses[keys] += 1
        if form == HIGH:
            self._high[keys] += 1

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the lowest priority, of unmasked ones if there are any."""
        keys = allowed.nonzero()[0]
        if not len(keys):
            return None
        records = self._layers * self._experts
        if self._masked:
            masked = [layer * self._experts + e for layer, of in self._masked.items() for e in of]
            others = keys[~np.isin(keys % records, masked)]
            keys = others if len(others) else keys
        at = keys % records
        found = priorities(
            self._last[at], self._uses[at], self._high[at], at // self._experts,
            max(self._token, 1), incoming % records // self._experts, self._layers, self.weights,
        )  # fmt: skip
        return int(keys[found.argmin()])


@dataclass(kw_only=True)
class HOBBIT(System):
    """HOBBIT with the paper's policies for its decisions, in its GPU-centric mode."""

    paper = "arXiv 2411.01433"
    forms: ClassVar[tuple[Form, ...]] = (Form(), Form("int4", dtype="int4", pool=0.2))

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=SkipMissing)
    assign: Assignment = field(default_factory=LoadByPrecision)
    prefetch: Prefetching = field(default_factory=StackedGates)
    evict: Eviction = field(default_factory=Multidimensional)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.prefetch, StackedGates):
            self.prefetch.beside(self.route, self.assign)

"""DALI: divide a layer's experts by a greedy 0-1 program, prefetch the one with most tokens.

"DALI: A Workload-Aware Offloading Framework for Efficient MoE Inference on Local PCs" (Z. Zhu et
al., arXiv 2602.03495v1, February 2026).  The authors built it on KTransformers and published no
code.  This file implements the paper, as far as public descriptions of it state its rules; the
rule of its cache is the one of tinyserve's policy "dali" (e1n00r/tinyserve 9277e68), which is not
by the authors.

    paper                                              moebench
    ─────                                              ────────
    workload w of an expert: tokens routed to it       ``active.rows``
    t_trans, t_gpu(w), t_cpu(w), from a warm-up        `measured`: means of the last operations
    0-1 program, min max(T_gpu, T_cpu)                 `makespan`, the objective
    Greedy Assignment (Algorithm 1)                    `greedy`, GreedyAssignment
    residual vector of a layer, from calibration       `residuals`, ``ResidualPrefetch.calibrate``
    Residual-Based Prefetching (one expert)            ResidualPrefetch, ``prefetch.experts``
    tinyserve's DALIPolicy                             ``evict=dali-window``, the default
    Workload-Aware Cache Replacement (§4.3,            WorkloadSwaps, ``evict=dali-swap``
      Algorithm 2), w_size, u_size                     ``evict.window``, ``evict.swaps``
    cache of a fixed number of experts in each layer   ``scope=layer``

Assignment.  Let x_e = 1 if the device computes active expert e.  With w_e tokens,

    minimise  max( Σ x_e · (t_gpu + t_trans · [e is absent]),  Σ (1 - x_e) · t_cpu(w_e) )

The greedy takes experts by descending |device time - host time|, ties in the given order, and gives
each to the side on which it ends first; the device gets equal ends.  Each step raises the makespan
by at most the expert's smaller time, so the result is at most twice the optimum, and it is the
optimum where all experts have the same two times (one token, none of them resident).

Prefetching.  The next gate reads h', and DALI approximates h' by h + r: the state h that this gate
reads plus the layer's residual vector r = mean(h' - h) over calibration tokens.  Gates are linear,
so the correction is one number for each expert: W(h + r) = Wh + Wr.  moebench predicts Wh
(`NextGatesOnNormed`) and adds Wr, which it learns as the mean of (next gate's logit - predicted
logit).  A softmax subtracts the same number from all experts of a row, which changes no order.  The
corrected top-k of all rows gives each expert's predicted tokens; the ``experts`` with most tokens
that are not on the device are fetched.

Deviations and readings:

- The paper was read through public summaries, not in the original.  They state the objective, the
  residual vector and one prefetched expert; one of them also states that the greedy sorts by the
  difference of CPU and GPU time.  Which side it then chooses is our reading.
- Summaries report a constraint of the program on the device's free memory, which Algorithm 1 does
  not show.  moebench has none either: loads that exceed the slots wait for each other.
- The host's time is linear in tokens and the device's time constant, both means of the last
  operations of the run; the paper measures them in a warm-up.
- Both sides begin idle, as in the program: a prefetch that the link still copies is not counted.
- An expert that is being copied counts as resident: its transfer has been submitted.
- Loads are made in the greedy's order.  The paper names no order.
- Scores of calibration texts are kept in half precision, so that scores below 2^-24 count as 2^-24.
- For gates that rank by a biased sigmoid, r corrects the scores, not the logits: the bias is not
  known to a policy.  Groups of experts do not limit the predicted choice.
- The paper calibrates on 1,000 sequences of Wikitext; moebench on as many texts as for systems
  that name no number.
- Whether the paper prefetches in prefill is not known; the default predicts in decode alone.
- The default eviction is not the paper's.  It is the rule that tinyserve calls DALI: an expert is
  hot if it is in 25 or more of the last 256 accesses, a hot expert is not evicted, and the others
  leave by LRU.  Each layer has a window of its own, as it has a cache of its own; tinyserve has one
  cache for all layers.
- ``evict=dali-swap`` is the paper's rule, as a third party's port of its Algorithm 2 states it: the
  cache counts tokens for w_size passes, then exchanges up to u_size experts of each layer.  Neither
  size is known, nor where the paper keeps experts that are loaded for one use.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import (
    Active,
    Fetch,
    Forecast,
    LayerView,
    Plan,
    Prompts,
    fetches,
    split,
)
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.errors import BudgetError
from moebench.substrate.machines.timeline import COSTS_KEPT
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.terms import Learnt, Lookahead, RoutedSequence, Scores
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.evict_engines import WorkloadAware
from moebench.systems.policies.latency import SAME_NS
from moebench.systems.policies.makespan import measured
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.predict import NextGatesOnNormed
from moebench.systems.policies.route import ExactRouting

#: The least score above 0 in half precision, in which calibration texts keep scores.
LEAST_SCORE = 2.0**-24

# ----------------------------------------------------------------------------- assignment


def makespan(
    device_ns: Sequence[float], host_ns: Sequence[float], on_device: Sequence[bool]
) -> float:
    """Return the objective of the 0-1 program: the later end of the device's and host's sums."""
    ends = [0.0, 0.0]
    for device, host, here in zip(device_ns, host_ns, on_device, strict=True):
        ends[here] += device if here else host
    return max(ends)


def difference_first(device_ns: Sequence[float], host_ns: Sequence[float]) -> list[int]:
    """Return the order in which the greedy takes experts: largest difference of times first."""
    return sorted(range(len(device_ns)), key=lambda n: (-abs(device_ns[n] - host_ns[n]), n))


def greedy(device_ns: Sequence[float], host_ns: Sequence[float]) -> list[bool]:
    """Return whether the device computes each expert.

    Experts are taken by `difference_first`, and each goes to the side on which it ends first.  Ends
    that differ by 1 us or less count as equal (`SAME_NS`); the device gets these.

    Args:
        device_ns: each expert's time on the device, including its transfer if it needs one.
        host_ns: each expert's time on the host.
    """
    device_end, host_end = 0.0, 0.0
    on_device = [False] * len(device_ns)
    for n in difference_first(device_ns, host_ns):
        if device_end + device_ns[n] <= host_end + host_ns[n] + SAME_NS:
            device_end += device_ns[n]
            on_device[n] = True
        else:
            host_end += host_ns[n]
    return on_device


@dataclass(kw_only=True)
class GreedyAssignment(Assignment):
    """Divides a layer's active experts between device and host by the greedy 0-1 program.

    Attributes:
        history: how many past durations of each kind are averaged.
    """

    history: int = option(10, low=1, high=COSTS_KEPT, searched=(1, COSTS_KEPT), scale="log")

    reads_scores = False
    uses_host = True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Return the greedy's plan, in prefill and in decode."""
        experts, rows, absent = [*active.rows], active.rows, set(active.absent)
        times = measured(view.costs, self.history)
        device_ns = [times.gpu_ns + times.pcie_ns * (e in absent) for e in experts]
        host_ns = [times.token_ns * rows[e] for e in experts]
        on_device = greedy(device_ns, host_ns)
        order = difference_first(device_ns, host_ns)
        load = [experts[n] for n in order if on_device[n] and experts[n] in absent]
        host = [experts[n] for n in order if not on_device[n]]
        return split(active, fetches(view.layer, load), host)


# ----------------------------------------------------------------------------- prefetching


def logits_of(scores: Scores, gate: GateKind) -> np.ndarray:
    """Return the logits of gate scores, up to one number a row; biased scores are unchanged."""
    scores = np.asarray(scores, dtype=np.float64)
    if gate is GateKind.SIGMOID_BIAS_TOPK_RENORM:
        return scores
    logs: np.ndarray = np.log(np.maximum(scores, LEAST_SCORE))
    if gate is GateKind.TOPK_SIGMOID:
        logs -= np.log(np.maximum(1 - scores, LEAST_SCORE))
    return logs


def residuals(
    scores_TLE: np.ndarray, predicted_TLE: np.ndarray, gate: GateKind
) -> tuple[np.ndarray, np.ndarray]:
    """Return sums over tokens of (gate's logit - predicted logit) ``[L, E]``, and their counts.

    Args:
        predicted_TLE: in row l, the scores that layer l predicted for layer l + 1; NaN where it
            predicted none.

    Layer 0 is predicted by none: its sums and count are 0.
    """
    made_TLE = predicted_TLE[:, :-1]
    known_TL = ~np.isnan(made_TLE).any(axis=2)
    found_LE = np.zeros(scores_TLE.shape[1:])
    with np.errstate(invalid="ignore"):
        differences = logits_of(scores_TLE[:, 1:], gate) - logits_of(made_TLE, gate)
    found_LE[1:] = np.where(known_TL[..., None], differences, 0).sum(axis=0)
    counts_L = np.zeros(len(found_LE))
    counts_L[1:] = known_TL.sum(axis=0)
    return found_LE, counts_L


def most_tokens(corrected_TE: np.ndarray, k: int) -> dict[int, int]:
    """Return predicted tokens by expert: most tokens first, then best probability, then id.

    An expert's tokens are the rows in whose k highest values it is; its probability is the highest
    softmax of any row.
    """
    ids_TK = np.argsort(-corrected_TE, axis=1, kind="stable")[:, :k]
    tokens_E = np.bincount(ids_TK.ravel(), minlength=corrected_TE.shape[1])
    order = np.lexsort((-best_probabilities(corrected_TE), -tokens_E)).tolist()
    return {e: int(tokens_E[e]) for e in order if tokens_E[e]}


def best_probabilities(corrected_TE: np.ndarray) -> np.ndarray:
    """Return each expert's highest softmax of any row, ``[E]`` or ``[..., E]``."""
    p_TE = np.exp(corrected_TE - corrected_TE.max(axis=-1, keepdims=True))
    best_E: np.ndarray = (p_TE / p_TE.sum(axis=-1, keepdims=True)).max(axis=-2)
    return best_E


@dataclass(kw_only=True)
class ResidualPrefetch(Prefetching):
    """Fetches the absent experts of the next layer with most predicted tokens.

    Attributes:
        experts: number of experts to fetch; the paper is fastest with one.
        residual: correct the prediction by the layer's residual vector; off is the next gate on
            this layer's state.
        prefill: also predict in prefill.
    """

    experts: int = option(1, low=1, searched=(1, 8))
    residual: bool = option(True, searched=True)
    prefill: bool = option(False, searched=True)

    reads_scores = False
    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"scores", "predictions"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._residuals_LE: np.ndarray | None = None
        self._tokens = 0
        self._swaps: WorkloadSwaps | None = None

    def beside(self, evict: Eviction) -> None:
        """Note the system's eviction, whose exchanges of residents are fetched too."""
        self._swaps = evict if isinstance(evict, WorkloadSwaps) else None

    @property
    def swaps(self) -> bool:
        """Whether exchanges of residents are fetched, too."""
        return self._swaps is not None

    @property
    def calibrates(self) -> bool:  # type: ignore[override]
        """Whether the residual vectors must be learned."""
        return self.residual

    @property
    def learnt(self) -> Mapping[str, str]:
        """Number of tokens that the residual vectors average, or a note that there are none."""
        if not self.residual:
            return {}
        if not self._tokens:
            return {"note": "no predictions in the calibration texts: no residual is added"}
        return {"tokens": str(self._tokens)}

    @property
    def predictor(self) -> NextGatesOnNormed:
        """Predictor that runs the next gate on the state that this layer's gate reads."""
        return NextGatesOnNormed(in_prefill=self.prefill)

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Average each layer's residual, as logits of its gate, over all predicted tokens."""
        layers = len(shape.moe_layers)
        sums_LE, counts_L = np.zeros((layers, shape.num_experts)), np.zeros(layers)
        for text in sequences:
            predicted_TLE = text.predicted_TLE.get(Lookahead.NORMED)
            if text.scores_TLE is None or predicted_TLE is None:
                continue
            found_LE, found_L = residuals(text.scores_TLE, predicted_TLE, shape.gate)
            sums_LE += found_LE
            counts_L += found_L
        self._tokens = int(counts_L.max(initial=0))
        self._residuals_LE = sums_LE / np.maximum(counts_L, 1)[:, None]

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep the cache, to look up resident experts; refuse another model's residuals."""
        self._cache = cache
        if self._residuals_LE is not None:
            known = self._residuals_LE.shape
            require_learnt_for("prefetch=residual was calibrated for", shape, known)

    def corrected(self, layer: int, scores_TE: Scores, shape: ModelShape) -> np.ndarray:
        """Return the predicted logits of a layer plus its residual ``[T, E]``."""
        logits_TE = logits_of(scores_TE, shape.gate)
        if self.residual and self._residuals_LE is not None:
            logits_TE = logits_TE + self._residuals_LE[shape.moe_rows[layer]]
        return logits_TE

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return fetches of the absent experts with most predicted tokens, then exchanges due."""
        wanted: list[Fetch] = []
        for layer, scores_TE in forecast.items():
            tokens = most_tokens(self.corrected(layer, scores_TE, view.shape), view.shape.top_k)
            absent = [e for e in tokens if not self._cache.holds(self._cache.key(layer, e))]
            wanted += fetches(layer, absent[: self.experts])
        return wanted if self._swaps is None else [*wanted, *self._swaps.due()]


# ----------------------------------------------------------------------------- cache


def exchange(tokens_E: np.ndarray, resident_E: Mask, most: int) -> list[tuple[int, int]]:
    """Return pairs (absent expert to load, resident to replace), at most ``most``.

    The absent experts with most tokens replace the residents with fewest, one by one; ties go to
    the lowest id.  Experts without tokens are not loaded.
    """
    absent = np.flatnonzero(~resident_E & (tokens_E > 0))
    residents = np.flatnonzero(resident_E)
    come = absent[np.argsort(-tokens_E[absent], kind="stable")][:most]
    leave = residents[np.argsort(tokens_E[residents], kind="stable")][:most]
    return list(zip(come.tolist(), leave.tolist(), strict=False))


@dataclass(kw_only=True)
class WorkloadSwaps(Eviction):
    """Keeps a fixed number of residents in each layer, and exchanges some after every window.

    After ``window`` passes of a layer, `exchange` chooses by the tokens of these passes, and the
    counts start at zero.  Experts that are loaded for one use replace each other in staging slots.
    An exchange whose expert is in a staging slot moves nothing.  ResidualPrefetch makes the other
    ones' transfers; without it they wait until the expert is loaded for its use.

    Attributes:
        window: number of passes; the paper's number is not known.
        swaps: most experts of a layer that are exchanged after a window; not known either.
        staging: slots of each pool for experts that are loaded for one use.
    """

    window: int = option(4, low=1, high=4096, searched=(1, 256), scale="log")
    swaps: int = option(1, low=1, searched=(1, 16), scale="log")
    staging: int = option(2, low=1, searched=(1, 16), scale="log")

    reads_scores = False

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without counts and residents; refuse as many staging slots as there are slots."""
        self._cache, self._experts = cache, shape.num_experts
        self.reserve = self.staging * (len(shape.moe_layers) if cache.scope == "layer" else 1)
        if self.reserve >= cache.slots:
            raise BudgetError(
                f"evict.staging={self.staging} keeps {self.reserve} of {cache.slots} slots empty; "
                "give fewer, or a larger --capacity"
            )
        self._resident = np.zeros(shape.num_layers * shape.num_experts, dtype=bool)
        #: By key of an expert that is to become a resident, the key of the one that it replaces.
        self._instead: dict[int, int] = {}
        self._reset(shape.num_layers)

    def _reset(self, layers: int) -> None:
        self._tokens_LE = np.zeros((layers, self._experts), dtype=np.int64)
        self._passes = [0] * layers

    def begin_sequences(self, prompts: Prompts) -> None:
        """Set all counts to zero: experts of one text say little about another's."""
        self._reset(len(self._passes))

    def observe(self, view: LayerView) -> None:
        """Count the tokens of each expert, and choose the exchanges at the end of a window."""
        layer = view.layer
        self._tokens_LE[layer] += np.bincount(view.topk_ids_TK.ravel(), minlength=self._experts)
        self._passes[layer] += 1
        if self._passes[layer] < self.window:
            return
        first = layer * self._experts
        row = slice(first, first + self._experts)
        for key in [key for key in self._instead if row.start <= key < row.stop]:
            del self._instead[key]
        for come, leave in exchange(self._tokens_LE[layer], self._resident[row], self.swaps):
            self._instead[first + come] = first + leave
            if self._cache.holds(first + come):  # it is in a staging slot
                self.arrived(first + come)
        self._tokens_LE[layer] = 0
        self._passes[layer] = 0

    def due(self) -> list[Fetch]:
        """Return fetches of the exchanges that have not begun, in the order of their choice."""
        found = []
        for come, leave in self._instead.items():
            layer, expert = self._cache.expert_of(come)
            found.append(Fetch(layer, expert, instead_of=self._cache.expert_of(leave)[1]))
        return found

    def placed(self, key: int) -> None:
        """Make a placed expert a resident."""
        self._resident[key] = True

    def arrived(self, key: int) -> None:
        """Carry out an exchange whose expert has a slot; the one it replaces is one for staging."""
        if (leaves := self._instead.pop(key, None)) is not None:
            self._resident[[key, leaves]] = True, False

    def left(self, key: int) -> None:
        """Mark the expert as no resident."""
        self._resident[key] = False

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed expert in a staging slot with the lowest key, or None."""
        staged = allowed & ~self._resident
        return int(staged.argmax()) if staged.any() else None


@dataclass(kw_only=True)
class DALI(System):
    """DALI with the paper's assignment and prefetching, and tinyserve's rule of eviction."""

    paper = "arXiv 2602.03495"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=GreedyAssignment)
    prefetch: Prefetching = field(default_factory=ResidualPrefetch)
    evict: Eviction = field(default_factory=WorkloadAware)
    scope: Scope = option("layer", searched=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.prefetch, ResidualPrefetch):
            self.prefetch.beside(self.evict)

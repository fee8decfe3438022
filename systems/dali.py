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
    Workload-Aware Cache Replacement (§4.3)            ``evict`` of the system; WorkloadScores
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

- The paper's text was read through summaries, not in the original.  They agree on the objective, the
  residual vector, one prefetched expert, the sort by the difference of CPU and GPU time, and on
  the paper's greedy reaching 92 % of the optimal assignment's speed.  Which side the greedy then
  chooses is our reading.
- Summaries report a constraint of the program on the device's free memory, which Algorithm 1 does
  not show.  moebench has none either: loads that exceed the slots wait for each other.
- The host's time is linear in tokens and the device's time constant, both means of the last
  operations of the run; the paper measures them in a warm-up.
- An expert that is being copied counts as resident: its transfer has been submitted.
- Loads are made in the greedy's order.  The paper names no order.
- Scores of calibration texts are kept in half precision, so that scores below 2^-24 count as 2^-24.
- For gates that rank by a biased sigmoid, r corrects the scores, not the logits: the bias is not
  known to a policy.  Groups of experts do not limit the predicted choice.
- The paper calibrates on 1,000 sequences of Wikitext; moebench on as many texts as for systems
  that name no number.
- Whether the paper prefetches in prefill is not known; the default predicts in decode alone.
- The paper's cache counts each expert's tokens over a window of steps, and at the end of a window
  exchanges the residents with the lowest counts for the absent experts with the highest.  The
  sizes of its window and of the exchange are not known.  ``evict=dali-score`` evicts by these
  counts, but only when an expert must be loaded.
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
    fetches,
    split,
)
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.terms import Learnt, Lookahead, RoutedSequence, Scores
from moebench.systems.policies.checks import require_at_least, require_learnt_for
from moebench.systems.policies.evict import LeastRecentlyUsed, least
from moebench.systems.policies.latency import SAME_NS, check_history
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

    history: int = 10

    reads_scores = False
    uses_host = True

    def __post_init__(self) -> None:
        check_history(self.history)

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
    p_TE = np.exp(corrected_TE - corrected_TE.max(axis=1, keepdims=True))
    best_E = (p_TE / p_TE.sum(axis=1, keepdims=True)).max(axis=0)
    order = np.lexsort((-best_E, -tokens_E)).tolist()
    return {e: int(tokens_E[e]) for e in order if tokens_E[e]}


@dataclass(kw_only=True)
class ResidualPrefetch(Prefetching):
    """Fetches the absent experts of the next layer with most predicted tokens.

    Attributes:
        experts: number of experts to fetch; the paper is fastest with one.
        residual: correct the prediction by the layer's residual vector; off is the next gate on
            this layer's state.
        prefill: also predict in prefill.
    """

    experts: int = 1
    residual: bool = True
    prefill: bool = False

    reads_scores = False
    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"scores", "predictions"})

    def __post_init__(self) -> None:
        require_at_least("prefetch", self, experts=1)
        self._residuals_LE: np.ndarray | None = None
        self._tokens = 0

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
        """Return fetches of the predicted experts with most tokens that are not on the device."""
        wanted: list[Fetch] = []
        for layer, scores_TE in forecast.items():
            tokens = most_tokens(self.corrected(layer, scores_TE, view.shape), view.shape.top_k)
            absent = [e for e in tokens if not self._cache.holds(self._cache.key(layer, e))]
            wanted += fetches(layer, absent[: self.experts])
        return wanted


# ----------------------------------------------------------------------------- cache


@dataclass(kw_only=True)
class WorkloadScores(Eviction):
    """Evicts the expert with the fewest tokens in its layer's last ``window`` passes (§4.3).

    Ties go to the lowest key.  The counts start at zero with every batch.

    Attributes:
        window: number of passes; the paper's number is not known.
    """

    window: int = 4

    reads_scores = False

    def __post_init__(self) -> None:
        require_at_least("evict", self, window=1)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set all counts to zero."""
        self._tokens = np.zeros((self.window, shape.num_layers, shape.num_experts), dtype=np.int64)
        self._passes = [0] * shape.num_layers
        self._score = np.zeros(shape.num_layers * shape.num_experts, dtype=np.int64)

    def begin_sequences(self, prompts: object) -> None:
        """Set all counts to zero: experts of one text say little about another's."""
        self._tokens[...] = 0
        self._score[...] = 0

    def observe(self, view: LayerView) -> None:
        """Count the tokens of each expert in this pass, in place of those ``window`` passes ago."""
        layer, experts = view.layer, view.shape.num_experts
        now = self._tokens[self._passes[layer] % self.window, layer]
        self._passes[layer] += 1
        now[...] = np.bincount(view.topk_ids_TK.ravel(), minlength=experts)
        self._score[layer * experts : (layer + 1) * experts] = self._tokens[:, layer].sum(axis=0)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the fewest tokens, or None."""
        return least(self._score, allowed)


@dataclass(kw_only=True)
class DALI(System):
    """DALI with the paper's assignment and prefetching."""

    paper = "arXiv 2602.03495"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=GreedyAssignment)
    prefetch: Prefetching = field(default_factory=ResidualPrefetch)
    evict: Eviction = field(default_factory=LeastRecentlyUsed)
    scope: Scope = "layer"

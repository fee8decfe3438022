"""SMoE as its authors' code runs it: https://github.com/goingshr/SMoE at 2de217b.

The paper's system is `systems.smoe`.  The code differs from it in nine rules:

    1, 2  substitution     SetOrderRouter: strictly below S_{k+1}, in the order of a Python set
    3     weights          a substitute's own score (``route.weight=own``, as in `systems.smoe`)
    4     division         OneEnded: most rows first, to the host unless the link has less work
    5     costs            OneEnded: trimmed means; a load costs only the time spent waiting for it
    6     eviction         LoadOrder: first in, first out (the code calls it LRU)
    7     prefetch         FirstPredicted: one expert, after a layer that missed, without attention
    8     streams          ``synchronises``: loaded experts run after the last load
    9     unfinished       ``reads_unfinished``: a hit does not wait for its copy

By rule 9 an expert counts as resident as soon as its copy is submitted, and a hit on it computes
with the slot's current content.  Its time is simulated; its results would be wrong, as the run's
notes state.  Any system may have the properties of rules 8 and 9 (`substrate.engine.system`).

α is 0.25 in all of the code's settings (configs/*.json); the paper uses .35, .30 and .25.

Deviations, and readings where the rules are silent:

- Substitution is done in decode only, as in the code for a process's first prompt.  Its driver for
  OpenCompass does not reset the counter that detects decode, and substitutes in later prefills.
- A value is trimmed if it is further from the mean than one (population) standard deviation.
- The experts placed at the start are those of `place=by-id`, in the order of layers and ids.
- The code always renormalises DeepSeek's and XVERSE's weights, against DeepSeek's configuration;
  here experts are weighted as the model weights its own top-k.
- Not modelled: the single prefetch after each layer of a prefill.
- Replayed routing: traces do not hold this prediction, so they are refused unless prefetch=none.
- A thread of its own submits copies (ec:285), so that one from pageable memory does not keep the
  control thread (``blocking_copies=false``).
- Not modelled: Python's time beyond the profile's control costs, and the worker thread that
  launches the hits while the main thread computes: one control thread launches them in sequence.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

import numpy as np

from moebench.substrate.engine.decisions import (
    Active,
    Fetch,
    Forecast,
    LayerView,
    Plan,
    Routed,
    fetches,
    split,
)
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.machines.protocol import Op, OpKind, op_of
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Lookahead
from moebench.systems.policies.evict import FirstInFirstOut, LowestAverageScore
from moebench.systems.policies.latency import SAME_NS
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.predict import NextGates

#: No layer from this one on prefetches: the last layer of the three models.
LAST_LAYER = 27


def ranked(scores: Sequence[float]) -> list[int]:
    """Return all experts, best score first, ties to the lower id."""
    return sorted(range(len(scores)), key=lambda e: -scores[e])


def rival_and_top(scores: Sequence[float], k: int, alpha: float) -> tuple[float, list[int]]:
    """Return β = S_{k+1} and the top-score experts, s ≥ (1+α)·β, best first (rule 1)."""
    order = ranked(scores)
    rival = scores[order[k]] if k < len(order) else 0.0
    return rival, [e for e in order[:k] if scores[e] >= (1 + alpha) * rival]


@dataclass(kw_only=True)
class SetOrderRouter(Routing):
    """Replaces low-score experts by the first allowed ones in a Python set's order (ec:593-671).

    Candidates score strictly between (1-α)·S_{k+1} and S_{k+1}: not the (k+1)-th, nor its ties.
    """

    has_alpha = True

    def lossless_at(self, alpha: float) -> bool:
        """Return whether α is 0, which substitutes no expert."""
        return alpha == 0

    def route(self, view: LayerView) -> Routed:
        """Return the top-k with substitutes (rules 1 to 3) in decode; prefill is exact."""
        if view.phase == "prefill" or view.alpha == 0:
            return Routed(view.topk_ids_TK, view.topk_ids_TK)
        k, alpha = view.shape.top_k, view.alpha
        tops = [rival_and_top(scores, k, alpha) for scores in view.scores]
        shared = frozenset().union(*(top for _, top in tops))  # C
        begun = (view.resident_E | view.in_flight_E).tolist()  # rule 9: from its submission on
        there = {*shared, *(e for e, here in enumerate(begun) if here)}
        pairs = zip(view.scores, tops, strict=True)
        routed = [self.replaced(scores, k, rival, alpha, there) for scores, (rival, _) in pairs]
        ids_TK = np.array(routed)
        return Routed(ids_TK, ids_TK, shared)

    def replaced(
        self, scores: Sequence[float], k: int, rival: float, alpha: float, there: set[int]
    ) -> list[int]:
        """Return one row's experts, each low-score one replaced if possible (rule 2)."""
        order = ranked(scores)
        # The set is filled best first; CPython's iteration order decides the substitute.
        candidates = {e for e in order if (1 - alpha) * rival < scores[e] < rival}
        used = list(order[:k])
        for place, expert in enumerate(used):
            if scores[expert] < (1 + alpha) * rival and expert not in there:
                free = (e for e in candidates if e in there and e not in used)
                used[place] = next(free, expert)
        return used


def trimmed_mean(values: Iterable[float]) -> float:
    """Return the mean of the values within one σ of their mean; of one or two, of all (rule 5)."""
    known = list(values)
    if len(known) <= 2:  # both are one σ away, and rounding would decide which of them stay
        return fmean(known)
    mean, sigma = fmean(known), pstdev(known)
    return fmean([v for v in known if abs(v - mean) <= sigma] or known)


@dataclass(kw_only=True)
class OneEnded(Assignment):
    """Assigns misses, most rows first, to the host unless the link has less work (ec:718-736).

        for each of S by descending rows:  load it if Σ load < Σ cpu, else compute it on the host

    Both phases use the same rule, and an expert's cost does not depend on its rows.  C_cpu is the
    trimmed mean of this layer's last ten host computations, at first one of 50 ms.  C_load is the
    trimmed mean over the last ten layers with loads, at first 2 ms: the time waited after the host
    was done, divided by the loads; but C_cpu until the layer has computed two experts on the host.
    """

    reads_scores = False
    uses_host = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Reset the cost estimates to 50 ms for a host computation and 2 ms for a load."""
        self._host_ns: dict[int, deque[float]] = defaultdict(lambda: deque([50e6], maxlen=10))
        self._load_ns: deque[float] = deque([2e6], maxlen=10)
        self._on_host: dict[int, int] = defaultdict(int)

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Divide the missing experts between load and host, most rows first (rule 4)."""
        host_ns = trimmed_mean(self._host_ns[view.layer])
        measured = self._on_host[view.layer] >= 2
        load_ns = trimmed_mean(self._load_ns) if measured else host_ns
        queue = sorted(active.absent, key=lambda e: -active.rows[e])
        load, host = divided(queue, load_ns, host_ns)
        return split(active, fetches(view.layer, load), host)

    def waited(self, view: LayerView, plan: Plan, host_ns: int, load_ns: int) -> None:
        """Record the host computations, and the time waited for loads (rule 5)."""
        n = len(plan.host)
        self._on_host[view.layer] += n
        if n:
            self._host_ns[view.layer].extend(list(view.costs.host_ns)[-n:])
        if plan.load:
            self._load_ns.append(max(0, load_ns - host_ns) / len(plan.load))


def divided(queue: Sequence[int], load_ns: float, host_ns: float) -> tuple[list[int], list[int]]:
    """Return the experts to load and those for the host, of misses in their order (rule 4).

    Sums within 1 us count as equal (`SAME_NS`).
    """
    load: list[int] = []
    host: list[int] = []
    for expert in queue:
        behind = len(load) * load_ns < len(host) * host_ns - SAME_NS
        (load if behind else host).append(expert)
    return load, host


@dataclass(kw_only=True)
class LoadOrder(FirstInFirstOut):
    """Evicts the expert that was loaded first: the code's LRU never registers uses (ec:208).

    Attributes:
        window: steps of Eq. 3's average; evicts the argmin of average · (n + 1) + position over n
            residents, in which the position dominates (ec:157).  None, the value in all three
            settings, is first in, first out.
    """

    takes_forms = False  # the averages of a window are of one form
    window: int | None = option(None, low=0, high=4096, searched=(2, 64), scale="log")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._scores = None if self.window is None else LowestAverageScore(window=self.window)

    @property
    def reads_scores(self) -> bool:
        """Whether gate scores are averaged, which only a window needs."""
        return self.window is not None

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without residents and without scores."""
        super().start(shape, cache)
        if self._scores is not None:
            self._scores.start(shape, cache)

    def observe(self, view: LayerView) -> None:
        """Add the gate's scores to the averages, if there is a window."""
        if self._scores is not None:
            self._scores.observe(view)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the first-loaded allowed key (rule 6); with a window, the least-valued one."""
        if self._scores is None:
            return super().victim(allowed, incoming)
        order = self._pools[incoming]
        weight, average = len(order) + 1, self._scores.average
        values = {k: average(k) * weight + place for place, k in enumerate(order) if allowed[k]}
        return min(values, key=values.__getitem__, default=None)


@dataclass(kw_only=True)
class PlaceByLayer(PlaceById):
    """Places the experts of `by-id` layer by layer, the order in which they are evicted."""

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the pairs of `by-id`, by layer, then by id."""
        return sorted(super().place(shape, slots, scope))


@dataclass(frozen=True, kw_only=True)
class NextGateWithoutAttention(NextGates):
    """Runs the next gate on the gate's input plus the shared experts' output (base:336).

    With h = normed state + shared output (+ the residual, for DeepSeek): h + LN(h), LN, gate.
    It runs in decode, in layers with misses after substitution.
    """

    lookahead = Lookahead.SHARED

    def asked(self, view: LayerView) -> bool:
        """Return whether to predict from this layer: in decode, after misses, if not the last."""
        return super().asked(view) and bool(view.absent) and view.layer < LAST_LAYER

    def op(self, view: LayerView) -> Op:
        """Return the cost of one gate; the norms' cost is negligible."""
        return op_of(OpKind.PREDICT, view.layer, (view.forward.rows,))

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Return the next gate's scores without the next attention."""
        assert view.next_layer is not None
        deepseek = view.shape.family == "deepseek"
        kind = Lookahead.SHARED_RESIDUAL if deepseek else Lookahead.SHARED
        return {view.next_layer: model.predict(view.layer, view.next_layer, done, kind)}


@dataclass(kw_only=True)
class FirstPredicted(Prefetching):
    """Fetches one expert: the first missing one of the predicted top-score set (base:431-439).

    The fetch is committed: the code queues it when the layer has ended and the link is idle, so it
    always begins, and it continues when the next layer's router clears the queue.
    """

    reads_scores = False
    discipline = "committed"

    @property
    def predictor(self) -> NextGateWithoutAttention:
        """Predictor that runs the next gate without attention."""
        return NextGateWithoutAttention()

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep the cache, to look up resident experts."""
        self._cache = cache

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return the first missing expert in the order of the predicted set (rule 7)."""
        cache, wanted = self._cache, list[Fetch]()
        for layer, predicted_TE in forecast.items():
            order = predicted_set(predicted_TE.tolist(), view.shape.top_k, view.alpha)
            missing = (e for e in order if not cache.holds(cache.key(layer, e)))
            wanted += fetches(layer, [e for e, _ in zip(missing, range(1), strict=False)])
        return wanted


def predicted_set(rows: Iterable[Sequence[float]], k: int, alpha: float) -> set[int]:
    """Return the top-score experts of all rows as a set, whose iteration order matters."""
    return {e for scores in rows for e in rival_and_top(scores, k, alpha)[1]}


@dataclass(kw_only=True)
class ShippedSMoE(System):
    """SMoE with the nine rules of its authors' code."""

    paper = "arXiv 2508.18983"

    place: Placement = field(default_factory=PlaceByLayer)
    route: Routing = field(default_factory=SetOrderRouter)
    assign: Assignment = field(default_factory=OneEnded)
    prefetch: Prefetching = field(default_factory=FirstPredicted)
    evict: Eviction = field(default_factory=LoadOrder)
    blocking_copies: bool | None = False
    synchronises: bool = True
    reads_unfinished: bool = True

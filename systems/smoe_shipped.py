"""SMoE as its authors' code runs it: https://github.com/goingshr/SMoE at 2de217b.

The paper's system is `systems.smoe`.  What the code does otherwise, in nine rules:

    1, 2  substitution     SetOrderRouter: strictly below S_{k+1}; taken in the order of a set
    3     weights          a substitute's own score (``route.weight=own``, as in `systems.smoe`)
    4     division         OneEnded: most rows first, to the host unless the link is behind it
    5     costs            OneEnded: trimmed means; a load costs what is waited for
    6     eviction         LoadOrder: first in, first out (the code calls it LRU)
    7     prefetch         FirstPredicted: one expert, after a layer that missed, without attention
    8     streams          ``synchronises``: loaded experts run after the last load
    9     unfinished       ``reads_unfinished``: a hit does not wait for its copy

By rule 9 an expert counts as resident as soon as its copy is submitted, and a hit on it computes on
whatever its slot holds.  Its time is simulated; its results would be wrong, and the run says so.
Rules 8 and 9 are properties that any system may have (`substrate.engine.system`).

α is 0.25 in all settings (configs/*.json), where the paper has .35, .30 and .25.

Deviations, and readings where the rules leave something open:

- Substitution in decode only, as the code does for the prompt of a fresh process.  Its driver for
  OpenCompass does not reset the counter by which it knows, and replaces in later prompts' prefill.
- A value is trimmed where it is further from the mean than one (population) standard deviation.
- The experts placed at the start are those of `place=by-id`, in the order of layers and ids.
- DeepSeek's and XVERSE's weights are always renormalised, against DeepSeek's configuration: here
  they are weighed as the model's own top-k are.
- Not modelled: the single prefetch after each layer of a prefill.
- Replayed routing: traces do not hold this prediction, so they are refused unless prefetch=none.
- Not modelled: Python's own time beyond the profile's control costs, and the worker thread that
  launches the hits while the main thread computes: on one control thread the launches come one
  after the other.
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
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Predictor,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.machines.protocol import Op, OpKind, op_of
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Lookahead
from moebench.systems.policies.evict import FirstInFirstOut, LowestAverageScore
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.predict import NextGates

#: The layer from which on nothing is prefetched; the last one of the three models.
LAST_LAYER = 27


def ranked(scores: Sequence[float]) -> list[int]:
    """All experts, best first, ties to the lower id."""
    return sorted(range(len(scores)), key=lambda e: -scores[e])


def rival_and_top(scores: Sequence[float], k: int, alpha: float) -> tuple[float, list[int]]:
    """Rule 1: β = S_{k+1}, and the top-score experts, best first: of the top-k, s ≥ (1+α)·β."""
    order = ranked(scores)
    rival = scores[order[k]] if k < len(order) else 0.0
    return rival, [e for e in order[:k] if scores[e] >= (1 + alpha) * rival]


@dataclass(kw_only=True)
class SetOrderRouter(Routing):
    """Replaces low-score experts by the first allowed ones in a Python set's order (ec:593-671).

    Candidates score strictly between (1-α)·S_{k+1} and S_{k+1}: never the (k+1)-th nor its ties.
    """

    has_alpha = True

    def lossless_at(self, alpha: float) -> bool:
        """Only without substitution."""
        return alpha == 0

    def route(self, view: LayerView) -> Routed:
        """Rules 1 to 3 in decode; prefill is exact."""
        if view.phase == "prefill" or view.alpha == 0:
            return Routed(view.topk_ids_TK, view.topk_ids_TK)
        k, alpha = view.shape.top_k, view.alpha
        tops = [rival_and_top(scores, k, alpha) for scores in view.scores]
        shared = frozenset().union(*(top for _, top in tops))  # C
        begun = (view.resident_E | view.in_flight_E).tolist()  # rule 9: from its submission on
        there = {*shared, *(e for e, here in enumerate(begun) if here)}
        ids_TK = np.array(
            [
                self.replaced(scores, k, rival, alpha, there)
                for scores, (rival, _) in zip(view.scores, tops, strict=True)
            ]
        )
        return Routed(ids_TK, ids_TK, shared)

    def replaced(
        self, scores: Sequence[float], k: int, rival: float, alpha: float, there: set[int]
    ) -> list[int]:
        """Rule 2: one row's experts, each low-score one replaced where it can be."""
        order = ranked(scores)
        # Filled best first; what counts is the order in which CPython's set gives them back.
        candidates = {e for e in order if (1 - alpha) * rival < scores[e] < rival}
        used = list(order[:k])
        for place, expert in enumerate(used):
            if scores[expert] < (1 + alpha) * rival and expert not in there:
                free = (e for e in candidates if e in there and e not in used)
                used[place] = next(free, expert)
        return used


def trimmed_mean(values: Iterable[float]) -> float:
    """Rule 5: the mean of values that are no further than one σ from their mean."""
    known = list(values)
    mean, sigma = fmean(known), pstdev(known)
    return fmean([v for v in known if abs(v - mean) <= sigma] or known)


@dataclass(kw_only=True)
class OneEnded(Assignment):
    """Gives misses, most rows first, to the host unless the link has less to do (ec:718-736).

        for each of S by descending rows:  load it if Σ load < Σ cpu, else compute it on the host

    Both phases alike, and an expert costs the same whatever its rows.  C_cpu is the trimmed mean of
    this layer's last ten host computations, which begin with one of 50 ms.  C_load is that of the
    last ten layers with loads, beginning with 2 ms: what was left to wait for once the host was
    done, over the loads; but C_cpu until the layer has computed two experts on the host.
    """

    reads_scores = False
    uses_host = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Nothing was measured."""
        self._host_ns: dict[int, deque[float]] = defaultdict(lambda: deque([50e6], maxlen=10))
        self._load_ns: deque[float] = deque([2e6], maxlen=10)
        self._on_host: dict[int, int] = defaultdict(int)

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Rule 4."""
        host_ns = trimmed_mean(self._host_ns[view.layer])
        measured = self._on_host[view.layer] >= 2
        load_ns = trimmed_mean(self._load_ns) if measured else host_ns
        queue = sorted(active.absent, key=lambda e: -active.rows[e])
        load, host = divided(queue, load_ns, host_ns)
        return split(active, fetches(view.layer, load), host)

    def waited(self, view: LayerView, plan: Plan, host_ns: int, load_ns: int) -> None:
        """Rule 5."""
        n = len(plan.host)
        self._on_host[view.layer] += n
        if n:
            self._host_ns[view.layer].extend(list(view.costs.host_ns)[-n:])
        if plan.load:
            self._load_ns.append(max(0, load_ns - host_ns) / len(plan.load))


def divided(queue: Sequence[int], load_ns: float, host_ns: float) -> tuple[list[int], list[int]]:
    """Rule 4 on misses in their order: those to load, and those for the host."""
    load: list[int] = []
    host: list[int] = []
    for expert in queue:
        behind = len(load) * load_ns < len(host) * host_ns
        (load if behind else host).append(expert)
    return load, host


@dataclass(kw_only=True)
class LoadOrder(FirstInFirstOut):
    """Evicts the first of a dict that loads alone reorder; nobody calls its ``mark_used`` (ec:208).

    Attributes:
        window: with one, argmin of average · (n + 1) + position, of n residents, whose averages are
            those of Eq. 3: the position dominates (ec:157).  None, in all three settings, is first
            in, first out.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        """Check the window as `LowestAverageScore` does."""
        self._scores = None if self.window is None else LowestAverageScore(window=self.window)

    @property
    def reads_scores(self) -> bool:
        """Only for a window."""
        return self.window is not None

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Nothing is resident yet, and no score was seen."""
        super().start(shape, cache)
        if self._scores is not None:
            self._scores.start(shape, cache)

    def observe(self, view: LayerView) -> None:
        """Average the scores, for a window."""
        if self._scores is not None:
            self._scores.observe(view)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Rule 6; what the current layer has chosen is not allowed."""
        if self._scores is None:
            return super().victim(allowed, incoming)
        order = self._pools[incoming]
        weight, average = len(order) + 1, self._scores.average
        values = {
            key: average(key) * weight + place for place, key in enumerate(order) if allowed[key]
        }
        return min(values, key=values.__getitem__, default=None)


@dataclass(kw_only=True)
class PlaceByLayer(PlaceById):
    """Places the experts of `by-id` layer by layer, which is the order in which they leave."""

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """By layer, then by id."""
        return sorted(super().place(shape, slots, scope))


@dataclass(frozen=True, kw_only=True)
class NextGateWithoutAttention(NextGates):
    """Runs the next gate on the gate's input plus the shared experts' output (base:336).

    With h = normed state + shared output (+ the residual, for DeepSeek): h + LN(h), LN, gate.
    Asked in decode, in layers that missed after substitution.
    """

    lookahead = Lookahead.SHARED

    def asked(self, view: LayerView) -> bool:
        """Rule 7."""
        return super().asked(view) and bool(view.absent) and view.layer < LAST_LAYER

    def op(self, view: LayerView) -> Op:
        """One gate; the norms cost nothing beside it."""
        return op_of(OpKind.PREDICT, view.layer, (view.forward.rows,))

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """What this gate says."""
        assert view.next_layer is not None
        deepseek = view.shape.family == "deepseek"
        kind = Lookahead.SHARED_RESIDUAL if deepseek else Lookahead.SHARED
        return {view.next_layer: model.predict(view.layer, view.next_layer, done, kind)}


@dataclass(kw_only=True)
class FirstPredicted(Prefetching):
    """Fetches one expert: the first non-resident of the predicted top-score set (base:431-439).

    It is queued when the layer has ended and the link is idle, so that it always begins, and goes
    on when the next layer's router clears the queue: committed.
    """

    reads_scores = False
    discipline = "committed"

    @property
    def predictor(self) -> Predictor:
        """The next gate without attention."""
        return NextGateWithoutAttention()

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Remember where residents can be looked up."""
        self._cache = cache

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Rule 7: in the order of a set that the rows filled, best first."""
        cache, wanted = self._cache, list[Fetch]()
        for layer, predicted_TE in forecast.items():
            order = predicted_set(predicted_TE.tolist(), view.shape.top_k, view.alpha)
            missing = (e for e in order if not cache.holds(cache.key(layer, e)))
            wanted += fetches(layer, [e for e, _ in zip(missing, range(1), strict=False)])
        return wanted


def predicted_set(rows: Iterable[Sequence[float]], k: int, alpha: float) -> set[int]:
    """The top-score experts of all rows; iterate over it in its own order."""
    return {e for scores in rows for e in rival_and_top(scores, k, alpha)[1]}


@dataclass(kw_only=True)
class ShippedSMoE(System):
    """The nine rules together."""

    paper = "arXiv 2508.18983"

    place: Placement = field(default_factory=PlaceByLayer)
    route: Routing = field(default_factory=SetOrderRouter)
    assign: Assignment = field(default_factory=OneEnded)
    prefetch: Prefetching = field(default_factory=FirstPredicted)
    evict: Eviction = field(default_factory=LoadOrder)
    synchronises: bool = True
    reads_unfinished: bool = True

"""HybriMoE: schedule every layer over CPU, GPU and PCIe by simulating its makespan.

"HybriMoE: Hybrid CPU-GPU Scheduling and Cache Management for Efficient MoE Inference" (S. Zhong et
al., DAC 2025, arXiv 2504.05897).  Which experts are missing changes with every token, so a fixed
division between CPU and GPU is rarely good.  A small simulation divides a layer's experts; the same
simulation selects the experts of later layers that are worth fetching; and the cache keeps the
experts with high recent scores, active or not.

    paper                             moebench
    ─────                             ────────
    warm-up: CPU time linear in       policies.makespan: Times, from the last operations
      tokens, first expert slower;
      GPU and PCIe times constant
    GPU, CPU and PCIe queues;         policies.makespan: schedule
      the makespan
    intra-layer scheduling            MakespanSchedule
    impact-driven prefetching: the    ImpactDriven, NextGates
      gates of the next three layers
      on this layer's state
    MRS:                              MinusRecentScore
      S ← α·TopP(s) + (1-α)·S         α is ``evict.smoothing``, p is ``evict.top``

`systems.hybrimoe_shipped` (``--variant shipped``) is the authors' code where it differs.

Deviations and readings, where the paper is silent:

- The authors' code was read; the paper is known from other papers only.
- Of operations that would finish at the same time, the GPU's is committed first, then the CPU's.
  Of experts with equally many tokens the best-scored one is loaded, and the lowest-scored one
  computed on the CPU.
- The GPU can choose an expert that was sent over PCIe once it has arrived; it waits for one only if
  it has nothing else to do.  The idle CPU computes experts that were cached from the start.
- Experts under way when the gate is known are next on the link: they arrive when it is free, unless
  the CPU has computed them by then.  The other reading, which leaves them to the GPU, is slower
  with long copies (Mixtral, a quarter cached: 266 ms a token against 202).
- Times are means of the last measurements (``history``); the paper measures them once.  The CPU's
  line is fitted to its last experts.  On the simulated host every expert has the same hand-over
  cost, so that a layer's first expert is hardly slower.
- An expert that the CPU computed is not loaded into the cache unless ``assign.fill``.
- The impact of an expert is the reduction of the layer's makespan if it is cached.  The expert with
  the greatest impact is fetched first, and the others' impacts are computed again as if it were
  cached.  Experts without impact are not fetched, and at most ``prefetch.experts`` are queued.
- Nothing is predicted in prefill, because traces hold no predictions of prompts; the paper gains
  6 % by it.  In live runs ``prefetch.prefill`` predicts in both phases.
- α = 0.5 and p = 2k are the code's values.  With several rows the mean score is used.
- Each layer has its own slots, as in the code; with ``scope=global`` all layers share them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from moebench.substrate.choices import HostKernels
from moebench.substrate.engine.decisions import Active, Fetch, Forecast, LayerView, Plan, fetches
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.machines.timeline import COSTS_KEPT
from moebench.substrate.memory.cache import ExpertCache, Mask, Scope
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.evict import least
from moebench.systems.policies.latency import SAME_NS
from moebench.systems.policies.makespan import Times, measured, schedule
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.predict import NextGates
from moebench.systems.policies.route import ExactRouting

# --------------------------------------------------------------------------- intra-layer scheduling


@dataclass(kw_only=True)
class MakespanSchedule(Assignment):
    """Executes each layer as its simulated schedule did, in prefill and decode.

    Attributes:
        history: how many past durations of each kind are averaged.
        fill: also load experts that the CPU computes, after those that the GPU needs.
    """

    history: int = option(10, low=1, high=COSTS_KEPT, searched=(1, COSTS_KEPT), scale="log")
    fill: bool = option(False, searched=True)

    uses_host = True

    def assign(self, view: LayerView, active: Active) -> Plan:
        """Plan the layer by the queues of the simulated schedule, in their order."""
        rows, score = active.rows, active.best

        def by_load(experts: Iterable[int]) -> list[int]:
            return sorted(experts, key=lambda e: (-rows[e], -score[e], e))

        here, coming, away = map(by_load, (active.resident, active.in_flight, active.absent))
        order = [*here, *coming, *away]
        cached, arriving, missing = (tuple(rows[e] for e in kind) for kind in (here, coming, away))
        link_ns = max(map(view.lanes.backlog_ns, view.lanes.load_path)) if coming or away else 0
        times = measured(view.costs, self.history)
        found = schedule(cached, missing, times, arriving, link_ns)
        host, load = [order[n] for n in found.cpu], [order[n] for n in found.pcie]
        if self.fill:
            load += [e for e in host if e in away]
        return Plan([order[n] for n in found.gpu], host, (), fetches(view.layer, load))


# --------------------------------------------------------------------------- prefetching


@dataclass(kw_only=True)
class ImpactDriven(Prefetching):
    """Fetches, while the link is idle, the experts that shorten later layers' makespans most.

    Attributes:
        layers: how many later layers are predicted.
        experts: most queued fetches; 0 is the model's top-k.  The next layer's request replaces
            fetches that have not begun.
        history: how many past durations of each kind are averaged.
        prefill: also predict in prefill.
    """

    layers: int = option(3, low=1, searched=(1, 8))
    experts: int = option(0, low=0, searched=(1, 16), scale="log")
    history: int = option(10, low=1, high=COSTS_KEPT, searched=(1, COSTS_KEPT), scale="log")
    prefill: bool = option(False, searched=True)

    reads_scores = False

    needs_host = True  # it plays the schedule on, whose host times it needs

    @property
    def predictor(self) -> NextGates:
        """Predictor that runs later layers' gates on this layer's state."""
        return NextGates(layers=self.layers, in_prefill=self.prefill)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Keep the cache, to look up resident experts."""
        self._cache = cache

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return fetches by descending impact; ties by nearest layer, then by best score."""
        if not forecast:
            return ()
        k, times = view.shape.top_k, measured(view.costs, self.history)
        later = [LaterLayer(at, p_TE, k, self._cache, times) for at, p_TE in forecast.items()]
        wanted: list[Fetch] = []
        for _ in range(self.experts or k):
            most_ns = max(one.impact_ns for one in later)
            best = next(one for one in later if one.impact_ns >= most_ns - SAME_NS)
            if best.impact_ns <= 0:
                break
            wanted.append(Fetch(best.layer, best.take()))
        return wanted


def expected(predicted_TE: np.ndarray, k: int) -> dict[int, int]:
    """Return predicted tokens by expert: most tokens first, then best score, then lowest id."""
    ids_TK = (-predicted_TE).argsort(axis=1, kind="stable")[:, :k]
    if len(ids_TK) == 1:
        return dict.fromkeys(ids_TK[0].tolist(), 1)
    tokens, score = Counter(ids_TK.ravel().tolist()), predicted_TE.max(axis=0)
    return dict(sorted(tokens.items(), key=lambda item: (-item[1], -score[item[0]], item[0])))


class LaterLayer:
    """A later layer's predicted experts, and the makespan that caching one of them saves.

    ``impact_ns`` is the largest saving by one more cached expert; 0 if none saves time.
    """

    def __init__(
        self, layer: int, predicted_TE: np.ndarray, k: int, cache: ExpertCache, times: Times
    ) -> None:
        self.layer, self._times = layer, times
        tokens = expected(predicted_TE, k)
        self._absent = [e for e in tokens if not cache.holds(cache.key(layer, e))]
        loads = [tokens.pop(e) for e in self._absent]
        self._cached_loads, self._absent_loads = tuple(tokens.values()), tuple(loads)
        self._weigh()

    def take(self) -> int:
        """Return the expert with the largest impact, and count it as cached from now on."""
        self._cached_loads, self._absent_loads = self._with(self._best)
        expert = self._absent.pop(self._best)
        self._weigh()
        return expert

    def _weigh(self) -> None:
        """Find the largest impact: simulate one absent expert for each distinct token count."""
        self.impact_ns, self._best = 0.0, 0
        loads = self._absent_loads
        now_ns = schedule(self._cached_loads, loads, self._times).makespan_ns
        for place, load in enumerate(loads):
            if place and loads[place - 1] == load:
                continue
            then_ns = schedule(*self._with(place), self._times).makespan_ns
            if now_ns - then_ns > self.impact_ns + SAME_NS:
                self.impact_ns, self._best = now_ns - then_ns, place

    def _with(self, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return cached and absent experts' tokens if the absent one at ``place`` were cached."""
        loads = self._absent_loads
        cached = sorted((*self._cached_loads, loads[place]), reverse=True)
        return tuple(cached), loads[:place] + loads[place + 1 :]


# --------------------------------------------------------------------------- caching


class RecentScores:
    """MRS: exponentially weighted average S of each expert's scores among the p highest.

    ``smoothing`` is α, the weight of the newest scores; ``top`` is p, 0 is twice the model's top-k.
    """

    def __init__(self, shape: ModelShape, smoothing: float, top: int) -> None:
        scores_LE = np.zeros((shape.num_layers, shape.num_experts))
        #: S of each expert, by its key in the cache.
        self.by_key = scores_LE.reshape(-1)
        self._layers = list(scores_LE)
        self.smoothing, self._top = smoothing, top or 2 * shape.top_k

    def of(self, layer: int) -> np.ndarray:
        """Return S of a layer's experts."""
        return self._layers[layer]

    def decay(self, layer: int, scores_E: np.ndarray) -> np.ndarray:
        """Set S ← (1-α)·S; return the experts with the p highest scores, highest first."""
        averages = self._layers[layer]
        averages *= 1 - self.smoothing
        return (-scores_E).argsort(kind="stable")[: self._top]

    def update(self, layer: int, scores_E: np.ndarray) -> None:
        """Set S ← α·TopP(s) + (1-α)·S, where TopP zeroes all but the p highest scores."""
        highest = self.decay(layer, scores_E)
        self._layers[layer][highest] += self.smoothing * scores_E[highest]


@dataclass(kw_only=True)
class MinusRecentScore(Eviction):
    """Evicts the expert with the lowest S (MRS), which is updated once for each gate.

    Attributes:
        smoothing: α, the weight of a gate's scores against all earlier ones.
        top: p, how many of a gate's scores are used; 0 is twice the model's top-k.
    """

    smoothing: float = option(0.5, low=0, high=1, above=True, searched=(0.05, 1.0))
    top: int = option(0, low=0, searched=(1, 64), scale="log")

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with S = 0 for every expert."""
        self._scores = RecentScores(shape, self.smoothing, self.top)

    def observe(self, view: LayerView) -> None:
        """Update S by the gate's scores; with several rows, by their mean."""
        scores_TE = view.scores_TE
        mean_E = scores_TE[0] if len(scores_TE) == 1 else scores_TE.mean(axis=0)
        self._scores.update(view.layer, mean_E)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the lowest S; ties to the lowest key."""
        return least(self._scores.by_key, allowed)


@dataclass(kw_only=True)
class HybriMoE(System):
    """HybriMoE with the paper's policies for its decisions."""

    paper = "DAC 2025, arXiv 2504.05897"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=MakespanSchedule)
    prefetch: Prefetching = field(default_factory=ImpactDriven)
    evict: Eviction = field(default_factory=MinusRecentScore)
    scope: Scope = option("layer", searched=True)
    host_kernels: HostKernels = "fused"  # its code is kTransformers' with llama.cpp's kernels

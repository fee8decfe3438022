"""FineMoE: predict experts from the past iterations that are most similar to the current one.

"Taming Latency-Memory Trade-Off in MoE-Based LLM Serving via Fine-Grained Expert Offloading"
(H. Yu, X. Cui, H. Zhang, H. Wang, H. Wang, EuroSys 2026, arXiv 2502.05370).  All requests use
nearly the same experts over all their tokens, but single tokens do not.  So each iteration keeps
the probabilities of all its gates, its *expert map*, and the nearest map is searched: by prompt
embedding for the first layers, then by the probabilities of the layers so far.

    paper                                         moebench
    ─────                                         ────────
    expert map store, capacity C ≤ 1000           systems.learn.map_store; ``prefetch.capacity``
    an iteration's map: L × E probabilities       MapStore.maps_LCE, each layer's sum is 1
    semantic search, for layers < d               MapSearch.forecast in the last layer, for the next
      (prompt embedding, cosine)                    iteration
    trajectory search on layers 1..l, for layer   MapSearch.forecast in all layers
      l + d (cosine)
    prefetch distance d = 3 (demo 6)              ``prefetch.distance``
    δ = clip(1 - similarity, 0, 1)                MapSearch.deltas
    experts until their sum exceeds δ, at least k `selected`
    prefetch priority p / (l' - l)                MatchedMaps.prefetch
    a miss pauses prefetching                     ``speculative``
    eviction priority 1 / (p · freq)              LeastExpected
    redundancy (d/L) · sim_emb + (1 - d/L) ·      MapStore.add
      sim_traj: a full store drops the most
      redundant map

The search runs on the host in parallel to the inference (the paper's matcher; the artefact's demo
waits for it): the control thread continues, and the experts found are fetched after the search.
The charge is for the search's fp32 products, by the host's bandwidth: in each layer, E numbers with
each of n stored maps (those of earlier layers are kept); in the last layer also the prompt's
embedding, at the full model's width.  With 1000 maps of 64 experts that is 0.26 MB a layer.

Deviations and readings, where the paper is silent:

- At first the store holds the decoded tokens of calibration texts; each decoded token of the run is
  added when its last layer's gate is known.  Prompt tokens are not stored, and nothing is fetched
  for prompts: their tokens together use nearly all experts.
- Semantic search finds all iterations of the nearest prompt at once, because they share its
  embedding: the newest of them is used, within one sequence the previous token's.  (The artefact's
  code embeds each iteration's own tokens, which traces do not hold.)
- freq counts the uses in a run, from 1 on: p alone ranks the experts that were not used yet.
- p of an expert is that of the last map found for its layer, at first 1 / E.
- A new map replaces the stored map that is most similar to it, as in the artefact's code.
- Embeddings are means of the prompt's token embeddings.  A batch's sequences are searched one by
  one; their experts are fetched together, with the highest p of any sequence.
- A requested prefetch stays queued until its layer's gate is known; every layer reorders the queue.
- The store is in host memory (7 MB with 27 layers of 64 experts) and not counted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import (
    Fetch,
    Forecast,
    LayerView,
    Prompts,
    best_scores,
    fetches,
)
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import (
    Assignment,
    Eviction,
    Placement,
    Predictor,
    Prefetching,
    Routing,
)
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Learnt, RoutedSequence
from moebench.systems.learn.map_store import MapStore, shares, unit
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.evict import least
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.route import ExactRouting


def selected(p_E: np.ndarray, delta: float, k: int) -> list[int]:
    """Return the likeliest experts until their probabilities' sum exceeds δ, at least k."""
    order = np.argsort(-p_E, kind="stable")
    enough = int(np.searchsorted(p_E[order].cumsum(), delta, side="right")) + 1
    chosen: list[int] = order[: max(k, enough)].tolist()
    return chosen


class MapSearch(Predictor):
    """Compares the running iterations with the store, layer by layer, on the host.

    Args:
        store: maps of past iterations; each iteration is added to it.
        distance: d, the prefetch distance in layers.
        width: width of the full model's embedding, which is charged.
    """

    lane: ClassVar[Lane] = Lane.HOST
    in_background: ClassVar[bool] = True
    wraps: ClassVar[bool] = True

    def __init__(self, store: MapStore, distance: int, width: int) -> None:
        self.store, self._distance, self._width = store, distance, width
        layers, _, experts = store.maps_LCE.shape
        self._layers, self._experts = layers, experts
        #: δ of each sequence, by layer.
        self._deltas: dict[int, list[float]] = {}

    def deltas(self, layer: int, sequences: int) -> list[float]:
        """Return each sequence's δ for the layer; 0, which selects k experts, if none is known."""
        found = self._deltas.get(layer, [])
        return found if len(found) == sequences else [0.0] * sequences

    def begin(self, embedding_BH: np.ndarray) -> None:
        """Start a batch: compute the cosines of its prompts' embeddings with the store's."""
        self._embedding_BH = unit(embedding_BH)
        self._semantic_BC = self._embedding_BH @ self.store.embedding_CH.T

    def asked(self, view: LayerView) -> bool:
        """Return whether to predict from this layer: in decode, and in a prompt's last layer."""
        return view.phase == "decode" or view.next_layer is None

    def op(self, view: LayerView) -> Op:
        """Return the cost of the products of each sequence's new numbers with the store's."""
        numbers = self._experts if view.phase == "decode" else 0
        numbers += self._width if view.next_layer is None else 0
        rows = len(view.forward.sequences)
        return Op(OpKind.PREDICT, view.layer, (rows,), network=(numbers, max(1, self.store.size)))

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Predict layer l + d by trajectory; in the last layer, the next d layers by prompt."""
        layers, row = view.shape.moe_layers, view.shape.moe_rows[view.layer]
        found: dict[int, np.ndarray] = {}
        if view.phase == "decode":
            self._follow(view.scores_TE, row)
            if row + self._distance < self._layers:
                later = row + self._distance
                found[layers[later]] = self._matched(later, self._trajectories(row), layers[later])
        if view.next_layer is None:
            if view.phase == "decode":
                self._keep()
            cosines = [semantic_C[: self.store.size] for semantic_C in self._semantic_BC]
            for first in range(min(self._distance, self._layers)):
                found[layers[first]] = self._matched(first, cosines, layers[first])
        return found if self.store.size else {}

    def _follow(self, scores_TE: np.ndarray, row: int) -> None:
        """Add a layer's probabilities to the trajectories and to their products with all maps."""
        p_TE = shares(scores_TE)
        if row == 0:
            self._map_TLE = np.zeros((len(p_TE), self._layers, self._experts), dtype=np.float32)
            self._products_TC = np.zeros((len(p_TE), self.store.maps_LCE.shape[1]), np.float32)
            self._square_T = np.zeros(len(p_TE), dtype=np.float32)
        self._map_TLE[:, row] = p_TE
        self._products_TC += p_TE @ self.store.maps_LCE[row].T
        self._square_T += (p_TE * p_TE).sum(axis=1)

    def _trajectories(self, row: int) -> list[np.ndarray]:
        pairs = zip(self._products_TC, self._square_T.tolist(), strict=True)
        return [self.store.cosines(products_C, square, row) for products_C, square in pairs]

    def _matched(self, row: int, cosines: Sequence[np.ndarray], layer: int) -> np.ndarray:
        """Return a layer's probabilities in each sequence's nearest map, ``[B, E]``; keep the δ."""
        if not self.store.size:
            return np.zeros((len(cosines), self._experts), dtype=np.float32)
        best = [self.store.nearest(found) for found in cosines]
        similarity = [float(found[at]) for found, at in zip(cosines, best, strict=True)]
        self._deltas[layer] = [min(max(1 - found, 0), 1) for found in similarity]
        return self.store.maps_LCE[row, best]

    def _keep(self) -> None:
        """Store the iteration's maps, and update the cosines and products with the new entries."""
        store = self.store
        iterations = zip(self._embedding_BH, self._map_TLE, strict=False)
        for b, (embedding_H, map_LE) in enumerate(iterations):
            at = store.add(embedding_H, map_LE, self._semantic_BC[b], self._products_TC[b])
            self._semantic_BC[:, at] = self._embedding_BH @ embedding_H
            self._products_TC[:, at] = (self._map_TLE * map_LE).sum(axis=(1, 2))


@dataclass(kw_only=True)
class MatchedMaps(Prefetching):
    """Fetches the experts that the nearest maps predict, by probability over distance.

    Without calibration the store is empty at first.

    Attributes:
        distance: d, how many layers ahead to fetch.
        capacity: C, the most maps in the store.
    """

    distance: int = option(3, low=1, searched=(1, 8))
    capacity: int = option(1000, low=1, high=10_000, searched=(100, 10_000), scale="log")

    calibrates: ClassVar[bool] = True
    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"scores", "embedding"})
    reads_embedding: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._filled: MapStore | None = None
        self._iterations = 0
        self._width = 0
        self._search: MapSearch | None = None

    @property
    def learnt(self) -> Mapping[str, str]:
        """Numbers of calibration iterations and of stored maps before the run."""
        if self._filled is None:
            return {}
        return {"iterations": str(self._iterations), "maps": str(self._filled.size)}

    def full_size(self, shape: ModelShape) -> None:
        """Keep the full model's embedding width, whose comparison is charged."""
        self._width = shape.hidden_size

    def _store(self, shape: ModelShape, width: int) -> MapStore:
        layers = len(shape.moe_layers)
        semantic = min(1.0, self.distance / layers)
        return MapStore(self.capacity, layers, shape.num_experts, width, semantic)

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """Fill the store with decoded tokens of texts that have scores and embeddings."""
        for text in sequences:
            if text.scores_TLE is None or text.embedding_H is None:
                raise UsageError(
                    "prefetch=expert-map learns from gate scores and prompts' embeddings, which "
                    "these texts lack; record a trace anew, or --set prefetch=none"
                )
            embedding_H = unit(text.embedding_H.astype(np.float32))
            if self._filled is None:
                self._filled = self._store(shape, len(embedding_H))
            store = self._filled
            for map_LE in shares(text.scores_TLE[text.prefill :]):
                full = store.size == self.capacity
                products_C = store.products(map_LE) if full else store.squares_LC[0]
                semantic_C = store.embedding_CH @ embedding_H
                store.add(embedding_H, map_LE, semantic_C, products_C)
                self._iterations += 1

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with a copy of the store that calibration filled, for this model."""
        self._expected: dict[int, list[tuple[Fetch, float]]] = {}
        store = self._store(shape, shape.hidden_size)
        if self._filled is not None:
            layers, _, experts = self._filled.maps_LCE.shape
            require_learnt_for("prefetch=expert-map was filled for", shape, (layers, experts))
            store = self._filled.copy()
        self._search = MapSearch(store, self.distance, self._width or shape.hidden_size)

    def begin_sequences(self, prompts: Prompts) -> None:
        """Forget the predictions of the last batch, and compare the new prompts with the store."""
        assert self._search is not None
        assert prompts.embedding_BH is not None
        self._expected = {}
        self._search.begin(prompts.embedding_BH)

    @property
    def predictor(self) -> Predictor | None:
        """The search in the store, or None before a run has begun."""
        return self._search

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return all experts predicted for later layers, by descending p / (l' - l)."""
        assert self._search is not None
        expected, rows, layers = self._expected, view.shape.moe_rows, len(view.shape.moe_layers)
        expected.pop(view.layer, None)
        for later, p_BE in forecast.items():
            chosen = {
                e
                for p_E, delta in zip(p_BE, self._search.deltas(later, len(p_BE)), strict=True)
                for e in selected(p_E, delta, view.shape.top_k)
            }
            p_E = best_scores(p_BE)
            experts = sorted(chosen)
            expected[later] = list(zip(fetches(later, experts), p_E[experts].tolist(), strict=True))
        ranked = []
        for later, wanted in expected.items():
            steps = (rows[later] - rows[view.layer] - 1) % layers + 1
            ranked += [(-p / steps, steps, fetch) for fetch, p in wanted]
        return [fetch for _, _, fetch in sorted(ranked)]


@dataclass(kw_only=True)
class LeastExpected(Eviction):
    """Evicts the expert with the largest 1 / (p · freq): improbable and rarely used."""

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with p = 1 / E and freq = 1 for every expert."""
        self._experts = shape.num_experts
        keys = shape.num_layers * shape.num_experts
        self._p, self._freq = np.full(keys, 1 / shape.num_experts), np.ones(keys)
        self._value = self._p * self._freq

    def foresee(self, forecast: Forecast) -> None:
        """Update p of the predicted layers: the highest over the batch's sequences."""
        for layer, p_BE in forecast.items():
            row = slice(layer * self._experts, (layer + 1) * self._experts)
            self._p[row] = best_scores(p_BE)
            self._value[row] = self._p[row] * self._freq[row]

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Increment freq of the used experts."""
        keys = [layer * self._experts + expert for expert in experts]
        self._freq[keys] += 1
        self._value[keys] = self._p[keys] * self._freq[keys]

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the smallest p · freq."""
        return least(self._value, allowed)


@dataclass(kw_only=True)
class FineMoE(System):
    """FineMoE with the paper's policies for its decisions."""

    paper = "EuroSys 2026, arXiv 2502.05370"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=MatchedMaps)
    evict: Eviction = field(default_factory=LeastExpected)

"""MoE-Infinity: prefetch and evict by the expert activations of similar past requests.

"MoE-Infinity: Efficient MoE Inference on Personal Machines with Sparsity-Aware Expert Cache"
(L. Xue, Y. Fu, Z. Lu, C. Sun, L. Mai, M. Marina, arXiv 2401.14361v3, §4.5-4.7 and Algorithm 1).  A
request uses a few of a model's experts repeatedly, and requests that use the same experts in the
first layers also do in later layers.  So the activations of past requests are stored; in every
layer the most similar request predicts the experts of later layers.

    paper                                       moebench
    ─────                                       ────────
    iEAM, rEAM: tokens of each expert, L × E,   SimilarRequests.observe: ``prefetch.match`` selects
      in this iteration, this request             the one that is compared
    EAMC: rEAMs of past requests, with a fixed  Collection; ``prefetch.capacity``
      capacity; a full one replaces the most
      similar matrix, which keeps it diverse
    predict: the closest by cosine, their       SimilarRequests.forecast; ``prefetch.entries`` is
      cells summed, each row normalised: p        their number; `shares`
    priority p · (1 - (i - l) / L), i > l       MatchedPrefetch.prefetch
    continuous prefetch queue                   ``speculative``: every layer's queue replaces the
                                                  previous one; needed loads run first, but do not
                                                  interrupt a copy under way
    eviction: the least (p + ε) · (1 - i / L),  ActivationAware, over all layers
      which keeps early layers: they leave no
      time for prefetching

l is the current layer, i any layer, and L the number of layers with experts.  Matching, prefetching
and eviction run in each layer of each pass, also in prefill, for every sequence of a batch.

The match is charged as a product: each live sequence's L·E counts with every stored matrix, fp32,
on the host.  The control thread waits for it, so it is entirely on the critical path:
``lanes.host`` in a run's document (and in its ``decode``) is the time of all matches, because this
system uses the host for nothing else; the part that delayed the device is in the stall ``control``.
Submitting and reading a match costs the control thread as much as any operation.  For comparison,
`moebench machines components` lists the paper's 21 us for 1000 matrices and 226 us for 10,000.

Deviations and readings, where the paper is silent:

- At first the collection holds the rEAMs of calibration texts, as FineMoE's authors filled it: 120,
  which were enough for the paper's 290 tasks.  ``--calibrate-texts 1`` begins nearly empty.
- A layer's own loads are submitted before its match: the match of the previous layer chooses the
  experts that they replace.
- The sequences of a batch (the paper's is 1) are matched one by one, and their matched matrices are
  summed.  Of equal cosines the matrix stored first is chosen.
- An expert without expected tokens (p = 0) is not prefetched.  Only absent experts are requested,
  so ``prefetch.all_of_top_k`` in a document does not measure the prediction.
- ``prefetch.budget`` experts are requested at once.  The next layer replaces the request before the
  link has begun more than a few of them: on S1 to S3 requesting all changes no latency.
- ε is 1e-8, as in the authors' code of 2024.  Any value far below 1 / tokens has the same effect:
  it orders experts with p = 0.  That code divides the distance by L + 1: ``prefetch.decay=L+1``.
- Before the first prediction, and in systems without one, p is based on what the running requests
  have used so far; a pass of a layer counts once.
- The paper does not state which experts are in the cache at first: in moebench, the lowest ids of
  every layer, as in `moe-ondemand`.
- Left out: several GPUs, and the paper's SSD below host memory (the disk is modelled as elsewhere).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, Prompts
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
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.evict import least
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.route import ExactRouting


def activation_matrix(text: RoutedSequence, experts: int) -> np.ndarray:
    """Return the text's rEAM: the number of its tokens on each expert of each layer, ``[L, E]``."""
    layers = text.ids_TLK.shape[1]
    cells_TLK = text.ids_TLK + experts * np.arange(layers)[:, None]
    return np.bincount(cells_TLK.ravel(), minlength=layers * experts).reshape(layers, experts)


def shares(forecast: Forecast, shape: ModelShape) -> np.ndarray:
    """Return p: each expert's share of its layer's expected tokens; 0 if none are expected.

    The shape is ``[D, E]`` over all D layers of the decoder; layers without experts are 0.
    """
    p_DE = np.zeros((shape.num_layers, shape.num_experts))
    if forecast:
        expected_LTE = np.concatenate([*forecast.values()])
        expected_LE = expected_LTE.reshape(len(forecast), -1, shape.num_experts).sum(axis=1)
        total_L = expected_LE.sum(axis=1, keepdims=True)
        p_DE[[*forecast]] = expected_LE / np.maximum(total_L, np.finfo(np.float32).tiny)
    return p_DE


def largest(values: np.ndarray, most: int) -> list[int]:
    """Return indices of the ``most`` largest positive values, descending; all if ``most`` is 0."""
    if not most:
        ordered: list[int] = np.argsort(-values, kind="stable").tolist()
        return ordered[: np.count_nonzero(values > 0)]
    values = values.copy()
    found: list[int] = []
    while len(found) < most and values[at := int(values.argmax())] > 0:
        found.append(at)
        values[at] = 0
    return found


class Collection:
    """EAMC: at most N (``capacity``) activation matrices of past requests, of X = L · E cells."""

    def __init__(self, capacity: int, cells: int) -> None:
        self.size, self._capacity = 0, capacity
        self._counts_NX = np.zeros((capacity, cells), dtype=np.float32)
        #: The matrices as unit vectors, one a column: a layer's cells of all are contiguous.
        self._units_XN = np.zeros((cells, capacity), dtype=np.float32)

    def insert(self, counts_X: np.ndarray) -> None:
        """Store a matrix; if the collection is full, in place of the most similar one."""
        length = np.linalg.norm(counts_X)
        if not length:
            return
        units_X = counts_X / length
        at = self.size
        if at < self._capacity:
            self.size += 1
        else:
            at = int((units_X @ self._units_XN).argmax())
        self._counts_NX[at] = counts_X
        self._units_XN[:, at] = units_X

    def products(self, counts_BC: np.ndarray, first: int) -> np.ndarray:
        """Return the products of cells from ``first`` on with each stored direction, ``[B, N]``.

        Divided by the length of the compared matrix, equal for all N, the sum is the cosine.
        """
        cells = slice(first, first + counts_BC.shape[1])
        found: np.ndarray = counts_BC @ self._units_XN[cells, : self.size]
        return found

    def total(self, entries: np.ndarray) -> np.ndarray:
        """Return the sum of some stored matrices' cells, ``[X]``."""
        found: np.ndarray = self._counts_NX[entries].sum(axis=0)
        return found


class SimilarRequests(Predictor):
    """Predicts the experts that the most similar past requests used (Algorithm 1).

    Each layer adds its products to those of the layers before; the sum equals the whole product,
    which is charged.

    Requests that end are added to the collection.  ``match`` and ``entries`` are options of
    `MatchedPrefetch`.
    """

    lane: ClassVar[Lane] = Lane.HOST
    in_prefill: ClassVar[bool] = True

    def __init__(self, shape: ModelShape, collection: Collection, match: str, entries: int) -> None:
        self._shape, self._collection = shape, collection
        self._match, self._entries = match, entries
        self.begin(0)

    def begin(self, sequences: int) -> None:
        """Start a batch with empty rEAMs."""
        cells = len(self._shape.moe_layers) * self._shape.num_experts
        self._rEAM_BX = np.zeros((sequences, cells), dtype=np.float32)
        self._products_BN = np.zeros((sequences, self._collection.size), dtype=np.float32)
        self._closest: list[int] = []
        self._expected: Forecast = {}

    def end(self) -> None:
        """End the batch: add its rEAMs to the collection."""
        for counts_X in self._rEAM_BX:
            self._collection.insert(counts_X)

    def observe(self, view: LayerView) -> None:
        """Count the tokens of each expert of this layer, for each sequence."""
        batch, experts = len(self._rEAM_BX), self._shape.num_experts
        rows = view.forward.sequences
        cells_TK = view.topk_ids_TK
        if batch > 1:
            cells_TK = cells_TK + experts * np.repeat(np.arange(len(rows)), rows)[:, None]
        counted = np.bincount(cells_TK.ravel(), minlength=batch * experts)
        counts_BE = counted.astype(np.float32).reshape(batch, experts)
        row = self._shape.moe_rows[view.layer]
        if row == 0 and self._match == "iteration":
            self._products_BN[:] = 0
        first = row * experts
        self._rEAM_BX[:, first : first + experts] += counts_BE
        self._products_BN += self._collection.products(counts_BE, first)

    def asked(self, view: LayerView) -> bool:
        """Return whether the collection has a past request to match."""
        return self._collection.size > 0

    def op(self, view: LayerView) -> Op:
        """Return the cost of the product of each sequence's matrix with the whole collection."""
        compared = len(view.forward.sequences) * self._collection.size
        return Op(OpKind.PREDICT, view.layer, (1,), network=(self._rEAM_BX.shape[1], compared))

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Return the tokens of each expert in the closest matrices, ``[1, E]`` for every layer."""
        products_BN = self._products_BN[: len(view.forward.sequences)]
        if self._entries == 1:
            closest = products_BN.argmax(axis=1)
        else:
            closest = np.argsort(-products_BN, axis=1, kind="stable")[:, : self._entries].ravel()
        if closest.tolist() != self._closest:  # the match rarely changes between layers
            self._closest = closest.tolist()
            layers = self._shape.moe_layers
            counts_LTE = self._collection.total(closest).reshape(len(layers), 1, -1)
            self._expected = dict(zip(layers, counts_LTE, strict=True))
        return self._expected


@dataclass(kw_only=True)
class MatchedPrefetch(Prefetching):
    """Fetches experts that similar requests used in later layers, likely and near ones first.

    Attributes:
        match: the matrix compared with past requests: of this ``iteration`` (iEAM) or of the whole
            ``request`` (rEAM).
        entries: how many of the closest requests are summed.
        capacity: most past requests that are stored.
        decay: the divisor of a layer's distance: ``L`` layers, or ``L+1``.
        budget: absent experts requested in each layer; 0 is all.
    """

    match: Literal["iteration", "request"] = option("iteration", searched=True)
    entries: int = option(1, low=1, searched=(1, 16), scale="log")
    capacity: int = option(120, low=1, high=10_000, searched=(16, 2048), scale="log")
    decay: Literal["L", "L+1"] = "L"
    budget: int = option(8, low=0, searched=(1, 64), scale="log")

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 120
    reads_scores = False  # `observe` reads chosen experts only

    def __post_init__(self) -> None:
        super().__post_init__()
        self._calibrated: list[np.ndarray] = []

    @property
    def learnt(self) -> Mapping[str, str]:
        """Number of requests in the collection before the run."""
        return {"requests": str(min(len(self._calibrated), self.capacity))}

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """Keep the texts' activation matrices as those of past requests."""
        self._calibrated = [activation_matrix(text, shape.num_experts) for text in sequences]

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with a collection of the calibration texts only, routed by this model."""
        layers, experts = len(shape.moe_layers), shape.num_experts
        collection = Collection(self.capacity, layers * experts)
        for counts_LE in self._calibrated:
            known = counts_LE.shape
            require_learnt_for("prefetch=activation-match was calibrated with", shape, known)
            collection.insert(counts_LE.ravel())
        self._similar = SimilarRequests(shape, collection, self.match, self.entries)
        self._forecast: Forecast | None = None
        self._held_DE = cache.held_all.reshape(shape.num_layers, experts)
        #: 1 - (i - l) / L, by l and i, both counted over layers with experts.
        row_D = np.array([shape.moe_rows.get(layer, 0) for layer in range(shape.num_layers)])
        divisor = layers + (self.decay == "L+1")
        self._proximity_LD = 1 - (row_D - np.arange(layers)[:, None]) / divisor
        self._fetches = [Fetch(i, e) for i in range(shape.num_layers) for e in range(experts)]

    @property
    def predictor(self) -> Predictor | None:
        """The match with past requests, or None before a run has begun."""
        return self._similar if hasattr(self, "_similar") else None

    def begin_sequences(self, prompts: Prompts) -> None:
        """Start empty rEAMs for the batch's requests."""
        self._similar.begin(len(prompts.lengths))

    def end_sequences(self) -> None:
        """Add the batch's requests to the collection."""
        self._similar.end()

    def observe(self, view: LayerView) -> None:
        """Update iEAM and rEAM."""
        self._similar.observe(view)

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return absent experts of later layers by p · (1 - (i - l) / L); ties by layer and id."""
        if forecast is not self._forecast:
            self._forecast, self._p_DE = forecast, shares(forecast, view.shape)
        later = view.layer + 1
        priority_DE = self._p_DE[later:] * ~self._held_DE[later:]
        priority_DE *= self._proximity_LD[view.shape.moe_rows[view.layer], later:, None]
        first = later * view.shape.num_experts
        return [self._fetches[first + key] for key in largest(priority_DE.ravel(), self.budget)]


@dataclass(kw_only=True)
class ActivationAware(Eviction):
    """Evicts the expert with the least (p + ε) · (1 - i / L), where i is its layer.

    p is from the last prediction, 0 for layers without one; before any prediction it is the share
    of each expert in what the running requests have used so far.

    ``epsilon`` is ε, which orders experts with p = 0: those of later layers are evicted first.
    """

    epsilon: float = option(1e-8, low=0)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without a prediction and without used experts."""
        self._shape = shape
        row_D = np.array([shape.moe_rows.get(layer, 0) for layer in range(shape.num_layers)])
        self._decay_D = 1 - row_D / len(shape.moe_layers)
        self._forecast: Forecast = {}
        self.begin_sequences(Prompts(()))

    def begin_sequences(self, prompts: Prompts) -> None:
        """Reset the counts of used experts for the new requests."""
        layers, experts = self._shape.moe_layers, self._shape.num_experts
        self._used = {layer: np.zeros((1, experts)) for layer in layers}
        self._changed = True

    def foresee(self, forecast: Forecast) -> None:
        """Use the new prediction from now on."""
        if forecast is not self._forecast:
            self._forecast, self._changed = forecast, True

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count the layer's used experts once, while there is no prediction."""
        if not self._forecast:
            self._used[layer][0, list(experts)] += 1
            self._changed = True

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the least (p + ε) · (1 - i / L); ties to the lowest key."""
        if self._changed:
            p_DE = shares(self._forecast or self._used, self._shape)
            self._values = ((p_DE + self.epsilon) * self._decay_D[:, None]).ravel()
            self._changed = False
        return least(self._values, allowed)


@dataclass(kw_only=True)
class MoEInfinity(System):
    """MoE-Infinity with the paper's policies for its decisions."""

    paper = "arXiv 2401.14361"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=MatchedPrefetch)
    evict: Eviction = field(default_factory=ActivationAware)

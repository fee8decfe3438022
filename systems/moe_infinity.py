"""MoE-Infinity: what is prefetched and what is evicted follows from requests that were alike.

"MoE-Infinity: Efficient MoE Inference on Personal Machines with Sparsity-Aware Expert Cache"
(L. Xue, Y. Fu, Z. Lu, C. Sun, L. Mai, M. Marina, arXiv 2401.14361v3, §4.5-4.7 and Algorithm 1).  A
request uses few of a model's experts again and again, and requests that use the same experts in the
first layers use the same ones in the later ones.  So the activations of past requests are kept; in
every layer the most similar one says which experts the later layers will use.

    paper                                       here
    ─────                                       ────
    iEAM, rEAM: tokens that each expert got,    SimilarRequests.observe: ``prefetch.match`` says
      L × E, in this iteration, this request      which of the two is compared
    EAMC: rEAMs of past requests, with a fixed  Collection; ``prefetch.capacity``
      capacity; a full one replaces the most
      similar matrix, which keeps it diverse
    predict: the closest by cosine, their       SimilarRequests.forecast; ``prefetch.entries`` says
      cells summed, each row normalised: p        how many; `shares`
    priority p · (1 - (i - l) / L), i > l       MatchedPrefetch.prefetch
    continuous prefetch queue                   ``speculative``: every layer's order replaces the
                                                  last one's; needed loads go first and interrupt
                                                  no copy that is under way
    eviction: the least (p + ε) · (1 - i / L),  ActivationAware, over all layers
      which keeps early layers: they leave no
      time for prefetching

l is the current layer, i any layer, L how many have experts.  All of this happens in each layer of
each pass, prefill too, and to every sequence of a batch; nothing is computed on the host.

The match is charged as the product that it is: each live sequence's L·E counts with every stored
matrix, fp32, on the host.  The control thread waits for it, so all of it is on the critical path:
``lanes.host`` in a run's document (and in ``decode`` of it) is the time of all matches, as nothing
else of this system runs there; what of it the device felt is in the stall ``control``.  To submit
and to read one costs the control thread what any operation does.  The paper's 21 us for 1000
matrices and 226 us for 10,000 stand beside the charge in `moebench machines components`.

Deviations and readings, where the paper is silent:

- The collection begins with the rEAMs of calibration texts, as FineMoE's authors filled it; 120 of
  them, for 120 entries served the paper's 290 tasks.  ``--calibrate-texts 1`` nearly begins empty.
- A layer's own loads are submitted before its match: what leaves for them is chosen by the match of
  the layer before.
- The sequences of a batch (the paper's is 1) are matched one by one; their matrices are summed like
  several matched ones.  Equal cosines go to the matrix that is stored first.
- An expert of which no token is expected (p = 0) is not prefetched.  Only absent experts are asked
  for, so a document's ``prefetch.all_of_top_k`` says nothing about the prediction.
- ``prefetch.budget`` experts are asked for at once.  The next layer asks anew before the link has
  begun more than a few of them: on S1 to S3 asking for all changes no latency.
- ε is 1e-8, as in the authors' code of 2024.  Any that is far below 1 / tokens does the same: it
  orders those with p = 0.  That code divides the distance by L + 1: ``prefetch.decay=L+1``.
- Before the first prediction, and in systems without one, p is what the running requests have used
  so far, a pass of a layer counting once.
- The paper does not say which experts fill the cache at first: as in `moe-ondemand`, the lowest ids
  of every layer.
- Left out: several GPUs, and the SSD below host memory (which is here as for any other system).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, Prompts
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
from moebench.systems.policies.checks import require_at_least, require_learnt_for
from moebench.systems.policies.evict import least
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.route import ExactRouting


def activation_matrix(text: RoutedSequence, experts: int) -> np.ndarray:
    """A text's rEAM: how many of its tokens each expert of each layer got, ``[L, E]``."""
    layers = text.ids_TLK.shape[1]
    cells_TLK = text.ids_TLK + experts * np.arange(layers)[:, None]
    return np.bincount(cells_TLK.ravel(), minlength=layers * experts).reshape(layers, experts)


def shares(forecast: Forecast, shape: ModelShape) -> np.ndarray:
    """p: each expert's share of what its layer is expected to use; 0 if nothing is.

    ``[D, E]`` over all layers of the decoder: rows of those without experts are 0.
    """
    p_DE = np.zeros((shape.num_layers, shape.num_experts))
    if forecast:
        expected_LTE = np.concatenate([*forecast.values()])
        expected_LE = expected_LTE.reshape(len(forecast), -1, shape.num_experts).sum(axis=1)
        total_L = expected_LE.sum(axis=1, keepdims=True)
        p_DE[[*forecast]] = expected_LE / np.maximum(total_L, np.finfo(np.float32).tiny)
    return p_DE


def largest(values: np.ndarray, most: int) -> list[int]:
    """Where the largest positive values are, descending, ties in order; all if ``most`` is 0."""
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
    """EAMC: activation matrices of past requests, each as X = L · E cells.

    Args:
        capacity: N, how many are kept.
    """

    def __init__(self, capacity: int, cells: int) -> None:
        self.size, self._capacity = 0, capacity
        self._counts_NX = np.zeros((capacity, cells), dtype=np.float32)
        #: The same as unit vectors, a column each: a layer's cells of all of them lie together.
        self._units_XN = np.zeros((cells, capacity), dtype=np.float32)

    def insert(self, counts_X: np.ndarray) -> None:
        """Store a matrix; where there is no room, in place of the most similar one."""
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
        """What cells from ``first`` on add to the product with each stored direction, ``[B, N]``.

        Over the length of what is compared, which is the same for all, this is the cosine.
        """
        cells = slice(first, first + counts_BC.shape[1])
        found: np.ndarray = counts_BC @ self._units_XN[cells, : self.size]
        return found

    def total(self, entries: np.ndarray) -> np.ndarray:
        """The cells of some stored matrices, summed, ``[X]``."""
        found: np.ndarray = self._counts_NX[entries].sum(axis=0)
        return found


class SimilarRequests(Predictor):
    """Expects what the most similar past requests used (Algorithm 1).

    Each layer adds its counts to the products of the layers before, which comes to the same as the
    whole product that is charged.

    Args:
        collection: past requests; those that end join it.
        match: which matrix is compared: of the ``iteration`` or the ``request``.
        entries: how many of the closest are summed, for each sequence.
    """

    lane: ClassVar[Lane] = Lane.HOST
    in_prefill: ClassVar[bool] = True

    def __init__(self, shape: ModelShape, collection: Collection, match: str, entries: int) -> None:
        self._shape, self._collection = shape, collection
        self._match, self._entries = match, entries
        self.begin(0)

    def begin(self, sequences: int) -> None:
        """A batch begins: its rEAMs are empty."""
        cells = len(self._shape.moe_layers) * self._shape.num_experts
        self._rEAM_BX = np.zeros((sequences, cells), dtype=np.float32)
        self._products_BN = np.zeros((sequences, self._collection.size), dtype=np.float32)
        self._closest: list[int] = []
        self._expected: Forecast = {}

    def end(self) -> None:
        """The batch has ended: its rEAMs belong to past requests."""
        for counts_X in self._rEAM_BX:
            self._collection.insert(counts_X)

    def observe(self, view: LayerView) -> None:
        """Count the tokens that each expert of this layer got, for each sequence."""
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
        """Once there is a past request."""
        return self._collection.size > 0

    def op(self, view: LayerView) -> Op:
        """A product of each sequence's matrix with the whole collection."""
        compared = len(view.forward.sequences) * self._collection.size
        widths = (self._rEAM_BX.shape[1], compared)
        return Op(OpKind.PREDICT, view.layer, (1,), network=widths)

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """How many tokens each expert of every layer got in the closest matrices, ``[1, E]``."""
        products_BN = self._products_BN[: len(view.forward.sequences)]
        if self._entries == 1:
            closest = products_BN.argmax(axis=1)
        else:
            closest = np.argsort(-products_BN, axis=1, kind="stable")[:, : self._entries].ravel()
        if closest.tolist() != self._closest:  # mostly it stays for many layers
            self._closest = closest.tolist()
            layers = self._shape.moe_layers
            counts_LTE = self._collection.total(closest).reshape(len(layers), 1, -1)
            self._expected = dict(zip(layers, counts_LTE, strict=True))
        return self._expected


@dataclass(kw_only=True)
class MatchedPrefetch(Prefetching):
    """Fetches what similar requests used in later layers, likely and near ones first.

    Attributes:
        match: what is compared with past requests: this ``iteration`` (iEAM) or all of this
            ``request`` (rEAM).
        entries: how many of the closest requests are summed.
        capacity: requests that are kept.
        decay: what the distance of a layer is divided by: ``L`` layers, or ``L+1``.
        budget: experts asked for in each layer, beside those that are on the device; 0 is all.
    """

    match: Literal["iteration", "request"] = "iteration"
    entries: int = 1
    capacity: int = 120
    decay: Literal["L", "L+1"] = "L"
    budget: int = 8

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 120
    reads_scores = False  # it observes chosen experts alone

    def __post_init__(self) -> None:
        require_at_least("prefetch", self, entries=1, capacity=1, budget=0)
        self._calibrated: list[np.ndarray] = []

    @property
    def learnt(self) -> Mapping[str, str]:
        """How many requests the collection begins with."""
        return {"requests": str(min(len(self._calibrated), self.capacity))}

    def calibrate(
        self,
        sequences: Sequence[RoutedSequence],
        shape: ModelShape,
        artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Take these texts for past requests."""
        self._calibrated = [activation_matrix(text, shape.num_experts) for text in sequences]

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with the calibration texts alone.

        Raises:
            UsageError: they are another model's.
        """
        layers, experts = len(shape.moe_layers), shape.num_experts
        collection = Collection(self.capacity, layers * experts)
        for counts_LE in self._calibrated:
            learnt = "prefetch=activation-match was calibrated with"
            require_learnt_for(learnt, shape, counts_LE.shape)
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
        """The match with past requests, once there is a run."""
        return self._similar if hasattr(self, "_similar") else None

    def begin_sequences(self, prompts: Prompts) -> None:
        """New requests."""
        self._similar.begin(len(prompts.lengths))

    def end_sequences(self) -> None:
        """They are past."""
        self._similar.end()

    def observe(self, view: LayerView) -> None:
        """Update iEAM and rEAM."""
        self._similar.observe(view)

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Absent experts of later layers by p · (1 - (i - l) / L); ties by layer and id."""
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

    p is what was predicted last, 0 of layers of which nothing was; without a prediction, what the
    running requests have used so far.

    Attributes:
        epsilon: ε, which orders experts that nobody expects: of these, later layers leave first.
    """

    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        require_at_least("evict", self, epsilon=0)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Nothing is expected and nothing was used."""
        self._shape = shape
        row_D = np.array([shape.moe_rows.get(layer, 0) for layer in range(shape.num_layers)])
        self._decay_D = 1 - row_D / len(shape.moe_layers)
        self._forecast: Forecast = {}
        self.begin_sequences(Prompts(()))

    def begin_sequences(self, prompts: Prompts) -> None:
        """New requests have used nothing."""
        layers, experts = self._shape.moe_layers, self._shape.num_experts
        self._used = {layer: np.zeros((1, experts)) for layer in layers}
        self._changed = True

    def foresee(self, forecast: Forecast) -> None:
        """Go by what is expected from now on."""
        if forecast is not self._forecast:
            self._forecast, self._changed = forecast, True

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count a pass of the layer."""
        if not self._forecast:
            self._used[layer][0, list(experts)] += 1
            self._changed = True

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """The least value; ties to the lowest layer, then id."""
        if self._changed:
            p_DE = shares(self._forecast or self._used, self._shape)
            self._values = ((p_DE + self.epsilon) * self._decay_D[:, None]).ravel()
            self._changed = False
        return least(self._values, allowed)


@dataclass(kw_only=True)
class MoEInfinity(System):
    """The complete system."""

    paper = "arXiv 2401.14361"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=MatchedPrefetch)
    evict: Eviction = field(default_factory=ActivationAware)

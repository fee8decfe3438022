"""SiDA-MoE: a network predicts every layer's experts from the tokens, before a batch is computed.

"SiDA: Sparsity-Inspired Data-Aware Serving for Efficient and Scalable Large Mixture-of-Experts
Models" (Z. Du et al., MLSys 2024, arXiv 2310.18859), and its code (timlee0212/SiDA-MoE 7528828).
Routers are replaced by one *hash function*, a network that reads the embeddings of a batch's tokens
and says which experts each layer will use, and with which weight.  So the experts are on the device
before the batch begins, and no layer waits for a gate.

    paper (section 3)                               moebench
    ─────────────────                               ────────
    hash function H: LSTM, SparseMax attention      `systems.learn.hash_function`
    trained by truncated knowledge distillation     the same, on texts other than the run's
    hash table: experts and factor alpha            `HashRouting.plan_pass`, once a pass
      of each token and layer
    routers are offloaded, never run                ``routes_passes``: gates cost nothing
    inference thread waits for the table            the control thread waits for the prediction
    experts of the table are loaded                 `PredictedUnion.opening`, committed
    FIFO when the budget is full                    `FirstNotPredicted`
    all experts in main memory at first             PlaceNothing
    code: experts not in the table go back first    ``--variant shipped``: `PredictedUnion.leaving`,
                                                      blocking copies
    code: .5, .25, .25 of the probabilities         ``route.weights=code``

    for each pass:  table = H(embeddings);  load union(table) - device;  for each layer: experts of
                    the table, weighed by alpha

Deviations and readings:

- Answers are written token by token; the paper classifies whole texts with encoders and never
  decodes.  The LSTM and the attention keep their state, and are asked at the start of each pass,
  when its token is known.  So the prediction's time precedes layer 0 of each token.
- The paper's second thread computes the next batch's table meanwhile (code: a queue of 16).  Within
  one batch of prompts there is no next batch, so that this would change nothing.
- Each row uses the model's own number of experts.  The paper uses one on SST2 and three on MRPC and
  MultiRC; the code weighs three by .5, .25 and .25 times their probability.  ``route.weights=code``
  does so with other numbers too: one half for the first expert, the rest equally for the others.
- alpha is the predicted probability, renormalised where the model renormalises its own top-k, and
  by SparseMixer's rule where the model has that.  Gates whose scores are no distribution (sigmoid)
  are learnt as one.
- If more experts are predicted than there are slots, those of the first layers are loaded before
  the pass, and the others when their layer begins.
- The oldest expert leaves that this pass does not need any more; FIFO alone would evict experts
  that were just loaded for later layers.
- The network that is charged has the paper's widths, d -> 256, two LSTM layers and heads for all
  layers, as one product for all rows in fp32: the recurrence of a prompt's tokens is not charged.
  The network that is trained has ``route.width``.
- Replays have no embeddings of tokens, and are refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from moebench.substrate.engine.decisions import Fetch, ForwardPass, LayerView, Prompts, Routed
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Assignment, Eviction, Placement, Prefetching, Routing
from moebench.substrate.engine.system import System
from moebench.substrate.machines.protocol import Op, OpKind
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import GateKind, ModelShape
from moebench.substrate.terms import Ids, Learnt, Phase, RoutedSequence, Scores
from moebench.systems.learn.hash_function import HashFunction, HashOptions, trained
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.evict import FirstInFirstOut
from moebench.systems.policies.place import PlaceNothing

#: Width of the paper's network, whose cost is charged.
PAPER_WIDTH = 256

#: Gates that weigh a token's experts relative to each other.
RENORMALISED = {
    GateKind.SOFTMAX_TOPK_RENORM, GateKind.TOPK_SOFTMAX, GateKind.SIGMOID_BIAS_TOPK_RENORM,
}  # fmt: skip

# ----------------------------------------------------------------------------- the algorithm


def table_of(p_TLE: Scores, k: int) -> tuple[Ids, Scores]:
    """Return the hash table: the k likeliest experts ``[T, L, K]`` and their probabilities."""
    ids_TLK = np.argsort(-p_TLE, axis=2, kind="stable")[..., :k]
    return ids_TLK, np.take_along_axis(p_TLE, ids_TLK, axis=2)


def factors(p_TE: Scores, ids_TK: Ids, shape: ModelShape) -> Scores:
    """Return the weights ``[T, K]`` of predicted experts by the model's own rule."""
    if shape.gate is GateKind.SPARSEMIXER:  # weighs each pick against near experts
        import torch

        from moebench.substrate.models.layers import gate_weights

        p = torch.from_numpy(np.maximum(p_TE, np.finfo(np.float32).tiny))
        found: Scores = gate_weights(shape, p.log(), p, torch.from_numpy(ids_TK)).numpy()
        return found
    p_TK = np.take_along_axis(p_TE, ids_TK, axis=1)
    if shape.gate in RENORMALISED:
        p_TK = p_TK / p_TK.sum(axis=1, keepdims=True)
    return p_TK * shape.routed_scaling_factor


def code_factors(p_TK: Scores) -> Scores:
    """Return the weights ``[T, K]`` of the code: a part of each expert's probability.

    The first expert gets half of its own, the others equal parts of the other half.
    """
    k = p_TK.shape[1]
    parts_K = np.array([1.0]) if k == 1 else np.array([0.5] + [0.5 / (k - 1)] * (k - 1))
    found: Scores = p_TK * parts_K
    return found


def union_of(ids_TLK: Ids, layers: Sequence[int]) -> list[tuple[int, int]]:
    """Return all predicted experts (layer, expert), by layer and id."""
    return [
        (layer, expert)
        for row, layer in enumerate(layers)
        for expert in np.unique(ids_TLK[:, row]).tolist()
    ]


# ----------------------------------------------------------------------------- the policies


@dataclass(kw_only=True)
class HashRouting(Routing):
    """Uses the experts that a network predicts from the embeddings of a pass's tokens.

    Attributes:
        weights: of the predicted experts: by the model's own rule from the ``predicted``
            probabilities, or as the authors' ``code`` has them.
        width: width of the network that is trained and run.
        epochs: most epochs; training stops early.
        seed: random seed of weights and order.
    """

    weights: Literal["predicted", "code"] = "predicted"
    width: int = option(PAPER_WIDTH, low=1, high=65_536)
    epochs: int = option(40, low=1, high=100_000)
    seed: int = option(0, low=0)

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 64  # the paper has a data set's whole train split
    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"scores", "token_embeddings"})
    reads_token_embeddings: ClassVar[bool] = True
    reads_scores = False
    quick: ClassVar[Mapping[str, str]] = {"width": "8", "epochs": "1"}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._network: HashFunction | None = None
        self._weights: dict[int, Scores] = {}
        self._ids: dict[int, Ids] = {}
        #: The predicted experts of the pass (layer, expert), by layer and id.
        self.union: list[tuple[int, int]] = []

    def lossless_at(self, alpha: float) -> bool:
        """Return False: the model's routers are never used."""
        return False

    @property
    def exact_prefill(self) -> bool:
        """Whether prompts are routed exactly: they are not."""
        return False

    @property
    def learnt(self) -> Mapping[str, str]:
        """Notes on the network's training, and its loss on held-out texts."""
        return {} if self._network is None else self._network.note

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """Train the network, or load the one trained on the same texts."""
        options = HashOptions(self.width, self.epochs, self.seed)
        self._network = trained(sequences, shape.num_experts, options, artefacts, progress)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Refuse a network of another model."""
        assert self._network is not None, "a policy that calibrates is calibrated before it starts"
        known = (self._network.num_layers, self._network.num_experts)
        require_learnt_for("route=hash-function was trained for", shape, known)
        self._shape = shape

    def begin_sequences(self, prompts: Prompts) -> None:
        """Begin a reading for each text of the batch."""
        assert self._network is not None
        self._readings = [self._network.begin() for _ in prompts.lengths]

    @property
    def routes_passes(self) -> bool:
        """Whether all layers of a pass are routed at its start: they are."""
        return True

    def pass_op(self, rows: int) -> Op:
        """Return the cost of the paper's network for all rows.

        Two LSTM layers of width w have 8·w² weights each, as have the products w -> 8w -> w.
        """
        shape, w = self._shape, PAPER_WIDTH
        heads = len(shape.moe_layers) * shape.num_experts
        network = (shape.hidden_size, w, 8 * w, w, w, heads)
        return Op(OpKind.PREDICT, shape.moe_layers[0], (rows,), network=network)

    def plan_pass(self, forward: ForwardPass, embedding_TH: np.ndarray | None) -> None:
        """Predict the experts of all layers for the rows of a pass, text by text."""
        assert self._network is not None
        assert embedding_TH is not None
        texts = np.split(embedding_TH, np.cumsum(forward.sequences)[:-1])
        p_TLE = np.concatenate([
            self._network.read(text, reading)
            for text, reading in zip(texts, self._readings, strict=True)
        ])  # fmt: skip
        ids_TLK, p_TLK = table_of(p_TLE, self._shape.top_k)
        layers = self._shape.moe_layers
        self.union = union_of(ids_TLK, layers)
        for row, layer in enumerate(layers):
            ids_TK = self._ids[layer] = np.ascontiguousarray(ids_TLK[:, row])
            own = self.weights == "predicted"
            self._weights[layer] = (
                factors(p_TLE[:, row], ids_TK, self._shape) if own else code_factors(p_TLK[:, row])
            )

    def route(self, view: LayerView) -> Routed:
        """Return the predicted experts of the layer, with the predicted weights."""
        ids_TK = self._ids[view.layer]
        return Routed(ids_TK, ids_TK, weights_TK=self._weights[view.layer])


@dataclass(kw_only=True)
class PredictedUnion(Prefetching):
    """Loads the experts that `HashRouting` predicted for a pass, before the pass begins.

    It loads nothing where layers are not routed at the start of a pass.

    Attributes:
        send_back: first copy all other experts back to the host, as the authors' code does.
    """

    send_back: bool = False

    discipline = "committed"
    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._route: Routing | None = None

    def beside(self, route: Routing) -> None:
        """Note the system's routing, whose predictions are loaded."""
        self._route = route

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Note the cache, whose slots limit what is loaded at once."""
        self._cache, self._shape = cache, shape
        #: The union that `wanted` was made of, and its result.
        self._of: list[tuple[int, int]] | None = None
        self._wanted: list[tuple[int, int]] = []

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """The predicted experts that fit on the device together, by layer; one list for a pass."""
        found = self._route.union if isinstance(self._route, HashRouting) else []
        if found is not self._of:
            self._of, self._wanted = found, self._fitting(found)
        return self._wanted

    def _fitting(self, found: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if self._cache.scope == "global":
            return found[: self._cache.slots]
        pools = dict(zip(self._shape.moe_layers, self._cache.pools, strict=True))
        by_layer: dict[int, list[tuple[int, int]]] = {}
        for layer, expert in found:
            by_layer.setdefault(layer, []).append((layer, expert))
        return [key for layer, keys in by_layer.items() for key in keys[: pools[layer]]]

    def leaving(self, phase: Phase) -> Sequence[tuple[int, int]]:
        """Return the experts on the device that were not predicted, if they are sent back."""
        if not self.send_back:
            return ()
        stay = {*self.wanted}
        experts = range(self._shape.num_experts)
        return [
            (layer, e)
            for layer in self._shape.moe_layers
            for e in experts
            if (layer, e) not in stay and self._cache.holds(self._cache.key(layer, e))
        ]

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """Return the predicted experts, by layer; those on the device are skipped."""
        return [Fetch(*key) for key in self.wanted]


@dataclass(kw_only=True)
class FirstNotPredicted(FirstInFirstOut):
    """Evicts the expert that arrived first among those that the pass does not need any more.

    Without `PredictedUnion`, this is first in, first out.

    Attributes:
        write_back: copy an evicted expert back to the host, as the authors' code does.
    """

    write_back: bool = False

    @property
    def writes_back(self) -> bool:  # type: ignore[override]
        """Whether an evicted expert is copied back."""
        return self.write_back

    def __post_init__(self) -> None:
        super().__post_init__()
        self._union: PredictedUnion | None = None

    def beside(self, union: PredictedUnion) -> None:
        """Note the system's prefetching, whose experts stay until their layer has used them."""
        self._union = union

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin before the first layer of a pass."""
        super().start(shape, cache)
        self._cache, self._layers = cache, shape.moe_layers
        self._used = self._layers[-1]
        #: What the pass still needs, as flags of keys; of which list, from which layer on.
        self._needed: Mask = np.zeros(0, dtype=bool)
        self._needed_of: tuple[list[tuple[int, int]], int] | None = None

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Note the layer that the pass has reached."""
        self._used = layer

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the oldest allowed key that is not needed, or else the oldest allowed key."""
        union = self._union
        if union is None:
            return super().victim(allowed, incoming)
        spared = allowed & ~self._still_needed(union.wanted, len(allowed))
        found = super().victim(spared, incoming)
        return super().victim(allowed, incoming) if found is None else found

    def _still_needed(self, wanted: list[tuple[int, int]], keys: int) -> Mask:
        """Return which keys are wanted by layers that the pass has not reached."""
        # Between two passes, all layers are still to come.
        reached = -1 if self._used == self._layers[-1] else self._used
        known = self._needed_of
        if known is None or known[0] is not wanted or known[1] != reached:
            self._needed, self._needed_of = np.zeros(keys, dtype=bool), (wanted, reached)
            later = [self._cache.key(layer, e) for layer, e in wanted if layer > reached]
            self._needed[later] = True
        return self._needed


# ----------------------------------------------------------------------------- the system


@dataclass(kw_only=True)
class SiDA(System):
    """SiDA-MoE with the paper's policies for its decisions."""

    paper = "MLSys 2024, arXiv 2310.18859"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=HashRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=PredictedUnion)
    evict: Eviction = field(default_factory=FirstNotPredicted)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.prefetch, PredictedUnion):
            self.prefetch.beside(self.route)
            if isinstance(self.evict, FirstNotPredicted):
                self.evict.beside(self.prefetch)

    def why_not(self, shape: ModelShape, batch: int) -> str | None:
        """Return that weights of an expert's input are not defined, where a model has these."""
        if shape.weighs_input:
            return "the hash function weighs experts' outputs, and this model weighs their inputs"
        return super().why_not(shape, batch)


@dataclass(kw_only=True)
class ShippedSiDA(SiDA):
    """SiDA-MoE as its code runs: other experts are copied back first, and every copy blocks."""

    route: Routing = field(default_factory=lambda: HashRouting(weights="code"))
    prefetch: Prefetching = field(default_factory=lambda: PredictedUnion(send_back=True))
    evict: Eviction = field(default_factory=lambda: FirstNotPredicted(write_back=True))
    blocking_copies: bool | None = True
    pinned_copies: bool | None = False

"""ProMoE: trained predictors prefetch experts of later layers; needed loads preempt prefetches.

"ProMoE: Fast MoE-based LLM Serving using Proactive Caching" (X. Song, Z. Zhong, R. Chen, H. Chen,
arXiv 2410.22134).  A cache that loads on a miss puts the whole load on the critical path.  A small
network on a layer's state predicts most of the experts that a later layer will choose, so these are
fetched before the layer, and a fetch never delays a load that is needed at once.

    paper                                        moebench
    ─────                                        ────────
    learned predictor for each layer, trained    systems.learn.state_mlp, LearnedStates
      offline on the layer's intermediate state
    stride: a later layer than the next one, so  ``prefetch.stride``; a token's first layers are
      that there is time to predict and fetch      predicted from the previous token's last layer
    chunked prefetching                          ``prefetch.chunks``
    early preemption: missing experts chosen by  ``speculative``: needed loads run before queued
      the gate are loaded first, mid-expert        fetches and before a fetch's remaining chunks
    reordered inference: cached experts first    `LoadAll`, as in other systems
    LRU cache of each layer's experts            `LeastRecentlyUsed`, ``scope``

A predictor runs on the host in a separate thread: the control thread continues, and fetches are
queued when the prediction is complete.  The charge is for the full model's network: its state's
width, two hidden layers of 1024 (``prefetch.width``) and the experts of its target layers, fp32, by
the host's bandwidth.  The network that is actually trained and run has ``prefetch.trained_width``.

Accuracy: ``learnt.prefetch`` in a run's provenance has the recall of both kinds of predictors on
held-out texts: the share of chosen experts among equally many likeliest ones.
``prefetch.all_of_top_k`` and ``prefetch.at_least_one`` are measured in the run.  The paper reports
84.7 % on average, and about 5 % less for two layers further ahead.

Deviations and readings:

- The authors' repository is not public, and the paper's text was not available.  Where its
  summaries are silent, moebench follows a fork of the code with changes (huwf5/promoe): two hidden
  layers of 1024; prediction on the host; a token's first layers predicted from the previous token's
  last state; no prediction in prefill; an expert's three matrices as the chunks; as many experts as
  a token uses; LRU in a cache of equal size for each layer.
- In the fork a network predicts up to six layers, of which only the farthest needed one is read;
  here each network predicts only the layer that is read.
- In the fork the state is the output of an MoE layer, in moebench the gate's input: it is known
  earlier by the time of a layer's experts, and traces hold it.
- The default stride is the two layers of the paper's example; the fork's default of three counts
  from a layer's output.
- The copy of a state to the host (a few kB) is not charged.
- In a batch each row's k likeliest experts are fetched, highest probability in any row first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, Prompts, fetches
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
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Learnt, RoutedSequence
from moebench.systems.learn.state_mlp import StateMLPOptions, StateMLPs, targets, trained
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.prefetch import ranked
from moebench.systems.policies.route import ExactRouting


def likeliest(p_TE: np.ndarray, experts: int) -> list[int]:
    """Return the union of the rows' likeliest ``experts`` experts, likeliest first; ties by id."""
    wanted = set(np.argsort(-p_TE, axis=1, kind="stable")[:, :experts].ravel().tolist())
    return [e for e in ranked(p_TE) if e in wanted]


@dataclass(kw_only=True)
class StridePrefetch(Prefetching):
    """Fetches the experts predicted for the layer ``stride`` layers ahead, nearest layer first.

    Earlier requests for nearer layers that have not begun stay in the queue, before the new ones.

    Attributes:
        stride: how many MoE layers ahead to predict.
        experts: how many experts to fetch for each row of a layer; 0 is the model's top-k.
        chunks: number of parts of a transfer; needed loads run between them.
        width: width of the predictors' two hidden layers that is charged.
        trained_width: width of the hidden layers that are actually trained and run.
        tokens: most tokens to train on.
        epochs: most epochs; training stops early.
        seed: random seed of weights and order.
    """

    stride: int = option(2, low=1, searched=(1, 8))
    experts: int = option(0, low=0, searched=(1, 16), scale="log")
    chunks: int = option(3, low=1, high=64, searched=(1, 16), scale="log")
    width: int = option(1024, low=1, high=65_536)
    trained_width: int = option(128, low=1, high=8192)
    tokens: int = option(4096, low=4)
    epochs: int = option(30, low=1, high=100_000)
    seed: int = option(0, low=0)

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 64  # enough for `tokens`; the paper states no number
    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"hidden"})
    trains_on_prompts: ClassVar[bool] = False
    reads_hidden: ClassVar[bool] = True
    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._predictor: LearnedStates | None = None

    @property
    def learnt(self) -> Mapping[str, str]:
        """Notes on the predictors' training and their recall on held-out texts."""
        return {} if self._predictor is None else self._predictor.networks.note

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """Train the predictors, or load those trained on the same texts."""
        chosen = (self.stride, self.trained_width, self.tokens, self.epochs, self.seed)
        options = StateMLPOptions(*chosen)
        networks = trained(sequences, shape.num_experts, options, artefacts, progress)
        self._predictor = LearnedStates(networks, (shape.hidden_size, self.width, self.width))

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin without predictions; refuse predictors of another model."""
        self._expected: dict[int, list[Fetch]] = {}
        if self._predictor is not None:
            networks = self._predictor.networks
            known = (networks.num_layers, networks.num_experts)
            require_learnt_for("prefetch=stride was trained for", shape, known)

    def begin_sequences(self, prompts: Prompts) -> None:
        """Forget the predictions of the last batch."""
        self._expected = {}

    @property
    def predictor(self) -> Predictor | None:
        """The trained networks' predictor, or None before training."""
        return self._predictor

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return all predicted experts of later layers, next first; then the next token's."""
        expected, layer = self._expected, view.layer
        expected.pop(layer, None)
        for later, p_TE in forecast.items():
            expected[later] = fetches(later, likeliest(p_TE, self.experts or view.shape.top_k))
        order = sorted(expected, key=lambda later: (later <= layer, later))
        return [fetch for later in order for fetch in expected[later]]


class LearnedStates(Predictor):
    """Runs a layer's network on each row's state, on the host, in the background.

    ``charged`` are the widths of the charged network's layers, up to the last hidden layer.
    """

    lane: ClassVar[Lane] = Lane.HOST
    in_background: ClassVar[bool] = True
    wraps: ClassVar[bool] = True

    def __init__(self, networks: StateMLPs, charged: tuple[int, ...]) -> None:
        self.networks, self._charged = networks, charged

    def _targets(self, view: LayerView) -> range:
        layers = len(view.shape.moe_layers)
        return targets(view.shape.moe_rows[view.layer], layers, self.networks.stride)

    def asked(self, view: LayerView) -> bool:
        """Return whether to predict from this layer: in decode, if there is a target layer."""
        return view.phase == "decode" and len(self._targets(view)) > 0

    def op(self, view: LayerView) -> Op:
        """Return the cost of one network for all rows."""
        network = (*self._charged, len(self._targets(view)) * view.shape.num_experts)
        return Op(OpKind.PREDICT, view.layer, (view.forward.rows,), network=network)

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Return the probability that each expert of the target layers is chosen."""
        assert view.hidden_TH is not None
        row, layers = view.shape.moe_rows[view.layer], view.shape.moe_layers
        found = self.networks.probabilities(view.hidden_TH, row)
        return {layers[target]: p_TE for target, p_TE in found.items()}


@dataclass(kw_only=True)
class ProMoE(System):
    """ProMoE with the paper's policies for its decisions."""

    paper = "arXiv 2410.22134"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=StridePrefetch)
    evict: Eviction = field(default_factory=LeastRecentlyUsed)
    scope: Scope = option("layer", searched=True)

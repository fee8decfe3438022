"""DuoServe-MoE: separate schedules for prefill and decode, and a cache of at most k experts.

"DuoServe-MoE: Dual-Phase Expert Prefetch and Cache Scheduling for Efficient MoE LLM Inference"
(Y. Zhang et al., arXiv 2509.07379).  Prefill uses nearly all experts, so they stream through k
slots while earlier ones compute.  A decoded token uses k experts of a layer: a small network
predicts them from earlier layers' experts, and they are loaded while the previous layer computes.

    paper                               moebench
    ─────                               ────────
    preprocess, ExpertMLP         §4    systems.learn.expert_mlp
    GPU expert cache of k         §5.1  DuoServe.most_slots; in U1-U4 for every system: ``slots``
    computation, communication,         the device, link and prediction lanes
      prediction streams          §5.2-3
    first expert during the non-MoE     LearnedPath.opening and .prefetch in prefill
      layers                      §5.2
    State Constructor             §5.3  PathPredictor, on view.forward.history
    first synchronisation point   §5.3  an expert is computed after its transfer; chosen experts
                                        that are missing are loaded after the gate (`LoadAll`)
    second synchronisation point  §5.3  ``committed``: a transfer waits for the prediction and for
                                        the computation that reads its slot

The expert that was loaded first is evicted first (`FirstInFirstOut`), so two slots alternate as in
Fig. 4.  Every transfer is on one stream: a wrong prefetch delays the right expert.

Deviations and readings, where the paper is silent:

- The "first expert" of a layer in prefill is the most popular one: any of Mixtral's eight would do,
  but of 64 experts not every one has a token.
- With one slot (top-1) nothing overlaps; ``slots=2`` is the paper's pipeline.
- An expert whose transfer is under way at the gate is computed when it is complete; resident
  experts compute meanwhile.
- The network shares the device with the model; in moebench its stream does not slow the model's.
  Its seven layers of three kernels take 0.2 ms of launches; the authors measured 0.6 ms (§6.4).
- The paper serves one request at a time (§6.1).  In a batch moebench predicts row by row, and
  fetches the k experts with the highest probability in any row.
- The paper traces 2.5 % of the data set (§6.4: 2,190 texts of SQuAD).  In moebench ExpertMLP is
  small (`prefetch.trained_width`) and trained on 4,096 tokens (`prefetch.tokens`): the decoded
  tokens of 64 texts, 64 each, of the train half of the workload.
- §6.1 compares with "Acc" and MoESys, which are the systems `acc` and `moesys`.  By Table 2 its
  MoESys holds one layer's experts: ``prefetch.buffers=1``, not the two of MoESys's own paper.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, fetches
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
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Phase, RoutedSequence
from moebench.systems.learn.expert_mlp import ExpertMLP, ExpertMLPOptions, trained, widths
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.evict import FirstInFirstOut
from moebench.systems.policies.place import PlaceNothing
from moebench.systems.policies.prefetch import ranked
from moebench.systems.policies.route import ExactRouting


@dataclass(kw_only=True)
class LearnedPath(Prefetching):
    """Fetches one expert ahead in prefill; in decode, the k experts that ExpertMLP predicts (§5).

    Without calibration nothing is predicted: every decoded layer loads after its gate.

    Attributes:
        width: width of ExpertMLP's first hidden layer that is charged for a prediction (§4.2).
        trained_width: width of the network that is actually trained and run; a few thousand tokens
            of a scale model's routing are too few to train a width of 2048.
        tokens: most tokens to train on.
        epochs: most epochs (§6.4); training stops early.
        dropout: dropout rate after each hidden layer (§4.2).
        seed: random seed of weights, order and dropout.
        memory_mb: device memory of the predictor in MB (§6.4).
    """

    width: int = option(2048, low=64, high=65_536)
    trained_width: int = option(256, low=64, high=8192)
    tokens: int = option(4096, low=4)
    epochs: int = option(20, low=1, high=100_000)
    dropout: float = option(0.1, low=0, high=1, below=True)
    seed: int = option(0, low=0)
    memory_mb: int = option(300, low=0)

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 64  # enough for `tokens`: see the module
    trains_on_prompts: ClassVar[bool] = False
    quick: ClassVar[Mapping[str, str]] = {"trained_width": "64", "epochs": "1"}
    discipline = "committed"
    reads_scores = False

    def __post_init__(self) -> None:
        super().__post_init__()
        #: The trained network; None before `calibrate`.
        self.network: ExpertMLP | None = None
        self._predictor: PathPredictor | None = None

    @property
    def device_bytes(self) -> int:
        """Device memory of the predictor and its library, in bytes."""
        return self.memory_mb * 1_000_000

    @property
    def learnt(self) -> Mapping[str, str]:
        """Notes on the training of the predictor, for the run's provenance."""
        return {} if self.network is None else self.network.note

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """Count the matrices and train ExpertMLP, or load it if trained on these texts (§4)."""
        layers, experts = len(shape.moe_layers), shape.num_experts
        chosen = (self.trained_width, self.tokens, self.epochs, self.dropout, self.seed)
        self.network = trained(sequences, experts, ExpertMLPOptions(*chosen), artefacts, progress)
        charged = widths(layers, shape.top_k, experts, self.width)
        self._predictor = PathPredictor(self.network, charged)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Take the popularity of experts from the calibration, which must be of this model."""
        self._popularity = np.zeros((len(shape.moe_layers), shape.num_experts))
        self._rows = shape.moe_rows
        if self.network is None:
            return
        learnt = self.network.matrices.popularity_LE
        require_learnt_for("prefetch=expert-mlp was trained for", shape, learnt.shape)
        self._popularity = learnt

    @property
    def predictor(self) -> Predictor | None:
        """ExpertMLP's predictor, or None before it is trained."""
        return self._predictor

    def opening(self, phase: Phase, layer: int) -> Sequence[Fetch]:
        """Return the first layer's most popular expert in prefill; nothing in decode (§5.3)."""
        return self._first(layer) if phase == "prefill" else ()

    def _first(self, layer: int) -> Sequence[Fetch]:
        return (Fetch(layer, int(self._popularity[self._rows[layer]].argmax())),)

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return the next layer's most popular expert in prefill, its k likeliest in decode."""
        layer = view.next_layer
        assert layer is not None
        if view.phase == "prefill":
            return self._first(layer)
        if layer not in forecast:
            return ()
        return fetches(layer, ranked(forecast[layer])[: view.shape.top_k])


class PathPredictor(Predictor):
    """Runs ExpertMLP on the experts that each row's token has used so far (§5.3).

    The operations of the paper's network are charged, whose layer widths are ``charged``.
    """

    lane: ClassVar[Lane] = Lane.PREDICT

    def __init__(self, network: ExpertMLP, charged: tuple[int, ...]) -> None:
        self._network, self._charged = network, charged

    def op(self, view: LayerView) -> Op:
        """Return the cost of ExpertMLP's seven layers, on the prediction stream."""
        return Op(OpKind.PREDICT, view.layer, (view.forward.rows,), network=self._charged)

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """Return ExpertMLP's probabilities of the next layer's experts for each row."""
        assert view.next_layer is not None
        history, layers = view.forward.history, len(view.shape.moe_layers)
        path_TLK = np.zeros((view.forward.rows, layers, view.shape.top_k), dtype=np.int32)
        path_TLK[:, : len(history)] = np.stack(history, axis=1)
        row = view.shape.moe_rows[view.next_layer]
        return {view.next_layer: self._network.probabilities(path_TLK, row)}


@dataclass(kw_only=True)
class DuoServe(System):
    """DuoServe-MoE with the paper's policies, and at most ``slots`` experts; 0 is k (§5.1)."""

    paper = "arXiv 2509.07379"

    place: Placement = field(default_factory=PlaceNothing)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=LearnedPath)
    evict: Eviction = field(default_factory=FirstInFirstOut)
    slots: int = option(0, low=0, searched=(2, 64), scale="log")

    def most_slots(self, shape: ModelShape) -> int | None:
        """Return the slots: exactly as many as one layer of one token uses (§5.1)."""
        return self.slots or shape.top_k

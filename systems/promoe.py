"""ProMoE: learnt predictors bring experts before their layers ask, and give way to what is needed.

"ProMoE: Fast MoE-based LLM Serving using Proactive Caching" (X. Song, Z. Zhong, R. Chen, H. Chen,
arXiv 2410.22134).  A cache that loads on a miss puts the whole load on the critical path.  A small
network on a layer's state knows most of what a later layer will choose; so experts are fetched
before, and what is not known before is handled so that a fetch never delays what is needed.

    paper                                        here
    ─────                                        ────
    learned predictor for each layer, trained    systems.learn.state_mlp, LearnedStates
      offline on the layer's intermediate state
    stride: a later layer than the next one, so  ``prefetch.stride``; of a token's first layers the
      that there is time to predict and fetch      last layer's state of the token before speaks
    chunked prefetching                          ``prefetch.chunks``
    early preemption: what the gate names and    ``speculative``: before whatever is queued, and
      the cache lacks goes first, mid-expert       before the chunks that a fetch has left
    reordered inference: cached experts first    `LoadAll`, as everywhere here
    LRU cache of each layer's experts            `LeastRecentlyUsed`, ``scope``

A predictor runs on the host in a thread of its own: the control thread goes on, and its fetches are
queued when it has answered.  What is charged is the network of the full model: its state's width,
two hidden layers of 1024 and the experts of its target layers, fp32, in the host's bandwidth
(``prefetch.width``).  What is really trained and asked has ``prefetch.trained_width``.

How good it is: ``learnt.prefetch`` in a run's provenance has the recall of both kinds of
predictors on texts that were held out: the share of chosen experts among as many likeliest ones.
``prefetch.all_of_top_k`` and ``prefetch.at_least_one`` are the run's own.  The paper reports 84.7 %
on average, and that two layers further on cost about 5 %.

Deviations and readings:

- The authors' repository is not public, and the paper's text was not at hand.  What its summaries
  leave open is taken from a fork of the code that has changes of its own (huwf5/promoe): two hidden
  layers of 1024; prediction on the host; the first layers of a token from the last state of the one
  before; nothing predicted in prefill; an expert's three matrices as the chunks; as many experts as
  a token uses; LRU in a cache of equal size for each layer.
- There a network speaks of up to six layers and only the farthest that is wanted is read; here each
  speaks of the layer that is read.
- There the state is the output of an MoE layer, here what the gate reads: it is known a layer's
  experts earlier, and traces hold it.
- The default stride is the two layers of the paper's example; that fork's default of three counts
  from a layer's output.
- The way of a state to the host (a few kB) is not charged.
- In a batch each row's k likeliest experts are fetched, those first that any row is surest of.
"""

from collections.abc import Callable, Mapping, Sequence
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
from moebench.substrate.memory.cache import ExpertCache, Scope
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Learnt, RoutedSequence
from moebench.systems.learn.state_mlp import StateMLPOptions, StateMLPs, targets, trained
from moebench.systems.policies.assign import LoadAll
from moebench.systems.policies.checks import require_at_least, require_learnt_for
from moebench.systems.policies.evict import LeastRecentlyUsed
from moebench.systems.policies.place import PlaceById
from moebench.systems.policies.route import ExactRouting


def likeliest(p_TE: np.ndarray, experts: int) -> list[int]:
    """The ``experts`` likeliest of each row, without repetition, the surest first; ties by id."""
    wanted = set(np.argsort(-p_TE, axis=1, kind="stable")[:, :experts].ravel().tolist())
    best_E = best_scores(p_TE)
    return sorted(wanted, key=lambda e: (-best_E[e], e))


@dataclass(kw_only=True)
class StridePrefetch(Prefetching):
    """Fetches what the predictors expect of the layer ``stride`` further on, the nearest first.

    What was asked of nearer layers and has not begun stays in the queue, before the new.

    Attributes:
        stride: how many MoE layers ahead.
        experts: how many are fetched for each row of a layer; 0 means the model's top-k.
        chunks: a transfer goes in so many parts; between them, needed loads go first.
        width: of the predictors' two hidden layers, for what a prediction costs.
        trained_width: of those that are really trained and asked.
        tokens: at most so many are learnt from.
        epochs: at most; training stops early.
        seed: of weights and order.
    """

    stride: int = 2
    experts: int = 0
    chunks: int = 3
    width: int = 1024
    trained_width: int = 128
    tokens: int = 4096
    epochs: int = 30
    seed: int = 0

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 64  # as many as hold `tokens`: the paper names none
    learns_from: ClassVar[frozenset[Learnt]] = frozenset({"hidden"})
    reads_hidden: ClassVar[bool] = True
    reads_scores = False

    def __post_init__(self) -> None:
        require_at_least(
            "prefetch", self, stride=1, experts=0, width=1, trained_width=1, tokens=4, epochs=1
        )
        if not 1 <= self.chunks <= 64:
            raise UsageError(f"prefetch.chunks is {self.chunks}; allowed: 1 to 64")
        self._predictor: LearnedStates | None = None

    @property
    def learnt(self) -> Mapping[str, str]:
        """How the predictors were trained, and how good they are on what was held out."""
        return {} if self._predictor is None else self._predictor.networks.note

    def calibrate(
        self,
        sequences: Sequence[RoutedSequence],
        shape: ModelShape,
        artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Train the predictors, or take what these texts gave before."""
        options = StateMLPOptions(
            self.stride, self.trained_width, self.tokens, self.epochs, self.seed
        )
        networks = trained(sequences, shape.num_experts, options, artefacts, progress)
        self._predictor = LearnedStates(networks, (shape.hidden_size, self.width, self.width))

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Nothing is expected yet.

        Raises:
            UsageError: the predictors are another model's.
        """
        self._expected: dict[int, list[Fetch]] = {}
        if self._predictor is None:
            return
        networks = self._predictor.networks
        trained_for = (networks.num_layers, networks.num_experts)
        require_learnt_for("prefetch=stride was trained for", shape, trained_for)

    def begin_sequences(self, prompts: Prompts) -> None:
        """Forget what was expected of the token that did not come."""
        self._expected = {}

    @property
    def predictor(self) -> Predictor | None:
        """The networks, once they are trained."""
        return self._predictor

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """What is expected of later layers, the next one first; behind the last, the next token."""
        expected, layer = self._expected, view.layer
        expected.pop(layer, None)
        for later, p_TE in forecast.items():
            expected[later] = fetches(later, likeliest(p_TE, self.experts or view.shape.top_k))
        order = sorted(expected, key=lambda later: (later <= layer, later))
        return [fetch for later in order for fetch in expected[later]]


class LearnedStates(Predictor):
    """Asks a layer's network on each row's state, on the host, while everything else goes on.

    Args:
        networks: what is asked.
        charged: widths of the network whose operations are charged, up to the last hidden layer.
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
        """In decode, where there is a layer so far on."""
        return view.phase == "decode" and len(self._targets(view)) > 0

    def op(self, view: LayerView) -> Op:
        """One network, for all rows."""
        out = len(self._targets(view)) * view.shape.num_experts
        rows = (view.forward.rows,)
        return Op(OpKind.PREDICT, view.layer, rows, network=(*self._charged, out))

    def forecast(self, view: LayerView, model: Model, done: Sequence[int]) -> Forecast:
        """How likely each expert of the target layers is chosen."""
        assert view.hidden_TH is not None
        row, layers = view.shape.moe_rows[view.layer], view.shape.moe_layers
        found = self.networks.probabilities(view.hidden_TH, row)
        return {layers[target]: p_TE for target, p_TE in found.items()}


@dataclass(kw_only=True)
class ProMoE(System):
    """The complete system."""

    paper = "arXiv 2410.22134"

    place: Placement = field(default_factory=PlaceById)
    route: Routing = field(default_factory=ExactRouting)
    assign: Assignment = field(default_factory=LoadAll)
    prefetch: Prefetching = field(default_factory=StridePrefetch)
    evict: Eviction = field(default_factory=LeastRecentlyUsed)
    scope: Scope = "layer"

"""Selects experts to fetch for later layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moebench.substrate.engine.decisions import (
    Fetch,
    Forecast,
    LayerView,
    best_scores,
    fetches,
)
from moebench.substrate.engine.policies import Predictor, Prefetching
from moebench.substrate.errors import UsageError
from moebench.systems.policies.predict import ExactNextGate, NextGates


@dataclass(kw_only=True)
class NoPrefetch(Prefetching):
    """Fetches nothing ahead of its layer."""

    reads_scores = False


@dataclass(kw_only=True)
class NextGate(Prefetching):
    """Fetches the top-k of the next layer's gate on this layer's state (Mixtral-Offloading §3.2).

    Attributes:
        experts: how many to fetch for each layer; 0 means the model's top-k.
    """

    experts: int = 0

    reads_scores = False

    def __post_init__(self) -> None:
        if self.experts < 0:
            raise UsageError(f"prefetch.experts is {self.experts}; allowed: 0 (the top-k) or more")

    @property
    def predictor(self) -> Predictor:
        """The next gate on this layer's state."""
        return NextGates()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Highest predicted score first; ties by id.  Nothing in prefill."""
        wanted: list[Fetch] = []
        for layer, predicted_TE in forecast.items():
            order = np.argsort(-best_scores(predicted_TE), kind="stable").tolist()
            wanted += fetches(layer, order[: self.experts or view.shape.top_k])
        return wanted


@dataclass(kw_only=True)
class WholeLayer(Prefetching):
    """Fetches every expert of the next layer by id, in both phases and without a prediction.

    SE-MoE / MoESys (arXiv 2205.10034) does so, in order and to the last: nothing is dropped when
    the next gate shows what was not needed.  It keeps slots for two layers; as DuoServe-MoE
    measured it, for one (Table 2: six experts more than on-demand loading with k = 2).
    """

    reads_scores = False
    discipline = "committed"

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """All of them; those already held are skipped."""
        assert view.next_layer is not None
        return fetches(view.next_layer, range(view.shape.num_experts))


@dataclass(kw_only=True)
class NextExact(Prefetching):
    """Fetches exactly what the next layer will use, by id: an oracle, for replays alone."""

    reads_scores = False

    @property
    def predictor(self) -> Predictor:
        """The oracle."""
        return ExactNextGate()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Of all rows."""
        wanted: list[Fetch] = []
        for layer, exact_TE in forecast.items():
            wanted += fetches(layer, np.flatnonzero(best_scores(exact_TE)).tolist())
        return wanted

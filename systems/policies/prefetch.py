"""Prefetch policies: select experts to fetch for later layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, best_scores, fetches
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Prefetching
from moebench.systems.policies.predict import ExactNextGate, NextGates


def ranked(predicted_TE: np.ndarray) -> list[int]:
    """Return all experts by descending best score of any row, ties by id."""
    order: list[int] = np.argsort(-best_scores(predicted_TE), kind="stable").tolist()
    return order


@dataclass(kw_only=True)
class NoPrefetch(Prefetching):
    """Fetches no expert before its layer's gate is known."""

    reads_scores = False


@dataclass(kw_only=True)
class NextGate(Prefetching):
    """Fetches the top-k of the next layer's gate on this layer's state (Mixtral-Offloading §3.2).

    Attributes:
        experts: number of experts to fetch for each layer; 0 means the model's top-k.
    """

    experts: int = option(0, low=0, searched=(1, 16), scale="log")

    reads_scores = False

    @property
    def predictor(self) -> NextGates:
        """Predictor that runs the next layer's gate on this layer's state."""
        return NextGates()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return fetches by descending predicted score, ties by id; none in prefill."""
        wanted: list[Fetch] = []
        for layer, predicted_TE in forecast.items():
            wanted += fetches(layer, ranked(predicted_TE)[: self.experts or view.shape.top_k])
        return wanted


@dataclass(kw_only=True)
class NextExact(Prefetching):
    """Fetches exactly the experts that the next layer will use: an oracle, for replays only."""

    reads_scores = False

    @property
    def predictor(self) -> ExactNextGate:
        """Oracle that returns the next gate's recorded choice."""
        return ExactNextGate()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Return fetches of the experts that any row will use in the next layer."""
        wanted: list[Fetch] = []
        for layer, exact_TE in forecast.items():
            wanted += fetches(layer, np.flatnonzero(best_scores(exact_TE)).tolist())
        return wanted

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

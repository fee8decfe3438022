"""Systems that read or train on more than ids and scores, as ``tests.harness.readers:Name``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import Fetch, Forecast, LayerView, Prompts, fetches
from moebench.substrate.engine.policies import Predictor, Prefetching
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Learnt, RoutedSequence
from moebench.systems.baselines import MoEOnDemand
from moebench.systems.policies.predict import NextGates
from moebench.systems.policies.prefetch import NextGate


@dataclass(kw_only=True)
class StatePrefetch(Prefetching):
    """Prefetching of the experts that the first entries of the hidden state name."""

    reads_scores = False
    reads_hidden = True

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Fetch two experts for the next layer."""
        assert view.next_layer is not None
        assert view.hidden_TH is not None
        order = np.argsort(view.hidden_TH.sum(0)[: view.shape.num_experts]).tolist()
        return fetches(view.next_layer, order[:2])


@dataclass(kw_only=True)
class EmbeddingPrefetch(Prefetching):
    """Prefetching of the experts that the prompts' embeddings name."""

    reads_scores = False
    reads_embedding = True
    order: list[int] = field(default_factory=list)

    def begin_sequences(self, prompts: Prompts) -> None:
        """Order the experts by the prompts' embeddings."""
        assert prompts.embedding_BH is not None
        self.order = np.argsort(prompts.embedding_BH.sum(0)[:8]).tolist()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Fetch two experts for the next layer."""
        assert view.next_layer is not None
        return fetches(view.next_layer, self.order[:2])


@dataclass(kw_only=True)
class FarPrefetch(NextGate):
    """Prefetching of the experts that the gates of several later layers predict."""

    far: int = 3

    @property
    def predictor(self) -> Predictor:
        """Gates of several layers ahead."""
        return NextGates(layers=self.far)


@dataclass(kw_only=True)
class PrefillPrefetch(NextGate):
    """Prefetching by the next gate's prediction, also in prefill."""

    @property
    def predictor(self) -> Predictor:
        """The next layer's gate."""
        return NextGates(in_prefill=True)


@dataclass(kw_only=True)
class LearningPrefetch(Prefetching):
    """Prefetching that stores its calibration texts."""

    reads_scores = False
    calibrates = True
    learns_from: ClassVar[frozenset[Learnt]] = frozenset()
    shown: ClassVar[list[RoutedSequence]] = []
    trace: str = ""

    @property
    def calibration_trace(self) -> str:  # type: ignore[override]
        """The path of the named calibration trace."""
        return self.trace

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Store the calibration texts."""
        self.shown[:] = sequences


class ScoresPrefetch(LearningPrefetch):
    """Prefetching that trains on gate scores."""

    learns_from = frozenset({"scores"})


class StatesPrefetch(LearningPrefetch):
    """Prefetching that trains on hidden states and embeddings."""

    learns_from = frozenset({"hidden", "embedding"})


class PredictionsPrefetch(LearningPrefetch):
    """Prefetching that trains on the next gate's predictions and layer sensitivities."""

    learns_from = frozenset({"predictions", "sensitivity"})

    @property
    def predictor(self) -> Predictor:
        """The next layer's gate."""
        return NextGates()


@dataclass(kw_only=True)
class ByState(MoEOnDemand):
    """System that prefetches by hidden states."""

    prefetch: Prefetching = field(default_factory=StatePrefetch)


@dataclass(kw_only=True)
class ByEmbedding(MoEOnDemand):
    """System that prefetches by embeddings."""

    prefetch: Prefetching = field(default_factory=EmbeddingPrefetch)


@dataclass(kw_only=True)
class ThreeAhead(MoEOnDemand):
    """System that prefetches three layers ahead."""

    prefetch: Prefetching = field(default_factory=FarPrefetch)


@dataclass(kw_only=True)
class FourAhead(MoEOnDemand):
    """System that prefetches four layers ahead."""

    prefetch: Prefetching = field(default_factory=lambda: FarPrefetch(far=4))


@dataclass(kw_only=True)
class InPrefill(MoEOnDemand):
    """System that also predicts in prefill."""

    prefetch: Prefetching = field(default_factory=PrefillPrefetch)


@dataclass(kw_only=True)
class LearnsIds(MoEOnDemand):
    """System that trains on chosen experts only."""

    prefetch: Prefetching = field(default_factory=LearningPrefetch)


@dataclass(kw_only=True)
class LearnsScores(MoEOnDemand):
    """System that trains on gate scores."""

    prefetch: Prefetching = field(default_factory=ScoresPrefetch)


@dataclass(kw_only=True)
class LearnsStates(MoEOnDemand):
    """System that trains on hidden states and embeddings."""

    prefetch: Prefetching = field(default_factory=StatesPrefetch)


@dataclass(kw_only=True)
class LearnsPredictions(MoEOnDemand):
    """System that trains on predictions and sensitivities."""

    prefetch: Prefetching = field(default_factory=PredictionsPrefetch)

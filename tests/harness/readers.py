"""Systems that read or learn from more than ids and scores: ``tests.harness.readers:Name``."""

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
    """Fetches the experts that the state's first entries name."""

    reads_scores = False
    reads_hidden = True

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Two for the next layer."""
        assert view.next_layer is not None
        assert view.hidden_TH is not None
        order = np.argsort(view.hidden_TH.sum(0)[: view.shape.num_experts]).tolist()
        return fetches(view.next_layer, order[:2])


@dataclass(kw_only=True)
class EmbeddingPrefetch(Prefetching):
    """Fetches the experts that the prompts' embeddings name."""

    reads_scores = False
    reads_embedding = True
    order: list[int] = field(default_factory=list)

    def begin_sequences(self, prompts: Prompts) -> None:
        """Order experts."""
        assert prompts.embedding_BH is not None
        self.order = np.argsort(prompts.embedding_BH.sum(0)[:8]).tolist()

    def prefetch(self, view: LayerView, forecast: Forecast) -> Sequence[Fetch]:
        """Two for the next layer."""
        assert view.next_layer is not None
        return fetches(view.next_layer, self.order[:2])


@dataclass(kw_only=True)
class FarPrefetch(NextGate):
    """Fetches what later gates say."""

    far: int = 3

    @property
    def predictor(self) -> Predictor:
        """As many layers ahead."""
        return NextGates(layers=self.far)


@dataclass(kw_only=True)
class PrefillPrefetch(NextGate):
    """Fetches what the next gate says, in prefill too."""

    @property
    def predictor(self) -> Predictor:
        """The next gate."""
        return NextGates(in_prefill=True)


@dataclass(kw_only=True)
class LearningPrefetch(Prefetching):
    """Keeps what it was shown."""

    reads_scores = False
    calibrates = True
    learns_from: ClassVar[frozenset[Learnt]] = frozenset()
    shown: ClassVar[list[RoutedSequence]] = []
    trace: str = ""

    @property
    def calibration_trace(self) -> str:  # type: ignore[override]
        """The one that was named."""
        return self.trace

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Keep them."""
        self.shown[:] = sequences


class ScoresPrefetch(LearningPrefetch):
    """Learns from scores."""

    learns_from = frozenset({"scores"})


class StatesPrefetch(LearningPrefetch):
    """Learns from states and embeddings."""

    learns_from = frozenset({"hidden", "embedding"})


class PredictionsPrefetch(LearningPrefetch):
    """Learns from what the next gate says, and from how sensitive layers are."""

    learns_from = frozenset({"predictions", "sensitivity"})

    @property
    def predictor(self) -> Predictor:
        """The next gate."""
        return NextGates()


@dataclass(kw_only=True)
class ByState(MoEOnDemand):
    """Prefetches by states."""

    prefetch: Prefetching = field(default_factory=StatePrefetch)


@dataclass(kw_only=True)
class ByEmbedding(MoEOnDemand):
    """Prefetches by embeddings."""

    prefetch: Prefetching = field(default_factory=EmbeddingPrefetch)


@dataclass(kw_only=True)
class ThreeAhead(MoEOnDemand):
    """Prefetches three layers ahead."""

    prefetch: Prefetching = field(default_factory=FarPrefetch)


@dataclass(kw_only=True)
class FourAhead(MoEOnDemand):
    """Prefetches four layers ahead."""

    prefetch: Prefetching = field(default_factory=lambda: FarPrefetch(far=4))


@dataclass(kw_only=True)
class InPrefill(MoEOnDemand):
    """Predicts in prefill too."""

    prefetch: Prefetching = field(default_factory=PrefillPrefetch)


@dataclass(kw_only=True)
class LearnsIds(MoEOnDemand):
    """Learns from chosen experts alone."""

    prefetch: Prefetching = field(default_factory=LearningPrefetch)


@dataclass(kw_only=True)
class LearnsScores(MoEOnDemand):
    """Learns from scores."""

    prefetch: Prefetching = field(default_factory=ScoresPrefetch)


@dataclass(kw_only=True)
class LearnsStates(MoEOnDemand):
    """Learns from states and embeddings."""

    prefetch: Prefetching = field(default_factory=StatesPrefetch)


@dataclass(kw_only=True)
class LearnsPredictions(MoEOnDemand):
    """Learns from predictions and sensitivities."""

    prefetch: Prefetching = field(default_factory=PredictionsPrefetch)

"""What to bring for the next layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moebench.substrate.engine.system import LayerView, Prefetching, best_scores
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import Lookahead, Scores


@dataclass(kw_only=True)
class NoPrefetch(Prefetching):
    """Nothing."""


@dataclass(kw_only=True)
class NextGate(Prefetching):
    """The next layer's gate on this layer's state: its top-k, best first (Mixtral-Offloading §3.2).

    Attributes:
        experts: how many to bring for each layer; 0 means the model's top-k.
    """

    experts: int = 0

    def __post_init__(self) -> None:
        if self.experts < 0:
            raise UsageError(f"prefetch.experts is {self.experts}; allowed: 0 (the top-k) or more")

    @property
    def lookahead(self) -> Lookahead:
        """The cheap prediction."""
        return Lookahead.GATE

    def prefetch(
        self, view: LayerView, next_layer: int, predicted_TE: Scores | None
    ) -> Sequence[int]:
        """Highest predicted score first; ties by id.  Nothing in prefill."""
        if predicted_TE is None:
            return ()
        best = best_scores(predicted_TE)
        order: list[int] = np.argsort(-best, kind="stable").tolist()
        return order[: self.experts or view.shape.top_k]


@dataclass(kw_only=True)
class WholeLayer(Prefetching):
    """Every expert of the next layer by id, in both phases: fetching without a prediction.

    SE-MoE / MoESys (arXiv 2205.10034) does so with room for two layers.
    """

    def prefetch(
        self, view: LayerView, next_layer: int, predicted_TE: Scores | None
    ) -> Sequence[int]:
        """All of them; those already held are skipped."""
        return range(view.shape.num_experts)

"""Routing policies of no paper: the model's own choice, and random substitutes as a control."""

from dataclasses import dataclass

import numpy as np

from moebench.substrate.engine.decisions import LayerView, Routed
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Routing
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.models.shape import ModelShape


@dataclass(kw_only=True)
class ExactRouting(Routing):
    """Always chooses the model's own top-k."""

    reads_scores = False


@dataclass(kw_only=True)
class RandomSubstitution(Routing):
    """Replaces a share of the active experts by random inactive ones: a control of accuracy.

    A system that substitutes experts by their scores is compared with it: where even random
    substitutes lose no answer, no substitution can be seen to.  A substitute has the gate weight of
    the expert that it replaces.

    Attributes:
        share: probability that an active expert of a token is replaced; 0 is exact.
        prefill: whether prompts are routed so too; by default in decode alone, as in SMoE.
        seed: of the random numbers, which begin anew with each run.
    """

    share: float = option(1.0, low=0, high=1)
    prefill: bool = False
    seed: int = option(0, low=0)

    reads_scores = False

    def lossless_at(self, alpha: float) -> bool:
        """Return whether no expert is ever replaced."""
        return self.share == 0

    @property
    def exact_prefill(self) -> bool:
        """Whether prompts are routed exactly."""
        return not self.prefill or self.share == 0

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin the random numbers."""
        self._random = np.random.default_rng(self.seed)

    def route(self, view: LayerView) -> Routed:
        """Return the top-k with random substitutes; none is active already or chosen twice."""
        own_TK = view.topk_ids_TK
        if self.share == 0 or (view.phase == "prefill" and not self.prefill):
            return Routed(own_TK, own_TK)
        (rows, k), experts = own_TK.shape, view.shape.num_experts
        order_TE = self._random.random((rows, experts))
        np.put_along_axis(order_TE, own_TK, 2.0, axis=1)  # active experts come last
        inactive = min(k, experts - k)
        replaced_TK = self._random.random((rows, k)) < self.share
        replaced_TK[:, inactive:] = False
        substitutes_TK = own_TK.copy()
        substitutes_TK[:, :inactive] = order_TE.argsort(axis=1)[:, :inactive]
        return Routed(np.where(replaced_TK, substitutes_TK, own_TK), own_TK)

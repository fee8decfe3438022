"""Who leaves when a slot is needed.  Keys are ``layer · E + expert`` (see `substrate.memory`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from substrate.arch import ModelShape
from substrate.errors import BudgetError, UsageError
from substrate.memory import ExpertCache, Mask
from substrate.system import Eviction, LayerView


def _least(values: np.ndarray, allowed: Mask) -> int | None:
    """The allowed key with the smallest value; ties to the lowest key; None if none is allowed."""
    keys = allowed.nonzero()[0]
    return int(keys[values[keys].argmin()]) if len(keys) else None


@dataclass(kw_only=True)
class NeverEvict(Eviction):
    """Placed experts stay for good; what is loaded passes through a few staging slots.

    Attributes:
        staging: slots left empty by placement, for loads that are not kept; that many for each
            layer where layers do not share slots.
    """

    staging: int = 2

    def __post_init__(self) -> None:
        if self.staging < 1:
            raise UsageError(f"evict.staging is {self.staging}; allowed: 1 or more")
        self.reserve = self.staging

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """The first experts to arrive, as many as placement may place, are the placed ones."""
        self._passing = np.zeros(shape.num_layers * shape.num_experts, dtype=bool)
        self.reserve = self.staging * (len(shape.moe_layers) if cache.scope == "layer" else 1)
        if self.reserve >= cache.slots:
            raise BudgetError(
                f"evict.staging={self.staging} keeps {self.reserve} of {cache.slots} slots empty; "
                "give fewer, or a larger --cache-ratio"
            )
        self._to_place = cache.slots - self.reserve

    def arrived(self, key: int) -> None:
        """Placed, or passing through."""
        if self._to_place > 0:
            self._to_place -= 1
        else:
            self._passing[key] = True

    def left(self, key: int) -> None:
        """Gone."""
        self._passing[key] = False

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Only what is passing through."""
        passing = allowed & self._passing
        return int(passing.argmax()) if passing.any() else None


@dataclass(kw_only=True)
class LeastRecentlyUsed(Eviction):
    """Oldest use first; an arrival is as recent as a use."""

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Nothing is resident yet."""
        #: Residents, oldest use first.
        self._order: dict[int, None] = {}
        self._experts = shape.num_experts

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Uses within one layer count in the order given, which is that of ids."""
        for expert in experts:
            key = layer * self._experts + expert
            if key in self._order:
                self.arrived(key)

    def arrived(self, key: int) -> None:
        """The newest."""
        self._order.pop(key, None)
        self._order[key] = None

    def left(self, key: int) -> None:
        """Forgotten."""
        self._order.pop(key, None)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """The first that may leave."""
        return next((key for key in self._order if allowed[key]), None)


@dataclass(kw_only=True)
class LeastFrequentlyUsed(Eviction):
    """Fewest uses first.

    Attributes:
        survive: whether counts survive an eviction; otherwise they restart at zero.
        tie: equal counts leave by lowest ``id``, or by oldest use (``lru``).
    """

    survive: bool = False
    tie: Literal["id", "lru"] = "lru"

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """No use yet."""
        self._count = np.zeros(shape.num_layers * shape.num_experts, dtype=np.int64)
        self._recency = LeastRecentlyUsed()
        self._recency.start(shape, cache)
        self._experts = shape.num_experts

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count a use."""
        experts = list(experts)
        self._count[[layer * self._experts + e for e in experts]] += 1
        self._recency.used(layer, experts)

    def arrived(self, key: int) -> None:
        """Remember when, for the tie; what the host computed before does not count."""
        self._recency.arrived(key)
        if not self.survive:
            self._count[key] = min(self._count[key], 1)

    def left(self, key: int) -> None:
        """Forget the count unless it survives."""
        self._recency.left(key)
        if not self.survive:
            self._count[key] = 0

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """The smallest count."""
        if not allowed.any():
            return None
        fewest = allowed & (self._count == self._count[allowed].min())
        return self._recency.victim(fewest, incoming) if self.tie == "lru" else int(fewest.argmax())


@dataclass(kw_only=True)
class LowestAverageScore(Eviction):
    """SMoE Eq. 3: the lowest gate score averaged over the preceding n iterations leaves.

        argmin_i  Σ_{k = max(1, j-n)}^{j} S_{i,k}  /  (j - max(1, j-n) + 1)

    All experts' scores count, the inactive ones' too.  An iteration is one pass over the layer; in
    a batch, and in prefill, its score is the mean over the rows.

    Attributes:
        window: n; the sum has n + 1 terms, as printed.
    """

    window: int = 8

    def __post_init__(self) -> None:
        if self.window < 0:
            raise UsageError(f"evict.window is {self.window}; allowed: 0 or more")

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """No iteration yet: every average is zero."""
        self._history = np.zeros((shape.num_layers, self.window + 1, shape.num_experts))
        self._seen = [0] * shape.num_layers
        average_LE = np.zeros((shape.num_layers, shape.num_experts))
        self._average = list(average_LE)  # rows of one array, so that keys index it whole
        self._by_key = average_LE.reshape(-1)

    def observe(self, view: LayerView) -> None:
        """Iteration j of a layer."""
        layer, terms, scores_TE = view.layer, self.window + 1, view.scores_TE
        history = self._history[layer]
        history[self._seen[layer] % terms] = (
            scores_TE[0] if len(scores_TE) == 1 else scores_TE.mean(axis=0)
        )
        self._seen[layer] += 1
        known = min(self._seen[layer], terms)
        np.divide(np.add.reduce(history[:known], axis=0), known, out=self._average[layer])

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """The smallest average."""
        return _least(self._by_key, allowed)

"""Eviction policies: choose the expert to evict, by its key ``layer · E + expert``."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from moebench.substrate.engine.decisions import LayerView
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.errors import BudgetError
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape


def least(values: np.ndarray, allowed: Mask) -> int | None:
    """Return the allowed key with the smallest value, ties to the lowest key, or None."""
    keys = allowed.nonzero()[0]
    return int(keys[values[keys].argmin()]) if len(keys) else None


def first(keys: Iterable[int], allowed: Mask) -> int | None:
    """Return the first allowed key, or None if none is allowed."""
    for key in keys:
        if allowed[key]:
            return key
    return None


State = TypeVar("State")


def pools(shape: ModelShape, cache: ExpertCache, make: Callable[[int], State]) -> list[State]:
    """Return, for each key, the state of its pool: one for all layers or for each, in every form.

    Args:
        make: creates a pool's state from its number of slots.
    """
    found: list[State] = []
    for of_form in cache.form_pools:
        if cache.scope == "global":
            found += [make(of_form[0])] * (shape.num_layers * shape.num_experts)
            continue
        # Dense layers have no experts: their states are never used.
        sizes = [1] * shape.num_layers
        for layer, size in zip(shape.moe_layers, of_form, strict=True):
            sizes[layer] = max(size, 1)
        found += [state for size in sizes for state in [make(size)] * shape.num_experts]
    return found


class ByCount:
    """Resident experts by number of uses; equal counts in the order in which they reached it."""

    def __init__(self) -> None:
        self._counts: dict[int, OrderedDict[int, None]] = {}
        self._least = 0  # a lower bound of all counts

    def add(self, key: int, count: int) -> None:
        """Add a key as the newest of those with this count."""
        keys = self._counts.get(count)
        if keys is None:
            self._counts[count] = OrderedDict({key: None})
        else:
            keys[key] = None
        if count < self._least:
            self._least = count

    def use(self, key: int, count: int) -> None:
        """Increase a resident key's count by one; do nothing if the key is not resident."""
        keys = self._counts.get(count)
        if keys is None or key not in keys:
            return
        del keys[key]
        if not keys:
            del self._counts[count]
        above = self._counts.get(count + 1)
        if above is None:
            self._counts[count + 1] = OrderedDict({key: None})
        else:
            above[key] = None

    def remove(self, key: int, count: int) -> None:
        """Remove a key if it is resident."""
        keys = self._counts.get(count)
        if keys is None or key not in keys:
            return
        del keys[key]
        if not keys:
            del self._counts[count]

    def least(self, allowed: Mask, tie: Literal["id", "lru"]) -> int | None:
        """Return the allowed key with the smallest count; ties to the lowest id or oldest use."""
        counts = self._counts
        if not counts:
            return None
        while self._least not in counts:
            self._least += 1
        if tie == "lru":
            for key in counts[self._least]:
                if allowed[key]:  # nearly always the first one
                    return key
        for count in sorted(counts):
            keys = counts[count]
            found = first(sorted(keys) if tie == "id" else keys, allowed)
            if found is not None:
                return found
        return None


@dataclass(kw_only=True)
class OnlyNamed(Eviction):
    """Evicts no expert of its own choice: only a fetch that names an expert can replace it."""

    makes_room = "named"

    needs_host = True

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return None: no expert is evicted, so full memory refuses other loads."""
        return None


@dataclass(kw_only=True)
class NeverEvict(Eviction):
    """Keeps placed experts; loaded experts replace each other in a few staging slots.

    Attributes:
        staging: slots of each pool that placement leaves empty for loaded experts.
    """

    staging: int = option(2, low=1, searched=(1, 16), scale="log")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reserve = self.staging

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Mark all staging slots as empty; refuse as many of them as there are slots."""
        self._staged = np.zeros(len(cache.held), dtype=bool)
        self.reserve = self.staging * (len(shape.moe_layers) if cache.scope == "layer" else 1)
        if self.reserve >= cache.slots:
            raise BudgetError(
                f"evict.staging={self.staging} keeps {self.reserve} of {cache.slots} slots empty; "
                "give fewer, or a larger --capacity"
            )

    def placed(self, key: int) -> None:
        """Do nothing: a placed expert is never evicted."""

    def arrived(self, key: int) -> None:
        """Mark the loaded expert as one in a staging slot."""
        self._staged[key] = True

    def left(self, key: int) -> None:
        """Mark the expert as one without a slot."""
        self._staged[key] = False

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed expert in a staging slot with the lowest key, or None."""
        staged = allowed & self._staged
        return int(staged.argmax()) if staged.any() else None


@dataclass(kw_only=True)
class OnePlaceholder(Eviction):
    """Keeps placed experts; one slot stays empty for experts that are not kept (Fiddler; DAOP).

    Where layers do not share slots, one slot of each layer stays empty.
    """

    makes_room = "one"

    needs_host = True
    reserve = 1

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Compute how many slots stay empty; refuse a cache without others."""
        self.reserve = len(shape.moe_layers) if cache.scope == "layer" else 1
        if self.reserve >= cache.slots:
            raise BudgetError(
                f"the placeholder keeps {self.reserve} of {cache.slots} slots empty; give a larger "
                "--capacity"
            )

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return None: full memory accepts only experts that are not kept."""
        return None


class _InOrder(Eviction):
    """Base of policies that evict the first allowed expert in an order kept for each pool of slots.

    Every miss reads the first key of the order: an OrderedDict finds it at once, a dict would scan
    the entries of all removed keys.
    """

    takes_forms = True

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Create an empty order for each pool."""
        self._experts = shape.num_experts
        self._pools = pools(shape, cache, lambda slots: OrderedDict[int, None]())

    def arrived(self, key: int) -> None:
        """Append the expert to its pool's order."""
        self._pools[key][key] = None

    def left(self, key: int) -> None:
        """Remove the expert from its pool's order."""
        self._pools[key].pop(key, None)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the first allowed key in the order of the pool, or None."""
        for key in self._pools[incoming]:
            if allowed[key]:  # nearly always the first one
                return key
        return None


@dataclass(kw_only=True)
class FirstInFirstOut(_InOrder):
    """Evicts the expert that arrived first; uses do not matter."""


@dataclass(kw_only=True)
class LastInFirstOut(_InOrder):
    """Evicts the expert that arrived last; uses do not matter.

    Arrivals of the current layer are in use and not allowed, so that an earlier one is evicted.
    """

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the last allowed key in the order of arrival, or None."""
        return first(reversed(self._pools[incoming]), allowed)


@dataclass(kw_only=True)
class LeastRecentlyUsed(_InOrder):
    """Evicts the expert that was used longest ago; an arrival is as recent as a use."""

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Move used residents to the end of the order; within a layer, in ascending order of id."""
        base = layer * self._experts
        order = self._pools[base]
        to_end = order.move_to_end
        for expert in experts:
            if base + expert in order:
                to_end(base + expert)


@dataclass(kw_only=True)
class LeastFrequentlyUsed(Eviction):
    """Evicts the expert with the fewest uses.

    Attributes:
        survive: whether counts survive an eviction; otherwise they restart at zero.
        tie: which of equal counts is evicted: the lowest ``id`` or the oldest use (``lru``).
    """

    takes_forms = True
    survive: bool = option(False, searched=True)
    tie: Literal["id", "lru"] = option("lru", searched=True)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set all use counts to zero."""
        self._pools = pools(shape, cache, lambda slots: ByCount())
        self._count = [0] * len(self._pools)
        self._experts = shape.num_experts

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Increase the use count of each used expert."""
        base, count = layer * self._experts, self._count
        residents = self._pools[base]
        for expert in experts:
            key = base + expert
            residents.use(key, count[key])
            count[key] += 1

    def arrived(self, key: int) -> None:
        """Add the expert as the newest of its count, which is at most 1 unless counts survive."""
        if not self.survive:
            self._count[key] = min(self._count[key], 1)
        self._pools[key].add(key, self._count[key])

    def left(self, key: int) -> None:
        """Remove the expert, and reset its use count unless counts survive."""
        self._pools[key].remove(key, self._count[key])
        if not self.survive:
            self._count[key] = 0

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the smallest use count, or None."""
        return self._pools[incoming].least(allowed, self.tie)


@dataclass(kw_only=True)
class LowestAverageScore(Eviction):
    """SMoE Eq. 3: evicts the expert with the lowest average gate score of the last iterations.

        argmin_i  Σ_{k = max(1, j-n)}^{j} S_{i,k}  /  (j - max(1, j-n) + 1)

    S_{i,k} is the score of expert i in iteration k, j the current iteration, n ``window``.  Scores
    of inactive experts count too.  An iteration is one pass over the layer; in a batch, and in
    prefill, its score is the mean over the rows.

    A prompt uses nearly all experts of one layer after the other, and loads those "not initially in
    GPU memory" (v1 §4.1).  So while it is processed, experts of layers that it has left are evicted
    before those of layers to come, and of these the ones of the last layer first.

    Attributes:
        window: n; the sum has n + 1 terms, as printed.  The default is ours: the paper names no n,
            and its authors' code runs without one.  docs/caches.md compares 2 to 32.
    """

    window: int = option(8, low=0, high=4096, searched=(2, 64), scale="log")

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Set every average to zero."""
        history = np.zeros((shape.num_layers, self.window + 1, shape.num_experts))
        # One row for each of a layer's last iterations, zero before the iteration has happened.
        self._history, self._rows = list(history), [list(of_layer) for of_layer in history]
        self._seen = [0] * shape.num_layers
        sums_LE = np.zeros((shape.num_layers, shape.num_experts))
        self._sums = list(sums_LE)  # rows of one array, so that keys index it whole
        self._by_key = sums_LE.reshape(-1)
        #: In prefill, the keys of experts in layers up to the current one end here; 0 in decode.
        self._left = 0
        self._experts = shape.num_experts

    def observe(self, view: LayerView) -> None:
        """Update a layer's score sums to iteration j, scaling the first n to n + 1 terms."""
        layer, terms, scores_TE = view.layer, self.window + 1, view.scores_TE
        self._left = (layer + 1) * self._experts if view.phase == "prefill" else 0
        iteration = self._seen[layer]
        self._seen[layer] = iteration + 1
        latest, total = self._rows[layer][iteration % terms], self._sums[layer]
        latest[...] = scores_TE if len(scores_TE) == 1 else scores_TE.mean(axis=0)
        np.add.reduce(self._history[layer], axis=0, out=total)
        if iteration + 1 < terms:
            total *= terms / (iteration + 1)

    def average(self, key: int) -> float:
        """Return an expert's average score over the last n + 1 iterations, or fewer at first."""
        return float(self._by_key[key]) / (self.window + 1)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the lowest average score, or None."""
        if self._left:
            left = allowed[: self._left]
            if left.any():
                return least(self._by_key, left)
            if allowed.any():
                last = int(allowed.nonzero()[0][-1]) // self._experts * self._experts
                found = least(self._by_key[last:], allowed[last:])
                return None if found is None else last + found
        return least(self._by_key, allowed)

"""The device's slots for experts, in the reference simulator."""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from typing import Literal

import numpy as np

Key = tuple[int, int]  # layer, expert

Policy = Literal["lru", "score", "static"]

#: Terms of SMoE's Eq. 3: ``evict.window`` = 8 iterations and the current one.
TERMS = 9


class Slots:
    """Slots and the experts in them, with one of three eviction policies.

    Attributes:
        ready: by resident expert, when its copy is complete.
        reader: by expert, when its last computation ends.
        left: in prefill, the number of layers that the pass has reached; 0 in decode.
    """

    def __init__(self, slots: int, policy: Policy) -> None:
        self.empty, self.policy, self.left = slots, policy, 0
        self.ready: dict[Key, float] = {}
        self.reader: dict[Key, float] = {}
        self._order: OrderedDict[Key, None] = OrderedDict()  # used longest ago first
        self._scores: dict[int, deque[np.ndarray]] = {}
        self._staged: deque[Key] = deque()

    def observe(self, layer: int, mean_scores: np.ndarray) -> None:
        """Add an iteration of Eq. 3: the mean scores of a pass over a layer."""
        self._scores.setdefault(layer, deque(maxlen=TERMS)).append(mean_scores)

    def use(self, key: Key) -> None:
        """Make an expert the most recently used one."""
        self._order.pop(key, None)
        self._order[key] = None

    def put(self, key: Key, ready: float, staged: bool = False) -> None:
        """Note that an expert has a slot, and when its copy is complete."""
        self.ready[key] = ready
        self.use(key)
        if staged:
            self._staged.append(key)

    def average(self, key: Key) -> float:
        """Return Eq. 3 of an expert; 0 before its layer was seen."""
        layer, expert = key
        seen = self._scores.get(layer)
        return float(np.mean(np.stack(seen), 0, dtype=np.float64)[expert]) if seen else 0.0

    def victim(self, allowed: Collection[Key]) -> Key | None:
        """Return the expert that the policy evicts, of those that it may evict."""
        if self.policy == "static":
            return next((key for key in self._staged if key in allowed), None)
        if self.policy == "lru":
            return next((key for key in self._order if key in allowed), None)
        if self.left and allowed:  # a prompt: layers that were left first, else the last to come
            reached = [key for key in allowed if key[0] < self.left]
            last = max(layer for layer, _ in allowed)
            allowed = reached or [key for key in allowed if key[0] == last]
        return min(allowed, key=lambda key: (self.average(key), key), default=None)

    def idle(self, keys: Iterable[Key], at: float) -> list[Key]:
        """Return the experts whose last computation has ended at this instant."""
        return [key for key in keys if self.reader.get(key, 0.0) <= at]

    def take(self, *allowed: Collection[Key]) -> float:
        """Give a slot away: a free one, or the victim's; return when it may be overwritten.

        Args:
            allowed: experts that may be evicted, in groups: the policy is asked among the first
                group of which it evicts one.

        Raises LookupError: no expert can be evicted.
        """
        if self.empty:
            self.empty -= 1
            return 0.0
        found = next((key for group in allowed if (key := self.victim(group)) is not None), None)
        if found is None:
            raise LookupError("no expert can be evicted")
        self._order.pop(found)
        self.ready.pop(found)
        if found in self._staged:
            self._staged.remove(found)
        return self.reader.pop(found, 0.0)

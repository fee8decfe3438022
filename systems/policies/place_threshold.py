"""Placement by an exact integer program with a threshold for each layer (PowerInfer).

PowerInfer keeps often activated neurons on the GPU and computes the others on the CPU
(SJTU-IPADS/PowerInfer d3ebd7c, README and solver).  Its solver maximises the summed activation
frequency of the placed neurons under a capacity, where a layer has none or at least 512 of them.
A few neurons in a layer save less than the exchange between the two devices costs.

    PowerInfer                                  moebench
    ──────────                                  ────────
    neurons, in groups of 32                    experts
    activation frequency                        ``PlaceByPopularity.counts``
    capacity                                    the slots of the device
    none or at least 512 neurons of a layer     ``place.threshold``
    an integer program                          `most_activated`, exact
    cold neurons are computed on the CPU        a system that computes misses on the host

Readings:

- The source has no rule for Mixture-of-Experts models: an expert is what the solver places.
- 512 neurons correspond to no number of experts.  By default the threshold is the model's top-k, so
  that a layer with experts on the device can have all of a token's.
- Of equally good placements, the one with most experts is chosen, then the one with more of them in
  the first layers.  Ties within a layer go to the lowest id.
- Where layers do not share slots, each layer has an equal part of them, and the threshold applies
  to that part.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moebench.substrate.engine.options import option
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import Scope
from moebench.substrate.models.shape import ModelShape
from moebench.systems.policies.place import PlaceByPopularity, room_of_layers


def most_activated(
    frequencies_LE: Sequence[Sequence[float]], capacity: int, threshold: int, most: Sequence[int]
) -> list[int]:
    """Return how many experts of each layer have the largest summed frequency, best ones first.

    A dynamic program over the layers: ``sums[c]`` is the largest sum of the layers so far with
    exactly c experts.  It takes L · E operations on vectors of ``capacity`` numbers.

    Args:
        capacity: most experts over all layers.
        threshold: least experts of a layer that has any.
        most: most experts of each layer.
    """
    gains = [np.cumsum(sorted(row, reverse=True)) for row in frequencies_LE]
    capacity = min(capacity, sum(most))
    sums = np.full(capacity + 1, -np.inf)
    sums[0] = 0
    before = []
    for gain, room in zip(gains, most, strict=True):
        before.append(sums)
        sums = sums.copy()
        for n in range(threshold, min(room, capacity) + 1):
            np.maximum(sums[n:], before[-1][: capacity + 1 - n] + gain[n - 1], out=sums[n:])
    # The last of equal maxima has most experts; its terms are found again from the last layer on.
    used = capacity - int(np.argmax(sums[::-1]))
    counts = []
    for gain, earlier in zip(gains[::-1], before[::-1], strict=True):
        count = 0
        if earlier[used] != sums[used]:
            count = next(
                n
                for n in range(threshold, used + 1)
                if earlier[used - n] + gain[n - 1] == sums[used]
            )
        counts.append(count)
        used, sums = used - count, earlier
    return counts[::-1]


@dataclass(kw_only=True)
class PlaceAboveThreshold(PlaceByPopularity):
    """Maximises the summed use of placed experts; a layer has none or a least number (PowerInfer).

    Attributes:
        threshold: least experts of a layer that has any; None is the model's top-k.
    """

    threshold: int | None = option(None, low=1, searched=(1, 64), scale="log")

    needs_host = True

    def place(self, shape: ModelShape, slots: int, scope: Scope) -> Iterable[tuple[int, int]]:
        """Return the most used experts of each layer, as many as the program finds best."""
        counts, slots = self.counts(shape), max(slots, 0)
        threshold = shape.top_k if self.threshold is None else self.threshold
        if threshold > shape.num_experts:
            raise UsageError(
                f"place.threshold is {threshold}, but a layer has {shape.num_experts} experts; "
                f"allowed: 1 to {shape.num_experts}"
            )
        rows = [counts[layer] for layer in shape.moe_layers]
        most = [shape.num_experts] * len(rows)
        if scope == "layer":
            most = [min(shape.num_experts, room) for room in room_of_layers(shape, slots)]
        chosen = most_activated(rows, slots, threshold, most)
        return [
            (layer, expert)
            for layer, row, count in zip(shape.moe_layers, rows, chosen, strict=True)
            for expert in sorted(range(shape.num_experts), key=lambda e: (-row[e], e))[:count]
        ]

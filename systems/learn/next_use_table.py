"""Table of the mean distance to an expert's next use, counted in recorded routing of other texts.

What is known of an expert after each token of a text falls into a class of three:

    age          tokens since its layer used it last: 0, 1, 2, 3, then half octaves
    frequency    uses that fade by one part in ``2 ** FADES`` a token, in half octaves
    popularity   its share of its layer's uses in the texts that are learnt from, in equal groups

A cell of the table holds the mean number of tokens until the expert's next use, in its layer, of
all experts and tokens in that class; distances beyond a *horizon* count as the horizon.  All
arithmetic is of integers, so that the same texts give the same table on every processor.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Uses fade by this power of two; a use counts ``ONE``.
FADES, ONE = 5, 1 << 20
#: Classes of age and of frequency; the last age is of experts that were never used.
AGES, FREQUENCIES = 24, 24
#: Parts of a use that classes of frequency count.
PARTS = 16
#: A token's distance in the table, and how often the mean of a coarser class counts in a cell.
UNIT, PRIOR = 64, 32


#: The largest number of each class of `half_octaves`, up to 2 ** 62.
_ENDS = np.array([0, 1, 2, 3] + [(n + 6) * 2 ** (k - 2) - 1 for k in range(2, 62) for n in (0, 2)])


def half_octaves(values: np.ndarray, classes: int) -> np.ndarray:
    """Return the class of each whole number from 0 on: 0, 1, 2, 3, 4-5, 6-7, 8-11, 12-15, ...

    Args:
        classes: their number; the last one has all larger numbers.
    """
    return np.searchsorted(_ENDS[: classes - 1], values, side="left")


class Past:
    """What is known of each expert of each layer of a text so far.

    Attributes:
        step_L: tokens of each layer.
        last_LE: the token in which its layer used each expert last, from 1 on; 0 if it never did.
        uses_LE: faded uses, in units of ``ONE``.
    """

    def __init__(self, layers: int, experts: int) -> None:
        self.step_L = np.zeros(layers, dtype=np.int64)
        self.last_LE = np.zeros((layers, experts), dtype=np.int64)
        self.uses_LE = np.zeros((layers, experts), dtype=np.int64)

    def step(self, layer: int | slice, used_E: np.ndarray) -> None:
        """Add a token of a layer, or of several.

        Args:
            used_E: whether each expert is used; ``[L, E]`` for several layers.
        """
        self.step_L[layer] += 1
        uses_E = self.uses_LE[layer]
        uses_E -= uses_E >> FADES
        uses_E += ONE * used_E
        step_L = self.step_L[layer]
        np.copyto(self.last_LE[layer], np.expand_dims(step_L, -1), where=used_E)

    def classes(self, layer: int | slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the class of age and of frequency of each expert of a layer, or of several."""
        last_E = self.last_LE[layer]
        age_E = half_octaves(np.expand_dims(self.step_L[layer], -1) - last_E, AGES - 1)
        age_E[last_E == 0] = AGES - 1
        return age_E, half_octaves(self.uses_LE[layer] * PARTS // ONE, FREQUENCIES)


class NextUse(NamedTuple):
    """A table of mean distances, and the popularity of each expert.

    Attributes:
        distance_AFP: mean distance by class of age, frequency and popularity, in ``1 / UNIT``
            tokens.
        popularity_LE: the class of popularity of each expert.
        tokens: how many tokens were counted.
    """

    distance_AFP: np.ndarray
    popularity_LE: np.ndarray
    tokens: int

    def distances(self, past: Past, layer: int) -> np.ndarray:
        """Return the expected distance to each expert's next use in a layer, ``[E]``."""
        age_E, frequency_E = past.classes(layer)
        found: np.ndarray = self.distance_AFP[age_E, frequency_E, self.popularity_LE[layer]]
        return found


def popularity(sequences: Sequence[np.ndarray], experts: int, groups: int) -> np.ndarray:
    """Return the class of each expert by its uses in its layer, ``[L, E]``; the last has most.

    Args:
        sequences: experts of each token, ``[T, L, K]``.
        groups: the number of classes, of as nearly equal numbers of experts as possible.
    """
    layers = sequences[0].shape[1]
    found_LE = np.empty((layers, experts), dtype=np.int64)
    for layer in range(layers):
        uses_E = sum(np.bincount(ids[:, layer].ravel(), minlength=experts) for ids in sequences)
        rank_E = np.empty(experts, dtype=np.int64)
        rank_E[np.argsort(uses_E, kind="stable")] = np.arange(experts)
        found_LE[layer] = rank_E * groups // experts
    return found_LE


def distances(used_TLE: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens until each expert's next use, at most the horizon, and whether they are known.

    An expert that is not used again before the text ends is known to be at the horizon only if the
    end is at least that far.

    Args:
        used_TLE: whether each token of a text uses each expert.
    """
    tokens = len(used_TLE)
    distance_TLE = np.empty(used_TLE.shape, dtype=np.int64)
    following_LE = np.full(used_TLE.shape[1:], 2 * tokens + horizon, dtype=np.int64)
    for t in range(tokens - 1, -1, -1):
        distance_TLE[t] = following_LE - t
        following_LE[used_TLE[t]] = t
    left_T = tokens - 1 - np.arange(tokens)
    known_TLE = (distance_TLE < tokens) | (left_T >= horizon)[:, None, None]
    return np.minimum(distance_TLE, horizon), known_TLE


def table(sequences: Sequence[np.ndarray], experts: int, horizon: int, groups: int) -> NextUse:
    """Return the table that these texts give.

    A cell is the mean of its own class, in which the mean of the class of equal age and frequency
    counts ``PRIOR`` times; in that one the mean of equal age does, and in that one the mean of all.

    Args:
        sequences: experts of each token, ``[T, L, K]``, of at least one text.
        horizon: in tokens.
        groups: classes of popularity.
    """
    layers = sequences[0].shape[1]
    popularity_LE = popularity(sequences, experts, groups)
    shape = AGES, FREQUENCIES, groups
    sums, counts = np.zeros((2, AGES * FREQUENCIES * groups), dtype=np.int64)
    for ids_TLK in sequences:
        used_TLE = np.zeros((len(ids_TLK), layers, experts), dtype=bool)
        np.put_along_axis(used_TLE, ids_TLK.astype(np.int64), True, axis=2)
        distance_TLE, known_TLE = distances(used_TLE, horizon)
        past, cell_TLE = Past(layers, experts), np.empty(used_TLE.shape, dtype=np.int64)
        for used_LE, cell_LE in zip(used_TLE, cell_TLE, strict=True):
            past.step(slice(None), used_LE)
            cell_LE[...] = np.ravel_multi_index((*past.classes(slice(None)), popularity_LE), shape)
        cells = cell_TLE[known_TLE]
        counts += np.bincount(cells, minlength=len(counts))
        # Sums of whole numbers below 2 ** 53 are exact in a double.
        totals = np.bincount(cells, weights=distance_TLE[known_TLE], minlength=len(sums))
        sums += totals.astype(np.int64)
    found_AFP = _means(sums.reshape(shape), counts.reshape(shape))
    return NextUse(found_AFP, popularity_LE, sum(map(len, sequences)))


def _means(sums_AFP: np.ndarray, counts_AFP: np.ndarray) -> np.ndarray:
    """Return each cell's mean, drawn towards the mean of the next coarser class."""
    all_sum, all_count = int(sums_AFP.sum()), int(counts_AFP.sum())
    found: np.ndarray = np.full((1, 1, 1), UNIT * all_sum // max(all_count, 1), dtype=np.int64)
    for axes in ((1, 2), (2,), ()):
        sums = sums_AFP.sum(axis=axes, keepdims=True)
        counts = counts_AFP.sum(axis=axes, keepdims=True)
        found = (UNIT * sums + PRIOR * found) // (counts + PRIOR)
    return found

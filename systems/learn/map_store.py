"""FineMoE's store of expert maps of past iterations, compared by cosines (`systems.finemoe`).

Shape letters: C maps, L MoE layers, E experts, H the embedding's width.
"""

import numpy as np

#: Cosines that differ by less count as equal: rounding depends on the order of summation.
SAME = 1e-6


def unit(x: np.ndarray) -> np.ndarray:
    """Scale rows to length 1; rows of zeros stay zeros."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    units: np.ndarray = x / np.maximum(length, np.finfo(np.float32).tiny)
    return units.astype(np.float32)


def shares(scores: np.ndarray) -> np.ndarray:
    """Return gate scores as probabilities, whose sum over experts is 1."""
    scores = scores.astype(np.float32)
    total = scores.sum(axis=-1, keepdims=True)
    found: np.ndarray = scores / np.maximum(total, np.finfo(np.float32).tiny)
    return found


class MapStore:
    """Expert maps of at most C (``capacity``) past iterations, each with its prompt's embedding.

    ``semantic`` is d/L, the weight of the embedding's cosine in the redundancy of a map.
    """

    def __init__(
        self, capacity: int, layers: int, experts: int, width: int, semantic: float
    ) -> None:
        self.size, self._semantic, self._added = 0, semantic, 0
        self.embedding_CH = np.zeros((capacity, width), dtype=np.float32)
        self.maps_LCE = np.zeros((layers, capacity, experts), dtype=np.float32)
        #: Squared length of each map over its first layers, up to and including each layer.
        self.squares_LC = np.zeros((layers, capacity), dtype=np.float32)
        #: The order in which the maps were added.
        self._age_C = np.zeros(capacity, dtype=np.int64)

    def copy(self) -> "MapStore":
        """Return a copy of the store, to which maps can be added without changing the original."""
        made = MapStore.__new__(MapStore)
        made.__dict__ = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
        return made

    def products(self, map_LE: np.ndarray) -> np.ndarray:
        """Return the products of a whole map with each stored map, ``[C]``."""
        found: np.ndarray = np.matmul(self.maps_LCE, map_LE[:, :, None]).sum(axis=0)[:, 0]
        return found

    def cosines(self, products_C: np.ndarray, square: float, layer: int) -> np.ndarray:
        """Return cosines of a map up to a layer with each stored map, from products ``[n]``."""
        squares = square * self.squares_LC[layer, : self.size]
        found: np.ndarray = products_C[: self.size] / np.sqrt(
            np.maximum(squares, np.finfo(np.float32).tiny)
        )
        return found

    def add(
        self, embedding_H: np.ndarray, map_LE: np.ndarray, semantic_C: np.ndarray,
        products_C: np.ndarray,
    ) -> int:  # fmt: skip
        """Add a map and return its index; it replaces the most redundant map of a full store.

        Args:
            semantic_C: cosines of its embedding with each stored one.
            products_C: its products with each stored map.
        """
        square = float((map_LE * map_LE).sum())
        at = self.size
        if at < len(self._age_C):
            self.size += 1
        else:
            alike_C = self.cosines(products_C, square, len(map_LE) - 1)
            at = int((self._semantic * semantic_C + (1 - self._semantic) * alike_C).argmax())
        self.embedding_CH[at], self.maps_LCE[:, at] = embedding_H, map_LE
        self.squares_LC[:, at] = (map_LE * map_LE).sum(axis=1).cumsum()
        self._added += 1
        self._age_C[at] = self._added
        return at

    def nearest(self, cosines: np.ndarray) -> int:
        """Return the index of the map with the largest cosine; of equal ones, the newest."""
        best = np.flatnonzero(cosines >= cosines.max() - SAME)
        return int(best[self._age_C[best].argmax()])

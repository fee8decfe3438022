"""FineMoE's store: expert maps of past iterations, compared by cosines (`systems.finemoe`).

Shape letters: C maps, L MoE layers, E experts, H the embedding's width.
"""

import numpy as np

#: Cosines that differ by less are equal: the same embedding, added up in another order.
SAME = 1e-6


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1; zeros stay zeros."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    units: np.ndarray = x / np.maximum(length, np.finfo(np.float32).tiny)
    return units.astype(np.float32)


def shares(scores: np.ndarray) -> np.ndarray:
    """Gate scores as probabilities: their sum over experts is 1."""
    scores = scores.astype(np.float32)
    total = scores.sum(axis=-1, keepdims=True)
    found: np.ndarray = scores / np.maximum(total, np.finfo(np.float32).tiny)
    return found


class MapStore:
    """Expert maps of past iterations, each with its prompt's embedding.

    Args:
        capacity: how many are kept, C.
        semantic: the share d/L of the embedding in what counts as redundant.
    """

    def __init__(
        self, capacity: int, layers: int, experts: int, width: int, semantic: float
    ) -> None:
        self.size, self._semantic, self._added = 0, semantic, 0
        self.embedding_CH = np.zeros((capacity, width), dtype=np.float32)
        self.maps_LCE = np.zeros((layers, capacity, experts), dtype=np.float32)
        #: Squared lengths of the layers up to each.
        self.squares_LC = np.zeros((layers, capacity), dtype=np.float32)
        #: When each came.
        self._age_C = np.zeros(capacity, dtype=np.int64)

    def copy(self) -> "MapStore":
        """One that can be filled further."""
        made = MapStore.__new__(MapStore)
        made.__dict__ = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
        return made

    def products(self, map_LE: np.ndarray) -> np.ndarray:
        """Of a whole map with each that is kept, ``[C]``."""
        found: np.ndarray = np.matmul(self.maps_LCE, map_LE[:, :, None]).sum(axis=0)[:, 0]
        return found

    def cosines(self, products_C: np.ndarray, square: float, layer: int) -> np.ndarray:
        """Of a trajectory up to a layer with each that is kept, given products so far ``[n]``."""
        squares = square * self.squares_LC[layer, : self.size]
        found: np.ndarray = products_C[: self.size] / np.sqrt(
            np.maximum(squares, np.finfo(np.float32).tiny)
        )
        return found

    def add(
        self, embedding_H: np.ndarray, map_LE: np.ndarray, semantic_C: np.ndarray,
        products_C: np.ndarray,
    ) -> int:  # fmt: skip
        """Keep a map; where there is no room, in place of the one that it makes most redundant.

        Args:
            semantic_C: cosines of its embedding with each that is kept.
            products_C: its products with each.

        Returns:
            its place.
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
        """Of the largest cosine, the newest."""
        best = np.flatnonzero(cosines >= cosines.max() - SAME)
        return int(best[self._age_C[best].argmax()])

"""Eviction by an expert's expected next use, counted in recorded routing of other texts.

Belady's rule evicts the expert whose next use is farthest.  `FarthestNextUse` estimates the
distance from a table (`systems.learn.next_use_table`), where FlashMoE trains a network for it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from moebench.substrate.engine.decisions import LayerView, Prompts
from moebench.substrate.engine.options import option
from moebench.substrate.engine.policies import Eviction
from moebench.substrate.errors import UsageError
from moebench.substrate.memory.cache import ExpertCache, Mask
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn import next_use_table
from moebench.systems.policies.checks import require_learnt_for
from moebench.systems.policies.evict_guarded import Guards


@dataclass(kw_only=True)
class FarthestNextUse(Eviction):
    """Evicts the expert with the farthest expected next use, counted in other texts.

    A table gives the expected tokens until a layer uses an expert again, from how long ago and how
    often it did and how popular the expert was in other texts.  Distances are compared in layers:
    of experts that are expected in the same token, those of the layer that comes last are evicted.
    Ties go to the lowest key.  A prompt counts token by token; a decoded batch is one token.

    Attributes:
        horizon: distances in tokens from which on all are equal.
        groups: classes of popularity in the texts that it learns from; 1 makes no difference.
    """

    horizon: int = option(16, low=1, high=65_536, searched=(4, 256), scale="log")
    groups: int = option(16, low=1, high=1024, searched=(1, 32), scale="log")

    calibrates: ClassVar[bool] = True
    calibration_texts: ClassVar[int] = 16
    reads_scores = False  # `observe` reads chosen experts only

    @property
    def learnt(self) -> Mapping[str, str]:
        """How many tokens the table counts, for the run's provenance."""
        return {"tokens": str(self.table.tokens)} if hasattr(self, "table") else {}

    def calibrate(
        self, sequences: Sequence[RoutedSequence], shape: ModelShape, artefacts: Path,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        """Count the distances in these texts."""
        texts = [text.ids_TLK for text in sequences]
        self.table = next_use_table.table(texts, shape.num_experts, self.horizon, self.groups)

    def start(self, shape: ModelShape, cache: ExpertCache) -> None:
        """Begin with an empty past; refuse to without a table for this model."""
        if not hasattr(self, "table"):
            raise UsageError("evict=next-use learns from recorded routing: calibrate it first")
        require_learnt_for("evict=next-use was counted for", shape, self.table.popularity_LE.shape)
        self._shape, self._experts = shape, shape.num_experts
        self._distance = np.zeros(shape.num_layers * shape.num_experts, dtype=np.int64)
        #: By key, the position of its layer among those with experts; and that of the current one.
        rows = [shape.moe_rows.get(layer, 0) for layer in range(shape.num_layers)]
        self._rows, self._row = np.repeat(rows, self._experts), 0
        self.begin_sequences(Prompts(()))

    def begin_sequences(self, prompts: Prompts) -> None:
        """Forget the uses of the sequences before."""
        self._past = next_use_table.Past(len(self._shape.moe_layers), self._experts)
        self._in_prompt = False
        self._stale = set(self._shape.moe_layers)

    def observe(self, view: LayerView) -> None:
        """Count a prompt's tokens one by one."""
        self._in_prompt = view.phase == "prefill"
        if self._in_prompt:
            row = self._shape.moe_rows[view.layer]
            for ids_K in view.topk_ids_TK:
                self._step(row, ids_K)

    def used(self, layer: int, experts: Iterable[int]) -> None:
        """Count a decoded token; `observe` counts those of a prompt."""
        self._row = self._shape.moe_rows[layer]
        if not self._in_prompt:
            self._step(self._row, [*experts])
        self._stale.add(layer)

    def _step(self, row: int, experts: Sequence[int] | np.ndarray) -> None:
        used_E = np.zeros(self._experts, dtype=bool)
        used_E[experts] = True
        self._past.step(row, used_E)

    def victim(self, allowed: Mask, incoming: int) -> int | None:
        """Return the allowed key with the farthest expected next use, or None."""
        keys = allowed.nonzero()[0]
        if not len(keys):
            return None
        self._look_up()
        layers = len(self._shape.moe_layers)
        # Whole tokens beyond the next one, and the layers until the layer's turn.
        turn = (self._rows[keys] - self._row - 1) % layers + 1
        farness = (self._distance[keys] - next_use_table.UNIT) * layers + next_use_table.UNIT * turn
        return int(keys[farness.argmax()])

    def _look_up(self) -> None:
        for layer in self._stale:
            found = self.table.distances(self._past, self._shape.moe_rows[layer])
            self._distance[layer * self._experts : (layer + 1) * self._experts] = found
        self._stale.clear()


@dataclass(kw_only=True)
class GuardedNextUse(Guards, FarthestNextUse):
    """The farthest expected next use; first unused prefetches, and last experts of a forecast."""

"""Drawn routing of published rows: a micro-batch uses as many experts as the law says."""

from collections.abc import Sequence

import numpy as np

from moebench.substrate.models.shape import ModelShape
from moebench.substrate.terms import Gate, Ids, Phase, Scores, Texts
from moebench.substrate.traces.law import LAW, used_experts


class Drawn:
    """A `Model` whose routing is drawn by the law, and which computes nothing.

    Its prompt pass has as many rows as the test needs, whatever the length of the text: a decoded
    token can be simulated at any context without a prompt of that length.

    Args:
        rows: of the prompt's pass.
        micro_batch: rows that a prompt's experts are counted for at a time.
        hot: of each layer, how many experts of the lowest ids are used most.
        hits: the share of a decoded token's experts that are among these.
        alike: correlation of an expert's logits in rows far apart (`Law.lasting`).
    """

    def __init__(
        self, shape: ModelShape, rows: int, micro_batch: int, hot: int = 0, hits: float = 0.0,
        alike: float = LAW.lasting,
    ) -> None:  # fmt: skip
        self.shape = shape
        self._rows, self._micro_batch, self._hot, self._hits = rows, micro_batch, hot, hits
        self._law = LAW._replace(lasting=alike)
        self._generator = np.random.default_rng(0)
        self._owed = 0.0

    def begin(self, prompts: Texts, new_tokens: int, forced: Texts = ()) -> None:
        """Start a batch."""
        self._texts = len(prompts)

    def embed(self, phase: Phase) -> int:
        """Return the rows of a pass."""
        self._now = self._rows if phase == "prefill" else self._texts
        return self._now

    def attend(self, layer: int) -> None:
        """Do nothing: nothing is computed."""

    shared = combine = dense = attend

    def gate(self, layer: int) -> Gate:
        """Return drawn scores and choices."""
        shape, rows = self.shape, self._now
        if self._hot and rows == self._texts:
            return Gate(self._no_scores(rows), np.stack([self._decoded() for _ in range(rows)]))
        ids: list[Ids] = []
        for first in range(0, rows, self._micro_batch):
            part = min(self._micro_batch, rows - first)
            used = used_experts(part, shape.top_k, shape.num_experts, self._law)
            chosen = self._generator.permutation(shape.num_experts)[:used]
            # In turn: no row has an expert twice, and all are used by as many rows.
            in_turn = np.arange(part * shape.top_k) % used
            ids.append(chosen[in_turn].reshape(part, shape.top_k))
        ids_TK = np.concatenate(ids).astype(np.int64)
        return Gate(self._no_scores(rows), ids_TK)

    def _decoded(self) -> Ids:
        """Return a token's experts, of which the stated share are hot in the mean over layers."""
        k, experts = self.shape.top_k, self.shape.num_experts
        self._owed += k * self._hits
        here = min(k, self._hot, max(int(self._owed), k - (experts - self._hot)))
        self._owed -= here
        both = np.arange(here), self._hot + np.arange(k - here)
        return np.concatenate(both).astype(np.int64)

    def _no_scores(self, rows: int) -> Scores:
        return np.zeros((rows, self.shape.num_experts), np.float32)

    def dispatch(self, layer: int, ids_TK: Ids, weigh_as_TK: Ids) -> dict[int, int]:
        """Return the row counts of active experts by ascending id."""
        counts = np.bincount(ids_TK.ravel(), minlength=self.shape.num_experts)
        return {int(e): int(counts[e]) for e in counts.nonzero()[0]}

    def compute(self, layer: int, experts: Sequence[int], form: int = 0) -> None:
        """Do nothing: nothing is computed."""

    def compute_on_host(
        self, layer: int, experts: Sequence[int], ahead: bool = False, form: int = 0
    ) -> None:
        """Do nothing: nothing is computed."""

    def head(self) -> list[int]:
        """Return one token for each text."""
        return [0] * self._texts

"""What a system costs in accuracy: scores, token agreement and KL against the lossless model.

Agreement and KL compare, on the system's own prefix, its next-token choice and distribution with
those of the model with everything resident: one batched pass over the finished texts.  They see
damage long before a score does.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from substrate.decoder import Decoder
from workloads.catalogue import Workload
from workloads.example import Example
from workloads.scoring import is_correct, score


class Accuracy:
    """Adds up batches; `document` gives the figures of the run."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._correct: list[bool] = []
        self._agreed = 0
        self._tokens = 0
        self._kl = 0.0

    def add_texts(self, examples: Sequence[Example], texts: Sequence[str]) -> None:
        """Score a batch of finished answers."""
        if self._workload.scored:
            pairs = zip(examples, texts, strict=True)
            self._correct += [is_correct(self._workload, e, text) for e, text in pairs]

    def add_logits(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]], logits: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """Compare a batch's decoded steps with the lossless model.

        Args:
            tokens: what each sequence generated, the prefill's token first.
            logits: of each pass ``[B, V]``, the prefill's first.
        """
        if len(logits) < 2:
            return
        texts = [[*p, *t[:-1]] for p, t in zip(prompts, tokens, strict=True)]
        reference = decoder.full_logits(texts)
        for b, prompt in enumerate(prompts):
            lossless = reference[b][len(prompt) :].log_softmax(-1)
            own = torch.stack([step[b] for step in logits[1:]]).log_softmax(-1)
            self._agreed += int((lossless.argmax(-1) == own.argmax(-1)).sum())
            self._kl += float((lossless.exp() * (lossless - own)).sum())
            self._tokens += len(own)

    def document(self) -> dict[str, Any]:
        """The ``accuracy`` part of a run."""
        scored = score(self._correct, self._workload.metric) if self._correct else None
        return {
            "score": None if scored is None else round(scored.score, 4),
            "n": len(self._correct),
            "stderr": None if scored is None else round(scored.stderr, 4),
            "metric": self._workload.metric,
            "agreement": round(self._agreed / self._tokens, 6) if self._tokens else None,
            "kl": abs(round(self._kl / self._tokens, 6)) if self._tokens else None,
        }

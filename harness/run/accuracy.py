"""Accuracy of a run: scores, and token agreement and KL divergence from the lossless model.

Agreement and KL compare, on the system's own prefix, its next-token choice and distribution with
those of the model with everything resident: one batched pass over the finished texts.  They change
long before a score does.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from moebench.substrate.models.shared import SharedWork
from moebench.workloads.example import Example
from moebench.workloads.scoring import (
    Rouge,
    Score,
    chance,
    cut,
    item_value,
    perplexity,
    rouge,
    score,
)
from moebench.workloads.workload import Workload


@dataclass(slots=True)
class Item:
    """Score of one example, and agreement and KL of its decoded steps with the lossless model.

    ``value`` is 0 to 1, None without a reference; ``kl`` is summed over the decoded steps;
    None where only tokens are known; ``read`` is the log-likelihood of a text (nats) and its number
    of tokens; ``cut`` says whether a written answer reached the length that was allowed before it
    ended, None where nothing was written.
    """

    value: float | None = None
    read: tuple[float, int] | None = None
    cut: bool | None = None
    answer: str = ""
    decoded: int = 0
    agreed: int = 0
    kl: float | None = 0.0


def compare(
    items: Sequence[Item], shared: SharedWork, prompts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]], logits: Sequence[Tensor] | None,
) -> None:  # fmt: skip
    """Compare a batch's decoded steps with the lossless model.

    Args:
        items: one of each sequence; what is found is added to them.
        tokens: what each sequence took, the prefill's token first.
        logits: of each pass ``[B, V]``, the prefill's first; None where only tokens are known:
            then they count as what the system chose, and there is no KL.
    """
    decoded = [b for b, t in enumerate(tokens) if len(t) > 1]
    if not decoded:
        return
    texts = [[*prompts[b], *tokens[b][:-1]] for b in decoded]
    references = shared.lossless(texts, [len(prompts[b]) for b in decoded])
    for b, lossless in zip(decoded, references, strict=True):
        items[b].decoded += len(lossless)
        if logits is None:
            chosen = torch.tensor(tokens[b][1:])
            items[b].agreed += int((lossless.argmax(-1) == chosen).sum())
            items[b].kl = None
            continue
        own = torch.stack([step[b] for step in logits[1 : len(tokens[b])]]).log_softmax(-1)
        items[b].agreed += int((lossless.argmax(-1) == own.argmax(-1)).sum())
        apart = float((lossless.exp() * (lossless - own)).sum())
        items[b].kl = (items[b].kl or 0.0) + apart


def likeness(items: Sequence[Item]) -> dict[str, float | None]:
    """Return mean agreement and KL over all decoded steps; None if no step was compared."""
    decoded = sum(item.decoded for item in items)
    agreed = sum(item.agreed for item in items)
    known = [item.kl for item in items if item.kl is not None]
    kl = sum(known) / decoded if decoded and len(known) == len(items) else None
    return {
        "agreement": round(agreed / decoded, 6) if decoded else None,
        "kl": None if kl is None else abs(round(kl, 6)),
    }


class Accuracy:
    """Collects a run's answers and computes the ``accuracy`` part of its document."""

    def __init__(self, workload: Workload, examples: Sequence[Example]) -> None:
        self._workload = workload
        self._chance = chance(workload, examples)
        self._items = [Item() for _ in examples]
        self.rouges: list[Rouge] = []

    def answered(
        self, rows: slice, answers: Sequence[Sequence[int]], values: Sequence[float] | None
    ) -> None:
        """Record a batch's answers and the score of each.

        Args:
            answers: token ids, or the index of the chosen option.
            values: 0 to 1; None where the workload has no reference answers.
        """
        for i, (item, answer) in enumerate(zip(self._items[rows], answers, strict=True)):
            item.answer = hashlib.sha256(str(list(answer)).encode()).hexdigest()[:8]
            item.value = None if values is None else float(values[i])

    def replied(
        self, rows: slice, tokens: Sequence[Sequence[int]], examples: Sequence[Example],
        texts: Sequence[str], ended: Sequence[bool],
    ) -> None:  # fmt: skip
        """Record a batch's generated answers, as token ids and as text, and score them.

        Without reference answers there is nothing to score.

        Args:
            texts: whole; an answer ends at the first of its workload's stop strings.
            ended: whether each has the token that ends a text.
        """
        values, replies = None, [cut(text, self._workload.stop) for text in texts]
        if self._workload.scored:
            values = list(map(item_value, repeat(self._workload), examples, replies))
            for item, text, reply, end in zip(
                self._items[rows], texts, replies, ended, strict=True
            ):
                item.cut = not end and reply == text
        self.answered(rows, tokens, values)
        if self._workload.metric == "rouge":
            self.rouges += map(rouge, repeat(self._workload), examples, replies)

    def read(self, rows: slice, log_likelihoods: Sequence[float], tokens: Sequence[int]) -> None:
        """Record the log-likelihoods of a batch of texts, in nats, and their numbers of tokens."""
        for item, value, n in zip(self._items[rows], log_likelihoods, tokens, strict=True):
            item.read = (value, n)

    def compare(
        self, rows: slice, shared: SharedWork, prompts: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]], logits: Sequence[Tensor] | None,
    ) -> None:  # fmt: skip
        """Compare a batch's decoded steps with the lossless model."""
        compare(self._items[rows], shared, prompts, tokens, logits)

    def document(self) -> dict[str, Any]:
        """Return the ``accuracy`` part; ``items`` holds lists with one entry per example."""
        scored = self._score()
        written = [item.cut for item in self._items if item.cut is not None]
        return {
            "score": None if scored is None else round(scored.score, 4),
            "n": 0 if scored is None else scored.n,
            "stderr": None if scored is None else round(scored.stderr, 4),
            "metric": self._workload.metric,
            "chance": self._chance,
            "cut": sum(written) if written else None,
            **likeness(self._items),
            **self._rouge(),
            "items": {
                "value": [item.value for item in self._items],
                "answer": [item.answer for item in self._items],
                "decoded": [item.decoded for item in self._items],
                "agreed": [item.agreed for item in self._items],
                "kl": [None if i.kl is None else round(abs(i.kl), 6) for i in self._items],
            },
        }

    def _score(self) -> Score | None:
        """Return the score of the scored examples with its error; None if none was scored."""
        texts = [item.read for item in self._items if item.read is not None]
        if texts:
            return perplexity([value for value, _ in texts], [tokens for _, tokens in texts])
        values = [item.value for item in self._items if item.value is not None]
        return score(values, self._workload.metric) if values else None

    def _rouge(self) -> dict[str, float]:
        """Return ROUGE-1, ROUGE-2 and DAOP's shares of true answers, in percent."""
        found = self.rouges
        names = ("rouge1", "rouge2", "true1", "true2") if found else ()
        columns = {name: [getattr(r, name) for r in found] for name in names}
        return {
            name: round(100 * sum(values) / len(values), 4)
            for name, values in columns.items()
            if None not in values
        }

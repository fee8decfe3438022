"""Answers an evaluator's requests with a system: generated texts and log-likelihoods.

In mode ``decode`` a context's cue, its last line or word, passes through decode, as in our own
scoring (`harness.run.live`): otherwise an answer's first token would come out of an exact
prefill.  A continuation whose likelihood is asked for is fed token by token.  In mode ``prefill``
contexts are prefilled whole, and likelihoods come out of one pass over context and continuation
(DAOP, Table V).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from moebench.harness.run.accuracy import Item, compare, likeness
from moebench.harness.run.live import up_to
from moebench.harness.run.weights import OpenWeights
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import UsageError
from moebench.substrate.models.decoder import Decoder
from moebench.workloads.prompts import split_cue

#: How requests are answered: through decode, where systems approximate; or in one prefill, as far
#: as nothing must be written.
Mode = Literal["decode", "prefill"]

#: A context, or a text, as token ids.
Ids = list[int]


class Pair(NamedTuple):
    """A request for a likelihood: context and continuation, both not empty."""

    context: Ids
    continuation: Ids


class Read(NamedTuple):
    """Log-likelihood of a continuation in nats, and whether greedy decoding produces it."""

    log_likelihood: float
    greedy: bool


class Feed(NamedTuple):
    """A request for the engine: tokens to prefill, tokens forced in decode, and length.

    ``cue`` is how many of the forced tokens belong to the context.
    """

    prompt: Ids
    forced: Ids
    steps: int
    cue: int


class Responder:
    """Answers requests in batches and keeps the generations for the document.

    Args:
        weights: have the tokenizer and the lossless model.
        batch: requests that are answered together.
        decoder: what the engine computes with.
        max_length: tokens of the longest text, new ones included.

    Attributes:
        engine: answers; set once it was built.
        generations: its records of every batch so far.
        written: by ``id`` of a record, what each of its sequences wrote by itself.
        truncated: requests whose context lost its beginning.
        requests: how many were answered, by kind.
    """

    engine: Engine

    def __init__(
        self, weights: OpenWeights, batch: int, decoder: Decoder, max_length: int, mode: Mode
    ) -> None:
        self._weights, self._batch, self._decoder = weights, batch, decoder
        self._max_length, self._mode = max_length, mode
        self._items: list[Item] = []
        self.generations: list[Generation] = []
        self.written: dict[int, list[Ids]] = {}
        self.truncated = 0
        self.requests = {"generated": 0, "read": 0}

    def encode(self, text: str) -> Ids:
        """Return the token ids of a text."""
        found: Ids = self._weights.tokenizer.encode(text).ids
        return found

    # ------------------------------------------------------------------ texts

    @torch.inference_mode()
    def write(
        self, contexts: Sequence[str], new_tokens: int, stops: Sequence[str] = ()
    ) -> list[str]:
        """Generate greedily after each context, up to a stop text or the end token.

        Args:
            new_tokens: at most, for each context.
            stops: a text ends before the first of them.
        """
        feeds = [self._after(self._fitting(self.encode(c), new_tokens), new_tokens)
                 for c in contexts]  # fmt: skip
        texts: list[str] = []
        for group in self._groups(feeds):
            texts += self._write(group, new_tokens, stops)
        self.requests["generated"] += len(texts)
        return texts

    def _after(self, context: Ids, new_tokens: int) -> Feed:
        cue = self._cue(context)
        at = len(context) - cue
        return Feed(context[:at], context[at:], cue + new_tokens, cue)

    def _write(self, group: list[Feed], new_tokens: int, stops: Sequence[str]) -> list[str]:
        end = self._weights.end

        def own(tokens: Sequence[Ids]) -> list[Ids]:
            return [up_to(end, t[f.cue : f.cue + new_tokens])
                    for t, f in zip(tokens, group, strict=True)]  # fmt: skip

        def done(tokens: Sequence[Ids]) -> bool:
            return all(
                len(one) == new_tokens or one[-1:] == [end] or before(text, stops) != text
                for one, text in ((one, self._text(one)) for one in own(tokens))
            )

        generation = self._generate(group, done)
        written = own(generation.tokens)
        self.written[id(generation)] = written
        self._compare(group, [[*f.forced, *w] for f, w in zip(group, written, strict=True)])
        return [before(self._text(one), stops) for one in written]

    def _text(self, tokens: Ids) -> str:
        text: str = self._weights.tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    # ------------------------------------------------------------------ likelihoods

    @torch.inference_mode()
    def read(self, pairs: Sequence[Pair]) -> list[Read]:
        """Return the log-likelihood of each continuation after its context.

        A pair that is too long loses the beginning of its context.
        """
        cut = [Pair(self._fitting(p.context, len(p.continuation)), p.continuation) for p in pairs]
        decode = self._mode == "decode"
        feeds = list(map(self._through_decode if decode else self._in_one_pass, cut))
        found: list[Read] = []
        for group in self._groups(feeds):
            self._generate(group)
            asked = cut[len(found) : len(found) + len(group)]
            if decode:
                self._compare(group, [feed.forced for feed in group])
                history = torch.stack(self._decoder.history, dim=1)
                logits = [history[b, f.cue : f.steps] for b, f in enumerate(group)]
            else:
                whole = self._decoder.pass_logits()
                logits = [w[-len(p.continuation) :] for w, p in zip(whole, asked, strict=True)]
            found += [_read(*one) for one in zip(logits, asked, strict=True)]
        self.requests["read"] += len(found)
        return found

    def _through_decode(self, pair: Pair) -> Feed:
        cue = self._cue(pair.context)
        at = len(pair.context) - cue
        forced = [*pair.context[at:], *pair.continuation]
        return Feed(pair.context[:at], forced, len(forced), cue)

    def _in_one_pass(self, pair: Pair) -> Feed:
        return Feed([*pair.context, *pair.continuation[:-1]], [], 1, 0)

    # ------------------------------------------------------------------ what both do

    def _fitting(self, context: Ids, after: int) -> Ids:
        """Return the last tokens of a context that leave room for ``after`` further tokens."""
        room = self._max_length - after
        if room < 1:
            raise UsageError(
                f"{after} tokens leave no room for a context within --max-length "
                f"{self._max_length}; give more, or ask for fewer"
            )
        if not context:
            raise UsageError("an evaluator sent an empty context; each needs at least one token")
        self.truncated += len(context) > room
        return context[-room:]

    def _cue(self, context: Ids) -> int:
        """Return the number of context tokens fed through decode; at least one is prefilled.

        Where a tokenizer joins the cue with what is before it, it is the last token.
        """
        if self._mode == "prefill":
            return 0
        text = self._weights.tokenizer.decode(context, skip_special_tokens=False)
        cue = self.encode(split_cue(text)[1])
        whole = len(cue) < len(context) and context[len(context) - len(cue) :] == cue
        return len(cue) if whole else min(1, len(context) - 1)

    def _groups(self, feeds: Sequence[Feed]) -> Iterator[list[Feed]]:
        """Divide requests, in order, into batches that fit the planned memory."""
        group: list[Feed] = []
        for feed in feeds:
            more = [*group, feed]
            longest = max(len(f.prompt) for f in more) + max(f.steps for f in more)
            if group and (len(group) == self._batch
                          or longest > self._max_length):  # fmt: skip
                yield group
                more = [feed]
            group = more
        if group:
            yield group

    def _generate(
        self, group: list[Feed], done: Callable[[Sequence[Ids]], bool] | None = None
    ) -> Generation:
        prompts, forced = [feed.prompt for feed in group], [feed.forced for feed in group]
        steps = max(feed.steps for feed in group)
        generation = self.engine.generate(prompts, steps, forced, stop=done)
        self.generations.append(generation)
        return generation

    def _compare(self, group: list[Feed], tokens: list[Ids]) -> None:
        """Compare a batch's decoded steps with the lossless model."""
        items = [Item() for _ in group]
        prompts = [feed.prompt for feed in group]
        compare(items, self._weights.sharing(), prompts, tokens, self._decoder.history)
        self._items += items

    def accuracy(self) -> dict[str, Any]:
        """Return the ``accuracy`` part of the document; the evaluator computes the scores."""
        return {"score": None, "n": 0, "stderr": None, "metric": None, **likeness(self._items)}


def _read(logits_NV: Tensor, pair: Pair) -> Read:
    taken = torch.tensor(pair.continuation)[:, None]
    values = logits_NV.log_softmax(-1).gather(1, taken)
    return Read(float(values.sum()), bool((logits_NV.argmax(-1) == taken[:, 0]).all()))


def before(text: str, stops: Sequence[str]) -> str:
    """Cut a text before the first of the stop texts."""
    for stop in filter(None, stops):
        text = text.partition(stop)[0]
    return text

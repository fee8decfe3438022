"""How a run's questions are answered: the four ways of scoring.

| scoring | what the model does |
|---|---|
| ``fixed-length`` | every prompt generates ``new_tokens``: what latency is measured on |
| ``generation`` | the answer ends at end-of-text (DAOP Table VI, "whole generation") |
| ``likelihood`` | each option is fed token by token through decode; the likeliest is the answer |
| ``prefill`` | the same in one prefill pass (DAOP Table V, "prefill only"; what lm-eval does) |

Systems approximate in decode.  So in ``generation`` and ``likelihood`` the cue ("Answer:") is fed
through decode as well: otherwise the first token of an answer, which is all of it where options
have letters, would come from an exact prefill.
"""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from moebench.harness.run.accuracy import Accuracy
from moebench.harness.run.question import Question
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.progress_events import tell
from moebench.workloads.example import Example
from moebench.workloads.likelihood import choose
from moebench.workloads.workload import Workload


class Answers:
    """Feeds batches of questions to an engine and scores what comes back.

    Args:
        end: the token that ends a text.
        decoder: what the engine computes with.
        shared: has the lossless model's distributions.
    """

    def __init__(
        self, spec: RunSpec, workload: Workload, tokenizer: Tokenizer, end: int | None,
        questions: Sequence[Question], examples: Sequence[Example], decoder: Decoder,
        shared: SharedWork,
    ) -> None:  # fmt: skip
        self._spec, self._workload = spec, workload
        self._tokenizer, self._end = tokenizer, end
        self._questions, self._examples = questions, examples
        self._decoder, self._shared = decoder, shared
        self.accuracy = Accuracy(workload, examples)

    def batch(self, engine: Engine, rows: slice) -> list[Generation]:
        """Run a batch of questions and add its outcome to the accuracy."""
        if self._spec.scoring in ("likelihood", "prefill"):
            return self._choose(engine, rows)
        return self._write(engine, rows)

    def _write(self, engine: Engine, rows: slice) -> list[Generation]:
        """The model writes its answers."""
        spec, questions = self._spec, self._questions[rows]
        prompts = [q.prompt for q in questions]
        cues = [q.continuations[0] for q in questions]
        end = self._end if spec.scoring == "generation" else None
        generation = engine.generate(prompts, spec.new_tokens + len(cues[0]), cues, end)
        tell("scoring")
        tokens = [up_to(end, tokens) for tokens in generation.tokens]
        own = [t[len(cue) :] for t, cue in zip(tokens, cues, strict=True)]
        texts, ended = decoded(self._tokenizer, own), [self._end in t for t in own]
        self.accuracy.replied(rows, tokens, self._examples[rows], texts, ended)
        self.accuracy.compare(rows, self._shared, prompts, tokens, self._decoder.history)
        return [generation]

    def _choose(self, engine: Engine, rows: slice) -> list[Generation]:
        """The likeliest option of each question is its answer."""
        questions, examples = self._questions[rows], self._examples[rows]
        options = [q.continuations for q in questions]
        likelihoods: list[list[float]] = [[] for _ in questions]
        generations = []
        for o in range(max(map(len, options))):
            # A question with fewer options than its batch repeats its last one, not counted.
            forced = [c[min(o, len(c) - 1)] for c in options]
            generation, logits = self._feed(engine, rows, forced)
            generations.append(generation)
            for b, question in enumerate(questions):
                if o < len(options[b]):
                    first = question.counted[o]
                    taken = torch.tensor(forced[b][first:])[:, None]
                    chosen = logits[b][first:].log_softmax(-1).gather(1, taken)
                    likelihoods[b].append(float(chosen.sum()))
        if self._workload.metric == "perplexity":
            counted = [len(q.continuations[0]) for q in questions]
            self.accuracy.read(rows, [values[0] for values in likelihoods], counted)
            return generations
        picked = [
            choose(self._workload, question.texts, values)
            for question, values in zip(questions, likelihoods, strict=True)
        ]
        values = [float(p == e.answer) for p, e in zip(picked, examples, strict=True)]
        self.accuracy.answered(rows, [[p] for p in picked], values)
        return generations

    def _feed(
        self, engine: Engine, rows: slice, forced: Sequence[list[int]]
    ) -> tuple[Generation, list[Tensor]]:
        """Feed one continuation to each prompt; the logits ``[len, V]`` that each token met."""
        prompts = [q.prompt for q in self._questions[rows]]
        if self._spec.scoring == "likelihood":
            longest = max(map(len, forced))
            generation = engine.generate(prompts, longest, forced)
            tell("scoring")
            history = self._decoder.history
            tokens = [t[: len(f)] for t, f in zip(generation.tokens, forced, strict=True)]
            self.accuracy.compare(rows, self._shared, prompts, tokens, history)
            logits = torch.stack(history, dim=1)
            return generation, [logits[b, : len(f)] for b, f in enumerate(forced)]
        texts = [[*prompt, *f[:-1]] for prompt, f in zip(prompts, forced, strict=True)]
        generation = engine.generate(texts, 1)
        whole = self._decoder.pass_logits()
        return generation, [whole[b][len(prompt) - 1 :] for b, prompt in enumerate(prompts)]


def decoded(tokenizer: Tokenizer, tokens: Sequence[Sequence[int]]) -> list[str]:
    """Texts of token ids; special tokens are text too, as workloads' stops may name them."""
    return [tokenizer.decode(list(ids), skip_special_tokens=False) for ids in tokens]


def up_to(end: int | None, tokens: list[int]) -> list[int]:
    """A sequence's own tokens: in a batch it is decoded on until all of them have ended."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens

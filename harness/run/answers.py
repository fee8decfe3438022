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
from itertools import repeat

import torch
from torch import Tensor

from moebench.harness.run.accuracy import Accuracy
from moebench.harness.run.inputs import Inputs
from moebench.harness.run.stage import LiveStage
from moebench.substrate.engine.loop import Generation
from moebench.workloads.example import Example
from moebench.workloads.likelihood import choose
from moebench.workloads.scoring import cut, item_value, rouge
from moebench.workloads.workload import Workload


def answer(inputs: Inputs, stage: LiveStage, accuracy: Accuracy, rows: slice) -> list[Generation]:
    """Run a batch of questions and add its outcome to ``accuracy``."""
    by_options = inputs.spec.scoring in ("likelihood", "prefill")
    return (_choose if by_options else _write)(inputs, stage, accuracy, rows)


def _write(inputs: Inputs, stage: LiveStage, accuracy: Accuracy, rows: slice) -> list[Generation]:
    """The model writes its answers."""
    spec, questions = inputs.spec, inputs.questions[rows]
    prompts = [q.prompt for q in questions]
    cues = [q.continuations[0] for q in questions]
    end = inputs.end if spec.scoring == "generation" else None
    generation = stage.engine.generate(prompts, spec.new_tokens + len(cues[0]), cues, end)
    tokens = [_up_to(end, tokens) for tokens in generation.tokens]
    replies = [
        cut(inputs.tokenizer.decode(t[len(cue) :], skip_special_tokens=False), inputs.workload.stop)
        for t, cue in zip(tokens, cues, strict=True)
    ]
    examples = inputs.sample.examples[rows]
    accuracy.answered(rows, tokens, _values(inputs.workload, examples, replies))
    if inputs.workload.metric == "rouge":
        accuracy.rouges += map(rouge, repeat(inputs.workload), examples, replies)
    accuracy.compare(rows, stage.shared, prompts, tokens, stage.decoder.history)
    return [generation]


def _values(
    chosen: Workload, examples: Sequence[Example], replies: Sequence[str]
) -> list[float] | None:
    """What the answers are worth; None where there is nothing to compare them with."""
    if not chosen.scored:
        return None
    return list(map(item_value, repeat(chosen), examples, replies))


def _up_to(end: int | None, tokens: list[int]) -> list[int]:
    """A sequence's own tokens: in a batch it is decoded on until all of them have ended."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def _choose(inputs: Inputs, stage: LiveStage, accuracy: Accuracy, rows: slice) -> list[Generation]:
    """The likeliest option of each question is its answer."""
    questions, examples = inputs.questions[rows], inputs.sample.examples[rows]
    options = [q.continuations for q in questions]
    likelihoods: list[list[float]] = [[] for _ in questions]
    generations = []
    for o in range(max(map(len, options))):
        # A question with fewer options than its batch repeats its last one, which is not counted.
        forced = [c[min(o, len(c) - 1)] for c in options]
        generation, logits = _feed(inputs, stage, accuracy, rows, forced)
        generations.append(generation)
        for b, question in enumerate(questions):
            if o < len(options[b]):
                first = question.counted[o]
                taken = torch.tensor(forced[b][first:])[:, None]
                chosen = logits[b][first:].log_softmax(-1).gather(1, taken)
                likelihoods[b].append(float(chosen.sum()))
    if inputs.workload.metric == "perplexity":
        counted = [len(q.continuations[0]) for q in questions]
        accuracy.read(rows, [values[0] for values in likelihoods], counted)
        return generations
    picked = [
        choose(inputs.workload, question.texts, values)
        for question, values in zip(questions, likelihoods, strict=True)
    ]
    values = [float(p == e.answer) for p, e in zip(picked, examples, strict=True)]
    accuracy.answered(rows, [[p] for p in picked], values)
    return generations


def _feed(
    inputs: Inputs, stage: LiveStage, accuracy: Accuracy, rows: slice, forced: Sequence[list[int]]
) -> tuple[Generation, list[Tensor]]:
    """Feed one continuation to each prompt; the logits ``[len, V]`` that each token met."""
    prompts = [q.prompt for q in inputs.questions[rows]]
    if inputs.spec.scoring == "likelihood":
        longest = max(map(len, forced))
        generation = stage.engine.generate(prompts, longest, forced)
        history = stage.decoder.history
        tokens = [t[: len(f)] for t, f in zip(generation.tokens, forced, strict=True)]
        accuracy.compare(rows, stage.shared, prompts, tokens, history)
        logits = torch.stack(history, dim=1)
        return generation, [logits[b, : len(f)] for b, f in enumerate(forced)]
    texts = [[*prompt, *f[:-1]] for prompt, f in zip(prompts, forced, strict=True)]
    generation = stage.engine.generate(texts, 1)
    whole = stage.decoder.pass_logits()
    return generation, [whole[b][len(prompt) - 1 :] for b, prompt in enumerate(prompts)]

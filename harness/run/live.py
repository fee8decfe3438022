"""Live runs: a workload's prompts are answered in one of four scoring modes.

| scoring | what the model does |
|---|---|
| ``fixed-length`` | every prompt generates ``new_tokens``: what latency is measured on |
| ``generation`` | the answer ends at end-of-text (DAOP Table VI, "whole generation") |
| ``likelihood`` | each option is fed token by token through decode; the likeliest is the answer |
| ``prefill`` | the same in one prefill pass (DAOP Table V, "prefill only"; what lm-eval does) |

Systems approximate in decode.  So in ``generation`` and ``likelihood`` the cue ("Answer:") is fed
through decode as well: otherwise the first token of an answer, which is all of it where options
have letters, would come from an exact prefill.

With ``--temperature`` tokens are drawn in the first two modes (`substrate.models.sampling`), the
cue's excepted.  Scores are those of greedy answers unless they are asked for: ``fixed-length`` has
none then, ``generation`` scores the drawn answers.  Agreement and KL compare the system's
distribution with that of the resident model after the same tokens, before temperature and top-p.
Systems learn from greedy texts.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from tokenizers import Tokenizer
from torch import Tensor

from moebench.harness.run.accuracy import Accuracy
from moebench.harness.run.learn import Learnable
from moebench.harness.run.questions import Question, check_questions, questions_of
from moebench.harness.run.session import Session
from moebench.harness.run.weights import (
    OpenWeights,
    computing_system,
    open_weights,
    own_hashes,
    under,
)
from moebench.harness.stage.kinds import memory_of, open_stage
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.records import Generation
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.sampling import Sampling
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.progress_events import report_phase
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet
from moebench.workloads.example import Example
from moebench.workloads.likelihood import choose
from moebench.workloads.workload import Workload


@dataclass(slots=True, kw_only=True)
class ComputingSession(Session):
    """A run on the engine that computes tokens from weights."""

    weights: OpenWeights
    data_dir: Path | None

    @property
    @abstractmethod
    def note(self) -> str:
        """Note about the texts for which memory is planned."""

    @abstractmethod
    def attach(self, decoder: Decoder) -> None:
        """Called when the decoder is known that computes the answers."""

    def varied(self, spec: RunSpec) -> Self:
        """Return the run of another spec on the same weights and prompts."""
        system, hashes = under(spec, self.hashes, self.data_dir)
        weights = replace(self.weights, shared=None, expert_dtype=spec.expert_dtype)
        return replace(self, spec=spec, system=system, hashes=hashes, weights=weights)

    def check_memory(self) -> None:
        """Refuse a run whose weights and longest text do not fit into memory."""
        memory_of(self.spec, self.system, self.full, self.longest)

    def learnable(self, scratch: Path, progress: Callable[[int, int], None]) -> Learnable:
        """Return the routing of calibration texts that the lossless model generates."""
        return self.weights.learnable(self.spec, self.system, self.data_dir, scratch, progress)

    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """Open the stage of the machine that the spec names, with memory for the longest text.

        The system gets the norms of experts' weights, if it reads them.
        """
        if self.system.reads_weight_norms:
            self.system.weight_norms(self.weights.weight_norms(scratch))
        request = self.weights.request(
            self.spec, self.system, self.longest, self._model, scratch, keep_timeline, self.note
        )
        return open_stage(request, stack)

    def _model(self, decoder: Decoder | None) -> Model:
        """Return the model that the engine calls: the given decoder, or one with all experts."""
        model: Model | None = decoder
        if decoder is None:
            decoder, found = self.weights.resident(self.spec.scoring, self.system)
            model = self.wrap(found)
        self.attach(decoder)
        assert model is not None
        return model

    def close(self) -> None:
        """Release the weights' files."""
        self.weights.checkpoint.close()


@dataclass(slots=True, kw_only=True)
class LiveSession(ComputingSession):
    """A live run: it computes tokens from weights and prompts."""

    workload: Workload
    questions: list[Question]
    answers: "Answers" = field(init=False)

    @property
    def longest(self) -> int:
        """Tokens of the longest text, new ones included."""
        return max(q.length for q in self.questions) + self.spec.new_tokens

    def share(self, shared: SharedWork | None) -> SharedWork:
        """Use experts, prefills and reference logits of an earlier run."""
        return self.weights.share(shared)

    @property
    def note(self) -> str:
        """Note about the lengths of the prompts."""
        lengths = [len(q.prompt) for q in self.questions]
        return (
            f"prompts of {min(lengths)} to {max(lengths)} tokens, as the computing model's own "
            "tokenizer counts them"
        )

    def attach(self, decoder: Decoder) -> None:
        """Draw tokens as the spec says, and score answers with the decoder's logits."""
        decoder.sampling = sampling_of(self.spec)
        self.answers = Answers(self, decoder)

    def answer(self, stage: Stage, rows: slice) -> list[Generation]:
        """Run a batch of prompts and add its answers to the accuracy."""
        return self.answers.batch(stage.engine, rows)

    def begin(self, stage: Stage, tokens: int, batches: int = 1) -> None:
        """Run the first batches for at most ``tokens`` tokens each, without scoring.

        What is fed through decode comes first, as in an answer.
        """
        most = 1 if self.spec.scoring == "prefill" else min(tokens, self.spec.new_tokens)
        for first in range(0, batches * self.spec.batch, self.spec.batch):
            questions = self.questions[first : first + self.spec.batch]
            cues = [q.continuations[0] for q in questions]
            stage.engine.generate([q.prompt for q in questions], most, cues)

    def written(self, generation: Generation) -> list[list[int]]:
        """Return the generated texts up to their end token; none if options are fed."""
        if self.spec.scoring in ("likelihood", "prefill"):
            return []
        end = self.weights.end if self.spec.scoring == "generation" else None
        return [up_to(end, tokens) for tokens in generation.tokens]

    def accuracy(self) -> dict[str, Any]:
        """Return scores, agreement and KL."""
        return self.answers.accuracy.document()


class Inputs(NamedTuple):
    """Opened inputs of a live or native run: weights, prompts and their hashes."""

    weights: OpenWeights
    sample: PromptSet
    questions: list[Question]
    hashes: dict[str, str]


def open_inputs(spec: RunSpec, data_dir: Path | None) -> Inputs:
    """Open the weights, draw the prompts, and check that they fit together."""
    weights = open_weights(spec)
    sample, questions = questions_of(spec, data_dir, weights.texts)
    check_questions(spec, sample, questions, weights.checkpoint)
    return Inputs(weights, sample, questions, weights.hashes | {"data": sample.data_hash})


def prepare(spec: RunSpec, data_dir: Path | None) -> LiveSession:
    """Open the inputs of a live run and build its system."""
    assert not spec.replays, "harness.one_run.prepare opens traces too"
    system = computing_system(spec)
    weights, sample, questions, hashes = open_inputs(spec, data_dir)
    return LiveSession(
        spec=spec, system=system, full=weights.full, sample=sample,
        hashes=hashes | own_hashes(spec, system, data_dir), weights=weights, data_dir=data_dir,
        workload=workload(spec.workload), questions=questions,
    )  # fmt: skip


def sampling_of(spec: RunSpec) -> Sampling | None:
    """Return how a live run draws its tokens; None if it takes the likeliest."""
    return Sampling(spec.temperature, spec.top_p, spec.seed) if spec.temperature else None


# ----------------------------------------------------------------------------- answers


class Answers:
    """Feeds batches of prompts to an engine and scores the answers.

    Args:
        session: has the questions, their examples, and the lossless model's distributions.
        decoder: what the engine computes with.
    """

    def __init__(self, session: LiveSession, decoder: Decoder) -> None:
        weights = session.weights
        self._spec, self._workload = session.spec, session.workload
        self._tokenizer, self._end = weights.tokenizer, weights.end
        self._questions: Sequence[Question] = session.questions
        self._examples: Sequence[Example] = session.sample.examples
        self._decoder, self._shared = decoder, weights.sharing()
        self.accuracy = Accuracy(session.workload, self._examples)

    def batch(self, engine: Engine, rows: slice) -> list[Generation]:
        """Run a batch of prompts and add its answers to the accuracy."""
        if self._spec.scoring in ("likelihood", "prefill"):
            return self._choose(engine, rows)
        return self._write(engine, rows)

    def _write(self, engine: Engine, rows: slice) -> list[Generation]:
        """Generate and score the answers of a batch."""
        spec, questions = self._spec, self._questions[rows]
        prompts = [q.prompt for q in questions]
        cues = [q.continuations[0] for q in questions]
        end = self._end if spec.scoring == "generation" else None
        generation = engine.generate(prompts, spec.new_tokens + len(cues[0]), cues, end)
        report_phase("scoring")
        tokens = [up_to(end, tokens) for tokens in generation.tokens]
        own = [t[len(cue) :] for t, cue in zip(tokens, cues, strict=True)]
        if spec.temperature and spec.scoring == "fixed-length":  # a score was not asked for
            self.accuracy.answered(rows, tokens, None)
        else:
            texts, ended = decoded(self._tokenizer, own), [self._end in t for t in own]
            self.accuracy.replied(rows, tokens, self._examples[rows], texts, ended)
        self.accuracy.compare(rows, self._shared, prompts, tokens, self._decoder.history)
        return [generation]

    def _choose(self, engine: Engine, rows: slice) -> list[Generation]:
        """Score the most likely option of each example of a batch."""
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
        """Feed a continuation to each prompt; return the logits ``[len, V]`` of its tokens."""
        prompts = [q.prompt for q in self._questions[rows]]
        if self._spec.scoring == "likelihood":
            longest = max(map(len, forced))
            generation = engine.generate(prompts, longest, forced)
            report_phase("scoring")
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
    """Decode token ids to texts, with special tokens, since stop texts may contain them."""
    return [tokenizer.decode(list(ids), skip_special_tokens=False) for ids in tokens]


def up_to(end: int | None, tokens: list[int]) -> list[int]:
    """Cut a sequence after its end token; in a batch, decoding goes on until all have ended."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens

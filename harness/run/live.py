"""A run that answers a workload's questions, with a model that computes."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from moebench.harness.run import learn
from moebench.harness.run.answers import Answers, up_to
from moebench.harness.run.identity import system_hash
from moebench.harness.run.question import Question, question_of
from moebench.harness.run.session import Session
from moebench.harness.run.texts import Texts, read_texts
from moebench.harness.run.weights import (
    Computing,
    computing_system,
    open_weights,
    weights_path,
)
from moebench.harness.stage.stage import Stage
from moebench.results.spec import RunSpec
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import CheckpointError, UsageError
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.weights import Checkpoint
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet, load
from moebench.workloads.example import Example
from moebench.workloads.workload import Workload


@dataclass(slots=True, kw_only=True)
class LiveSession(Computing, Session):
    """A run that computes, from weights and questions."""

    workload: Workload
    questions: list[Question]
    answers: Answers = field(init=False)

    @property
    def longest(self) -> int:
        """Tokens of the longest text, new ones included."""
        return max(q.length for q in self.questions) + self.spec.new_tokens

    def varied(self, spec: RunSpec) -> "LiveSession":
        """The same weights and questions under another spec."""
        return replace(self, **self.other(spec))

    def opened(self, decoder: Decoder) -> None:
        """Get ready to answer."""
        self.answers = Answers(
            self.spec, self.workload, self.tokenizer, self.end, self.questions,
            self.sample.examples, decoder, self.sharing(),
        )  # fmt: skip

    @property
    def note(self) -> str:
        """A sentence on the lengths of prompts, for the document."""
        lengths = [len(q.prompt) for q in self.questions]
        return (
            f"prompts of {min(lengths)} to {max(lengths)} tokens, as the computing model's own "
            "tokenizer counts them"
        )

    def answer(self, stage: Stage, rows: slice) -> list[Generation]:
        """Run a batch of questions and add its outcome to the accuracy."""
        return self.answers.batch(stage.engine, rows)

    def begin(self, stage: Stage, tokens: int) -> None:
        """What is fed through decode comes first, as in an answer."""
        questions = self.questions[: self.spec.batch]
        most = 1 if self.spec.scoring == "prefill" else min(tokens, self.spec.new_tokens)
        cues = [q.continuations[0] for q in questions]
        stage.engine.generate([q.prompt for q in questions], most, cues)

    def written(self, generation: Generation) -> list[list[int]]:
        """Up to the token that ends an answer; nothing where the options are what is fed."""
        if self.spec.scoring in ("likelihood", "prefill"):
            return []
        end = self.end if self.spec.scoring == "generation" else None
        return [up_to(end, tokens) for tokens in generation.tokens]

    def accuracy(self) -> dict[str, Any]:
        """Scores, agreement and KL."""
        return self.answers.accuracy.document()


class Inputs(NamedTuple):
    """What a run with weights and questions reads; hashes by name."""

    full: ModelShape
    checkpoint: Checkpoint
    sample: PromptSet
    questions: list[Question]
    texts: Texts
    hashes: dict[str, str]


def open_inputs(spec: RunSpec, data_dir: Path | None) -> Inputs:
    """Open the weights, draw the prompts, and check both.

    Args:
        data_dir: the folder of evaluation sets, if any.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    full, checkpoint, texts, hashes = open_weights(spec)
    sample, questions = _questions(spec, data_dir, texts)
    _check_questions(spec, sample, questions, checkpoint)
    hashes |= {"data": sample.data_hash}
    return Inputs(full, checkpoint, sample, questions, texts, hashes)


def prepare(spec: RunSpec, data_dir: Path | None) -> LiveSession:
    """What `open_inputs` opens, and the system.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    assert not spec.replays, "harness.run.execute.prepare opens traces too"
    system = computing_system(spec)
    full, checkpoint, sample, questions, texts, hashes = open_inputs(spec, data_dir)
    own = {"system": system_hash(system), **learn.identity(spec, system, data_dir)}
    return LiveSession(
        spec=spec,
        system=system,
        full=full,
        sample=sample,
        hashes=hashes | own,
        checkpoint=checkpoint,
        tokenizer=texts.tokenizer,
        workload=workload(spec.workload),
        questions=questions,
        end=texts.end,
        data_dir=data_dir,
    )


def prompts_of(spec: RunSpec, data_dir: Path | None) -> tuple[PromptSet, list[Question], Texts]:
    """The prompts of a run, as its weights' tokenizer reads them.

    Raises:
        MoeBenchError: there are no such prompts, or no tokenizer.
    """
    texts = read_texts(weights_path(spec), spec.plain_prompts)
    return *_questions(spec, data_dir, texts), texts


def _questions(
    spec: RunSpec, data_dir: Path | None, texts: Texts
) -> tuple[PromptSet, list[Question]]:
    chosen = workload(spec.workload)
    sample = load(chosen, count=spec.prompts, seed=spec.seed, data_dir=data_dir)
    shots: tuple[Example, ...] = ()
    if spec.few_shot:
        shots = load(chosen, "train", spec.few_shot, spec.seed, data_dir).examples
    questions = [
        question_of(spec.scoring, chosen, example, shots, texts) for example in sample.examples
    ]
    return sample, questions


def _check_questions(
    spec: RunSpec, sample: PromptSet, questions: list[Question], checkpoint: Checkpoint
) -> None:
    """Check that every prompt fits the weights."""
    shape = checkpoint.shape
    for example, question in zip(sample.examples, questions, strict=True):
        highest = max(max(ids, default=0) for ids in (question.prompt, *question.continuations))
        if highest >= shape.vocab_size:
            raise CheckpointError(
                f"{checkpoint.path}: tokenizer.json gives token {highest}, the model knows "
                f"{shape.vocab_size}; the two do not belong together"
            )
        if question.length + spec.new_tokens > shape.max_positions:
            raise UsageError(
                f"{sample.source}: {example.id} has {question.length} tokens, with "
                f"{spec.new_tokens} new ones more than the model's {shape.max_positions} "
                "positions; choose another workload or fewer --new-tokens"
            )

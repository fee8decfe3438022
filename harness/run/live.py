"""A run whose model computes: it opens weights, tokenizer and questions, and builds the engine."""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from moebench.harness.run import calibration
from moebench.harness.run.answers import Answers, up_to
from moebench.harness.run.identity import profile_hash, system_hash
from moebench.harness.run.local import local, named
from moebench.harness.run.question import Question, question_of
from moebench.harness.run.session import Learnable, Session
from moebench.harness.run.shared import SharedWork
from moebench.harness.run.spec import RunSpec
from moebench.harness.run.stage import Stage, memory_for, simulated
from moebench.harness.run.texts import Texts, read_texts
from moebench.substrate.engine.records import Generation
from moebench.substrate.errors import CheckpointError, UsageError
from moebench.substrate.models.catalogue import (
    check_topology,
    model_shape,
    scale_names,
    scale_path,
)
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.imported import open_checkpoint
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.weights import Checkpoint
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet, load
from moebench.workloads.example import Example
from moebench.workloads.workload import Workload


@dataclass(slots=True, kw_only=True)
class LiveSession(Session):
    """A run that computes, from weights and questions.

    Attributes:
        end: the token that ends a text.
        shared: work that runs of the same weights share; a run alone makes its own.
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    workload: Workload
    questions: list[Question]
    end: int | None
    data_dir: Path | None
    shared: SharedWork | None = None
    answers: Answers = field(init=False)

    @property
    def longest(self) -> int:
        """Tokens of the longest text, new ones included."""
        return max(q.length for q in self.questions) + self.spec.new_tokens

    def sharing(self) -> SharedWork:
        """The shared work; a run alone remembers nothing."""
        if self.shared is None:
            self.shared = SharedWork(self.checkpoint, expert_dtype=self.spec.expert_dtype)
        return self.shared

    def share(self, shared: SharedWork | None) -> SharedWork:
        """Experts, prefills and reference logits; of a full-size model, experts alone."""
        # The others would fill the memory.
        remember = self.spec.weights is None
        self.shared = shared or SharedWork(self.checkpoint, remember, self.spec.expert_dtype)
        return self.shared

    def close(self) -> None:
        """Release the weights' files."""
        self.checkpoint.close()

    def varied(self, spec: RunSpec) -> "LiveSession":
        """The same weights and questions under another spec."""
        system = spec.make_system()
        own = {"profile": profile_hash(spec), "system": system_hash(system)}
        shared = {k: v for k, v in self.hashes.items() if not k.startswith("calibration")}
        hashes = shared | own | calibration.identity(spec, system, self.data_dir)
        return replace(self, spec=spec, system=system, hashes=hashes, shared=None)

    def learnable(self, scratch: Path, progress: Callable[[int, int], None]) -> Learnable:
        """Texts that the model writes without approximations, to a train split's prompts.

        Its experts are quantised if the run's are.  Texts end as the run's own do: at end-of-text
        where answers do, else all are as long.
        """
        return calibration.written(
            calibration.source(self.spec),
            calibration.texts(self.spec, self.system, self.data_dir),
            self.sharing().decoder,
            self.sharing().differentiable,
            self.hashes["weights"] + (self.spec.expert_dtype or ""),
            self.tokenizer,
            self.end if self.spec.scoring == "generation" else None,
            calibration.folder(scratch),
            progress,
            calibration.learnt_from(self.system.policies.values()),
            self.system.lookaheads,
        )

    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """A simulated machine with every expert in memory, or this computer."""
        memory = memory_for(self.spec, self.system, self.full, self.longest)
        if self.spec.machine == "local":
            weights = self.hashes["weights"]
            stage, decoder = local(
                self.spec, self.system, self.checkpoint, weights,
                named(self.spec, self.checkpoint), memory, scratch, keep_timeline, stack,
            )  # fmt: skip
            self._answer_with(decoder)
            return stage
        decoder = self.sharing().decoder(reuse_predictions=True)
        self._answer_with(decoder)
        # A prefill that is remembered answers for gates and states, not for predictions.
        predicts = any(predictor.in_prefill for predictor in self.system.predictors)
        model = self.wrap(decoder if predicts else self.sharing().remembering(decoder))
        lengths = [len(q.prompt) for q in self.questions]
        note = (
            f"prompts of {min(lengths)} to {max(lengths)} tokens, as the computing model's own "
            "tokenizer counts them"
        )
        notes = [note]
        if self.spec.expert_dtype is not None:
            notes.append(
                f"experts are quantised to {self.spec.expert_dtype} and computed with as the "
                "numbers that these stand for, in fp32"
            )
        return simulated(
            self.spec, self.system, model, self.full, memory, keep_timeline, notes=notes
        )

    def _answer_with(self, decoder: Decoder) -> None:
        self.answers = Answers(
            self.spec, self.workload, self.tokenizer, self.end, self.questions,
            self.sample.examples, decoder, self.sharing(),
        )  # fmt: skip

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
    full = model_shape(spec.model)
    checkpoint = open_checkpoint(_weights_path(spec))
    check_topology(full, checkpoint.shape, checkpoint.path)
    sample, questions, texts = prompts_of(spec, data_dir)
    _check_questions(spec, sample, questions, checkpoint)
    hashes = {
        "weights": checkpoint.content_hash(),
        "tokenizer": _hash(texts.tokenizer.to_str()),
        "model": _hash(full.model_dump_json()),
        "data": sample.data_hash,
        "profile": profile_hash(spec),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    if texts.template is not None:
        hashes["chat template"] = _hash(texts.template.source)
    return Inputs(full, checkpoint, sample, questions, texts, hashes)


def prepare(spec: RunSpec, data_dir: Path | None) -> LiveSession:
    """What `open_inputs` opens, and the system.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    assert not spec.replays, "harness.run.runner.prepare opens traces too"
    system = spec.make_system()
    if system.clairvoyant:
        raise UsageError(
            f"{spec.title} must know which experts come next: replay recorded routing, for example "
            "--trace DIR or --routing drawn"
        )
    full, checkpoint, sample, questions, texts, hashes = open_inputs(spec, data_dir)
    own = {"system": system_hash(system), **calibration.identity(spec, system, data_dir)}
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
    texts = read_texts(_weights_path(spec), spec.plain_prompts)
    chosen = workload(spec.workload)
    sample = load(chosen, count=spec.prompts, seed=spec.seed, data_dir=data_dir)
    shots: tuple[Example, ...] = ()
    if spec.few_shot:
        shots = load(chosen, "train", spec.few_shot, spec.seed, data_dir).examples
    questions = [
        question_of(spec.scoring, chosen, example, shots, texts) for example in sample.examples
    ]
    return sample, questions, texts


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def _weights_path(spec: RunSpec) -> Path:
    if spec.weights is not None:
        return Path(spec.weights)
    if spec.model not in scale_names():
        ours = ", ".join(scale_names())
        raise UsageError(
            f"no scale model of {spec.model} ships yet (there is one of: {ours}); "
            "give real weights with --weights DIR"
        )
    return scale_path(spec.model)

"""What a run reads: weights, tokenizer and prompts, checked before anything runs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from moebench.harness.run.spec import RunSpec, run_id
from moebench.substrate.errors import CheckpointError, UsageError
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import check_topology, model_shape, scale_names, scale_path
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.weights import Checkpoint
from moebench.systems.options import build
from moebench.systems.registry import source_hash
from moebench.workloads.catalogue import workload
from moebench.workloads.draw import PromptSet, load
from moebench.workloads.example import END_OF_TEXT, Example
from moebench.workloads.likelihood import continuations
from moebench.workloads.prompts import build_prompt, split_cue
from moebench.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Question:
    """One example as token ids.

    Attributes:
        prompt: what is prefilled.
        cue: how each continuation begins: the part of the prompt that decode reads.
        continuations: what decode is forced to take: the cue alone where the model writes its
            answer, the cue and an option's text where options are weighed.
        counted: for each continuation, the place of its first token whose likelihood counts.
        texts: the options' texts.
    """

    prompt: list[int]
    cue: list[int] = field(default_factory=list)
    continuations: tuple[list[int], ...] = ([],)
    counted: tuple[int, ...] = (0,)
    texts: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the prompt and its longest continuation."""
        return len(self.prompt) + max(map(len, self.continuations))


@dataclass(slots=True)
class RunInputs:
    """What every run reads, and the identity that follows from it.

    `Inputs` are computed, `harness.run.replay.ReplayInputs` replayed.  ``full`` is the model that
    is charged.
    """

    spec: RunSpec
    full: ModelShape
    sample: PromptSet
    hashes: dict[str, str]

    @property
    def run_id(self) -> str:
        """Equal for equal results; every measurement on this computer is its own."""
        return run_id(self.spec, **self.hashes)


@dataclass(slots=True)
class Inputs(RunInputs):
    """Weights and questions.  ``end`` is the token that ends a text."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    workload: Workload
    questions: list[Question]
    end: int | None
    data_dir: Path | None

    @property
    def longest(self) -> int:
        """Tokens of the longest text, new ones included."""
        return max(q.length for q in self.questions) + self.spec.new_tokens


def prepare(spec: RunSpec, data_dir: Path | None) -> Inputs:
    """Open the weights and draw the prompts; what can be wrong with the input shows here.

    Args:
        data_dir: the folder of evaluation sets, if any.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    assert spec.trace is None, "harness.run.runner.prepare opens traces too"
    build(spec.system, spec.settings)
    full = model_shape(spec.model)
    path = _weights_path(spec)
    checkpoint = Checkpoint(path)
    check_topology(full, checkpoint.shape, checkpoint.path)
    tokenizer = _tokenizer(path / "tokenizer.json")
    chosen = workload(spec.workload)
    sample = load(chosen, count=spec.prompts, seed=spec.seed, data_dir=data_dir)
    shots: tuple[Example, ...] = ()
    if spec.few_shot:
        shots = load(chosen, "train", spec.few_shot, spec.seed, data_dir).examples
    questions = [_question(spec, chosen, e, shots, tokenizer) for e in sample.examples]
    _check_questions(spec, sample, questions, checkpoint)
    local = spec.machine == "local"
    profile = datetime.now(UTC).isoformat() if local else load_profile(spec.machine).content_hash()
    hashes = {
        "weights": checkpoint.content_hash(),
        "tokenizer": _hash(tokenizer.to_str()),
        "model": _hash(full.model_dump_json()),
        "data": sample.data_hash,
        "profile": profile,
        "system": source_hash(spec.system),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    end = tokenizer.token_to_id(END_OF_TEXT)
    return Inputs(
        spec, full, sample, hashes, checkpoint, tokenizer, chosen, questions, end, data_dir
    )


def _question(
    spec: RunSpec, chosen: Workload, example: Example, shots: Sequence[Example],
    tokenizer: Tokenizer,
) -> Question:  # fmt: skip
    """An example as its way of scoring feeds it; see `harness.run.answers`."""

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text).ids
        return found

    if spec.scoring == "fixed-length":
        return Question(ids(build_prompt(chosen, example, shots)))
    if spec.scoring == "generation":
        prompt, cue = split_cue(build_prompt(chosen, example, shots))
        return Question(ids(prompt), ids(cue), (ids(cue),))
    if chosen.metric == "perplexity":  # all of a text but its first token is its continuation
        first, *rest = ids(example.prompt)
        return Question([first], [], (rest,), (0,), (example.prompt,))
    asked = continuations(chosen, example, shots)
    prompt, cue = (asked.prompt, "") if spec.scoring == "prefill" else split_cue(asked.prompt)
    read = ids(cue)
    options = tuple([*read, *ids(text)] for text in asked.texts)
    counted = tuple(
        len(read) + len(ids(text[:uncounted]))
        for text, uncounted in zip(asked.texts, asked.uncounted, strict=True)
    )
    return Question(ids(prompt), read, options, counted, asked.texts)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tokenizer(file: Path) -> Tokenizer:
    if not file.exists():
        raise CheckpointError(f"{file}: missing; a run needs the model's tokenizer")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: not a tokenizer that can be read ({error})") from error


def _check_questions(
    spec: RunSpec, sample: PromptSet, questions: list[Question], checkpoint: Checkpoint
) -> None:
    """Every prompt fits the weights: better said now than after an hour."""
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

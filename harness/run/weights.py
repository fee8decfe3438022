"""What computes: weights, tokenizer and engine of a run, whoever asks it."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from moebench.harness.run import learn
from moebench.harness.run.identity import profile_hash, system_hash
from moebench.harness.run.session import Learnable, OnEngine
from moebench.harness.run.texts import Texts, read_texts
from moebench.harness.stage.kinds import memory_of, open_stage
from moebench.harness.stage.stage import Stage, StageRequest
from moebench.results.spec import RunSpec
from moebench.substrate.engine.system import System
from moebench.substrate.errors import UsageError
from moebench.substrate.models.catalogue import (
    check_topology,
    model_shape,
    scale_names,
    scale_path,
)
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.imported import open_checkpoint
from moebench.substrate.models.protocol import Model
from moebench.substrate.models.shape import ModelShape
from moebench.substrate.models.shared import SharedWork
from moebench.substrate.models.weights import Checkpoint


@dataclass(slots=True, kw_only=True)
class Computing(OnEngine):
    """A run whose model computes.

    Attributes:
        end: the token that ends a text.
        shared: work that runs of the same weights share; a run alone makes its own.
    """

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    end: int | None
    data_dir: Path | None
    shared: SharedWork | None = None

    @abstractmethod
    def opened(self, decoder: Decoder) -> None:
        """Called with the decoder that the engine computes with, before anything runs."""

    @property
    @abstractmethod
    def note(self) -> str:
        """A sentence on the lengths of prompts, for the document."""

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

    def other(self, spec: RunSpec) -> dict[str, Any]:
        """What of this run is another under another spec of the same weights and questions.

        Raises:
            UsageError: its system decides by what comes next.
        """
        system = computing_system(spec)
        own = {"profile": profile_hash(spec), "system": system_hash(system)}
        shared = {k: v for k, v in self.hashes.items() if not k.startswith("calibration")}
        hashes = shared | own | learn.identity(spec, system, self.data_dir)
        return {"spec": spec, "system": system, "hashes": hashes, "shared": None}

    def learnable(self, scratch: Path, progress: Callable[[int, int], None]) -> Learnable:
        """Texts that the model writes without approximations, to a train split's prompts.

        Its experts are quantised if the run's are.  Texts end as the run's own do: at end-of-text
        where answers do, else all are as long.
        """
        return learn.written(
            learn.source(self.spec),
            learn.texts(self.spec, self.system, self.data_dir),
            learn.LosslessModel(
                self.sharing().decoder,
                self.sharing().differentiable,
                self.hashes["weights"] + (self.spec.expert_dtype or ""),
                self.tokenizer,
                self.end if self.spec.scoring == "generation" else None,
            ),
            learn.folder(scratch),
            progress,
            learn.learnt_from(self.system.policies.values()),
            self.system.lookaheads,
        )

    def check_memory(self) -> None:
        """Count what fits beside the longest text."""
        memory_of(self.spec, self.system, self.full, self.longest)

    def open(self, scratch: Path, keep_timeline: bool, stack: ExitStack) -> Stage:
        """Open the machine that the spec names; this computer computes with what it loads."""
        request = StageRequest(
            spec=self.spec,
            system=self.system,
            full=self.full,
            longest=self.longest,
            model=self._model,
            weights=self.checkpoint,
            weights_name=self.hashes["weights"],
            ran=named(self.spec, self.checkpoint),
            scratch=scratch,
            keep_timeline=keep_timeline,
            notes=() if self.spec.machine == "local" else self._notes(),
        )
        return open_stage(request, stack)

    def _model(self, decoder: Decoder | None) -> Model:
        """Return what the engine calls: the given decoder, or one with every expert in memory."""
        if decoder is not None:
            self.opened(decoder)
            return decoder
        decoder = self.sharing().decoder(reuse_predictions=True)
        self.opened(decoder)
        # A prefill that is remembered answers for gates and states, not for predictions, and of its
        # tokens for the last one alone.
        anew = self.spec.scoring == "prefill"
        anew = anew or any(predictor.in_prefill for predictor in self.system.predictors)
        return self.wrap(decoder if anew else self.sharing().remembering(decoder))

    def _notes(self) -> list[str]:
        """Sentences on the prompts, and on the precision that a simulated machine computes in."""
        notes = [self.note]
        if self.spec.expert_dtype is not None:
            notes.append(
                f"experts are quantised to {self.spec.expert_dtype} and computed with as the "
                "numbers that these stand for, in fp32"
            )
        return notes


def named(spec: RunSpec, checkpoint: Checkpoint) -> str:
    """Return the name and size of the model that computes, as a measured time must state them."""
    size = checkpoint.shape.total_params
    text = f"{size / 1e9:.3g} B" if size >= 1e9 else f"{size / 1e6:.3g} M"
    name = f"{spec.model}'s scale model"
    if spec.weights is not None:
        name = Path(spec.weights).resolve().name
    return f"{name}, {text} parameters"


class Weights(NamedTuple):
    """What computes, open and checked; hashes by name."""

    full: ModelShape
    checkpoint: Checkpoint
    texts: Texts
    hashes: dict[str, str]


def open_weights(spec: RunSpec) -> Weights:
    """Open a run's weights and tokenizer.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    full = model_shape(spec.model)
    checkpoint = open_checkpoint(weights_path(spec))
    check_topology(full, checkpoint.shape, checkpoint.path)
    texts = read_texts(weights_path(spec), spec.plain_prompts)
    hashes = {
        "weights": checkpoint.content_hash(),
        "tokenizer": _hash(texts.tokenizer.to_str()),
        "model": _hash(full.model_dump_json()),
        "profile": profile_hash(spec),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    if texts.template is not None:
        hashes["chat template"] = _hash(texts.template.source)
    return Weights(full, checkpoint, texts, hashes)


def computing_system(spec: RunSpec) -> System:
    """The system of a run that computes.

    Raises:
        UsageError: it decides by what comes next, which nobody knows here.
    """
    system = spec.make_system()
    if system.clairvoyant:
        raise UsageError(
            f"{spec.title} must know which experts come next: replay recorded routing, for example "
            "--trace DIR or --routing drawn"
        )
    return system


def weights_path(spec: RunSpec) -> Path:
    """The folder of a run's weights: the given one, or the scale model's.

    Raises:
        UsageError: none is given, and the model has no scale model.
    """
    if spec.weights is not None:
        return Path(spec.weights)
    if spec.model not in scale_names():
        ours = ", ".join(scale_names())
        raise UsageError(
            f"no scale model of {spec.model} ships yet (there is one of: {ours}); "
            "give real weights with --weights DIR"
        )
    return scale_path(spec.model)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

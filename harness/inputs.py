"""What a run reads: weights, tokenizer and prompts, checked before anything runs."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from harness.spec import RunSpec, run_id
from substrate.arch import ModelShape
from substrate.catalogue import model_shape, scale_names, scale_path
from substrate.errors import CheckpointError, UsageError
from substrate.profile import load_profile
from substrate.weights import Checkpoint
from systems import build, source_hash
from workloads.catalogue import Sample, Workload, load, workload
from workloads.example import Example
from workloads.prompts import build_prompt


@dataclass(slots=True)
class Inputs:
    """What a run reads, and the identity that follows from it."""

    spec: RunSpec
    checkpoint: Checkpoint
    full: ModelShape
    tokenizer: Tokenizer
    workload: Workload
    sample: Sample
    prompts: list[list[int]]
    hashes: dict[str, str]

    @property
    def run_id(self) -> str:
        """Equal for equal results; every measurement on this computer is its own."""
        return run_id(self.spec, **self.hashes)


def prepare(spec: RunSpec, data_dir: Path | None) -> Inputs:
    """Open the weights and draw the prompts; what can be wrong with the input shows here.

    Args:
        data_dir: the folder of evaluation sets, if any.

    Raises:
        MoeBenchError: one line that says what, where and what is allowed.
    """
    build(spec.system, spec.settings)
    full = model_shape(spec.model)
    path = _weights_path(spec)
    checkpoint = Checkpoint(path)
    _check_topology(full, checkpoint)
    tokenizer = _tokenizer(path / "tokenizer.json")
    chosen = workload(spec.workload)
    sample = load(chosen, count=spec.prompts, seed=spec.seed, data_dir=data_dir)
    shots: tuple[Example, ...] = ()
    if chosen.few_shot:
        shots = load(chosen, "train", chosen.few_shot, spec.seed, data_dir).examples
    prompts = [tokenizer.encode(build_prompt(chosen, e, shots)).ids for e in sample.examples]
    _check_prompts(spec, sample, prompts, checkpoint)
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
    return Inputs(spec, checkpoint, full, tokenizer, chosen, sample, prompts, hashes)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tokenizer(file: Path) -> Tokenizer:
    if not file.exists():
        raise CheckpointError(f"{file}: missing; a run needs the model's tokenizer")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: not a tokenizer that can be read ({error})") from error


def _check_prompts(
    spec: RunSpec, sample: Sample, prompts: list[list[int]], checkpoint: Checkpoint
) -> None:
    """Every prompt fits the weights: better said now than after an hour."""
    shape = checkpoint.shape
    for example, prompt in zip(sample.examples, prompts, strict=True):
        if max(prompt, default=0) >= shape.vocab_size:
            raise CheckpointError(
                f"{checkpoint.path}: tokenizer.json gives token {max(prompt)}, the model knows "
                f"{shape.vocab_size}; the two do not belong together"
            )
        if len(prompt) + spec.new_tokens > shape.max_positions:
            raise UsageError(
                f"{sample.source}: {example.id} has {len(prompt)} tokens, with {spec.new_tokens} "
                f"new ones more than the model's {shape.max_positions} positions; "
                "choose another workload or fewer --new-tokens"
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


def _check_topology(full: ModelShape, checkpoint: Checkpoint) -> None:
    """Weights may differ from the model in widths only."""
    for field in ("family", "num_layers", "dense_layers", "num_experts", "top_k", "gate"):
        wanted, found = getattr(full, field), getattr(checkpoint.shape, field)
        if wanted != found:
            raise CheckpointError(
                f"{checkpoint.path}: {field} is {found}, the model charged for has {wanted}; "
                "only widths and vocabulary may differ"
            )

"""Training of scale models: a full-size model's routing topology with small widths.

A scale model has its original's layers, MoE layers, experts, top-k, shared experts and gate kind;
only widths and vocabulary are smaller.  It is trained from scratch on plain text, on the train
halves of question sets and on generated exercises, and stored in the Hugging Face format of its
family.  On a CPU, training is deterministic for a seed and a number of threads; a killed run
resumes from its last checkpoint and ends with the same weights.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from moebench.harness.scale.checkpoint import Progress, TrainingState
from moebench.harness.scale.files import (
    read_tokenizer,
    read_training,
    save_in_place,
    stored_tensors,
    write_in_place,
    writing,
)
from moebench.harness.scale.muon import Muon
from moebench.harness.scale.recipe import TrainingRecipe
from moebench.harness.scale.text import TrainingText, training_text
from moebench.harness.scale.trainable import (
    TrainableDecoder,
    balance_loss,
    locality_loss,
    router_z_loss,
    usage,
)
from moebench.harness.scale.widths import scale_config
from moebench.substrate.errors import CheckpointError, InputError, UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.config import shape_of
from moebench.substrate.models.shape import ModelShape

#: Number of preceding tokens in the locality loss of ``locality``; ``recency`` uses one.
LOCALITY_WINDOW = 32

#: Training steps between two rows of the loss log.
LOG_EVERY = 20


class Start(NamedTuple):
    """A trained scale model from which a second training continues."""

    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    trained: dict[str, object]
    sha256: str

    @classmethod
    def read(cls, path: Path, shape: ModelShape) -> "Start":
        """Read the trained scale model in a folder.

        Raises CheckpointError: a file is missing or broken, or the model has another shape.
        """
        checkpoint = Checkpoint(path)
        if checkpoint.shape != shape:
            raise CheckpointError(f"{path}: not the scale model to go on from; its shape differs")
        weights = stored_tensors(checkpoint)
        checkpoint.close()
        digest = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
        return cls(weights, read_tokenizer(path), read_training(path), digest)


def train(
    name: str, data_dir: Path, out: Path, recipe: TrainingRecipe, start: Path | None = None,
    device: str = "cpu", report: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, object]:  # fmt: skip
    """Train the scale model of a full-size model, resuming from a checkpoint in ``out`` if any.

    Writes ``config.json``, ``tokenizer.json``, ``model.safetensors``, ``training.json``, the loss
    log ``loss.csv`` (step, tokens, loss, tokens per second) and ``checkpoint.safetensors``.

    Args:
        start: folder of a scale model to continue from; None starts with random weights.

    Returns:
        the content of ``training.json``: the recipe and the quality on held-out text; with
        ``start``, also the content of that model's ``training.json``.

    Raises:
        UnknownNameError: there is no recipe for a scale model of this name.
        InputError: training data is missing, the checkpoint belongs to another run, or ``out``
            cannot be written.
        CheckpointError: the model in ``start`` has other widths.
    """
    return train_config(scale_config(name), data_dir, out, recipe, start, device, report)


def train_config(
    config: dict[str, object], data_dir: Path, out: Path, recipe: TrainingRecipe,
    start: Path | None = None, device: str = "cpu",
    report: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, object]:  # fmt: skip
    """Train as `train` does, with the ``config.json`` content of any supported model family."""
    steps = recipe.steps
    if not steps:
        raise UsageError(
            f"{recipe.tokens} tokens are less than one step; train on {recipe.tokens_per_step} "
            "or more"
        )
    torch.manual_seed(recipe.seed)
    shape = shape_of(config)
    before = None if start is None else Start.read(start, shape)
    held_out = 64 * (recipe.sequence_length + 1)
    text = training_text(
        data_dir, shape.vocab_size, recipe.text_tokens or recipe.tokens, held_out,
        recipe.exercise_share, recipe.seed, recipe.chunk, before and before.tokenizer,
    )  # fmt: skip
    if len(text.held_out) < held_out or len(text.stream) <= recipe.sequence_length:
        raise InputError(
            f"{data_dir}: too little text, {len(text.held_out) + len(text.stream):,} tokens; "
            f"{held_out:,} are held out, and training needs more than {recipe.sequence_length}"
        )
    model = TrainableDecoder(shape, recipe.seed)
    origin: dict[str, object] = {}
    if before is not None:
        model.load_stored(before.weights)
        origin["started_from"] = {"sha256": before.sha256, **before.trained}
    model = model.to(device)
    optimizers = _optimizers(model, recipe)
    identity = _identity(config | origin, recipe, text)
    state = TrainingState(out, model, optimizers, identity)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        first = state.resume()
        write_in_place(out / "tokenizer.json", text.tokenizer.to_str(pretty=True))
        write_in_place(out / "config.json", json.dumps(config, indent=2) + "\n")

    def training_report(step: int) -> dict[str, object]:
        about: dict[str, object] = {"recipe": recipe.model_dump(), "step": step, "steps": steps}
        return about | quality(model, text, recipe) | origin

    clock = time.monotonic()
    for step in range(first, steps):
        loss = _step(model, optimizers, text, recipe, step)
        done, here = step + 1, step + 1 - first
        rate = here * recipe.tokens_per_step / (time.monotonic() - clock)
        now = Progress(done, steps, done * recipe.tokens_per_step, loss.item(), rate)
        report(now)
        with writing(out):
            if done % LOG_EVERY == 0 or done == steps:
                state.log(now)
            if done % recipe.checkpoint_every == 0 or done == steps:
                state.save(done)
                if done < steps:
                    export(model, out, training_report(done))
    # A resumed run whose steps are complete but whose export failed exports now.
    final = training_report(steps)
    with writing(out):
        export(model, out, final)
    return final


def _step(
    model: TrainableDecoder, optimizers: Sequence[torch.optim.Optimizer], text: TrainingText,
    recipe: TrainingRecipe, step: int,
) -> Tensor:  # fmt: skip
    """Train on one batch and return its weighted next-token loss."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
    device = model["embed"].device
    batch = _batch(text.stream, recipe, step).long().to(device)
    weights = _batch(text.weights, recipe, step)[:, 1:].flatten().to(device)
    logits, gates, chosen = model(batch[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
    loss: Tensor = (losses * weights).sum() / weights.sum()
    torch.autograd.backward(loss + _gate_losses(model, gates, chosen, recipe, step))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return loss.detach()


def _gate_losses(
    model: TrainableDecoder, gates: list[Tensor], chosen: list[Tensor], recipe: TrainingRecipe,
    step: int,
) -> Tensor:  # fmt: skip
    """Return the weighted sum of the losses on the gates (balance, z-loss, locality)."""
    usage_LE = usage(model.shape, chosen)
    total = recipe.balance_at(step) * balance_loss(gates, usage_LE)
    total = total + recipe.router_z * router_z_loss(gates)
    for weight, window in ((recipe.locality, LOCALITY_WINDOW), (recipe.recency, 1)):
        if weight:
            local = locality_loss(gates, chosen, usage_LE, recipe.batch_size, window)
            total = total + weight * local
    return total


def _optimizers(model: nn.Module, recipe: TrainingRecipe) -> list[torch.optim.Optimizer]:
    """Return AdamW for norms, biases and routers, and Muon for all other matrices.

    Muon also trains embedding and head, which its authors leave to AdamW: the scale models that
    ship were trained so.
    """
    named = list(model.named_parameters())
    own = [p for n, p in named if p.ndim < 2 or n.endswith("/router")]
    rest = {id(p) for p in own}
    matrices = [p for _, p in named if id(p) not in rest]
    return [
        torch.optim.AdamW(own, betas=(0.9, 0.95), weight_decay=0.0),
        Muon(matrices, recipe.learning_rate, weight_decay=recipe.weight_decay),
    ]


def _batch(stream: np.ndarray, recipe: TrainingRecipe, step: int) -> Tensor:
    """Return the batch of a training step; each epoch reads the windows in a new random order."""
    window = recipe.sequence_length
    windows = (len(stream) - 1) // window
    rows = []
    for i in range(step * recipe.batch_size, (step + 1) * recipe.batch_size):
        epoch, place = divmod(i, windows)
        order = np.random.default_rng((recipe.seed, epoch)).permutation(windows)
        start = int(order[place]) * window
        rows.append(torch.from_numpy(stream[start : start + window + 1]))
    return torch.stack(rows)


@torch.no_grad()
def quality(
    model: TrainableDecoder, text: TrainingText, recipe: TrainingRecipe
) -> dict[str, object]:
    """Return the held-out loss of model and unigram (nats), and how evenly experts are used."""
    shape, held = model.shape, text.held_out
    window = recipe.sequence_length + 1
    rows = torch.from_numpy(held[: len(held) // window * window].astype(np.int64)).view(-1, window)
    losses, counts = [], torch.zeros(len(shape.moe_layers), shape.num_experts)
    for batch in torch.split(rows.to(model["embed"].device), recipe.batch_size):
        logits, _, chosen = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        losses.append(loss.cpu())
        for layer, ids in enumerate(chosen):
            counts[layer] += torch.bincount(ids.flatten(), minlength=shape.num_experts).cpu()
    share = counts / counts.sum(1, keepdim=True) * shape.num_experts
    frequency = np.bincount(text.stream, minlength=shape.vocab_size) + 1.0
    unigram = -np.log(frequency / frequency.sum())[rows[:, 1:].numpy()].mean()
    return {
        "held_out_loss": round(torch.cat(losses).mean().item(), 4),
        "unigram_loss": round(float(unigram), 4),
        "held_out_tokens": rows[:, 1:].numel(),
        "least_used_expert": round(share.min().item(), 4),
        "experts_below_a_tenth": int((share < 0.1).sum()),
        "most_used_expert": round(share.max().item(), 2),
    }


def export(model: TrainableDecoder, out: Path, report: dict[str, object]) -> None:
    """Write fp16 weights in the family's Hugging Face format, and ``report`` as training.json."""
    save_in_place(model.stored(), out / "model.safetensors", {"format": "pt"})
    write_in_place(out / "training.json", json.dumps(report, indent=2) + "\n")


def _identity(
    config: dict[str, object], recipe: TrainingRecipe, text: TrainingText
) -> dict[str, str]:
    """Return the model, recipe and data hash that a checkpoint and a resuming run must share."""
    data = hashlib.sha256(text.tokenizer.to_str().encode())
    data.update(text.held_out.tobytes())
    data.update(text.stream.tobytes())
    data.update(text.weights.tobytes())
    return {
        "model": json.dumps(config, sort_keys=True),
        "recipe": recipe.model_dump_json(),
        "data": data.hexdigest(),
    }

"""Checkpoint and loss log of a training run, from which a killed run resumes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from moebench.harness.scale.files import save_in_place, write_in_place
from moebench.substrate.errors import InputError


class Progress(NamedTuple):
    """Step, tokens, loss and speed of a training run, reported after each step."""

    step: int
    steps: int
    tokens: int
    loss: float
    tokens_per_s: float


class TrainingState:
    """Saves a training run's state and loss log, and resumes from them."""

    def __init__(
        self, out: Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer],
        identity: dict[str, str],
    ) -> None:  # fmt: skip
        self._optimizers = optimizers
        self._model, self._identity = model, identity
        self._checkpoint, self._losses = out / "checkpoint.safetensors", out / "loss.csv"

    def save(self, step: int) -> None:
        """Write weights, optimizer moments and step into one file."""
        state = {f"model.{k}": v for k, v in self._model.state_dict().items()}
        state["step"] = torch.tensor(step)
        for which, optimizer in enumerate(self._optimizers):
            for index, moments in optimizer.state_dict()["state"].items():
                state |= {f"optimizer.{which}.{index}.{k}": v for k, v in moments.items()}
        save_in_place(state, self._checkpoint, self._identity)

    def resume(self) -> int:
        """Load the last checkpoint, if one exists, and return the step to continue with.

        Raises:
            InputError: the checkpoint belongs to another model, recipe or data, or is unreadable.
        """
        step = self._load() if self._checkpoint.exists() else 0
        rows = self._losses.read_text().splitlines()[1:] if step and self._losses.exists() else []
        kept = [row for row in rows if row.count(",") == 3 and int(row.split(",")[0]) <= step]
        write_in_place(self._losses, "\n".join(["step,tokens,loss,tokens_per_s", *kept]) + "\n")
        return step

    def log(self, now: Progress) -> None:
        """Append step, tokens, loss and tokens/s to the loss log."""
        with self._losses.open("a") as log:
            log.write(f"{now.step},{now.tokens},{now.loss:.4f},{now.tokens_per_s:.0f}\n")

    def _load(self) -> int:
        try:
            with safe_open(self._checkpoint, framework="pt") as file:
                written = file.metadata() or {}
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise InputError(
                f"{self._checkpoint}: not a checkpoint that can be read ({error}); "
                "delete it to start again"
            ) from error
        changed = [key for key, value in self._identity.items() if written.get(key) != value]
        if changed:
            raise InputError(
                f"{self._checkpoint}: was written with another {' and another '.join(changed)}; "
                "give the options that it was begun with, another --out, or delete it"
            )
        self._model.load_state_dict({k[6:]: v for k, v in state.items() if k.startswith("model.")})
        for which, optimizer in enumerate(self._optimizers):
            moments: dict[int, dict[str, Tensor]] = {}
            for key, value in state.items():
                if key.startswith(f"optimizer.{which}."):
                    _, _, index, name = key.split(".")
                    moments.setdefault(int(index), {})[name] = value
            frame = optimizer.state_dict()
            optimizer.load_state_dict({"state": moments, "param_groups": frame["param_groups"]})
        return int(state["step"])

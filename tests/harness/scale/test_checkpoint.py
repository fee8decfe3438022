"""Checkpoints of trainings: what is kept, what a resumed run has, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from moebench.harness.scale.checkpoint import Progress, TrainingState
from moebench.substrate.errors import InputError

IDENTITY = {"model": "m", "recipe": "r", "data": "d"}


class Momentum:
    """An optimizer with the state of torch's: by a parameter's number, its moments."""

    def __init__(self, layer: nn.Module, *names: str) -> None:
        self.of: list[Any] = list(layer.parameters())
        self.names = names
        self.state: dict[int, dict[str, Any]] = {}

    def step(self) -> None:
        with torch.no_grad():
            for index, one in enumerate(self.of):
                moments = self.state.setdefault(
                    index, {name: torch.zeros_like(one) for name in self.names}
                )
                for n, name in enumerate(self.names):
                    moments[name] = 0.9 * moments[name] + (n + 1) * one.grad
                    one -= 0.01 * moments[name]
                one.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state, "param_groups": ["the groups"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["param_groups"] == ["the groups"]
        self.state = state["state"]


class Rig:
    """A model of two matrices with an optimizer for each, and its training's state."""

    def __init__(self, out: Path, seed: int = 0, **identity: str) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        self.optimizers: list[Any] = [
            Momentum(self.model[0], "exp_avg", "other"), Momentum(self.model[1], "momentum"),
        ]  # fmt: skip
        self.state = TrainingState(out, self.model, self.optimizers, IDENTITY | identity)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.model(torch.ones(4, 3)).square().sum().backward()
            for optimizer in self.optimizers:
                optimizer.step()

    def weights(self) -> dict[str, Any]:
        return {name: one.tolist() for name, one in self.model.state_dict().items()}

    def moments(self) -> list[Any]:
        return [
            {index: {name: one.tolist() for name, one in moments.items()}
             for index, moments in optimizer.state_dict()["state"].items()}
            for optimizer in self.optimizers
        ]  # fmt: skip


def test_a_resumed_run_goes_on_as_one_that_was_not_stopped(tmp_path: Path) -> None:
    """Weights and moments of both optimizers are kept, so that later steps are the same."""
    first = Rig(tmp_path)
    assert first.state.resume() == 0
    first.train(3)
    first.state.save(3)
    kept = first.weights(), first.moments()
    second = Rig(tmp_path, seed=1)
    assert second.weights() != first.weights()
    assert second.state.resume() == 3
    assert (second.weights(), second.moments()) == kept
    first.train(2)
    second.train(2)
    assert second.weights() == first.weights()


LOG = "step,tokens,loss,tokens_per_s\n"


def test_the_log_has_a_line_for_each_step_up_to_the_checkpoint(tmp_path: Path) -> None:
    """Lines after the checkpoint, and one that was cut off, are of steps that run again."""
    rig, log = Rig(tmp_path), tmp_path / "loss.csv"
    rig.state.resume()
    assert log.read_text() == LOG
    rig.train(1)
    for step in (10, 20):
        rig.state.log(Progress(step, 99, 1000 * step, 2.34567 / step, 123.6))
    rig.state.save(20)
    rig.state.log(Progress(30, 99, 30_000, 0.1, 5))
    lines = "10,10000,0.2346,124\n20,20000,0.1173,124\n"
    assert log.read_text() == f"{LOG}{lines}30,30000,0.1000,5\n"
    with log.open("a") as file:
        file.write("2,2000")
    assert Rig(tmp_path).state.resume() == 20
    assert log.read_text() == LOG + lines


def test_without_a_checkpoint_the_log_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text(f"{LOG}10,1,1,1\n")
    assert Rig(tmp_path).state.resume() == 0
    assert (tmp_path / "loss.csv").read_text() == LOG


def test_a_checkpoint_without_a_log_is_resumed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.train(1)
    rig.state.save(7)
    assert not (tmp_path / "loss.csv").exists()
    assert Rig(tmp_path).state.resume() == 7
    assert (tmp_path / "loss.csv").read_text() == LOG


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"data": "x"}, "another data"),
        ({"model": "x", "data": "y"}, "another model and another data"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    changed: dict[str, str], what: str, tmp_path: Path
) -> None:
    rig = Rig(tmp_path)
    rig.train(1)
    rig.state.save(1)
    before = Rig(tmp_path, 1, **changed)
    weights = before.weights()
    with pytest.raises(InputError) as caught:
        before.state.resume()
    assert str(caught.value) == (
        f"{tmp_path / 'checkpoint.safetensors'}: was written with {what}; give the options that it "
        "was begun with, another --out, or delete it"
    )
    assert before.weights() == weights


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a checkpoint that can be read") as caught:
        Rig(tmp_path).state.resume()
    assert str(caught.value).endswith("; delete it to start again")

"""Training of scale models, with models and texts small enough for seconds."""

import errno
import itertools
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from moebench.harness.scale import files, training
from moebench.harness.scale.checkpoint import Progress
from moebench.harness.scale.muon import Muon, orthogonalise
from moebench.harness.scale.recipe import TrainingRecipe, second_training
from moebench.harness.scale.text import (
    QUESTION_WEIGHT,
    TRAINING_SETS,
    Document,
    TrainingText,
    real_documents,
    train_tokenizer,
    training_text,
)
from moebench.harness.scale.trainable import (
    TrainableDecoder,
    balance_loss,
    locality_loss,
    router_z_loss,
    usage,
)
from moebench.harness.scale.training import train_config
from moebench.harness.scale.widths import SCALE_WIDTHS, scale_config
from moebench.substrate.errors import CheckpointError, InputError, UnknownNameError, UsageError
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.config import shape_of
from moebench.substrate.models.decoder import Decoder
from moebench.substrate.models.resident import ResidentExperts
from moebench.workloads.example import END_OF_TEXT

CONFIG: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
#: 24 steps; the loss log has rows at 8, 16 and 24, checkpoints are at 10, 20 and 24.
RECIPE = TrainingRecipe(tokens=24 * 32, sequence_length=16, batch_size=2, checkpoint_every=10)
LOG_EVERY = 8


@pytest.fixture(scope="module", autouse=True)
def text() -> Iterator[dict[str, int]]:
    """Return random training tokens; ``seed`` replaces the content of the data folder."""
    holds = {"seed": 0}
    tokenizer = train_tokenizer(["a b c"], 300)

    def training_text(*_: object) -> TrainingText:
        ids = np.random.default_rng(holds["seed"]).integers(0, 300, 64 * 17 + 1000, dtype=np.int32)
        weights = np.linspace(0.1, 1, 1000, dtype=np.float32)
        return TrainingText(tokenizer, ids[64 * 17 :], weights, ids[: 64 * 17])

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "training_text", training_text)
        patch.setattr(training, "LOG_EVERY", LOG_EVERY)
        yield holds


def train(
    out: Path, config: dict[str, Any] = CONFIG, recipe: TrainingRecipe = RECIPE, **options: Any
):
    return train_config(config, Path("data"), out, recipe, **options)


class Killed(BaseException):
    """Exception like a signal, which nothing in the program catches."""


@dataclass
class KillAt:
    step: int

    def __call__(self, now: Progress) -> None:
        if now.step == self.step:
            raise Killed


def losses(out: Path) -> list[list[str]]:
    """Return the loss log without its last column, the speed."""
    return [row.split(",")[:3] for row in (out / "loss.csv").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: dict[str, int]) -> Path:
    """Return the folder of an uninterrupted training run."""
    out = tmp_path_factory.mktemp("training") / "whole"
    said: list[Progress] = []
    train(out, report=said.append)
    assert [now.step for now in said] == list(range(1, 25))
    return out


def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path, whole: Path) -> None:
    killed = tmp_path / "killed"
    for step in (5, 17, 20):  # before any checkpoint; after a row was logged; at a checkpoint
        with pytest.raises(Killed):
            train(killed, report=KillAt(step))
    train(killed)
    for name in ("model.safetensors", "training.json", "config.json", "tokenizer.json"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    assert [row[:2] for row in losses(whole)] == [
        ["step", "tokens"], ["8", "256"], ["16", "512"], ["24", "768"]
    ]  # fmt: skip
    assert losses(killed) == losses(whole)
    assert not list(killed.glob("*.partial"))


def test_a_finished_run_is_not_trained_again(tmp_path: Path, whole: Path) -> None:
    out = shutil.copytree(whole, tmp_path / "again")
    (out / "model.safetensors").unlink()
    said: list[Progress] = []
    train(out, report=said.append)
    assert said == []
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_equal_seeds_give_equal_weights(tmp_path: Path) -> None:
    recipe = RECIPE.model_copy(update={"tokens": 5 * 32})
    other = recipe.model_copy(update={"seed": 1})
    for out, chosen in (("a", recipe), ("b", recipe), ("c", other)):
        train(tmp_path / out, recipe=chosen)
    a, b, c = ((tmp_path / out / "model.safetensors").read_bytes() for out in "abc")
    assert a == b
    assert a != c


def test_the_loss_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeating = np.tile(np.arange(7, dtype=np.int32), 400)
    stream, held_out = repeating[: 7 * 160], repeating[: 64 * 17]
    even = np.ones(len(stream), dtype=np.float32)
    fixed = TrainingText(train_tokenizer(["a"], 300), stream, even, held_out)
    monkeypatch.setattr(training, "training_text", lambda *_: fixed)
    recipe = RECIPE.model_copy(update={"tokens": 60 * 32, "learning_rate": 2e-2, "warmup_steps": 5})
    final = train(tmp_path, recipe=recipe)
    assert float(str(final["held_out_loss"])) < float(str(final["unigram_loss"])) / 2


@pytest.mark.parametrize("changed", ["recipe", "model", "data"])
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, text: dict[str, int], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Killed):
        train(out, report=KillAt(11))
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    config, recipe = CONFIG, RECIPE
    if changed == "recipe":
        recipe = recipe.model_copy(update={"tokens": 90 * 32})
    elif changed == "model":
        config = {**config, "hidden_size": 32}
    else:
        monkeypatch.setitem(text, "seed", 1)
    with pytest.raises(InputError, match=f"checkpoint.safetensors: .* another {changed};"):
        train(out, config, recipe)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_a_broken_checkpoint_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half a file")
    with pytest.raises(InputError, match="not a checkpoint that can be read"):
        train(tmp_path)


@pytest.mark.parametrize("write", [3, 4])  # the second checkpoint, or the weights after it
def test_a_full_disk_leaves_the_last_checkpoint(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    full = tmp_path / "full"
    writes = 0

    def fail(tensors: dict[str, torch.Tensor], file: Path, **options: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == write:
            file.write_bytes(b"as far as it went")
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(tensors, file, **options)

    with monkeypatch.context() as disk:
        disk.setattr(files, "save_file", fail)
        with pytest.raises(InputError, match=r"No space left on device.*same command") as error:
            train(full)
    assert "\n" not in str(error.value)
    assert not list(full.glob("*.partial"))
    assert load_file(full / "checkpoint.safetensors")["step"] == {3: 10, 4: 20}[write]
    train(full)
    assert (full / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert losses(full) == losses(whole)


def test_less_than_a_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="train on 32 or more"):
        train(tmp_path, recipe=RECIPE.model_copy(update={"tokens": 31}))


def test_too_little_text_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.zeros(64 * 17 + 16, dtype=np.int32)
    even = np.ones(16, dtype=np.float32)
    short = TrainingText(train_tokenizer(["a"], 300), ids[64 * 17 :], even, ids[: 64 * 17])
    monkeypatch.setattr(training, "training_text", lambda *_: short)
    with pytest.raises(InputError, match="data: too little text, 1,104 tokens"):
        train(tmp_path)


def test_the_learning_rate_rises_stays_and_falls() -> None:
    recipe = TrainingRecipe(learning_rate=1.0, warmup_steps=10, tokens=90 * 8 * 256)
    rates = [recipe.learning_rate_at(step) for step in range(90)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10:61] == [1.0] * 51
    assert rates[60:] == sorted(rates[60:], reverse=True)
    assert rates[-1] == pytest.approx(1 / 30)


# --------------------------------------------------------------------------- the mathematics


@pytest.mark.parametrize("name", SCALE_WIDTHS)
def test_trainer_and_decoder_agree(tmp_path: Path, name: str) -> None:
    """Logits of the trained module and of the decoder that reads its exported weights."""
    config = {**scale_config(name), "num_hidden_layers": 3}
    shape = shape_of(config)
    model = TrainableDecoder(shape, seed=1)
    draws = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too; as fp16 will store them
            noise = 0.1 * torch.randn(parameter.shape, generator=draws)
            parameter.copy_((parameter + noise).half().float())
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(model.stored(), tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    experts = ResidentExperts(checkpoint, torch.float32)
    decoder = Decoder(shape, checkpoint.common(torch.float32), experts)
    ids = torch.randint(0, shape.vocab_size, (2, 9), generator=draws)
    with torch.no_grad():
        logits, gates, chosen = model(ids)
    expected = torch.stack(decoder.full_logits(ids.tolist()))
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    assert len(gates) == len(chosen) == len(shape.moe_layers)
    assert chosen[0].shape == (18, shape.top_k)


@pytest.mark.parametrize("name", SCALE_WIDTHS)
def test_a_scale_model_fits_13_mb(name: str) -> None:
    assert 2 * shape_of(scale_config(name)).total_params < 12.9e6


def test_unknown_scale_model_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="olmoe-1b-7b"):
        scale_config("olmo-1b-7b")


def test_balance_loss_is_one_for_equal_use_and_more_for_uneven() -> None:
    shape = shape_of(CONFIG)
    equal = torch.tensor([[0, 1], [2, 3]])
    uneven = torch.tensor([[0, 1], [0, 1]])
    flat, steep = torch.zeros(2, 4), torch.tensor([[9.0, 9.0, 0.0, 0.0]] * 2)
    assert usage(shape, [equal, uneven]).tolist() == [[0.5] * 4, [1.0, 1.0, 0.0, 0.0]]
    assert balance_loss([flat], usage(shape, [equal])).item() == pytest.approx(1)
    assert balance_loss([steep], usage(shape, [uneven])).item() == pytest.approx(2, rel=1e-3)


def local(ids: list[list[int]], window: int, use: float = 0.5) -> float:
    """Return the locality loss of one sequence whose gates strongly prefer given choices."""
    chosen = torch.tensor(ids)
    logits = torch.full((len(ids), 4), -50.0).scatter_(1, chosen, 50.0)
    return locality_loss([logits], [chosen], torch.full((1, 4), use), 1, window).item()


def test_locality_loss_counts_the_experts_that_come_again() -> None:
    """Sure gates: one minus the overlap with the past over the share that random choices have."""
    assert local([[0, 1]] * 4, window=1) == pytest.approx(1 - 1 / 0.5)
    assert local([[0, 1], [2, 3]] * 2, window=1) == pytest.approx(1)
    assert local([[0, 1], [0, 2]], window=1) == pytest.approx(1 - 0.5 / 0.5)
    # Of the two tokens before (one, for the second token), none, one and none chose the same.
    ids = [[0, 1], [2, 3], [2, 3], [0, 1]]
    assert local(ids, window=2) == pytest.approx(1 - (0 + 0.5 + 0) / 3 / 0.5)
    assert local([[0, 1]] * 4, window=1, use=1.0) == pytest.approx(0)


def test_locality_loss_keeps_sequences_apart() -> None:
    """Two sequences of two tokens each: the second does not follow the first."""
    chosen = torch.tensor([[0, 1], [0, 1], [2, 3], [2, 3]])
    logits = torch.full((4, 4), -50.0).scatter_(1, chosen, 50.0)
    used = torch.full((1, 4), 0.5)
    apart = locality_loss([logits], [chosen], used, 2, window=1)
    assert apart.item() == pytest.approx(1 - 2)
    together = locality_loss([logits], [chosen], used, 1, window=1)
    assert together.item() == pytest.approx(1 - 4 / 3)


def test_locality_loss_moves_a_token_towards_its_past_alone() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0], [0.0, 0.2, 0.4, 0.6]], requires_grad=True)
    chosen = logits.detach().topk(2).indices
    locality_loss([logits], [chosen], torch.full((1, 4), 0.5), 1, window=1).backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == [0.0] * 4
    assert (logits.grad[1, :2] < 0).all()  # what the first token chose is to rise
    assert (logits.grad[1, 2:] > 0).all()  # and what it did not is to fall


# --------------------------------------------------------------------------- one step

#: Every loss on the gates has its own weight.
ALL_LOSSES = RECIPE.model_copy(update={
    "balance": 0.5, "balance_end": 0.1, "router_z": 0.03, "locality": 0.7, "recency": 0.2,
    "learning_rate": 0.1, "warmup_steps": 4,
})  # fmt: skip


def test_the_z_loss_is_the_mean_square_of_what_logits_sum_to() -> None:
    """Four equal logits x sum to x + ln 4; over two layers the mean is of their means."""
    zeros, ones = torch.zeros(3, 4), torch.ones(5, 4)
    ln4 = math.log(4)
    assert router_z_loss([zeros]).item() == pytest.approx(ln4**2)
    assert router_z_loss([zeros, ones]).item() == pytest.approx((ln4**2 + (1 + ln4) ** 2) / 2)


def test_losses_on_gates_are_added_with_their_weights() -> None:
    """Equal gates have a balance loss of 1; half of the balance's weight is gone at half time."""
    model = TrainableDecoder(shape_of(CONFIG), seed=0)
    gates = [torch.randn(32, 4, generator=torch.Generator().manual_seed(n)) for n in (0, 1)]
    chosen = [one.topk(2).indices for one in gates]
    used = usage(model.shape, chosen)
    far, near = (locality_loss(gates, chosen, used, 2, window) for window in (32, 1))
    assert not torch.isclose(far, near)
    balanced, z = balance_loss(gates, used), router_z_loss(gates)
    for step, weight in ((0, 0.5), (12, 0.3), (24, 0.1)):
        found = training._gate_losses(model, gates, chosen, ALL_LOSSES, step)
        expected = weight * balanced + 0.03 * z + 0.7 * far + 0.2 * near
        torch.testing.assert_close(found, expected)
    for name, alone in (("locality", 0.7 * far), ("recency", 0.2 * near)):
        others = {"balance": 0.0, "balance_end": 0.0, "router_z": 0.0, "locality": 0.0,
                  "recency": 0.0}  # fmt: skip
        recipe = ALL_LOSSES.model_copy(update={**others, name: getattr(ALL_LOSSES, name)})
        torch.testing.assert_close(training._gate_losses(model, gates, chosen, recipe, 0), alone)


@pytest.mark.parametrize(("router_z", "clipped"), [(0.03, False), (3.0, True)])
def test_a_step_goes_down_the_gradient_of_all_losses(router_z: float, clipped: bool) -> None:
    """With plain gradient descent, at the rate of the third of four steps of warm-up.

    A gradient longer than 1 is shortened to 1.
    """
    recipe = ALL_LOSSES.model_copy(update={"router_z": router_z})
    tokens = np.random.default_rng(1).integers(0, 300, 101, dtype=np.int32)
    weights = np.linspace(0.1, 1, 101, dtype=np.float32)
    text: Any = SimpleNamespace(stream=tokens, weights=weights)
    model, same = (TrainableDecoder(shape_of(CONFIG), seed=0) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), lr=123.0)]
    returned = training._step(model, optimizers, text, recipe, 2)

    ids = training._batch(tokens, recipe, 2).long()
    weight = training._batch(weights, recipe, 2)
    logits, gates, chosen = same(ids[:, :16])
    each = -logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    loss = (each * weight[:, 1:]).sum() / weight[:, 1:].sum()
    torch.testing.assert_close(returned, loss.detach())
    assert not returned.requires_grad
    torch.autograd.backward(loss + training._gate_losses(same, gates, chosen, recipe, 2))
    squares = [(p.grad**2).sum() for p in same.parameters() if p.grad is not None]
    norm = float(sum(squares)) ** 0.5
    assert (norm > 1) == clipped
    for before, after in zip(same.parameters(), model.parameters(), strict=True):
        moved = torch.zeros(1) if before.grad is None else 0.075 * before.grad / max(1, norm)
        torch.testing.assert_close(after.detach(), (before - moved).detach(), rtol=1e-4, atol=1e-6)
        assert after.grad is None


def test_matrices_have_muon_and_norms_and_routers_adamw() -> None:
    """As the scale models that ship were trained; AdamW has no weight decay."""
    model = TrainableDecoder(shape_of(CONFIG), seed=0)
    recipe = RECIPE.model_copy(update={"learning_rate": 0.25, "weight_decay": 0.125})
    adamw, muon = training._optimizers(model, recipe)
    names = {id(p): n.removeprefix("tensors.") for n, p in model.named_parameters()}
    of: list[set[str]] = [
        {names[id(p)] for group in one.param_groups for p in group["params"]}
        for one in (adamw, muon)
    ]
    by_layer = ("experts/gate", "experts/up", "experts/down", "q", "k", "v", "o")
    matrices = {f"layers/{layer}/{name}" for layer in (0, 1) for name in by_layer}
    assert of[1] == matrices | {"embed", "head"}
    others = {f"layers/{layer}/{name}" for layer in (0, 1)
              for name in ("router", "attention_norm", "mlp_norm")}  # fmt: skip
    assert of[0] == others | {"norm"}
    assert isinstance(adamw, torch.optim.AdamW)
    assert isinstance(muon, Muon)
    assert (adamw.defaults["betas"], adamw.defaults["weight_decay"]) == ((0.9, 0.95), 0.0)
    assert muon.defaults == {"lr": 0.25, "momentum": 0.95, "weight_decay": 0.125}


def test_batches_read_every_window_once_in_each_epoch() -> None:
    """Of 50 tokens, three windows of 16, each with the token after it; two to a batch."""
    stream = np.arange(50, dtype=np.int32)
    steps = [training._batch(stream, RECIPE, step) for step in range(6)]
    assert all(batch.shape == (2, 17) for batch in steps)
    rows = torch.cat(steps)
    assert all(row.tolist() == list(range(int(row[0]), int(row[0]) + 17)) for row in rows)
    epochs = [[int(row[0]) for row in rows[n : n + 3]] for n in range(0, 12, 3)]
    assert all(sorted(starts) == [0, 16, 32] for starts in epochs)
    assert len({tuple(starts) for starts in epochs}) > 1, "in another order"
    other = RECIPE.model_copy(update={"seed": 1})
    assert [training._batch(stream, other, step).tolist() for step in range(6)] != [
        batch.tolist() for batch in steps
    ]


def test_quality_is_that_of_a_model_whose_logits_are_known() -> None:
    """It is sure of the token before: half of the held-out tokens repeat it.

    Of two layers' four experts, the first layer's tokens use 0 alone, those of the second 1 or 3.
    """

    class Echo:
        shape = SimpleNamespace(moe_layers=(0, 1), num_experts=4, vocab_size=3)

        def __getitem__(self, name: str) -> torch.Tensor:
            return torch.zeros(1)

        def __call__(self, ids: torch.Tensor) -> Any:
            flat = ids.flatten()
            used = [torch.zeros(len(flat), 1, dtype=torch.long), 2 * (flat[:, None] % 2) + 1]
            return F.one_hot(ids, 3) * math.log(4), [], used

    recipe = TrainingRecipe(tokens=100, sequence_length=4, batch_size=2)
    held = np.array([0, 0, 1, 1, 0] * 3 + [2, 2], dtype=np.int32)  # two are no whole window
    stream = np.array([0] * 5 + [1] * 2, dtype=np.int32)
    text: Any = SimpleNamespace(held_out=held, stream=stream)
    model: Any = Echo()
    found = training.quality(model, text, recipe)
    # Chances of 4/6 for the token before, 1/6 for the others; of the stream 6, 3 and 1 of 10.
    assert found == {
        "held_out_loss": pytest.approx(-(math.log(4 / 6) + math.log(1 / 6)) / 2, abs=1e-4),
        "unigram_loss": pytest.approx(-(math.log(0.6) + math.log(0.3)) / 2, abs=1e-4),
        "held_out_tokens": 12, "least_used_expert": 0.0, "experts_below_a_tenth": 5,
        "most_used_expert": 4.0,
    }  # fmt: skip


# --------------------------------------------------------------------------- going on


def test_second_training_continues_from_given_weights_and_resumes(
    tmp_path: Path, whole: Path
) -> None:
    recipe = RECIPE.model_copy(update={"locality": 0.1, "recency": 0.1})
    final = train(tmp_path / "on", recipe=recipe, start=whole)
    assert final["started_from"]["recipe"] == RECIPE.model_dump()
    killed = tmp_path / "killed"
    with pytest.raises(Killed):
        train(killed, recipe=recipe, start=whole, report=KillAt(17))
    train(killed, recipe=recipe, start=whole)
    weights = [load_file(folder / "model.safetensors") for folder in (tmp_path / "on", killed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    still = RECIPE.model_copy(update={"learning_rate": 0.0})
    train(tmp_path / "still", recipe=still, start=whole)
    kept, first = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "still", whole)
    )
    assert all(torch.equal(kept[name], first[name]) for name in first)
    with pytest.raises(InputError, match="another model"):
        train(killed, recipe=recipe)


def test_another_model_is_not_gone_on_from(tmp_path: Path, whole: Path) -> None:
    wider = {**CONFIG, "intermediate_size": 12}
    with pytest.raises(CheckpointError, match="its shape differs"):
        train(tmp_path, wider, start=whole)


def test_the_second_training_holds_out_what_the_first_did() -> None:
    first = TrainingRecipe(tokens=2_000_000, seed=3)
    second = second_training("olmoe-1b-7b", first.model_dump())
    assert (second.text_tokens, second.seed) == (first.tokens, first.seed)
    assert second.tokens < first.tokens
    assert second.locality > 0
    third = second_training("olmoe-1b-7b", second.model_dump())
    assert third.text_tokens == first.tokens


# --------------------------------------------------------------------------- the optimizer


def test_orthogonalise_brings_singular_values_near_one() -> None:
    draws = torch.Generator().manual_seed(0)
    for dims in ((6, 8, 20), (6, 20, 8), (2, 3, 16, 16)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(dims, generator=draws)))
        # A square random matrix has singular values near 0 that five steps cannot lift.
        lowest = 0.0 if dims[-1] == dims[-2] else 0.6
        assert values.min() > lowest
        assert values.max() < 1.25


def test_a_stack_is_orthogonalised_matrix_by_matrix() -> None:
    stack = torch.randn(3, 8, 12, generator=torch.Generator().manual_seed(1))
    together = orthogonalise(stack)
    for matrix, result in zip(stack, together, strict=True):
        torch.testing.assert_close(orthogonalise(matrix), result, rtol=1e-4, atol=1e-5)


def test_muon_goes_where_torch_s_own_goes() -> None:
    draws = torch.Generator().manual_seed(3)
    start = torch.randn(12, 20, generator=draws)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    mine = Muon([ours], lr=0.01, weight_decay=0.1)
    reference = torch.optim.Muon(
        [theirs], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(3):
        ours.grad = torch.randn(12, 20, generator=draws)
        theirs.grad = ours.grad.clone()
        mine.step()
        reference.step()
    moved, expected = (ours - start).detach(), (theirs - start).detach()
    assert torch.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.99  # bf16 there
    assert moved.norm() == pytest.approx(expected.norm().item(), rel=0.05)


# --------------------------------------------------------------------------- the data


def data_folder(path: Path) -> Path:
    (path / "corpus").mkdir(parents=True)
    (path / "corpus" / "book.txt").write_text("A story.\n\nIts end.\n")
    (path / "corpus" / "wikitext2_test.txt").write_text("held out\n")
    for name in TRAINING_SETS:
        (path / name).mkdir()
        record = {"id": name, "prompt": f"Q of {name}?", "choices": ["x", "y"], "answer": 1}
        (path / name / "train.jsonl").write_text(json.dumps(record) + "\n")
    return path


def test_documents_come_from_train_halves_and_prose(tmp_path: Path) -> None:
    documents = real_documents(data_folder(tmp_path), seed=0)
    assert len(documents) == 1 + len(TRAINING_SETS)
    assert {document.kind for document in documents} == {"prose", *TRAINING_SETS}
    assert any("A story." in document.learnt for document in documents)
    assert not any("held out" in document.learnt for document in documents)
    assert Document("gsm8k", "", "Question: Q of gsm8k?\nAnswer: B") in documents


def test_missing_or_broken_data_is_one_line(tmp_path: Path) -> None:
    data = data_folder(tmp_path)
    lines = data / "boolq" / "train.jsonl"
    lines.write_text('{"id": "1", "prompt": "Q", "answer": 0}\n{"id": "2"}\n')
    with pytest.raises(InputError, match=r"boolq/train.jsonl:2: not a question"):
        real_documents(data, 0)
    lines.unlink()
    with pytest.raises(InputError, match=r"boolq/train.jsonl: cannot be read"):
        real_documents(data, 0)
    (data / "corpus" / "book.txt").unlink()
    with pytest.raises(InputError, match="holds no prose"):
        real_documents(data, 0)


def whales(path: Path) -> Path:
    """Write a data folder of one sentence, and one question in each set."""
    (path / "corpus").mkdir()
    (path / "corpus" / "prose.txt").write_text("Whales are large.\n\n" * 400)
    for name in TRAINING_SETS:
        (path / name).mkdir()
        (path / name / "train.jsonl").write_text('{"id": "1", "prompt": "?", "answer": "!"}\n')
    return path


def test_kinds_of_text_follow_each_other_in_chunks(tmp_path: Path) -> None:
    """The same held-out tokens and the same documents, in chunks of one kind."""
    mixed = training_text(whales(tmp_path), 400, 6000, 100, 0.75, seed=0)
    chunked = training_text(tmp_path, 400, 6000, 100, 0.75, 0, 600, mixed.tokenizer)
    assert (chunked.held_out == mixed.held_out).all()
    assert (np.bincount(chunked.stream) == np.bincount(mixed.stream)).all()
    assert chunked.weights.sum() == pytest.approx(mixed.weights.sum())

    def changes(stream: np.ndarray) -> int:
        text = mixed.tokenizer.decode(stream.tolist(), skip_special_tokens=False)
        problems = ["####" in document for document in text.split(END_OF_TEXT)]
        return sum(a != b for a, b in itertools.pairwise(problems))

    assert 0 < changes(chunked.stream) < changes(mixed.stream) / 2


def test_an_exercises_question_counts_less_than_its_answer(tmp_path: Path) -> None:
    text = training_text(whales(tmp_path), 400, 2000, 100, 0.75, seed=0)
    assert len(text.stream) == len(text.weights)
    assert set(text.weights.tolist()) == {np.float32(QUESTION_WEIGHT).item(), 1.0}
    light = text.tokenizer.decode(text.stream[text.weights < 1].tolist())
    heavy = text.tokenizer.decode(text.stream[text.weights == 1].tolist())
    assert "Question:" in light
    assert "####" not in light
    assert "####" in heavy
    assert "Whales are large." in heavy


def test_a_model_copies_before_it_has_learnt_anything() -> None:
    """Tokens that come again are less surprising: previous-token and copying heads are there."""
    shape = shape_of(scale_config("mixtral-8x7b"))
    model = TrainableDecoder(shape, seed=0)
    once = torch.randint(300, 1000, (4, 40), generator=torch.Generator().manual_seed(1))
    ids = torch.cat((once, once), dim=1)
    with torch.no_grad():
        losses = F.cross_entropy(
            model(ids)[0][:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"
        )
    assert losses[:, 41:].mean() < losses[:, :39].mean() - 1


def test_the_recipes_weight_decay_is_of_the_matrices_alone() -> None:
    recipe = RECIPE.model_copy(update={"weight_decay": 0.125})
    model = TrainableDecoder(shape_of(CONFIG), seed=0)
    rest, matrices = training._optimizers(model, recipe)
    assert [group["weight_decay"] for group in rest.param_groups] == [0.0]
    assert [group["weight_decay"] for group in matrices.param_groups] == [0.125]


class _Uniform:
    """A model of four experts whose tokens are all equally likely.

    In layer 0 all tokens use the experts 0 and 1, in layer 1 each pair equally often.
    """

    shape = shape_of(CONFIG)

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.zeros(1)

    def __call__(self, batch: torch.Tensor) -> tuple[torch.Tensor, None, list[torch.Tensor]]:
        tokens = batch.numel()
        first = torch.tensor([[0, 1]]).expand(tokens, 2)
        pairs = torch.tensor([[0, 1], [2, 3]]).repeat(tokens // 2, 1)
        return torch.zeros(*batch.shape, self.shape.vocab_size), None, [first, pairs]


def test_the_quality_of_a_model_by_hand() -> None:
    """Two windows of 16 tokens and one more; of the text's 100 tokens each is 5, and so here."""
    text: Any = SimpleNamespace(
        held_out=np.full(2 * 17 + 3, 5, dtype=np.uint16), stream=np.full(100, 5, dtype=np.uint16)
    )
    found = training.quality(_Uniform(), text, RECIPE)  # type: ignore[arg-type]
    assert found == {
        "held_out_loss": round(math.log(300), 4), "unigram_loss": round(math.log(400 / 101), 4),
        "held_out_tokens": 32, "least_used_expert": 0.0, "experts_below_a_tenth": 2,
        "most_used_expert": 2.0,
    }  # fmt: skip

"""SiDA's network: what it trains on, what it is judged by, and when it stops."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from moebench.systems.learn import hash_function
from moebench.systems.learn.hash_function import BATCH, PATIENCE, HashOptions

LAYERS, EXPERTS, WIDTH = 2, 4, 3


def text(tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    scores = random.dirichlet(np.ones(EXPERTS), (tokens, LAYERS))
    return random.standard_normal((tokens, WIDTH)).astype(np.float32), scores.astype(np.float32)


def test_texts_of_a_step_are_padded_at_the_end() -> None:
    one, two = text(3, 0), text(1, 1)
    x, teacher, real = hash_function._padded([one, two])
    assert (x.shape, teacher.shape) == ((2, 3, WIDTH), (2, 3, LAYERS, EXPERTS))
    np.testing.assert_array_equal(x[0], one[0])
    np.testing.assert_array_equal(x[1], [two[0][0], [0] * WIDTH, [0] * WIDTH])
    np.testing.assert_array_equal(teacher[0], one[1])
    np.testing.assert_array_equal(teacher[1, 0], two[1][0])
    assert not teacher[1, 1:].any()
    assert real.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_a_hit_is_the_gates_first_expert_among_the_three_likeliest() -> None:
    """Of two texts with one token each and two layers: both hit; one of two."""

    class Known:
        begin = staticmethod(lambda: None)

        def read(self, embedding_TH: np.ndarray, reading: Any) -> np.ndarray:
            return np.array([[[0.4, 0.3, 0.2, 0.1], [0.1, 0.3, 0.2, 0.4]]])

    def scores(first: int, second: int) -> np.ndarray:
        found = np.full((1, LAYERS, EXPERTS), 0.1)
        found[0, 0, first] = found[0, 1, second] = 0.9
        return found

    texts = [(np.zeros((1, WIDTH)), scores(2, 1)), (np.zeros((1, WIDTH)), scores(3, 3))]
    assert hash_function._top_3(Known(), texts) == 0.75  # type: ignore[arg-type]
    assert hash_function._top_3(Known(), texts[1:]) == 0.5  # type: ignore[arg-type]


@dataclass
class Losses:
    """Stands in for the loss: values by turn for validation, and which texts were asked for."""

    validation: list[float]
    trained: list[list[int]] = field(default_factory=list)
    judged: list[list[int]] = field(default_factory=list)

    def __call__(self, logits: torch.Tensor, teacher: torch.Tensor, real: torch.Tensor) -> Any:
        lengths = real.sum(dim=1).int().tolist()
        if torch.is_grad_enabled():
            self.trained.append(lengths)
            return logits.sum() * 0
        self.judged.append(lengths)
        return torch.tensor(self.validation[len(self.judged) - 1])


def fitted(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], validation: list[float], epochs: int
) -> tuple[Losses, dict[str, str], list[tuple[int, int]]]:
    losses, told = Losses(validation), list[tuple[int, int]]()
    monkeypatch.setattr(hash_function, "losses", losses)
    texts = [text(n, n) for n in lengths]
    options = HashOptions(width=2, epochs=epochs, seed=3)
    made = hash_function._fit(texts, EXPERTS, options, lambda *done: told.append(done))
    return losses, dict(made.note), told


def test_the_last_tenth_of_the_texts_is_judged_by_and_the_rest_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = [*range(1, 21)]
    losses, note, told = fitted(monkeypatch, lengths, [0.5, 0.4], 2)
    assert losses.judged == [[19, 20]] * 2
    for epoch in (losses.trained[:3], losses.trained[3:]):
        assert [len(some) for some in epoch] == [BATCH, BATCH, 2]
        assert sorted(n for some in epoch for n in some) == lengths[:-2]
    assert losses.trained[:3] != losses.trained[3:], "in another order in each epoch"
    assert told == [(1, 2), (2, 2)]
    assert {key: note[key] for key in ("texts", "tokens", "epochs", "best_epoch", "loss")} == {
        "texts": "20", "tokens": str(sum(lengths)), "epochs": "2", "best_epoch": "2",
        "loss": "0.4000",
    }  # fmt: skip
    assert {key: note[key] for key in ("width", "seed")} == {"width": "2", "seed": "3"}


def test_one_text_alone_is_trained_on_and_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, _, _ = fitted(monkeypatch, [7], [0.5], 1)
    assert (losses.trained, losses.judged) == ([[7]], [[7]])
    losses, _, _ = fitted(monkeypatch, [7, 5], [0.5], 1)
    assert (losses.trained, losses.judged) == ([[7]], [[5]])


def test_training_ends_five_epochs_after_the_best_one(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, note, told = fitted(monkeypatch, [4, 3], [0.5, 0.3, 0.3, 0.4, 0.5, 0.6, 0.31, 0.1], 50)
    assert PATIENCE == 5
    assert (note["epochs"], note["best_epoch"], note["loss"]) == ("7", "2", "0.3000")
    assert len(losses.judged) == len(told) == 7

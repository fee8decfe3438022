"""Networks trained side by side: which tokens judge them, and one epoch after the other."""

import pytest
import torch

from moebench.systems.learn.stacked import BATCH, initial, train, validating


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        # Of ten texts the last one, of 25 the last two (2.5 rounds to the even number).
        ([2] * 10, list(range(18, 20))), ([1] * 25, [23, 24]), ([1] * 15, [13, 14]),
        # Of fewer texts the last tenth of each, at least one token.
        ([20, 10], [18, 19, 29]), ([5, 5], [9]), ([1], [0]), ([9, 30], [36, 37, 38]),
    ],
)  # fmt: skip
def test_the_last_tenth_is_for_validation(lengths: list[int], kept: list[int]) -> None:
    found = validating(lengths)
    assert len(found) == sum(lengths)
    assert found.nonzero()[0].tolist() == kept


def test_parameters_are_drawn_as_torchs_linear_layers_are() -> None:
    generator = torch.Generator().manual_seed(3)
    made = initial(2, [4, 9, 3], generator)
    assert [tuple(one.shape) for one in made] == [(2, 4, 9), (2, 1, 9), (2, 9, 3), (2, 1, 3)]
    again = torch.Generator().manual_seed(3)
    for one, fan_in in zip(made, (4, 4, 9, 9), strict=True):
        uniform = torch.rand(one.shape, generator=again)
        torch.testing.assert_close(one.data, (2 * uniform - 1) / fan_in**0.5)


class Watched:
    """A loss whose values are given: each network's validation losses, epoch by epoch."""

    def __init__(self, judged: list[list[float]]) -> None:
        self.judged, self.trained = judged, list[list[int]]()

    def __call__(self, parameters, tokens):
        (weight,) = parameters
        if torch.is_grad_enabled():
            self.trained.append(sorted(tokens[0].int().tolist()))
            return weight.sum(dim=(1, 2)) * torch.tensor([1.0, 2.0])
        assert tokens[0].int().tolist() == [600, 601]  # those from the split on
        return torch.tensor(self.judged.pop(0))


def trained(judged: list[list[float]], epochs: int, patience: int, tokens: int = 600):
    """Train two weights whose gradients are 1 and 2, at a rate of 1."""
    weight = torch.nn.Parameter(torch.zeros(2, 1, 1))
    losses, done = Watched([*judged]), list[tuple[int, int]]()
    data = [torch.arange(602.0).expand(2, 602)]
    found = train(
        [weight], torch.optim.SGD([weight], 1.0), losses, data, tokens, epochs, patience,
        torch.Generator().manual_seed(0), lambda epoch, most: done.append((epoch, most)),
    )  # fmt: skip
    return found, losses, done


def test_an_epoch_takes_each_token_once_in_steps() -> None:
    found, losses, done = trained([[5.0, 5.0]], 1, 9)
    assert BATCH == 256
    assert [len(step) for step in losses.trained] == [256, 256, 88]
    assert sorted(token for step in losses.trained for token in step) == list(range(600))
    assert losses.trained[0] != list(range(256))  # in a drawn order
    assert done == [(1, 1)]
    # Three steps, each down the own gradient.
    assert found.parameters[0].flatten().tolist() == [-3, -6]
    assert (found.loss.tolist(), found.epochs, found.best_epoch) == ([5, 5], 1, 1)


def test_each_network_keeps_its_own_best_epoch_and_training_stops() -> None:
    # The first is best after epoch 2, the second after 3; the mean after 2.  Two epochs later the
    # training ends.
    judged = [[3.0, 9.0], [1.0, 8.0], [9.0, 7.0], [9.0, 9.0], [0.0, 0.0]]
    found, _, done = trained(judged, 9, 2)
    assert found.loss.tolist() == [1, 7]
    assert found.parameters[0].flatten().tolist() == [-3 * 2, -6 * 3]
    assert (found.epochs, found.best_epoch, done) == (4, 2, [(n, 9) for n in (1, 2, 3, 4)])


def test_equal_losses_are_no_progress() -> None:
    found, _, _ = trained([[2.0, 2.0]] * 5, 9, 2)
    assert (found.epochs, found.best_epoch) == (3, 1)
    assert found.parameters[0].flatten().tolist() == [-3, -6]

"""DuoServe-MoE's preprocessing: matrices and state vector by hand, and ExpertMLP's training."""

import math

import numpy as np
import pytest
import torch

from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn.expert_mlp import (
    ExpertMLP,
    ExpertMLPOptions,
    Matrices,
    _dropped,
    _folded,
    _loss,
    _network,
    _Samples,
    _split,
    trained,
    widths,
)

# --------------------------------------------------------------------------- Eqs. 2, 3 and 5

# Five tokens, two layers, top-2 of three experts.
FIVE = np.array([[[0, 1], [0, 2]], [[0, 1], [2, 0]], [[0, 2], [2, 1]], [[0, 1], [1, 2]],
                 [[2, 1], [1, 0]]])  # fmt: skip


def test_matrices_of_five_tokens():
    matrices = Matrices.of([FIVE[:2], FIVE[2:]], 3)
    # Layer 0 chose expert 0 four times, 1 four times, 2 twice; layer 1: 0 three, 1 three, 2 four.
    expected = [[0.4, 0.4, 0.2], [0.3, 0.3, 0.4]]
    np.testing.assert_allclose(matrices.popularity_LE, expected)
    # With expert 0 of layer 0 (tokens 1-4) went {0,2}, {2,0}, {2,1}, {1,2}: 2, 2, 4 of 8 choices.
    # With expert 1 (tokens 1, 2, 4, 5): {0,2}, {2,0}, {1,2}, {1,0}: 3, 2, 3.
    # With expert 2 (tokens 3, 5): {2,1}, {1,0}: 1, 2, 1.
    expected = [[2 / 8, 2 / 8, 4 / 8], [3 / 8, 2 / 8, 3 / 8], [1 / 4, 2 / 4, 1 / 4]]
    np.testing.assert_allclose(matrices.affinity_LEE[0], expected)


def test_the_state_vector():
    popularity = np.array([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4], [0.5, 0.1, 0.4]])
    affinity = np.arange(18).reshape(2, 3, 3) / 20
    matrices = Matrices(popularity, affinity)
    # Two tokens; the routing of layer 2 must not be seen.
    ids = np.array([[[2, 0], [1, 2], [0, 1]], [[0, 1], [2, 1], [2, 0]]])
    states = matrices.states(ids, np.array([1, 2]))
    path = [[3 / 3, 1 / 3, 0, 0], [1 / 3, 2 / 3, 3 / 3, 2 / 3]]
    # Shares as multiples of the even share, a third.
    row = 3 * popularity[[1, 2]]
    came_from = 3 * np.array(
        [[*affinity[0][2], *affinity[0][0]], [*affinity[1][2], *affinity[1][1]]]
    )
    expected = [[*h, *p, *a] for h, p, a in zip(path, row, came_from, strict=True)]
    np.testing.assert_allclose(states, expected, rtol=1e-6)
    assert states.shape[1] == widths(layers=3, top_k=2, experts=3, first=2048)[0]


def test_seven_layers_from_2048_to_64():
    # Mixtral 8x7B: 31 layers' pairs, 8 popularities, 2 rows of affinity.
    assert widths(32, 2, 8, 2048) == (62 + 8 + 16, 2048, 1024, 512, 256, 128, 64, 8)
    assert widths(32, 2, 8, 64)[1:-1] == (64,) * 6


# --------------------------------------------------------------------------- ExpertMLP


def learnable(tokens: int, seed: int = 0) -> np.ndarray:
    """Return routing of three layers, top-2 of eight: e is followed by e + 1, then by e + 3."""
    first = np.random.default_rng(seed).permuted(np.tile(np.arange(8), (tokens, 1)), axis=1)[:, :2]
    return np.stack([first, (first + 1) % 8, (first + 4) % 8], axis=1)


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[ExpertMLP, list[tuple[int, int]]]:
    folder = tmp_path_factory.mktemp("artefacts")
    told: list[tuple[int, int]] = []
    texts = [RoutedSequence(learnable(60, seed), 10) for seed in range(10)]
    options = ExpertMLPOptions(width=64, tokens=9999, epochs=15, dropout=0.1, seed=0)
    made = trained(texts, 8, options, folder, lambda done, total: told.append((done, total)))
    again = trained(texts, 8, options, folder, lambda done, total: pytest.fail("trained twice"))
    for ours, kept in zip(made.weights, again.weights, strict=True):
        np.testing.assert_array_equal(ours, kept)
    return made, told


def test_it_learns_what_affinity_knows(taught):
    mlp, told = taught
    unseen = learnable(100, seed=99)
    for layer in (1, 2):
        probabilities = mlp.probabilities(unseen, layer)
        assert probabilities.shape == (100, 8)
        best = np.argsort(-probabilities, axis=1)[:, :2]
        right = np.sort(best) == np.sort(unseen[:, layer])
        assert right.all(axis=1).mean() > 0.9
    epochs = int(mlp.note["epochs"])
    assert told == [(i + 1, 15) for i in range(epochs)]
    assert 1 <= int(mlp.note["best_epoch"]) <= epochs <= 15
    assert mlp.note["tokens"] == str(9 * 50)  # decoded tokens, one text of ten held out


def test_folded_network_equals_torch(tmp_path):
    torch.manual_seed(0)
    sizes = widths(3, 2, 8, 64)
    network = _network(sizes, 0.1)
    matrices = Matrices.of([learnable(50)], 8)
    ids = learnable(30, seed=5)
    for _ in range(3):  # moves the norms' running statistics
        network(torch.from_numpy(matrices.states(ids, np.full(30, 2))))
    network.eval()
    arrays = [t.numpy() for t in _folded(network)]
    mlp = ExpertMLP(matrices, arrays[0::2], arrays[1::2], {})
    with torch.no_grad():
        wanted = torch.sigmoid(network(torch.from_numpy(matrices.states(ids, np.full(30, 2)))))
    np.testing.assert_allclose(mlp.probabilities(ids, 2), wanted.numpy(), atol=1e-5)


def test_too_little_to_learn_from_and_broken_artefacts(tmp_path):
    options = ExpertMLPOptions(width=64, tokens=9999, epochs=1, dropout=0.1, seed=0)
    with pytest.raises(UsageError, match="at least four tokens"):
        trained([RoutedSequence(learnable(3), 0)], 8, options, tmp_path)
    trained([RoutedSequence(learnable(4), 4)], 8, options, tmp_path)  # a prompt alone is read whole
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"broken")
    with pytest.raises(InputError, match="remove it"):
        trained([RoutedSequence(learnable(4), 4)], 8, options, tmp_path)


def test_it_stops_three_epochs_after_the_best(tmp_path):
    random = np.random.default_rng(0)  # only noise: nothing can be learnt
    texts = [RoutedSequence(random.permuted(np.tile(np.arange(8), (40, 3, 1)), axis=2)[..., :2], 0)]
    options = ExpertMLPOptions(width=64, tokens=99, epochs=99, dropout=0.0, seed=0)
    told: list[int] = []
    mlp = trained(texts, 8, options, tmp_path, lambda done, total: told.append(done))
    assert int(mlp.note["epochs"]) == len(told) == int(mlp.note["best_epoch"]) + 3 < 99


@pytest.mark.parametrize(
    ("lengths", "learnt", "held_out"),
    [
        ([4] * 20, [4] * 18, [4] * 2),  # a tenth of the texts
        ([12, 3], [11, 2], [1, 1]),  # of few texts, a tenth of each: at least a token
        ([30], [27], [3]),
        ([2, 1], [1, 1], [1, 0]),
        ([1, 1, 1], [1, 1], [1]),  # of texts of one token each, the last
    ],
)
def test_a_tenth_is_held_out(lengths, learnt, held_out):
    rows = iter(range(sum(lengths)))
    paths = [np.array([[[next(rows)]] for _ in range(n)]) for n in lengths]
    found = _split(paths)
    assert [[len(ids) for ids in part] for part in found] == [learnt, held_out]
    kept = sorted(int(row) for part in found for ids in part for row in ids.ravel())
    assert kept == list(range(sum(lengths)))


def test_at_most_so_many_tokens(tmp_path):
    options = ExpertMLPOptions(width=64, tokens=25, epochs=1, dropout=0.1, seed=0)
    mlp = trained(
        [RoutedSequence(learnable(20, seed), 0) for seed in range(5)], 8, options, tmp_path
    )
    # 20 of the first text and 5 of the second, a tenth of each (two and one) held out.
    assert mlp.note["tokens"] == str(18 + 4)


def test_eq_6_is_what_is_minimised():
    """At logits of zero, binary cross-entropy is ln 2 an expert."""
    network = _network(widths(3, 2, 8, 64), 0.1).eval()
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    samples = _Samples(Matrices.of([learnable(20)], 8), learnable(20))
    assert len(samples) == 40
    assert _loss(network, samples) == pytest.approx(math.log(2), abs=1e-6)


def test_dropout_keeps_the_mean_and_drops_its_share():
    torch.manual_seed(0)
    x = torch.ones(301, 333)  # not a multiple of four numbers
    found = _dropped(x, 0.1)
    dropped = found == 0
    assert dropped.float().mean().item() == pytest.approx(0.1, abs=0.004)
    assert found[~dropped].unique().tolist() == pytest.approx([1 / 0.9])
    assert torch.equal(_dropped(x, 0.0), x)
    assert (_dropped(x, 1 - 1e-9) > 0).float().mean() < 0.001
    ahead, behind = dropped[:, :-1].flatten().float(), dropped[:, 1:].flatten().float()
    assert torch.corrcoef(torch.stack([ahead, behind]))[0, 1].abs() < 0.02

"""FlashMoE's networks: the paper's example, Belady's labels, the network, training."""

import numpy as np
import pytest
import torch
from safetensors import safe_open

from moebench.substrate.errors import InputError, UsageError
from moebench.systems.learn.eviction_network import (
    EvictionNetworkOptions,
    History,
    _data,
    features,
    first_tokens,
    labels,
    trained,
)
from tests.systems.learn.networks import one_layer, random_network, routed

INF = float("inf")


# ---------------------------------------------------------------- §3.2


def test_history_features_match_the_papers_example():
    history = History(1, 6)
    assert history.r[0].tolist() == [INF] * 6
    history.step(0, [4])  # time_step 0: expert 4 is routed
    assert history.r[0].tolist() == [INF, INF, INF, INF, 1, INF]
    assert history.f[0].tolist() == [0, 0, 0, 0, 1, 0]
    assert history.features(0).reshape(2, 6).tolist() == [[0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0]]
    history.step(0, [3])  # time_step 1: expert 3
    assert history.r[0].tolist() == [INF, INF, INF, 1, 2, INF]
    assert history.f[0].tolist() == [0, 0, 0, 1, 1, 0]
    assert history.features(0).reshape(2, 6).tolist() == [[0, 0, 0, 1, 0.5, 0], [0, 0, 0, 1, 1, 0]]
    history.step(0, [3])
    assert history.features(0).tolist() == [0, 0, 0, 1, 1 / 3, 0, 0, 0, 0, 1, 0.5, 0]


def test_history_without_routing_has_zero_features():
    assert History(1, 3).features(0).tolist() == [0] * 6


def test_a_layer_has_its_own_history():
    seen = features(np.array([[[0], [1]], [[1], [1]]]), 2)
    assert seen[0].tolist() == [[1, 0, 1, 0], [0.5, 1, 1, 1]]
    assert seen[1].tolist() == [[0, 1, 0, 1], [0, 1, 0, 1]]


def test_what_is_learnt_from_is_what_a_run_sees():
    ids_TLK = routed(30)
    seen, history = features(ids_TLK, 8), History(2, 8)
    for t, layer in np.ndindex(30, 2):
        history.step(layer, ids_TLK[t, layer])
        assert np.array_equal(seen[layer, t], history.features(layer).astype(np.float32))


# ---------------------------------------------------------------- Belady's labels


def test_labels_by_hand():
    # Four experts: the horizon is three tokens.
    label, known = labels(one_layer(0, 1, 0, 2, 1), 4)
    # Token 0: 0 again after 2, 1 after 1, 2 after 3, 3 not in the 4 tokens that are left.
    assert label[0, 0] == pytest.approx([2 / 3, 1 / 3, 1, 1])
    assert known[0, 0].tolist() == [True] * 4
    # Token 1: 0 after 1, 1 after 3, 2 after 2, 3 not within the 3 tokens that are left.
    assert label[0, 1] == pytest.approx([1 / 3, 1, 2 / 3, 1])
    assert known[0, 1].tolist() == [True] * 4
    # Token 2: 0 is not used again in the 2 tokens that are left; whether in 3, nobody knows.
    assert label[0, 2, 1:3] == pytest.approx([2 / 3, 1 / 3])
    assert known[0, 2].tolist() == [False, True, True, False]
    assert known[0, 4].tolist() == [False] * 4


def test_masked_by_what_belady_holds():
    # Two slots.  Before token 2 they hold 0 and 1; 2 takes 1's place, for 0 comes sooner.
    tokens = one_layer(0, 1, 2, 0, 2, 1, 0, 0, 0, 0)
    known = labels(tokens, 4, cached=2)[1]
    held = [set(np.flatnonzero(row)) for row in known[0, :6]]
    assert held == [set(), {0}, {0, 1}, {0, 2}, {0, 2}, {0, 2}]


# ---------------------------------------------------------------- the network


def test_113_kb_a_layer():
    assert random_network(2, 64).bytes_per_layer == 113 * 1024


def test_numpy_network_equals_torch():
    network = random_network(3, 8)
    x = np.random.default_rng(1).random(16).astype("f4")
    layers = []
    for w, b in zip(network.weights, network.biases, strict=True):
        linear = torch.nn.Linear(w.shape[1], w.shape[2])
        linear.weight.data, linear.bias.data = torch.tensor(w[2].T), torch.tensor(b[2])
        layers += [linear, torch.nn.SiLU()]
    with torch.no_grad():
        expected = torch.nn.Sequential(*layers[:-1])(torch.tensor(x)).numpy()
    assert network.distances(2, x) == pytest.approx(expected, abs=1e-5)


# ---------------------------------------------------------------- training


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    return tmp_path_factory.mktemp("networks")


def test_network_is_trained_once_per_data_and_options(artefacts):
    told = []
    options = EvictionNetworkOptions(hidden=16, epochs=5)
    first = trained([routed()], 8, options, artefacts, lambda *done: told.append(done))
    assert told == [(n, 5) for n in range(1, 6)]
    again = trained([routed()], 8, options, artefacts, lambda *done: told.append(done))
    assert len(told) == 5
    assert all(np.array_equal(a, b) for a, b in zip(first.weights, again.weights, strict=True))
    files = sorted(artefacts.glob("*"))
    assert [file.suffix for file in files] == [".safetensors"]
    with safe_open(files[0], "np") as kept:
        assert kept.metadata()["epochs"] == "5"
        assert 0 < float(kept.metadata()["validation_mse"]) < 1
    for other in ({"seed": 1}, {"cached": 3}, {"hidden": 8}):
        trained(
            [routed()], 8, EvictionNetworkOptions(**{"hidden": 16, "epochs": 1} | other), artefacts
        )
    trained([routed(seed=1)], 8, options, artefacts)
    assert len(list(artefacts.glob("*"))) == 5


def test_equal_data_and_seed_give_equal_networks(tmp_path):
    options = EvictionNetworkOptions(hidden=16, epochs=3)
    a = trained([routed()], 8, options, tmp_path / "a")
    with torch.inference_mode():  # as in a run
        b = trained([routed()], 8, options, tmp_path / "b")
    assert all(np.array_equal(x, y) for x, y in zip(a.weights, b.weights, strict=True))


def test_layers_are_trained_in_groups_that_stop_on_their_own(tmp_path):
    """Six layers are two groups; each ends where its own losses do, and every layer is trained."""
    told = []
    options = EvictionNetworkOptions(hidden=8, epochs=40)
    texts = [routed(60, layers=6, seed=seed) for seed in range(3)]
    network = trained(texts, 8, options, tmp_path, lambda *done: told.append(done))
    assert [a.shape[0] for a in (*network.weights, *network.biases)] == [6] * 6
    assert {most for _, most in told} == {2 * 40}
    first = [done for done, _ in told if done <= 40]
    second = [done - 40 for done, _ in told if done > 40]
    for epochs in (first, second):
        assert epochs == list(range(1, len(epochs) + 1))
    low, high = sorted(map(len, (first, second)))
    assert network.note["epochs"] == (f"{low}" if low == high else f"{low} to {high}")
    assert network.note["texts"] == "3"


def test_training_stops_three_epochs_after_the_best(tmp_path):
    """Random routing cannot be learnt: what is fitted longer is worse on other texts."""
    network = trained([routed(300)], 8, EvictionNetworkOptions(epochs=200), tmp_path)
    assert int(network.note["epochs"]) == int(network.note["best_epoch"]) + 3 < 200


def test_texts_for_validation_are_the_last_tokens_of_the_data():
    """Ten texts: the last one validates; of two texts, the last tenth of each does."""
    ten = [routed(10, seed=seed) for seed in range(10)]
    (x, y, known), split = _data(ten, 8, 0)
    assert split == 90
    assert np.array_equal(x[:, 90:], features(ten[-1], 8))
    assert np.array_equal(y[:, 20:30], labels(ten[2], 8)[0])
    assert np.array_equal(known[:, 20:30], labels(ten[2], 8)[1])
    (x, *_), split = _data(ten[:2], 8, 0)
    assert split == 18
    assert np.array_equal(x[:, 18:20], np.stack([features(ids, 8)[:, 9] for ids in ten[:2]], 1))


def test_trained_network_ranks_frequent_experts_nearer(artefacts):
    # 0 and 1 come every second token, each of the others about every sixth.
    network = trained([routed(400)], 8, EvictionNetworkOptions(hidden=32, epochs=60), artefacts)
    history = History(2, 8)
    for ids in routed(51, seed=9):
        for layer in range(2):
            history.step(layer, ids[layer])
    for layer in range(2):
        distances = network.distances(layer, history.features(layer))
        assert distances[:2].max() < distances[2:].min()


def test_broken_artefact_is_refused(tmp_path):
    options = EvictionNetworkOptions(hidden=8, epochs=1)
    trained([routed()], 8, options, tmp_path)
    file = next(tmp_path.glob("*"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match=r"safetensors.*remove it"):
        trained([routed()], 8, options, tmp_path)


def test_too_little_to_learn_from(tmp_path):
    with pytest.raises(UsageError, match="less than two tokens"):
        trained([routed(1)], 8, EvictionNetworkOptions(), tmp_path)


def test_whole_sequences_up_to_so_many_tokens():
    three = [routed(40, seed=seed) for seed in range(3)]
    for tokens, sequences in ((1, 1), (40, 1), (79, 1), (80, 2), (119, 2), (120, 3), (999, 3)):
        kept = first_tokens(three, tokens)
        assert len(kept) == sequences
        assert all(np.array_equal(a, b) for a, b in zip(kept, three, strict=False))

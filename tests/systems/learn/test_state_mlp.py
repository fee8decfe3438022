"""ProMoE's predictors: predicted layers, training, and the artefact's name."""

from itertools import chain

import numpy as np
import pytest
import torch

from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn.state_mlp import (
    StateMLPOptions,
    StateMLPs,
    _ahead,
    _Data,
    _decoded,
    _fit,
    _losses,
    _recall,
    _wrapped,
    targets,
    trained,
)

LAYERS, EXPERTS, K, WIDTH = 4, 8, 2, 8
OPTIONS = StateMLPOptions(stride=2, width=32, tokens=4096, epochs=25, seed=0)


def text(tokens: int, seed: int, prefill: int = 0) -> RoutedSequence:
    """Return random states that determine the routing two layers later and in the next token.

    The two largest numbers of a state are the experts of the layer two further on; the last layer's
    are those of the next token's layer 0, and their neighbours those of its layer 1.
    """
    hidden = np.random.default_rng(seed).standard_normal((tokens, LAYERS, WIDTH))
    said = np.argsort(-hidden, axis=2)[..., :K]
    ids = np.empty((tokens, LAYERS, K), dtype=np.int64)
    ids[:, 2:] = said[:, :-2]
    ids[0, :2] = [0, 1]
    ids[1:, 0], ids[1:, 1] = said[:-1, -1], (said[:-1, -1] + 1) % EXPERTS
    return RoutedSequence(ids, prefill, hidden_TLH=hidden.astype(np.float16))


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> tuple[StateMLPs, list[tuple[int, int]]]:
    folder = tmp_path_factory.mktemp("artefacts")
    texts, told = [text(140, seed, prefill=20) for seed in range(10)], []
    made = trained(texts, EXPERTS, OPTIONS, folder, lambda *done: told.append(done))
    again = trained(texts, EXPERTS, OPTIONS, folder, lambda *done: pytest.fail("trained twice"))
    for ours, kept in zip(made.wrapped.weights, again.wrapped.weights, strict=True):
        np.testing.assert_array_equal(ours, kept)
    return made, told


@pytest.mark.parametrize(
    ("stride", "expected"),
    [
        (1, [[1], [2], [3], [0]]),
        (2, [[2], [3], [], [0, 1]]),
        (3, [[3], [], [], [0, 1, 2]]),
        (9, [[], [], [], [0, 1, 2, 3]]),
    ],
)
def test_every_layer_is_predicted_by_exactly_one_network(stride, expected):
    found = [list(targets(row, 4, stride)) for row in range(4)]
    assert found == expected
    assert sorted(chain(*found)) == [0, 1, 2, 3]


def test_they_learn_what_states_say(taught):
    mlps, _ = taught
    unseen = text(300, seed=99)
    for row in (0, 1, 3):
        for target, p_TE in mlps.probabilities(unseen.hidden_TLH[:, row], row).items():
            chosen = unseen.ids_TLK[:, target]
            if row == 3:
                p_TE, chosen = p_TE[:-1], chosen[1:]
            best = np.argsort(-p_TE, axis=1)[:, :K]
            recall = (best[:, :, None] == chosen[:, None, :]).any(axis=1).mean()
            assert recall > 0.55, (row, target)  # by chance K / E, a quarter
    assert mlps.probabilities(unseen.hidden_TLH[:, 2], 2) == {}


def test_training_notes_hold_recall_and_epochs(taught):
    mlps, told = taught
    assert mlps.note["tokens"] == str(10 * 120)  # decoded tokens only
    for part in ("ahead", "wrapped"):
        assert 0.65 < float(mlps.note[f"{part}.recall"]) <= 1
        assert int(mlps.note[f"{part}.best_epoch"]) <= int(mlps.note[f"{part}.epochs"]) <= 25
    # Two networks look two layers ahead, one at the next token's first layers.
    ahead = int(mlps.note["ahead.epochs"])
    assert told[ahead - 1] == (2 * ahead, 3 * 25)
    assert told[ahead:] == [(2 * 25 + i + 1, 75) for i in range(int(mlps.note["wrapped.epochs"]))]
    assert told == sorted(told)


def test_nothing_is_learnt_from_noise(tmp_path):
    random = np.random.default_rng(0)
    noise = [
        RoutedSequence(t.ids_TLK, 0, hidden_TLH=random.standard_normal(t.hidden_TLH.shape))
        for t in (text(100, seed) for seed in range(10))
    ]
    note = trained(noise, EXPERTS, OPTIONS, tmp_path).note
    assert 0.15 < float(note["ahead.recall"]) < 0.35


def test_the_states_are_in_the_artefacts_name(tmp_path):
    options = StateMLPOptions(2, 4, 4096, 1, 0)
    known = text(20, 0)
    trained([known], EXPERTS, options, tmp_path)
    other = RoutedSequence(known.ids_TLK, 0, hidden_TLH=known.hidden_TLH + np.float16(1))
    trained([other], EXPERTS, options, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_stride_beyond_the_last_layer(tmp_path):
    made = trained([text(20, 0)], EXPERTS, StateMLPOptions(9, 4, 4096, 1, 0), tmp_path)
    assert made.ahead is None
    assert [*made.probabilities(text(5, 1).hidden_TLH[:, 3], 3)] == [0, 1, 2, 3]


def test_too_little_to_learn_from_and_broken_artefacts(tmp_path):
    options = StateMLPOptions(2, 4, 4096, 1, 0)
    for few in ([text(3, 0)], [text(1, seed) for seed in range(9)], []):
        with pytest.raises(UsageError, match="at least four tokens"):
            trained(few, EXPERTS, options, tmp_path)
    with pytest.raises(UsageError, match="hidden states, which"):
        trained([RoutedSequence(text(9, 0).ids_TLK, 0)], EXPERTS, options, tmp_path)
    trained([text(2, 0), text(2, 1)], EXPERTS, options, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"broken")
    with pytest.raises(InputError, match="remove it"):
        trained([text(2, 0), text(2, 1)], EXPERTS, options, tmp_path)


def test_data_of_decoded_tokens_in_order():
    """At most five tokens: three decoded ones of the first text, then two of a text without."""
    ids = np.arange(5 * 2).reshape(5, 2, 1)
    hidden = np.arange(5 * 2 * 3).reshape(5, 2, 3).astype(np.float16)
    texts = [RoutedSequence(ids, 2, hidden_TLH=hidden), RoutedSequence(ids, 5, hidden_TLH=hidden),
             RoutedSequence(ids, 0, hidden_TLH=hidden)]  # fmt: skip
    found = _decoded(texts, 5)
    assert [one.tolist() for one, _ in found] == [ids[2:].tolist(), ids[:2].tolist()]
    assert [one.tolist() for _, one in found] == [hidden[2:].tolist(), hidden[:2].tolist()]
    assert {one.dtype for pair in found for one in pair} == {np.dtype("i4"), np.dtype("f4")}


def test_networks_learn_layers_further_on_and_the_next_token():
    """Three layers: with a stride of two only the first has one further on; two wrap around."""
    ids = np.arange(2 * 3).reshape(2, 3, 1)
    hidden = np.arange(2 * 3 * 2).reshape(2, 3, 2)
    texts = [(ids, hidden), (ids[:1], hidden[:1])]
    ahead = _ahead(texts, 2)
    assert ahead.x_MTH.tolist() == [[[0, 1], [6, 7], [0, 1]]]
    assert ahead.ids_MTLK.tolist() == [[[[2]], [[5]], [[2]]]]
    assert len(ahead.validates_T) == 3
    assert len(_ahead(texts, 3).x_MTH) == len(_ahead(texts, 9).x_MTH) == 0
    wrapped = _wrapped(texts, 2)
    # The first token's last state, and the second token's first two layers.
    assert wrapped.x_MTH.tolist() == [[[4, 5]]]
    assert wrapped.ids_MTLK.tolist() == [[[[3], [4]]]]


def test_recall_and_losses_by_hand():
    """Of two layers with three experts, top-2: one and two of two are among the likeliest."""
    p = np.array([[0.9, 0.5, 0.1, 0.2, 0.3, 0.1]])
    assert _recall(p, np.array([[[0, 2], [1, 0]]])) == 0.75
    assert _recall(np.array([[0.5, 0.5, 0.5]]), np.array([[[0, 1]]])) == 1
    x, y = torch.tensor([[[2.0]], [[1.0]]]), torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    # One layer: x w + b; two: relu of the first's outputs.
    w, b = torch.tensor([[[1.0, -1.0]], [[3.0, 0.0]]]), torch.zeros(2, 1, 2)
    for parameters, logits in (
        ([w, b], [[2, -2], [3, 0]]),
        ([w, b, torch.eye(2).repeat(2, 1, 1), b + 1], [[3, 1], [4, 1]]),
    ):
        expected = [
            np.mean([np.log1p(np.exp(-z if t else z)) for z, t in zip(row, of, strict=True)])
            for row, of in zip(logits, y[:, 0].tolist(), strict=True)
        ]
        assert _losses(parameters, x, y).tolist() == pytest.approx(expected)


def test_networks_do_not_depend_on_the_scale_and_origin_of_states():
    random = np.random.default_rng(1)
    states = random.standard_normal((1, 60, WIDTH)).astype(np.float32)
    ids = np.argsort(-states, axis=2)[:, :, None, :K]
    validates = np.arange(60) >= 50
    options = StateMLPOptions(stride=2, width=16, tokens=60, epochs=4, seed=0)
    found, _ = _fit(_Data(states, ids, validates), EXPERTS, options, lambda *done: None)
    moved = 4 * states + 8
    again, _ = _fit(_Data(moved, ids, validates), EXPERTS, options, lambda *done: None)
    np.testing.assert_allclose(
        again.probabilities(moved[0], 0), found.probabilities(states[0], 0), atol=1e-3
    )

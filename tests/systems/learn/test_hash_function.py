"""Training of SiDA's hash function, step by step: texts, batches, patience and what is said."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn import hash_function
from moebench.systems.learn.hash_function import HashFunction, HashOptions, sparsemax, trained

LAYERS, EXPERTS, EMBEDDING = 2, 4, 6


@pytest.fixture(scope="module", autouse=True)
def optimizers() -> None:
    """The first optimizer of a process imports much of torch."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks as small as these are computed faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def texts(count: int, seed: int = 0) -> list[RoutedSequence]:
    """Return texts of 3 to 6 tokens whose gates have nothing to do with their embeddings."""
    random = np.random.default_rng(seed)
    found = []
    for at in range(count):
        tokens = 3 + at % 4
        scores = random.dirichlet(np.full(EXPERTS, 0.3), (tokens, LAYERS)).astype(np.float32)
        embedding = random.standard_normal((tokens, EMBEDDING)).astype(np.float32)
        ids = np.argsort(-scores, axis=2)[..., :1]
        found.append(RoutedSequence(ids, 1, scores, embedding_TH=embedding))
    return found


def parts(text: RoutedSequence) -> tuple[np.ndarray, np.ndarray]:
    assert text.embedding_TH is not None
    assert text.scores_TLE is not None
    return text.embedding_TH, text.scores_TLE


def by_hand(
    learns: list[RoutedSequence], judges: list[RoutedSequence], options: HashOptions
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Train as the module says it: Adam at .001 and steps of 8 texts, until 5 epochs are no better.

    Returns: the weights of the best epoch, and the loss of each epoch on the texts that judge.
    """
    network = hash_function._network(
        options.width, EMBEDDING, LAYERS * EXPERTS, options.seed
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    generator = torch.Generator().manual_seed(options.seed)

    def loss(some: list[RoutedSequence]) -> torch.Tensor:
        """Return the mean over all tokens of some texts, each of which is read by itself."""
        each = []
        for text in some:
            x, teacher = (torch.from_numpy(part)[None] for part in parts(text))
            logits = hash_function._logits(network, x).view(teacher.shape)
            tokens = x.shape[1]
            each.append(tokens * hash_function.losses(logits, teacher, torch.ones(1, tokens)))
        return torch.stack(each).sum() / sum(len(parts(text)[0]) for text in some)

    best: dict[str, np.ndarray] = {}
    found: list[float] = []
    for _ in range(options.epochs):
        order = torch.randperm(len(learns), generator=generator).tolist()
        while order:
            now, order = order[:8], order[8:]
            optimizer.zero_grad()
            torch.autograd.backward(loss([learns[at] for at in now]))
            optimizer.step()
        with torch.no_grad():
            found.append(float(loss(judges)))
        if found[-1] == min(found) and found.count(found[-1]) == 1:
            best = {name: p.detach().clone().numpy() for name, p in network.named_parameters()}
        if len(found) - 1 - found.index(min(found)) == 5:
            break
    return best, found


@pytest.mark.parametrize(("count", "held", "epochs"), [(16, 2, 9), (4, 1, 3), (1, 1, 2)])
def test_networks_are_trained_as_the_module_says(
    count: int, held: int, epochs: int, tmp_path: Path
) -> None:
    """A tenth of the texts judges, at least one; a single text is learnt from and judges."""
    all_texts = texts(count, seed=2)
    options = HashOptions(width=5, epochs=epochs, seed=0)
    done: list[tuple[int, int]] = []
    network = trained(all_texts, EXPERTS, options, tmp_path, lambda *both: done.append(both))
    learns = all_texts[:-held] or all_texts
    weights, losses = by_hand(learns, all_texts[-held:], options)
    assert network.arrays.keys() == weights.keys()
    for name, wanted in weights.items():
        assert network.arrays[name] == pytest.approx(wanted, abs=2e-4), name
    assert done == [(n, epochs) for n in range(1, len(losses) + 1)]
    if count == 16:
        assert len(losses) < epochs, "it stopped early"
    tokens = sum(len(parts(text)[0]) for text in all_texts)
    note = dict(network.note)
    assert float(note.pop("loss")) == pytest.approx(min(losses), abs=2e-4)
    right = [
        [gate.argmax() in np.argsort(-p)[:3] for p, gate in zip(read, scores, strict=True)]
        for text in all_texts[-held:]
        for x, of_tokens in [parts(text)]
        for read, scores in [
            (network.read(x, network.begin()).reshape(-1, EXPERTS), of_tokens.reshape(-1, EXPERTS))
        ]
    ]
    assert float(note.pop("top_3")) == pytest.approx(np.mean([*map(np.mean, right)]), abs=1e-4)
    assert note == {
        "width": "5", "epochs": str(len(losses)), "seed": "0", "texts": str(count),
        "tokens": str(tokens), "best_epoch": str(losses.index(min(losses)) + 1),
    }  # fmt: skip
    assert (network.num_layers, network.num_experts) == (LAYERS, EXPERTS)


def test_initial_weights_depend_on_the_seed_alone_and_leave_torchs_own_state() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (hash_function._network(5, 3, 8, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, weights in one.named_parameters():
        assert torch.equal(weights, dict(same.named_parameters())[name])
        assert not torch.equal(weights, dict(other.named_parameters())[name])
    dims = {name: tuple(weights.shape) for name, weights in one.named_parameters()}
    gates = {
        f"lstm.{kind}_l{layer}": (20, 5) if "weight" in kind else (20,)
        for layer in (0, 1)
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    assert dims == gates | {
        "compress.weight": (5, 3), "compress.bias": (5,), "residual.weight": (5, 5),
        "residual.bias": (5,), "head.weight": (8, 5), "head.bias": (8,),
    }  # fmt: skip


def test_texts_are_padded_at_their_ends() -> None:
    x, teacher, real = hash_function._padded([parts(text) for text in texts(2)])
    assert (x.shape, teacher.shape) == ((2, 4, EMBEDDING), (2, 4, LAYERS, EXPERTS))
    assert real.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert not x[0, 3].any()
    assert not teacher[0, 3].any()
    for at, text in enumerate(texts(2)):
        embedding, scores = parts(text)
        assert (x[at, : len(embedding)].numpy() == embedding).all()
        assert (teacher[at, : len(scores)].numpy() == scores).all()


def test_only_the_thirty_best_experts_of_the_gate_are_distilled() -> None:
    """40 experts; the network's logits of the last ten do not count, but for the cross-entropy."""
    random = torch.Generator().manual_seed(0)
    teacher = torch.rand(1, 1, 1, 40, generator=random).sort(descending=True).values
    logits = torch.randn(1, 1, 1, 40, generator=random)
    found = float(hash_function.losses(logits, teacher, torch.ones(1, 1)))
    top = teacher[0, 0, 0, :30] / teacher[0, 0, 0, :30].sum()
    own = logits[0, 0, 0, :30].softmax(-1)
    hard = -logits[0, 0, 0].log_softmax(-1)[0]
    assert found == pytest.approx(float((own - top).abs().sum() + 0.005 * hard), rel=1e-5)


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        ([1.0, 0.8, 0.1], [0.6, 0.4, 0.0]),
        ([2.0, 0.5, 1.0], [1.0, 0.0, 0.0]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([0.3, -np.inf, 0.1], [0.6, 0.0, 0.4]),
        ([-5.0], [1.0]),
    ],
)
def test_sparsemax_by_hand(scores: list[float], found: list[float]) -> None:
    assert sparsemax(np.array(scores)) == pytest.approx(found)
    assert hash_function._sparsemax(torch.tensor(scores)).numpy() == pytest.approx(found)
    both = np.array([scores, scores[::-1]])
    assert sparsemax(both) == pytest.approx(np.array([found, found[::-1]]))


@pytest.mark.parametrize("lacking", ["embedding_TH", "scores_TLE"])
def test_texts_without_what_it_learns_from_are_refused(lacking: str, tmp_path: Path) -> None:
    one, *others = texts(3)
    fields: dict[str, Any] = {"embedding_TH": one.embedding_TH, "scores_TLE": one.scores_TLE}
    without = RoutedSequence(one.ids_TLK, 1, **(fields | {lacking: None}))
    with pytest.raises(UsageError, match="learns from token embeddings and gate scores, which"):
        trained([*others, without], EXPERTS, HashOptions(4, 1, 0), tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_another_seed_width_or_number_of_epochs_is_another_artefact(tmp_path: Path) -> None:
    given = texts(2)
    for options in (HashOptions(4, 1, 0), HashOptions(4, 1, 1), HashOptions(5, 1, 0),
                    HashOptions(4, 2, 0), HashOptions(4, 1, 0)):  # fmt: skip
        assert isinstance(trained(given, EXPERTS, options, tmp_path), HashFunction)
    assert len([*tmp_path.glob("hash-function-*.safetensors")]) == 4


def test_equal_losses_are_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them is the best, and five more epochs end the training."""
    monkeypatch.setattr(hash_function, "losses", lambda logits, *_: (logits * 0).sum() + 0.25)
    network = trained(texts(2), EXPERTS, HashOptions(4, 20, 0), tmp_path)
    note = network.note
    assert (note["best_epoch"], note["epochs"], note["loss"]) == ("1", "6", "0.2500")

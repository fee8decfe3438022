"""Training of DuoServe-MoE's ExpertMLP: routing matrices, the state vector, network, optimiser.

    paper                                      moebench
    ─────                                      ────────
    activation path E, Eq. 1             §4.1  ids_TLK: each token is one episode
    P_l(i), Eq. 2                        §4.1  Matrices.popularity_LE
    A_{l,l+1}(i,j), Eq. 3                §4.1  Matrices.affinity_LEE
    s_l = [h_l, p_l, a_{l-1,l}], Eq. 5   §4.2  Matrices.states
    ExpertMLP                            §4.2  ExpertMLP, widths
    L(θ), Eq. 6                          §4.2  _fit

Our choices where the paper is silent:

- Seven layers: six hidden widths, each half of the one before, 2048 to 64, then the output.  From
  other first widths, they fall to 64 by equal ratios.
- One network for all layers: only then does the zero-padding of h_l make sense.
- h_l is the path's expert ids, each as (id + 1) / M, so that expert 0 differs from padding.  A
  layer's experts are ordered best first.
- a_{l-1,l} is "the inter-layer affinity vector from the previous layer's expert selection" (§5.3):
  the rows of A of the k experts chosen in layer l-1; the whole matrix would not depend on them.
- p_l and a_{l-1,l} are multiples of the even share 1 / M: next to ids of up to 1, shares of a
  hundredth would hardly matter.
- Only decoded tokens are used, as the network predicts in decode; of texts without any, all tokens.
- Adam, 3e-3, batches of 512.  A tenth of the data is held out; training stops when its loss has
  not improved for three epochs, and the best epoch's weights are kept.  The authors needed 40 to
  45 epochs for 8x22B: --set prefetch.epochs=45.
- Batch norm is folded into the stored weights.

Shape letters: T tokens, L MoE layers, K chosen, E experts, S values of a state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moebench.substrate.analysis.statistics import affinity, popularity
from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn.artefacts import Artefact, content_hash, kept

if TYPE_CHECKING:
    import torch

#: Part of the hash: increased when the same data and options lead to another network.
VERSION = 3

LAYERS, LAST_HIDDEN = 7, 64
LEARNING_RATE, BATCH, PATIENCE, HELD_OUT = 3e-3, 512, 3, 0.1


@dataclass(frozen=True, slots=True)
class ExpertMLPOptions:
    """Training options of the network, described in `systems.duoserve.LearnedPath`."""

    width: int
    tokens: int
    epochs: int
    dropout: float
    seed: int


@dataclass(frozen=True, slots=True)
class Matrices:
    """Popularity and affinity matrices counted over recorded routing (§4.1).

    ``popularity_LE`` is P of Eq. 2, ``affinity_LEE`` is A of Eq. 3 from each layer to the next.
    """

    popularity_LE: np.ndarray
    affinity_LEE: np.ndarray

    @classmethod
    def of(cls, paths: Sequence[np.ndarray], num_experts: int) -> "Matrices":
        """Count the matrices over paths ``[T, L, K]``."""
        traced = [RoutedSequence(ids, prefill=0) for ids in paths]
        counted = popularity(traced, num_experts), affinity(traced, num_experts)
        return cls(*(shares.astype(np.float32) for shares in counted))

    def states(self, ids_TLK: np.ndarray, layers_T: np.ndarray) -> np.ndarray:
        """Return each token's state s_l (Eq. 5), ``[T, S]``, for the layer l ≥ 1 in ``layers_T``.

        Only experts of the layers before l are read.
        """
        tokens, _, k = ids_TLK.shape
        layers, experts = self.popularity_LE.shape
        path = ids_TLK[:, : layers - 1].reshape(tokens, -1)
        h = path.shape[1]
        past = np.arange(h) < k * layers_T[:, None]
        chosen_TK = ids_TLK[np.arange(tokens), layers_T - 1]
        # Write in place: copies would take most of a training step's time outside of products.
        states = np.empty((tokens, h + experts + k * experts), np.float32)
        np.divide((path + 1) * past, experts, out=states[:, :h], casting="same_kind")
        states[:, h : h + experts] = self.popularity_LE[layers_T]
        affinities = self.affinity_LEE[layers_T[:, None] - 1, chosen_TK]
        states[:, h + experts :] = affinities.reshape(tokens, -1)
        states[:, h:] *= experts
        return states


def widths(layers: int, top_k: int, experts: int, first: int) -> tuple[int, ...]:
    """Return ExpertMLP's layer widths from input to output; ``first`` is the first hidden width."""
    size = (layers - 1) * top_k + experts + top_k * experts
    hidden, last = LAYERS - 1, LAST_HIDDEN
    return (
        size, *(round(first * (last / first) ** (i / (hidden - 1))) for i in range(hidden)), experts
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpertMLP:
    """A trained predictor: the matrices that it reads, and seven layers with ReLU between them.

    ``weights`` are ``[in, out]``, ``biases`` ``[out]``; ``note`` describes the training.
    """

    matrices: Matrices
    weights: Sequence[np.ndarray]
    biases: Sequence[np.ndarray]
    note: Mapping[str, str]

    def probabilities(self, ids_TLK: np.ndarray, layer: int) -> np.ndarray:
        """Return σ(f(s_l)), the probability that each expert of a layer is chosen, ``[T, E]``."""
        x = self.matrices.states(ids_TLK, np.full(len(ids_TLK), layer))
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ w
            x += b
            np.maximum(x, 0, out=x)
        odds: np.ndarray = np.exp(-np.clip(x @ self.weights[-1] + self.biases[-1], -60, 60))
        return 1 / (1 + odds)


def trained(
    sequences: Sequence[RoutedSequence], num_experts: int, options: ExpertMLPOptions,
    artefacts: Path, progress: Callable[[int, int], None] = lambda done, total: None,
) -> ExpertMLP:  # fmt: skip
    """Return a predictor trained on these texts, or read it from ``artefacts``.

    Raises UsageError: there are too few tokens or layers to learn from.
    """
    paths = [s.ids_TLK[s.prefill if s.prefill < len(s.ids_TLK) else 0 :] for s in sequences]
    paths = _first(paths, options.tokens)
    if sum(map(len, paths)) < 4 or paths[0].shape[1] < 2:
        raise UsageError(
            "prefetch=expert-mlp learns from routed texts: at least four tokens of a model of two "
            "MoE layers or more; give --calibrate-from another workload, or --set prefetch=none"
        )
    name = content_hash([VERSION, num_experts, asdict(options)], paths)

    def learn() -> Artefact:
        mlp = _fit(paths, num_experts, options, progress)
        counted = mlp.matrices
        arrays = {"popularity": counted.popularity_LE, "affinity": counted.affinity_LEE}
        arrays |= {f"weight{i}": w for i, w in enumerate(mlp.weights)}
        arrays |= {f"bias{i}": b for i, b in enumerate(mlp.biases)}
        return Artefact(arrays, mlp.note)

    arrays, note = kept(artefacts / f"expert-mlp-{name}.safetensors", learn)
    weights, biases = ([arrays[f"{part}{i}"] for i in range(LAYERS)] for part in ("weight", "bias"))
    return ExpertMLP(Matrices(arrays["popularity"], arrays["affinity"]), weights, biases, note)


def _first(paths: Sequence[np.ndarray], tokens: int) -> list[np.ndarray]:
    """Return the paths' first tokens, at most ``tokens`` over all texts."""
    found: list[np.ndarray] = []
    for ids in paths:
        if len(ids) and tokens > 0:
            found.append(np.ascontiguousarray(ids[:tokens], np.int32))
            tokens -= len(ids)
    return found


def _fit(
    paths: Sequence[np.ndarray], num_experts: int, options: ExpertMLPOptions,
    progress: Callable[[int, int], None],
) -> ExpertMLP:  # fmt: skip
    import torch

    learnt, held_out = _split(paths)
    matrices = Matrices.of(learnt, num_experts)
    train, test = (_Samples(matrices, np.concatenate(p)) for p in (learnt, held_out))
    layers, k = paths[0].shape[1:]
    best: list[torch.Tensor] = []
    best_loss, best_epoch, epoch = float("inf"), 0, 0
    # Enable gradients whatever the caller's mode is, and leave its random generator unchanged.
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(options.seed)
        network = _network(widths(layers, k, num_experts, options.width), options.dropout)
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
        bce = torch.nn.functional.binary_cross_entropy_with_logits
        while epoch < options.epochs and epoch - best_epoch < PATIENCE:
            network.train()
            for rows in torch.split(torch.randperm(len(train)), BATCH):
                if len(rows) > 1 or len(train) == 1:  # batch norm needs two
                    states, chosen = train[rows.numpy()]
                    loss = bce(network(states), chosen)
                    optimizer.zero_grad()
                    torch.autograd.backward(loss)
                    optimizer.step()
            epoch += 1
            network.eval()
            found = _loss(network, test)
            if found < best_loss:
                best_loss, best_epoch = found, epoch
                best = _folded(network)
            progress(epoch, options.epochs)
    note = {name: str(value) for name, value in asdict(options).items()}
    note |= {"tokens": str(sum(map(len, learnt))), "epochs": str(epoch)}
    note |= {"best_epoch": str(best_epoch), "loss": f"{best_loss:.6f}"}
    arrays = [t.numpy() for t in best]
    return ExpertMLP(matrices, arrays[0::2], arrays[1::2], note)


def _split(paths: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return training and validation paths: the last tenth of texts, or of each of few texts."""
    kept = round(HELD_OUT * len(paths))
    if kept:
        return list(paths[:-kept]), list(paths[-kept:])
    cuts = [max(1, len(ids) - max(1, round(HELD_OUT * len(ids)))) for ids in paths]
    ends = [ids[cut:] for ids, cut in zip(paths, cuts, strict=True)]
    if not any(map(len, ends)):  # texts of one token each
        return list(paths[:-1]), list(paths[-1:])
    return [ids[:cut] for ids, cut in zip(paths, cuts, strict=True)], ends


class _Samples:
    """Training samples of every token at every layer but the first: state and chosen experts."""

    def __init__(self, matrices: Matrices, ids_TLK: np.ndarray) -> None:
        self._matrices, self._ids = matrices, ids_TLK
        self._layers = ids_TLK.shape[1] - 1

    def __len__(self) -> int:
        return len(self._ids) * int(self._layers)

    def __getitem__(self, rows: np.ndarray) -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        tokens, layers = rows // self._layers, rows % self._layers + 1
        ids = self._ids[tokens]
        chosen = np.zeros((len(rows), self._matrices.popularity_LE.shape[1]), dtype=np.float32)
        np.put_along_axis(chosen, ids[np.arange(len(rows)), layers], 1, axis=1)
        return torch.from_numpy(self._matrices.states(ids, layers)), torch.from_numpy(chosen)


def _network(sizes: Sequence[int], dropout: float) -> "torch.nn.Sequential":
    """Return the network: hidden layers of product, batch norm, ReLU, dropout; then the output."""
    from torch import nn

    def drop(layer: nn.Module, _: object, x: "torch.Tensor") -> "torch.Tensor":
        return _dropped(x, dropout) if layer.training else x

    *hidden, last = pairwise(sizes)
    parts: list[nn.Module] = []
    for a, b in hidden:
        parts += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
        parts[-1].register_forward_hook(drop)
    return nn.Sequential(*parts, nn.Linear(*last))


def _dropped(x: "torch.Tensor", rate: float) -> "torch.Tensor":
    """Apply dropout, drawing 16 random bits per number.

    torch's dropout draws a double for each, which on a CPU is a sixth of a training step.
    """
    import torch

    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view_as(x)
    least = min(round(rate * 2**16) - 2**15, 2**15 - 1)  # a rate of nearly 1 stays in 16 bits
    return x * (bits >= least) / (1 - rate)


def _loss(network: "torch.nn.Sequential", samples: _Samples) -> float:
    import torch

    bce = torch.nn.functional.binary_cross_entropy_with_logits
    total = 0.0
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(samples)), 8 * BATCH):
            states, chosen = samples[rows.numpy()]
            total += float(bce(network(states), chosen)) * len(rows)
    return total / len(samples)


def _folded(network: "torch.nn.Sequential") -> "list[torch.Tensor]":
    """Return weights and biases in turn, with batch norm folded into them."""
    from torch import nn

    found: list[torch.Tensor] = []
    for part in network:
        if isinstance(part, nn.Linear):
            found += [part.weight.detach().T.clone(), part.bias.detach().clone()]
        elif isinstance(part, nn.BatchNorm1d):
            assert part.running_mean is not None
            assert part.running_var is not None
            scale = part.weight.detach() / (part.running_var + part.eps).sqrt()
            found[-2] = found[-2] * scale
            found[-1] = (found[-1] - part.running_mean) * scale + part.bias.detach()
    return found

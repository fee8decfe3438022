"""Training of SiDA-MoE's hash function: from token embeddings to the experts of all layers.

    paper (section 3)                             moebench
    ─────────────────                             ────────
    compressed embedding, FC d -> 256, ReLU       `HashFunction.read`
    2-layer LSTM of width 256                     the same, with a state for each text
    dot-product self-attention with SparseMax     the same, on the LSTM's outputs so far
    FC 256 -> 256 of the compressed embedding     added to the attention's output
    one FC 256 -> E head for each MoE layer       ``head``
    cross-entropy, weight 0.005                   `losses`, of the model's first expert
    truncated knowledge distillation, top T = 30  `losses`, L1 of the softmaxes over these experts
    (code: L1 of the softmaxes of the 30)

Deviations and readings:

- The attention is causal: a token attends to itself and earlier ones.  The paper's models are
  encoders; here answers are written token by token, and a token's prediction must not change later.
- The code's SparseMax subtracts 1 twice and divides by the sum: (1, .8, .1) becomes (.5, .41, .09).
- Adam, 1e-3, 64 texts, at most 40 epochs, stopped early.  The paper trains with AdamW and 5e-5 on a
  data set's whole train split; so few steps at that rate would leave the network untrained.

Shape letters: T tokens, H the embedding's width, L MoE layers, E experts, W ``width``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moebench.substrate.errors import UsageError
from moebench.substrate.terms import RoutedSequence
from moebench.systems.learn.artefacts import Artefact, content_hash, kept

if TYPE_CHECKING:
    import torch

#: Part of the hash: increased when the same data and options lead to another network.
VERSION = 2

LEARNING_RATE, PATIENCE = 1e-3, 5
CROSS_ENTROPY, TEACHERS_TOP = 0.005, 30

#: The share of the texts for validation, and the texts of a training step.
VALIDATION, BATCH = 0.1, 8

LSTM_LAYERS = 2


@dataclass(frozen=True, slots=True)
class HashOptions:
    """Training options of the network, described in `systems.sida.HashRouting`."""

    width: int
    epochs: int
    seed: int


def sparsemax(scores: np.ndarray) -> np.ndarray:
    """Return the Euclidean projection of each row onto the simplex (Martins and Astudillo 2016).

    Many entries are exactly 0.  Entries of -inf stay 0.
    """
    ordered = -np.sort(-scores, axis=-1)
    n = np.arange(1, scores.shape[-1] + 1)
    above = np.where(np.isfinite(ordered), ordered, 0).cumsum(axis=-1)
    support = np.isfinite(ordered) & (1 + n * np.where(np.isfinite(ordered), ordered, 0) > above)
    size = support.sum(axis=-1, keepdims=True)
    threshold = (np.take_along_axis(above, size - 1, axis=-1) - 1) / size
    found: np.ndarray = np.maximum(scores - threshold, 0)
    return found


@dataclass(slots=True)
class Reading:
    """What the network keeps of a text that it has read: the LSTM's state, and its outputs."""

    hidden: np.ndarray
    cell: np.ndarray
    outputs_TW: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HashFunction:
    """The trained network; ``note`` describes its training.

    ``arrays`` has torch's names: ``compress.weight``, ``lstm.weight_ih_l0``, ``residual.weight``,
    ``head.weight`` and so on.
    """

    arrays: Mapping[str, np.ndarray]
    num_layers: int
    num_experts: int
    note: Mapping[str, str]

    def begin(self) -> Reading:
        """Return the state before the first token of a text."""
        width = self.arrays["compress.bias"].shape[0]
        nothing = np.zeros((LSTM_LAYERS, width), np.float32)
        return Reading(nothing, nothing.copy())

    def read(self, embedding_TH: np.ndarray, reading: Reading) -> np.ndarray:
        """Return the probability of each expert ``[T, L, E]`` for the next tokens of a text."""
        a = self.arrays
        x_TW = np.maximum(embedding_TH @ a["compress.weight"].T + a["compress.bias"], 0)
        attended = []
        for x in x_TW:
            reading.outputs_TW.append(self._step(x, reading))
            known = np.stack(reading.outputs_TW)
            attended.append(sparsemax(known @ known[-1] / len(x) ** 0.5) @ known)
        z_TW = np.stack(attended) + x_TW @ a["residual.weight"].T + a["residual.bias"]
        logits = z_TW @ a["head.weight"].T + a["head.bias"]
        logits = logits.reshape(len(z_TW), self.num_layers, self.num_experts)
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        found: np.ndarray = odds / odds.sum(axis=-1, keepdims=True)
        return found

    def _step(self, x: np.ndarray, reading: Reading) -> np.ndarray:
        """Return the LSTM's output for one token, and keep its state."""
        a = self.arrays
        for layer in range(LSTM_LAYERS):
            gates = x @ a[f"lstm.weight_ih_l{layer}"].T + a[f"lstm.bias_ih_l{layer}"]
            gates = gates + reading.hidden[layer] @ a[f"lstm.weight_hh_l{layer}"].T
            i, f, g, o = np.split(gates + a[f"lstm.bias_hh_l{layer}"], 4)
            cell = _sigmoid(f) * reading.cell[layer] + _sigmoid(i) * np.tanh(g)
            reading.cell[layer] = cell
            reading.hidden[layer] = x = _sigmoid(o) * np.tanh(cell)
        return x.copy()


def _sigmoid(x: np.ndarray) -> np.ndarray:
    found: np.ndarray = 1 / (1 + np.exp(-np.clip(x, -60, 60)))
    return found


def trained(
    sequences: Sequence[RoutedSequence], num_experts: int, options: HashOptions, artefacts: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> HashFunction:  # fmt: skip
    """Return the network trained on these texts, or read it from ``artefacts``.

    Raises UsageError: the texts lack embeddings or scores.
    """
    texts = []
    for text in sequences:
        if text.embedding_TH is None or text.scores_TLE is None:
            raise UsageError(
                "route=hash-function learns from token embeddings and gate scores, which these "
                "texts lack"
            )
        texts.append((text.embedding_TH.astype(np.float32), text.scores_TLE.astype(np.float32)))
    name = content_hash([VERSION, num_experts, asdict(options)], [a for t in texts for a in t])
    layers = texts[0][1].shape[1]

    def learn() -> Artefact:
        import torch

        with torch.inference_mode(False), torch.enable_grad():
            return _fit(texts, num_experts, options, progress)

    arrays, note = kept(artefacts / f"hash-function-{name}.safetensors", learn)
    return HashFunction(arrays, layers, num_experts, note)


def _network(width: int, embedding: int, outputs: int, seed: int) -> "torch.nn.ModuleDict":
    """Return an untrained network, with torch's own initial weights for this seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.ModuleDict({
            "compress": torch.nn.Linear(embedding, width),
            "lstm": torch.nn.LSTM(width, width, LSTM_LAYERS, batch_first=True),
            "residual": torch.nn.Linear(width, width),
            "head": torch.nn.Linear(width, outputs),
        })  # fmt: skip


def _logits(network: "torch.nn.ModuleDict", x: "torch.Tensor") -> "torch.Tensor":
    """Return the logits ``[B, T, L · E]`` of texts of one length ``[B, T, H]``."""
    import torch

    x = torch.relu(network["compress"](x))
    read, _ = network["lstm"](x)
    scores = read @ read.transpose(1, 2) / x.shape[-1] ** 0.5
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    weights = _sparsemax(scores.masked_fill(later, -torch.inf))
    found: torch.Tensor = network["head"](weights @ read + network["residual"](x))
    return found


def _sparsemax(scores: "torch.Tensor") -> "torch.Tensor":
    """Return `sparsemax` so that it can be differentiated."""
    import torch

    ordered = scores.sort(dim=-1, descending=True).values
    finite = ordered.isfinite()
    ordered = ordered.masked_fill(~finite, 0)
    n = torch.arange(1, scores.shape[-1] + 1)
    above = ordered.cumsum(-1)
    size = (finite & (1 + n * ordered > above)).sum(-1, keepdim=True)
    threshold = (above.gather(-1, size - 1) - 1) / size
    return (scores - threshold).clamp(min=0)


def losses(logits: "torch.Tensor", teacher: "torch.Tensor", real: "torch.Tensor") -> "torch.Tensor":
    """Return the mean loss: .005 · cross-entropy + truncated distillation (section 3).

    Args:
        logits, teacher: of the network, and gate scores ``[B, T, L, E]``.
        real: which tokens are not padding ``[B, T]``.
    """
    import torch

    top, ids = teacher.topk(min(TEACHERS_TOP, teacher.shape[-1]), dim=-1)
    aim = top / top.sum(-1, keepdim=True).clamp(min=1e-9)
    own = logits.gather(-1, ids).softmax(-1)
    distilled = (own - aim).abs().sum(-1)
    hard = torch.nn.functional.cross_entropy(
        logits.flatten(0, 2), ids[..., 0].flatten(), reduction="none"
    ).view(distilled.shape)
    each = (distilled + CROSS_ENTROPY * hard).mean(-1)
    return (each * real).sum() / real.sum()


def _fit(
    texts: Sequence[tuple[np.ndarray, np.ndarray]], num_experts: int, options: HashOptions,
    progress: Callable[[int, int], None],
) -> Artefact:  # fmt: skip
    """Train; keep the weights of the epoch with the least loss on the last tenth of the texts.

    One text alone is trained on and judged by.
    """
    import torch

    layers = texts[0][1].shape[1]
    network = _network(options.width, texts[0][0].shape[1], layers * num_experts, options.seed)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    held = max(1, round(VALIDATION * len(texts)))
    learns = texts[:-held] or texts
    generator = torch.Generator().manual_seed(options.seed)
    best: dict[str, Any] = {}
    least, best_epoch, epoch = float("inf"), 0, 0

    def loss_of(some: Sequence[tuple[np.ndarray, np.ndarray]]) -> "torch.Tensor":
        x, teacher, real = _padded(some)
        logits = _logits(network, x).view(*x.shape[:2], layers, num_experts)
        return losses(logits, teacher, real)

    while epoch < options.epochs and epoch - best_epoch < PATIENCE:
        order = torch.randperm(len(learns), generator=generator).tolist()
        for first in range(0, len(order), BATCH):
            loss = loss_of([learns[i] for i in order[first : first + BATCH]])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        with torch.no_grad():
            found = float(loss_of(texts[-held:]))
        epoch += 1
        if found < least:
            least, best_epoch = found, epoch
            best = {name: p.detach().clone().numpy() for name, p in network.named_parameters()}
        progress(epoch, options.epochs)
    known = HashFunction(best, layers, num_experts, {})
    note = {key: str(value) for key, value in asdict(options).items()}
    note |= {
        "top_3": f"{_top_3(known, texts[-held:]):.4f}",
        "texts": str(len(texts)), "tokens": str(sum(len(x) for x, _ in texts)),
        "epochs": str(epoch), "best_epoch": str(best_epoch), "loss": f"{least:.4f}",
    }  # fmt: skip
    return Artefact(best, note)


def _top_3(
    network: HashFunction, texts: Sequence[tuple[np.ndarray, np.ndarray]]
) -> float:  # fmt: skip
    """Return how often the gate's first expert is among the network's three likeliest.

    So the paper's hit rate is counted (`predictor.py` of its code).
    """
    found = []
    for embedding_TH, scores_TLE in texts:
        p_TLE = network.read(embedding_TH, network.begin())
        likeliest = np.argsort(-p_TLE, axis=2, kind="stable")[..., :3]
        found.append((likeliest == scores_TLE.argmax(axis=2)[..., None]).any(axis=2).mean())
    return float(np.mean(found))


def _padded(
    texts: Sequence[tuple[np.ndarray, np.ndarray]],
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Return embeddings, gate scores and the mask of real tokens, padded at the end."""
    import torch

    longest = max(len(x) for x, _ in texts)
    x, teacher = (
        np.zeros((len(texts), longest, *texts[0][part].shape[1:]), np.float32) for part in (0, 1)
    )
    real = np.zeros((len(texts), longest), np.float32)
    for i, (embedded, scores) in enumerate(texts):
        n = len(embedded)
        x[i, :n], teacher[i, :n], real[i, :n] = embedded, scores, 1
    return torch.from_numpy(x), torch.from_numpy(teacher), torch.from_numpy(real)
